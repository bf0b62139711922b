"""The cluster as clients of one listener see it: the brokers they can reach, and partitions in terms of those."""

from typing import Any

from moldau.metadata.image import NO_LEADER, BrokerImage, ClusterImage, Endpoint, PartitionImage


def reachable_brokers(
    image: ClusterImage, listener: str, *, fenced_too: bool = False
) -> list[tuple[BrokerImage, Endpoint]]:
    """The brokers with an endpoint of this listener, by id."""
    return [
        (broker, endpoint)
        for _, broker in sorted(image.brokers.items())
        if fenced_too or not broker.fenced
        for endpoint in broker.endpoints
        if endpoint.listener == listener
    ]


def describe_partition(partition: PartitionImage, image: ClusterImage, listener: str) -> dict[str, Any]:
    """What Metadata and DescribeTopicPartitions both tell of a partition."""
    return {
        "error_code": 0,
        "partition_index": partition.index,
        "leader_id": partition.leader if _is_reachable(partition.leader, image, listener) else NO_LEADER,
        "leader_epoch": partition.leader_epoch,
        "replica_nodes": partition.replicas,
        "isr_nodes": partition.in_sync,
        "offline_replicas": [
            replica
            for replica in partition.replicas
            if not _is_reachable(replica, image, listener) or image.brokers[replica].fenced
        ],
    }


def _is_reachable(broker_id: int, image: ClusterImage, listener: str) -> bool:
    broker = image.brokers.get(broker_id)
    return broker is not None and any(endpoint.listener == listener for endpoint in broker.endpoints)
