"""confluent-kafka (librdkafka) in groups."""

from collections.abc import Iterable, Mapping
from typing import Any

from confluent_kafka import (
    OFFSET_INVALID,
    Consumer,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from group_member import (
    DEADLINE_S,
    HEARTBEAT_MS,
    POLL_MS,
    Admin,
    Committed,
    Description,
    GroupMember,
    Library,
    Member,
    Options,
    Partition,
    Record,
    Refused,
)

from support.topics import QUIET

STATES = {
    ConsumerGroupState.EMPTY: "Empty",
    ConsumerGroupState.PREPARING_REBALANCING: "PreparingRebalance",
    ConsumerGroupState.COMPLETING_REBALANCING: "CompletingRebalance",
    ConsumerGroupState.STABLE: "Stable",
    ConsumerGroupState.DEAD: "Dead",
}
MAX_POLL_EXCEEDED: int = KafkaError._MAX_POLL_EXCEEDED
"""librdkafka's own code, told to an application that polls again too late."""
INFORMATION = (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN)
"""Errors that librdkafka only tells of and recovers from by itself."""
FENCED = KafkaError(KafkaError.FENCED_INSTANCE_ID)


def _refused(error: KafkaError) -> Refused:
    # What is behind a fatal error is told in its text alone.
    if error.code() == KafkaError._FATAL and FENCED.str() in error.str():
        return Refused(FENCED.code(), error)
    return Refused(error.code(), error)


def _plain(partitions: Iterable[TopicPartition]) -> list[Partition]:
    return [(each.topic, each.partition) for each in partitions]


class ConfluentMember(Member):
    def _open(self) -> None:
        options = self.options
        settings: dict[str, Any] = {
            "bootstrap.servers": self.bootstrap,
            "group.id": options.group,
            "client.id": options.client_id,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": options.auto_commit,
            "partition.assignment.strategy": options.assignor,
            "session.timeout.ms": options.session_timeout_ms,
            "heartbeat.interval.ms": HEARTBEAT_MS,
            "max.poll.interval.ms": max(options.max_poll_interval_ms, options.session_timeout_ms),
            "topic.metadata.refresh.interval.ms": 200 if options.pattern else 60_000,
            "fetch.wait.max.ms": 100,
            "reconnect.backoff.ms": 20,
            "reconnect.backoff.max.ms": 100,
            "coordinator.query.interval.ms": 1000,
            **QUIET,
        }
        if options.instance_id is not None:
            settings["group.instance.id"] = options.instance_id
        self._consumer = Consumer(settings)
        if options.partitions:
            self._consumer.assign([TopicPartition(*each) for each in options.partitions])
            return
        self._consumer.subscribe(
            [f"^{options.pattern}"] if options.pattern else list(options.topics),
            on_assign=lambda _, partitions: self._tell("assigned", _plain(partitions)),
            on_revoke=lambda _, partitions: self._tell("revoked", _plain(partitions)),
            on_lost=lambda _, partitions: self._tell("lost", _plain(partitions)),
        )

    def _poll(self) -> list[Record]:
        records = []
        for message in self._consumer.consume(500, timeout=POLL_MS / 1000):
            error = message.error()
            if error is None:
                place: Any = (message.topic(), message.partition(), message.offset(), message.value())
                records.append(Record(*place))
            elif error.code() == KafkaError._FATAL:
                raise _refused(error)
            elif error.code() not in INFORMATION:
                self.errors.append(_refused(error))
        return records

    def _assigned(self) -> Iterable[Partition]:
        return _plain(self._consumer.assignment())

    def _commit(self, offsets: Mapping[Partition, Committed] | None) -> None:
        wanted = {}
        if offsets is not None:
            wanted["offsets"] = [
                TopicPartition(topic, partition, offset, metadata)
                for (topic, partition), (offset, metadata) in offsets.items()
            ]
        try:
            done = self._consumer.commit(asynchronous=False, **wanted)
        except KafkaException as error:
            raise _refused(error.args[0]) from error
        for each in done:
            if each.error is not None:
                raise Refused(each.error.code(), each.error)

    def _committed(self, partition: Partition) -> int | None:
        (found,) = self._consumer.committed([TopicPartition(*partition)], timeout=DEADLINE_S)
        return None if found.offset == OFFSET_INVALID else found.offset

    def _close(self) -> None:
        self._consumer.close()


class ConfluentAdmin(Admin):
    def __init__(self, bootstrap: str) -> None:
        self._admin = AdminClient({"bootstrap.servers": bootstrap, **QUIET})

    def groups(self) -> dict[str, str | None]:
        listed = self._admin.list_consumer_groups().result(DEADLINE_S)
        assert not listed.errors
        return {each.group_id: STATES[each.state] for each in listed.valid}

    def describe(self, group: str) -> Description:
        try:
            found = self._admin.describe_consumer_groups([group])[group].result(DEADLINE_S)
        except KafkaException as error:
            raise _refused(error.args[0]) from error
        members = [
            GroupMember(each.client_id, each.group_instance_id, frozenset(_plain(each.assignment.topic_partitions)))
            for each in found.members
        ]
        return Description(STATES[found.state], found.partition_assignor, members)

    def offsets(self, group: str) -> dict[Partition, Committed]:
        asked = ConsumerGroupTopicPartitions(group)
        found = self._admin.list_consumer_group_offsets([asked])[group].result(DEADLINE_S)
        return {
            (each.topic, each.partition): Committed(each.offset, each.metadata or "") for each in found.topic_partitions
        }

    def set_offsets(self, group: str, offsets: Mapping[Partition, int]) -> None:
        wanted = [TopicPartition(*partition, offset) for partition, offset in offsets.items()]
        asked = ConsumerGroupTopicPartitions(group, wanted)
        try:
            done = self._admin.alter_consumer_group_offsets([asked])[group].result(DEADLINE_S)
        except KafkaException as error:
            raise _refused(error.args[0]) from error
        for each in done.topic_partitions:
            if each.error is not None:
                raise Refused(each.error.code(), each.error)

    def delete_offsets(self, group: str, partitions: Iterable[Partition]) -> None:
        raise NotImplementedError

    def delete(self, group: str) -> None:
        try:
            self._admin.delete_consumer_groups([group])[group].result(DEADLINE_S)
        except KafkaException as error:
            raise _refused(error.args[0]) from error

    def close(self) -> None:
        pass


class Confluent(Library):
    name = "confluent-kafka"
    assignors = ("range", "roundrobin", "cooperative-sticky")
    lacks = {"delete offsets": "confluent-kafka's admin client cannot delete single offsets"}

    def member(self, bootstrap: str, options: Options) -> Member:
        return ConfluentMember(bootstrap, options)

    def admin(self, bootstrap: str) -> Admin:
        return ConfluentAdmin(bootstrap)
