"""What the clients of a run did and saw, in the order it happened: the only evidence the checker has."""

from collections.abc import Sequence
from dataclasses import dataclass, field

Partition = tuple[str, int]


@dataclass(slots=True)
class SendOperation:
    """One batch for one partition. A resend of an idempotent producer is the same send."""

    producer: str
    partition: Partition
    values: Sequence[bytes]
    acks: int
    is_idempotent: bool
    invoked_at: int
    """When it began and ended, counted in events of the history."""
    completed_at: int | None = None
    is_acknowledged: bool = False
    offset: int | None = None
    """Where the broker said the first record is; None where it confirmed a duplicate without saying."""


@dataclass(frozen=True, slots=True)
class PollOperation:
    """An answer to a consumer that was given its partitions by assignment."""

    consumer: str
    partition: Partition
    position: int
    high_watermark: int
    records: Sequence[tuple[int, bytes]]


@dataclass(frozen=True, slots=True)
class UnexpectedError:
    """A broker's answer that must not be: an offset out of range, or a producer's next sequence refused."""

    who: str
    partition: Partition
    what: str


@dataclass(slots=True)
class TopicChange:
    """A topic created or deleted, and whether the broker has confirmed it."""

    topic: str
    is_creation: bool
    is_acknowledged: bool = False


@dataclass(slots=True)
class History:
    sends: list[SendOperation] = field(default_factory=list)
    polls: list[PollOperation] = field(default_factory=list)
    unexpected_errors: list[UnexpectedError] = field(default_factory=list)
    producer_ids: list[int] = field(default_factory=list)
    """As they were handed out, to producers each of whom must get one of its own."""
    topic_changes: list[TopicChange] = field(default_factory=list)
    logs: dict[Partition, Sequence[tuple[int, bytes]]] = field(default_factory=dict)
    """Everything that is there at the end, by partition."""
    topics: Sequence[str] | None = None
    """The topics that are there at the end; None where nobody looked."""
    _events: int = 0

    def send(
        self,
        producer: str,
        partition: Partition,
        values: Sequence[bytes],
        *,
        acks: int,
        is_idempotent: bool = False,
    ) -> SendOperation:
        made = SendOperation(producer, partition, values, acks, is_idempotent, invoked_at=self._next_event())
        self.sends.append(made)
        return made

    def acknowledge(self, send: SendOperation, offset: int | None) -> None:
        send.is_acknowledged = True
        send.offset = offset
        send.completed_at = self._next_event()

    def _next_event(self) -> int:
        self._events += 1
        return self._events
