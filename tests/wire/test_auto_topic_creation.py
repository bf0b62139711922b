"""Metadata of topics that do not exist: the response comes at once, and the topic is created in the background."""

import time
from collections.abc import Callable, Mapping
from typing import Any
from uuid import UUID

import pytest
from broker_under_test import Broker

from support.topics import Topics, unique
from support.wire import CREATE_TOPICS, METADATA, WireClient, latest, topic_id

StartNode = Callable[[Mapping[str, str]], Broker]

UNKNOWN_TOPIC_OR_PARTITION, INVALID_TOPIC_EXCEPTION, INVALID_REQUEST, UNKNOWN_TOPIC_ID = 3, 17, 42, 100
CREATED_WITHIN_S = 10
INVALID_NAMES = ["", ".", "..", "x" * 250, "no spaces!", "a/b"]
INTERNAL_TOPICS = ["__consumer_offsets", "__transaction_state", "__share_group_state"]
NOT_REQUESTED = -(2**31)


def metadata(wire: WireClient, *topics: dict[str, Any], version: int = 12, create: bool = True) -> list[dict[str, Any]]:
    tree = {"topics": list(topics), "allow_auto_topic_creation": create}
    found: list[dict[str, Any]] = wire.request(METADATA, version, tree)["topics"]
    return found


def codes(wire: WireClient, *names: str, version: int = 12, create: bool = True) -> dict[str, int]:
    found = metadata(wire, *({"name": name} for name in names), version=version, create=create)
    return {topic["name"]: topic["error_code"] for topic in found}


def wait_until_created(wire: WireClient, *names: str) -> None:
    """Waits until the metadata has the topics. The requests do not create topics."""
    deadline = time.monotonic() + CREATED_WITHIN_S
    while any(codes(wire, *names, create=False).values()):
        assert time.monotonic() < deadline, "the topics were not created"
        time.sleep(0.01)


@pytest.mark.parametrize("version", range(14))
def test_a_missing_topic_is_unknown_at_first_and_created(client: WireClient, version: int) -> None:
    name = unique()
    (response,) = metadata(client, {"name": name}, version=version)
    expected: dict[str, Any] = {"error_code": UNKNOWN_TOPIC_OR_PARTITION, "name": name, "partitions": []}
    if version >= 1:
        expected["is_internal"] = False
    if version >= 8:
        expected["topic_authorized_operations"] = NOT_REQUESTED
    if version >= 10:
        expected["topic_id"] = None
    assert response == expected
    wait_until_created(client, name)


def test_a_created_topic_can_be_used(client: WireClient) -> None:
    name = unique()
    codes(client, name)
    wait_until_created(client, name)
    deadline = time.monotonic() + CREATED_WITHIN_S
    while (found := latest(client, name))["error_code"]:
        assert time.monotonic() < deadline, "the topic has no leader"
        time.sleep(0.01)
    assert found["offset"] == 0


def test_many_requests_create_a_topic_once(client: WireClient) -> None:
    name = unique()
    for _ in range(20):
        client.send(METADATA, 9, {"topics": [{"name": name}], "allow_auto_topic_creation": True})
    for _ in range(20):
        client.receive(METADATA, 9)
    wait_until_created(client, name)
    created = topic_id(client, name)
    for _ in range(20):
        (response,) = metadata(client, {"name": name})
        assert (response["error_code"], response["topic_id"]) == (0, created)


def test_each_missing_topic_of_a_request_is_created(client: WireClient, topics: Topics) -> None:
    existing, missing = topics.create(), [unique() for _ in range(5)]
    response = metadata(client, *({"name": name} for name in [existing, *missing, *missing]))
    assert {topic["name"]: topic["error_code"] for topic in response} == {
        existing: 0,
        **dict.fromkeys(missing, UNKNOWN_TOPIC_OR_PARTITION),
    }
    assert len(response) == 6, "each topic has one response"
    wait_until_created(client, *missing)


@pytest.mark.parametrize("version", [4, 9, 12, 13])
def test_a_client_can_refuse_the_creation(client: WireClient, version: int) -> None:
    name, created = unique(), unique()
    assert codes(client, name, version=version, create=False) == {name: UNKNOWN_TOPIC_OR_PARTITION}
    codes(client, created)
    wait_until_created(client, created)
    assert codes(client, name, create=False) == {name: UNKNOWN_TOPIC_OR_PARTITION}


def test_a_broker_can_refuse_the_creation(start_node: StartNode) -> None:
    node = start_node({"auto.create.topics.enable": "false"})
    name, created = unique(), unique()
    with WireClient(node.bootstrap) as wire:
        assert codes(wire, name) == {name: UNKNOWN_TOPIC_OR_PARTITION}
        topic = {"name": created, "num_partitions": 1, "replication_factor": 1}
        wire.request(CREATE_TOPICS, 7, {"topics": [topic], "timeout": 10_000})
        wait_until_created(wire, created)
        assert codes(wire, name) == {name: UNKNOWN_TOPIC_OR_PARTITION}


@pytest.mark.parametrize("create", [True, False])
@pytest.mark.parametrize("name", INVALID_NAMES)
def test_an_invalid_name_has_its_own_error(client: WireClient, name: str, create: bool) -> None:
    assert codes(client, name, create=create) == {name: INVALID_TOPIC_EXCEPTION}


@pytest.mark.parametrize("name", INTERNAL_TOPICS)
def test_a_missing_internal_topic_is_marked_as_internal(start_node: StartNode, name: str) -> None:
    with WireClient(start_node({}).bootstrap) as wire:
        (response,) = metadata(wire, {"name": name}, create=False)
    assert (response["error_code"], response["is_internal"]) == (UNKNOWN_TOPIC_OR_PARTITION, True)


def test_the_offsets_topic_is_created(start_node: StartNode) -> None:
    node = start_node({"offsets.topic.num.partitions": "7"})
    with WireClient(node.bootstrap) as wire:
        assert codes(wire, "__consumer_offsets") == {"__consumer_offsets": UNKNOWN_TOPIC_OR_PARTITION}
        wait_until_created(wire, "__consumer_offsets")
        (response,) = metadata(wire, {"name": "__consumer_offsets"})
    assert response["is_internal"]
    assert len(response["partitions"]) == 7


def test_the_metadata_log_is_no_topic(client: WireClient) -> None:
    created = unique()
    codes(client, "__cluster_metadata", created)
    wait_until_created(client, created)
    assert codes(client, "__cluster_metadata") == {"__cluster_metadata": UNKNOWN_TOPIC_OR_PARTITION}


def test_a_creation_that_the_controller_rejects_leaves_the_topic_unknown(start_node: StartNode) -> None:
    node = start_node({"default.replication.factor": "2"})
    name, created = unique(), unique()
    with WireClient(node.bootstrap) as wire:
        assert codes(wire, name) == {name: UNKNOWN_TOPIC_OR_PARTITION}
        topic = {"name": created, "num_partitions": 1, "replication_factor": 1}
        wire.request(CREATE_TOPICS, 7, {"topics": [topic], "timeout": 10_000})
        wait_until_created(wire, created)
        for _ in range(20):
            assert codes(wire, name) == {name: UNKNOWN_TOPIC_OR_PARTITION}


def test_a_missing_topic_has_authorized_operations(client: WireClient) -> None:
    topics = [{"name": unique()}]
    response = client.request(METADATA, 9, {"topics": topics, "include_topic_authorized_operations": True})
    assert response["topics"][0]["topic_authorized_operations"] == 0b110111111000


def test_an_unknown_id_creates_nothing_and_hides_the_names(client: WireClient) -> None:
    name, unknown = unique(), UUID(int=9)
    response = metadata(client, {"name": name, "topic_id": unknown}, {"name": unique()})
    assert [(topic["error_code"], topic["name"], topic["topic_id"]) for topic in response] == [
        (UNKNOWN_TOPIC_ID, None, unknown)
    ]
    created = unique()
    codes(client, created)
    wait_until_created(client, created)
    assert codes(client, name, create=False) == {name: UNKNOWN_TOPIC_OR_PARTITION}


@pytest.mark.parametrize("version", [10, 11])
def test_ids_are_rejected_before_version_12(client: WireClient, version: int) -> None:
    tree = {"topics": [{"name": None, "topic_id": UUID(int=9)}, {"name": unique()}]}
    response = client.request(METADATA, version, tree)
    assert [topic["error_code"] for topic in response["topics"]] == [INVALID_REQUEST, INVALID_REQUEST]
    assert response["brokers"] == []
