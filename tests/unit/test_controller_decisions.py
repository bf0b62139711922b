"""What the controller decides: Kafka's errors in Kafka's words, and records that do what was asked."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeVar
from uuid import UUID

import pytest

from moldau.controller.brokers import (
    allocate_producer_ids,
    fence_broker,
    heartbeat,
    register_broker,
    unregister_broker,
    update_features,
)
from moldau.controller.configs import alter_configs
from moldau.controller.ids import new_id
from moldau.controller.liveness import Sessions
from moldau.controller.requests import (
    ConfigChange,
    ConfigOperation,
    Heartbeat,
    MorePartitions,
    NewTopic,
    Registration,
    TopicCreated,
    TopicRef,
    TopicResult,
)
from moldau.controller.state import ControllerState
from moldau.controller.topics import create_partitions, create_topics, delete_topics
from moldau.decisions import Decision
from moldau.errors import (
    BrokerIdNotRegisteredError,
    DuplicateBrokerRegistrationError,
    InconsistentClusterIdError,
    InvalidConfigError,
    InvalidPartitionsError,
    InvalidRegistrationError,
    InvalidReplicaAssignmentError,
    InvalidReplicationFactorError,
    InvalidRequestError,
    InvalidTopicError,
    MoldauError,
    PolicyViolationError,
    StaleBrokerEpochError,
    TopicDeletionDisabledError,
    TopicExistsError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
    UnsupportedVersionError,
)
from moldau.metadata.image import (
    BROKER_RESOURCE,
    EMPTY_IMAGE,
    TOPIC_RESOURCE,
    ConfigResource,
    Endpoint,
)
from moldau.metadata.records import BrokerRegistrationChangeRecord, PartitionRecord, Record, TopicRecord
from moldau.settings.broker import BrokerSettings
from moldau.settings.effective import EffectiveSettings

T = TypeVar("T")

SETTINGS = EffectiveSettings(BrokerSettings(node_id=1))
ORDERS = ConfigResource(TOPIC_RESOURCE, "orders")


class Cluster:
    """A controller state whose decisions take effect at once."""

    def __init__(self, brokers: Sequence[int] = (1,), settings: EffectiveSettings = SETTINGS) -> None:
        self.state = ControllerState(EMPTY_IMAGE)
        self.settings = settings
        self.random = random.Random(1)
        self.sessions = Sessions(3_000)
        for broker_id in brokers:
            self.register(broker_id)
            self.unfence(broker_id)

    def register(self, broker_id: int, rack: str | None = None, *, previous_epoch: int = -1) -> int:
        """A new life of the broker, fenced."""
        endpoints = [Endpoint("P", "h", 9092)]
        return self.register_as(
            Registration(broker_id, new_id(self.random), endpoints, rack, previous_epoch=previous_epoch)
        )

    def register_as(self, broker: Registration) -> int:
        epoch = self._do(register_broker(self.state, self.settings, broker, self.sessions, 0))
        assert epoch is not None
        return epoch

    def unfence(self, broker_id: int) -> None:
        epoch = self.state.image.brokers[broker_id].epoch
        beat = Heartbeat(broker_id, epoch, self.state.image.offset)
        self._do(heartbeat(self.state, self.settings, beat, self.sessions))

    def create(self, *topics: NewTopic, validate_only: bool = False) -> list[TopicCreated]:
        return self._do(
            create_topics(self.state, topics, self.settings, self.random, validate_only=validate_only)
        )

    def delete(self, *topics: TopicRef) -> list[TopicResult]:
        return self._do(delete_topics(self.state, topics, self.settings))

    def more(self, *changes: MorePartitions, validate_only: bool = False) -> list[TopicResult]:
        return self._do(
            create_partitions(self.state, changes, self.settings, self.random, validate_only=validate_only)
        )

    def alter(
        self,
        resource: ConfigResource,
        *changes: ConfigChange,
        incremental: bool = True,
        validate_only: bool = False,
    ) -> MoldauError | None:
        [result] = self._do(
            alter_configs(
                self.state,
                {resource: changes},
                self.settings,
                incremental=incremental,
                validate_only=validate_only,
            )
        )
        return result.error

    def fence(self, broker_id: int) -> None:
        epoch = self.state.image.brokers[broker_id].epoch
        record = BrokerRegistrationChangeRecord(broker_id=broker_id, broker_epoch=epoch, fenced=1)
        self.state.apply([record], self.state.next_offset + 1)

    def _do(self, decision: Decision[Record, T]) -> T:
        self.last_records = list(decision.records)
        if decision.records:
            self.state.apply(decision.records, self.state.next_offset + len(decision.records))
        return decision.reply


def error_of(results: Sequence[TopicCreated] | Sequence[TopicResult]) -> tuple[type[MoldauError], str]:
    [result] = results
    assert result.error is not None
    return type(result.error), str(result.error)


# Creating topics


def test_a_topic_gets_its_records_in_kafkas_order() -> None:
    cluster = Cluster()
    [created] = cluster.create(NewTopic("orders", 2, 1, configs={"retention.ms": "1000"}))
    assert (created.name, created.partitions, created.replication_factor, created.error) == (
        "orders",
        2,
        1,
        None,
    )
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


def test_validate_only_answers_the_same_and_writes_nothing() -> None:
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
def test_a_name_that_cannot_be_is_refused(name: str, complaint: str) -> None:
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
        (
            NewTopic("t", 0, 1),
            InvalidPartitionsError,
            "Number of partitions was set to an invalid non-positive value.",
        ),
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
def test_a_topic_that_cannot_be_is_refused_in_kafkas_words(
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


def test_a_topic_that_exists_is_refused() -> None:
    cluster = Cluster()
    cluster.create(NewTopic("orders", 1, 1))
    assert error_of(cluster.create(NewTopic("orders", 1, 1))) == (
        TopicExistsError,
        "Topic 'orders' already exists.",
    )


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


def test_a_name_given_twice_is_refused_once_and_others_are_created() -> None:
    cluster = Cluster()
    twice, once = cluster.create(NewTopic("a", 1, 1), NewTopic("b", 1, 1), NewTopic("a", 1, 1))
    assert isinstance(twice.error, InvalidRequestError)
    assert str(twice.error) == "Duplicate topic name."
    assert once.error is None
    assert list(cluster.state.image.topics) == ["b"]


def test_a_request_for_too_many_partitions_is_refused_as_a_whole() -> None:
    with pytest.raises(PolicyViolationError, match="Excessively large number of partitions per request"):
        Cluster().create(NewTopic("a", 5000, 1), NewTopic("b", 5001, 1))


def test_without_an_active_broker_nothing_is_created() -> None:
    cluster = Cluster()
    cluster.fence(1)
    kind, message = error_of(cluster.create(NewTopic("a", 1, 1)))
    assert kind is InvalidReplicationFactorError
    assert "All brokers are currently fenced" in message
    assert error_of(cluster.create(NewTopic("a", assignment={0: [1]})))[0] is InvalidReplicaAssignmentError


def test_a_manual_assignment_is_followed_and_fenced_brokers_are_not_in_sync() -> None:
    cluster = Cluster(brokers=(1, 2, 3))
    cluster.fence(2)
    cluster.create(NewTopic("a", assignment={1: [3, 1], 0: [2, 1]}))
    first, second = cluster.state.image.topics["a"].partitions
    assert (first.replicas, first.in_sync, first.leader) == ((2, 1), (1,), 1)
    assert (second.replicas, second.in_sync, second.leader) == ((3, 1), (3, 1), 3)


def test_topic_ids_are_never_reserved_nor_read_as_an_option() -> None:
    class Fixed:
        def __init__(self, *numbers: int) -> None:
            self.numbers = list(numbers)

        def getrandbits(self, k: int, /) -> int:
            return self.numbers.pop(0)

        def randrange(self, start: int, /) -> int:
            return 0

    dash = 0b111110 << 122
    fine = 0b111101 << 122
    made = new_id(Fixed(dash, fine))
    assert made.bytes[0] >> 2 == 0b111101
    assert new_id(Fixed(0, 1)).version == 4
    assert new_id(Fixed(fine, 5), taken=[made]) != made


# Deleting topics


def test_topics_are_deleted_by_name_and_by_id() -> None:
    cluster = Cluster()
    a, b = cluster.create(NewTopic("a", 1, 1), NewTopic("b", 1, 1))
    assert cluster.delete(TopicRef("a"), TopicRef(topic_id=b.topic_id)) == [
        TopicResult("a", a.topic_id),
        TopicResult("b", b.topic_id),
    ]
    assert not cluster.state.image.topics


@pytest.mark.parametrize(
    ("ref", "kind"),
    [
        (TopicRef("no"), UnknownTopicOrPartitionError),
        (TopicRef(topic_id=UUID(int=99)), UnknownTopicIdError),
        (TopicRef(), InvalidRequestError),
        (TopicRef(topic_id=UUID(int=0)), InvalidRequestError),
        (TopicRef("a", UUID(int=99)), InvalidRequestError),
    ],
)
def test_a_topic_that_is_not_there_cannot_be_deleted(ref: TopicRef, kind: type[MoldauError]) -> None:
    assert error_of(Cluster().delete(ref))[0] is kind


def test_a_topic_named_twice_is_not_deleted() -> None:
    cluster = Cluster()
    [a] = cluster.create(NewTopic("a", 1, 1))
    by_name, by_id = cluster.delete(TopicRef("a"), TopicRef(topic_id=a.topic_id))
    assert isinstance(by_name.error, InvalidRequestError)
    assert isinstance(by_id.error, InvalidRequestError)
    assert "a" in cluster.state.image.topics


def test_deletion_can_be_switched_off() -> None:
    cluster = Cluster(settings=EffectiveSettings(BrokerSettings(node_id=1, delete_topic_enable=False)))
    cluster.create(NewTopic("a", 1, 1))
    with pytest.raises(TopicDeletionDisabledError):
        cluster.delete(TopicRef("a"))


# Adding partitions


def test_partitions_are_added_behind_those_that_are_there() -> None:
    cluster = Cluster()
    cluster.create(NewTopic("a", 1, 1))
    [result] = cluster.more(MorePartitions("a", 3))
    assert result.error is None
    assert [at.index for at in cluster.state.image.topics["a"].partitions] == [0, 1, 2]
    cluster.more(MorePartitions("a", 5), validate_only=True)
    assert len(cluster.state.image.topics["a"].partitions) == 3


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        (
            MorePartitions("no", 3),
            UnknownTopicOrPartitionError,
            "This server does not host this topic-partition.",
        ),
        (MorePartitions("a", 2), InvalidPartitionsError, "Topic already has 2 partition(s)."),
        (
            MorePartitions("a", 1),
            InvalidPartitionsError,
            "The topic a currently has 2 partition(s); 1 would not be an increase.",
        ),
        (
            MorePartitions("a", 10_001),
            InvalidPartitionsError,
            "A topic cannot have more than 10000 partitions.",
        ),
        (
            MorePartitions("a", 4, [[1]]),
            InvalidReplicaAssignmentError,
            "Attempted to add 2 additional partition(s), but only 1 assignment(s) were specified.",
        ),
        (
            MorePartitions("a", 3, [[7]]),
            InvalidReplicaAssignmentError,
            "The manual partition assignment includes broker 7, but no such broker is registered.",
        ),
        (
            MorePartitions("a", 3, [[1, 2]]),
            InvalidReplicaAssignmentError,
            (
                "The manual partition assignment includes a partition with 2 replica(s), but this is not "
                "consistent with previous partitions, which have 1 replica(s)."
            ),
        ),
    ],
)
def test_partitions_that_cannot_be_added_are_refused(
    change: MorePartitions, kind: type[MoldauError], message: str
) -> None:
    cluster = Cluster(brokers=(1, 2))
    cluster.create(NewTopic("a", 2, 1))
    assert error_of(cluster.more(change)) == (kind, message)
    assert cluster.last_records == []


def test_the_topic_of_groups_keeps_its_partitions() -> None:
    cluster = Cluster()
    cluster.create(NewTopic("__consumer_offsets", 2, 1))
    [result] = cluster.more(MorePartitions("__consumer_offsets", 3))
    assert isinstance(result.error, InvalidPartitionsError)


def test_a_topic_given_twice_gets_no_partitions() -> None:
    cluster = Cluster()
    cluster.create(NewTopic("a", 1, 1))
    results = cluster.more(MorePartitions("a", 2), MorePartitions("a", 3))
    assert [type(result.error) for result in results] == [InvalidRequestError, InvalidRequestError]
    assert cluster.last_records == []


# Configs


def with_orders(**configs: str) -> Cluster:
    cluster = Cluster()
    cluster.create(
        NewTopic("orders", 1, 1, configs={name.replace("_", "."): at for name, at in configs.items()})
    )
    return cluster


def test_incremental_changes_touch_only_what_they_name() -> None:
    cluster = with_orders(retention_ms="1", segment_bytes="4194304")
    assert (
        cluster.alter(
            ORDERS,
            ConfigChange("retention.ms", None, ConfigOperation.DELETE),
            ConfigChange("max.message.bytes", "5"),
        )
        is None
    )
    assert cluster.state.image.config(ORDERS) == {"segment.bytes": "4194304", "max.message.bytes": "5"}
    assert len(cluster.last_records) == 2


def test_the_old_way_replaces_everything() -> None:
    cluster = with_orders(retention_ms="1", segment_bytes="4194304")
    assert cluster.alter(ORDERS, ConfigChange("retention.ms", "2"), incremental=False) is None
    assert cluster.state.image.config(ORDERS) == {"retention.ms": "2"}


def test_lists_can_be_added_to_and_subtracted_from() -> None:
    cluster = with_orders()
    change = ConfigChange("cleanup.policy", "compact", ConfigOperation.APPEND)
    assert cluster.alter(ORDERS, change) is None
    assert cluster.state.image.config(ORDERS) == {"cleanup.policy": "delete,compact"}
    assert cluster.alter(ORDERS, ConfigChange("cleanup.policy", "delete", ConfigOperation.SUBTRACT)) is None
    assert cluster.state.image.config(ORDERS) == {"cleanup.policy": "compact"}


def test_a_change_to_what_is_there_writes_nothing() -> None:
    cluster = with_orders(retention_ms="1")
    assert cluster.alter(ORDERS, ConfigChange("retention.ms", "1")) is None
    assert cluster.last_records == []
    assert cluster.alter(ORDERS, ConfigChange("segment.ms", "5"), validate_only=True) is None
    assert cluster.last_records == []


@pytest.mark.parametrize(
    ("resource", "changes", "kind"),
    [
        (ORDERS, [ConfigChange("retention.ms", "soon")], InvalidConfigError),
        (ORDERS, [ConfigChange("no.such", "1")], InvalidConfigError),
        (ORDERS, [ConfigChange("segment.ms", "5"), ConfigChange("no.such", "1")], InvalidConfigError),
        (ORDERS, [ConfigChange("retention.ms", "1"), ConfigChange("retention.ms", "2")], InvalidRequestError),
        (ORDERS, [ConfigChange("retention.ms", None)], InvalidRequestError),
        (ORDERS, [ConfigChange("retention.ms", "1", ConfigOperation.APPEND)], InvalidConfigError),
        (ConfigResource(TOPIC_RESOURCE, "no"), [], UnknownTopicOrPartitionError),
        (ConfigResource(TOPIC_RESOURCE, ""), [], InvalidRequestError),
        (ConfigResource(TOPIC_RESOURCE, "a/b"), [], InvalidTopicError),
        (ConfigResource(BROKER_RESOURCE, "9"), [], InvalidRequestError),
        (ConfigResource(BROKER_RESOURCE, "-1"), [], InvalidRequestError),
        (ConfigResource(BROKER_RESOURCE, "one"), [], InvalidRequestError),
        (ConfigResource(1, "x"), [], InvalidRequestError),
    ],
)
def test_changes_that_cannot_be_are_refused_and_write_nothing(
    resource: ConfigResource, changes: Sequence[ConfigChange], kind: type[MoldauError]
) -> None:
    cluster = with_orders()
    assert type(cluster.alter(resource, *changes)) is kind
    assert cluster.last_records == []


def test_configs_of_brokers_are_kept_for_one_and_for_all() -> None:
    cluster = Cluster()
    for name in ("1", ""):
        resource = ConfigResource(BROKER_RESOURCE, name)
        assert cluster.alter(resource, ConfigChange("log.retention.ms", "7")) is None
        assert cluster.state.image.config(resource) == {"log.retention.ms": "7"}


# Brokers, producer ids, features


def test_a_brokers_epoch_is_the_offset_of_its_registration() -> None:
    cluster = Cluster(brokers=())
    cluster.state.apply([TopicRecord(name="x", topic_id=UUID(int=9))], 1)
    assert cluster.register(1) == 1
    assert cluster.state.image.brokers[1].epoch == 1
    assert cluster.register(1) == 2, "a new incarnation gets a new epoch"


def test_the_same_incarnation_keeps_its_epoch() -> None:
    cluster = Cluster(brokers=())
    broker = Registration(1, UUID(int=5), [Endpoint("P", "h", 1)])
    for _ in range(2):
        assert cluster.register_as(broker) == 0
    cluster.unfence(1)
    cluster.register_as(broker)
    assert cluster.state.image.brokers[1].is_active, "and stays what it was"


def test_a_broker_leads_nothing_from_its_registration_to_its_first_heartbeats() -> None:
    cluster = Cluster(brokers=(1, 2))
    cluster.create(NewTopic("a", assignment={0: [1, 2], 1: [2, 1]}))
    epoch = cluster.state.image.brokers[1].epoch
    cluster.register(1, previous_epoch=epoch)
    [first, second] = cluster.state.image.topics["a"].partitions
    assert (first.leader, first.leader_epoch, first.in_sync) == (2, 1, (2,))
    assert (second.leader, second.leader_epoch, second.in_sync) == (2, 0, (2,))
    broker = cluster.state.image.brokers[1]
    behind = Heartbeat(1, broker.epoch, broker.epoch - 1)
    reply = cluster._do(heartbeat(cluster.state, cluster.settings, behind, cluster.sessions))
    assert (reply.is_caught_up, reply.is_fenced) == (False, True)
    cluster.unfence(1)
    assert cluster.state.image.brokers[1].is_active


def test_a_broker_that_wants_to_be_fenced_is() -> None:
    cluster = Cluster(brokers=(1, 2))
    cluster.create(NewTopic("a", assignment={0: [1, 2]}))
    epoch = cluster.state.image.brokers[1].epoch
    for _ in range(2):
        beat = Heartbeat(1, epoch, 99, wants_fence=True)
        reply = cluster._do(heartbeat(cluster.state, cluster.settings, beat, cluster.sessions))
        assert reply.is_fenced
        assert cluster.state.image.topics["a"].partitions[0].leader == 2
    assert cluster.last_records == []


def test_a_fenced_broker_is_taken_in_only_when_it_knows_that_it_was_fenced() -> None:
    cluster = Cluster(brokers=(1, 2))
    cluster.create(NewTopic("a", assignment={0: [1, 2]}))
    broker = cluster.state.image.brokers[1]
    before = cluster.state.image.offset
    cluster._do(fence_broker(cluster.state, cluster.settings, 1, broker.epoch))
    last = cluster.state.image.offset
    for offset, fenced in ((before, True), (last - 1, True), (last, False)):
        beat = Heartbeat(1, broker.epoch, offset)
        reply = cluster._do(heartbeat(cluster.state, cluster.settings, beat, cluster.sessions))
        assert (reply.is_fenced, reply.is_caught_up) == (fenced, not fenced)
    again = cluster._do(fence_broker(cluster.state, cluster.settings, 1, broker.epoch + 1))
    assert again
    assert cluster.state.image.brokers[1].is_active, "another life was meant"


def test_only_a_known_life_of_a_broker_is_listened_to() -> None:
    cluster = Cluster()
    epoch = cluster.state.image.brokers[1].epoch
    for broker_id, broker_epoch, error in (
        (1, epoch - 1, StaleBrokerEpochError),
        (1, epoch + 1, StaleBrokerEpochError),
        (9, epoch, BrokerIdNotRegisteredError),
    ):
        with pytest.raises(error):
            heartbeat(
                cluster.state, cluster.settings, Heartbeat(broker_id, broker_epoch, 9), cluster.sessions
            )
        with pytest.raises(error):
            allocate_producer_ids(cluster.state, broker_id, broker_epoch)


def test_a_living_broker_is_not_replaced_by_one_from_elsewhere() -> None:
    cluster = Cluster(brokers=())
    epoch = cluster.register(1)
    cluster.sessions.begin(1, epoch, 0)
    cluster.sessions.heard(Heartbeat(1, epoch, 0), 10)
    for endpoint in (Endpoint("P", "h", 9092), Endpoint("P", "other", 9092)):
        twin = Registration(1, UUID(int=9), [endpoint])
        with pytest.raises(DuplicateBrokerRegistrationError, match="h:9092"):
            register_broker(cluster.state, cluster.settings, twin, cluster.sessions, 3_009)
        assert register_broker(cluster.state, cluster.settings, twin, cluster.sessions, 3_010).reply


def test_registrations_that_cannot_be_are_refused_with_what_to_do() -> None:
    cluster = Cluster()
    cluster.state.image = replace(cluster.state.image, cluster_id="ours")
    cluster._do(update_features(cluster.state, {"metadata.version": 30}))
    good = Registration(2, UUID(int=9), [Endpoint("P", "h", 9)], cluster_id="ours")
    for changes, error, advice in (
        ({"cluster_id": "theirs"}, InconsistentClusterIdError, "empty data.dir"),
        ({"endpoints": []}, InvalidRegistrationError, "endpoint"),
        ({"endpoints": [Endpoint("P", "", 9)]}, InvalidRegistrationError, "reach it: ':9'"),
        ({"endpoints": [Endpoint("P", "h", 0)]}, InvalidRegistrationError, "reach it: 'h:0'"),
        ({"endpoints": [Endpoint("P", "h", 65536)]}, InvalidRegistrationError, "reach it: 'h:65536'"),
        ({"broker_id": -1}, InvalidRegistrationError, "negative"),
        ({"features": {"metadata.version": (1, 29)}}, UnsupportedVersionError, "version of Moldau"),
        ({"features": {}}, UnsupportedVersionError, "version of Moldau"),
    ):
        broker = replace(good, **changes)
        with pytest.raises(error, match=advice):
            register_broker(cluster.state, cluster.settings, broker, cluster.sessions, 0)
    assert cluster.register_as(good) > 0


def test_an_unregistered_broker_is_in_sync_nowhere_and_not_listed() -> None:
    cluster = Cluster(brokers=(1, 2))
    cluster.create(NewTopic("a", assignment={0: [1, 2]}))
    assert cluster._do(unregister_broker(cluster.state, cluster.settings, 1))
    [partition] = cluster.state.image.topics["a"].partitions
    assert (partition.leader, partition.in_sync, partition.replicas) == (2, (2,), (1, 2))
    assert list(cluster.state.image.brokers) == [2]
    with pytest.raises(BrokerIdNotRegisteredError):
        unregister_broker(cluster.state, cluster.settings, 1)


def test_no_producer_id_is_given_twice() -> None:
    cluster = Cluster()
    epoch = cluster.state.image.brokers[1].epoch
    blocks = [cluster._do(allocate_producer_ids(cluster.state, 1, epoch)) for _ in range(3)]
    assert blocks == [range(1000), range(1000, 2000), range(2000, 3000)]


def test_features_are_finalized_only_at_levels_that_are_supported() -> None:
    cluster = Cluster()
    cluster._do(update_features(cluster.state, {"metadata.version": 30}))
    assert cluster.state.image.features == {"metadata.version": 30}
    assert update_features(cluster.state, {"metadata.version": 30}).records == []
    for name, level in (("metadata.version", 31), ("metadata.version", 0), ("no.such", 1), ("no.such", 0)):
        with pytest.raises(InvalidRequestError):
            update_features(cluster.state, {name: level})


# Placement


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
    assert len(pairs) > 5, "followers do not always come along with the same leader"


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
