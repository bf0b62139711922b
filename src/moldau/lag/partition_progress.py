"""The ends of a partition and its first unread records, from the leader on this node."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from moldau.concurrency.time_slice import TimeSlice
from moldau.errors import NotLeaderOrFollowerError
from moldau.partitions.partition import UnreadRecord
from moldau.partitions.replica_manager import ReplicaManager


class PartitionProgress(NamedTuple):
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    unread: Mapping[int, UnreadRecord]
    """By committed offset, the first record of a client from there on. Offsets without such a record are left out."""


async def read_progress(
    replicas: ReplicaManager, topic: str, index: int, committed_offsets: Iterable[int], time_slice: TimeSlice
) -> PartitionProgress:
    """Yields to other work whenever the time slice is used up.

    Raises NotLeaderOrFollowerError, OffsetNotAvailableError or StorageError."""
    partition = replicas.get(topic, index)
    if partition is None:
        raise NotLeaderOrFollowerError(f"this broker has no replica of {topic}-{index}")
    partition.check_lease()
    # The offsets belong together: consumers commit while the records are looked up.
    high_watermark, last_stable_offset = partition.latest_offset(), partition.last_stable_offset
    start_offset = partition.log.start_offset
    unread = {}
    for offset in committed_offsets:
        if offset < high_watermark:
            found = await partition.find_unread_record(max(offset, start_offset))
            if found is not None:
                unread[offset] = found
        await time_slice.yield_if_used()
    return PartitionProgress(high_watermark, last_stable_offset, start_offset, unread)
