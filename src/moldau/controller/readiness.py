"""When new partitions are ready: as soon as the logs of all their replicas are open. Until then, what is not, and
why."""

from collections.abc import Mapping

from moldau.controller.liveness import Sessions
from moldau.metadata.image import ClusterImage, TopicImage


def unready(
    image: ClusterImage, sessions: Sessions, topics: Mapping[str, int], offset: int
) -> dict[str, list[str]]:
    """What is not ready yet, in words, by topic. `topics` says from which partition on, and `offset` is that of the
    metadata which a broker must have taken. A topic that is gone is not waited for."""
    found: dict[str, list[str]] = {}
    for name, first in topics.items():
        topic = image.topics.get(name)
        if topic is not None:
            complaints = _complaints(image, sessions, topic, first, offset)
            if complaints:
                found[name] = complaints
    return found


def _complaints(
    image: ClusterImage, sessions: Sessions, topic: TopicImage, first: int, offset: int
) -> list[str]:
    of_nodes: dict[int, str] = {}
    of_replicas: list[str] = []
    for partition in topic.partitions[first:]:
        for broker_id in partition.replicas:
            whole = _complaint_of_node(image, sessions, broker_id, offset)
            if whole is not None:
                of_nodes[broker_id] = whole
                continue
            reason = sessions.complaint(broker_id, topic.topic_id, partition.index)
            if reason is not None:
                of_replicas.append(
                    f"{topic.name}-{partition.index} on node {broker_id}: its log could not be opened: {reason}"
                )
    return [*of_replicas, *(of_nodes[broker_id] for broker_id in sorted(of_nodes))]


def _complaint_of_node(image: ClusterImage, sessions: Sessions, broker_id: int, offset: int) -> str | None:
    broker = image.brokers.get(broker_id)
    if broker is None:
        return f"node {broker_id} is not registered"
    if broker.fenced:
        return f"node {broker_id} is fenced"
    if sessions.offset_of(broker_id) < offset:
        return f"node {broker_id} has not applied the metadata yet"
    return None
