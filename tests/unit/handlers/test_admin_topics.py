"""CreateTopics, DeleteTopics and CreatePartitions in every version."""

from typing import Any

import pytest

from moldau.controller.replica_readiness import UnreadyReplicas
from moldau.errors import NotControllerError
from moldau.metadata.image import TOPIC_RESOURCE, ConfigResource
from moldau.settings.broker import BrokerSettings
from moldau.wire.api_keys import ApiKey
from support.admin_broker import NOW_MS, AdminBroker, broker_image, image_of, topic_id, versions_of

CREATE, DELETE, PARTITIONS = ApiKey.CREATE_TOPICS, ApiKey.DELETE_TOPICS, ApiKey.CREATE_PARTITIONS

TIMED_OUT = 7
STORAGE_ERROR = 56
INVALID_REQUEST = 42
DUPLICATE = (INVALID_REQUEST, "Duplicate topic name.")


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
    response = broker.send(CREATE, version, topics=list(topics), **request)
    names = [topic.name for topic in response.topics]
    assert len(names) == len(set(names))
    return {topic.name: topic for topic in response.topics}


@pytest.mark.parametrize("version", versions_of(CREATE))
def test_created_topics_are_described_as_the_version_allows(version: int) -> None:
    broker = AdminBroker(image_of({}))
    topic = create(broker, new_topic("a", 3, configs={"retention.ms": "77"}), version=version)["a"]
    created = broker.metadata.image.topics["a"]
    assert (topic.error_code, topic.error_message) == (0, None)
    assert topic.get("topic_id", "absent") == (created.topic_id if version >= 7 else "absent")
    assert topic.get("num_partitions", "absent") == (3 if version >= 5 else "absent")
    if version >= 5:
        assert topic.replication_factor == 1
        result = {each.name: (each.value, each.config_source) for each in topic.configs}
        assert result["retention.ms"] == ("77", 1)
        assert result["cleanup.policy"] == ("delete", 5)
        assert list(result) == sorted(result)
    assert len(created.partitions) == 3
    assert broker.metadata.image.config(ConfigResource(TOPIC_RESOURCE, "a")) == {"retention.ms": "77"}


@pytest.mark.parametrize("version", versions_of(CREATE))
def test_broker_defaults_apply_in_every_version(version: int) -> None:
    broker = AdminBroker(image_of({}), BrokerSettings(num_partitions=5))
    assert create(broker, new_topic("a", -1, -1), version=version)["a"].error_code == 0
    assert len(broker.metadata.image.topics["a"].partitions) == 5


def test_validate_only_returns_results_and_creates_nothing() -> None:
    broker = AdminBroker(image_of({}))
    topic = create(broker, new_topic("a", configs={"retention.ms": "77"}), validate_only=True)["a"]
    assert (topic.error_code, topic.num_partitions) == (0, 2)
    assert {each.name: each.value for each in topic.configs}["retention.ms"] == "77"
    assert not broker.metadata.image.topics


def test_a_duplicate_topic_is_rejected_and_the_others_are_created() -> None:
    broker = AdminBroker(image_of({}))
    response = create(broker, new_topic("d"), new_topic("e"), new_topic("d"), new_topic("d"))
    assert (response["d"].error_code, response["d"].error_message) == DUPLICATE
    assert response["e"].error_code == 0
    assert list(broker.metadata.image.topics) == ["e"]


def test_a_rejected_topic_has_no_id_size_or_configs() -> None:
    topic = create(AdminBroker(image_of({"a": 1})), new_topic("a"))["a"]
    assert (topic.error_code, topic.error_message) == (36, "Topic 'a' already exists.")
    assert (topic.topic_id, topic.num_partitions, topic.replication_factor) == (None, -1, -1)
    assert topic.configs == []


@pytest.mark.parametrize(
    ("topic", "code"),
    [
        (new_topic(""), 17),
        (new_topic("."), 17),
        (new_topic(".."), 17),
        (new_topic("sp ace"), 17),
        (new_topic("x" * 250), 17),
        (new_topic("__cluster_metadata"), INVALID_REQUEST),
        (new_topic("a", 0), 37),
        (new_topic("a", -2), 37),
        (new_topic("a", 1, 0), 38),
        (new_topic("a", 1, 3), 38),
        (new_topic("a", 1, -1, [(0, [1])]), INVALID_REQUEST),
        (new_topic("a", -1, 1, [(0, [1])]), INVALID_REQUEST),
        (new_topic("a", -1, -1, [(1, [1])]), 39),
        (new_topic("a", -1, -1, [(0, [77])]), 39),
        (new_topic("a", -1, -1, [(0, [1, 1])]), 39),
        (new_topic("a", -1, -1, [(0, [])]), 39),
        (new_topic("a", -1, -1, [(0, [1]), (0, [1])]), 39),
        (new_topic("a", configs={"nope": "1"}), 40),
        (new_topic("a", configs={"retention.ms": "x"}), 40),
        (new_topic("a", configs={"retention.ms": None}), 40),
    ],
)
def test_invalid_topics_are_rejected_with_kafkas_code_and_a_message(topic: dict[str, Any], code: int) -> None:
    broker = AdminBroker(image_of({}))
    response = create(broker, topic, new_topic("fine"))
    assert response[topic["name"]].error_code == code
    assert response[topic["name"]].error_message
    assert response["fine"].error_code == 0
    assert list(broker.metadata.image.topics) == ["fine"]


def test_manual_assignments_are_used() -> None:
    broker = AdminBroker(image_of({}, brokers=[broker_image(2)]))
    topic = create(broker, new_topic("a", -1, -1, [(0, [1, 2]), (1, [2, 1])]))["a"]
    assert (topic.error_code, topic.num_partitions, topic.replication_factor) == (0, 2, 2)
    assert [each.replicas for each in broker.metadata.image.topics["a"].partitions] == [(1, 2), (2, 1)]


def test_a_duplicate_of_an_invalid_topic_is_not_created() -> None:
    broker = AdminBroker(image_of({}))
    response = create(broker, new_topic("a", -1, -1, [(0, [1]), (0, [1])]), new_topic("a"))
    assert response["a"].error_code == 39
    assert not broker.metadata.image.topics


@pytest.mark.parametrize("timeout", [0, -1])
def test_a_zero_timeout_changes_nothing(timeout: int) -> None:
    broker = AdminBroker(image_of({"old": 1}))
    before = broker.metadata.image
    response = create(broker, new_topic("a"), new_topic("b"), timeout=timeout)
    assert [topic.error_code for topic in response.values()] == [TIMED_OUT, TIMED_OUT]
    assert delete(broker, by_name("old"), timeout=timeout) == [("old", None, TIMED_OUT, None)]
    assert more_partitions(broker, ("old", 2, None), timeout=timeout) == [("old", TIMED_OUT, None)]
    assert broker.metadata.image is before


def test_the_wait_for_replicas_is_short_and_ends_before_the_timeout() -> None:
    broker = AdminBroker(image_of({"old": 3}))
    create(broker, new_topic("a"), new_topic("old"), new_topic("b"), timeout=30_000)
    assert broker.controller.waited_for == (["a", "b"], NOW_MS + 1_000, {})
    more_partitions(broker, ("old", 5, None), ("a", 2, None), timeout=500)
    assert broker.controller.waited_for == (["old"], NOW_MS + 450, {"old": 3, "a": 2})


def test_validate_only_does_not_wait_for_replicas() -> None:
    broker = AdminBroker(image_of({"old": 3}))
    create(broker, new_topic("a"), validate_only=True)
    more_partitions(broker, ("old", 5, None), validate_only=True)
    assert broker.controller.waited_for is None


def test_a_topic_with_unready_replicas_is_created() -> None:
    broker = AdminBroker(image_of({"old": 1}))
    unready = UnreadyReplicas(["node 2 has not applied the metadata yet"], is_offline=False)
    broker.controller.unready = {"a": unready, "old": unready}
    response = create(broker, new_topic("a"), new_topic("b"))
    assert (response["a"].error_code, response["b"].error_code) == (0, 0)
    assert more_partitions(broker, ("old", 2, None)) == [("old", 0, None)]


def test_a_topic_whose_logs_could_not_be_opened_exists_and_has_an_error() -> None:
    broker = AdminBroker(image_of({"old": 1}))
    failed = UnreadyReplicas(["a-0 on node 1: its log could not be opened: No space left"], is_offline=True)
    broker.controller.unready = {"a": failed, "old": failed}
    response = create(broker, new_topic("a"), new_topic("b"))
    assert (response["a"].error_code, response["b"].error_code) == (STORAGE_ERROR, 0)
    message = (
        "The change is committed, but no replica could be opened: a-0 on node 1: its log could not be opened: "
        "No space left."
    )
    assert response["a"].error_message == message
    assert "a" in broker.metadata.image.topics
    assert more_partitions(broker, ("old", 2, None)) == [("old", STORAGE_ERROR, message)]


def test_a_controller_that_moves_during_the_wait_causes_no_error() -> None:
    broker = AdminBroker(image_of({"old": 1}))
    broker.controller.unready = NotControllerError("moved")
    assert create(broker, new_topic("a"))["a"].error_code == 0, "NOT_CONTROLLER would be retried, but the topic exists"
    assert more_partitions(broker, ("old", 2, None)) == [("old", 0, None)]


def test_a_failing_controller_fails_every_item_but_not_the_connection() -> None:
    broker = AdminBroker(image_of({"old": 1}))
    broker.controller.refuses = NotControllerError("moved")
    assert create(broker, new_topic("a"), new_topic("a"))["a"].error_code == 41
    assert delete(broker, by_name("old")) == [("old", None, 41, "moved")]
    assert more_partitions(broker, ("old", 4, None)) == [("old", 41, "moved")]


def delete(broker: AdminBroker, *topics: dict[str, Any], timeout: int = 1000) -> list[tuple[Any, ...]]:
    response = broker.send(DELETE, 6, topics=list(topics), timeout=timeout)
    return [(each.name, each.topic_id, each.error_code, each.error_message) for each in response.responses]


def by_name(name: str) -> dict[str, Any]:
    return {"name": name, "topic_id": None}


def by_id(number: int) -> dict[str, Any]:
    return {"name": None, "topic_id": topic_id(number)}


@pytest.mark.parametrize("version", versions_of(DELETE))
def test_topics_are_deleted_by_name_in_every_version(version: int) -> None:
    broker = AdminBroker(image_of({"a": 1, "b": 1}))
    names = ["a", "gone", ""]
    response = broker.send(DELETE, version, topic_names=names, topics=[by_name(name) for name in names], timeout=1000)
    assert [(each.name, each.error_code) for each in response.responses] == [("a", 0), ("gone", 3), ("", 3)]
    if version >= 5:
        assert response.responses[1].error_message
    if version >= 6:
        assert response.responses[0].topic_id == topic_id(0)
    assert list(broker.metadata.image.topics) == ["b"]


def test_topics_are_deleted_by_id() -> None:
    broker = AdminBroker(image_of({"a": 1, "b": 1}))
    response = delete(broker, by_id(1), by_id(9))
    assert [each[:3] for each in response] == [("b", topic_id(1), 0), (None, topic_id(9), 100)]
    assert list(broker.metadata.image.topics) == ["a"]


def test_a_topic_must_have_a_name_or_an_id() -> None:
    broker = AdminBroker(image_of({"a": 1}))
    assert delete(broker, {"name": None, "topic_id": None}, {"name": "a", "topic_id": topic_id(0)}) == [
        (None, None, INVALID_REQUEST, "Neither topic name nor id were specified."),
        ("a", topic_id(0), INVALID_REQUEST, "You may not specify both topic name and topic id."),
    ]
    assert list(broker.metadata.image.topics) == ["a"]


@pytest.mark.parametrize(
    ("requested", "refused"),
    [
        ([by_name("a"), by_name("b"), by_name("a")], [("a", None)]),
        ([by_name("b"), by_id(0), by_id(0)], [(None, topic_id(0))]),
        ([by_name("a"), by_id(0), by_name("b")], [("a", None), (None, topic_id(0))]),
    ],
)
def test_a_duplicate_topic_is_rejected_and_not_deleted(
    requested: list[dict[str, Any]], refused: list[tuple[Any, ...]]
) -> None:
    broker = AdminBroker(image_of({"a": 1, "b": 1}))
    answers = [each for each in delete(broker, *requested) if each[2] != 0]
    assert [each[:3] for each in answers] == [(name, id_, INVALID_REQUEST) for name, id_ in refused]
    assert list(broker.metadata.image.topics) == ["a"]


@pytest.mark.parametrize(("version", "code"), [(1, 42), (2, 42), (3, 73), (6, 73)])
def test_deletion_can_be_disabled(version: int, code: int) -> None:
    broker = AdminBroker(image_of({"a": 1}), BrokerSettings(delete_topic_enable=False))
    response = broker.send(DELETE, version, topic_names=["a"], topics=[by_name("a")], timeout=1000)
    assert [(each.name, each.error_code) for each in response.responses] == [("a", code)]
    assert list(broker.metadata.image.topics) == ["a"]


def more_partitions(
    broker: AdminBroker,
    *topics: tuple[str, int, list[list[int]] | None],
    version: int = 3,
    timeout: int = 1000,
    validate_only: bool = False,
) -> list[tuple[Any, ...]]:
    response = broker.send(
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
    return [(each.name, each.error_code, each.error_message) for each in response.results]


@pytest.mark.parametrize("version", versions_of(PARTITIONS))
@pytest.mark.parametrize("validate_only", [False, True])
def test_partitions_are_added_with_and_without_assignments(version: int, validate_only: bool) -> None:
    broker = AdminBroker(image_of({"a": 1, "b": 1, "c": 1}))
    requested = [("a", 3, [[1], [1]]), ("b", 1, None), ("c", 2, None)]
    assert more_partitions(broker, *requested, version=version, validate_only=validate_only) == [
        ("a", 0, None),
        ("b", 37, "Topic already has 1 partition(s)."),
        ("c", 0, None),
    ]
    counts = [len(topic.partitions) for topic in broker.metadata.image.topics.values()]
    assert counts == ([1, 1, 1] if validate_only else [3, 1, 2])


@pytest.mark.parametrize(
    ("count", "assigned", "code"),
    [
        (1, None, 37),
        (0, None, 37),
        (-1, None, 37),
        (4, [[1]], 39),
        (3, [], 39),
        (3, [[1], [1]], 39),
        (3, [[77]], 39),
        (3, [[]], 39),
        (3, [[1, 1]], 39),
    ],
)
def test_invalid_partition_increases_are_rejected(count: int, assigned: list[list[int]] | None, code: int) -> None:
    broker = AdminBroker(image_of({"a": 2}))
    ((name, answered, message),) = more_partitions(broker, ("a", count, assigned))
    assert (name, answered) == ("a", code)
    assert message
    assert len(broker.metadata.image.topics["a"].partitions) == 2


def test_duplicate_or_unknown_topics_get_no_partitions() -> None:
    broker = AdminBroker(image_of({"a": 1, "b": 1}))
    response = more_partitions(broker, ("a", 2, None), ("b", 2, None), ("a", 3, None), ("gone", 2, None))
    assert [each[:2] for each in response] == [("a", INVALID_REQUEST), ("b", 0), ("gone", 3)]
    assert len(broker.metadata.image.topics["a"].partitions) == 1
