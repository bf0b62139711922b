"""When new partitions are ready: as soon as the logs of all their replicas are open. Until then, what is not, and
why."""

from collections.abc import Mapping

from moldau.controller.heartbeat_manager import BrokerHeartbeatManager
from moldau.metadata.image import MetadataImage, TopicImage


def find_unready_replicas(
    image: MetadataImage, heartbeat_manager: BrokerHeartbeatManager, topics: Mapping[str, int], offset: int
) -> dict[str, list[str]]:
    """What is not ready yet, in words, by topic. `topics` says from which partition on, and `offset` is that of the
    metadata which a broker must have taken. A topic that is gone is not waited for."""
    found: dict[str, list[str]] = {}
    for name, first in topics.items():
        topic = image.topics.get(name)
        if topic is not None:
            complaints = _unready_reasons(image, heartbeat_manager, topic, first, offset)
            if complaints:
                found[name] = complaints
    return found


def _unready_reasons(
    image: MetadataImage,
    heartbeat_manager: BrokerHeartbeatManager,
    topic: TopicImage,
    first: int,
    offset: int,
) -> list[str]:
    of_nodes: dict[int, str] = {}
    of_replicas: list[str] = []
    for partition in topic.partitions[first:]:
        for broker_id in partition.replicas:
            whole = _node_unready_reason(image, heartbeat_manager, broker_id, offset)
            if whole is not None:
                of_nodes[broker_id] = whole
                continue
            reason = heartbeat_manager.not_ready_reason(broker_id, topic.topic_id, partition.index)
            if reason is not None:
                of_replicas.append(
                    f"{topic.name}-{partition.index} on node {broker_id}: its log could not be opened: {reason}"
                )
    return [*of_replicas, *(of_nodes[broker_id] for broker_id in sorted(of_nodes))]


def _node_unready_reason(
    image: MetadataImage, heartbeat_manager: BrokerHeartbeatManager, broker_id: int, offset: int
) -> str | None:
    broker = image.brokers.get(broker_id)
    if broker is None:
        return f"node {broker_id} is not registered"
    if broker.fenced:
        return f"node {broker_id} is fenced"
    if heartbeat_manager.metadata_offset_of(broker_id) < offset:
        return f"node {broker_id} has not applied the metadata yet"
    return None
