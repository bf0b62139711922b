"""The asyncio driver of one GroupCoordinatorShard, for one leader epoch in which this node leads the partition.

The driver runs operations on the shard, keeps the futures of pending requests, and has one timer for all deadlines of
the shard. Unloading fails all pending requests.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from functools import partial

from moldau.coordinator.runtime import CoordinatorRuntime
from moldau.errors import (
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    FencedLeaderEpochError,
    InvalidCommitOffsetSizeError,
    MoldauError,
    NotCoordinatorError,
    NotEnoughReplicasError,
    NotLeaderOrFollowerError,
    RecordTooLargeError,
    RequestTimedOutError,
    StorageError,
    UnknownTopicOrPartitionError,
)
from moldau.groups.offsets_partition import PartitionWriter, load
from moldau.groups.records import GroupRecord
from moldau.groups.requests import EMPTY_RESULT, CompletedRequest, GroupResponse, GroupResult, Now, RequestId, TopicKey
from moldau.groups.shard import GroupCoordinatorShard
from moldau.metadata.image import TopicImage
from moldau.observe.logging import get_logger
from moldau.partitions.delayed_operations import CallbackList
from moldau.partitions.partition import Partition
from moldau.platform.clock import Clock

log = get_logger(__name__)

WriteOperation = Callable[[GroupCoordinatorShard, Now, RequestId], GroupResult]
BackgroundOperation = Callable[[GroupCoordinatorShard, Now], GroupResult | None]
"""An operation without a request. It returns None if nothing is left to do."""

NO_LOCK = nullcontext()

TICK_BACKOFF_MS = 1_000
"""Delay before timeouts are handled again after writing records failed, for example because the disk is full."""


@dataclass(slots=True)
class _PendingOperation:
    """An operation from its submission until its records are committed."""

    request_id: RequestId | None
    """The request that submitted the operation; None for a background operation."""
    deadline_ms: int
    is_commit: bool = False
    on_committed: Callable[[], None] | None = None
    """Called when the operation's records are committed."""
    result: GroupResult | None = None
    is_timed_out: bool = False
    """True if the request failed with a timeout before the operation ran. The operation must not run after that."""
    is_finished: bool = False

    @property
    def request_ids(self) -> list[RequestId]:
        """The ids of the requests that this operation completes."""
        if self.result is not None:
            return [completed.request_id for completed in self.result.response]
        return [] if self.request_id is None else [self.request_id]


class ShardDriver:
    def __init__(self, partition: Partition, clock: Clock, *, commit_timeout_ms: int) -> None:
        self.partition = partition
        self.leader_epoch = partition.leader_epoch
        self.unexpected_errors = 0
        """The number of background operations that failed with an unexpected exception."""
        self.is_loading = True
        self.deleted_topics: dict[TopicKey, int] = {}
        """Deleted topics that may still have offsets in this shard, with their deletion times in ms."""
        self._clock = clock
        self._commit_timeout_ms = commit_timeout_ms
        self._runtime: CoordinatorRuntime[GroupCoordinatorShard, GroupRecord] = CoordinatorRuntime(
            PartitionWriter(partition, self.leader_epoch, clock), not_loaded_error=self._unavailable_error
        )
        self._shard: GroupCoordinatorShard | None = None
        self._listener_registrations: list[tuple[CallbackList, int]] = []
        self._pending_responses: dict[RequestId, asyncio.Future[GroupResponse]] = {}
        self._last_request_id = 0
        self._pending_operations: deque[_PendingOperation] = deque()
        """Operations in submission order, which is also the order of their deadlines."""
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due_ms = 0
        self._is_tick_pending = False
        self._tick_not_before_ms = 0

    # Loading and unloading

    @property
    def is_active(self) -> bool:
        return self._shard is not None

    @property
    def is_empty(self) -> bool:
        """Whether the log is empty. An empty log does not need to be loaded."""
        return self.partition.log.start_offset == self.partition.log.end_offset

    async def load(
        self,
        shard: GroupCoordinatorShard,
        bytes_per_read: int,
        load_lock: AbstractAsyncContextManager[object] = NO_LOCK,
    ) -> None:
        """Loads the log while holding `load_lock` and activates the shard.

        After a transient error, `is_loading` stays true and the caller must call again. After any other error, the
        shard is unloaded.
        """
        try:
            end_offset = await load(self.partition, self.leader_epoch, shard, bytes_per_read, load_lock)
        except Exception as error:
            if self.is_loading:
                self._on_load_failed(error)
        else:
            if self.is_loading:
                self.activate(shard, end_offset)

    def activate(self, shard: GroupCoordinatorShard, end_offset: int) -> None:
        """Starts to serve requests with a shard that has applied the log up to `end_offset`."""
        self._shard = shard
        self.is_loading = False
        self._runtime.load(shard, end_offset)
        for listeners in (self.partition.delayed.high_watermark_listeners, self.partition.delayed.lease_listeners):
            self._listener_registrations.append((listeners, listeners.add(self._on_partition_progress)))
        self.run(lambda shard, now: shard.groups.on_loaded(now))
        self._on_partition_progress()
        self._delete_offsets_of_deleted_topics()

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
            log.warning("loading groups failed, retrying", partition=str(self.partition.name), reason=str(error))
            return
        self.unload(self._not_coordinator_error())
        if not isinstance(error, NotLeaderOrFollowerError | FencedLeaderEpochError):
            self._log_failure(
                "loading groups failed, they are unavailable: stop the node, check the partition with `moldau log "
                "verify`, restore it from a replica or a backup, and restart",
                error,
            )

    def _unavailable_error(self) -> MoldauError:
        if self.is_loading:
            return CoordinatorLoadInProgressError(f"loading the groups of {self.partition.name}")
        return self._not_coordinator_error()

    def _not_coordinator_error(self) -> MoldauError:
        return NotCoordinatorError(f"this node does not coordinate the groups of {self.partition.name}")

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

    def submit(self, operation: WriteOperation, *, is_commit: bool = False) -> "asyncio.Future[GroupResponse]":
        """Submits the operation of a request. Raises an error if the shard is not loaded or the broker has no lease."""
        if not self.partition.has_lease:
            raise self._lease_expired_error()
        if self._shard is not None:
            # No listener is called when the lease is renewed. Therefore this call completes the responses that wait for
            # records which were committed while the broker had no lease.
            self._on_partition_progress()
        if self._shard is None:
            raise self._unavailable_error()
        self._last_request_id += 1
        request_id = self._last_request_id
        future: asyncio.Future[GroupResponse] = asyncio.get_running_loop().create_future()
        self._pending_responses[request_id] = future
        self._start(lambda shard: operation(shard, self._now(), request_id), request_id, is_commit=is_commit)
        return future

    def run(self, operation: BackgroundOperation) -> None:
        if self._shard is not None:
            self._start(lambda shard: operation(shard, self._now()))

    def run_repeatedly(self, operation: BackgroundOperation) -> None:
        """Repeats a background operation after each commit of its records, until the operation returns None."""
        if self._shard is not None:
            repeat = partial(self.run_repeatedly, operation)
            self._start(lambda shard: operation(shard, self._now()), on_committed=repeat)

    def on_topics_deleted(self, topics: Iterable[TopicKey]) -> None:
        """Deletes the offsets of deleted topics now, or after loading if the shard is still loading."""
        self.deleted_topics.update(dict.fromkeys(topics, self._clock.wall_ms()))
        self._delete_offsets_of_deleted_topics()

    def delete_offsets_of_missing_topics(self, topics: Mapping[str, TopicImage]) -> None:
        """Deletes offsets whose topic id is not in `topics`, which contains all existing topics. An earlier coordinator
        may have crashed before it deleted the offsets of a deleted topic."""
        if self._shard is not None:
            self.on_topics_deleted(
                [
                    (name, topic_id)
                    for name, topic_id in self._shard.offsets.topics()
                    if topic_id is not None and (name not in topics or topics[name].topic_id != topic_id)
                ]
            )

    def cleanup(self) -> None:
        """Deletes expired offsets. Deletes offsets of deleted topics again if an earlier attempt failed."""
        self.run_repeatedly(lambda shard, now: shard.expire_offsets(now))
        self._delete_offsets_of_deleted_topics()

    def _delete_offsets_of_deleted_topics(self) -> None:
        topics = dict(self.deleted_topics)

        def delete(shard: GroupCoordinatorShard, now: Now) -> GroupResult | None:
            result = shard.delete_offsets_of_topics(topics)
            if result is None:
                for key, deleted_ms in topics.items():
                    # If the deletion time has changed, another topic of this name was deleted, so keep the entry.
                    if self.deleted_topics.get(key) == deleted_ms:
                        del self.deleted_topics[key]
            return result

        if topics:
            self.run_repeatedly(delete)

    def _start(
        self,
        operation: Callable[[GroupCoordinatorShard], GroupResult | None],
        request_id: RequestId | None = None,
        *,
        is_commit: bool = False,
        on_committed: Callable[[], None] | None = None,
    ) -> None:
        deadline_ms = self._clock.monotonic_ms() + self._commit_timeout_ms
        pending = _PendingOperation(request_id, deadline_ms, is_commit, on_committed)

        def run(shard: GroupCoordinatorShard) -> GroupResult:
            result = None if pending.is_timed_out else operation(shard)
            if result is None:
                pending.on_committed = None
                result = EMPTY_RESULT
            pending.result = result
            self._arm_timer()
            return result

        self._pending_operations.append(pending)
        self._runtime.schedule(run).add_done_callback(lambda future: self._on_operation_done(pending, future))
        self._arm_timer()

    def _on_operation_done(
        self, operation: _PendingOperation, future: "asyncio.Future[Sequence[CompletedRequest]]"
    ) -> None:
        operation.is_finished = True
        while self._pending_operations and self._pending_operations[0].is_finished:
            self._pending_operations.popleft()
        error = future.exception()
        if error is not None:
            self._on_operation_failed(operation, error)
        elif operation.result is not None:
            # Without a lease the response may be stale, because another broker may coordinate the group already.
            lease_error = None if self.partition.has_lease else self._lease_expired_error()
            for request_id, response in operation.result.response:
                self._complete_request(request_id, lease_error or response)
            if operation.on_committed is not None:
                operation.on_committed()
        if self._shard is not None:
            self._arm_timer()

    def _on_operation_failed(self, operation: _PendingOperation, error: BaseException) -> None:
        """Handles a rejected request, a failed append, or an unexpected exception."""
        if operation.result is not None:
            error = _to_coordinator_error(error, is_commit=operation.is_commit)
        for request_id in operation.request_ids:
            self._complete_request(request_id, error)
        if self._shard is None:
            return
        if operation.request_id is None:
            self._tick_not_before_ms = self._clock.monotonic_ms() + TICK_BACKOFF_MS
            self._log_failure("writing a group change failed", error)
        if not self._runtime.is_loaded or self.partition.log.failure is not None:
            self._fail(error)

    def _complete_request(self, request_id: RequestId, response: GroupResponse | BaseException) -> None:
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
        elif self.partition.has_lease:
            self._runtime.update_committed_offset(self.partition.high_watermark)
        else:
            self._fail_pending_responses(self._lease_expired_error())

    def _fail(self, error: BaseException | None) -> None:
        if error is not None:
            self._log_failure("groups are unavailable until the node is restarted", error)
        self.unload(self._not_coordinator_error())

    # Timeouts

    def _now(self) -> Now:
        return Now(self._clock.monotonic_ms(), self._clock.wall_ms())

    def _arm_timer(self) -> None:
        due_ms = self._next_due_ms()
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

    def _next_due_ms(self) -> int | None:
        assert self._shard is not None
        commit_ms = self._pending_operations[0].deadline_ms if self._pending_operations else None
        tick_ms = None if self._is_tick_pending else self._shard.groups.next_deadline_ms
        if tick_ms is not None:
            tick_ms = max(tick_ms, self._tick_not_before_ms)
        return min((each for each in (commit_ms, tick_ms) if each is not None), default=None)

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
        due_ms = self._shard.groups.next_deadline_ms
        is_due = due_ms is not None and max(due_ms, self._tick_not_before_ms) <= now_ms
        if is_due and not self._is_tick_pending:
            self._is_tick_pending = True
            self.run(self._tick)
        self._arm_timer()

    def _tick(self, shard: GroupCoordinatorShard, now: Now) -> GroupResult:
        self._is_tick_pending = False
        return shard.groups.tick(now)


def _to_coordinator_error(error: BaseException, *, is_commit: bool) -> BaseException:
    """Returns the error that Kafka's group coordinator returns if an append fails with `error`."""
    if isinstance(error, NotEnoughReplicasError | UnknownTopicOrPartitionError | RequestTimedOutError):
        return CoordinatorNotAvailableError(str(error))
    if isinstance(error, StorageError | NotLeaderOrFollowerError | FencedLeaderEpochError):
        return NotCoordinatorError(str(error))
    if isinstance(error, RecordTooLargeError):
        return InvalidCommitOffsetSizeError(str(error)) if is_commit else MoldauError(str(error))
    return error
