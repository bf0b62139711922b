"""A consumer of a group as the tests see it, whichever library it is made with: polled in a thread of its own, it
keeps what it was given and told. What each library does differently is in the adapters beside this file."""

import queue
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

DEADLINE_S = 30
POLL_MS = 20
HEARTBEAT_MS = 100
"""How soon a member hears of a rebalance: often, so that tests do not wait for it."""

COMMIT_FAILED = -1
"""Stands for the codes that a library has one common word for: the consumer is not the member it takes itself for."""

Partition = tuple[str, int]
T = TypeVar("T")


class Record(NamedTuple):
    topic: str
    partition: int
    offset: int
    value: bytes


class Committed(NamedTuple):
    offset: int
    metadata: str = ""


class Event(NamedTuple):
    """What a rebalance listener was told."""

    kind: str
    partitions: frozenset[Partition]


class Refused(Exception):
    """A library reported one of Kafka's error codes."""

    def __init__(self, code: int, message: object = "") -> None:
        super().__init__(f"error {code}: {message}")
        self.code = code


@dataclass(frozen=True)
class Options:
    """What a consumer is made of, in words that every library has its own for."""

    group: str
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    """A regular expression of topic names, instead of `topics`."""
    partitions: tuple[Partition, ...] = ()
    """Assigned by hand: the consumer does not join the group."""
    assignor: str = "range"
    instance_id: str | None = None
    session_timeout_ms: int = 15_000
    max_poll_interval_ms: int = 60_000
    auto_commit: bool = False
    client_id: str = "tests"


class Member(ABC):
    """Everything that touches the library's consumer happens in the member's own thread."""

    def __init__(self, bootstrap: str, options: Options) -> None:
        self.bootstrap = bootstrap
        self.options = options
        self.received: list[Record] = []
        self.events: list[Event] = []
        self.errors: list[Exception] = []
        """What polling ran into; a test that expects some takes them out."""
        self.assignment: frozenset[Partition] = frozenset()
        self.closed = False
        self._stalled = True
        self._calls: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=options.client_id, daemon=True)
        self._thread.start()
        self._call(self._open)
        self.resume()

    # What the adapters do

    @abstractmethod
    def _open(self) -> None:
        """Makes the consumer and subscribes or assigns it."""

    @abstractmethod
    def _poll(self) -> list[Record]:
        """What came within some POLL_MS. Raises Refused where the consumer cannot go on."""

    @abstractmethod
    def _assigned(self) -> Iterable[Partition]: ...

    @abstractmethod
    def _commit(self, offsets: Mapping[Partition, Committed] | None) -> None: ...

    @abstractmethod
    def _committed(self, partition: Partition) -> int | None: ...

    @abstractmethod
    def _close(self) -> None: ...

    # What tests do

    def commit(self, offsets: Mapping[Partition, Committed] | None = None) -> None:
        """Commits these offsets, or the position in every partition; raises Refused."""
        self._call(lambda: self._commit(offsets))

    def committed(self, partition: Partition) -> int | None:
        return self._call(lambda: self._committed(partition))

    def stall(self) -> None:
        """Stops polling, as an application does that takes too long over a record. The library's own threads and
        tasks go on."""
        self._call(lambda: setattr(self, "_stalled", True))

    def resume(self) -> None:
        self._call(lambda: setattr(self, "_stalled", False))

    def close(self) -> None:
        """The library's own orderly end."""
        if not self.closed:
            self._call(self._shut)
            self._thread.join(DEADLINE_S)

    def values(self) -> list[bytes]:
        return [record.value for record in self.received]

    def codes(self) -> list[int]:
        """Kafka's codes of the errors."""
        return [error.code for error in self.errors if isinstance(error, Refused)]

    def told(self, kind: str) -> list[frozenset[Partition]]:
        return [event.partitions for event in self.events if event.kind == kind]

    # The thread

    def _tell(self, kind: str, partitions: Iterable[Partition]) -> None:
        self.events.append(Event(kind, frozenset(partitions)))

    def _shut(self) -> None:
        self.closed = True
        self._close()

    def _call(self, work: Callable[[], T]) -> T:
        answer: Future[T] = Future()
        self._calls.put((work, answer))
        return answer.result(DEADLINE_S)

    def _run(self) -> None:
        while not self.closed:
            self._answer_calls()
            if self._stalled or self.closed:
                continue
            try:
                self.received += self._poll()
                self.assignment = frozenset(self._assigned())
            except Exception as error:
                self.errors.append(error)
                self._stalled = True

    def _answer_calls(self) -> None:
        while self._stalled or not self._calls.empty():
            work, answer = self._calls.get()
            try:
                answer.set_result(work())
            except Exception as error:
                answer.set_exception(error)
            if self.closed:
                return


@dataclass(frozen=True)
class GroupMember:
    client_id: str
    instance_id: str | None
    assignment: frozenset[Partition]


@dataclass(frozen=True)
class Description:
    state: str
    assignor: str
    members: list[GroupMember] = field(default_factory=list)


class Admin(ABC):
    """A library's admin client, for groups. What it cannot do is in its library's `lacks`."""

    @abstractmethod
    def groups(self) -> dict[str, str | None]:
        """All groups, each with its state where the library tells."""

    @abstractmethod
    def describe(self, group: str) -> Description: ...

    @abstractmethod
    def offsets(self, group: str) -> dict[Partition, Committed]: ...

    @abstractmethod
    def set_offsets(self, group: str, offsets: Mapping[Partition, int]) -> None: ...

    @abstractmethod
    def delete_offsets(self, group: str, partitions: Iterable[Partition]) -> None: ...

    @abstractmethod
    def delete(self, group: str) -> None: ...

    @abstractmethod
    def close(self) -> None: ...


class Library(ABC):
    name: str
    assignors: tuple[str, ...]
    lacks: Mapping[str, str] = {}
    """What the library cannot do, each with the reason that a skipped test gives."""

    @abstractmethod
    def member(self, bootstrap: str, options: Options) -> Member: ...

    @abstractmethod
    def admin(self, bootstrap: str) -> Admin: ...


def eventually(condition: Callable[[], object], what: Callable[[], str] | str) -> None:
    """Waits until the condition holds; past the deadline the test fails and says what was there instead."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(what if isinstance(what, str) else what())
        time.sleep(0.01)


def partitions_of(topic: str, count: int) -> frozenset[Partition]:
    return frozenset((topic, partition) for partition in range(count))


def share(members: Iterable[Member], partitions: Iterable[Partition]) -> None:
    """Waits until the members own these partitions, each one of them once, and as evenly as can be."""
    members, wanted = list(members), sorted(partitions)

    def settled() -> bool:
        owned = [member.assignment for member in members]
        sizes = [len(each) for each in owned]
        return sorted(p for each in owned for p in each) == wanted and max(sizes) - min(sizes) <= 1

    eventually(settled, lambda: f"not shared: {[(sorted(m.assignment), m.errors, m.events) for m in members]}")
