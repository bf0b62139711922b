"""ListOffsets: returns the offset for a timestamp, or for one of the special timestamps.

- -1: the latest offset (the high watermark; with read_committed the last stable offset).
- -2: the earliest offset.
- -3: the record with the largest timestamp (since version 7).
- -4: the earliest offset on local disk (since version 8).
- -5: the latest offset in tiered storage (since version 9). No offset is found, because there is no tiered storage.
- -6: the earliest offset that is not in tiered storage yet (since version 11). No offset is found.

With read_committed, records from the last stable offset on are not found.

A new leader responds OFFSET_NOT_AVAILABLE (before version 5: LEADER_NOT_AVAILABLE) until it knows the high watermark.
"""

from collections import Counter

from moldau.error_codes import ErrorCode, error_code
from moldau.errors import InvalidRequestError, MoldauError, OffsetNotAvailableError, UnsupportedVersionError
from moldau.partitions.partition import Partition
from moldau.server.api import Broker, RequestContext, handles
from moldau.server.partition_lookup import find_partition
from moldau.wire.messages import (
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsResponsePartition,
    ListOffsetsResponseTopic,
)

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD = range(-1, -7, -1)
_SINCE_VERSION = {MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_PENDING_UPLOAD: 11}
_NOT_FOUND = (-1, -1, -1)
READ_COMMITTED = 1
OFFSET_NOT_AVAILABLE_VERSION = 5


@handles(versions=(1, 11))
async def list_offsets(request: ListOffsetsRequest, session: RequestContext, broker: Broker) -> ListOffsetsResponse:
    topics: list[ListOffsetsResponseTopic] = []
    committed_only = request.isolation_level == READ_COMMITTED
    counts = Counter((topic.name, each.partition_index) for topic in request.topics for each in topic.partitions)
    for topic in request.topics:
        partitions: list[ListOffsetsResponsePartition] = []
        for each in {each.partition_index: each for each in topic.partitions}.values():
            code, (timestamp, offset, epoch) = 0, _NOT_FOUND
            try:
                if counts[topic.name, each.partition_index] > 1:
                    raise InvalidRequestError("the request has the partition more than once")
                partition = find_partition(broker, topic.name, each.partition_index)
                timestamp, offset, epoch = await _find_offset(
                    partition,
                    each.timestamp,
                    each.current_leader_epoch,
                    session.api_version,
                    committed_only=committed_only,
                )
            except MoldauError as error:
                code = error_code(error)
                if isinstance(error, OffsetNotAvailableError) and session.api_version < OFFSET_NOT_AVAILABLE_VERSION:
                    code = ErrorCode.leader_not_available
            partitions.append(
                {
                    "partition_index": each.partition_index,
                    "error_code": code,
                    "timestamp": timestamp,
                    "offset": offset,
                    "leader_epoch": epoch,
                }
            )
        topics.append({"name": topic.name, "partitions": partitions})
    return {"topics": topics}


async def _find_offset(
    partition: Partition, timestamp: int, current_leader_epoch: int, version: int, *, committed_only: bool
) -> tuple[int, int, int]:
    """Returns the timestamp, offset and leader epoch. Missing values are -1."""
    leader = partition.require_leader(current_leader_epoch)
    log = partition.log
    if version < _SINCE_VERSION.get(timestamp, 0) or timestamp < EARLIEST_PENDING_UPLOAD:
        raise UnsupportedVersionError(f"timestamp {timestamp} has no meaning in version {version}")
    await partition.wait_for_flush()
    if timestamp == LATEST:
        latest = partition.latest_offset(current_leader_epoch, committed_only=committed_only)
        return -1, latest, leader.leader_epoch
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        return -1, log.start_offset, log.epochs.epoch_for_offset(log.start_offset)
    if timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        return _NOT_FOUND
    if timestamp == MAX_TIMESTAMP:
        found = await partition.max_timestamp(committed_only=committed_only)
    else:
        found = await partition.offset_for_timestamp(timestamp, committed_only=committed_only)
    if found is not None:
        return found.timestamp_ms, found.offset, found.leader_epoch
    # If this broker is a new leader that does not know the high watermark yet, this call raises
    # OffsetNotAvailableError, because the search above may have missed committed records.
    partition.latest_offset(current_leader_epoch)
    return _NOT_FOUND
