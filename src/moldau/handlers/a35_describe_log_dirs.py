"""DescribeLogDirs: where this broker keeps its partitions and how much room they take.

A node has one log directory, so an answer has one result. Partitions that are not here are left out
without a word. v3 adds a top-level error, v4 the size of the volume, v5 cordoned directories (there are
none).
"""

from typing import Any

from moldau.errors import StorageError
from moldau.server.broker import Broker
from moldau.server.errors import ErrorCode, error_code
from moldau.server.registry import handles
from moldau.server.session import Session
from moldau.wire.api_keys import ApiKey
from moldau.wire.codec import Message


@handles(ApiKey.DESCRIBE_LOG_DIRS, versions=(1, 5))
async def describe_log_dirs(request: Message, session: Session, broker: Broker) -> dict[str, Any]:
    return {
        "throttle_time": 0,
        "error_code": int(ErrorCode.none),
        "results": [_log_dir(request, broker)],
    }


def _log_dir(request: Message, broker: Broker) -> dict[str, Any]:
    settings = broker.settings.broker
    log_dir = settings.data_dir if settings.store == "files" else settings.store
    try:
        total_bytes, usable_bytes = broker.partitions.store.space()
    except (OSError, StorageError):
        return {
            "error_code": int(ErrorCode.kafka_storage_error),
            "log_dir": log_dir,
            "topics": [],
            "total_bytes": -1,
            "usable_bytes": -1,
        }
    return {
        "error_code": error_code(None),
        "log_dir": log_dir,
        "topics": _topics(request, broker),
        "total_bytes": total_bytes,
        "usable_bytes": usable_bytes,
        "is_cordoned": False,
    }


def _topics(request: Message, broker: Broker) -> list[dict[str, Any]]:
    wanted = None
    if request.topics is not None:
        wanted = {(topic.topic, index) for topic in request.topics for index in topic.partitions}
    sizes: dict[str, list[dict[str, Any]]] = {}
    for partition in broker.partitions:
        topic, index = partition.name
        if wanted is None or (topic, index) in wanted:
            size = {
                "partition_index": index,
                "partition_size": partition.log.size,
                "offset_lag": partition.follower.lag,
                "is_future_key": False,
            }
            sizes.setdefault(topic, []).append(size)
    return [{"name": topic, "partitions": partitions} for topic, partitions in sizes.items()]
