"""Finding the partition that a request names, by topic name or by topic id."""

from typing import Any
from uuid import UUID

from moldau.errors import UnknownTopicIdError, UnknownTopicOrPartitionError
from moldau.partitions.partition import Partition
from moldau.requests.broker import Broker


def find_partition(broker: Broker, topic: str, index: int) -> Partition:
    partition = broker.partitions.get(topic, index)
    if partition is None:
        raise UnknownTopicOrPartitionError(f"there is no partition {topic}-{index} on this node")
    return partition


def topic_name(broker: Broker, topic: Any) -> str:
    """The name of the topic in a request that has a `name`, or (newer versions) a `topic_id`."""
    name: str | None = topic.get("name")
    if name is not None:
        return name
    return name_of_id(broker, topic.get("topic_id"))


def name_of_id(broker: Broker, topic_id: UUID | None) -> str:
    name = None if topic_id is None else broker.metadata.image.topic_names.get(topic_id)
    if name is None:
        raise UnknownTopicIdError(f"there is no topic with the id {topic_id}")
    return name
