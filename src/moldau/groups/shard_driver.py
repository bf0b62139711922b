"""The groups of one partition of `__consumer_offsets`, while this node leads it in one epoch.

A shard runs the decisions of the pure state, keeps the requests that wait for their answers, and is the clock of
the state's deadlines: one timer, whatever the number of groups. When it is over nobody is left waiting.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext

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
from moldau.groups.requests import (
    EMPTY_DECISION,
    CompletedRequest,
    GroupDecision,
    GroupResponse,
    Now,
    RequestId,
    TopicKey,
)
from moldau.groups.shard import GroupCoordinatorShard
from moldau.metadata.image import TopicImage
from moldau.observe.logging import get_logger
from moldau.partitions.partition import Partition
from moldau.partitions.waiters import CallbackList
from moldau.platform.clock import Clock

log = get_logger(__name__)

WriteOperation = Callable[[GroupCoordinatorShard, Now, RequestId], GroupDecision]
BackgroundOperation = Callable[[GroupCoordinatorShard, Now], GroupDecision | None]
"""None: there is nothing more to decide."""

NO_LOCK = nullcontext()

TICK_BACKOFF_MS = 1_000
"""How long timers rest after their decision could not be written, so that a full disk is not asked all the time."""


class _PendingOperation:
    """A decision on its way: asked for, decided, written, committed."""

    __slots__ = (
        "deadline_ms",
        "decision",
        "is_commit",
        "is_finished",
        "is_timed_out",
        "on_committed",
        "request_id",
    )

    def __init__(
        self,
        request_id: RequestId | None,
        deadline_ms: int,
        *,
        is_commit: bool = False,
        on_committed: Callable[[], None] | None = None,
    ) -> None:
        self.request_id = request_id
        """Of the request that asks; None where a timer does."""
        self.deadline_ms = deadline_ms
        self.is_commit = is_commit
        self.on_committed = on_committed
        """What follows when its records are committed."""
        self.decision: GroupDecision | None = None
        self.is_timed_out = False
        """Who asked was told that it came to nothing, so nothing is to come of it."""
        self.is_finished = False

    @property
    def request_ids(self) -> list[RequestId]:
        """Whose answers are on it."""
        if self.decision is not None:
            return [answer.request_id for answer in self.decision.reply]
        return [] if self.request_id is None else [self.request_id]


class ShardDriver:
    def __init__(self, partition: Partition, clock: Clock, *, commit_timeout_ms: int) -> None:
        self.partition = partition
        self.leader_epoch = partition.leader_epoch
        self.unexpected_errors = 0
        """Decisions of timers that ended in an exception nobody planned for."""
        self.is_loading = True
        self.deleted_topics: dict[TopicKey, int] = {}
        """Topics that are no more, and whose offsets may not all be forgotten yet; and since when, in ms."""
        self._clock = clock
        self._commit_timeout_ms = commit_timeout_ms
        self._runtime: CoordinatorRuntime[GroupCoordinatorShard, GroupRecord] = CoordinatorRuntime(
            PartitionWriter(partition, self.leader_epoch, clock), not_loaded_error=self._unavailable_error
        )
        self._state: GroupCoordinatorShard | None = None
        self._listener_registrations: list[tuple[CallbackList, int]] = []
        self._pending_responses: dict[RequestId, asyncio.Future[GroupResponse]] = {}
        self._last_request_id = 0
        self._pending_operations: deque[_PendingOperation] = deque()
        """In the order they began, so in that of their deadlines; all have the same time."""
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due_ms = 0
        self._is_tick_pending = False
        self._tick_not_before_ms = 0

    # Beginning and ending

    @property
    def is_active(self) -> bool:
        return self._state is not None

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to load."""
        return self.partition.log.start_offset == self.partition.log.end_offset

    @property
    def record_bytes_max(self) -> int:
        """What one record can have at most."""
        return self.partition.log.settings.max_message_bytes

    async def load(
        self,
        state: GroupCoordinatorShard,
        bytes_per_read: int,
        load_lock: AbstractAsyncContextManager[object] = NO_LOCK,
    ) -> None:
        """Reads the log, within `load_lock`, and begins to serve; where that fails, the groups of this shard alone are
        not served. If it is still loading afterwards, what failed may pass, and it is to be loaded again."""
        try:
            end_offset = await load(self.partition, self.leader_epoch, state, bytes_per_read, load_lock)
        except Exception as error:
            if self.is_loading:
                self._on_load_failed(error)
        else:
            if self.is_loading:
                self.activate(state, end_offset)

    def activate(self, state: GroupCoordinatorShard, end_offset: int) -> None:
        """Begins to answer from a state that holds all of the log."""
        self._state = state
        self.is_loading = False
        self._runtime.load(state, end_offset)
        for news in (self.partition.delayed.high_watermark_listeners, self.partition.delayed.lease_listeners):
            self._listener_registrations.append((news, news.add(self._on_partition_progress)))
        self.run(lambda state, now: state.on_loaded(now))
        self._on_partition_progress()
        self._delete_offsets_of_deleted_topics()

    def unload(self, error: MoldauError) -> None:
        """It is over: whoever waits gets the error, and whoever comes later has come to the wrong node."""
        self.is_loading = False
        self._state = None
        for news, request_id in self._listener_registrations:
            news.remove(request_id)
        self._listener_registrations.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._pending_operations.clear()
        self._runtime.unload(error)
        self._fail_pending_responses(error)

    def _fail_pending_responses(self, error: MoldauError) -> None:
        waiting, self._pending_responses = self._pending_responses, {}
        for answered in waiting.values():
            if not answered.done():
                answered.set_exception(error)

    async def close(self) -> None:
        """Unloads; returns when nothing of it is being written any more."""
        error = self._not_coordinator_error()
        self.unload(error)
        # A bug that ends the runtime is told to who asked; nobody else may stumble over it.
        await asyncio.gather(self._runtime.close(error), return_exceptions=True)

    def _on_load_failed(self, error: Exception) -> None:
        is_offline = self.partition.failure is not None or self.partition.log.failure is not None
        # A lease that has ended may come back, and nobody else may have led meanwhile.
        is_same_leader = self.partition.is_leader and self.partition.leader_epoch == self.leader_epoch
        is_transient = isinstance(error, StorageError) or (
            isinstance(error, NotLeaderOrFollowerError) and is_same_leader
        )
        if is_transient and not is_offline:
            log.warning("groups cannot be loaded yet", partition=str(self.partition.name), why=str(error))
            return
        self.unload(self._not_coordinator_error())
        if not isinstance(error, NotLeaderOrFollowerError | FencedLeaderEpochError):
            self._log_failure(
                "groups cannot be loaded and are not served: stop the node, look at the partition with `moldau "
                "log verify`, restore it from a replica or a backup, and start again",
                error,
            )

    def _unavailable_error(self) -> MoldauError:
        if self.is_loading:
            return CoordinatorLoadInProgressError(f"the groups of {self.partition.name} are being loaded")
        return self._not_coordinator_error()

    def _not_coordinator_error(self) -> MoldauError:
        return NotCoordinatorError(f"the groups of {self.partition.name} are not served here")

    def _lease_expired_error(self) -> MoldauError:
        """Clients go and look for the coordinator, which may be another one by now."""
        return NotCoordinatorError(
            f"this node has not heard of the controller for too long to answer for {self.partition.name}"
        )

    def _log_failure(self, message: str, error: BaseException) -> None:
        try:
            raise error
        except MoldauError:
            log.error(message, partition=str(self.partition.name), why=str(error))
        except Exception:
            self.unexpected_errors += 1
            log.exception(message, partition=str(self.partition.name))

    # Deciding

    def submit(self, step: WriteOperation, *, is_commit: bool = False) -> "asyncio.Future[GroupResponse]":
        """Decides for a request, and gives what its answer will come in; raises where nothing is loaded, or this node
        may not answer."""
        if not self.partition.has_lease:
            raise self._lease_expired_error()
        if self._state is not None:
            # A lease that comes back tells nobody: what was committed without one may be told from now on.
            self._on_partition_progress()
        if self._state is None:
            raise self._unavailable_error()
        self._last_request_id += 1
        request_id = self._last_request_id
        answered: asyncio.Future[GroupResponse] = asyncio.get_running_loop().create_future()
        self._pending_responses[request_id] = answered
        operation = self._new_operation(request_id, is_commit=is_commit)
        self._start_operation(operation, lambda state: step(state, self._now(), request_id))
        return answered

    def run(self, decide: BackgroundOperation) -> None:
        """Decides on the broker's own account: nobody waits for it."""
        if self._state is not None:
            self._start_operation(self._new_operation(None), lambda state: decide(state, self._now()))

    def run_repeatedly(self, decide: BackgroundOperation) -> None:
        """As `run`, again and again until there is nothing more to decide."""
        if self._state is not None:
            operation = self._new_operation(None, on_committed=lambda: self.run_repeatedly(decide))
            self._start_operation(operation, lambda state: decide(state, self._now()))

    def on_topics_deleted(self, topics: Iterable[TopicKey]) -> None:
        """Topics are deleted: their offsets go as soon as there is a state and a log that takes it."""
        self.deleted_topics.update(dict.fromkeys(topics, self._clock.wall_ms()))
        self._delete_offsets_of_deleted_topics()

    def delete_offsets_of_missing_topics(self, topics: Mapping[str, TopicImage]) -> None:
        """Only these topics are there: others were deleted, and a crash may have come before that was written here."""
        if self._state is not None:
            self.on_topics_deleted(
                [
                    (name, topic_id)
                    for name, topic_id in self._state.topics()
                    if topic_id is not None and (name not in topics or topics[name].topic_id != topic_id)
                ]
            )

    def cleanup(self) -> None:
        """What is due from time to time: offsets that have expired, and what could not be forgotten before."""
        self.run_repeatedly(lambda state, now: state.expire_offsets(now))
        self._delete_offsets_of_deleted_topics()

    def _delete_offsets_of_deleted_topics(self) -> None:
        topics = dict(self.deleted_topics)

        def on_topics_deleted(state: GroupCoordinatorShard, now: Now) -> GroupDecision | None:
            decision = state.delete_offsets_of_topics(now, topics)
            if decision is None:
                for key, deleted_ms in topics.items():
                    # It may have been made anew and deleted again since.
                    if self.deleted_topics.get(key) == deleted_ms:
                        del self.deleted_topics[key]
            return decision

        if topics:
            self.run_repeatedly(on_topics_deleted)

    def _new_operation(
        self,
        request_id: RequestId | None,
        *,
        is_commit: bool = False,
        on_committed: Callable[[], None] | None = None,
    ) -> _PendingOperation:
        deadline_ms = self._clock.monotonic_ms() + self._commit_timeout_ms
        return _PendingOperation(request_id, deadline_ms, is_commit=is_commit, on_committed=on_committed)

    def _start_operation(
        self, operation: _PendingOperation, decide: Callable[[GroupCoordinatorShard], GroupDecision | None]
    ) -> None:
        def decide_now(state: GroupCoordinatorShard) -> GroupDecision:
            decision = None if operation.is_timed_out else decide(state)
            if decision is None:
                operation.on_committed = None
                decision = EMPTY_DECISION
            operation.decision = decision
            self._arm_timer()
            return decision

        self._pending_operations.append(operation)
        self._runtime.start(decide_now).add_done_callback(
            lambda landed: self._on_operation_done(operation, landed)
        )
        self._arm_timer()

    def _on_operation_done(
        self, operation: _PendingOperation, landed: "asyncio.Future[Sequence[CompletedRequest]]"
    ) -> None:
        operation.is_finished = True
        while self._pending_operations and self._pending_operations[0].is_finished:
            self._pending_operations.popleft()
        error = landed.exception()
        if error is not None:
            self._on_operation_failed(operation, error)
        elif operation.decision is not None:
            # Whatever was decided: without a lease another node may coordinate, and know better.
            refusal = None if self.partition.has_lease else self._lease_expired_error()
            for request_id, reply in operation.decision.reply:
                self._complete_request(request_id, refusal or reply)
            if operation.on_committed is not None:
                operation.on_committed()
        if self._state is not None:
            self._arm_timer()

    def _on_operation_failed(self, operation: _PendingOperation, error: BaseException) -> None:
        """The request was refused, or its records could not be written, or a bug showed."""
        if operation.decision is not None:
            error = _to_coordinator_error(error, is_commit=operation.is_commit)
        for request_id in operation.request_ids:
            self._complete_request(request_id, error)
        if self._state is None:
            return
        if operation.request_id is None:
            self._tick_not_before_ms = self._clock.monotonic_ms() + TICK_BACKOFF_MS
            self._log_failure("a change of groups is not written", error)
        if not self._runtime.is_loaded or self.partition.log.failure is not None:
            self._fail(error)

    def _complete_request(self, request_id: RequestId, reply: GroupResponse | BaseException) -> None:
        """A ticket that is not known any more was answered before: it was late."""
        answered = self._pending_responses.pop(request_id, None)
        if answered is None or answered.done():
            return
        if isinstance(reply, BaseException):
            answered.set_exception(reply)
        else:
            answered.set_result(reply)

    def _on_partition_progress(self) -> None:
        is_finished = not self.partition.is_leader or self.partition.leader_epoch != self.leader_epoch
        if self.partition.failure is not None or is_finished:
            self._fail(self.partition.failure)
        elif self.partition.has_lease:
            self._runtime.committed(self.partition.high_watermark)
        else:
            # Others may coordinate already, and nothing that is decided here may be said.
            self._fail_pending_responses(self._lease_expired_error())

    def _fail(self, error: BaseException | None) -> None:
        if error is not None:
            self._log_failure("groups are not served any more until the node is restarted", error)
        self.unload(self._not_coordinator_error())

    # Time

    def _now(self) -> Now:
        return Now(self._clock.monotonic_ms(), self._clock.wall_ms())

    def _arm_timer(self) -> None:
        due_ms = self._next_due_ms()
        if due_ms is None:
            return
        if self._timer is not None:
            # One that rings too early is cheaper than a new one for every heartbeat.
            if self._timer_due_ms <= due_ms:
                return
            self._timer.cancel()
        self._timer_due_ms = due_ms
        delay_ms = max(0, due_ms - self._clock.monotonic_ms())
        self._timer = asyncio.get_running_loop().call_later(delay_ms / 1000, self._on_timer)

    def _next_due_ms(self) -> int | None:
        assert self._state is not None
        late_ms = self._pending_operations[0].deadline_ms if self._pending_operations else None
        tick_ms = None if self._is_tick_pending else self._state.next_deadline_ms
        if tick_ms is not None:
            tick_ms = max(tick_ms, self._tick_not_before_ms)
        return min((each for each in (late_ms, tick_ms) if each is not None), default=None)

    def _on_timer(self) -> None:
        assert self._state is not None, "unloading stops the alarm"
        self._timer = None
        now_ms = self._clock.monotonic_ms()
        while self._pending_operations and self._pending_operations[0].deadline_ms <= now_ms:
            late = self._pending_operations.popleft()
            late.is_timed_out = late.request_id is not None and late.decision is None
            for request_id in late.request_ids:
                self._complete_request(
                    request_id, CoordinatorNotAvailableError("the change is not safe in time: try again")
                )
        due_ms = self._state.next_deadline_ms
        if due_ms is not None and max(due_ms, self._tick_not_before_ms) <= now_ms:
            self._tick()
        self._arm_timer()

    def _tick(self) -> None:
        if self._is_tick_pending:
            return
        self._is_tick_pending = True

        def tick(state: GroupCoordinatorShard, now: Now) -> GroupDecision:
            self._is_tick_pending = False
            return state.tick(now)

        self.run(tick)


def _to_coordinator_error(error: BaseException, *, is_commit: bool) -> BaseException:
    """What a member is told when the log does not take a decision's records, as Kafka tells it."""
    if isinstance(error, NotEnoughReplicasError | UnknownTopicOrPartitionError | RequestTimedOutError):
        return CoordinatorNotAvailableError(str(error))
    if isinstance(error, StorageError | NotLeaderOrFollowerError | FencedLeaderEpochError):
        return NotCoordinatorError(str(error))
    if isinstance(error, RecordTooLargeError):
        return InvalidCommitOffsetSizeError(str(error)) if is_commit else MoldauError(str(error))
    return error
