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

from moldau.client.consumer.commits import Commits
from moldau.client.consumer.fetched import READ_COMMITTED, READ_UNCOMMITTED, Fetched
from moldau.client.consumer.log_offsets import EARLIEST, LATEST, OffsetAndTimestamp, list_offsets
from moldau.client.consumer.positions import RESETS, Mode, OffsetAndMetadata, Positions, Reset, to_commit
from moldau.client.consumer.reading import Reading
from moldau.client.consumer.rebalances import Listener, RebalanceCallback, Rebalances
from moldau.client.consumer.topic_subscription import WantedTopics
from moldau.client.errors import IllegalStateError
from moldau.client.group.assignors import assignor_named
from moldau.client.group.driver import GroupMember
from moldau.client.group.events import Closed, HandBack, Subscribed, Unsubscribed
from moldau.client.group.offsets import GroupOffsets
from moldau.client.group.terms import GroupMetadata, MemberSettings
from moldau.client.net.closing import Closing
from moldau.client.net.cluster import Cluster, own_or_shared
from moldau.client.record import ConsumerRecord, TopicPartition, is_topic_name

_ISOLATION_LEVELS = {"read_uncommitted": READ_UNCOMMITTED, "read_committed": READ_COMMITTED}
_ITERATION_POLL_MS = 60_000
_ITERATION_REST_S = 0.005
"""How long an iteration hands out records that are there before it looks after the group and lets others run."""

T = TypeVar("T")


class _Life(Enum):
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
        if auto_offset_reset not in RESETS:
            raise ValueError(f"auto_offset_reset is one of {', '.join(RESETS)}, not {auto_offset_reset!r}")
        if isolation_level not in _ISOLATION_LEVELS:
            raise ValueError(
                f"isolation_level is one of {', '.join(_ISOLATION_LEVELS)}, not {isolation_level!r}"
            )
        if max_poll_records < 1:
            raise ValueError(f"max_poll_records is at least 1, not {max_poll_records}")
        self.cluster, self._owns_cluster = own_or_shared(given, cluster_settings)
        self._max_poll_records = max_poll_records
        self._isolation_level = _ISOLATION_LEVELS[isolation_level]
        self._settings = MemberSettings(
            group_id or "",
            tuple(assignor_named(name) for name in assignors),
            group_instance_id,
            session_timeout_ms,
            heartbeat_interval_ms,
            max_poll_interval_ms,
            self.cluster.retry_backoff_ms,
            self.cluster.retry_backoff_max_ms,
            enable_auto_commit,
        )
        self._positions = Positions(RESETS[auto_offset_reset])
        self._news = asyncio.Event()
        offsets = None if group_id is None else GroupOffsets(self.cluster, group_id, group_instance_id)
        self._reading = Reading(
            self.cluster,
            self._positions,
            offsets,
            self._news,
            isolation_level=self._isolation_level,
            fetch_settings={
                "min_bytes": fetch_min_bytes,
                "max_wait_ms": fetch_max_wait_ms,
                "max_bytes": fetch_max_bytes,
                "partition_max_bytes": max_partition_fetch_bytes,
            },
        )
        self._topics = WantedTopics(
            self.cluster, self._positions, self._topics_changed, excludes_internal=exclude_internal_topics
        )
        interval_ms = auto_commit_interval_ms if enable_auto_commit else None
        self._group = None if offsets is None else self._member_with(offsets, interval_ms)
        self._polling: asyncio.Task[object] | None = None
        self._nobody_polls = asyncio.Event()
        self._nobody_polls.set()
        self._iterates_until = 0.0
        self._life = _Life.NEW
        self._closing: Closing | None = None

    def _member_with(self, offsets: GroupOffsets, interval_ms: int | None) -> "_Group":
        member = GroupMember(self.cluster, self._settings, self._news.set)
        commits = Commits(offsets, member, self._positions, interval_ms=interval_ms)
        return _Group(offsets, member, commits, Rebalances(member, commits, self._reading))

    # Life

    async def start(self) -> None:
        """Raises KafkaError when no broker answers."""
        if self._life in (_Life.CLOSING, _Life.CLOSED):
            raise IllegalStateError("the consumer is closed")
        if self._owns_cluster:
            await self.cluster.start()
        self._life = _Life.STARTED

    async def close(self, *, commit: bool = True, timeout_ms: int = 30_000) -> None:
        """Commits what was consumed if the consumer commits by itself, gives its partitions back and leaves the group,
        so that others need not wait for its session to end; a static member stays, to be back in time.

        When the time is over, or this is cancelled, what is not done is left undone, but nothing is left running."""
        if self._is_in_callback():
            raise IllegalStateError("a rebalance callback cannot close its consumer")
        if self._closing is None:
            self._life = _Life.CLOSING
            self._iterates_until = 0.0
            self._news.set()
            self._closing = Closing(lambda closing: self._close(closing, commit), timeout_ms)
        elif self._closing.task.done():
            # What went wrong was told to the one who closed it.
            return
        await self._closing.wait()

    async def _close(self, closing: Closing, commit: bool) -> None:
        try:
            await closing.in_time("partitions to be given back", self._hand_back(commit))
        finally:
            if self._group is not None:
                # Whatever a callback raises, the others in the group should not have to wait.
                self._group.member.step(Closed())
                await closing.in_time("the group to be left", self._group.member.has_left())
            self._life = _Life.CLOSED
            await self._stop()

    async def _hand_back(self, commit: bool) -> None:
        await self._nobody_polls.wait()
        if self._group is None:
            return
        if self._positions.is_group_managed:
            self._group.member.step(HandBack(commit))
            await self._group.rebalances.finish()
        elif commit and self._settings.auto_commit:
            await self._group.commits.commit_consumed()

    async def _stop(self) -> None:
        await self._topics.close()
        if self._group is not None:
            await self._group.member.close()
            await self._group.commits.close()
        await self._reading.close()
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
        closing = None if self._closing is None else self._closing.task
        return task is not None and task in (self._polling, closing)

    def _check_open(self) -> None:
        if self._life is _Life.CLOSED:
            raise IllegalStateError("the consumer is closed")
        if self._life is _Life.NEW:
            raise IllegalStateError("the consumer is not started: `await consumer.start()` or `async with`")

    def _check_pollable(self) -> None:
        self._check_open()
        if self._life is _Life.CLOSING:
            raise IllegalStateError("the consumer is closed")

    def _in_group(self, what: str) -> "_Group":
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
        group = self._in_group("subscribe: assign partitions to it")
        if (topics is None) == (pattern is None):
            raise ValueError("subscribe to topics or to a pattern, to one of the two")
        if isinstance(topics, str):
            raise ValueError(f"topics is a list of names, as [{topics!r}]")
        listener = Listener(on_assigned, on_revoked, on_lost or on_revoked)
        if pattern is not None:
            self._topics.subscribe_pattern(re.compile(pattern))
        else:
            names = list(topics or ())
            if not names or not all(map(is_topic_name, names)):
                raise ValueError("subscribe to at least one topic, each by its name")
            self._topics.subscribe(names)
        group.rebalances.listener = listener

    def _topics_changed(self, topics: tuple[str, ...]) -> None:
        if self._group is not None:
            self._group.member.step(Subscribed(topics))
            self._news.set()

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Reads exactly these partitions, whoever else does. Those that were read before keep their position."""
        self._check_open()
        wanted = [TopicPartition(*each) for each in partitions]
        for each in wanted:
            if not is_topic_name(each.topic) or each.partition < 0:
                raise ValueError(f"{each!r} is not a partition")
        self._positions.assign_manually()
        self._reading.assign(wanted)

    async def unsubscribe(self) -> None:
        """Gives everything back, and leaves the group. What was consumed is not committed by this."""
        self._check_open()
        if self._polling is not None:
            raise IllegalStateError("the consumer is being polled: unsubscribe between two polls")
        if self._group is not None and self._positions.is_group_managed:
            self._group.member.step(HandBack(commit=False))
            await self._group.rebalances.finish()
            self._group.member.step(Unsubscribed())
        self._topics.unsubscribe()
        self._reading.assign(())
        self._positions.unsubscribe()

    @property
    def assignment(self) -> list[TopicPartition]:
        return self._positions.assigned

    @property
    def subscription(self) -> tuple[str, ...]:
        """The topics; with a pattern, those that fit it as far as is known."""
        return self._positions.topics

    def group_metadata(self) -> GroupMetadata:
        group = self._in_group("tell of its membership")
        generation = group.member.membership.generation
        return GroupMetadata(
            self._settings.group_id,
            generation.generation_id,
            generation.member_id,
            self._settings.instance_id,
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
        return await self._poll(timeout_ms, lambda: self._reading.take(records_max))

    async def raw_poll(self, timeout_ms: int = 1_000) -> list[Fetched]:
        """As `poll`, but hands out whole batches as they are stored. Records below a `Fetched`'s position, which its
        first batch may hold, are to be skipped."""
        return await self._poll(timeout_ms, self._reading.take_raw)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ConsumerRecord:
        # One at a time, so that a commit in between covers what was handed out and no more.
        if asyncio.get_running_loop().time() < self._iterates_until and self._polling is None:
            records = self._reading.take(1)
            if records:
                return records[0]
        while self._life is not _Life.CLOSED:
            try:
                records = await self.poll(_ITERATION_POLL_MS, 1)
            except IllegalStateError:
                if self._life in (_Life.CLOSING, _Life.CLOSED):
                    break
                raise
            if records:
                self._iterates_until = asyncio.get_running_loop().time() + _ITERATION_REST_S
                return records[0]
        raise StopAsyncIteration

    async def _poll(self, timeout_ms: int, take: Callable[[], list[T]]) -> list[T]:
        self._check_pollable()
        if self._polling is not None:
            if self._is_in_callback():
                raise IllegalStateError("a rebalance callback cannot poll: a poll has called it")
            raise IllegalStateError("another task is polling this consumer")
        if self._positions.mode is Mode.NOTHING:
            raise IllegalStateError("there is nothing to read: subscribe or assign first")
        self._polling = asyncio.current_task()
        self._nobody_polls.clear()
        # What is cancelled in here may be the commit of all that was handed out.
        self._iterates_until = 0.0
        try:
            deadline = asyncio.get_running_loop().time() + timeout_ms / 1000
            while not (taken := await self._poll_once(take)):
                if asyncio.get_running_loop().time() >= deadline:
                    break
                await self._wait_for_news(deadline)
                self._check_pollable()
            return taken
        finally:
            self._polling = None
            self._nobody_polls.set()

    async def _poll_once(self, take: Callable[[], list[T]]) -> list[T]:
        self._news.clear()
        if self._group is not None and self._positions.is_group_managed:
            await self._group.rebalances.go_on()
            self._check_pollable()
        if self._group is not None:
            self._group.commits.commit_when_due()
        self._reading.look_up()
        # So that polls with a timeout of 0, too, let the requests under way come forward.
        await asyncio.sleep(0)
        return take()

    async def _wait_for_news(self, deadline: float) -> None:
        now = asyncio.get_running_loop().time()
        wakes = [deadline, now + self._settings.poll_interval_max_ms / 2000]
        if self._group is not None:
            times = (
                self._topics.ask_for_missing(now),
                self._group.member.poll_again_at(),
                self._group.commits.due_at(),
            )
            wakes += [each for each in times if each is not None]
        try:
            async with asyncio.timeout_at(min(wakes)):
                await self._news.wait()
        except TimeoutError:
            pass

    # Positions and offsets

    async def position(self, partition: TopicPartition, *, timeout_ms: int | None = None) -> int:
        """The offset of the next record to hand out. If it is not known it is looked up, within the cluster's
        request_timeout_ms unless something else is said; then raises KafkaError."""
        self._check_open()
        limit_ms = self.cluster.request_timeout_ms if timeout_ms is None else timeout_ms
        return await self._reading.position(TopicPartition(*partition), limit_ms)

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Goes on from this offset; the next poll returns nothing of what came before."""
        self._check_open()
        self._reading.seek(TopicPartition(*partition), offset)

    def seek_to_beginning(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Of all assigned partitions if none are named."""
        self._seek_by(partitions, Reset.EARLIEST)

    def seek_to_end(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        self._seek_by(partitions, Reset.LATEST)

    def _seek_by(self, partitions: Iterable[TopicPartition] | None, reset: Reset) -> None:
        self._check_open()
        for partition in self.assignment if partitions is None else partitions:
            self._reading.seek_by(TopicPartition(*partition), reset)

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Hands out nothing of these until `resume`; the consumer keeps them."""
        self._check_open()
        self._reading.pause(TopicPartition(*each) for each in partitions)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        self._check_open()
        self._reading.resume(TopicPartition(*each) for each in partitions)

    @property
    def paused(self) -> list[TopicPartition]:
        return self._positions.paused

    async def commit(self, offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None = None) -> None:
        """Commits these offsets, each that of the next record to read; without any, all that was handed out.

        Raises CommitFailedError when the group has gone on without this consumer, and RebalanceInProgressError while it
        is changing.
        """
        group = self._in_group("commit")
        wanted = self._positions.consumed() if offsets is None else to_commit(offsets)
        await group.commits.commit(wanted)

    async def committed(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """What the group has committed; None where that is nothing."""
        group = self._in_group("have committed")
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


class _Group(NamedTuple):
    offsets: GroupOffsets
    member: GroupMember
    commits: Commits
    rebalances: Rebalances
