"""AlterReplicaLogDirs: moves replicas of this broker to another log directory.

A node has one log directory, so a replica can only be moved to the directory in which it already is. Versions 1 and 2
have the same fields.
"""

from moldau.error_codes import error_code
from moldau.errors import LogDirNotFoundError, MoldauError, NotLeaderOrFollowerError, ReplicaNotAvailableError
from moldau.server.api import Broker, RequestContext, handles
from moldau.server.partition_lookup import find_partition
from moldau.wire.messages import (
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirsResponseAlterReplicaLogDirPartitionResult,
)


@handles(versions=(1, 2))
async def alter_replica_log_dirs(
    request: AlterReplicaLogDirsRequest, session: RequestContext, broker: Broker
) -> AlterReplicaLogDirsResponse:
    # As in Kafka, the last directory counts if a partition is requested more than once.
    requested: dict[str, dict[int, str]] = {}
    for directory in request.dirs:
        for topic in directory.topics:
            requested.setdefault(topic.name, {}).update(dict.fromkeys(topic.partitions, directory.path))
    return {
        "results": [
            {
                "topic_name": name,
                "partitions": [_partition_response(broker, name, index, path) for index, path in paths.items()],
            }
            for name, paths in requested.items()
            if paths
        ]
    }


def _partition_response(
    broker: Broker, topic: str, index: int, path: str
) -> AlterReplicaLogDirsResponseAlterReplicaLogDirPartitionResult:
    try:
        _check_log_dir(broker, topic, index, path)
    except MoldauError as error:
        return {"partition_index": index, "error_code": error_code(error)}
    return {"partition_index": index}


def _check_log_dir(broker: Broker, topic: str, index: int, path: str) -> None:
    if path != broker.settings.broker.log_dir:
        raise LogDirNotFoundError(f"{path} is not a log directory of this broker")
    try:
        partition = find_partition(broker, topic, index)
    except NotLeaderOrFollowerError as error:
        raise ReplicaNotAvailableError(str(error)) from None
    partition.guarded_log.check_online()
