"""Samples the lag of the groups that this node coordinates, while someone reads it.

In each cycle the sampler reads the committed offsets, and sends one request to each leader of their partitions. A node
whose lag is not read samples nothing.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, NamedTuple

from moldau.concurrency.tasks import cancel_and_wait
from moldau.concurrency.time_slice import TimeSlice
from moldau.controller.topic_names import is_internal
from moldau.errors import MoldauError
from moldau.groups.coordinator import GroupCoordinator
from moldau.groups.records import CommittedOffset
from moldau.groups.requests import GroupState, TopicPartition
from moldau.lag.isolation_levels import ConsumerIsolationLevels
from moldau.lag.partition_progress import PartitionProgress, read_progress
from moldau.lag.state import NO_RECORD, LagState, Observation, PartitionLagTracker, unknown_lag
from moldau.metadata.image import NO_LEADER, MetadataImage
from moldau.metadata.loader import MetadataLoader
from moldau.observe.logging import get_logger
from moldau.partitions.partition import UnreadRecord
from moldau.partitions.replica_manager import ReplicaManager
from moldau.peers.client import PeerClient
from moldau.platform.clock import Clock
from moldau.records.batch import NO_TIMESTAMP
from moldau.settings.effective import EffectiveSettings
from moldau.wire.api_keys import ApiKey
from moldau.wire.codec import Message

log = get_logger(__name__)

METRICS_TOPIC = "moldau.metrics"
LANE = "lag"
READER_TIMEOUT_MS = 300_000
"""How long sampling continues after the last read. Collectors of metrics read more often."""
OFFSETS_PER_REQUEST_MAX = 500
"""Decoding a response of this size takes about a millisecond."""
WAKE_DELAY_MS = 200
"""The delay before a sample out of turn, so that many reasons for one cause a single sample."""
RETRY_DELAY_MS = 500
RETRIES_MAX = 3
"""How often partitions without a result are sampled again before the next regular sample."""
STALE_SAMPLES_MAX = 3
"""If the leader of a partition does not respond for this many intervals, the lag becomes unknown."""

Queries = dict[TopicPartition, dict[int, None]]
"""The committed offsets of each partition, without duplicates."""


class GroupLagSample(NamedTuple):
    """The latest sample of a group."""

    state: GroupState
    member_count: int
    partitions: dict[TopicPartition, PartitionLagTracker]


class _Found(NamedTuple):
    """What one leader has returned for a partition."""

    progress: PartitionProgress
    read_committed_clients: frozenset[tuple[str, str]]


class _PartitionReading(NamedTuple):
    partition: TopicPartition
    committed: CommittedOffset
    tracker: PartitionLagTracker
    leader: int
    is_due: bool


class _GroupReading(NamedTuple):
    """A group and the offsets that are sampled in this cycle."""

    group_id: str
    state: GroupState
    members: tuple[tuple[str, str], ...]
    """Client id and client host of each member."""
    now_ms: int
    wall_ms: int
    offsets: list[_PartitionReading]


class LagSampler:
    def __init__(
        self,
        node_id: int,
        groups: GroupCoordinator,
        replicas: ReplicaManager,
        metadata: MetadataLoader,
        peers: PeerClient,
        isolation_levels: ConsumerIsolationLevels,
        settings: EffectiveSettings,
        clock: Clock,
    ) -> None:
        self._node_id = node_id
        self._groups = groups
        self._replicas = replicas
        self._metadata = metadata
        self._peers = peers
        self._isolation_levels = isolation_levels
        self._settings = settings
        self._clock = clock
        self._samples: dict[str, GroupLagSample] = {}
        self._task: asyncio.Task[None] | None = None
        self._is_started = False
        self._is_closed = False
        self._requested_ms = 0
        self._wake = asyncio.Event()
        self._next_cycle: asyncio.Future[None] | None = None
        """Completes with the cycle that starts next."""
        self.on_sampled: Callable[[], Awaitable[None]] | None = None
        """Called after each regular sample."""
        self.unexpected_errors = 0
        """The number of samples that failed with an unexpected exception."""

    @property
    def interval_ms(self) -> int:
        return self._settings.broker.lag_sample_interval_ms

    def start(self) -> None:
        """Starts sampling if metrics.topic.enable is set. Called when the node is ready."""
        self._is_started = True
        self.on_settings_changed()

    def on_settings_changed(self) -> None:
        if self._is_started and self._settings.broker.metrics_topic_enable:
            self.request()

    # Reading

    def request(self) -> None:
        """Starts sampling if needed, and keeps it going for some time."""
        self._requested_ms = self._clock.monotonic_ms()
        if self._task is None and not self._is_closed:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def wait_for_sample(self) -> None:
        """Requests a sample out of turn and waits until it is complete."""
        self.request()
        if self._task is None:
            return
        if self._next_cycle is None:
            self._next_cycle = asyncio.get_running_loop().create_future()
        waiter = self._next_cycle
        self._wake.set()
        await asyncio.shield(waiter)

    def read(self, group_id: str) -> GroupLagSample | None:
        """Returns the latest sample of a group; None if there is none or this node does not coordinate the group."""
        sample = self._samples.get(group_id)
        return sample if sample is not None and self._groups.coordinates(group_id) else None

    def has_sampled(self, group_id: str) -> bool:
        """Returns whether the latest sample has all partitions of a group, as far as they have leaders.

        The group may have committed since then.
        """
        sample, reading = self._samples.get(group_id), self._read(group_id, self._metadata.image)
        if sample is None or reading is None:
            return reading is None
        return all(
            each.partition in sample.partitions and (each.tracker.is_known or each.leader == NO_LEADER)
            for each in reading.offsets
        )

    def read_all(self) -> Iterator[tuple[str, GroupLagSample]]:
        """Yields the latest sample of each group that this node still coordinates."""
        for group_id, sample in list(self._samples.items()):
            if self._groups.coordinates(group_id):
                yield group_id, sample

    # Cycles

    def on_groups_loaded(self) -> None:
        """Samples groups soon that this node has begun to coordinate."""
        if self._task is not None:
            self._wake.set()

    async def _run(self) -> None:
        retries = 0
        due_ms = self._clock.monotonic_ms()
        while self._is_wanted():
            waiter, self._next_cycle = self._next_cycle, None
            is_regular = self._clock.monotonic_ms() >= due_ms
            if is_regular:
                retries = 0
                due_ms = self._clock.monotonic_ms() + self.interval_ms
            try:
                is_complete = await self._sample()
                if is_regular and self.on_sampled is not None:
                    await self.on_sampled()
            except Exception:
                # A bug must not stop the sampler.
                self.unexpected_errors += 1
                is_complete = True
                log.exception("sampling the lag of groups failed")
            finally:
                if waiter is not None and not waiter.done():
                    waiter.set_result(None)
            delay_ms = due_ms - self._clock.monotonic_ms()
            if not is_complete and retries < RETRIES_MAX:
                retries += 1
                delay_ms = min(delay_ms, RETRY_DELAY_MS)
            await self._pause(delay_ms)
        self._task = None
        self._samples = {}

    def _is_wanted(self) -> bool:
        if self._settings.broker.metrics_topic_enable or self._next_cycle is not None:
            return True
        timeout_ms = max(READER_TIMEOUT_MS, 3 * self.interval_ms)
        return self._clock.monotonic_ms() - self._requested_ms < timeout_ms

    async def _pause(self, delay_ms: int) -> None:
        """Waits for the delay, or shorter if a sample out of turn is requested."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + max(0, delay_ms) / 1000
        try:
            async with asyncio.timeout_at(deadline):
                await self._wake.wait()
                await asyncio.sleep(WAKE_DELAY_MS / 1000)
        except TimeoutError:
            pass
        self._wake.clear()

    async def _sample(self) -> bool:
        """Samples all groups that are due. Returns False if partitions are left without a result."""
        time_slice = TimeSlice(self._clock)
        image = self._metadata.image
        readings = []
        queries: dict[int, Queries] = {}
        for group_id in self._groups.group_ids():
            reading = self._read(group_id, image)
            if reading is not None:
                readings.append(reading)
                for each in reading.offsets:
                    if each.is_due:
                        offsets = queries.setdefault(each.leader, {}).setdefault(each.partition, {})
                        offsets[each.committed.offset] = None
            await time_slice.yield_if_used()
        found: dict[TopicPartition, _Found] = {}
        for results in await asyncio.gather(*(self._query(leader, queries[leader]) for leader in sorted(queries))):
            found.update(results)
        samples: dict[str, GroupLagSample] = {}
        is_complete = True
        for reading in readings:
            partitions = {}
            for each in reading.offsets:
                if each.is_due:
                    result = found.get(each.partition)
                    if result is None:
                        is_complete = False
                        self._record_failure(reading, each)
                    else:
                        each.tracker.observe(_observation(reading, each.committed, result), self.interval_ms)
                partitions[each.partition] = each.tracker
                await time_slice.yield_if_used()
            samples[reading.group_id] = GroupLagSample(reading.state, len(reading.members), partitions)
        self._samples = samples
        return is_complete

    def _record_failure(self, reading: _GroupReading, failed: _PartitionReading) -> None:
        """Sets the lag to unknown if there is no leader. Otherwise the earlier result holds for some intervals."""
        observed_ms = failed.tracker.observed_ms
        is_stale = observed_ms is None or reading.now_ms - observed_ms > STALE_SAMPLES_MAX * self.interval_ms
        if failed.leader == NO_LEADER or is_stale:
            state = LagState.NO_LEADER if failed.leader == NO_LEADER else LagState.UNKNOWN
            committed = failed.committed
            lag = unknown_lag(state, reading.wall_ms, committed.offset, committed.commit_timestamp_ms)
            failed.tracker.set_unknown(reading.now_ms, lag, keeps_samples=not is_stale)

    def _read(self, group_id: str, image: MetadataImage) -> _GroupReading | None:
        group = self._groups.read_group(group_id)
        if group is None:
            return None
        previous = self._samples.get(group_id)
        trackers = {} if previous is None else previous.partitions
        now_ms = self._clock.monotonic_ms()
        offsets = []
        for partition, committed in group.offsets:
            if _is_sampled(image, partition, committed):
                tracker = trackers.get(partition)
                if tracker is None:
                    tracker = PartitionLagTracker()
                # A sample out of turn leaves out what the last regular one has found.
                is_due = (
                    tracker.sampled_ms is None
                    or not tracker.is_known
                    or now_ms - tracker.sampled_ms >= self.interval_ms // 2
                )
                offsets.append(_PartitionReading(partition, committed, tracker, _leader(image, partition), is_due))
        return _GroupReading(group_id, group.state, group.members, now_ms, self._clock.wall_ms(), offsets)

    # Requests to leaders

    async def _query(self, leader: int, queries: Queries) -> dict[TopicPartition, _Found]:
        """Returns the results of one leader. Partitions with an error are left out."""
        if leader == NO_LEADER:
            return {}
        if leader == self._node_id:
            return await self._query_locally(queries)
        found: dict[TopicPartition, _Found] = {}
        try:
            for tree in _requests(queries):
                sent_ms = self._clock.wall_ms()
                response = await self._peers.call(leader, ApiKey.DESCRIBE_PARTITION_LAG, tree, lane=LANE)
                # The leader has read its clock in between. Half of the way leads there, half back.
                clock_difference_ms = (sent_ms + self._clock.wall_ms()) // 2 - response.now_ms
                for partition, result in _results_in(response, clock_difference_ms):
                    # The offsets of a partition can be in several requests.
                    found[partition] = result if partition not in found else _merge(found[partition], result)
        except MoldauError as error:
            log.debug("the lag of partitions is unknown for now", leader=leader, reason=str(error))
        return found

    async def _query_locally(self, queries: Queries) -> dict[TopicPartition, _Found]:
        time_slice = TimeSlice(self._clock)
        clients = self._isolation_levels.read_committed_clients()
        found = {}
        for (topic, index), offsets in queries.items():
            try:
                progress = await read_progress(self._replicas, topic, index, offsets, time_slice)
                found[topic, index] = _Found(progress, clients)
            except MoldauError as error:
                log.debug("the lag of a partition is unknown for now", partition=f"{topic}-{index}", reason=str(error))
            await time_slice.yield_if_used()
        return found

    async def close(self) -> None:
        self._is_closed = True
        await cancel_and_wait(self._task)
        self._task = None
        if self._next_cycle is not None and not self._next_cycle.done():
            self._next_cycle.set_result(None)


def _is_sampled(image: MetadataImage, partition: TopicPartition, committed: CommittedOffset) -> bool:
    name, index = partition
    topic = image.topics.get(name)
    if topic is None or index >= len(topic.partitions) or is_internal(name) or name == METRICS_TOPIC:
        return False
    return committed.topic_id in (None, topic.topic_id)


def _leader(image: MetadataImage, partition: TopicPartition) -> int:
    registration = image.partition(*partition)
    return NO_LEADER if registration is None else registration.leader


def _observation(reading: _GroupReading, committed: CommittedOffset, found: _Found) -> Observation:
    progress = found.progress
    unread = progress.unread.get(committed.offset)
    return Observation(
        now_ms=reading.now_ms,
        wall_ms=reading.wall_ms,
        committed_offset=committed.offset,
        commit_timestamp_ms=committed.commit_timestamp_ms,
        high_watermark=progress.high_watermark,
        last_stable_offset=progress.last_stable_offset,
        log_start_offset=progress.log_start_offset,
        unread_offset=NO_RECORD if unread is None else unread.offset,
        unread_ms=NO_TIMESTAMP if unread is None else unread.time_ms,
        is_append_time=unread is not None and unread.is_append_time,
        fetches_committed=any(each in found.read_committed_clients for each in reading.members),
    )


def _requests(queries: Queries) -> Iterator[Mapping[str, Any]]:
    """Yields requests of limited size. A single one is enough unless there are very many partitions."""
    topics: dict[str, list[Mapping[str, Any]]] = {}
    count = 0
    for (topic, index), all_offsets in queries.items():
        offsets = list(all_offsets)
        while offsets:
            part = offsets[: OFFSETS_PER_REQUEST_MAX - count]
            offsets = offsets[len(part) :]
            count += len(part)
            topics.setdefault(topic, []).append({"partition_index": index, "committed_offsets": part})
            if count == OFFSETS_PER_REQUEST_MAX:
                yield _request(topics)
                topics, count = {}, 0
    if topics:
        yield _request(topics)


def _request(topics: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"topics": [{"name": name, "partitions": partitions} for name, partitions in topics.items()]}


def _results_in(response: Message, clock_difference_ms: int) -> Iterator[tuple[TopicPartition, _Found]]:
    clients = frozenset((each.client_id, each.client_host) for each in response.read_committed_clients)
    for topic in response.topics:
        for each in topic.partitions:
            if each.error_code == 0:
                unread = {
                    record.committed_offset: UnreadRecord(
                        record.offset,
                        NO_TIMESTAMP if record.time_ms == NO_TIMESTAMP else record.time_ms + clock_difference_ms,
                        record.is_append_time,
                    )
                    for record in each.unread_records
                }
                progress = PartitionProgress(
                    each.high_watermark, each.last_stable_offset, each.log_start_offset, unread
                )
                yield (topic.name, each.partition_index), _Found(progress, clients)


def _merge(first: _Found, second: _Found) -> _Found:
    unread = {**first.progress.unread, **second.progress.unread}
    return _Found(second.progress._replace(unread=unread), second.read_committed_clients)
