"""DescribeLogDirs: returns the log directory of this broker and the sizes of its partitions.

A node has one log directory, so the response has one result. The response omits partitions that have no replica on this
broker. v3 added a top-level error, v4 the size of the volume, v5 cordoned directories, which do not exist here.
"""

from moldau.error_codes import ErrorCode
from moldau.errors import StorageError
from moldau.server.api import Broker, RequestContext, handles
from moldau.wire.messages import DescribeLogDirsRequest, DescribeLogDirsResponse, DescribeLogDirsResponsePartition


@handles(versions=(1, 5))
async def describe_log_dirs(
    request: DescribeLogDirsRequest, session: RequestContext, broker: Broker
) -> DescribeLogDirsResponse:
    log_dir = broker.settings.broker.log_dir
    try:
        total_bytes, usable_bytes = broker.replica_manager.store.space()
    except (OSError, StorageError):
        return {"results": [{"error_code": ErrorCode.kafka_storage_error, "log_dir": log_dir}]}
    requested = None
    if request.topics is not None:
        requested = {(topic.topic, index) for topic in request.topics for index in topic.partitions}
    partitions: dict[str, list[DescribeLogDirsResponsePartition]] = {}
    for partition in broker.replica_manager:
        topic, index = partition.name
        if requested is None or (topic, index) in requested:
            partitions.setdefault(topic, []).append(
                {
                    "partition_index": index,
                    "partition_size": partition.log.size,
                    "offset_lag": partition.follower.lag,
                    "is_future_key": False,
                }
            )
    return {
        "results": [
            {
                "log_dir": log_dir,
                "topics": [{"name": topic, "partitions": partitions[topic]} for topic in partitions],
                "total_bytes": total_bytes,
                "usable_bytes": usable_bytes,
            }
        ]
    }
