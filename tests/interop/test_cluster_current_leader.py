"""The current leader and its address in NOT_LEADER_OR_FOLLOWER (KIP-951): the same on Moldau and on Apache Kafka
(`MOLDAU_TEST_BROKER=kafka`)."""

import time
from collections.abc import Iterator
from typing import Any

import pytest
from apache_kafka import ApacheKafka
from broker_under_test import AGAINST_KAFKA
from confluent_kafka.admin import AdminClient, NewTopic
from kafka_cluster import KafkaCluster
from moldau_cluster import three_nodes

from support.broker_process_cluster import BrokerProcessCluster
from support.topics import QUIET, unique
from support.wire import FETCH, METADATA, PRODUCE, WireClient, batch, fetch_tree, produce_tree

NOT_LEADER_OR_FOLLOWER, INVALID_RECORD = 6, 87
CONTROL_FLAG = 0x20
NO_LEADER = {"leader_id": -1, "leader_epoch": -1}
TIMEOUT_S = 60
Nodes = BrokerProcessCluster | KafkaCluster


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    directory = tmp_path_factory.mktemp("leader")
    if AGAINST_KAFKA:
        reason = ApacheKafka.available()
        if reason is not None:
            pytest.skip(f"Apache Kafka is not available: {reason}")
        with KafkaCluster(directory) as kafka:
            yield kafka
    else:
        with three_nodes(directory) as moldau:
            yield moldau


@pytest.fixture(scope="module")
def topic(nodes: Nodes) -> str:
    """A topic with a leader on node 1 and a follower on node 2. Node 3 has no replica."""
    name = unique()
    admin = AdminClient({"bootstrap.servers": nodes.bootstrap, **QUIET})
    deadline = time.monotonic() + TIMEOUT_S
    while len(admin.list_topics(timeout=20).brokers) < 3:
        assert time.monotonic() < deadline, "not all nodes are registered"
        time.sleep(0.05)
    config = {"min.insync.replicas": "1"}
    admin.create_topics([NewTopic(name, 1, replica_assignment=[[1, 2]], config=config)])[name].result(TIMEOUT_S)
    for node in nodes.nodes.values():
        with WireClient(node.bootstrap) as wire:
            # Kafka responds before all brokers have applied the change.
            while not describe(wire, name)["partitions"]:
                assert time.monotonic() < deadline, "not all nodes know the topic"
                time.sleep(0.05)
    return name


def describe(wire: WireClient, topic: str) -> dict[str, Any]:
    tree = {"topics": [{"name": topic, "topic_id": None}], "allow_auto_topic_creation": False}
    (found,) = wire.request(METADATA, 12, tree)["topics"]
    result: dict[str, Any] = found
    return result


def expected(nodes: Nodes, *, named: bool) -> tuple[Any, ...]:
    """The error code, the current leader and the endpoints."""
    if not named:
        return NOT_LEADER_OR_FOLLOWER, NO_LEADER, []
    host, port = nodes.nodes[1].bootstrap.split(":")
    endpoint = {"node_id": 1, "host": host, "port": int(port), "rack": None}
    return NOT_LEADER_OR_FOLLOWER, {"leader_id": 1, "leader_epoch": 0}, [endpoint]


def produce(nodes: Nodes, topic: str, node_id: int, version: int, *batches: bytes) -> tuple[Any, ...]:
    """Returns the error code, the current leader and the endpoints."""
    with WireClient(nodes.nodes[node_id].bootstrap) as wire:
        tree = produce_tree(topic, *batches)
        if version >= 13:
            tree["topic_data"][0]["topic_id"] = describe(wire, topic)["topic_id"]
        response = wire.request(PRODUCE, version, tree)
        (partition,) = response["responses"][0]["partition_responses"]
        return partition["error_code"], partition["current_leader"], response["node_endpoints"]


@pytest.mark.parametrize("node_id", [2, 3])
@pytest.mark.parametrize("version", [10, 12, 13])
def test_produce_to_another_broker_returns_the_leader(nodes: Nodes, topic: str, node_id: int, version: int) -> None:
    assert produce(nodes, topic, node_id, version, batch()) == expected(nodes, named=True)


@pytest.mark.parametrize("node_id", [2, 3])
@pytest.mark.parametrize(
    "invalid",
    [batch(crc=1), batch(base_offset=5), batch(count=7), batch(attributes=CONTROL_FLAG), batch([b"x" * 2_000_000])],
    ids=["checksum", "base offset", "count", "control", "size"],
)
def test_only_the_leader_checks_the_content_of_a_batch(nodes: Nodes, topic: str, node_id: int, invalid: bytes) -> None:
    assert produce(nodes, topic, node_id, 12, invalid) == expected(nodes, named=True)


def test_a_follower_checks_that_there_is_one_batch(nodes: Nodes, topic: str) -> None:
    assert produce(nodes, topic, 2, 12, batch(), batch()) == (INVALID_RECORD, NO_LEADER, [])


@pytest.mark.parametrize("version", [12, 13, 15, 16, 17, 18])
def test_fetch_from_a_broker_without_a_replica_returns_the_leader(nodes: Nodes, topic: str, version: int) -> None:
    with WireClient(nodes.nodes[3].bootstrap) as wire:
        tree = fetch_tree(topic, 0)
        tree["topics"][0]["topic_id"] = describe(wire, topic)["topic_id"]
        response = wire.request(FETCH, version, tree)
        (partition,) = response["responses"][0]["partitions"]
        found = partition["error_code"], partition["current_leader"], response.get("node_endpoints", [])
        assert found == expected(nodes, named=version >= 16)
