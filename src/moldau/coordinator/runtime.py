"""Runs decisions one after the other on a state that lives in a log, and lets each reply go when it is safe.

The state runs ahead of the log's high watermark: a decision's records are applied as soon as they are
appended, so that the next decision builds on them, and no reply leaves before everything it could have seen
is committed.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from moldau.coordinator.result import CoordinatorResult
from moldau.errors import MoldauError

R = TypeVar("R")
R_contra = TypeVar("R_contra", contravariant=True)
S = TypeVar("S", bound="CoordinatorState[Any]")
T = TypeVar("T")


class CoordinatorState(Protocol[R_contra]):
    """What decisions are made on. A decision must not change it; only `apply` does."""

    def apply(self, records: Sequence[R_contra], end_offset: int) -> None:
        """Takes the records of one decision, which now end at `end_offset` in the log."""


class CoordinatorLog(Protocol[R_contra]):
    async def append(self, records: Sequence[R_contra]) -> int:
        """Appends all of them as one batch or none; returns the offset after the last.

        Whoever owns the log calls `CoordinatorRuntime.committed` when its high watermark moves.
        """


class _QueuedOperation(NamedTuple):
    decide: Callable[[Any], CoordinatorResult[Any, Any]]
    future: asyncio.Future[Any]


class _ParkedResponse(NamedTuple):
    end_offset: int
    """The reply may leave when the high watermark is here."""
    future: asyncio.Future[Any]
    reply: Any
    error: BaseException | None
    has_records: bool
    """Whether it has records of its own, which may be committed even if this node never hears of it."""


class CoordinatorRuntime(Generic[S, R]):
    """One state and its log. It is loaded while this node leads the log and refuses everything otherwise."""

    def __init__(
        self,
        log: CoordinatorLog[R],
        *,
        not_loaded_error: Callable[[], MoldauError],
        on_failure: Callable[[BaseException], None] | None = None,
    ) -> None:
        """`not_loaded_error` makes the error for decisions that come while nothing is loaded. `on_failure` hears that
        records are in the log which the state could not take: it is unloaded, and loading it again would not help."""
        self._log = log
        self._not_loaded_error = not_loaded_error
        self._on_failure = on_failure
        self._state: S | None = None
        self._generation = 0
        self._last_written_offset = 0
        """The end of the newest records in the state: what a decision made now could have seen."""
        self._last_committed_offset = 0
        self._queue: deque[_QueuedOperation] = deque()
        self._running: _QueuedOperation | None = None
        self._parked: deque[_ParkedResponse] = deque()
        """In the order of their offsets; those of one offset as they were decided."""
        self._task: asyncio.Task[None] | None = None

    @property
    def is_loaded(self) -> bool:
        return self._state is not None

    def load(self, state: S, end_offset: int) -> None:
        """Begins to serve from a state that holds everything below `end_offset`, all of it committed."""
        assert self._state is None, "what is loaded must be unloaded first"
        self._generation += 1
        self._state = state
        self._last_written_offset = self._last_committed_offset = end_offset

    def unload(self, error: BaseException, *, in_doubt_error: BaseException | None = None) -> None:
        """Leadership is lost (or the log): throws the state away and fails every reply that has not left.

        A decision whose records are appended may still be committed by the next leader: its caller gets
        `in_doubt_error`,
        where there is one, to know that it must look before it asks again.
        """
        self._state = None
        self._generation += 1
        parked, self._parked = self._parked, deque()
        queued, self._queue = self._queue, deque()
        for left in parked:
            _fail(left.future, in_doubt_error if in_doubt_error is not None and left.has_records else error)
        if self._running is not None:
            _fail(self._running.future, in_doubt_error or error)
        for waiting in queued:
            _fail(waiting.future, error)

    async def close(self, error: BaseException) -> None:
        """Unloads, and returns when no append is under way any more."""
        self.unload(error)
        if self._task is not None:
            await self._task

    async def submit(self, decide: Callable[[S], CoordinatorResult[R, T]]) -> T:
        """Decides, appends, and returns the reply when it is safe.

        What `decide` raises is a reply too, and waits like one. A caller that gives up changes nothing: what
        was decided stays decided.
        """
        return await self.start(decide)

    def start(self, decide: Callable[[S], CoordinatorResult[R, T]]) -> "asyncio.Future[T]":
        """As `submit`, for a caller that hears of the reply by a callback; raises only where nothing is loaded."""
        if self._state is None:
            raise self._not_loaded_error()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._queue.append(_QueuedOperation(decide, future))
        if self._task is None:
            # A task of its own: a cancelled caller must not leave records appended and not applied.
            self._task = loop.create_task(self._run())
        return future

    def committed(self, offset: int) -> None:
        """Everything below `offset` is safe: lets go of the replies that waited for it."""
        if offset <= self._last_committed_offset:
            return
        self._last_committed_offset = offset
        while self._parked and self._parked[0].end_offset <= offset:
            _release(self._parked.popleft())

    async def _run(self) -> None:
        try:
            while self._queue:
                self._running = self._queue.popleft()
                await self._run_operation(self._running)
                self._running = None
        except BaseException as error:
            # Whatever ends this task leaves the state behind the log: nothing may be decided on it any more.
            self.unload(error)
            if self._on_failure is None or not isinstance(error, Exception):
                raise
            self._on_failure(error)
        finally:
            self._running = self._task = None

    async def _run_operation(self, submitted: _QueuedOperation) -> None:
        state, generation = self._state, self._generation
        assert state is not None, "unloading empties the queue"
        if submitted.future.done():
            return
        try:
            decision: CoordinatorResult[R, Any] = submitted.decide(state)
        except Exception as error:
            self._park(
                _ParkedResponse(self._last_written_offset, submitted.future, None, error, has_records=False)
            )
            return
        if decision.records:
            try:
                end_offset = await self._log.append(decision.records)
            except Exception as error:
                _fail(submitted.future, error)
                return
            if self._generation != generation:
                return
            assert end_offset > self._last_written_offset, "a log grows"
            state.apply(decision.records, end_offset)
            self._last_written_offset = end_offset
        has_records = bool(decision.records)
        offset = self._last_written_offset
        if not has_records and decision.min_committed_offset is not None:
            offset = min(offset, decision.min_committed_offset)
        self._park(_ParkedResponse(offset, submitted.future, decision.reply, None, has_records))

    def _park(self, parked: _ParkedResponse) -> None:
        if parked.end_offset <= self._last_committed_offset:
            _release(parked)
            return
        place = len(self._parked)
        while place and self._parked[place - 1].end_offset > parked.end_offset:
            place -= 1
        self._parked.insert(place, parked)


def _release(parked: _ParkedResponse) -> None:
    if parked.error is not None:
        _fail(parked.future, parked.error)
    elif not parked.future.done():
        parked.future.set_result(parked.reply)


def _fail(future: asyncio.Future[Any], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
