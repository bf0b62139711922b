"""Configs and partitions in a cluster with eligible leader replicas: min.insync.replicas is the same on all brokers."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from broker_under_test import Broker

from support.topics import Topics
from support.wire import DESCRIBE_CONFIGS, INCREMENTAL_ALTER_CONFIGS, WireClient, wait_until

StartNode = Callable[[Mapping[str, str]], Broker]

ALTER_CONFIGS, DESCRIBE_TOPIC_PARTITIONS = 33, 75
TOPIC, BROKER = 2, 4
NODE, ALL = "1", ""
SET, DELETE = 0, 1
NONE, INVALID_CONFIG, INVALID_REQUEST = 0, 40, 42
SOURCE_TOPIC, DYNAMIC_DEFAULT_BROKER, STATIC_BROKER, DEFAULT = 1, 3, 4, 5
MIN_ISR = "min.insync.replicas"
NO_BROKER_VALUE = "Broker-level min.insync.replicas cannot be altered while ELR is enabled."
NO_REMOVAL = "Cluster-level min.insync.replicas cannot be removed while ELR is enabled."


Sourced = tuple[str, int]
"""A value and its source."""


def sources(client: WireClient, kind: int, name: str) -> tuple[Sourced, list[Sourced]]:
    """Returns min.insync.replicas and its synonyms."""
    wanted = {"resource_type": kind, "resource_name": name, "configuration_keys": [MIN_ISR]}
    (result,) = client.request(DESCRIBE_CONFIGS, 4, {"resources": [wanted], "include_synonyms": True})["results"]
    (entry,) = result["configs"]
    assert (entry["read_only"], entry["is_sensitive"]) == (False, False)
    synonyms = [(each["value"], each["source"]) for each in entry["synonyms"]]
    return (entry["value"], entry["config_source"]), synonyms


def layers(*synonyms: Sourced) -> tuple[Sourced, list[Sourced]]:
    """Returns what `sources` must return: the first synonym is effective."""
    return synonyms[0], list(synonyms)


def alter(client: WireClient, name: str, operation: int, value: str | None, **more: Any) -> tuple[int, str | None]:
    change = {"name": MIN_ISR, "config_operation": operation, "value": value}
    alteration = {"resource_type": BROKER, "resource_name": name, "configs": [change]}
    tree = {"resources": [alteration], "validate_only": False, **more}
    (response,) = client.request(INCREMENTAL_ALTER_CONFIGS, 1, tree)["responses"]
    return response["error_code"], response["error_message"]


def replace(client: WireClient, name: str, configs: Mapping[str, str]) -> tuple[int, str | None]:
    listed = [{"name": each, "value": value} for each, value in configs.items()]
    alteration = {"resource_type": BROKER, "resource_name": name, "configs": listed}
    (response,) = client.request(ALTER_CONFIGS, 2, {"resources": [alteration], "validate_only": False})["responses"]
    return response["error_code"], response["error_message"]


def test_min_isr_is_a_config_of_all_brokers(client: WireClient, topics: Topics) -> None:
    assert sources(client, BROKER, ALL) == layers(("1", DYNAMIC_DEFAULT_BROKER))
    assert sources(client, BROKER, NODE) == layers(("1", DYNAMIC_DEFAULT_BROKER), ("1", DEFAULT))
    assert sources(client, TOPIC, topics.create()) == layers(("1", DYNAMIC_DEFAULT_BROKER), ("1", DEFAULT))
    own = topics.create(min_insync_replicas=2)
    assert sources(client, TOPIC, own) == layers(("2", SOURCE_TOPIC), ("1", DYNAMIC_DEFAULT_BROKER), ("1", DEFAULT))


def test_a_new_cluster_stores_the_setting_of_its_controller(start_node: StartNode) -> None:
    node = start_node({MIN_ISR: "2"})
    with WireClient(node.bootstrap) as client:
        assert sources(client, BROKER, ALL) == layers(("2", DYNAMIC_DEFAULT_BROKER))
        assert sources(client, BROKER, NODE) == layers(
            ("2", DYNAMIC_DEFAULT_BROKER), ("2", STATIC_BROKER), ("1", DEFAULT)
        )


@pytest.mark.parametrize(("operation", "value"), [(SET, "2"), (SET, "1"), (DELETE, None)])
def test_a_single_broker_cannot_have_its_own_value(client: WireClient, operation: int, value: str | None) -> None:
    assert alter(client, NODE, operation, value) == (INVALID_CONFIG, NO_BROKER_VALUE)
    assert alter(client, NODE, operation, value, validate_only=True) == (INVALID_CONFIG, NO_BROKER_VALUE)


def test_an_invalid_value_is_reported_first(client: WireClient) -> None:
    reason = "Invalid value soon for configuration min.insync.replicas: Not a number of type INT"
    assert alter(client, NODE, SET, "soon") == (INVALID_REQUEST, reason)


def test_the_value_of_all_brokers_cannot_be_removed(client: WireClient) -> None:
    assert alter(client, ALL, DELETE, None) == (INVALID_CONFIG, NO_REMOVAL)
    assert replace(client, ALL, {}) == (INVALID_CONFIG, NO_REMOVAL)
    assert replace(client, ALL, {"log.retention.ms": "1000"}) == (INVALID_CONFIG, NO_REMOVAL)
    assert replace(client, NODE, {MIN_ISR: "1"}) == (INVALID_CONFIG, NO_BROKER_VALUE)
    assert replace(client, NODE, {}) == (NONE, None)


def test_the_value_of_all_brokers_can_be_altered(client: WireClient, topics: Topics) -> None:
    topic = topics.create()
    for value in ("2", "1"):
        assert alter(client, ALL, SET, value) == (NONE, None)
        expected = layers((value, DYNAMIC_DEFAULT_BROKER), ("1", DEFAULT))
        wait_until(lambda: sources(client, TOPIC, topic) == expected, "the topic does not have the value")  # noqa: B023


def test_partitions_have_empty_lists_without_such_replicas(client: WireClient, topics: Topics) -> None:
    topic = topics.create()
    request = {"topics": [{"name": topic}], "response_partition_limit": 10, "cursor": None}
    (described,) = client.request(DESCRIBE_TOPIC_PARTITIONS, 0, request)["topics"]
    (partition,) = described["partitions"]
    assert (partition["isr_nodes"], partition["eligible_leader_replicas"], partition["last_known_elr"]) == ([1], [], [])
