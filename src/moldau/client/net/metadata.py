"""What a client knows of a cluster: brokers, topics, leaders. Answers to Metadata requests are merged into it."""

from collections.abc import Container
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
    """-1 while there is none."""
    leader_epoch: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    offline: tuple[int, ...] = ()


class TopicInfo(NamedTuple):
    name: str
    topic_id: UUID | None
    partitions: tuple[PartitionInfo, ...]
    """In the order of their numbers."""
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
        """Those that exist, as far as they were asked for."""
        self.topic_errors: dict[str, ErrorCode] = {}
        """Why the others are not there."""
        self._removed_topics: dict[str, TopicInfo] = {}
        """Those that were there before a broker, which may have heard of less than others, said that they are not."""

    def partition(self, partition: TopicPartition) -> PartitionInfo | None:
        topic = self.topics.get(partition.topic)
        return None if topic is None else topic.partition(partition.partition)

    def update(self, answer: Message, *, all_topics: bool) -> bool:
        """Merges an answer; one to a request for all topics is also the news of those that are gone.

        Says whether brokers or topics have changed.
        """
        before = (self.brokers, dict(self.topics))
        self.cluster_id = answer.cluster_id
        self.controller_id = answer.controller_id
        self.brokers = {
            each.node_id: BrokerInfo(each.node_id, each.host, each.port, each.rack) for each in answer.brokers
        }
        known = self.topics
        if all_topics:
            self.topics, self.topic_errors = {}, {}
            told = {topic.name for topic in answer.topics}
            self._removed_topics = {
                name: topic for name, topic in self._removed_topics.items() if name in told
            }
        for topic in answer.topics:
            self._update_topic(topic, known.get(topic.name))
        return before != (self.brokers, self.topics)

    def retain_topics(self, names: Container[str]) -> None:
        """Drops what nobody keeps fresh, so that whoever needs it again asks for it."""
        self.topics = {name: topic for name, topic in self.topics.items() if name in names}
        self.topic_errors = {name: code for name, code in self.topic_errors.items() if name in names}
        self._removed_topics = {name: topic for name, topic in self._removed_topics.items() if name in names}

    def learn_leader(self, partition: TopicPartition, leader: int, leader_epoch: int) -> None:
        """Takes over a leader that a broker named beside an error, if that is news."""
        topic, known = self.topics.get(partition.topic), self.partition(partition)
        if topic is None or known is None or leader_epoch <= known.leader_epoch or leader not in self.brokers:
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
            # It is being created: there is nothing yet that could be written to.
            self._mark_missing(name, known, ErrorCode.leader_not_available)
            return
        self.topic_errors.pop(name, None)
        missed = self._removed_topics.pop(name, None)
        known = known or missed
        same = known if known is not None and known.topic_id == topic.topic_id else None
        partitions = sorted(
            (_merge_partition(each, same) for each in topic.partitions), key=lambda each: each.index
        )
        self.topics[name] = TopicInfo(name, topic.topic_id, tuple(partitions), is_internal=topic.is_internal)

    def _mark_missing(self, name: str, known: TopicInfo | None, code: ErrorCode) -> None:
        self.topics.pop(name, None)
        self.topic_errors[name] = code
        # Without an id nobody could tell whether the topic that comes back is the same.
        if known is not None and known.topic_id is not None:
            self._removed_topics[name] = known


def _merge_partition(told: Message, topic: TopicInfo | None) -> PartitionInfo:
    """What is told of a partition, unless more recent things are known: not all brokers hear of news at once."""
    known = None if topic is None else topic.partition(told.partition_index)
    if known is not None and told.leader_epoch < known.leader_epoch:
        return known
    return PartitionInfo(
        told.partition_index,
        told.leader_id,
        told.leader_epoch,
        tuple(told.replica_nodes),
        tuple(told.isr_nodes),
        tuple(told.offline_replicas),
    )
