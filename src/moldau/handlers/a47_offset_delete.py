"""OffsetDelete: deletes committed offsets of topics that no member of the group subscribes to."""

from moldau.error_codes import error_code
from moldau.errors import UnknownTopicOrPartitionError
from moldau.groups.requests import TopicPartition
from moldau.server.api import Broker, RequestContext, handles, top_level_error
from moldau.wire.messages import OffsetDeleteRequest, OffsetDeleteResponse


@handles(versions=(0, 0), error_response=top_level_error)
async def offset_delete(request: OffsetDeleteRequest, session: RequestContext, broker: Broker) -> OffsetDeleteResponse:
    image = broker.metadata.image
    existing: list[TopicPartition] = [
        (topic.name, each.partition_index)
        for topic in request.topics
        for each in topic.partitions
        if image.partition(topic.name, each.partition_index) is not None
    ]
    errors = await broker.groups.delete_offsets(request.group_id, existing)
    unknown = UnknownTopicOrPartitionError("there is no such partition")
    return {
        "topics": [
            {
                "name": topic.name,
                "partitions": [
                    {
                        "partition_index": each.partition_index,
                        "error_code": error_code(errors.get((topic.name, each.partition_index), unknown)),
                    }
                    for each in topic.partitions
                ],
            }
            for topic in request.topics
        ]
    }
