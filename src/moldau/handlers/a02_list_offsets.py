"""ListOffsets: the offset for a time, or for one of the times that stand for a place in the log.

-1 latest (the high watermark), -2 earliest, -3 the record with the largest timestamp (from version 7), -4
earliest on local disk (8), -5 latest in tiered storage (9) and -6 earliest still to be tiered (11): there
is no tiered storage, so the last two find nothing. A leader that has just begun says OFFSET_NOT_AVAILABLE (before
version 5: LEADER_NOT_AVAILABLE) until it knows what its predecessor has committed.
"""

from collections import Counter
from typing import Any

from moldau.errors import (
    InvalidRequestError,
    MoldauError,
    OffsetNotAvailableError,
    UnsupportedVersionError,
)
from moldau.partitions.partition import Partition
from moldau.server.broker import Broker
from moldau.server.errors import ErrorCode, error_code
from moldau.server.partition_lookup import find_partition
from moldau.server.registry import handles
from moldau.server.session import Session
from moldau.wire.api_keys import ApiKey

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD = (
    -1,
    -2,
    -3,
    -4,
    -5,
    -6,
)
_SINCE_VERSION = {MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_PENDING_UPLOAD: 11}
_NOT_FOUND = (-1, -1, -1)
OFFSET_NOT_AVAILABLE_VERSION = 5


@handles(ApiKey.LIST_OFFSETS, versions=(1, 11))
async def list_offsets(request: Any, session: Session, broker: Broker) -> Any:
    topics = []
    request_counts = Counter(
        (topic.name, each.partition_index) for topic in request.topics for each in topic.partitions
    )
    for topic in request.topics:
        partitions = []
        for each in {each.partition_index: each for each in topic.partitions}.values():
            code, (timestamp, offset, epoch) = 0, _NOT_FOUND
            try:
                if request_counts[topic.name, each.partition_index] > 1:
                    raise InvalidRequestError("the partition is in the request twice")
                partition = find_partition(broker, topic.name, each.partition_index)
                timestamp, offset, epoch = await _find_offset(
                    partition, each.timestamp, each.get("current_leader_epoch", -1), session.api_version
                )
            except MoldauError as error:
                code = error_code(error)
                if (
                    isinstance(error, OffsetNotAvailableError)
                    and session.api_version < OFFSET_NOT_AVAILABLE_VERSION
                ):
                    code = int(ErrorCode.leader_not_available)
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
    return {"throttle_time": 0, "topics": topics}


async def _find_offset(
    partition: Partition, timestamp: int, current_leader_epoch: int, version: int
) -> tuple[int, int, int]:
    """(timestamp, offset, leader epoch); -1 for what there is none of."""
    leader = partition.require_leader(current_leader_epoch)
    log = partition.log
    if version < _SINCE_VERSION.get(timestamp, 0) or timestamp < EARLIEST_PENDING_UPLOAD:
        raise UnsupportedVersionError(f"timestamp {timestamp} means nothing in version {version}")
    await partition.wait_for_flush()
    if timestamp == LATEST:
        return -1, partition.latest_offset(current_leader_epoch), leader.leader_epoch
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        return -1, log.start_offset, log.epochs.epoch_for_offset(log.start_offset)
    if timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        return _NOT_FOUND
    if timestamp == MAX_TIMESTAMP:
        found = await partition.max_timestamp()
    else:
        found = await partition.offset_for_timestamp(timestamp)
    if found is None:
        # There may be such a record that is not yet known to be committed.
        partition.latest_offset(current_leader_epoch)
    return _NOT_FOUND if found is None else (found.timestamp_ms, found.offset, found.leader_epoch)
