"""Unknown or invalid topic names, partitions, offsets, epochs and configs."""

from typing import Any
from uuid import UUID

import pytest

from support.topics import Topics, unique
from support.wire import (
    CREATE_TOPICS,
    DELETE_RECORDS,
    DELETE_TOPICS,
    DESCRIBE_CONFIGS,
    FETCH,
    INCREMENTAL_ALTER_CONFIGS,
    LIST_OFFSETS,
    METADATA,
    OFFSET_FOR_LEADER_EPOCH,
    WireClient,
    batch,
    fetch,
    fetch_tree,
    produce,
    topic_id,
)

CREATE_PARTITIONS, DESCRIBE_PRODUCERS, DESCRIBE_TOPIC_PARTITIONS = 37, 61, 75
MISSING = "missing-topic"
TOPIC, BROKER = 2, 4
ILLEGAL_NAMES = ["", ".", "..", "x" * 250, "no spaces!", "a/b", "a:b", "Vltava-řeka", "nul\0nul"]


def create(wire: WireClient, name: str, **more: Any) -> int:
    topic = {"name": name, "num_partitions": 1, "replication_factor": 1, **more}
    (response,) = wire.request(CREATE_TOPICS, 7, {"topics": [topic], "timeout": 10_000})["topics"]
    code: int = response["error_code"]
    assert (code == 0) == (response["error_message"] is None), "an error has a message, success has none"
    return code


@pytest.mark.parametrize("name", ILLEGAL_NAMES)
def test_an_invalid_topic_name_is_rejected_everywhere(wire: WireClient, name: str) -> None:
    assert create(wire, name) == 17
    for may_create in (False, True):
        tree = {"topics": [{"name": name}], "allow_auto_topic_creation": may_create}
        assert [topic["error_code"] for topic in wire.request(METADATA, 9, tree)["topics"]] == [17]
    assert describe(wire, TOPIC, name)["error_code"] == 17
    assert alter(wire, TOPIC, name, ("retention.ms", 0, "1")) == (17 if name else 42)


def test_the_longest_topic_name_is_accepted(wire: WireClient) -> None:
    assert create(wire, unique("x" * 236)) == 0


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"num_partitions": 0}, 37),
        ({"num_partitions": -5}, 37),
        ({"replication_factor": 0}, 38),
        ({"replication_factor": -3}, 38),
        ({"replication_factor": 7}, 38),
        ({"assignments": [{"partition_index": 0, "broker_ids": [1]}]}, 42),
        ({"configs": [{"name": "retention.ms", "value": None}]}, 40),
        ({"configs": [{"name": "no.such", "value": "1"}]}, 40),
    ],
    ids=str,
)
def test_an_invalid_topic_is_not_created(wire: WireClient, more: dict[str, Any], code: int) -> None:
    name = unique()
    assert create(wire, name, **more) == code
    tree = {"topics": [{"name": name}], "allow_auto_topic_creation": False}
    assert [topic["error_code"] for topic in wire.request(METADATA, 9, tree)["topics"]] == [3]


@pytest.mark.parametrize(
    "placed",
    [[(0, [1]), (2, [1])], [(0, [77])], [(0, [1, 1])], [(0, [])], [(0, [1]), (0, [1])]],
    ids=["a gap", "an unknown broker", "one broker twice", "no broker", "one partition twice"],
)
def test_an_invalid_assignment_is_rejected(wire: WireClient, placed: list[tuple[int, list[int]]]) -> None:
    assignments = [{"partition_index": index, "broker_ids": brokers} for index, brokers in placed]
    assert create(wire, unique(), num_partitions=-1, replication_factor=-1, assignments=assignments) == 39


def test_a_duplicate_topic_is_rejected(wire: WireClient) -> None:
    topic = {"name": unique(), "num_partitions": 1, "replication_factor": 1}
    (response,) = wire.request(CREATE_TOPICS, 7, {"topics": [topic, topic], "timeout": 1000})["topics"]
    assert response["error_code"] == 42


@pytest.mark.parametrize(
    ("wanted", "code"),
    [
        ({"name": MISSING}, 3),
        ({"name": None, "topic_id": UUID(int=5)}, 100),
        ({"name": None, "topic_id": None}, 42),
        ({"name": MISSING, "topic_id": UUID(int=5)}, 42),
    ],
    ids=["an unknown name", "an unknown id", "neither", "both"],
)
def test_an_unknown_topic_is_not_deleted(wire: WireClient, wanted: dict[str, Any], code: int) -> None:
    (response,) = wire.request(DELETE_TOPICS, 6, {"topics": [wanted], "timeout": 5000})["responses"]
    assert response["error_code"] == code


def test_metadata_returns_unknown_topics_with_an_error(wire: WireClient, topics: Topics) -> None:
    def codes(version: int, *wanted: dict[str, Any]) -> list[int]:
        tree = {"topics": list(wanted), "allow_auto_topic_creation": False}
        return [topic["error_code"] for topic in wire.request(METADATA, version, tree)["topics"]]

    topic = topics.create()
    assert codes(12, {"name": MISSING}) == [3]
    assert codes(12, {"name": None, "topic_id": UUID(int=9)}) == [100]
    assert codes(12, {"name": None, "topic_id": topic_id(wire, topic)}) == [0]
    assert codes(10, {"name": None, "topic_id": UUID(int=9)}) == [42]


@pytest.mark.parametrize("offset", [11, -1, -2, 2**62, -(2**63)])
def test_an_offset_out_of_range_is_rejected(wire: WireClient, topics: Topics, offset: int) -> None:
    topic = topics.create()
    produce(wire, topic, batch([b"x"] * 10))
    response = fetch(wire, topic, offset)
    assert response["error_code"] == 1
    assert not response["records"]
    assert fetch(wire, topic, 10)["error_code"] == 0


def test_an_offset_below_the_log_start_is_rejected(wire: WireClient, topics: Topics) -> None:
    topic = topics.create()
    produce(wire, topic, batch([b"x"] * 10))
    assert delete_records(wire, topic, 4) == (0, 4)
    assert fetch(wire, topic, 3)["error_code"] == 1
    assert fetch(wire, topic, 4)["error_code"] == 0


@pytest.mark.parametrize(
    ("topic", "partition"), [(MISSING, 0), ("no spaces!", 0), ("", 0), (None, 1), (None, -1), (None, 2**31 - 1)]
)
def test_every_api_returns_unknown_topic_or_partition(
    wire: WireClient, topics: Topics, topic: str | None, partition: int
) -> None:
    name = topics.create() if topic is None else topic
    assert fetch(wire, name, 0, partition=partition)["error_code"] == 3
    assert list_offset(wire, name, -1, partition=partition)["error_code"] == 3
    assert delete_records(wire, name, 0, partition=partition) == (3, -1)
    assert epoch_end(wire, name, 0, partition=partition)["error_code"] == 3


def test_fetch_rejects_unknown_topic_ids(wire: WireClient, topics: Topics) -> None:
    def by_id(wanted: UUID) -> int:
        partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1000}
        tree = {**fetch_tree("", 0), "topics": [{"topic_id": wanted, "partitions": [partition]}]}
        code: int = wire.request(FETCH, 13, tree)["responses"][0]["partitions"][0]["error_code"]
        return code

    assert by_id(UUID(int=5)) == 100
    assert by_id(topic_id(wire, topics.create())) == 0


def test_leader_epochs_are_checked(wire: WireClient, topics: Topics) -> None:
    topic = topics.create()
    assert fetch(wire, topic, 0, current_leader_epoch=0)["error_code"] == 0
    assert fetch(wire, topic, 0, current_leader_epoch=5)["error_code"] == 75
    assert list_offset(wire, topic, -1, epoch=5)["error_code"] == 75
    assert epoch_end(wire, topic, 0, current=5)["error_code"] == 75
    assert epoch_end(wire, topic, 5)["end_offset"] == -1
    produce(wire, topic, batch([b"x"] * 3))
    response = epoch_end(wire, topic, 0)
    assert (response["error_code"], response["leader_epoch"], response["end_offset"]) == (0, 0, 3)


@pytest.mark.parametrize("replica_id", [1, 5])
def test_a_client_with_a_replica_id_gets_no_records(wire: WireClient, topics: Topics, replica_id: int) -> None:
    topic = topics.create()
    produce(wire, topic, batch())
    response = fetch(wire, topic, 0, replica_id=replica_id)
    assert response["error_code"] != 0
    assert not response["records"]


@pytest.mark.parametrize("odd", [{"max_bytes": 0}, {"max_wait": -1}], ids=str)
def test_zero_limits_are_accepted(wire: WireClient, topics: Topics, odd: dict[str, int]) -> None:
    topic = topics.create()
    produce(wire, topic, batch())
    assert fetch(wire, topic, 0, **odd)["error_code"] == 0


@pytest.mark.parametrize("odd", [{"max_bytes": -1}, {"partition_max_bytes": -1}], ids=str)
def test_negative_limits_get_a_response(wire: WireClient, topics: Topics, odd: dict[str, int]) -> None:
    """Kafka responds UNKNOWN_SERVER_ERROR; any response that keeps the connection usable is accepted."""
    topic = topics.create()
    produce(wire, topic, batch())
    assert fetch(wire, topic, 0, **odd)["error_code"] in (-1, 0, 42)
    assert fetch(wire, topic, 0)["error_code"] == 0


def test_the_first_batch_is_sent_in_spite_of_a_small_limit(wire: WireClient, topics: Topics) -> None:
    topic = topics.create()
    produce(wire, topic, batch([bytes(5000)]))
    response = fetch(wire, topic, 0, partition_max_bytes=1, max_bytes=1)
    assert len(response["records"]) > 5000


def test_fetch_sessions_are_checked(wire: WireClient, topics: Topics) -> None:
    topic = topics.create()

    def request(session_id: int, epoch: int, *, full: bool = False) -> dict[str, Any]:
        tree = fetch_tree(topic, 0, session_id=session_id, session_epoch=epoch)
        return wire.request(FETCH, 12, tree if full else {**tree, "topics": []})

    assert request(12345, 1)["error_code"] == 70
    assert request(0, -1, full=True)["session_id"] == 0
    made = request(0, 0, full=True)
    session_id = made["session_id"]
    assert (made["error_code"], len(made["responses"])) == (0, 1)
    assert session_id != 0
    quiet = request(session_id, 1)
    assert (quiet["error_code"], quiet["session_id"], quiet["responses"]) == (0, session_id, [])
    assert request(session_id, 1)["error_code"] == 71
    assert request(session_id, 9)["error_code"] == 71
    produce(wire, topic, batch())
    news = request(session_id, 2)
    assert (news["error_code"], len(news["responses"])) == (0, 1)
    closed = request(session_id, -1)
    assert closed["session_id"] == 0
    assert request(session_id, 3)["error_code"] == 70


@pytest.mark.parametrize(
    ("version", "timestamp", "code"),
    [(1, -3, 35), (7, -3, 0), (7, -4, 35), (8, -4, 0), (7, -7, 35), (11, -7, 35), (7, 2**62, 0)],
)
def test_special_timestamps_depend_on_the_version(
    wire: WireClient, topics: Topics, version: int, timestamp: int, code: int
) -> None:
    assert list_offset(wire, topics.create(), timestamp, version=version)["error_code"] == code


def test_a_duplicate_partition_is_rejected(wire: WireClient, topics: Topics) -> None:
    partition = {"partition_index": 0, "timestamp": -1}
    tree = {"replica_id": -1, "topics": [{"name": topics.create(), "partitions": [partition, partition]}]}
    (topic,) = wire.request(LIST_OFFSETS, 7, tree)["topics"]
    assert {partition["error_code"] for partition in topic["partitions"]} == {42}


@pytest.mark.parametrize(("offset", "code"), [(5, 1), (-2, 1), (-1, 0), (0, 0)])
def test_records_are_not_deleted_beyond_the_end(wire: WireClient, topics: Topics, offset: int, code: int) -> None:
    assert delete_records(wire, topics.create(), offset)[0] == code


@pytest.mark.parametrize(
    ("kind", "name", "code"), [(TOPIC, MISSING, 3), (BROKER, "77", 42), (BROKER, "x", 42), (3, "x", 42), (99, "x", 42)]
)
def test_unknown_resources_have_no_configs(wire: WireClient, kind: int, name: str, code: int) -> None:
    response = describe(wire, kind, name)
    assert response["error_code"] == code
    assert response["configs"] == []


def test_unknown_config_names_are_left_out_of_descriptions(wire: WireClient, topics: Topics) -> None:
    response = describe(wire, TOPIC, topics.create(), ["retention.ms", "no.such"])
    assert [config["name"] for config in response["configs"]] == ["retention.ms"]


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ([("no.such", 0, "1")], 40),
        ([("retention.ms", 0, None)], 42),
        ([("retention.ms", 0, "1"), ("retention.ms", 0, "2")], 42),
        ([("retention.ms", 0, "")], 40),
        ([("retention.ms", 2, "1")], 40),
        ([], 0),
    ],
    ids=str,
)
def test_invalid_config_changes_are_rejected(
    wire: WireClient, topics: Topics, changes: list[tuple[str, int, str | None]], code: int
) -> None:
    topic = topics.create()
    assert alter(wire, TOPIC, topic, *changes) == code
    (retention,) = describe(wire, TOPIC, topic, ["retention.ms"])["configs"]
    assert retention["value"] == "604800000"


@pytest.mark.parametrize(("kind", "name", "code"), [(TOPIC, MISSING, 3), (BROKER, "77", 42), (99, "x", 42)])
def test_configs_of_unknown_resources_are_not_altered(wire: WireClient, kind: int, name: str, code: int) -> None:
    assert alter(wire, kind, name, ("retention.ms", 0, "1")) == code


@pytest.mark.parametrize("count", [0, -1, 1])
def test_partitions_cannot_be_removed(wire: WireClient, topics: Topics, count: int) -> None:
    tree = {"topics": [{"name": topics.create(), "count": count, "assignments": None}], "timeout": 5000}
    (response,) = wire.request(CREATE_PARTITIONS, 3, tree)["results"]
    assert response["error_code"] == 37


def test_describing_unknown_resources_returns_an_error(wire: WireClient, topics: Topics) -> None:
    tree = {"topics": [{"name": MISSING}, {"name": "no spaces!"}], "response_partition_limit": 10}
    response = wire.request(DESCRIBE_TOPIC_PARTITIONS, 0, tree)
    assert {topic["name"]: topic["error_code"] for topic in response["topics"]} == {MISSING: 3, "no spaces!": 17}
    tree = {"topics": [{"name": MISSING, "partition_indexes": [0]}]}
    (partition,) = wire.request(DESCRIBE_PRODUCERS, 0, tree)["topics"][0]["partitions"]
    assert partition["error_code"] == 3


def list_offset(
    wire: WireClient, topic: str, timestamp: int, partition: int = 0, epoch: int = -1, version: int = 7
) -> dict[str, Any]:
    wanted = {"partition_index": partition, "timestamp": timestamp, "current_leader_epoch": epoch}
    tree = {"replica_id": -1, "topics": [{"name": topic, "partitions": [wanted]}], "timeout_ms": 1000}
    found: dict[str, Any] = wire.request(LIST_OFFSETS, version, tree)["topics"][0]["partitions"][0]
    return found


def delete_records(wire: WireClient, topic: str, offset: int, partition: int = 0) -> tuple[int, int]:
    wanted = {"partition_index": partition, "offset": offset}
    tree = {"topics": [{"name": topic, "partitions": [wanted]}], "timeout": 5000}
    response = wire.request(DELETE_RECORDS, 2, tree)["topics"][0]["partitions"][0]
    return response["error_code"], response["low_watermark"]


def epoch_end(wire: WireClient, topic: str, epoch: int, partition: int = 0, current: int = -1) -> dict[str, Any]:
    wanted = {"partition": partition, "leader_epoch": epoch, "current_leader_epoch": current}
    tree = {"replica_id": -1, "topics": [{"topic": topic, "partitions": [wanted]}]}
    found: dict[str, Any] = wire.request(OFFSET_FOR_LEADER_EPOCH, 4, tree)["topics"][0]["partitions"][0]
    return found


def describe(wire: WireClient, kind: int, name: str, keys: list[str] | None = None) -> dict[str, Any]:
    resource = {"resource_type": kind, "resource_name": name, "configuration_keys": keys}
    (found,) = wire.request(DESCRIBE_CONFIGS, 4, {"resources": [resource]})["results"]
    response: dict[str, Any] = found
    return response


def alter(wire: WireClient, kind: int, name: str, *changes: tuple[str, int, str | None]) -> int:
    configs = [{"name": key, "config_operation": operation, "value": value} for key, operation, value in changes]
    resource = {"resource_type": kind, "resource_name": name, "configs": configs}
    (response,) = wire.request(INCREMENTAL_ALTER_CONFIGS, 1, {"resources": [resource]})["responses"]
    code: int = response["error_code"]
    return code
