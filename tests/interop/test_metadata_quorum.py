"""Kafka's tools on the metadata quorum of a node and on the snapshots that bound its log."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from command_line import DUMP, Tools
from java_clients import poll_until

from support.broker_process import BrokerProcess
from support.topics import Topics

QUORUM = "org.apache.kafka.tools.MetadataQuorumCommand"


@dataclass
class Running:
    served: BrokerProcess
    topics: list[str]

    @property
    def snapshots(self) -> list[Path]:
        return sorted((self.served.data_dir / "__cluster_metadata-0").glob("*.checkpoint"))


@pytest.fixture(scope="module")
def running(tools: Tools, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    settings = ("--metadata-log-max-record-bytes-between-snapshots", "1000")
    with BrokerProcess(tmp_path_factory.mktemp("quorum") / "data", *settings) as served:
        topics = Topics(served.bootstrap)
        created = [topics.create(partitions=3) for _ in range(12)]
        yield Running(served, created)


def test_the_quorum_tool_shows_the_leader(tools: Tools, running: Running) -> None:
    printed = tools.run(QUORUM, "--bootstrap-server", running.served.bootstrap, "describe", "--status")
    assert re.search(r"^LeaderId:\s+1$", printed, re.MULTILINE)
    assert re.search(r"^LeaderEpoch:\s+[1-9]", printed, re.MULTILINE)
    assert re.search(r"^HighWatermark:\s+[1-9]", printed, re.MULTILINE)
    assert re.search(r"^CurrentVoters:\s+\[\{\"id\": 1", printed, re.MULTILINE)


def test_the_quorum_tool_shows_the_lag_of_voters(tools: Tools, running: Running) -> None:
    printed = tools.run(QUORUM, "--bootstrap-server", running.served.bootstrap, "describe", "--replication")
    (row,) = [line.split() for line in printed.splitlines() if line.startswith("1 ")]
    assert (row[0], row[-1]) == ("1", "Leader")


def test_the_log_is_bounded_by_snapshots_that_kafka_reads(tools: Tools, running: Running) -> None:
    # A snapshot is written in the background, and then the oldest one is deleted.
    poll_until(lambda: len(running.snapshots) == 2, "two snapshots are there")
    printed = tools.run(DUMP, "--files", str(running.snapshots[-1]), "--cluster-metadata-decoder")
    assert "isvalid: false" not in printed
    assert {"TOPIC_RECORD", "PARTITION_RECORD", "REGISTER_BROKER_RECORD", "FEATURE_LEVEL_RECORD"} <= set(
        re.findall(r'"type":"(\w+)"', printed)
    )
    assert "KRaftVoters" in printed


def test_a_killed_node_restarts_from_its_snapshot(tools: Tools, running: Running) -> None:
    running.served.kill()
    running.served.start()
    printed = tools.run(QUORUM, "--bootstrap-server", running.served.bootstrap, "describe", "--status")
    assert re.search(r"^LeaderId:\s+1$", printed, re.MULTILINE)
    found = set(Topics(running.served.bootstrap).admin.list_topics(timeout=20).topics)
    assert set(running.topics) <= found
