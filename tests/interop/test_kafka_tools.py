"""Kafka's command-line tools for topics, configs and records."""

import json
import re

import pytest
from apache_kafka import KafkaFailed
from broker_under_test import Broker
from command_line import (
    CLUSTER,
    CONFIGS,
    CONSUMER,
    DELETE_RECORDS,
    LOG_DIRS,
    OFFSETS,
    PRODUCER,
    TOPICS,
    VERSIONS,
    Tools,
)

from support.topics import Topics, unique
from support.wire import WireClient, batch, end_offset, fetch, produce


def at(node: Broker) -> tuple[str, str]:
    return ("--bootstrap-server", node.bootstrap)


def test_kafka_topics_creates_lists_describes_alters_and_deletes(tools: Tools, node: Broker) -> None:
    topic = unique()
    settings = ["--partitions", "3", "--replication-factor", "1", "--config", "retention.ms=5000"]
    tools.run(TOPICS, *at(node), "--create", "--topic", topic, *settings)
    assert topic in tools.run(TOPICS, *at(node), "--list").split()
    described = tools.run(TOPICS, *at(node), "--describe", "--topic", topic)
    assert "PartitionCount: 3" in described
    assert "retention.ms=5000" in described
    assert len(re.findall(r"Leader: 1\s+Replicas: 1\s+Isr: 1", described)) == 3
    tools.run(TOPICS, *at(node), "--alter", "--topic", topic, "--partitions", "5")
    assert "PartitionCount: 5" in tools.run(TOPICS, *at(node), "--describe", "--topic", topic)
    with pytest.raises(KafkaFailed, match=r"TopicExistsException|already exists"):
        tools.run(TOPICS, *at(node), "--create", "--topic", topic)
    tools.run(TOPICS, *at(node), "--delete", "--topic", topic)
    assert topic not in tools.run(TOPICS, *at(node), "--list").split()


def test_kafka_configs_describes_and_alters(tools: Tools, node: Broker) -> None:
    topic = Topics(node.bootstrap).create()
    entity = ["--entity-type", "topics", "--entity-name", topic]
    tools.run(
        CONFIGS, *at(node), *entity, "--alter", "--add-config", "retention.ms=7000,cleanup.policy=[compact,delete]"
    )
    described = tools.run(CONFIGS, *at(node), *entity, "--describe")
    assert "retention.ms=7000" in described
    assert "cleanup.policy=compact,delete" in described
    assert "DYNAMIC_TOPIC_CONFIG:retention.ms=7000" in described
    tools.run(CONFIGS, *at(node), *entity, "--alter", "--delete-config", "retention.ms,cleanup.policy")
    assert "retention.ms" not in tools.run(CONFIGS, *at(node), *entity, "--describe")
    assert "DEFAULT_CONFIG:log.retention" in tools.run(CONFIGS, *at(node), *entity, "--describe", "--all")
    brokers = tools.run(CONFIGS, *at(node), "--entity-type", "brokers", "--entity-name", "1", "--describe", "--all")
    assert "message.max.bytes=1048588" in brokers
    with pytest.raises(KafkaFailed, match="InvalidConfig"):
        tools.run(CONFIGS, *at(node), *entity, "--alter", "--add-config", "retention.ms=soon")


def test_kafka_get_offsets_lists_offsets(tools: Tools, node: Broker) -> None:
    topic = Topics(node.bootstrap).create(partitions=2)
    with WireClient(node.bootstrap) as wire:
        produce(wire, topic, batch([b"x"] * 7), partition=1)
    latest = tools.run(OFFSETS, *at(node), "--topic", topic).split()
    assert latest == [f"{topic}:0:0", f"{topic}:1:7"]
    for special, offset in (("earliest", "0"), ("max-timestamp", "0"), ("earliest-local", "0")):
        response = tools.run(OFFSETS, *at(node), "--topic-partitions", f"{topic}:1", "--time", special).split()
        assert response == [f"{topic}:1:{offset}"]


def test_kafka_log_dirs_shows_sizes(tools: Tools, node: Broker) -> None:
    topic = Topics(node.bootstrap).create()
    with WireClient(node.bootstrap) as wire:
        produce(wire, topic, batch([bytes(1000)]))
    printed = tools.run(LOG_DIRS, *at(node), "--describe", "--topic-list", topic)
    response = json.loads(next(line for line in printed.splitlines() if line.startswith("{")))
    (directory,) = response["brokers"][0]["logDirs"]
    assert directory["error"] is None
    (partition,) = directory["partitions"]
    assert partition["partition"] == f"{topic}-0"
    assert 1000 < partition["size"] < 1200


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_the_console_producer_and_consumer_round_trip(tools: Tools, node: Broker, codec: str) -> None:
    topic = Topics(node.bootstrap).create()
    lines = [f"key-{number}:value {number}" for number in range(50)]
    properties = ["--reader-property", "parse.key=true", "--reader-property", "key.separator=:"]
    tools.run(
        PRODUCER, *at(node), "--topic", topic, "--compression-codec", codec, *properties, stdin="\n".join(lines) + "\n"
    )
    with WireClient(node.bootstrap) as wire:
        assert end_offset(wire, topic) == 50
        attributes = fetch(wire, topic, 0)["records"][22] & 7
        assert attributes == ["none", "gzip", "snappy", "lz4", "zstd"].index(codec)
    printed = tools.run(
        CONSUMER,
        *at(node),
        *("--topic", topic, "--partition", "0", "--offset", "earliest", "--max-messages", "50"),
        *("--formatter-property", "print.key=true", "--formatter-property", "key.separator=:"),
    )
    assert printed.splitlines() == lines


def test_the_java_client_supports_a_version_of_every_api_served(tools: Tools, node: Broker) -> None:
    printed = tools.run(VERSIONS, *at(node))
    for name in (
        "Produce(0)",
        "Fetch(1)",
        "ListOffsets(2)",
        "Metadata(3)",
        "ApiVersions(18)",
        "FindCoordinator(10)",
        "JoinGroup(11)",
        "SyncGroup(14)",
        "Heartbeat(12)",
        "LeaveGroup(13)",
        "OffsetCommit(8)",
        "OffsetFetch(9)",
        "OffsetDelete(47)",
        "DescribeGroups(15)",
        "ListGroups(16)",
        "DeleteGroups(42)",
        "InitProducerId(22)",
    ):
        (line,) = [line for line in printed.splitlines() if name in line]
        assert "usable:" in line


def test_the_cluster_tool_finds_the_cluster_id(tools: Tools, node: Broker) -> None:
    assert re.search(r"Cluster ID: \S{22}$", tools.run(CLUSTER, "cluster-id", *at(node)).strip())


def test_kafka_delete_records_moves_the_start(
    tools: Tools, node: Broker, tmp_path_factory: pytest.TempPathFactory
) -> None:
    topic = Topics(node.bootstrap).create()
    with WireClient(node.bootstrap) as wire:
        produce(wire, topic, batch([b"x"] * 7))
    wanted = tmp_path_factory.mktemp("delete") / "offsets.json"
    wanted.write_text(json.dumps({"partitions": [{"topic": topic, "partition": 0, "offset": 4}], "version": 1}))
    assert "low_watermark: 4" in tools.run(DELETE_RECORDS, *at(node), "--offset-json-file", str(wanted))
    earliest = tools.run(OFFSETS, *at(node), "--topic", topic, "--time", "earliest").split()
    assert earliest == [f"{topic}:0:4"]
