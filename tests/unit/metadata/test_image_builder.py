"""Applying records to images: the new image, its delta, and immutability."""

from uuid import UUID

import pytest

from moldau.errors import CorruptRecordError
from moldau.metadata.image import (
    EMPTY_IMAGE,
    TOPIC_RESOURCE,
    ConfigResource,
    MetadataDelta,
    MetadataImage,
    PartitionRegistration,
)
from moldau.metadata.image_builder import ControllerChange, MetadataChange, apply_changes
from moldau.metadata.records import (
    BrokerEndpoint,
    BrokerRegistrationChangeRecord,
    ConfigRecord,
    FeatureLevelRecord,
    NoOpRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    RemoveTopicRecord,
    TopicRecord,
)

A, B = UUID(int=10), UUID(int=11)
ORDERS = ConfigResource(TOPIC_RESOURCE, "orders")


def partition(topic_id: UUID, index: int, leader: int = 1) -> PartitionRecord:
    return PartitionRecord(
        partition_id=index,
        topic_id=topic_id,
        replicas=(leader,),
        isr=(leader,),
        leader=leader,
        leader_epoch=0,
        partition_epoch=0,
        directories=(None,),
    )


def config(name: str, value: str | None) -> ConfigRecord:
    return ConfigRecord(resource_type=TOPIC_RESOURCE, resource_name="orders", name=name, value=value)


def after(image: MetadataImage, *changes: MetadataChange) -> tuple[MetadataImage, MetadataDelta]:
    return apply_changes(image, changes, image.offset + len(changes))


def with_orders() -> MetadataImage:
    image, _ = after(
        EMPTY_IMAGE,
        TopicRecord(name="orders", topic_id=A),
        config("retention.ms", "5"),
        partition(A, 0),
        partition(A, 1),
    )
    return image


def test_a_new_topic_has_its_partitions_and_configs() -> None:
    image, delta = after(
        EMPTY_IMAGE, TopicRecord(name="orders", topic_id=A), config("retention.ms", "5"), partition(A, 0)
    )
    assert image.topics["orders"].partitions == (PartitionRegistration(0, (1,), (1,), 1, 0, 0),)
    assert image.topic_by_id(A) is image.topics["orders"]
    assert image.config(ORDERS) == {"retention.ms": "5"}
    assert image.offset == 2
    assert delta == MetadataDelta(
        topics_created=("orders",), partitions_changed=(("orders", 0),), configs_changed=(ORDERS,)
    )


def test_an_image_is_immutable() -> None:
    before = with_orders()
    topics, configs = dict(before.topics), dict(before.configs[ORDERS])
    after(before, partition(A, 2), config("retention.ms", None), RemoveTopicRecord(topic_id=A))
    assert dict(before.topics) == topics
    assert dict(before.configs[ORDERS]) == configs
    assert before.topic_names[A] == "orders"
    with pytest.raises(TypeError):
        before.topics["other"] = topics["orders"]  # type: ignore[index]


def test_unchanged_maps_are_shared_between_images() -> None:
    before = with_orders()
    image, delta = after(before, NoOpRecord())
    assert (image.topics, image.configs) == (before.topics, before.configs)
    assert image.topics is before.topics
    assert delta == MetadataDelta()


def test_deleting_a_topic_deletes_its_configs() -> None:
    before = with_orders()
    image, delta = after(before, RemoveTopicRecord(topic_id=A))
    assert not image.topics
    assert not image.topic_names
    assert not image.configs
    assert delta == MetadataDelta(topics_deleted=(before.topics["orders"],), configs_changed=(ORDERS,))


def test_a_topic_recreated_in_one_step_is_both_deleted_and_created() -> None:
    before = with_orders()
    image, delta = after(before, RemoveTopicRecord(topic_id=A), TopicRecord(name="orders", topic_id=B), partition(B, 0))
    assert image.topics["orders"].topic_id == B
    assert image.config(ORDERS) == {}
    assert delta.topics_deleted == (before.topics["orders"],)
    assert delta.topics_created == ("orders",)
    assert delta.partitions_changed == (("orders", 0),)


def test_a_topic_created_and_deleted_in_one_step_is_in_no_delta() -> None:
    image, delta = after(
        EMPTY_IMAGE,
        TopicRecord(name="orders", topic_id=A),
        config("retention.ms", "5"),
        partition(A, 0),
        RemoveTopicRecord(topic_id=A),
    )
    assert delta == MetadataDelta()
    assert not image.topics
    assert not image.configs


def test_a_leader_starts_a_leader_epoch_and_any_change_a_partition_epoch() -> None:
    image, delta = after(with_orders(), PartitionChangeRecord(partition_id=1, topic_id=A, leader=1))
    assert image.partition("orders", 1) == PartitionRegistration(1, (1,), (1,), 1, 1, 1)
    assert delta.partitions_changed == (("orders", 1),)
    image, _ = after(image, PartitionChangeRecord(partition_id=1, topic_id=A, isr=(1, 2), replicas=(1, 2)))
    assert image.partition("orders", 1) == PartitionRegistration(1, (1, 2), (1, 2), 1, 1, 2)


def test_configs_that_end_unchanged_are_in_no_delta() -> None:
    _, delta = after(with_orders(), config("retention.ms", "6"), config("retention.ms", "5"))
    assert delta.configs_changed == ()


def test_brokers_are_registered_fenced_and_unfenced() -> None:
    register = RegisterBrokerRecord(
        broker_id=1,
        incarnation_id=A,
        broker_epoch=4,
        end_points=(BrokerEndpoint(name="P", host="h", port=1, security_protocol=0),),
    )
    image, delta = after(EMPTY_IMAGE, register)
    assert image.brokers[1].fenced
    assert delta.brokers_changed == (1,)
    image, _ = after(image, BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=4, fenced=-1))
    assert image.brokers[1].is_active
    image, _ = after(image, BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=4, in_controlled_shutdown=1))
    assert not image.brokers[1].fenced
    assert not image.brokers[1].is_active


def test_features_producer_ids_and_the_controller_follow_the_log() -> None:
    image, delta = after(
        EMPTY_IMAGE,
        ControllerChange(1, 7),
        FeatureLevelRecord(name="metadata.version", feature_level=30),
        ProducerIdsRecord(broker_id=1, next_producer_id=1000),
    )
    assert (image.controller_id, image.controller_epoch) == (1, 7)
    assert image.features == {"metadata.version": 30}
    assert image.next_producer_id == 1000
    assert delta.features_changed == ("metadata.version",)
    image, _ = after(image, FeatureLevelRecord(name="metadata.version", feature_level=0))
    assert image.features == {}


@pytest.mark.parametrize(
    "change",
    [
        TopicRecord(name="orders", topic_id=B),
        TopicRecord(name="other", topic_id=A),
        RemoveTopicRecord(topic_id=B),
        partition(B, 0),
        partition(A, 1),
        partition(A, 3),
        PartitionChangeRecord(partition_id=2, topic_id=A, leader=1),
        BrokerRegistrationChangeRecord(broker_id=9, broker_epoch=0, fenced=1),
        ProducerIdsRecord(broker_id=1, next_producer_id=-1),
    ],
)
def test_a_record_that_contradicts_the_image_is_rejected(change: MetadataChange) -> None:
    with pytest.raises(CorruptRecordError):
        after(with_orders(), change)


def test_offsets_never_decrease() -> None:
    with pytest.raises(CorruptRecordError):
        apply_changes(with_orders(), [NoOpRecord()], 1)
