"""A runtime that runs operations, one at a time, on a state that is stored in a log.

Records are applied to the state as soon as they are appended, so that the next operation sees them. So the state can be
ahead of the log's high watermark. A response is sent only after everything that its operation could see is committed.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from moldau.concurrency.eager import report_error, start_eagerly
from moldau.coordinator.result import CoordinatorResult
from moldau.errors import MoldauError

R = TypeVar("R")
R_contra = TypeVar("R_contra", contravariant=True)
S = TypeVar("S", bound="CoordinatorState[Any]")
S_contra = TypeVar("S_contra", contravariant=True)
T = TypeVar("T")


class CoordinatorState(Protocol[R_contra]):
    """The state that operations read. Only `apply` may change it."""

    def apply(self, records: Sequence[R_contra], end_offset: int) -> None:
        """Applies the records of one operation. `end_offset` is the offset after the last of these records."""


class CoordinatorLog(Protocol[R_contra]):
    """The log of a coordinator.

    The owner of the log calls `CoordinatorRuntime.update_committed_offset` when the high watermark advances.
    """

    async def append(self, records: Sequence[R_contra]) -> int:
        """Appends either all records, as one batch, or none of them. Returns the end offset."""


class OperationWrite(Protocol[S_contra, R_contra]):
    """How the records of an operation are written and applied, if not by `CoordinatorLog` and `CoordinatorState`."""

    async def append(self, records: Sequence[R_contra]) -> int:
        """Appends all records or none of them. Returns the end offset."""

    def apply(self, state: S_contra, records: Sequence[R_contra], end_offset: int) -> None:
        """Applies the records, which were appended."""


class _QueuedOperation(NamedTuple):
    operation: Callable[[Any], CoordinatorResult[Any, Any]]
    future: asyncio.Future[Any]
    write: OperationWrite[Any, Any]
    update: Callable[[Any], None] | None = None


class _PlainWrite:
    """Writes records as one batch outside of any transaction."""

    def __init__(self, log: CoordinatorLog[Any]) -> None:
        self.append = log.append

    def apply(self, state: CoordinatorState[Any], records: Sequence[Any], end_offset: int) -> None:
        state.apply(records, end_offset)


class _ParkedResponse(NamedTuple):
    end_offset: int
    """The response is sent when the high watermark reaches this offset."""
    future: asyncio.Future[Any]
    response: Any
    error: BaseException | None
    has_records: bool
    """Whether the operation appended records. If this node loses its leadership, the next leader may commit them."""


class CoordinatorRuntime(Generic[S, R]):
    """One state and its log. The state is loaded while this node is the log's leader; otherwise operations are
    rejected."""

    def __init__(
        self,
        log: CoordinatorLog[R],
        *,
        not_loaded_error: Callable[[], MoldauError],
        on_applied: Callable[[], None] | None = None,
        on_failure: Callable[[BaseException], None] | None = None,
    ) -> None:
        """`on_applied` is called after records were applied. They may be committed already.

        `on_failure` is called if appended records could not be applied. The state is then unloaded, and loading it
        again would fail in the same way.
        """
        self._plain_write = _PlainWrite(log)
        self._not_loaded_error = not_loaded_error
        self._on_applied = on_applied
        self._on_failure = on_failure
        self._state: S | None = None
        self._load_count = 0
        self._last_written_offset = 0
        """The end offset of the records in the state."""
        self._last_committed_offset = 0
        self._queue: deque[_QueuedOperation] = deque()
        self._running: _QueuedOperation | None = None
        self._parked: deque[_ParkedResponse] = deque()
        """The responses that wait for a commit, sorted by end offset and then by the order of the operations."""
        self._is_running = False
        self._task: asyncio.Task[None] | None = None
        """Runs the queue if an append has suspended. Most appends do not."""

    @property
    def is_loaded(self) -> bool:
        return self._state is not None

    @property
    def has_parked_responses(self) -> bool:
        """Whether responses wait for a commit. If not, everything in the state is committed."""
        return bool(self._parked)

    def load(self, state: S, end_offset: int) -> None:
        """Starts to serve a state that contains all records below `end_offset`. All of these records must be
        committed."""
        assert self._state is None, "the previous state must be unloaded first"
        self._load_count += 1
        self._state = state
        self._last_written_offset = self._last_committed_offset = end_offset

    def unload(self, error: BaseException, *, in_doubt_error: BaseException | None = None) -> None:
        """Drops the state after the loss of leadership (or of the log), and fails all pending responses.

        The next leader may still commit records that this node has appended. Callers that wait for such records get
        `in_doubt_error` if it is set, because they must check the outcome before they retry.
        """
        self._state = None
        self._load_count += 1
        parked, self._parked = self._parked, deque()
        queued, self._queue = self._queue, deque()
        for response in parked:
            _fail(response.future, (in_doubt_error if response.has_records else None) or error)
        if self._running is not None:
            _fail(self._running.future, in_doubt_error or error)
        for operation in queued:
            _fail(operation.future, error)

    async def close(self, error: BaseException) -> None:
        """Unloads the state and waits until the append in progress has ended."""
        self.unload(error)
        if self._task is not None:
            await self._task

    async def submit(
        self, operation: Callable[[S], CoordinatorResult[R, T]], *, update: Callable[[S], None] | None = None
    ) -> T:
        """Runs the operation, appends its records, and returns the response.

        The response is delayed until everything that the operation could see is committed. An exception of the
        operation is delayed in the same way. Cancelling the caller drops the operation only while it is queued.

        Operations are pure. `update` runs just before the operation and may change state that is not in the log.
        """
        return await self.schedule(operation, update=update)

    def schedule(
        self,
        operation: Callable[[S], CoordinatorResult[R, T]],
        *,
        update: Callable[[S], None] | None = None,
        write: OperationWrite[S, R] | None = None,
    ) -> "asyncio.Future[T]":
        """Runs an operation, or queues it behind others. Returns the future of its response.

        Raises an error only if no state is loaded. The future may be done on return.
        """
        if self._state is None:
            raise self._not_loaded_error()
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._queue.append(_QueuedOperation(operation, future, write or self._plain_write, update))
        if not self._is_running:
            self._is_running = True
            # Appends that suspend continue in a task of their own, because a cancelled caller must not leave records
            # that are appended but not applied.
            self._task = start_eagerly(self._run(), report_error)
        return future

    def update_committed_offset(self, offset: int) -> None:
        """Sends the responses that waited for everything below `offset` to commit."""
        if offset <= self._last_committed_offset:
            return
        self._last_committed_offset = offset
        while self._parked and self._parked[0].end_offset <= offset:
            _complete(self._parked.popleft())

    async def _run(self) -> None:
        try:
            while self._queue:
                self._running = self._queue.popleft()
                await self._run_operation(self._running)
                self._running = None
        except BaseException as error:
            # Unload the state, because it may now lack records that are in the log.
            self.unload(error)
            if self._on_failure is None or not isinstance(error, Exception):
                raise
            self._on_failure(error)
        finally:
            self._running = self._task = None
            self._is_running = False

    async def _run_operation(self, queued: _QueuedOperation) -> None:
        state, load_count = self._state, self._load_count
        assert state is not None, "unloading empties the queue"
        if queued.future.done():
            return
        try:
            if queued.update is not None:
                queued.update(state)
            result: CoordinatorResult[R, Any] = queued.operation(state)
        except Exception as error:
            self._park(_ParkedResponse(self._last_written_offset, queued.future, None, error, has_records=False))
            return
        if result.records:
            try:
                end_offset = await queued.write.append(result.records)
            except Exception as error:
                _fail(queued.future, error)
                return
            if self._load_count != load_count:
                return
            assert end_offset > self._last_written_offset, "an append moves the end offset"
            queued.write.apply(state, result.records, end_offset)
            self._last_written_offset = end_offset
            if self._on_applied is not None:
                self._on_applied()
        has_records = bool(result.records)
        offset = self._last_written_offset
        if not has_records and result.min_committed_offset is not None:
            offset = min(offset, result.min_committed_offset)
        self._park(_ParkedResponse(offset, queued.future, result.response, None, has_records))

    def _park(self, parked: _ParkedResponse) -> None:
        if parked.end_offset <= self._last_committed_offset:
            _complete(parked)
            return
        index = len(self._parked)
        while index and self._parked[index - 1].end_offset > parked.end_offset:
            index -= 1
        self._parked.insert(index, parked)


def _complete(parked: _ParkedResponse) -> None:
    if parked.error is not None:
        _fail(parked.future, parked.error)
    elif not parked.future.done():
        parked.future.set_result(parked.response)


def _fail(future: asyncio.Future[Any], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
