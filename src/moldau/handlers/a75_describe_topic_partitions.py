"""DescribeTopicPartitions: returns topics and their partitions in pages, ordered by topic name.

A response has at most `response_partition_limit` partitions, and never more than 2000. If there are more partitions,
the response also has the cursor for the next request. If the request has no topic names, all topics are described. In
that case a topic that is deleted between two pages is omitted. An invalid cursor fails every topic in the request.
"""

from collections.abc import Container

from moldau.controller.topic_names import is_internal
from moldau.error_codes import ErrorCode, error_code
from moldau.metadata.image import MetadataImage, PartitionRegistration, TopicImage
from moldau.server.api import Broker, RequestContext, handles
from moldau.server.authorized_operations import NOT_REQUESTED, TOPIC_OPERATIONS
from moldau.server.cluster_view import describe_partition, reachable_ids, unavailable_leaders
from moldau.server.partition_lookup import missing_topic_error
from moldau.wire.messages import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponseCursor,
    DescribeTopicPartitionsResponseTopic,
)

PARTITIONS_MAX = 2000


@handles(versions=(0, 0))
async def describe_topic_partitions(
    request: DescribeTopicPartitionsRequest, session: RequestContext, broker: Broker
) -> DescribeTopicPartitionsResponse:
    image = broker.metadata.image
    names = _names_from_cursor(request, image)
    if names is None:
        rejected = [_missing_topic(topic.name, ErrorCode.invalid_request, NOT_REQUESTED) for topic in request.topics]
        return {"topics": rejected}
    topics: list[DescribeTopicPartitionsResponseTopic] = []
    next_cursor: DescribeTopicPartitionsResponseCursor | None = None
    partitions_left = min(max(request.response_partition_limit, 1), PARTITIONS_MAX)
    reachable = reachable_ids(image, session.connection.listener)
    unavailable = unavailable_leaders(broker)
    for name in names:
        if partitions_left == 0:
            next_cursor = {"topic_name": name, "partition_index": 0}
            break
        topic = image.topics.get(name)
        if topic is None:
            topics.append(_missing_topic(name, error_code(missing_topic_error(name)), TOPIC_OPERATIONS))
            continue
        cursor = request.cursor
        first = cursor.partition_index if cursor is not None and cursor.topic_name == name else 0
        partitions = topic.partitions[first : first + partitions_left]
        topics.append(_topic(topic, partitions, reachable, unavailable))
        if first + partitions_left < len(topic.partitions):
            next_cursor = {"topic_name": name, "partition_index": first + partitions_left}
            break
        partitions_left -= len(partitions)
    return {"topics": topics, "next_cursor": next_cursor}


def _names_from_cursor(request: DescribeTopicPartitionsRequest, image: MetadataImage) -> list[str] | None:
    """Returns the sorted topic names, starting at the topic of the cursor. Returns None if the cursor is invalid."""
    requested = {topic.name for topic in request.topics}
    cursor = request.cursor
    if cursor is None:
        return sorted(requested or image.topics)
    if cursor.partition_index < 0 or (requested and cursor.topic_name not in requested):
        return None
    return sorted(name for name in requested or image.topics if name >= cursor.topic_name)


def _missing_topic(name: str, code: int, operations: int) -> DescribeTopicPartitionsResponseTopic:
    return {
        "error_code": code,
        "name": name,
        "topic_id": None,
        "is_internal": is_internal(name),
        "topic_authorized_operations": operations,
    }


def _topic(
    topic: TopicImage,
    partitions: tuple[PartitionRegistration, ...],
    reachable: frozenset[int],
    unavailable: Container[int],
) -> DescribeTopicPartitionsResponseTopic:
    return {
        "name": topic.name,
        "topic_id": topic.topic_id,
        "is_internal": is_internal(topic.name),
        "partitions": [
            {
                **describe_partition(each, reachable, unavailable=unavailable),
                "eligible_leader_replicas": list(each.elr),
                "last_known_elr": list(each.last_known_elr),
            }
            for each in partitions
        ],
        "topic_authorized_operations": TOPIC_OPERATIONS,
    }
