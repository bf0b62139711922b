"""End offsets of partitions, the lag of a group, and plans for a reset of its committed offsets."""

from collections.abc import Iterable
from typing import Literal, NamedTuple

from moldau.client.admin.admin import Admin
from moldau.client.admin.types import GroupDescription
from moldau.client.consumer.completed_fetch import READ_COMMITTED, READ_UNCOMMITTED
from moldau.client.consumer.offset_lookup import EARLIEST, LATEST
from moldau.client.consumer.subscription_state import OffsetAndMetadata
from moldau.client.record import TopicPartition


class EndOffsets(NamedTuple):
    """By partition. Partitions without a known end are left out."""

    high_watermarks: dict[TopicPartition, int]
    last_stable_offsets: dict[TopicPartition, int]
    """Consumers with read_committed read up to here."""
    without_leader: frozenset[TopicPartition] = frozenset()
    """Partitions whose ends are unknown because they have no leader."""

    @property
    def waiting(self) -> dict[TopicPartition, int]:
        """The number of offsets between last stable offset and high watermark, of partitions that have any."""
        return {
            partition: high_watermark - self.last_stable_offsets[partition]
            for partition, high_watermark in self.high_watermarks.items()
            if self.last_stable_offsets.get(partition, high_watermark) < high_watermark
        }


class GroupLag(NamedTuple):
    """The members and committed offsets of a group, and the ends of its partitions."""

    description: GroupDescription
    committed: dict[TopicPartition, OffsetAndMetadata]
    ends: EndOffsets


class OffsetReset(NamedTuple):
    """Where a reset moves the committed offsets to."""

    to: Literal["earliest", "latest", "offset", "time", "shift"]
    value: int = 0
    """The offset, the time in milliseconds since 1970, or the number of records by which offsets are shifted."""


class OffsetChange(NamedTuple):
    current: int | None
    """The current committed offset; None if there is none."""
    new: int


async def list_end_offsets(admin: Admin, partitions: Iterable[TopicPartition]) -> EndOffsets:
    """Returns the ends of partitions. Partitions without a leader are not waited for."""
    times = dict.fromkeys(partitions, LATEST)
    if not times:
        return EndOffsets({}, {})
    # In this order, records that are written meanwhile do not look as if they waited for a transaction.
    ends, leaderless = await admin.list_available_offsets(times, isolation_level=READ_UNCOMMITTED)
    times = dict.fromkeys(ends, LATEST)
    stable, lost_leader = await admin.list_available_offsets(times, isolation_level=READ_COMMITTED)
    return EndOffsets(
        {each: found.offset for each, found in ends.items() if each in stable},
        {each: found.offset for each, found in stable.items()},
        frozenset(leaderless | lost_leader),
    )


async def describe_group_lag(admin: Admin, group: str) -> GroupLag:
    """Describes a group and the ends of all existing partitions that it has committed or that its members own."""
    description = await admin.describe_group(group)
    committed = await admin.list_group_offsets(group)
    owned = [each for member in description.members for each in member.assignment]
    partitions = list(dict.fromkeys([*committed, *owned]))
    await admin.cluster.refresh(dict.fromkeys(each.topic for each in partitions))
    existing = [each for each in partitions if admin.cluster.partition_info(each) is not None]
    return GroupLag(description, committed, await list_end_offsets(admin, existing))


async def plan_offset_reset(
    admin: Admin, group: str, partitions: Iterable[TopicPartition], reset: OffsetReset
) -> dict[TopicPartition, OffsetChange]:
    """Returns the change of each partition, and changes nothing. New offsets are within the log.

    A shift leaves out partitions without a committed offset. A time after the last record means the end.
    """
    partitions = list(partitions)
    committed = await admin.list_group_offsets(group, partitions)
    first = await admin.list_offsets(dict.fromkeys(partitions, EARLIEST))
    end = await admin.list_offsets(dict.fromkeys(partitions, LATEST))
    at_time = await admin.list_offsets(dict.fromkeys(partitions, reset.value)) if reset.to == "time" else {}
    plan: dict[TopicPartition, OffsetChange] = {}
    for each in partitions:
        current = committed[each].offset if each in committed else None
        new = end[each].offset
        if reset.to == "earliest":
            new = first[each].offset
        elif reset.to == "offset":
            new = reset.value
        elif reset.to == "time" and each in at_time:
            new = at_time[each].offset
        elif reset.to == "shift":
            if current is None:
                continue
            new = current + reset.value
        plan[each] = OffsetChange(current, min(max(new, first[each].offset), end[each].offset))
    return plan
