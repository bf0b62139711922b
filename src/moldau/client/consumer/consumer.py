"""Reads topics, alone or sharing them with the other consumers of a group.

    async with Consumer("localhost:9092", group_id="billing") as consumer:
        consumer.subscribe(["orders"])
        async for record in consumer:
            ...

Heartbeats and fetches go on in the background; everything that takes partitions from the user or gives them some
happens inside `poll` (or `async for`, which polls). So poll often: who does not for `max_poll_interval_ms` leaves the
group. And never block the event loop, which sends the heartbeats: who sends none for `session_timeout_ms` is taken for
dead. What computes for long belongs in a thread.
"""

import asyncio
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from types import TracebackType
from typing import Any, Literal, NamedTuple, Self, TypeVar

from moldau.client.consumer.close_task import CloseTask
from moldau.client.consumer.commit_manager import CommitManager
from moldau.client.consumer.completed_fetch import READ_COMMITTED, READ_UNCOMMITTED, CompletedFetch
from moldau.client.consumer.fetch_manager import FetchManager
from moldau.client.consumer.offset_lookup import EARLIEST, LATEST, OffsetAndTimestamp, list_offsets
from moldau.client.consumer.rebalance_handler import (
    ConsumerRebalanceListener,
    RebalanceCallback,
    RebalanceHandler,
)
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
from moldau.client.group.assignors import get_assignor
from moldau.client.group.driver import MembershipDriver
from moldau.client.group.events import Closed, RevokeAll, SubscriptionChanged, Unsubscribed
from moldau.client.group.member_state import ConsumerGroupMetadata, GroupRebalanceConfig
from moldau.client.group.offsets import GroupOffsets
from moldau.client.net.cluster import Cluster, resolve_cluster
from moldau.client.record import ConsumerRecord, TopicPartition, is_valid_topic_name

_ISOLATION_LEVELS = {"read_uncommitted": READ_UNCOMMITTED, "read_committed": READ_COMMITTED}
_ITERATION_POLL_MS = 60_000
_ITERATION_SLICE_S = 0.005
"""How long an iteration hands out records that are there before it looks after the group and lets others run."""

T = TypeVar("T")


class _State(Enum):
    NEW = "new"
    STARTED = "started"
    CLOSING = "closing"
    """Callbacks may still commit what is being given back."""
    CLOSED = "closed"


class Consumer:
    """Start it before use and close it after, or use it in `async with`. One task polls at a time."""

    def __init__(
        self,
        bootstrap: str | Sequence[str] | None = None,
        *,
        cluster: Cluster | None = None,
        group_id: str | None = None,
        group_instance_id: str | None = None,
        assignors: Sequence[str] = ("range", "cooperative-sticky"),
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
        """Either `bootstrap` (`host:port`, several with commas or as a list; with `cluster_settings` as `Cluster` has
        them) or a started `cluster` to share.

        Where all `assignors` are cooperative, partitions that stay are kept through a rebalance; otherwise all are
        given up before it. Without a group there is nothing to commit to, and partitions are assigned by hand.
        """
        given = cluster if bootstrap is None else bootstrap
        if given is None or (bootstrap is not None and cluster is not None):
            raise ValueError("a consumer needs either bootstrap servers or a cluster")
        if group_id == "":
            raise ValueError("the group id is empty; to read without a group, leave it out")
        if group_instance_id is not None and group_id is None:
            raise ValueError("a group_instance_id is an id in a group: group_id is missing")
        if auto_offset_reset not in RESET_STRATEGIES:
            raise ValueError(
                f"auto_offset_reset is one of {', '.join(RESET_STRATEGIES)}, not {auto_offset_reset!r}"
            )
        if isolation_level not in _ISOLATION_LEVELS:
            raise ValueError(
                f"isolation_level is one of {', '.join(_ISOLATION_LEVELS)}, not {isolation_level!r}"
            )
        if max_poll_records < 1:
            raise ValueError(f"max_poll_records is at least 1, not {max_poll_records}")
        self.cluster, self._owns_cluster = resolve_cluster(given, cluster_settings)
        self._max_poll_records = max_poll_records
        self._isolation_level = _ISOLATION_LEVELS[isolation_level]
        self._group_config = GroupRebalanceConfig(
            group_id or "",
            tuple(get_assignor(name) for name in assignors),
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
            self.cluster,
            self._subscriptions,
            self._on_topics_changed,
            excludes_internal=exclude_internal_topics,
        )
        interval_ms = auto_commit_interval_ms if enable_auto_commit else None
        self._group = None if offsets is None else self._create_group(offsets, interval_ms)
        self._polling_task: asyncio.Task[object] | None = None
        self._poll_finished = asyncio.Event()
        self._poll_finished.set()
        self._iteration_deadline = 0.0
        self._state = _State.NEW
        self._close_task: CloseTask | None = None

    def _create_group(self, offsets: GroupOffsets, interval_ms: int | None) -> "_GroupComponents":
        coordinator = MembershipDriver(self.cluster, self._group_config, self._wakeup.set)
        commit_manager = CommitManager(offsets, coordinator, self._subscriptions, interval_ms=interval_ms)
        return _GroupComponents(
            offsets,
            coordinator,
            commit_manager,
            RebalanceHandler(coordinator, commit_manager, self._fetch_manager),
        )

    # Life

    async def start(self) -> None:
        """Raises KafkaError when no broker answers."""
        if self._state in (_State.CLOSING, _State.CLOSED):
            raise IllegalStateError("the consumer is closed")
        if self._owns_cluster:
            await self.cluster.start()
        self._state = _State.STARTED

    async def close(self, *, commit: bool = True, timeout_ms: int = 30_000) -> None:
        """Commits what was consumed if the consumer commits by itself, gives its partitions back and leaves the group,
        so that others need not wait for its session to end; a static member stays, to be back in time.

        When the time is over, or this is cancelled, what is not done is left undone, but nothing is left running."""
        if self._is_in_callback():
            raise IllegalStateError("a rebalance callback cannot close its consumer")
        if self._close_task is None:
            self._state = _State.CLOSING
            self._iteration_deadline = 0.0
            self._wakeup.set()
            self._close_task = CloseTask(lambda close_task: self._close(close_task, commit), timeout_ms)
        elif self._close_task.task.done():
            # What went wrong was told to the one who closed it.
            return
        await self._close_task.wait()

    async def _close(self, close_task: CloseTask, commit: bool) -> None:
        try:
            await close_task.run_stage("partitions to be given back", self._revoke_all(commit))
        finally:
            if self._group is not None:
                # Whatever a callback raises, the others in the group should not have to wait.
                self._group.coordinator.step(Closed())
                await close_task.run_stage("the group to be left", self._group.coordinator.wait_until_left())
            self._state = _State.CLOSED
            await self._close_components()

    async def _revoke_all(self, commit: bool) -> None:
        await self._poll_finished.wait()
        if self._group is None:
            return
        if self._subscriptions.is_auto_assigned:
            self._group.coordinator.step(RevokeAll(commit))
            await self._group.rebalance_handler.run_pending()
        elif commit and self._group_config.auto_commit:
            await self._group.commit_manager.commit_before_revocation()

    async def _close_components(self) -> None:
        await self._topic_subscription.close()
        if self._group is not None:
            await self._group.coordinator.close()
            await self._group.commit_manager.close()
        await self._fetch_manager.close()
        if self._owns_cluster:
            await self.cluster.close()

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # What an error kept from being worked on is not committed: it will be read again.
        await self.close(commit=kind is None)

    def _is_in_callback(self) -> bool:
        task = asyncio.current_task()
        close_task = None if self._close_task is None else self._close_task.task
        return task is not None and task in (self._polling_task, close_task)

    def _check_open(self) -> None:
        if self._state is _State.CLOSED:
            raise IllegalStateError("the consumer is closed")
        if self._state is _State.NEW:
            raise IllegalStateError("the consumer is not started: `await consumer.start()` or `async with`")

    def _check_pollable(self) -> None:
        self._check_open()
        if self._state is _State.CLOSING:
            raise IllegalStateError("the consumer is closed")

    def _require_group(self, what: str) -> "_GroupComponents":
        self._check_open()
        if self._group is None:
            raise IllegalStateError(f"a consumer without a group_id cannot {what}")
        return self._group

    # What is read

    def subscribe(
        self,
        topics: Iterable[str] | None = None,
        *,
        pattern: "str | re.Pattern[str] | None" = None,
        on_assigned: RebalanceCallback | None = None,
        on_revoked: RebalanceCallback | None = None,
        on_lost: RebalanceCallback | None = None,
    ) -> None:
        """Shares these topics, or all whose whole name fits a pattern, with the other members of the group.

        The callbacks, plain or async, are called inside `poll` with the partitions concerned: `on_revoked` before they
        go, with time to commit; `on_lost` (`on_revoked` if it is not given) when others may have them already.
        """
        group = self._require_group("subscribe: assign partitions to it")
        if (topics is None) == (pattern is None):
            raise ValueError("subscribe to topics or to a pattern, to one of the two")
        if isinstance(topics, str):
            raise ValueError(f"topics is a list of names, as [{topics!r}]")
        listener = ConsumerRebalanceListener(on_assigned, on_revoked, on_lost or on_revoked)
        if pattern is not None:
            self._topic_subscription.subscribe_pattern(re.compile(pattern))
        else:
            names = list(topics or ())
            if not names or not all(map(is_valid_topic_name, names)):
                raise ValueError("subscribe to at least one topic, each by its name")
            self._topic_subscription.subscribe(names)
        group.rebalance_handler.listener = listener

    def _on_topics_changed(self, topics: tuple[str, ...]) -> None:
        if self._group is not None:
            self._group.coordinator.step(SubscriptionChanged(topics))
            self._wakeup.set()

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Reads exactly these partitions, whoever else does. Those that were read before keep their position."""
        self._check_open()
        wanted = [TopicPartition(*each) for each in partitions]
        for each in wanted:
            if not is_valid_topic_name(each.topic) or each.partition < 0:
                raise ValueError(f"{each!r} is not a partition")
        self._subscriptions.set_user_assigned()
        self._fetch_manager.assign(wanted)

    async def unsubscribe(self) -> None:
        """Gives everything back, and leaves the group. What was consumed is not committed by this."""
        self._check_open()
        if self._polling_task is not None:
            raise IllegalStateError("the consumer is being polled: unsubscribe between two polls")
        if self._group is not None and self._subscriptions.is_auto_assigned:
            self._group.coordinator.step(RevokeAll(commit=False))
            await self._group.rebalance_handler.run_pending()
            self._group.coordinator.step(Unsubscribed())
        self._topic_subscription.unsubscribe()
        self._fetch_manager.assign(())
        self._subscriptions.unsubscribe()

    @property
    def assignment(self) -> list[TopicPartition]:
        return self._subscriptions.assigned

    @property
    def subscription(self) -> tuple[str, ...]:
        """The topics; with a pattern, those that fit it as far as is known."""
        return self._subscriptions.topics

    def group_metadata(self) -> ConsumerGroupMetadata:
        group = self._require_group("tell of its membership")
        generation = group.coordinator.membership.generation
        return ConsumerGroupMetadata(
            self._group_config.group_id,
            generation.generation_id,
            generation.member_id,
            self._group_config.instance_id,
        )

    # Polling

    async def poll(self, timeout_ms: int = 1_000, max_records: int | None = None) -> list[ConsumerRecord]:
        """The next records, waited for; [] when none came in time. Rebalances happen in here, and their callbacks and
        commits may take longer than the timeout.

        Calling it again says that what it returned before has been worked on: that is what gets committed.
        """
        records_max = self._max_poll_records if max_records is None else max_records
        if records_max < 1:
            raise ValueError(f"max_records is at least 1, not {max_records}")
        return await self._poll(timeout_ms, lambda: self._fetch_manager.take(records_max))

    async def raw_poll(self, timeout_ms: int = 1_000) -> list[CompletedFetch]:
        """As `poll`, but hands out whole batches as they are stored. Records below a `CompletedFetch`'s
        position, which its
        first batch may hold, are to be skipped."""
        return await self._poll(timeout_ms, self._fetch_manager.take_raw)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ConsumerRecord:
        # One at a time, so that a commit in between covers what was handed out and no more.
        if asyncio.get_running_loop().time() < self._iteration_deadline and self._polling_task is None:
            records = self._fetch_manager.take(1)
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
        # What is cancelled in here may be the commit of all that was handed out.
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
        if self._group is not None and self._subscriptions.is_auto_assigned:
            await self._group.rebalance_handler.advance()
            self._check_pollable()
        if self._group is not None:
            self._group.commit_manager.maybe_auto_commit()
        self._fetch_manager.start_lookup()
        # So that polls with a timeout of 0, too, let the requests under way come forward.
        await asyncio.sleep(0)
        return take()

    async def _wait_for_wakeup(self, deadline: float) -> None:
        now = asyncio.get_running_loop().time()
        wakes = [deadline, now + self._group_config.poll_interval_max_ms / 2000]
        if self._group is not None:
            times = (
                self._topic_subscription.refresh_missing_topics(now),
                self._group.coordinator.next_poll_at(),
                self._group.commit_manager.next_auto_commit_at(),
            )
            wakes += [each for each in times if each is not None]
        try:
            async with asyncio.timeout_at(min(wakes)):
                await self._wakeup.wait()
        except TimeoutError:
            pass

    # Positions and offsets

    async def position(self, partition: TopicPartition, *, timeout_ms: int | None = None) -> int:
        """The offset of the next record to hand out. If it is not known it is looked up, within the cluster's
        request_timeout_ms unless something else is said; then raises KafkaError."""
        self._check_open()
        limit_ms = self.cluster.request_timeout_ms if timeout_ms is None else timeout_ms
        return await self._fetch_manager.position(TopicPartition(*partition), limit_ms)

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Goes on from this offset; the next poll returns nothing of what came before."""
        self._check_open()
        self._fetch_manager.seek(TopicPartition(*partition), offset)

    def seek_to_beginning(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Of all assigned partitions if none are named."""
        self._request_offset_reset(partitions, OffsetResetStrategy.EARLIEST)

    def seek_to_end(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        self._request_offset_reset(partitions, OffsetResetStrategy.LATEST)

    def _request_offset_reset(
        self, partitions: Iterable[TopicPartition] | None, reset: OffsetResetStrategy
    ) -> None:
        self._check_open()
        for partition in self.assignment if partitions is None else partitions:
            self._fetch_manager.request_offset_reset(TopicPartition(*partition), reset)

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Hands out nothing of these until `resume`; the consumer keeps them."""
        self._check_open()
        self._fetch_manager.pause(TopicPartition(*each) for each in partitions)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        self._check_open()
        self._fetch_manager.resume(TopicPartition(*each) for each in partitions)

    @property
    def paused(self) -> list[TopicPartition]:
        return self._subscriptions.paused

    async def commit(self, offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None = None) -> None:
        """Commits these offsets, each that of the next record to read; without any, all that was handed out.

        Raises CommitFailedError when the group has gone on without this consumer, and RebalanceInProgressError while it
        is changing.
        """
        group = self._require_group("commit")
        wanted = self._subscriptions.all_consumed() if offsets is None else validate_offsets(offsets)
        await group.commit_manager.commit(wanted)

    async def committed(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """What the group has committed; None where that is nothing."""
        group = self._require_group("have committed")
        wanted = [TopicPartition(*each) for each in partitions]
        found = await group.offsets.committed(wanted)
        return {each: found.get(each) for each in wanted}

    async def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return await self._offsets_at(partitions, EARLIEST)

    async def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Where the next records go: the high watermark, or the last stable offset for who reads committed."""
        return await self._offsets_at(partitions, LATEST)

    async def offsets_for_times(
        self, times: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first record at or after each time (milliseconds since 1970); None where there is none."""
        self._check_open()
        for partition, time in times.items():
            if time < 0:
                raise ValueError(f"{time} is not a time to look for in {partition}")
        wanted = {TopicPartition(*each): time for each, time in times.items()}
        found = await list_offsets(self.cluster, wanted, isolation_level=self._isolation_level)
        return {each: found.get(each) for each in wanted}

    async def _offsets_at(self, partitions: Iterable[TopicPartition], time: int) -> dict[TopicPartition, int]:
        self._check_open()
        wanted = {TopicPartition(*each): time for each in partitions}
        found = await list_offsets(self.cluster, wanted, isolation_level=self._isolation_level)
        return {each: at.offset for each, at in found.items()}


class _GroupComponents(NamedTuple):
    offsets: GroupOffsets
    coordinator: MembershipDriver
    commit_manager: CommitManager
    rebalance_handler: RebalanceHandler
