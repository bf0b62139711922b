"""Decisions on new topics: Kafka's errors and messages, and the records of valid topics."""

from collections.abc import Mapping

import pytest

from moldau.controller.ids import random_uuid
from moldau.controller.requests import NewTopic, TopicRef
from moldau.errors import (
    InvalidConfigError,
    InvalidPartitionsError,
    InvalidReplicaAssignmentError,
    InvalidReplicationFactorError,
    InvalidRequestError,
    InvalidTopicError,
    MoldauError,
    PolicyViolationError,
    TopicExistsError,
)
from moldau.metadata.records import PartitionRecord
from moldau.settings.broker import BrokerSettings
from moldau.settings.effective import EffectiveSettings
from support.controller_decisions import ORDERS, Cluster, error_of


def test_a_topic_gets_its_records_in_kafkas_order() -> None:
    cluster = Cluster()
    [created] = cluster.create(NewTopic("orders", 2, 1, configs={"retention.ms": "1000"}))
    assert (created.name, created.partitions, created.replication_factor, created.error) == ("orders", 2, 1, None)
    kinds = [type(record).__name__ for record in cluster.last_records]
    assert kinds == ["TopicRecord", "ConfigRecord", "PartitionRecord", "PartitionRecord"]
    topic = cluster.state.image.topics["orders"]
    assert topic.topic_id == created.topic_id
    assert [partition.leader for partition in topic.partitions] == [1, 1]
    assert cluster.state.image.config(ORDERS) == {"retention.ms": "1000"}


def test_defaults_come_from_the_settings() -> None:
    cluster = Cluster(settings=EffectiveSettings(BrokerSettings(node_id=1, num_partitions=3)))
    [created] = cluster.create(NewTopic("orders"))
    assert (created.partitions, created.replication_factor) == (3, 1)


def test_validate_only_returns_the_same_and_writes_nothing() -> None:
    cluster = Cluster()
    [created] = cluster.create(NewTopic("orders", 2, 1), validate_only=True)
    assert (created.partitions, created.error) == (2, None)
    assert cluster.last_records == []


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("", "the empty string is not allowed"),
        (".", "'.' is not allowed"),
        ("..", "'..' is not allowed"),
        ("x" * 250, "is longer than the max allowed length 249"),
        ("a b", "contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"),
        ("a/b", "contains one or more characters other than"),
        ("caf\u00e9", "contains one or more characters other than"),
        ("a\x00", "contains one or more characters other than"),
    ],
)
def test_invalid_topic_names_are_rejected(name: str, complaint: str) -> None:
    kind, message = error_of(Cluster().create(NewTopic(name, 1, 1)))
    assert kind is InvalidTopicError
    assert message.startswith("Topic name is invalid: ")
    assert complaint in message


def test_the_longest_name_is_accepted() -> None:
    [created] = Cluster().create(NewTopic("x" * 249, 1, 1))
    assert created.error is None


@pytest.mark.parametrize(
    ("topic", "kind", "message"),
    [
        (NewTopic("t", 0, 1), InvalidPartitionsError, "Number of partitions was set to an invalid non-positive value."),
        (
            NewTopic("t", -2, 1),
            InvalidPartitionsError,
            "Number of partitions was set to an invalid non-positive value.",
        ),
        (
            NewTopic("t", 1, 0),
            InvalidReplicationFactorError,
            "Replication factor must be larger than 0, or -1 to use the default value.",
        ),
        (
            NewTopic("t", 1, 3),
            InvalidReplicationFactorError,
            (
                "Unable to replicate the partition 3 time(s): The target replication factor of 3 cannot be "
                "reached because only 1 broker(s) are registered."
            ),
        ),
        (
            NewTopic("t", 1, -1, {0: [1]}),
            InvalidRequestError,
            "A manual partition assignment was specified, but numPartitions was not set to -1.",
        ),
        (
            NewTopic("t", -1, 1, {0: [1]}),
            InvalidRequestError,
            "A manual partition assignment was specified, but replication factor was not set to -1.",
        ),
        (
            NewTopic("t", assignment={0: [1], 2: [1]}),
            InvalidReplicaAssignmentError,
            "partitions should be a consecutive 0-based integer sequence",
        ),
        (
            NewTopic("t", assignment={0: [1, 1]}),
            InvalidReplicaAssignmentError,
            "The manual partition assignment includes the broker 1 more than once.",
        ),
        (
            NewTopic("t", assignment={0: [9]}),
            InvalidReplicaAssignmentError,
            "The manual partition assignment includes broker 9, but no such broker is registered.",
        ),
        (
            NewTopic("t", assignment={0: []}),
            InvalidReplicaAssignmentError,
            "The manual partition assignment includes an empty replica list.",
        ),
        (
            NewTopic("t", 1, 1, configs={"retention.ms": None}),
            InvalidConfigError,
            "Null value not supported for topic configs: retention.ms",
        ),
        (
            NewTopic("__cluster_metadata", 1, 1),
            InvalidRequestError,
            "Creation of internal topic __cluster_metadata is prohibited.",
        ),
    ],
)
def test_invalid_topics_are_rejected_with_kafkas_messages(
    topic: NewTopic, kind: type[MoldauError], message: str
) -> None:
    cluster = Cluster()
    assert error_of(cluster.create(topic)) == (kind, message)
    assert cluster.last_records == []


@pytest.mark.parametrize("configs", [{"no.such.config": "1"}, {"retention.ms": "soon"}])
def test_configs_are_validated_before_anything_is_written(configs: Mapping[str, str]) -> None:
    cluster = Cluster()
    assert error_of(cluster.create(NewTopic("t", 1, 1, configs=configs)))[0] is InvalidConfigError
    assert cluster.last_records == []


def test_an_existing_topic_is_rejected() -> None:
    cluster = Cluster()
    cluster.create(NewTopic("orders", 1, 1))
    assert error_of(cluster.create(NewTopic("orders", 1, 1))) == (TopicExistsError, "Topic 'orders' already exists.")


def test_names_that_differ_in_dots_and_underscores_only_collide() -> None:
    cluster = Cluster()
    cluster.create(NewTopic("a.b_c", 1, 1))
    collision = (InvalidTopicError, "Topic 'a_b.c' collides with existing topic: a.b_c")
    assert error_of(cluster.create(NewTopic("a_b.c", 1, 1))) == collision
    cluster.delete(TopicRef("a.b_c"))
    [created] = cluster.create(NewTopic("a_b.c", 1, 1))
    assert created.error is None


def test_names_collide_within_one_request_too() -> None:
    first, second = Cluster().create(NewTopic("a.b", 1, 1), NewTopic("a_b", 1, 1))
    assert first.error is None
    assert isinstance(second.error, InvalidTopicError)


def test_a_duplicate_name_gets_one_error_and_others_are_created() -> None:
    cluster = Cluster()
    twice, once = cluster.create(NewTopic("a", 1, 1), NewTopic("b", 1, 1), NewTopic("a", 1, 1))
    assert isinstance(twice.error, InvalidRequestError)
    assert str(twice.error) == "Duplicate topic name."
    assert once.error is None
    assert list(cluster.state.image.topics) == ["b"]


def test_a_request_for_too_many_partitions_fails_as_a_whole() -> None:
    with pytest.raises(PolicyViolationError, match="Excessively large number of partitions per request"):
        Cluster().create(NewTopic("a", 5000, 1), NewTopic("b", 5001, 1))


def test_without_an_active_broker_nothing_is_created() -> None:
    cluster = Cluster()
    cluster.fence(1)
    kind, message = error_of(cluster.create(NewTopic("a", 1, 1)))
    assert kind is InvalidReplicationFactorError
    assert "All brokers are currently fenced" in message
    assert error_of(cluster.create(NewTopic("a", assignment={0: [1]})))[0] is InvalidReplicaAssignmentError


def test_a_manual_assignment_leaves_fenced_brokers_out_of_the_isr() -> None:
    cluster = Cluster(brokers=(1, 2, 3))
    cluster.fence(2)
    cluster.create(NewTopic("a", assignment={1: [3, 1], 0: [2, 1]}))
    first, second = cluster.state.image.topics["a"].partitions
    assert (first.replicas, first.isr, first.leader) == ((2, 1), (1,), 1)
    assert (second.replicas, second.isr, second.leader) == ((3, 1), (3, 1), 3)


def test_topic_ids_are_never_reserved_and_never_start_with_a_dash() -> None:
    class Fixed:
        def __init__(self, *numbers: int) -> None:
            self.numbers = list(numbers)

        def getrandbits(self, k: int, /) -> int:
            return self.numbers.pop(0)

        def randrange(self, start: int, /) -> int:
            return 0

    dash = 0b111110 << 122
    fine = 0b111101 << 122
    uuid = random_uuid(Fixed(dash, fine))
    assert uuid.bytes[0] >> 2 == 0b111101
    assert random_uuid(Fixed(0, 1)).version == 4
    assert random_uuid(Fixed(fine, 5), taken=[uuid]) != uuid


def placed(cluster: Cluster, partitions: int, replication_factor: int) -> list[PartitionRecord]:
    cluster.create(NewTopic("t", partitions, replication_factor))
    return [record for record in cluster.last_records if isinstance(record, PartitionRecord)]


def test_leaders_and_replicas_are_spread_evenly() -> None:
    records = placed(Cluster(brokers=range(1, 6)), 20, 3)
    leaders = [record.leader for record in records]
    replicas = [broker for record in records for broker in record.replicas]
    assert {leaders.count(broker) for broker in range(1, 6)} == {4}
    assert {replicas.count(broker) for broker in range(1, 6)} == {12}
    assert all(len(set(record.replicas)) == 3 for record in records)
    pairs = {frozenset(record.replicas) for record in records}
    assert len(pairs) > 5, "followers are not always paired with the same leader"


def test_replicas_go_to_different_racks() -> None:
    cluster = Cluster(brokers=())
    for broker_id, rack in ((1, "a"), (2, "a"), (3, "b"), (4, "b"), (5, "c"), (6, "c")):
        cluster.register(broker_id, rack)
    rack_of = {broker_id: broker.rack for broker_id, broker in cluster.state.image.brokers.items()}
    for record in placed(cluster, 30, 3):
        assert {rack_of[broker] for broker in record.replicas} == {"a", "b", "c"}


def test_a_fenced_broker_is_never_made_a_leader() -> None:
    cluster = Cluster(brokers=(1, 2, 3))
    cluster.fence(2)
    for record in placed(cluster, 9, 3):
        assert record.leader != 2
        assert record.isr == tuple(broker for broker in record.replicas if broker != 2)
