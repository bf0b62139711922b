"""The lag of groups from committed offsets, ends and timestamps, for brokers that do not sample it, as Apache Kafka.

The time of the first unread record is its timestamp, so it is read from the topic. Rates need a second sample.
"""

from collections.abc import Iterable, Mapping, Sequence

from moldau.client.admin.admin import Admin
from moldau.client.admin.group_lag import GroupLagSample, PartitionLagSample
from moldau.client.admin.group_offsets import GroupLag, describe_group_lag
from moldau.client.consumer.consumer import Consumer
from moldau.client.consumer.offset_lookup import EARLIEST
from moldau.client.errors import ErrorCode, KafkaError
from moldau.client.record import ConsumerRecord, TopicPartition
from moldau.lag.state import NO_RECORD, LagState, Observation, PartitionLagTracker, unknown_lag
from moldau.platform.clock import Clock, SystemClock
from moldau.records.batch import NO_TIMESTAMP

READ_TIMEOUT_MS = 5_000
"""How long unread records are read. The time of the others is unknown in this sample."""
POLL_TIMEOUT_MS = 200
PARTITION_FETCH_BYTES = 65_536

Position = tuple[TopicPartition, int]
"""A partition and the offset of an unread record."""


class GroupLagEstimator:
    def __init__(self, admin: Admin, *, isolation_level: str, interval_ms: int, clock: Clock | None = None) -> None:
        """`isolation_level` says how the consumers read, because brokers do not know it. `sample` is called once per
        interval."""
        self._admin = admin
        self._is_read_committed = isolation_level == "read_committed"
        self._interval_ms = interval_ms
        self._clock = SystemClock() if clock is None else clock
        self._trackers: dict[tuple[str, TopicPartition], PartitionLagTracker] = {}
        self._commits: dict[tuple[str, TopicPartition], tuple[int, int]] = {}
        """The committed offset of each partition of a group, and when it was first seen."""
        self._unread: dict[Position, ConsumerRecord | None] = {}
        """The first unread record at each position, from the latest sample; None if only markers follow."""

    async def sample(self, groups: Sequence[str] = ()) -> list[GroupLagSample]:
        """Samples these groups, or all if there are none."""
        names = groups or [each.group_id for each in await self._admin.list_groups()]
        found: dict[str, GroupLag] = {}
        for name in names:
            try:
                found[name] = await describe_group_lag(self._admin, name)
            except KafkaError as error:
                if groups or error.code != ErrorCode.group_id_not_found:
                    raise
        partitions = {each for lag in found.values() for each in lag.ends.high_watermarks if each in lag.committed}
        starts, _ = await self._admin.list_available_offsets(dict.fromkeys(sorted(partitions), EARLIEST))
        start_offsets = {each: start.offset for each, start in starts.items()}
        await self._read_unread(found.values(), start_offsets)
        return [self._group_sample(name, lag, start_offsets) for name, lag in found.items()]

    def _group_sample(self, group: str, found: GroupLag, start_offsets: Mapping[TopicPartition, int]) -> GroupLagSample:
        owners = {each: member for member in found.description.members for each in member.assignment}
        samples = []
        for partition, committed in sorted(found.committed.items()):
            tracker = self._trackers.setdefault((group, partition), PartitionLagTracker())
            if partition in start_offsets and partition in found.ends.last_stable_offsets:
                observation = self._observation(group, partition, committed.offset, found, start_offsets[partition])
                lag = tracker.observe(observation, self._interval_ms)
            elif partition in found.ends.high_watermarks or partition in found.ends.without_leader:
                wall_ms = self._clock.wall_ms()
                unknown = unknown_lag(LagState.NO_LEADER, wall_ms, committed.offset, wall_ms)
                lag = tracker.set_unknown(self._clock.monotonic_ms(), unknown, keeps_samples=True)
            else:
                # The partition was deleted.
                continue
            owner = owners.get(partition)
            samples.append(
                PartitionLagSample(
                    partition,
                    lag,
                    None if owner is None else owner.member_id,
                    None if owner is None else owner.client_id,
                    None if owner is None else owner.client_host,
                )
            )
        description = found.description
        return GroupLagSample(group, description.state, len(description.members), self._interval_ms, tuple(samples))

    def _observation(
        self, group: str, partition: TopicPartition, offset: int, found: GroupLag, start_offset: int
    ) -> Observation:
        wall_ms = self._clock.wall_ms()
        high_watermark = found.ends.high_watermarks[partition]
        last_stable_offset = found.ends.last_stable_offsets[partition]
        known_offset, commit_ms = self._commits.get((group, partition), (None, wall_ms))
        if known_offset != offset:
            commit_ms = wall_ms
        self._commits[group, partition] = (offset, commit_ms)
        position = (partition, max(offset, start_offset))
        unread = self._unread.get(position)
        unread_offset = NO_RECORD
        if unread is not None:
            unread_offset = unread.offset
        elif position not in self._unread:
            # The record was not read in time, if there is one.
            unread_offset = position[1]
        return Observation(
            now_ms=self._clock.monotonic_ms(),
            wall_ms=wall_ms,
            committed_offset=offset,
            commit_timestamp_ms=commit_ms,
            high_watermark=high_watermark,
            # The option decides, not what the group commits.
            last_stable_offset=last_stable_offset if self._is_read_committed else high_watermark,
            log_start_offset=start_offset,
            unread_offset=unread_offset,
            unread_ms=NO_TIMESTAMP if unread is None else unread.timestamp,
            is_append_time=unread is not None and unread.is_log_append_time,
            fetches_committed=self._is_read_committed,
        )

    # Unread records

    async def _read_unread(self, groups: Iterable[GroupLag], start_offsets: Mapping[TopicPartition, int]) -> None:
        """Reads the first unread record of each partition of each group, unless it is the same as before."""
        wanted: dict[Position, int] = {}
        for each in groups:
            ends = each.ends.last_stable_offsets if self._is_read_committed else each.ends.high_watermarks
            for partition, committed in each.committed.items():
                if partition in start_offsets and committed.offset < ends.get(partition, -1):
                    wanted[partition, max(committed.offset, start_offsets[partition])] = ends[partition]
        # A record may have followed the markers since then.
        self._unread = {
            position: record for position, record in self._unread.items() if position in wanted and record is not None
        }
        missing = [position for position in wanted if position not in self._unread]
        deadline_ms = self._clock.monotonic_ms() + READ_TIMEOUT_MS
        while missing:
            # A consumer reads a partition at one position at a time.
            turn = dict(missing)
            ends = {partition: wanted[partition, offset] for partition, offset in turn.items()}
            await self._read_records(turn, ends, deadline_ms)
            missing = [(partition, offset) for partition, offset in missing if turn[partition] != offset]

    async def _read_records(
        self, positions: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int], deadline_ms: int
    ) -> None:
        async with Consumer(
            cluster=self._admin.cluster,
            isolation_level="read_committed" if self._is_read_committed else "read_uncommitted",
            auto_offset_reset="earliest",
            max_partition_fetch_bytes=PARTITION_FETCH_BYTES,
            max_poll_records=len(positions),
        ) as consumer:
            consumer.assign(positions)
            for partition, offset in positions.items():
                consumer.seek(partition, offset)
            left = set(positions)
            while left and (timeout_ms := deadline_ms - self._clock.monotonic_ms()) > 0:
                for record in await consumer.poll(min(timeout_ms, POLL_TIMEOUT_MS)):
                    partition = TopicPartition(record.topic, record.partition)
                    if partition in left:
                        left.discard(partition)
                        self._unread[partition, positions[partition]] = record
                        consumer.pause([partition])
                for partition in list(left):
                    if await consumer.position(partition) >= ends[partition]:
                        left.discard(partition)
                        self._unread[partition, positions[partition]] = None
