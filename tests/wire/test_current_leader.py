"""The current leader and its address in errors about the leader (KIP-951), as far as a single node has such errors."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from broker_under_test import Broker

from support.topics import Topics, unique
from support.wire import FETCH, METADATA, PRODUCE, WireClient, batch, fetch_tree, produce_tree

FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH, CORRUPT_MESSAGE, UNKNOWN_TOPIC_OR_PARTITION = 74, 75, 2, 3
StartNode = Callable[[Mapping[str, str]], Broker]
NO_LEADER = {"leader_id": -1, "leader_epoch": -1}


def fetch(wire: WireClient, version: int, topic: str, leader_epoch: int) -> tuple[int, Any, Any]:
    """Fetches partition 0 and returns the error code, the current leader and the node endpoints."""
    tree = fetch_tree(topic, 0, current_leader_epoch=leader_epoch)
    if version >= 13:
        (found,) = wire.request(METADATA, 12, {"topics": [{"name": topic, "topic_id": None}]})["topics"]
        tree["topics"][0]["topic_id"] = found["topic_id"]
    response = wire.request(FETCH, version, tree)
    ((partition,),) = ([*topic["partitions"]] for topic in response["responses"])
    return partition["error_code"], partition["current_leader"], response.get("node_endpoints", [])


def test_a_fetch_with_an_old_leader_epoch_returns_the_current_leader_from_version_16_on(start_node: StartNode) -> None:
    node = start_node({})
    topic = Topics(node.bootstrap).create()
    # The leader epoch increases when the node returns after it was killed.
    node.kill()
    node.start()
    host, port = node.bootstrap.split(":")
    endpoint = {"node_id": 1, "host": host, "port": int(port), "rack": None}
    with WireClient(node.bootstrap) as wire:
        epoch = current_epoch(wire, topic)
        leader = {"leader_id": 1, "leader_epoch": epoch}
        for version in range(12, 19):
            expected = (NO_LEADER, []) if version < 16 else (leader, [endpoint])
            assert fetch(wire, version, topic, epoch - 1) == (FENCED_LEADER_EPOCH, *expected), version
            assert fetch(wire, version, topic, epoch + 1) == (UNKNOWN_LEADER_EPOCH, NO_LEADER, []), version


def current_epoch(wire: WireClient, topic: str) -> int:
    while True:
        (found,) = wire.request(METADATA, 12, {"topics": [{"name": topic, "topic_id": None}]})["topics"]
        if found["partitions"] and found["partitions"][0]["leader_id"] == 1:
            epoch: int = found["partitions"][0]["leader_epoch"]
            return epoch


@pytest.mark.parametrize("version", [10, 12])
def test_other_errors_of_produce_have_no_leader(client: WireClient, topics: Topics, version: int) -> None:
    for topic, records, code in (
        (topics.create(), batch(crc=1), CORRUPT_MESSAGE),
        (unique(), batch(), UNKNOWN_TOPIC_OR_PARTITION),
    ):
        response = client.request(PRODUCE, version, produce_tree(topic, records))
        (partition,) = response["responses"][0]["partition_responses"]
        assert partition["error_code"] == code
        assert (partition["current_leader"], response["node_endpoints"]) == (NO_LEADER, [])
