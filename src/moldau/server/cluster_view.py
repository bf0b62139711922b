"""The cluster as clients of one listener see it: the reachable brokers, and the partitions on these brokers."""

from collections.abc import Collection, Container

from moldau.metadata.image import NO_LEADER, BrokerRegistration, Endpoint, MetadataImage, PartitionRegistration
from moldau.server.api import Broker
from moldau.wire.messages import MetadataResponsePartition


def reachable_brokers(
    image: MetadataImage, listener: str, *, include_fenced: bool = False
) -> list[tuple[BrokerRegistration, Endpoint]]:
    """Returns the brokers that have an endpoint on the listener, with this endpoint, in the order of broker ids."""
    return [
        (broker, endpoint)
        for _, broker in sorted(image.brokers.items())
        if include_fenced or not broker.fenced
        for endpoint in broker.endpoints
        if endpoint.listener == listener
    ]


def reachable_ids(image: MetadataImage, listener: str) -> frozenset[int]:
    return frozenset(broker.broker_id for broker, _ in reachable_brokers(image, listener))


def has_listener(broker_id: int, image: MetadataImage, listener: str) -> bool:
    broker = image.brokers.get(broker_id)
    return broker is not None and any(endpoint.listener == listener for endpoint in broker.endpoints)


def advertised_controller_id(image: MetadataImage, listener: str, own_id: int) -> int:
    """Returns the id of the node to which clients send changes. -1 if no node is reachable.

    Every node forwards changes to the active controller, so this is the node itself: it has just responded, while the
    active controller may have died a moment ago. (Kafka returns any live broker.)
    """
    reachable = [each.broker_id for each, _ in reachable_brokers(image, listener)]
    if own_id in reachable:
        return own_id
    return reachable[0] if reachable else -1


def unavailable_leaders(broker: Broker) -> Collection[int]:
    """Returns the brokers that must not be named as leaders: those whose processes have probably ended, and this broker
    if its lease has expired.

    The controller may have elected other leaders already. A client that gets no leader retries, also with other
    brokers.
    """
    suspected = broker.availability.suspected
    return suspected if broker.lifecycle.lease.is_valid() else {broker.broker_id, *suspected}


def describe_partition(
    partition: PartitionRegistration, reachable: Container[int], *, unavailable: Container[int] = ()
) -> MetadataResponsePartition:
    """Builds the fields that Metadata and DescribeTopicPartitions have in common.

    `reachable` contains the ids of the brokers that have an endpoint on the listener. If the leader is in `unavailable`
    or is not reachable, the partition is described without a leader.
    """
    has_leader = partition.leader not in unavailable and partition.leader in reachable
    return {
        "partition_index": partition.index,
        "leader_id": partition.leader if has_leader else NO_LEADER,
        "leader_epoch": partition.leader_epoch,
        "replica_nodes": partition.replicas,
        "isr_nodes": partition.isr,
        "offline_replicas": [replica for replica in partition.replicas if replica not in reachable],
    }
