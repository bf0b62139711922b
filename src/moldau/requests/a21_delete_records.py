"""DeleteRecords: moves the start of partitions up; -1 stands for the high watermark.

Refused on the topics that the broker keeps for itself, and on topics that are compacted only: their records are not
deleted by age or size either. All versions (0-2) mean the same.
"""

from typing import Any

from moldau.controller.names import is_internal
from moldau.errors import InvalidTopicError, MoldauError, PolicyViolationError
from moldau.requests.broker import Broker
from moldau.requests.errors import error_code
from moldau.requests.lookup import find_partition
from moldau.requests.registry import handles
from moldau.requests.session import Session
from moldau.wire.api_keys import ApiKey


@handles(ApiKey.DELETE_RECORDS, versions=(0, 2))
async def delete_records(request: Any, session: Session, broker: Broker) -> Any:
    topics = []
    for topic in request.topics:
        partitions = []
        for each in topic.partitions:
            code, low_watermark = 0, -1
            try:
                low_watermark = await _delete(broker, topic.name, each.partition_index, each.offset)
            except MoldauError as error:
                code = error_code(error)
            partitions.append(
                {"partition_index": each.partition_index, "low_watermark": low_watermark, "error_code": code}
            )
        topics.append({"name": topic.name, "partitions": partitions})
    return {"throttle_time": 0, "topics": topics}


async def _delete(broker: Broker, topic: str, index: int, before_offset: int) -> int:
    partition = find_partition(broker, topic, index)
    if is_internal(topic):
        raise InvalidTopicError(f"{topic} is the broker's own: its records are not deleted by others")
    if "delete" not in partition.log.settings.cleanup_policy:
        raise PolicyViolationError(f"{topic} is compacted: its records are not deleted by offset")
    return await partition.delete_records(before_offset)
