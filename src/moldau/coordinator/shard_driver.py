"""The asyncio driver of one shard of a coordinator, for one leader epoch in which this node leads the partition.

The driver runs operations on the shard, keeps the futures of pending requests, and has one timer for all deadlines of
the shard. Unloading fails all pending requests.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from moldau.coordinator.result import CompletedRequest, CoordinatorResult, Now, RequestId
from moldau.coordinator.runtime import CoordinatorRuntime, CoordinatorState, OperationWrite
from moldau.coordinator.state_partition import BatchReplay, PartitionWriter, RecordSerde, load, replay_plain_batch
from moldau.errors import (
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    FencedLeaderEpochError,
    MoldauError,
    NotCoordinatorError,
    NotEnoughReplicasError,
    NotLeaderOrFollowerError,
    RecordTooLargeError,
    RequestTimedOutError,
    StorageError,
    UnknownTopicOrPartitionError,
)
from moldau.observe.logging import get_logger
from moldau.partitions.delayed_operations import CallbackList
from moldau.partitions.partition import Partition
from moldau.platform.clock import Clock

log = get_logger(__name__)

R = TypeVar("R")
S = TypeVar("S", bound="CoordinatorShard[Any]")

ShardResult = CoordinatorResult[R, Sequence[CompletedRequest[Any]]]
"""Records, and the requests that are completed when the records are committed. An operation can complete the current
request, requests that were parked before, both, or none."""

WriteOperation = Callable[[S, Now, RequestId], ShardResult[R]]
BackgroundOperation = Callable[[S, Now], ShardResult[R] | None]
"""An operation without a request. It returns None if nothing is left to do."""

NO_LOCK = nullcontext()

TICK_BACKOFF_MS = 1_000
"""Delay before timeouts are handled again after writing records failed, for example because the disk is full."""

_EMPTY_RESULT: ShardResult[Any] = CoordinatorResult((), ())


class CoordinatorShard(CoordinatorState[R], Protocol[R]):
    """The state of a shard: a replicated state machine without I/O."""

    def on_loaded(self, now: Now) -> ShardResult[R]:
        """Runs before any request, after the log was loaded."""

    def next_deadline_ms(self, now: Now) -> int | None:
        """Returns the monotonic time at which `tick` must run; None if there is no deadline."""

    def tick(self, now: Now) -> ShardResult[R]:
        """Handles some or all deadlines up to `now`."""


@dataclass(slots=True)
class _PendingOperation:
    """An operation from its submission until its records are committed."""

    request_id: RequestId | None
    """The request that submitted the operation; None for a background operation."""
    deadline_ms: int
    too_large_error: type[MoldauError] = MoldauError
    on_committed: Callable[[], None] | None = None
    """Called when the operation's records are committed."""
    result: ShardResult[Any] | None = None
    is_timed_out: bool = False
    """True if the request failed with a timeout before the operation ran. The operation must not run after that."""
    is_finished: bool = False

    @property
    def request_ids(self) -> list[RequestId]:
        """The ids of the requests that this operation completes."""
        if self.result is not None:
            return [completed.request_id for completed in self.result.response]
        return [] if self.request_id is None else [self.request_id]


class ShardDriver(Generic[S, R]):
    def __init__(
        self,
        partition: Partition,
        serde: RecordSerde[R],
        clock: Clock,
        *,
        contents: str,
        commit_timeout_ms: int,
        replay: BatchReplay[S, R] = replay_plain_batch,
        on_activated: Callable[[], None] | None = None,
        on_unloaded: Callable[[], None] | None = None,
        on_high_watermark: Callable[[int], None] | None = None,
        on_tick: Callable[[], None] | None = None,
    ) -> None:
        """`contents` says in log lines what the shard has, for example "groups". `replay` applies a batch of the log
        while the shard is loaded.

        `on_activated` is called when the shard starts to serve requests, and `on_unloaded` when it has stopped.
        `on_high_watermark` is called on activation, whenever the high watermark advances, and whenever records are
        applied. `on_tick` is called when the records of a tick are committed.
        """
        self.partition = partition
        self.leader_epoch = partition.leader_epoch
        self.unexpected_errors = 0
        """The number of background operations that failed with an unexpected exception."""
        self.is_loading = True
        self._serde = serde
        self._clock = clock
        self._contents = contents
        self._commit_timeout_ms = commit_timeout_ms
        self._replay = replay
        self._on_activated = on_activated
        self._on_unloaded = on_unloaded
        self._on_high_watermark = on_high_watermark
        self._on_tick = on_tick
        self.writer = PartitionWriter(partition, self.leader_epoch, serde, clock)
        self._runtime: CoordinatorRuntime[S, R] = CoordinatorRuntime(
            self.writer,
            not_loaded_error=self._unavailable_error,
            # The high watermark can pass records before they are applied.
            on_applied=None if on_high_watermark is None else lambda: on_high_watermark(partition.high_watermark),
        )
        self._shard: S | None = None
        self._listener_registrations: list[tuple[CallbackList, int]] = []
        self._pending_responses: dict[RequestId, asyncio.Future[Any]] = {}
        self._last_request_id = 0
        self._pending_operations: deque[_PendingOperation] = deque()
        """Operations in submission order, which is also the order of their deadlines."""
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due_ms = 0
        self._is_tick_pending = False
        self._tick_not_before_ms = 0

    # Loading and unloading

    @property
    def shard(self) -> S | None:
        """The state while the shard serves requests, else None. Only operations may change it."""
        return self._shard

    @property
    def is_active(self) -> bool:
        return self._shard is not None

    @property
    def is_empty(self) -> bool:
        """Whether the log is empty. An empty log does not need to be loaded."""
        return self.partition.log.start_offset == self.partition.log.end_offset

    async def load(
        self, shard: S, bytes_per_read: int, load_lock: AbstractAsyncContextManager[object] = NO_LOCK
    ) -> None:
        """Loads the log while holding `load_lock` and activates the shard.

        After a transient error, `is_loading` stays true and the caller must call again. After any other error, the
        shard is unloaded.
        """
        try:
            end_offset = await load(
                self.partition, self.leader_epoch, shard, self._serde, bytes_per_read, load_lock, self._replay
            )
        except Exception as error:
            if self.is_loading:
                self._on_load_failed(error)
        else:
            if self.is_loading:
                self.activate(shard, end_offset)

    def activate(self, shard: S, end_offset: int) -> None:
        """Starts to serve requests with a shard that has applied the log up to `end_offset`."""
        self._shard = shard
        self.is_loading = False
        self._runtime.load(shard, end_offset)
        for listeners in (self.partition.delayed.high_watermark_listeners, self.partition.delayed.lease_listeners):
            self._listener_registrations.append((listeners, listeners.add(self._on_partition_progress)))
        self.run(lambda shard, now: shard.on_loaded(now))
        if self._shard is not None:
            self._on_partition_progress()
        if self._shard is not None and self._on_activated is not None:
            self._on_activated()

    def unload(self, error: MoldauError) -> None:
        """Fails all pending requests with `error` and later requests with NOT_COORDINATOR."""
        self.is_loading = False
        self._shard = None
        for listeners, registration in self._listener_registrations:
            listeners.remove(registration)
        self._listener_registrations.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._pending_operations.clear()
        self._runtime.unload(error)
        self._fail_pending_responses(error)
        if self._on_unloaded is not None:
            self._on_unloaded()

    def _fail_pending_responses(self, error: MoldauError) -> None:
        pending, self._pending_responses = self._pending_responses, {}
        for future in pending.values():
            if not future.done():
                future.set_exception(error)

    async def close(self) -> None:
        """Unloads the shard and waits until no append is in progress."""
        error = self._not_coordinator_error()
        self.unload(error)
        # Ignore an unexpected error of the runtime, because the request that caused it has already received the error.
        await asyncio.gather(self._runtime.close(error), return_exceptions=True)

    def _on_load_failed(self, error: Exception) -> None:
        is_offline = self.partition.failure is not None or self.partition.log.failure is not None
        # NotLeaderOrFollowerError may be caused by an expired lease. If the leader epoch is unchanged, loading is
        # retried, because the lease can be renewed and no other broker has led the partition.
        is_same_leader = self.partition.is_leader and self.partition.leader_epoch == self.leader_epoch
        is_transient = isinstance(error, StorageError) or (
            isinstance(error, NotLeaderOrFollowerError) and is_same_leader
        )
        if is_transient and not is_offline:
            log.warning(
                f"loading {self._contents} failed, retrying", partition=str(self.partition.name), reason=str(error)
            )
            return
        self.unload(self._not_coordinator_error())
        if not isinstance(error, NotLeaderOrFollowerError | FencedLeaderEpochError):
            self._log_failure(
                f"loading {self._contents} failed, they are unavailable: stop the node, check the partition with "
                "`moldau log verify`, restore it from a replica or a backup, and restart",
                error,
            )

    def _unavailable_error(self) -> MoldauError:
        if self.is_loading:
            return CoordinatorLoadInProgressError(f"loading the {self._contents} of {self.partition.name}")
        return self._not_coordinator_error()

    def _not_coordinator_error(self) -> MoldauError:
        return NotCoordinatorError(f"this node does not coordinate the {self._contents} of {self.partition.name}")

    def _lease_expired_error(self) -> MoldauError:
        """Returns an error that makes clients look up the coordinator again, which may be another node."""
        return NotCoordinatorError(f"the broker lease has expired, cannot coordinate {self.partition.name}")

    def _log_failure(self, message: str, error: BaseException) -> None:
        try:
            raise error
        except MoldauError:
            log.error(message, partition=str(self.partition.name), reason=str(error))
        except Exception:
            self.unexpected_errors += 1
            log.exception(message, partition=str(self.partition.name))

    # Operations

    def submit(
        self,
        operation: WriteOperation[S, R],
        *,
        too_large_error: type[MoldauError] = MoldauError,
        write: OperationWrite[S, R] | None = None,
    ) -> "asyncio.Future[Any]":
        """Submits the operation of a request. Raises an error if the shard is not loaded or the broker has no lease.

        `too_large_error` is the error of a request whose records do not fit into one batch. `write` writes the records
        in another way than as one plain batch.
        """
        if not self.partition.has_lease:
            raise self._lease_expired_error()
        if self._shard is not None and self._runtime.has_parked_responses:
            # No listener is called when the lease is renewed. Therefore this call completes the responses that wait for
            # records which were committed while the broker had no lease.
            self._on_partition_progress()
        if self._shard is None:
            raise self._unavailable_error()
        self._last_request_id += 1
        request_id = self._last_request_id
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._pending_responses[request_id] = future
        self._start(
            lambda shard: operation(shard, self._now(), request_id),
            request_id,
            too_large_error=too_large_error,
            write=write,
        )
        return future

    def run(self, operation: BackgroundOperation[S, R], *, on_committed: Callable[[], None] | None = None) -> None:
        """Runs an operation without a request. `on_committed` is called if it succeeds, after its records are
        committed."""
        if self._shard is not None:
            self._start(lambda shard: operation(shard, self._now()), on_committed=on_committed)

    def run_repeatedly(self, operation: BackgroundOperation[S, R]) -> None:
        """Repeats a background operation after each commit of its records, until the operation returns None."""
        self.run(operation, on_committed=partial(self.run_repeatedly, operation))

    def _start(
        self,
        operation: Callable[[S], ShardResult[R] | None],
        request_id: RequestId | None = None,
        *,
        too_large_error: type[MoldauError] = MoldauError,
        on_committed: Callable[[], None] | None = None,
        write: OperationWrite[S, R] | None = None,
    ) -> None:
        deadline_ms = self._clock.monotonic_ms() + self._commit_timeout_ms
        pending = _PendingOperation(request_id, deadline_ms, too_large_error, on_committed)

        def run(shard: S) -> "ShardResult[R]":
            result = None if pending.is_timed_out else operation(shard)
            if result is None:
                pending.on_committed = None
                result = _EMPTY_RESULT
            pending.result = result
            self._arm_timer()
            return result

        self._pending_operations.append(pending)
        future = self._runtime.schedule(run, write=write)
        if future.done() and request_id is not None:
            self._on_operation_done(pending, future)
        else:
            # Background operations that repeat themselves let requests run in between.
            future.add_done_callback(partial(self._on_operation_done, pending))
            self._arm_timer()

    def _on_operation_done(self, operation: _PendingOperation, future: "asyncio.Future[Any]") -> None:
        operation.is_finished = True
        while self._pending_operations and self._pending_operations[0].is_finished:
            self._pending_operations.popleft()
        error = future.exception()
        if error is not None:
            self._on_operation_failed(operation, error)
        elif operation.result is not None:
            # Without a lease the response may be stale, because another broker may be the coordinator already.
            lease_error = None if self.partition.has_lease else self._lease_expired_error()
            for request_id, response in operation.result.response:
                self._complete_request(request_id, lease_error or response)
            if operation.on_committed is not None:
                operation.on_committed()
        self._arm_timer()

    def _on_operation_failed(self, operation: _PendingOperation, error: BaseException) -> None:
        """Handles a rejected request, a failed append, or an unexpected exception."""
        if operation.result is not None:
            error = _to_coordinator_error(error, operation.too_large_error)
        for request_id in operation.request_ids:
            self._complete_request(request_id, error)
        if self._shard is None:
            return
        if operation.request_id is None:
            self._tick_not_before_ms = self._clock.monotonic_ms() + TICK_BACKOFF_MS
            self._log_failure(f"writing a change of {self._contents} failed", error)
        if not self._runtime.is_loaded or self.partition.log.failure is not None:
            self._fail(error)

    def _complete_request(self, request_id: RequestId, response: object) -> None:
        """Completes a request, unless the request already failed with a timeout."""
        future = self._pending_responses.pop(request_id, None)
        if future is None or future.done():
            return
        if isinstance(response, BaseException):
            future.set_exception(response)
        else:
            future.set_result(response)

    def _on_partition_progress(self) -> None:
        is_leader = self.partition.is_leader and self.partition.leader_epoch == self.leader_epoch
        if self.partition.failure is not None or not is_leader:
            self._fail(self.partition.failure)
            return
        high_watermark = self.partition.high_watermark
        if self.partition.has_lease:
            self._runtime.update_committed_offset(high_watermark)
        else:
            self._fail_pending_responses(self._lease_expired_error())
        if self._on_high_watermark is not None:
            self._on_high_watermark(high_watermark)

    def _fail(self, error: BaseException | None) -> None:
        if error is not None:
            self._log_failure(f"{self._contents} are unavailable until the node is restarted", error)
        self.unload(self._not_coordinator_error())

    # Timeouts

    def _now(self) -> Now:
        return Now(self._clock.monotonic_ms(), self._clock.wall_ms())

    def _arm_timer(self) -> None:
        # An operation can unload the shard, if its append fails for good.
        due_ms = None if self._shard is None else self._next_due_ms(self._shard)
        if due_ms is None:
            return
        if self._timer is not None:
            # Keep a timer that is due earlier: firing too early is cheaper than a new timer for every heartbeat.
            if self._timer_due_ms <= due_ms:
                return
            self._timer.cancel()
        self._timer_due_ms = due_ms
        delay_ms = max(0, due_ms - self._clock.monotonic_ms())
        self._timer = asyncio.get_running_loop().call_later(delay_ms / 1000, self._on_timer)

    def _next_due_ms(self, shard: S) -> int | None:
        commit_ms = self._pending_operations[0].deadline_ms if self._pending_operations else None
        tick_ms = None if self._is_tick_pending else self._next_tick_ms(shard)
        if tick_ms is None or (commit_ms is not None and commit_ms <= tick_ms):
            return commit_ms
        return tick_ms

    def _next_tick_ms(self, shard: S) -> int | None:
        deadline_ms = shard.next_deadline_ms(self._now())
        return None if deadline_ms is None else max(deadline_ms, self._tick_not_before_ms)

    def _on_timer(self) -> None:
        assert self._shard is not None, "unloading cancels the timer"
        self._timer = None
        now_ms = self._clock.monotonic_ms()
        while self._pending_operations and self._pending_operations[0].deadline_ms <= now_ms:
            operation = self._pending_operations.popleft()
            operation.is_timed_out = operation.request_id is not None and operation.result is None
            for request_id in operation.request_ids:
                error = CoordinatorNotAvailableError("the change was not committed in time: try again")
                self._complete_request(request_id, error)
        due_ms = self._next_tick_ms(self._shard)
        if due_ms is not None and due_ms <= now_ms and not self._is_tick_pending:
            self._is_tick_pending = True
            self.run(self._tick, on_committed=self._on_tick)
        self._arm_timer()

    def _tick(self, shard: S, now: Now) -> ShardResult[R]:
        self._is_tick_pending = False
        return shard.tick(now)


def _to_coordinator_error(error: BaseException, too_large_error: type[MoldauError]) -> BaseException:
    """Returns the error that Kafka's coordinators return if an append fails with `error`."""
    if isinstance(error, NotEnoughReplicasError | UnknownTopicOrPartitionError | RequestTimedOutError):
        return CoordinatorNotAvailableError(str(error))
    if isinstance(error, StorageError | NotLeaderOrFollowerError | FencedLeaderEpochError):
        return NotCoordinatorError(str(error))
    if isinstance(error, RecordTooLargeError):
        return too_large_error(str(error))
    return error
