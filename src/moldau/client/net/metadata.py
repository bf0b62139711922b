"""Cluster metadata of the client: brokers, topics and leaders, merged from Metadata responses."""

from collections.abc import Container, Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple
from uuid import UUID

from moldau.client.errors import ErrorCode, to_error_code
from moldau.client.record import TopicPartition
from moldau.wire.codec import Message

NO_LEADER = -1


class BrokerInfo(NamedTuple):
    node_id: int
    host: str
    port: int
    rack: str | None = None


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    index: int
    leader: int
    """The node id of the leader; NO_LEADER if there is none."""
    leader_epoch: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    offline: tuple[int, ...] = ()


class TopicInfo(NamedTuple):
    name: str
    topic_id: UUID | None
    partitions: tuple[PartitionInfo, ...]
    """The partitions, ordered by index."""
    is_internal: bool = False

    def partition(self, index: int) -> PartitionInfo | None:
        if 0 <= index < len(self.partitions) and self.partitions[index].index == index:
            return self.partitions[index]
        return next((each for each in self.partitions if each.index == index), None)


class Metadata:
    def __init__(self) -> None:
        self.cluster_id: str | None = None
        self.controller_id = -1
        self.brokers: dict[int, BrokerInfo] = {}
        self.topics: dict[str, TopicInfo] = {}
        self.topic_errors: dict[str, ErrorCode] = {}
        """The error of each requested topic that is not in `topics`."""
        self._removed_topics: dict[str, TopicInfo] = {}
        """Topics that a broker reported as missing. They keep their leader epochs, because the report may be stale."""

    def partition(self, partition: TopicPartition) -> PartitionInfo | None:
        topic = self.topics.get(partition.topic)
        return None if topic is None else topic.partition(partition.partition)

    def update(self, response: Message, *, all_topics: bool) -> bool:
        """Merges a response and returns whether brokers or topics have changed.

        If all topics were requested (`all_topics`), a topic that is not in the response was deleted.
        """
        before = (self.brokers, dict(self.topics))
        self.cluster_id = response.cluster_id
        self.controller_id = response.controller_id
        self.brokers = {
            each.node_id: BrokerInfo(each.node_id, each.host, each.port, each.rack) for each in response.brokers
        }
        known = self.topics
        if all_topics:
            self.topics, self.topic_errors = {}, {}
            names = {topic.name for topic in response.topics}
            self._removed_topics = {name: topic for name, topic in self._removed_topics.items() if name in names}
        for topic in response.topics:
            self._update_topic(topic, known.get(topic.name))
        return before != (self.brokers, self.topics)

    def retain_topics(self, names: Container[str]) -> None:
        """Removes all topics except these, because the other topics are no longer refreshed."""
        self.topics = {name: topic for name, topic in self.topics.items() if name in names}
        self.topic_errors = {name: code for name, code in self.topic_errors.items() if name in names}
        self._removed_topics = {name: topic for name, topic in self._removed_topics.items() if name in names}

    def learn_leader(
        self, partition: TopicPartition, leader: int, leader_epoch: int, endpoints: Iterable[BrokerInfo] = ()
    ) -> None:
        """Sets the leader that a broker named in a response, if `leader_epoch` is newer than the known epoch.

        `endpoints` are addresses from the same response (KIP-951). They are used for a leader that is not known yet.
        """
        topic, known = self.topics.get(partition.topic), self.partition(partition)
        if topic is None or known is None or leader_epoch <= known.leader_epoch:
            return
        if leader not in self.brokers:
            self.brokers = {**self.brokers, **{each.node_id: each for each in endpoints if each.node_id == leader}}
        if leader not in self.brokers:
            return
        changed = replace(known, leader=leader, leader_epoch=leader_epoch)
        partitions = tuple(changed if each is known else each for each in topic.partitions)
        self.topics[partition.topic] = topic._replace(partitions=partitions)

    def _update_topic(self, topic: Message, known: TopicInfo | None) -> None:
        name = topic.name
        if topic.error_code not in (ErrorCode.none, ErrorCode.leader_not_available):
            self._mark_missing(name, known, to_error_code(topic.error_code))
            return
        if not topic.partitions:
            # The topic is being created and cannot be written to yet.
            self._mark_missing(name, known, ErrorCode.leader_not_available)
            return
        self.topic_errors.pop(name, None)
        removed = self._removed_topics.pop(name, None)
        known = known or removed
        same = known if known is not None and known.topic_id == topic.topic_id else None
        partitions = sorted((_merge_partition(each, same) for each in topic.partitions), key=lambda each: each.index)
        self.topics[name] = TopicInfo(name, topic.topic_id, tuple(partitions), is_internal=topic.is_internal)

    def _mark_missing(self, name: str, known: TopicInfo | None, code: ErrorCode) -> None:
        self.topics.pop(name, None)
        self.topic_errors[name] = code
        # Keep only a topic with an id: else a topic that reappears cannot be told from a new topic of the same name.
        if known is not None and known.topic_id is not None:
            self._removed_topics[name] = known


def _merge_partition(update: Message, topic: TopicInfo | None) -> PartitionInfo:
    """Returns the state with the newer leader epoch, because the metadata of a broker may be stale."""
    known = None if topic is None else topic.partition(update.partition_index)
    if known is not None and update.leader_epoch < known.leader_epoch:
        return known
    return PartitionInfo(
        update.partition_index,
        update.leader_id,
        update.leader_epoch,
        tuple(update.replica_nodes),
        tuple(update.isr_nodes),
        tuple(update.offline_replicas),
    )
