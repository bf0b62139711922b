"""Limits of batches above the limit of requests: the node starts, and the lower limit applies."""

from collections.abc import Callable, Mapping

import pytest
from broker_under_test import AGAINST_KAFKA, Broker

from support.topics import Topics
from support.wire import (
    DESCRIBE_CONFIGS,
    INCREMENTAL_ALTER_CONFIGS,
    PRODUCE,
    WireClient,
    batch,
    produce,
    produce_tree,
    wait_until,
)

StartNode = Callable[[Mapping[str, str]], Broker]

TOPIC, BROKER = 2, 4
REQUEST_BYTES_MAX = 100_000
MESSAGE_BYTES_MAX = 200_000
LIMITS = {"socket.request.max.bytes": str(REQUEST_BYTES_MAX), "message.max.bytes": str(MESSAGE_BYTES_MAX)}


@pytest.fixture
def small_node(start_node: StartNode) -> Broker:
    return start_node(LIMITS)


def test_a_node_starts_with_a_batch_limit_above_its_request_limit(small_node: Broker) -> None:
    topic = Topics(small_node.bootstrap).create()
    with WireClient(small_node.bootstrap) as client:
        assert produce(client, topic, batch([bytes(REQUEST_BYTES_MAX - 1000)])) == (0, 0)
    with WireClient(small_node.bootstrap) as client:
        client.send(PRODUCE, 9, produce_tree(topic, batch([bytes(REQUEST_BYTES_MAX + 1000)])))
        assert client.is_closed()
    if not AGAINST_KAFKA:
        assert "message.max.bytes is greater than socket.request.max.bytes" in small_node.output()


@pytest.mark.parametrize(
    ("resource", "name"), [(TOPIC, "max.message.bytes"), (BROKER, "message.max.bytes")], ids=["topic", "brokers"]
)
def test_a_batch_limit_can_be_altered_to_more_than_the_request_limit(
    small_node: Broker, resource: int, name: str
) -> None:
    topic = Topics(small_node.bootstrap).create(max_message_bytes=2 * MESSAGE_BYTES_MAX)
    resource_name = topic if resource == TOPIC else ""
    change = {"name": name, "config_operation": 0, "value": "5000000"}
    alteration = {"resource_type": resource, "resource_name": resource_name, "configs": [change]}
    with WireClient(small_node.bootstrap) as client:
        response = client.request(INCREMENTAL_ALTER_CONFIGS, 1, {"resources": [alteration], "validate_only": False})
        assert response["responses"][0]["error_code"] == 0
        described = {"resource_type": resource, "resource_name": resource_name, "configuration_keys": [name]}

        def values() -> list[str]:
            response = client.request(DESCRIBE_CONFIGS, 4, {"resources": [described]})
            return [each["value"] for each in response["results"][0]["configs"]]

        wait_until(lambda: values() == ["5000000"], "the change has no effect")
