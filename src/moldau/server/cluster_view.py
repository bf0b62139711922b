"""The cluster as clients of one listener see it: the brokers they can reach, and partitions in terms of those."""

from collections.abc import Container
from typing import Any

from moldau.metadata.image import (
    NO_LEADER,
    BrokerRegistration,
    Endpoint,
    MetadataImage,
    PartitionRegistration,
)
from moldau.server.broker import Broker


def reachable_brokers(
    image: MetadataImage, listener: str, *, include_fenced: bool = False
) -> list[tuple[BrokerRegistration, Endpoint]]:
    """The brokers with an endpoint of this listener, by id."""
    return [
        (broker, endpoint)
        for _, broker in sorted(image.brokers.items())
        if include_fenced or not broker.fenced
        for endpoint in broker.endpoints
        if endpoint.listener == listener
    ]


def advertised_controller_id(image: MetadataImage, listener: str, own_id: int) -> int:
    """Whom clients are told to ask for changes: the active controller's node where they can reach it. Any other would
    do, since all hand on what they cannot decide: then this one, or the first that can be reached."""
    reachable = [each.broker_id for each, _ in reachable_brokers(image, listener)]
    for wanted in (image.controller_id, own_id):
        if wanted in reachable:
            return wanted
    return reachable[0] if reachable else -1


def broker_without_lease(broker: Broker) -> int | None:
    """This broker where it has lost its lease: others may have been elected, and it would be the last to know. Clients
    that are told of no leader ask again, and others."""
    return None if broker.lifecycle.lease.is_valid() else broker.broker_id


def reachable_ids(image: MetadataImage, listener: str) -> frozenset[int]:
    """The brokers that clients of this listener can talk to."""
    return frozenset(broker.broker_id for broker, _ in reachable_brokers(image, listener))


def describe_partition(
    partition: PartitionRegistration, reachable: Container[int], *, excluded_leader_id: int | None = None
) -> dict[str, Any]:
    """What Metadata and DescribeTopicPartitions both tell of a partition. `reachable` are the brokers that the client
    can talk to, found once for all partitions of an answer."""
    leads = partition.leader != excluded_leader_id and partition.leader in reachable
    return {
        "error_code": 0,
        "partition_index": partition.index,
        "leader_id": partition.leader if leads else NO_LEADER,
        "leader_epoch": partition.leader_epoch,
        "replica_nodes": partition.replicas,
        "isr_nodes": partition.isr,
        "offline_replicas": [replica for replica in partition.replicas if replica not in reachable],
    }


def has_listener(broker_id: int, image: MetadataImage, listener: str) -> bool:
    broker = image.brokers.get(broker_id)
    return broker is not None and any(endpoint.listener == listener for endpoint in broker.endpoints)
