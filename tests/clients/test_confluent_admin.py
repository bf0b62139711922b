"""confluent-kafka's admin client, unchanged."""

from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer, TopicCollection, TopicPartition
from confluent_kafka.admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from support.topics import QUIET, Topics, unique, wait_for_external_broker

DEADLINE_S = 20


def code_of(refused: pytest.ExceptionInfo[KafkaException]) -> int:
    code: int = refused.value.args[0].code()
    return code


def create_error(topics: Topics, name: str, **more: Any) -> int:
    with pytest.raises(KafkaException) as refused:
        topics.admin.create_topics([NewTopic(name, **more)])[name].result(DEADLINE_S)
    return code_of(refused)


def configs(topics: Topics, topic: str) -> dict[str, ConfigEntry]:
    resource = ConfigResource(ResourceType.TOPIC, topic)
    found: dict[str, ConfigEntry] = topics.admin.describe_configs([resource])[resource].result(DEADLINE_S)
    return found


def test_a_topic_is_created_described_and_deleted(topics: Topics) -> None:
    name = topics.create(partitions=3)
    description = topics.admin.describe_topics(TopicCollection([name]))[name].result(DEADLINE_S)
    assert description.name == name
    assert not description.is_internal
    assert [partition.id for partition in description.partitions] == [0, 1, 2]
    (broker,) = topics.admin.describe_cluster().result(DEADLINE_S).nodes
    for partition in description.partitions:
        assert partition.leader.id == broker.id
        assert [node.id for node in partition.replicas] == [broker.id]
        assert [node.id for node in partition.isr] == [broker.id]
    topics.admin.delete_topics([name])[name].result(DEADLINE_S)
    wait_for_external_broker()
    assert name not in topics.admin.list_topics(timeout=DEADLINE_S).topics
    with pytest.raises(KafkaException) as refused:
        topics.admin.describe_topics(TopicCollection([name]))[name].result(DEADLINE_S)
    assert code_of(refused) == KafkaError.UNKNOWN_TOPIC_OR_PART


def test_partitions_added_to_a_topic_with_many_are_seen_at_once(topics: Topics) -> None:
    name = topics.create(partitions=120)

    def listed() -> list[int]:
        found = topics.admin.list_topics(name, timeout=DEADLINE_S).topics[name]
        return sorted(found.partitions)

    assert listed() == listed() == list(range(120))
    topics.admin.create_partitions([NewPartitions(name, 121)])[name].result(DEADLINE_S)
    assert listed() == list(range(121))
    assert len(topics.admin.list_topics(timeout=DEADLINE_S).topics[name].partitions) == 121


def test_a_topic_of_the_same_name_may_be_created_after_deletion(topics: Topics, bootstrap: str) -> None:
    name = topics.create()
    sender = Producer({"bootstrap.servers": bootstrap, **QUIET})
    sender.produce(name, b"old")
    assert sender.flush(DEADLINE_S) == 0
    first = topics.admin.describe_topics(TopicCollection([name]))[name].result(DEADLINE_S).topic_id
    topics.admin.delete_topics([name])[name].result(DEADLINE_S)
    topics.admin.create_topics([NewTopic(name, 1, 1)])[name].result(DEADLINE_S)
    wait_for_external_broker()
    second = topics.admin.describe_topics(TopicCollection([name]))[name].result(DEADLINE_S).topic_id
    assert str(first) != str(second)
    latest = topics.admin.list_offsets({TopicPartition(name, 0): OffsetSpec.latest()})
    assert latest[TopicPartition(name, 0)].result(DEADLINE_S).offset == 0


def test_topics_that_cannot_be_created_are_rejected_by_name(topics: Topics) -> None:
    assert create_error(topics, topics.create(), num_partitions=1) == KafkaError.TOPIC_ALREADY_EXISTS
    assert create_error(topics, "no spaces!", num_partitions=1) == KafkaError.TOPIC_EXCEPTION
    assert create_error(topics, "x" * 250, num_partitions=1) == KafkaError.TOPIC_EXCEPTION
    assert create_error(topics, "..", num_partitions=1) == KafkaError.TOPIC_EXCEPTION
    assert create_error(topics, unique(), num_partitions=0) == KafkaError.INVALID_PARTITIONS
    one = {"num_partitions": 1}
    assert create_error(topics, unique(), **one, replication_factor=3) == KafkaError.INVALID_REPLICATION_FACTOR
    assert create_error(topics, unique(), **one, config={"no.such": "1"}) == KafkaError.INVALID_CONFIG
    assert create_error(topics, unique(), **one, config={"retention.ms": "soon"}) == KafkaError.INVALID_CONFIG
    assert create_error(topics, unique(), **one, config={"cleanup.policy": "burn"}) == KafkaError.INVALID_CONFIG


def test_a_colliding_topic_name_is_rejected(topics: Topics) -> None:
    name = unique("a.b")
    topics.admin.create_topics([NewTopic(name, 1, 1)])[name].result(DEADLINE_S)
    wait_for_external_broker()
    assert create_error(topics, name.replace(".", "_"), num_partitions=1) == KafkaError.TOPIC_EXCEPTION


def test_validation_creates_nothing(topics: Topics) -> None:
    name = unique()
    topics.admin.create_topics([NewTopic(name, 2, 1)], validate_only=True)[name].result(DEADLINE_S)
    assert name not in topics.admin.list_topics(timeout=DEADLINE_S).topics


def test_default_partitions_and_manual_replicas(topics: Topics) -> None:
    name = unique()
    topics.admin.create_topics([NewTopic(name)])[name].result(DEADLINE_S)
    wait_for_external_broker()
    assert len(topics.admin.list_topics(name, timeout=DEADLINE_S).topics[name].partitions) == 1
    (broker,) = topics.admin.describe_cluster().result(DEADLINE_S).nodes
    placed = unique()
    new = NewTopic(placed, num_partitions=2, replica_assignment=[[broker.id], [broker.id]])
    topics.admin.create_topics([new])[placed].result(DEADLINE_S)
    wait_for_external_broker()
    assert len(topics.admin.list_topics(placed, timeout=DEADLINE_S).topics[placed].partitions) == 2


def test_deleting_a_missing_topic_is_an_error(topics: Topics) -> None:
    name = unique("missing")
    with pytest.raises(KafkaException) as refused:
        topics.admin.delete_topics([name])[name].result(DEADLINE_S)
    assert code_of(refused) == KafkaError.UNKNOWN_TOPIC_OR_PART


def test_the_cluster_is_described(topics: Topics, bootstrap: str) -> None:
    cluster = topics.admin.describe_cluster().result(DEADLINE_S)
    assert len(cluster.cluster_id) == 22
    (node,) = cluster.nodes
    assert f"{node.host}:{node.port}" == bootstrap
    assert cluster.controller.id == node.id


def test_metadata_of_all_topics_names_every_one(topics: Topics, bootstrap: str) -> None:
    names = {topics.create(partitions=2) for _ in range(5)}
    metadata = topics.admin.list_topics(timeout=DEADLINE_S)
    assert names <= set(metadata.topics)
    for name in names:
        assert metadata.topics[name].error is None
        assert set(metadata.topics[name].partitions) == {0, 1}
    assert [f"{b.host}:{b.port}" for b in metadata.brokers.values()] == [bootstrap]


def test_configs_show_their_sources(topics: Topics) -> None:
    found = configs(topics, topics.create(retention_ms=1234567, cleanup_policy="compact,delete"))
    assert found["retention.ms"].value == "1234567"
    assert found["retention.ms"].source == ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    assert not found["retention.ms"].is_default
    assert found["cleanup.policy"].value == "compact,delete"
    assert found["compression.type"].value == "producer"
    assert found["compression.type"].is_default
    assert found["max.message.bytes"].value == "1048588"
    assert found["segment.bytes"].value == "1073741824"
    assert found["message.timestamp.type"].value == "CreateTime"
    assert not any(entry.is_read_only or entry.is_sensitive for entry in found.values())


def test_a_brokers_configs_are_described(topics: Topics) -> None:
    (broker,) = topics.admin.describe_cluster().result(DEADLINE_S).nodes
    resource = ConfigResource(ResourceType.BROKER, str(broker.id))
    found = topics.admin.describe_configs([resource])[resource].result(DEADLINE_S)
    assert found["message.max.bytes"].value == "1048588"
    assert found["num.partitions"].value == "1"
    assert {"log.retention.ms", "auto.create.topics.enable", "log.dirs", "listeners"} <= set(found)


def test_unknown_resources_have_no_configs(topics: Topics) -> None:
    with pytest.raises(KafkaException) as refused:
        configs(topics, unique("missing"))
    assert code_of(refused) == KafkaError.UNKNOWN_TOPIC_OR_PART


def incremental(topics: Topics, topic: str, *entries: ConfigEntry) -> None:
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=list(entries))
    topics.admin.incremental_alter_configs([resource])[resource].result(DEADLINE_S)
    wait_for_external_broker()


def change(name: str, value: str | None, operation: AlterConfigOpType) -> ConfigEntry:
    return ConfigEntry(name, value, incremental_operation=operation)


def test_configs_are_altered_one_by_one(topics: Topics) -> None:
    topic = topics.create(retention_ms=5000, segment_bytes=2_000_000)
    incremental(topics, topic, change("retention.ms", "6000", AlterConfigOpType.SET))
    assert configs(topics, topic)["retention.ms"].value == "6000"
    assert configs(topics, topic)["segment.bytes"].value == "2000000"
    incremental(topics, topic, change("cleanup.policy", "compact", AlterConfigOpType.APPEND))
    assert sorted(configs(topics, topic)["cleanup.policy"].value.split(",")) == ["compact", "delete"]
    incremental(topics, topic, change("cleanup.policy", "delete", AlterConfigOpType.SUBTRACT))
    assert configs(topics, topic)["cleanup.policy"].value == "compact"
    incremental(topics, topic, change("retention.ms", None, AlterConfigOpType.DELETE))
    assert configs(topics, topic)["retention.ms"].value == "604800000"
    assert configs(topics, topic)["retention.ms"].is_default


@pytest.mark.parametrize(
    ("name", "value", "operation"),
    [
        ("no.such.config", "1", AlterConfigOpType.SET),
        ("retention.ms", "-5", AlterConfigOpType.SET),
        ("retention.ms", "x", AlterConfigOpType.SET),
        ("compression.type", "rar", AlterConfigOpType.SET),
        ("retention.ms", "5", AlterConfigOpType.APPEND),
    ],
)
def test_an_invalid_config_is_rejected_and_changes_nothing(
    topics: Topics, name: str, value: str, operation: AlterConfigOpType
) -> None:
    topic = topics.create(retention_ms=5000)
    with pytest.raises(KafkaException) as refused:
        incremental(
            topics, topic, change("segment.bytes", "2000000", AlterConfigOpType.SET), change(name, value, operation)
        )
    assert code_of(refused) == KafkaError.INVALID_CONFIG
    assert configs(topics, topic)["retention.ms"].value == "5000"
    assert configs(topics, topic)["segment.bytes"].is_default


def test_the_older_alter_configs_replaces_all(topics: Topics) -> None:
    topic = topics.create(retention_ms=5000, segment_bytes=2_000_000)
    resource = ConfigResource(ResourceType.TOPIC, topic, set_config={"retention.ms": "7000"})
    with pytest.warns(DeprecationWarning, match="alter_configs"):
        topics.admin.alter_configs([resource])[resource].result(DEADLINE_S)
    wait_for_external_broker()
    assert configs(topics, topic)["retention.ms"].value == "7000"
    assert configs(topics, topic)["segment.bytes"].is_default


def test_altering_a_missing_topic_is_an_error(topics: Topics) -> None:
    with pytest.raises(KafkaException) as refused:
        incremental(topics, unique("missing"), change("retention.ms", "1", AlterConfigOpType.SET))
    assert code_of(refused) == KafkaError.UNKNOWN_TOPIC_OR_PART


def test_partitions_are_added_and_never_removed(topics: Topics, bootstrap: str) -> None:
    topic = topics.create(partitions=2)
    topics.admin.create_partitions([NewPartitions(topic, 5)])[topic].result(DEADLINE_S)
    wait_for_external_broker()
    assert len(topics.admin.list_topics(topic, timeout=DEADLINE_S).topics[topic].partitions) == 5
    for count in (5, 3):
        with pytest.raises(KafkaException) as refused:
            topics.admin.create_partitions([NewPartitions(topic, count)])[topic].result(DEADLINE_S)
        assert code_of(refused) == KafkaError.INVALID_PARTITIONS
    sender = Producer({"bootstrap.servers": bootstrap, **QUIET})
    offsets: list[int] = []
    sender.produce(topic, b"x", partition=4, on_delivery=lambda _, message: offsets.append(message.offset()))
    assert sender.flush(DEADLINE_S) == 0
    assert offsets == [0]


def test_records_are_deleted_up_to_an_offset(topics: Topics, bootstrap: str) -> None:
    topic = topics.create()
    sender = Producer({"bootstrap.servers": bootstrap, **QUIET})
    for number in range(10):
        sender.produce(topic, b"%d" % number)
    assert sender.flush(DEADLINE_S) == 0
    partition = TopicPartition(topic, 0)

    def delete(offset: int) -> int:
        (answer,) = topics.admin.delete_records([TopicPartition(topic, 0, offset)]).values()
        low: int = answer.result(DEADLINE_S).low_watermark
        return low

    assert delete(4) == 4
    assert delete(2) == 4
    earliest = topics.admin.list_offsets({partition: OffsetSpec.earliest()})[partition].result(DEADLINE_S)
    assert earliest.offset == 4
    with pytest.raises(KafkaException) as refused:
        delete(11)
    assert code_of(refused) == KafkaError.OFFSET_OUT_OF_RANGE
    assert delete(-1) == 10


def test_records_of_a_compacted_topic_are_not_deleted(topics: Topics) -> None:
    topic = topics.create(cleanup_policy="compact")
    (answer,) = topics.admin.delete_records([TopicPartition(topic, 0, 0)]).values()
    with pytest.raises(KafkaException) as refused:
        answer.result(DEADLINE_S)
    assert code_of(refused) == KafkaError.POLICY_VIOLATION
