"""Clusters of Moldau nodes, and helpers that tests of Kafka's tools and clients share."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from command_line import TOPICS, Tools

from support.broker_process_cluster import BrokerProcessCluster

REASSIGN = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
ELECTION = "org.apache.kafka.tools.LeaderElectionCommand"
QUORUM = "org.apache.kafka.tools.MetadataQuorumCommand"
FEATURES = "org.apache.kafka.tools.FeatureCommand"
OFFSETS_TOPIC = "__consumer_offsets"
GROUPS = {"group.min.session.timeout.ms": "1000"}


@contextmanager
def three_nodes(
    directory: Path, settings: Mapping[str, str] | None = None, racks: Mapping[int, str] | None = None
) -> Iterator[BrokerProcessCluster]:
    with moldau_nodes(directory, 3, settings, racks) as cluster:
        yield cluster


@contextmanager
def moldau_nodes(
    directory: Path, count: int, settings: Mapping[str, str] | None = None, racks: Mapping[int, str] | None = None
) -> Iterator[BrokerProcessCluster]:
    """Starts the nodes; unexpected errors in their logs fail the tests."""
    with BrokerProcessCluster(directory, count, settings={**GROUPS, **(settings or {})}, racks=racks) as cluster:
        yield cluster
        for node in cluster.nodes.values():
            assert "Traceback" not in node.log_path.read_text()


def restore_cluster(cluster: BrokerProcessCluster) -> BrokerProcessCluster:
    """Starts nodes that an earlier test killed, and waits until all replicas are in sync."""
    for node_id, node in cluster.nodes.items():
        if node.process is None:
            cluster.start(node_id)
    cluster.wait_until(
        lambda: (
            len(cluster.metadata().brokers) == len(cluster.nodes)
            and all(
                sorted(each.isrs) == sorted(each.replicas) and each.leader in cluster.nodes
                for topic in cluster.metadata().topics.values()
                for each in topic.partitions.values()
            )
        ),
        "all replicas are in sync",
    )
    return cluster


def at(cluster: BrokerProcessCluster) -> tuple[str, str]:
    return ("--bootstrap-server", cluster.bootstrap)


def describe_topic(
    tools: Tools, cluster: BrokerProcessCluster, topic: str
) -> dict[int, tuple[int, list[int], list[int]]]:
    """Returns leader, replicas and ISR by partition, from the output of kafka-topics."""
    printed = tools.run(TOPICS, *at(cluster), "--describe", "--topic", topic)
    rows = re.findall(r"Partition: (\d+)\s+Leader: (\w+)\s+Replicas: ([\d,]*)\s+Isr: ([\d,]*)", printed)
    return {
        int(partition): (-1 if leader == "none" else int(leader), _numbers(replicas), _numbers(isr))
        for partition, leader, replicas, isr in rows
    }


def _numbers(written: str) -> list[int]:
    return [int(each) for each in written.split(",") if each]


def plan(path: Path, topic: str, replicas: Mapping[int, Sequence[int]]) -> Path:
    """Writes the JSON file for kafka-reassign-partitions."""
    partitions = [
        {"topic": topic, "partition": partition, "replicas": list(wanted)} for partition, wanted in replicas.items()
    ]
    path.write_text(json.dumps({"version": 1, "partitions": partitions}))
    return path
