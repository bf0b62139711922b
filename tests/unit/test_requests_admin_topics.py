"""CreateTopics, DeleteTopics and CreatePartitions: what never reaches the controller, and what is answered."""

from typing import Any

import pytest

from moldau.controller.requests import MorePartitions, NewTopic, TopicRef
from moldau.errors import (
    InvalidPartitionsError,
    NotControllerError,
    TopicExistsError,
    UnknownTopicOrPartitionError,
)
from moldau.settings.broker import BrokerSettings
from moldau.wire.api_keys import ApiKey
from support.admin import AdminBroker, image_of, topic_id, versions_of

CREATE, DELETE, PARTITIONS = ApiKey.CREATE_TOPICS, ApiKey.DELETE_TOPICS, ApiKey.CREATE_PARTITIONS

INVALID_REQUEST = 42


def new_topic(
    name: str,
    partitions: int = 2,
    replicas: int = 1,
    assigned: list[tuple[int, list[int]]] | None = None,
    configs: dict[str, str | None] | None = None,
) -> dict[str, Any]:
    return {
        "name": name,
        "num_partitions": partitions,
        "replication_factor": replicas,
        "assignments": [{"partition_index": i, "broker_ids": brokers} for i, brokers in assigned or []],
        "configs": [{"name": key, "value": value} for key, value in (configs or {}).items()],
    }


def create(broker: AdminBroker, *topics: dict[str, Any], version: int = 7, **more: Any) -> dict[str, Any]:
    request = {"timeout": 1000, "validate_only": False, **more}
    answer = broker.ask(CREATE, version, topics=list(topics), **request)
    return {topic.name: topic for topic in answer.topics}


@pytest.mark.parametrize("version", versions_of(CREATE))
def test_created_topics_are_told_as_far_as_the_version_can(version: int) -> None:
    broker = AdminBroker(image_of({}))
    answer = create(broker, new_topic("a", 3, configs={"retention.ms": "77"}), version=version)
    topic = answer["a"]
    assert (topic.error_code, topic.error_message) == (0, None)
    assert topic.get("topic_id", "absent") == (topic_id(100) if version >= 7 else "absent")
    assert topic.get("num_partitions", "absent") == (3 if version >= 5 else "absent")
    if version >= 5:
        assert topic.replication_factor == 1
        told = {each.name: (each.value, each.config_source) for each in topic.configs}
        assert told["retention.ms"] == ("77", 1)
        assert told["cleanup.policy"] == ("delete", 5)
        assert list(told) == sorted(told)
    assert broker.controller.calls == [([NewTopic("a", 3, 1, {}, {"retention.ms": "77"})], False)]


def test_validate_only_is_passed_on_and_answered_like_the_real_thing() -> None:
    broker = AdminBroker(image_of({}))
    topic = create(broker, new_topic("a"), validate_only=True)["a"]
    assert topic.error_code == 0
    assert len(topic.configs) > 5
    assert broker.controller.calls[0][1] is True


def test_a_topic_named_twice_is_refused_once_and_the_others_are_created() -> None:
    broker = AdminBroker(image_of({}))
    answer = broker.ask(
        CREATE, topics=[new_topic("d"), new_topic("e"), new_topic("d"), new_topic("d")], timeout=1000
    )
    assert [(topic.name, topic.error_code, topic.error_message) for topic in answer.topics] == [
        ("d", INVALID_REQUEST, "Duplicate topic name."),
        ("e", 0, None),
    ]
    assert [topic.name for topic in broker.controller.calls[0][0]] == ["e"]


def test_a_controllers_refusal_is_answered_with_its_code_and_words_and_no_size() -> None:
    broker = AdminBroker(image_of({}))
    broker.controller.errors["a"] = TopicExistsError("Topic 'a' already exists.")
    topic = create(broker, new_topic("a"))["a"]
    assert (topic.error_code, topic.error_message) == (36, "Topic 'a' already exists.")
    assert (topic.topic_id, topic.num_partitions, topic.replication_factor, topic.configs) == (
        None,
        -1,
        -1,
        [],
    )


def test_assigned_replicas_reach_the_controller_and_a_partition_assigned_twice_does_not() -> None:
    broker = AdminBroker(image_of({}))
    answer = create(
        broker,
        new_topic("good", -1, -1, [(0, [1]), (1, [1, 2])]),
        new_topic("bad", -1, -1, [(0, [1]), (0, [2])]),
    )
    assert broker.controller.calls[0][0] == [NewTopic("good", -1, -1, {0: [1], 1: [1, 2]}, {})]
    assert answer["bad"].error_code == 39
    assert answer["bad"].error_message == "Found multiple manual partition assignments for partition 0"


def test_the_metadata_log_cannot_be_created_as_a_topic() -> None:
    broker = AdminBroker(image_of({}))
    assert create(broker, new_topic("__cluster_metadata"))["__cluster_metadata"].error_code == INVALID_REQUEST


@pytest.mark.parametrize("timeout", [0, -1])
def test_no_time_to_create_is_answered_as_timed_out_and_nothing_is_created(timeout: int) -> None:
    broker = AdminBroker(image_of({}))
    answer = create(broker, new_topic("a"), new_topic("b"), timeout=timeout)
    assert [topic.error_code for topic in answer.values()] == [7, 7]
    assert broker.controller.calls == []


def test_a_controller_that_cannot_answer_at_all_fails_every_item_but_not_the_connection() -> None:
    broker = AdminBroker(image_of({"old": 1}))
    broker.controller.refuses = NotControllerError("moved")
    assert create(broker, new_topic("a"))["a"].error_code == 41
    assert delete(broker, {"name": "old", "topic_id": None}) == [("old", None, 41, "moved")]
    assert more_partitions(broker, ("old", 4, None)) == [("old", 41, "moved")]


def delete(broker: AdminBroker, *topics: dict[str, Any], timeout: int = 1000) -> list[tuple[Any, ...]]:
    answer = broker.ask(DELETE, 6, topics=list(topics), timeout=timeout)
    return [(each.name, each.topic_id, each.error_code, each.error_message) for each in answer.responses]


def by_name(name: str) -> dict[str, Any]:
    return {"name": name, "topic_id": None}


def by_id(number: int) -> dict[str, Any]:
    return {"name": None, "topic_id": topic_id(number)}


@pytest.mark.parametrize("version", versions_of(DELETE))
def test_topics_are_deleted_by_name_in_every_version(version: int) -> None:
    broker = AdminBroker(image_of({"a": 1, "b": 1}))
    broker.controller.errors["gone"] = UnknownTopicOrPartitionError("no such topic")
    names = ["a", "gone"]
    answer = broker.ask(
        DELETE, version, topic_names=names, topics=[by_name(name) for name in names], timeout=1000
    )
    assert [(each.name, each.error_code) for each in answer.responses] == [("a", 0), ("gone", 3)]
    if version >= 5:
        assert answer.responses[1].error_message == "no such topic"
    if version >= 6:
        assert answer.responses[0].topic_id == topic_id(0)
    assert broker.controller.calls == [([TopicRef("a"), TopicRef("gone")],)]


def test_topics_are_deleted_by_id() -> None:
    broker = AdminBroker(image_of({"a": 1, "b": 1}))
    assert delete(broker, by_id(1)) == [("b", topic_id(1), 0, None)]
    assert broker.controller.calls == [([TopicRef(topic_id=topic_id(1))],)]


def test_a_reference_must_be_a_name_or_an_id() -> None:
    broker = AdminBroker(image_of({"a": 1}))
    assert delete(broker, {"name": None, "topic_id": None}, {"name": "a", "topic_id": topic_id(0)}) == [
        (None, None, INVALID_REQUEST, "Neither topic name nor id were specified."),
        ("a", topic_id(0), INVALID_REQUEST, "You may not specify both topic name and topic id."),
    ]
    assert broker.controller.calls == [([],)]


@pytest.mark.parametrize(
    ("asked", "refused", "deleted"),
    [
        ([by_name("a"), by_name("b"), by_name("a")], [("a", None, "Duplicate topic name.")], [TopicRef("b")]),
        ([by_id(0), by_id(0)], [(None, topic_id(0), "Duplicate topic id.")], []),
        (
            [by_name("a"), by_id(0), by_name("b")],
            [("a", topic_id(0), "The provided topic name maps to an ID that was already supplied.")],
            [TopicRef("b")],
        ),
        (
            [by_id(0), by_id(0), by_name("a")],
            [
                (None, topic_id(0), "Duplicate topic id."),
                ("a", topic_id(0), "The provided topic name maps to an ID that was already supplied."),
            ],
            [],
        ),
        (
            [by_name("a"), by_name("a"), by_id(0)],
            [("a", None, "Duplicate topic name.")],
            [TopicRef(topic_id=topic_id(0))],
        ),
    ],
)
def test_what_is_named_twice_is_not_deleted(
    asked: list[dict[str, Any]], refused: list[tuple[Any, ...]], deleted: list[TopicRef]
) -> None:
    broker = AdminBroker(image_of({"a": 1, "b": 1}))
    answers = [each for each in delete(broker, *asked) if each[2] != 0]
    assert answers == [(name, id_, INVALID_REQUEST, message) for name, id_, message in refused]
    assert broker.controller.calls == [(deleted,)]


def test_no_time_to_delete_deletes_nothing() -> None:
    broker = AdminBroker(image_of({"a": 1}))
    assert delete(broker, by_name("a"), timeout=0) == [("a", None, 7, None)]
    assert broker.controller.calls == []


@pytest.mark.parametrize(("version", "code"), [(1, 42), (2, 42), (3, 73), (6, 73)])
def test_deletion_can_be_switched_off(version: int, code: int) -> None:
    broker = AdminBroker(image_of({"a": 1}), BrokerSettings(delete_topic_enable=False))
    answer = broker.ask(DELETE, version, topic_names=["a"], topics=[by_name("a")], timeout=1000)
    assert [(each.name, each.error_code) for each in answer.responses] == [("a", code)]
    assert broker.controller.calls == []


def more_partitions(
    broker: AdminBroker,
    *topics: tuple[str, int, list[list[int]] | None],
    version: int = 3,
    timeout: int = 1000,
    validate_only: bool = False,
) -> list[tuple[Any, ...]]:
    answer = broker.ask(
        PARTITIONS,
        version,
        topics=[
            {
                "name": name,
                "count": count,
                "assignments": None if assigned is None else [{"broker_ids": each} for each in assigned],
            }
            for name, count, assigned in topics
        ],
        timeout=timeout,
        validate_only=validate_only,
    )
    return [(each.name, each.error_code, each.error_message) for each in answer.results]


@pytest.mark.parametrize("version", versions_of(PARTITIONS))
@pytest.mark.parametrize("validate_only", [False, True])
def test_partitions_are_added_with_and_without_assignments(version: int, validate_only: bool) -> None:
    broker = AdminBroker(image_of({"a": 1, "b": 1}))
    broker.controller.errors["b"] = InvalidPartitionsError("Topic already has 1 partition(s).")
    asked = [("a", 3, [[1], [1, 2]]), ("b", 1, None)]
    assert more_partitions(broker, *asked, version=version, validate_only=validate_only) == [
        ("a", 0, None),
        ("b", 37, "Topic already has 1 partition(s)."),
    ]
    expected = [MorePartitions("a", 3, [[1], [1, 2]]), MorePartitions("b", 1, None)]
    assert broker.controller.calls == [(expected, validate_only)]


def test_an_empty_list_of_assignments_is_not_the_same_as_none() -> None:
    broker = AdminBroker(image_of({"a": 1}))
    more_partitions(broker, ("a", 2, []))
    assert broker.controller.calls[0][0] == [MorePartitions("a", 2, [])]


def test_adding_partitions_twice_in_one_request_or_in_no_time_is_refused() -> None:
    broker = AdminBroker(image_of({"a": 1, "b": 1}))
    answer = more_partitions(broker, ("a", 2, None), ("b", 2, None), ("a", 3, None))
    assert answer == [("a", INVALID_REQUEST, "Duplicate topic name."), ("b", 0, None)]
    assert [each.topic for each in broker.controller.calls[0][0]] == ["b"]
    assert more_partitions(broker, ("a", 2, None), timeout=0) == [("a", 7, None)]
    assert len(broker.controller.calls) == 1
