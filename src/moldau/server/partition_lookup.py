"""Lookup of the partitions that requests name, and of the leaders that clients should go to instead."""

from collections.abc import Iterable
from uuid import UUID

from moldau.errors import (
    FencedLeaderEpochError,
    InconsistentTopicIdError,
    MoldauError,
    NotLeaderOrFollowerError,
    UnknownTopicOrPartitionError,
)
from moldau.partitions.partition import Partition
from moldau.server.broker import Broker
from moldau.wire.messages import FetchResponseLeaderIdAndEpoch, FetchResponseNodeEndpoint


def find_partition(broker: Broker, topic: str, index: int, topic_id: UUID | None = None) -> Partition:
    """Returns this broker's replica of a partition.

    Raises NotLeaderOrFollowerError if only other brokers have replicas, and InconsistentTopicIdError if `topic_id` is
    not the topic's: it may have been deleted and created again.
    """
    partition = broker.replica_manager.get(topic, index)
    if partition is None:
        registration = broker.metadata.image.partition(topic, index)
        if registration is None:
            raise UnknownTopicOrPartitionError(f"there is no partition {topic}-{index}")
        raise NotLeaderOrFollowerError(
            f"this broker has no replica of {topic}-{index}", registration.leader, registration.leader_epoch
        )
    if topic_id is not None and topic_id != partition.topic_id:
        raise InconsistentTopicIdError(f"{topic} does not have the id {topic_id}")
    return partition


def topic_name(broker: Broker, name: str | None, topic_id: UUID | None) -> str | None:
    """Returns the name of a topic that a request names or gives by id; None if no topic has the id."""
    if name is None and topic_id is not None:
        return broker.metadata.image.topic_names.get(topic_id)
    return name


def current_leader(
    broker: Broker, topic: str | None, index: int, error: MoldauError
) -> FetchResponseLeaderIdAndEpoch | None:
    """Returns the leader to retry with after `error` (KIP-951); None if that would not help or none is known."""
    if topic is None or not isinstance(error, NotLeaderOrFollowerError | FencedLeaderEpochError):
        return None
    if isinstance(error, NotLeaderOrFollowerError) and error.leader_id >= 0:
        return {"leader_id": error.leader_id, "leader_epoch": error.leader_epoch}
    partition = broker.metadata.image.partition(topic, index)
    if partition is None or partition.leader < 0:
        return None
    if partition.leader == broker.broker_id and isinstance(error, NotLeaderOrFollowerError):
        # This broker's lease has expired: it cannot know the next leader.
        return None
    return {"leader_id": partition.leader, "leader_epoch": partition.leader_epoch}


def node_endpoints(
    broker: Broker, listener: str, leaders: Iterable[FetchResponseLeaderIdAndEpoch | None]
) -> list[FetchResponseNodeEndpoint]:
    """Returns the addresses of leaders for clients of a listener."""
    brokers = broker.metadata.image.brokers
    ids = sorted({leader["leader_id"] for leader in leaders if leader is not None})
    return [
        {"node_id": each.broker_id, "host": endpoint.host, "port": endpoint.port, "rack": each.rack}
        for each in map(brokers.get, ids)
        if each is not None
        for endpoint in each.endpoints
        if endpoint.listener == listener
    ]
