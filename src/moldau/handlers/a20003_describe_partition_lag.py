"""DescribePartitionLag: returns the ends of partitions and the first unread records of groups (an API of Moldau).

Coordinators of groups send it to leaders of partitions, once per sample of the lag. A committed offset without an entry
in `unread_records` has no record of a client between it and the high watermark. `now_ms` is the leader's clock, so that
the sender can translate times into its own. The clients that read only committed records are listed if a partition has
records above its last stable offset; otherwise all groups have the same lag.
"""

from moldau.concurrency.time_slice import TimeSlice
from moldau.error_codes import error_code, error_message
from moldau.errors import MoldauError
from moldau.lag.partition_progress import read_progress
from moldau.server.api import Broker, RequestContext, handles
from moldau.wire.messages import (
    DescribePartitionLagRequest,
    DescribePartitionLagResponse,
    DescribePartitionLagResponsePartition,
    DescribePartitionLagResponseTopic,
)


@handles(versions=(0, 0), inter_broker=True)
async def describe_partition_lag(
    request: DescribePartitionLagRequest, session: RequestContext, broker: Broker
) -> DescribePartitionLagResponse:
    time_slice = TimeSlice(broker.platform.clock)
    topics: list[DescribePartitionLagResponseTopic] = []
    for topic in request.topics:
        partitions: list[DescribePartitionLagResponsePartition] = []
        for each in topic.partitions:
            index, offsets = each.partition_index, each.committed_offsets
            partitions.append(await _partition_response(broker, topic.name, index, offsets, time_slice))
            await time_slice.yield_if_used()
        topics.append({"name": topic.name, "partitions": partitions})
    response: DescribePartitionLagResponse = {"now_ms": broker.platform.clock.wall_ms(), "topics": topics}
    if any(_has_unstable_records(each) for topic in topics for each in topic["partitions"]):
        response["read_committed_clients"] = [
            {"client_id": each.client_id, "client_host": each.client_host}
            for each in sorted(broker.isolation_levels.read_committed_clients())
        ]
    return response


def _has_unstable_records(partition: DescribePartitionLagResponsePartition) -> bool:
    return partition.get("last_stable_offset", -1) < partition.get("high_watermark", -1)


async def _partition_response(
    broker: Broker, topic: str, index: int, committed_offsets: list[int], time_slice: TimeSlice
) -> DescribePartitionLagResponsePartition:
    try:
        progress = await read_progress(broker.replica_manager, topic, index, committed_offsets, time_slice)
    except MoldauError as error:
        return {"partition_index": index, "error_code": error_code(error), "error_message": error_message(error)}
    return {
        "partition_index": index,
        "high_watermark": progress.high_watermark,
        "last_stable_offset": progress.last_stable_offset,
        "log_start_offset": progress.log_start_offset,
        "unread_records": [
            {
                "committed_offset": offset,
                "offset": found.offset,
                "time_ms": found.time_ms,
                "is_append_time": found.is_append_time,
            }
            for offset, found in progress.unread.items()
        ],
    }
