"""Finding the partition that a request names, by topic name or by topic id."""

from uuid import UUID

from moldau.errors import (
    InconsistentTopicIdError,
    NotLeaderOrFollowerError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
)
from moldau.partitions.partition import Partition
from moldau.server.broker import Broker


def find_partition(broker: Broker, topic: str, index: int, topic_id: UUID | None = None) -> Partition:
    """The partition, of the topic with this id where one is given: a topic may have been created anew. Raises
    NotLeaderError where other nodes have it."""
    partition = broker.partitions.get(topic, index)
    if partition is None:
        elsewhere = broker.metadata.image.partition(topic, index)
        if elsewhere is None:
            raise UnknownTopicOrPartitionError(f"there is no partition {topic}-{index}")
        raise NotLeaderOrFollowerError(
            f"this node has no replica of {topic}-{index}", elsewhere.leader, elsewhere.leader_epoch
        )
    if topic_id is not None and topic_id != partition.topic_id:
        raise InconsistentTopicIdError(f"{topic} no longer has the id {topic_id}")
    return partition


def topic_name_for_id(broker: Broker, topic_id: UUID | None) -> str:
    name = None if topic_id is None else broker.metadata.image.topic_names.get(topic_id)
    if name is None:
        raise UnknownTopicIdError(f"there is no topic with the id {topic_id}")
    return name
