"""Readiness of new replicas, as the brokers report it in heartbeats."""

from collections.abc import Mapping
from typing import NamedTuple

from moldau.controller.heartbeat_manager import BrokerHeartbeatManager
from moldau.metadata.image import MetadataImage, TopicImage


class UnreadyReplicas(NamedTuple):
    """The replicas of a topic that are not ready."""

    reasons: list[str]
    is_offline: bool
    """Whether the topic has a partition whose log no live broker could open."""


def find_unready_replicas(
    image: MetadataImage, heartbeat_manager: BrokerHeartbeatManager, topics: Mapping[str, int], offset: int
) -> dict[str, UnreadyReplicas]:
    """Returns the replicas on live brokers that are not ready, by topic.

    A replica is ready when its broker has applied the metadata up to `offset` and has opened the log. A fenced broker
    is not waited for: it opens its logs when it returns. `topics` maps each topic to the first partition to check.
    Deleted topics are skipped.
    """
    live = frozenset(broker_id for broker_id, broker in image.brokers.items() if not broker.fenced)
    behind = frozenset(each for each in live if heartbeat_manager.metadata_offset_of(each) < offset)
    unready = {}
    for name, first in topics.items():
        topic = image.topics.get(name)
        if topic is not None:
            replicas = _unready_replicas(topic, first, heartbeat_manager, live, behind)
            if replicas.reasons:
                unready[name] = replicas
    return unready


def _unready_replicas(
    topic: TopicImage,
    first_partition: int,
    heartbeat_manager: BrokerHeartbeatManager,
    live: frozenset[int],
    behind: frozenset[int],
) -> UnreadyReplicas:
    reasons: list[str] = []
    waiting_for: set[int] = set()
    is_offline = False
    for partition in topic.partitions[first_partition:]:
        replicas = live.intersection(partition.replicas)
        waiting_for |= replicas & behind
        failures = {
            broker_id: reason
            for broker_id in sorted(replicas - behind)
            if (reason := heartbeat_manager.not_ready_reason(broker_id, topic.topic_id, partition.index)) is not None
        }
        reasons += [
            f"{topic.name}-{partition.index} on node {broker_id}: its log could not be opened: {reason}"
            for broker_id, reason in failures.items()
        ]
        is_offline |= bool(failures) and len(failures) == len(replicas)
    reasons += [f"node {broker_id} has not applied the metadata yet" for broker_id in sorted(waiting_for)]
    return UnreadyReplicas(reasons, is_offline)
