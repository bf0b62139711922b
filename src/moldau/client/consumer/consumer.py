"""The consumer: reads topics, alone or together with the other consumers of a group.

    async with Consumer("localhost:9092", group_id="billing") as consumer:
        consumer.subscribe(["orders"])
        async for record in consumer:
            ...

Heartbeats and fetches run in the background. Partitions are assigned and revoked only inside `poll` (`async for` also
polls). Poll often, because a consumer that does not poll for `max_poll_interval_ms` leaves the group. Never block the
event loop, because it sends the heartbeats. After `session_timeout_ms` without a heartbeat the group removes the
consumer. Run long computations in a thread.
"""

import asyncio
import re
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from enum import Enum
from typing import Any, Literal, Self, TypeVar

from moldau.client.consumer.completed_fetch import READ_COMMITTED, READ_UNCOMMITTED, CompletedFetch
from moldau.client.consumer.consumer_coordinator import (
    ConsumerCoordinator,
    ConsumerRebalanceListener,
    RebalanceCallback,
)
from moldau.client.consumer.fetch_manager import FetchManager
from moldau.client.consumer.offset_lookup import EARLIEST, LATEST, OffsetAndTimestamp, list_offsets
from moldau.client.consumer.subscription_state import (
    RESET_STRATEGIES,
    OffsetAndMetadata,
    OffsetResetStrategy,
    SubscriptionState,
    SubscriptionType,
    validate_offsets,
)
from moldau.client.consumer.topic_subscription import TopicSubscription
from moldau.client.errors import IllegalStateError
from moldau.client.group.assignors import ConsumerPartitionAssignor, resolve_assignors
from moldau.client.group.driver import MembershipDriver
from moldau.client.group.events import Closed, RevokeAll, SubscriptionChanged, Unsubscribed
from moldau.client.group.member_state import ConsumerGroupMetadata, GroupRebalanceConfig
from moldau.client.group.offsets import GroupOffsets
from moldau.client.net.cluster import Cluster, resolve_cluster
from moldau.client.record import ConsumerRecord, TopicPartition, is_valid_topic_name
from moldau.concurrency.tasks import wait_until
from moldau.observe.logging import get_logger

_ISOLATION_LEVELS = {"read_uncommitted": READ_UNCOMMITTED, "read_committed": READ_COMMITTED}
_ITERATION_POLL_MS = 60_000
_ITERATION_SLICE_S = 0.005
"""How long `async for` returns buffered records before it polls again."""

T = TypeVar("T")

_log = get_logger("client.consumer")


class _CloseTask:
    """Closes a consumer once, in stages with a common deadline.

    If a caller of `wait` is cancelled, the remaining stages still start, but each is cancelled where it first blocks.
    """

    def __init__(self, close: Callable[["_CloseTask"], Coroutine[Any, Any, None]], timeout_ms: int) -> None:
        loop = asyncio.get_running_loop()
        self._deadline = loop.time() + timeout_ms / 1000
        self._timeout: asyncio.Timeout | None = None
        self.task = loop.create_task(close(self), name="consumer closes")

    async def wait(self) -> None:
        try:
            await asyncio.shield(self.task)
        except asyncio.CancelledError:
            self._deadline = asyncio.get_running_loop().time()
            if self._timeout is not None and not self._timeout.expired():
                self._timeout.reschedule(self._deadline)
            await asyncio.gather(asyncio.shield(self.task), return_exceptions=True)
            raise

    async def run_stage(self, name: str, stage: Coroutine[Any, Any, None]) -> None:
        """Runs a stage until the deadline. The stage starts even if the deadline has passed."""
        try:
            async with asyncio.timeout_at(self._deadline) as self._timeout:
                await stage
        except TimeoutError:
            if self._timeout is None or not self._timeout.expired():
                raise
            _log.warning("the consumer closes without completing a stage", stage=name)
        finally:
            self._timeout = None


class _State(Enum):
    NEW = "new"
    STARTED = "started"
    CLOSING = "closing"
    """Rebalance callbacks may still commit the offsets of revoked partitions."""
    CLOSED = "closed"


class Consumer:
    """Reads records from topics. Call `start` and `close`, or use `async with`. Only one task may poll at a time."""

    def __init__(
        self,
        bootstrap: str | Sequence[str] | None = None,
        *,
        cluster: Cluster | None = None,
        group_id: str | None = None,
        group_instance_id: str | None = None,
        assignors: Sequence[str | ConsumerPartitionAssignor] = ("range", "cooperative-sticky"),
        auto_offset_reset: Literal["earliest", "latest", "none"] = "latest",
        enable_auto_commit: bool = True,
        auto_commit_interval_ms: int = 5_000,
        session_timeout_ms: int = 45_000,
        heartbeat_interval_ms: int = 3_000,
        max_poll_interval_ms: int = 300_000,
        max_poll_records: int = 500,
        isolation_level: Literal["read_uncommitted", "read_committed"] = "read_uncommitted",
        fetch_min_bytes: int = 1,
        fetch_max_wait_ms: int = 500,
        fetch_max_bytes: int = 50 * 1024 * 1024,
        max_partition_fetch_bytes: int = 1024 * 1024,
        exclude_internal_topics: bool = True,
        **cluster_settings: Any,
    ) -> None:
        """Takes either `bootstrap` servers, with `cluster_settings` as in `Cluster`, or a started, shared `cluster`.

        `assignors` are names, or assignors of your own; the preferred one comes first. If all are cooperative, members
        keep their partitions during a rebalance; otherwise they revoke all of them first. Without a group the consumer
        cannot commit, and partitions are assigned manually.
        """
        source = cluster if bootstrap is None else bootstrap
        if source is None or (bootstrap is not None and cluster is not None):
            raise ValueError("a consumer needs either bootstrap servers or a cluster")
        if group_id == "":
            raise ValueError("group_id is empty; to read without a group, leave it out")
        if group_instance_id is not None and group_id is None:
            raise ValueError("group_instance_id requires a group_id")
        if auto_offset_reset not in RESET_STRATEGIES:
            raise ValueError(
                f"unknown auto_offset_reset {auto_offset_reset!r}; use one of {', '.join(RESET_STRATEGIES)}"
            )
        if isolation_level not in _ISOLATION_LEVELS:
            raise ValueError(f"unknown isolation_level {isolation_level!r}; use one of {', '.join(_ISOLATION_LEVELS)}")
        if max_poll_records < 1:
            raise ValueError(f"max_poll_records must be at least 1, not {max_poll_records}")
        self.cluster, self._owns_cluster = resolve_cluster(source, cluster_settings)
        self._max_poll_records = max_poll_records
        self._isolation_level = _ISOLATION_LEVELS[isolation_level]
        self._group_config = GroupRebalanceConfig(
            group_id or "",
            resolve_assignors(assignors),
            group_instance_id,
            session_timeout_ms,
            heartbeat_interval_ms,
            max_poll_interval_ms,
            self.cluster.retry_backoff_ms,
            self.cluster.retry_backoff_max_ms,
            enable_auto_commit,
        )
        self._subscriptions = SubscriptionState(RESET_STRATEGIES[auto_offset_reset])
        self._wakeup = asyncio.Event()
        offsets = None if group_id is None else GroupOffsets(self.cluster, group_id, group_instance_id)
        self._fetch_manager = FetchManager(
            self.cluster,
            self._subscriptions,
            offsets,
            self._wakeup,
            isolation_level=self._isolation_level,
            fetch_settings={
                "min_bytes": fetch_min_bytes,
                "max_wait_ms": fetch_max_wait_ms,
                "max_bytes": fetch_max_bytes,
                "partition_max_bytes": max_partition_fetch_bytes,
            },
        )
        self._topic_subscription = TopicSubscription(
            self.cluster, self._subscriptions, self._on_topics_changed, excludes_internal=exclude_internal_topics
        )
        self._coordinator: ConsumerCoordinator | None = None
        if offsets is not None:
            self._coordinator = ConsumerCoordinator(
                offsets,
                MembershipDriver(self.cluster, self._group_config, self._wakeup.set),
                self._subscriptions,
                self._fetch_manager,
                auto_commit_interval_ms=auto_commit_interval_ms if enable_auto_commit else None,
            )
        self._polling_task: asyncio.Task[object] | None = None
        self._poll_finished = asyncio.Event()
        self._poll_finished.set()
        self._iteration_deadline = 0.0
        self._state = _State.NEW
        self._close_task: _CloseTask | None = None

    async def start(self) -> None:
        """Starts the consumer. Raises KafkaError if no broker responds."""
        if self._state in (_State.CLOSING, _State.CLOSED):
            raise IllegalStateError("the consumer is closed")
        if self._owns_cluster:
            await self.cluster.start()
        self._state = _State.STARTED

    async def close(self, *, commit: bool = True, timeout_ms: int = 30_000) -> None:
        """Commits consumed offsets if auto commit is enabled, revokes the partitions and leaves the group.

        Other members then need not wait for the session to expire. A static member does not leave the group, so that it
        can return before its session expires. After the timeout, or if this call is cancelled, the remaining steps are
        cut short, but all tasks are stopped.
        """
        if self._is_in_callback():
            raise IllegalStateError("a rebalance callback cannot close its consumer")
        if self._close_task is None:
            self._state = _State.CLOSING
            self._iteration_deadline = 0.0
            self._wakeup.set()
            self._close_task = _CloseTask(lambda close_task: self._close(close_task, commit), timeout_ms)
        elif self._close_task.task.done():
            # If closing failed, the first caller got the error.
            return
        await self._close_task.wait()

    async def _close(self, close_task: _CloseTask, commit: bool) -> None:
        try:
            await close_task.run_stage("revoking partitions", self._revoke_all(commit))
        finally:
            if self._coordinator is not None:
                # Leave the group even if a callback raises, so that other members do not wait for a session timeout.
                self._coordinator.member.step(Closed())
                await close_task.run_stage("leaving the group", self._coordinator.member.wait_until_left())
            self._state = _State.CLOSED
            await self._topic_subscription.close()
            if self._coordinator is not None:
                await self._coordinator.close()
            await self._fetch_manager.close()
            if self._owns_cluster:
                await self.cluster.close()

    async def _revoke_all(self, commit: bool) -> None:
        await self._poll_finished.wait()
        if self._coordinator is None:
            return
        if self._subscriptions.is_auto_assigned:
            self._coordinator.member.step(RevokeAll(commit))
            await self._coordinator.run_pending()
        elif commit and self._group_config.auto_commit:
            await self._coordinator.commit_before_revocation()

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # Do not commit after an error, because the records may not have been processed.
        await self.close(commit=kind is None)

    def _is_in_callback(self) -> bool:
        task = asyncio.current_task()
        close_task = None if self._close_task is None else self._close_task.task
        return task is not None and task in (self._polling_task, close_task)

    def _check_open(self) -> None:
        if self._state is _State.CLOSED:
            raise IllegalStateError("the consumer is closed")
        if self._state is _State.NEW:
            raise IllegalStateError("the consumer is not started: use `await consumer.start()` or `async with`")

    def _check_pollable(self) -> None:
        self._check_open()
        if self._state is _State.CLOSING:
            raise IllegalStateError("the consumer is closed")

    def _require_group(self, what: str) -> ConsumerCoordinator:
        self._check_open()
        if self._coordinator is None:
            raise IllegalStateError(f"a consumer without a group_id cannot {what}")
        return self._coordinator

    # Subscription

    def subscribe(
        self,
        topics: Iterable[str] | None = None,
        *,
        pattern: "str | re.Pattern[str] | None" = None,
        on_assigned: RebalanceCallback | None = None,
        on_revoked: RebalanceCallback | None = None,
        on_lost: RebalanceCallback | None = None,
    ) -> None:
        """Subscribes to topics, or to all topics whose full name matches a pattern, as a member of the group.

        The callbacks are plain or async functions. `poll` calls them with the affected partitions. `on_revoked` is
        called before partitions are revoked and can still commit. `on_lost` (default: `on_revoked`) is called when
        other members may already own the partitions.
        """
        coordinator = self._require_group("subscribe: assign partitions to it")
        if (topics is None) == (pattern is None):
            raise ValueError("subscribe to either topics or a pattern")
        if isinstance(topics, str):
            raise ValueError(f"topics must be a list of names, as [{topics!r}]")
        listener = ConsumerRebalanceListener(on_assigned, on_revoked, on_lost or on_revoked)
        if pattern is not None:
            self._topic_subscription.subscribe_pattern(re.compile(pattern))
        else:
            names = list(topics or ())
            if not names or not all(map(is_valid_topic_name, names)):
                raise ValueError("subscribe to at least one topic, with valid names")
            self._topic_subscription.subscribe(names)
        coordinator.listener = listener

    def _on_topics_changed(self, topics: tuple[str, ...]) -> None:
        if self._coordinator is not None:
            self._coordinator.member.step(SubscriptionChanged(topics))
            self._wakeup.set()

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Reads exactly these partitions, without group management. Partitions assigned before keep their position."""
        self._check_open()
        requested = [TopicPartition(*each) for each in partitions]
        for each in requested:
            if not is_valid_topic_name(each.topic) or each.partition < 0:
                raise ValueError(f"{each!r} is not a partition")
        self._subscriptions.set_subscription_type(SubscriptionType.USER_ASSIGNED)
        self._fetch_manager.assign(requested)

    async def unsubscribe(self) -> None:
        """Revokes all partitions and leaves the group, without a commit."""
        self._check_open()
        if self._polling_task is not None:
            raise IllegalStateError("a poll is in progress: unsubscribe between two polls")
        if self._coordinator is not None and self._subscriptions.is_auto_assigned:
            self._coordinator.member.step(RevokeAll(commit=False))
            await self._coordinator.run_pending()
            self._coordinator.member.step(Unsubscribed())
        self._topic_subscription.unsubscribe()
        self._fetch_manager.assign(())
        self._subscriptions.unsubscribe()

    @property
    def assignment(self) -> list[TopicPartition]:
        return self._subscriptions.assigned

    @property
    def subscription(self) -> tuple[str, ...]:
        """The subscribed topics; with a pattern, the known topics that match."""
        return self._subscriptions.topics

    def group_metadata(self) -> ConsumerGroupMetadata:
        coordinator = self._require_group("have group metadata")
        generation = coordinator.member.membership.generation
        return ConsumerGroupMetadata(
            self._group_config.group_id, generation.generation_id, generation.member_id, self._group_config.instance_id
        )

    def commit_metadata(self, partitions: Iterable[TopicPartition]) -> ConsumerGroupMetadata:
        """Returns the group metadata with which a transaction commits offsets of these partitions.

        Raises CommitFailedError if the partitions no longer belong to this consumer. Brokers do not check a commit
        without a generation, so a consumer that the group has removed must not send one.
        """
        coordinator = self._require_group("commit")
        if not self._subscriptions.is_auto_assigned:
            return ConsumerGroupMetadata(self._group_config.group_id)
        coordinator.check_ownership(partitions)
        return self.group_metadata()

    @property
    def is_transactional(self) -> bool:
        """Whether only transactions move the group's offsets, and open and aborted transactions are not read."""
        is_auto_commit = self._group_config.auto_commit
        return self._coordinator is not None and not is_auto_commit and self._isolation_level == READ_COMMITTED

    @property
    def is_auto_commit(self) -> bool:
        """Whether the consumer commits by itself, or has no group and cannot commit."""
        return self._coordinator is None or self._group_config.auto_commit

    @property
    def max_poll_interval_ms(self) -> int:
        return self._group_config.poll_interval_max_ms

    # Polling

    async def poll(self, timeout_ms: int = 1_000, max_records: int | None = None) -> list[ConsumerRecord]:
        """Returns the next records, or [] after the timeout.

        Rebalances happen during this call, and their callbacks and commits may take longer than the timeout. The next
        call confirms that the records of this call are processed, so that their offsets can be committed.
        """
        records_max = self._max_poll_records if max_records is None else max_records
        if records_max < 1:
            raise ValueError(f"max_records must be at least 1, not {max_records}")
        return await self._poll(timeout_ms, lambda: self._fetch_manager.take_records(records_max))

    async def raw_poll(self, timeout_ms: int = 1_000) -> list[CompletedFetch]:
        """Polls like `poll`, but returns whole batches. Callers must skip records below the position of each fetch."""
        return await self._poll(timeout_ms, self._fetch_manager.take_batches)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ConsumerRecord:
        # Take one record at a time, so that a commit between two records commits exactly the returned records.
        if asyncio.get_running_loop().time() < self._iteration_deadline and self._polling_task is None:
            records = self._fetch_manager.take_records(1)
            if records:
                return records[0]
        while self._state is not _State.CLOSED:
            try:
                records = await self.poll(_ITERATION_POLL_MS, 1)
            except IllegalStateError:
                if self._state in (_State.CLOSING, _State.CLOSED):
                    break
                raise
            if records:
                self._iteration_deadline = asyncio.get_running_loop().time() + _ITERATION_SLICE_S
                return records[0]
        raise StopAsyncIteration

    async def _poll(self, timeout_ms: int, take: Callable[[], list[T]]) -> list[T]:
        self._check_pollable()
        if self._polling_task is not None:
            if self._is_in_callback():
                raise IllegalStateError("a rebalance callback cannot poll: a poll has called it")
            raise IllegalStateError("another task is polling this consumer")
        if self._subscriptions.subscription_type is SubscriptionType.NONE:
            raise IllegalStateError("there is nothing to read: subscribe or assign first")
        self._polling_task = asyncio.current_task()
        self._poll_finished.clear()
        # If this poll is cancelled, `async for` must poll before it returns more records, to complete a pending commit.
        self._iteration_deadline = 0.0
        try:
            deadline = asyncio.get_running_loop().time() + timeout_ms / 1000
            while not (taken := await self._poll_once(take)):
                if asyncio.get_running_loop().time() >= deadline:
                    break
                await self._wait_for_wakeup(deadline)
                self._check_pollable()
            return taken
        finally:
            self._polling_task = None
            self._poll_finished.set()

    async def _poll_once(self, take: Callable[[], list[T]]) -> list[T]:
        self._wakeup.clear()
        if self._coordinator is not None and self._subscriptions.is_auto_assigned:
            await self._coordinator.advance()
            self._check_pollable()
        if self._coordinator is not None:
            self._coordinator.maybe_auto_commit()
        self._fetch_manager.start_lookup()
        # Yield to the event loop, so that requests in flight make progress even if the timeout is 0.
        await asyncio.sleep(0)
        return take()

    async def _wait_for_wakeup(self, deadline: float) -> None:
        now = asyncio.get_running_loop().time()
        deadlines = [deadline, now + self._group_config.poll_interval_max_ms / 2000]
        if self._coordinator is not None:
            times = (
                self._topic_subscription.refresh_missing_topics(now),
                self._coordinator.member.next_poll_at(),
                self._coordinator.next_auto_commit_at(),
            )
            deadlines += [each for each in times if each is not None]
        await wait_until(self._wakeup, min(deadlines))

    # Positions and offsets

    async def position(self, partition: TopicPartition, *, timeout_ms: int | None = None) -> int:
        """Returns the offset of the next record. If it is unknown, looks it up; raises KafkaError after the timeout."""
        self._check_open()
        limit_ms = self.cluster.request_timeout_ms if timeout_ms is None else timeout_ms
        return await self._fetch_manager.position(TopicPartition(*partition), limit_ms)

    def consumed_offsets(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Returns the offsets to commit after the records that were returned so far."""
        return self._subscriptions.all_consumed()

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Sets the position of a partition and discards its buffered records."""
        self._check_open()
        self._fetch_manager.seek(TopicPartition(*partition), offset)

    def seek_to_committed(self, partition: TopicPartition, default_offset: int) -> None:
        """Seeks to the committed offset of the group, or to `default_offset` if none is committed."""
        self._require_group("seek to committed offsets")
        self._fetch_manager.request_committed(TopicPartition(*partition), default_offset)

    def seek_to_beginning(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Seeks to the log start of these partitions, or of all assigned ones."""
        self._request_offset_reset(partitions, OffsetResetStrategy.EARLIEST)

    def seek_to_end(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        self._request_offset_reset(partitions, OffsetResetStrategy.LATEST)

    def _request_offset_reset(self, partitions: Iterable[TopicPartition] | None, reset: OffsetResetStrategy) -> None:
        self._check_open()
        for partition in self.assignment if partitions is None else partitions:
            self._fetch_manager.request_offset_reset(TopicPartition(*partition), reset)

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Stops returning records of these partitions until `resume`. The partitions stay assigned."""
        self._check_open()
        self._fetch_manager.pause(TopicPartition(*each) for each in partitions)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        self._check_open()
        self._fetch_manager.resume(TopicPartition(*each) for each in partitions)

    @property
    def paused(self) -> list[TopicPartition]:
        return self._subscriptions.paused

    async def commit(
        self, offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None = None, *, timeout_ms: int | None = None
    ) -> None:
        """Commits these offsets, by default the positions after all returned records.

        Each offset must be that of the next record to read. Transient errors are retried until the timeout (default:
        request_timeout_ms). Raises CommitFailedError when the group has rebalanced without this consumer, and
        RebalanceInProgressError during a rebalance.
        """
        coordinator = self._require_group("commit")
        requested = self._subscriptions.all_consumed() if offsets is None else validate_offsets(offsets)
        await coordinator.commit(requested, timeout_ms=timeout_ms)

    async def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Returns the group's committed offsets, None for partitions without one."""
        coordinator = self._require_group("have committed")
        requested = [TopicPartition(*each) for each in partitions]
        found = await coordinator.offsets.committed(requested)
        return {each: found.get(each) for each in requested}

    async def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return await self._offsets_at(partitions, EARLIEST)

    async def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Returns the high watermarks, or the last stable offsets with read_committed."""
        return await self._offsets_at(partitions, LATEST)

    async def offsets_for_times(
        self, times: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Returns the offset of each partition's first record at or after its time; None if there is no such record.

        Times are in milliseconds since 1970.
        """
        self._check_open()
        for partition, time in times.items():
            if time < 0:
                raise ValueError(f"{time} is not a valid timestamp for {partition}")
        requested = {TopicPartition(*each): time for each, time in times.items()}
        found = await list_offsets(self.cluster, requested, isolation_level=self._isolation_level)
        return {each: found.get(each) for each in requested}

    async def _offsets_at(self, partitions: Iterable[TopicPartition], time: int) -> dict[TopicPartition, int]:
        self._check_open()
        requested = {TopicPartition(*each): time for each in partitions}
        found = await list_offsets(self.cluster, requested, isolation_level=self._isolation_level)
        return {each: at.offset for each, at in found.items()}
