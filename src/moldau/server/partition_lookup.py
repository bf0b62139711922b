"""Lookup of the partitions in requests, and of the current leaders for clients that used a wrong broker."""

from collections.abc import Collection, Iterable, Sequence
from typing import Protocol
from uuid import UUID

from moldau.controller.topic_names import validate_topic_name
from moldau.errors import (
    FencedLeaderEpochError,
    InconsistentTopicIdError,
    InvalidTopicError,
    MoldauError,
    NotLeaderOrFollowerError,
    UnknownTopicOrPartitionError,
)
from moldau.partitions.partition import Partition
from moldau.server.api import Broker
from moldau.wire.messages import FetchResponseLeaderIdAndEpoch, FetchResponseNodeEndpoint


class NamedPartitions(Protocol):
    """The partitions of a topic in a request that describes them."""

    @property
    def name(self) -> str: ...

    @property
    def partition_indexes(self) -> Sequence[int]: ...


def unique_partitions(topics: Iterable[NamedPartitions]) -> dict[str, list[int]]:
    """Returns each partition of a request once, so that a small request cannot cause a huge response."""
    requested: dict[str, dict[int, None]] = {}
    for topic in topics:
        requested.setdefault(topic.name, {}).update(dict.fromkeys(topic.partition_indexes))
    return {name: list(indexes) for name, indexes in requested.items()}


def find_partition(broker: Broker, topic: str, index: int, topic_id: UUID | None = None) -> Partition:
    """Returns this broker's replica of a partition.

    Raises NotLeaderOrFollowerError if only other brokers have replicas. Raises InconsistentTopicIdError if the topic
    has another id than `topic_id`, for example because the topic was deleted and created again.
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


def missing_topic_error(name: str) -> MoldauError:
    """Returns the error of a topic that does not exist. Invalid names have their own error."""
    try:
        validate_topic_name(name)
    except InvalidTopicError as error:
        return error
    return UnknownTopicOrPartitionError(f"there is no topic {name}")


def topic_name(broker: Broker, name: str | None, topic_id: UUID | None) -> str | None:
    """Returns `name` if it is set, otherwise the name of the topic with the id, or None if no topic has the id."""
    if name is None and topic_id is not None:
        return broker.metadata.image.topic_names.get(topic_id)
    return name


def current_leader(
    broker: Broker, topic: str | None, index: int, error: MoldauError
) -> FetchResponseLeaderIdAndEpoch | None:
    """Returns the leader to use after `error` (KIP-951); None if it is unknown or `error` is not about the leader."""
    if topic is None or not isinstance(error, NotLeaderOrFollowerError | FencedLeaderEpochError):
        return None
    suspected = broker.availability.suspected
    if error.leader_id >= 0:
        # The partition may have a newer leader than the image, which is replaced when all partitions are up to date.
        if error.leader_id in suspected:
            return None
        return {"leader_id": error.leader_id, "leader_epoch": error.leader_epoch}
    partition = broker.metadata.image.partition(topic, index)
    if partition is None or partition.leader < 0 or partition.leader in suspected:
        return None
    if partition.leader == broker.broker_id and isinstance(error, NotLeaderOrFollowerError):
        # The lease of this broker has expired, so this broker cannot know the next leader.
        return None
    return {"leader_id": partition.leader, "leader_epoch": partition.leader_epoch}


def node_endpoints(
    broker: Broker, listener: str, leaders: Collection[FetchResponseLeaderIdAndEpoch | None]
) -> list[FetchResponseNodeEndpoint]:
    if not leaders:
        return []
    brokers = broker.metadata.image.brokers
    ids = sorted({leader["leader_id"] for leader in leaders if leader is not None})
    return [
        {"node_id": each.broker_id, "host": endpoint.host, "port": endpoint.port, "rack": each.rack}
        for each in map(brokers.get, ids)
        if each is not None
        for endpoint in each.endpoints
        if endpoint.listener == listener
    ]
