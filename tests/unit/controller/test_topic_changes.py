"""Decisions on existing topics: deletion and new partitions."""

from uuid import UUID

import pytest

from moldau.controller import topics as topic_decisions
from moldau.controller.requests import NewTopic, PartitionIncrease, TopicRef, TopicResult
from moldau.errors import (
    InvalidPartitionsError,
    InvalidReplicaAssignmentError,
    InvalidRequestError,
    MoldauError,
    PolicyViolationError,
    TopicDeletionDisabledError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
)
from moldau.settings.broker import BrokerSettings
from moldau.settings.effective import EffectiveSettings
from support.controller_decisions import Cluster, error_of


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
def test_deleting_a_missing_topic_fails(ref: TopicRef, kind: type[MoldauError]) -> None:
    assert error_of(Cluster().delete(ref))[0] is kind


def test_a_topic_named_twice_is_not_deleted() -> None:
    cluster = Cluster()
    [a] = cluster.create(NewTopic("a", 1, 1))
    by_name, by_id = cluster.delete(TopicRef("a"), TopicRef(topic_id=a.topic_id))
    assert isinstance(by_name.error, InvalidRequestError)
    assert isinstance(by_id.error, InvalidRequestError)
    assert "a" in cluster.state.image.topics


def test_topic_deletion_can_be_disabled() -> None:
    cluster = Cluster(settings=EffectiveSettings(BrokerSettings(node_id=1, delete_topic_enable=False)))
    cluster.create(NewTopic("a", 1, 1))
    with pytest.raises(TopicDeletionDisabledError):
        cluster.delete(TopicRef("a"))


def test_new_partitions_get_the_next_indexes() -> None:
    cluster = Cluster()
    cluster.create(NewTopic("a", 1, 1))
    [result] = cluster.more(PartitionIncrease("a", 3))
    assert result.error is None
    assert [at.index for at in cluster.state.image.topics["a"].partitions] == [0, 1, 2]
    cluster.more(PartitionIncrease("a", 5), validate_only=True)
    assert len(cluster.state.image.topics["a"].partitions) == 3


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        (PartitionIncrease("no", 3), UnknownTopicOrPartitionError, "This server does not host this topic-partition."),
        (PartitionIncrease("a", 2), InvalidPartitionsError, "Topic already has 2 partition(s)."),
        (
            PartitionIncrease("a", 1),
            InvalidPartitionsError,
            "The topic a currently has 2 partition(s); 1 would not be an increase.",
        ),
        (PartitionIncrease("a", 10_001), InvalidPartitionsError, "A topic cannot have more than 10000 partitions."),
        (
            PartitionIncrease("a", 4, [[1]]),
            InvalidReplicaAssignmentError,
            "Attempted to add 2 additional partition(s), but only 1 assignment(s) were specified.",
        ),
        (
            PartitionIncrease("a", 3, [[7]]),
            InvalidReplicaAssignmentError,
            "The manual partition assignment includes broker 7, but no such broker is registered.",
        ),
        (
            PartitionIncrease("a", 3, [[1, 2]]),
            InvalidReplicaAssignmentError,
            (
                "The manual partition assignment includes a partition with 2 replica(s), but this is not "
                "consistent with previous partitions, which have 1 replica(s)."
            ),
        ),
    ],
)
def test_invalid_partition_increases_are_rejected(
    change: PartitionIncrease, kind: type[MoldauError], message: str
) -> None:
    cluster = Cluster(brokers=(1, 2))
    cluster.create(NewTopic("a", 2, 1))
    assert error_of(cluster.more(change)) == (kind, message)
    assert cluster.last_records == []


def test_the_offsets_topic_keeps_its_partition_count() -> None:
    cluster = Cluster()
    cluster.create(NewTopic("__consumer_offsets", 2, 1))
    [result] = cluster.more(PartitionIncrease("__consumer_offsets", 3))
    assert isinstance(result.error, InvalidPartitionsError)


def test_a_topic_given_twice_gets_no_partitions() -> None:
    cluster = Cluster()
    cluster.create(NewTopic("a", 1, 1))
    results = cluster.more(PartitionIncrease("a", 2), PartitionIncrease("a", 3))
    assert [type(result.error) for result in results] == [InvalidRequestError, InvalidRequestError]
    assert cluster.last_records == []


@pytest.mark.parametrize("validate_only", [True, False])
def test_a_request_for_too_many_partitions_is_rejected_before_placement(
    monkeypatch: pytest.MonkeyPatch, validate_only: bool
) -> None:
    cluster = Cluster()
    cluster.create(NewTopic("a", 1, 1), NewTopic("b", 1, 1))
    placed: list[int] = []

    def no_place(brokers: object, partitions: int, *args: object) -> list[tuple[int, ...]]:
        placed.append(partitions)
        return [(1,)] * partitions

    monkeypatch.setattr(topic_decisions, "place_replicas", no_place)
    with pytest.raises(PolicyViolationError):
        cluster.more(PartitionIncrease("a", 5_001), PartitionIncrease("b", 5_002), validate_only=validate_only)
    assert placed == []
    cluster.more(PartitionIncrease("a", 5_001), PartitionIncrease("b", 5_001), validate_only=validate_only)
    assert placed == [5_000, 5_000]
