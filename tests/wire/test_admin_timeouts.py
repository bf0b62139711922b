"""Timeouts of requests to the controller: with 0 or less nothing is changed, and any other is long enough."""

import time
from typing import Any

import pytest
from broker_under_test import AGAINST_KAFKA

from support.topics import Topics, unique
from support.wire import CREATE_TOPICS, DELETE_TOPICS, METADATA, WireClient

ELECT_LEADERS, CREATE_PARTITIONS, ALTER_REASSIGNMENTS, LIST_REASSIGNMENTS = 43, 37, 45, 46
REQUEST_TIMED_OUT, UNKNOWN_TOPIC_OR_PARTITION, ELECTION_NOT_NEEDED = 7, 3, 84
TIMED_OUT = (REQUEST_TIMED_OUT, None)
SHORT_MS = 10_000 if AGAINST_KAFKA else 1_000
"""Kafka may exceed a timeout of a few milliseconds, and a longer one on a busy machine."""

expired = pytest.mark.parametrize("timeout_ms", [0, -1])


def partition_count(client: WireClient, name: str) -> int:
    """Returns 0 if there is no such topic."""
    tree = {"topics": [{"name": name, "topic_id": None}], "allow_auto_topic_creation": False}
    (topic,) = client.request(METADATA, 12, tree)["topics"]
    assert topic["error_code"] in (0, UNKNOWN_TOPIC_OR_PARTITION)
    return len(topic["partitions"])


def errors(results: list[dict[str, Any]]) -> list[tuple[int, str | None]]:
    return [(each["error_code"], each["error_message"]) for each in results]


def create(client: WireClient, name: str, timeout_ms: int) -> list[tuple[int, str | None]]:
    topic = {"name": name, "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
    return errors(client.request(CREATE_TOPICS, 7, {"topics": [topic], "timeout": timeout_ms})["topics"])


def add_partitions(client: WireClient, name: str, timeout_ms: int) -> list[tuple[int, str | None]]:
    topic = {"name": name, "count": 3, "assignments": None}
    return errors(client.request(CREATE_PARTITIONS, 3, {"topics": [topic], "timeout": timeout_ms})["results"])


def delete(client: WireClient, name: str, timeout_ms: int) -> list[tuple[int, str | None]]:
    topic = {"name": name, "topic_id": None}
    return errors(client.request(DELETE_TOPICS, 6, {"topics": [topic], "timeout": timeout_ms})["responses"])


@expired
def test_an_expired_creation_creates_nothing(client: WireClient, timeout_ms: int) -> None:
    name = unique()
    assert create(client, name, timeout_ms) == [TIMED_OUT]
    assert partition_count(client, name) == 0


@expired
def test_an_expired_increase_adds_nothing(client: WireClient, topics: Topics, timeout_ms: int) -> None:
    name = topics.create()
    assert add_partitions(client, name, timeout_ms) == [TIMED_OUT]
    assert partition_count(client, name) == 1


@expired
def test_an_expired_deletion_deletes_nothing(client: WireClient, topics: Topics, timeout_ms: int) -> None:
    name = topics.create()
    assert delete(client, name, timeout_ms) == [TIMED_OUT]
    assert partition_count(client, name) == 1


@expired
def test_an_expired_election_fails_for_every_partition(client: WireClient, topics: Topics, timeout_ms: int) -> None:
    name = topics.create(partitions=2)
    partitions = [{"topic": name, "partitions": [0, 1]}]
    tree = {"election_type": 0, "topic_partitions": partitions, "timeout": timeout_ms}
    response = client.request(ELECT_LEADERS, 2, tree)
    assert response["error_code"] == REQUEST_TIMED_OUT
    (topic,) = response["replica_election_results"]
    assert errors(topic["partition_result"]) == [TIMED_OUT, TIMED_OUT]


@expired
def test_an_expired_reassignment_fails_for_every_partition(client: WireClient, topics: Topics, timeout_ms: int) -> None:
    name = topics.create()
    partition = {"partition_index": 0, "replicas": [1]}
    tree = {"timeout": timeout_ms, "topics": [{"name": name, "partitions": [partition]}]}
    response = client.request(ALTER_REASSIGNMENTS, 0, tree)
    assert (response["error_code"], response["error_message"]) == TIMED_OUT
    (topic,) = response["responses"]
    assert errors(topic["partitions"]) == [TIMED_OUT]


@expired
def test_reassignments_are_listed_with_any_timeout(client: WireClient, timeout_ms: int) -> None:
    response = client.request(LIST_REASSIGNMENTS, 0, {"timeout": timeout_ms, "topics": None})
    assert (response["error_code"], response["topics"]) == (0, [])


def test_a_short_timeout_is_long_enough(client: WireClient) -> None:
    name = unique()
    assert create(client, name, SHORT_MS) == [(0, None)]
    assert add_partitions(client, name, SHORT_MS) == [(0, None)]
    wait_until_led(client, name, partitions=3)
    tree = {"election_type": 0, "topic_partitions": [{"topic": name, "partitions": [0]}], "timeout": SHORT_MS}
    (topic,) = client.request(ELECT_LEADERS, 2, tree)["replica_election_results"]
    assert [each["error_code"] for each in topic["partition_result"]] == [ELECTION_NOT_NEEDED]
    assert delete(client, name, SHORT_MS) == [(0, None)]


def wait_until_led(client: WireClient, name: str, partitions: int) -> None:
    # Kafka responds before the broker has applied the change. Moldau does not.
    deadline = time.monotonic() + 20
    while partition_count(client, name) < partitions:
        assert time.monotonic() < deadline
        time.sleep(0.05)
