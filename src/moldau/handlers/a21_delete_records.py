"""DeleteRecords: advances the log start offset of partitions. The offset -1 stands for the high watermark.

Internal topics are rejected. Topics without the cleanup policy `delete` are also rejected. The response is sent when
all live replicas have deleted the records. It contains the low watermark, which is the lowest start offset of these
replicas. Versions 0-2 have the same fields.
"""

import asyncio
from typing import NamedTuple

from moldau.controller.topic_names import is_internal
from moldau.error_codes import error_code
from moldau.errors import InvalidTopicError, MoldauError, PolicyViolationError, RequestTimedOutError
from moldau.partitions.partition import Partition
from moldau.server.api import Broker, RequestContext, handles
from moldau.server.partition_lookup import find_partition
from moldau.wire.messages import (
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsResponsePartitionResult,
    DeleteRecordsResponseTopicResult,
)


class _PendingDelete(NamedTuple):
    partition: Partition
    start_offset: int
    response: DeleteRecordsResponsePartitionResult


@handles(versions=(0, 2))
async def delete_records(
    request: DeleteRecordsRequest, session: RequestContext, broker: Broker
) -> DeleteRecordsResponse:
    topics: list[DeleteRecordsResponseTopicResult] = []
    pending: list[_PendingDelete] = []
    for topic in request.topics:
        partitions: list[DeleteRecordsResponsePartitionResult] = []
        for each in topic.partitions:
            response: DeleteRecordsResponsePartitionResult = {
                "partition_index": each.partition_index,
                "low_watermark": -1,
            }
            partitions.append(response)
            try:
                partition = _find_deletable_partition(broker, topic.name, each.partition_index)
                start_offset = await partition.delete_records(each.offset)
                pending.append(_PendingDelete(partition, start_offset, response))
            except MoldauError as error:
                response["error_code"] = error_code(error)
        topics.append({"name": topic.name, "partitions": partitions})
    await _wait_until_deleted(pending, request.timeout)
    return {"topics": topics}


def _find_deletable_partition(broker: Broker, topic: str, index: int) -> Partition:
    partition = find_partition(broker, topic, index)
    if is_internal(topic):
        raise InvalidTopicError(f"{topic} is internal: clients cannot delete its records")
    if "delete" not in partition.log.settings.cleanup_policy:
        raise PolicyViolationError(f"{topic} is compacted: its records are not deleted by offset")
    return partition


async def _wait_until_deleted(pending: list[_PendingDelete], timeout_ms: int) -> None:
    """Waits until the followers have also advanced their start offsets. All partitions have the same deadline."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + max(timeout_ms, 0) / 1000
    for partition, start_offset, response in pending:
        try:
            deleted = partition.low_watermark_future(start_offset)
            if deleted is not None:
                timeout_error = RequestTimedOutError("not every replica has deleted the records yet")
                timer = loop.call_at(deadline, _fail, deleted, timeout_error)
                try:
                    await deleted
                finally:
                    timer.cancel()
            response["low_watermark"] = partition.low_watermark
        except MoldauError as error:
            response["error_code"] = error_code(error)


def _fail(future: "asyncio.Future[None]", error: MoldauError) -> None:
    if not future.done():
        future.set_exception(error)
