"""A partition without a leader: its lag is unknown, not 0, and commands show the other partitions at once."""

import asyncio
import json
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from typer.testing import CliRunner, Result

from moldau.cli.commands import app
from moldau.cli.exit_codes import ExitCode
from moldau.client import Admin, Producer, TopicPartition
from moldau.client.admin.group_lag_estimator import GroupLagEstimator
from moldau.client.admin.types import ConfigChange, ConfigResource, ResourceType
from moldau.lag.sampler import METRICS_TOPIC
from moldau.testing import Cluster

TOPIC = "mv"
LOST = 2
"""The partition that loses its leader."""
RECORDS = 10
COMMITTED = 4
PATIENCE_S = 60
AT_ONCE_S = 15.0
"""Generous for a busy machine, but below the timeouts of clients, which are 30 s."""
INTERVAL_MS = 2_000
"""Groups without commits are stalled after ten samples. The tests are over before."""


def known_lag() -> int:
    return RECORDS - COMMITTED


async def prepare(cluster: Cluster) -> None:
    """Fills the topic, commits in each partition, and kills the leader of one."""
    async with Admin(cluster.bootstrap) as admin, Producer(cluster.bootstrap) as producer:
        for number in range(3 * RECORDS):
            await producer.send(TOPIC, b"v", partition=number % 3)
        await producer.flush()
        offsets = {TopicPartition(TOPIC, each): COMMITTED for each in range(3)}
        await admin.alter_group_offsets("gm", offsets)
        leader = cluster.leader_of(TOPIC, LOST)
        await asyncio.to_thread(cluster.kill, leader)
        while cluster.leader_of(TOPIC, LOST) != -1:
            await asyncio.sleep(0.05)
        # Now, so that the topic gets a node that runs.
        all_brokers = ConfigResource(ResourceType.BROKER, "")
        await admin.alter_configs({all_brokers: [ConfigChange("metrics.topic.enable", "true")]})


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    settings = {"default.replication.factor": "1", "min.insync.replicas": "1", "http.port": "0"}
    with Cluster(3, topics={TOPIC: 3}, settings={**settings, "lag.sample.interval.ms": str(INTERVAL_MS)}) as running:
        asyncio.run(asyncio.wait_for(prepare(running), PATIENCE_S))
        yield running


@pytest.fixture
def http(cluster: Cluster) -> Iterator[httpx.Client]:
    """A client of the group's coordinator."""

    async def coordinator() -> int:
        async with Admin(cluster.bootstrap) as admin:
            return (await admin.describe_group("gm")).coordinator

    node = cluster.nodes[asyncio.run(asyncio.wait_for(coordinator(), PATIENCE_S))]
    with httpx.Client(base_url=f"http://{node.http_address}", timeout=60) as client:
        yield client


def run(cluster: Cluster, *arguments: str) -> Result:
    started = time.monotonic()
    result = CliRunner().invoke(app, arguments, env={"MOLDAU_BOOTSTRAP": cluster.bootstrap, "COLUMNS": "200"})
    assert time.monotonic() - started < AT_ONCE_S, result.output
    return result


def rows(cluster: Cluster, *arguments: str) -> list[dict[str, Any]]:
    result = run(cluster, *arguments, "--json")
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_the_lag_of_a_partition_without_leader_is_listed_as_unknown(cluster: Cluster, http: httpx.Client) -> None:
    of_command = rows(cluster, "group", "lag", "gm")
    of_http = http.get("/v1/groups/gm/lag").json()["partitions"]
    for found in (of_command, of_http):
        assert [each["partition"] for each in found] == [0, 1, 2]
        assert [each["lag_records"] for each in found] == [known_lag(), known_lag(), None]
        assert [each["committed_offset"] for each in found] == [COMMITTED] * 3
        lost = found[LOST]
        assert lost["state"] == "no_leader"
        for name in ("high_watermark", "last_stable_offset", "log_start_offset", "lag_ms", "catch_up_seconds"):
            assert lost[name] is None
    lines = run(cluster, "group", "lag", "gm").stdout.splitlines()
    assert f"gm: lag unknown, at least {2 * known_lag()} records behind" in lines[0]
    assert "1 of 3 partitions: no leader" in lines[0]
    assert lines[-1].split()[:6] == ["gm", TOPIC, str(LOST), str(COMMITTED), "-", "-"]
    assert " no leader " in lines[-1]


def test_metrics_have_the_committed_offset_and_no_lag(cluster: Cluster, http: httpx.Client) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while "kafka_consumergroup_current_offset{" not in (text := http.get("/metrics").text):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    found: dict[str, dict[str, float]] = {}
    for family in text_string_to_metric_families(text):
        for each in family.samples:
            if "gm" in (each.labels.get("consumergroup"), each.labels.get("group")):
                label = each.labels.get("partition", each.labels.get("topic", ""))
                found.setdefault(each.name, {})[label] = each.value
                if each.name == "moldau_consumergroup_state" and label == str(LOST):
                    assert each.labels["state"] == "no_leader"
    assert found["kafka_consumergroup_current_offset"] == dict.fromkeys("012", COMMITTED)
    assert found["kafka_consumergroup_current_offset_sum"] == {TOPIC: 3 * COMMITTED}
    assert found["kafka_consumergroup_lag"] == dict.fromkeys("01", known_lag())
    assert "kafka_consumergroup_lag_sum" not in found, "the sum of the others would look as if the lag fell"
    assert found["kafka_consumergroup_group_lag_seconds"].keys() == {"0", "1"}
    assert found["moldau_consumergroup_read_committed"].keys() == {"0", "1"}


def test_the_metrics_topic_has_a_row_with_an_unknown_lag(cluster: Cluster) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while METRICS_TOPIC not in [each["topic"] for each in rows(cluster, "topic", "list")]:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    while True:
        result = run(cluster, "consume", METRICS_TOPIC, "--from", "beginning", "--until", "end")
        found = [json.loads(line) for line in result.stdout.splitlines()]
        lost = [row for row in found if row.get("group") == "gm" and row["partition"] == LOST]
        if lost and lost[-1]["state"] == "no_leader":
            break
        assert time.monotonic() < deadline
        time.sleep(0.2)
    assert lost[-1]["lag_records"] is lost[-1]["high_watermark"] is lost[-1]["lag_ms"] is None
    assert lost[-1]["committed_offset"] == COMMITTED


def test_brokers_without_samples_show_the_partition_too(cluster: Cluster) -> None:
    async def estimate() -> None:
        async with Admin(cluster.bootstrap) as admin:
            estimator = GroupLagEstimator(admin, isolation_level="read_uncommitted", interval_ms=100)
            for _ in range(2):
                (sample,) = await estimator.sample(["gm"])
                assert [each.lag.lag_records for each in sample.partitions] == [known_lag(), known_lag(), None]
                assert sample.partitions[LOST].lag.state == "no_leader"

    asyncio.run(asyncio.wait_for(estimate(), AT_ONCE_S))


def test_a_topic_and_a_group_are_described_at_once(cluster: Cluster, http: httpx.Client) -> None:
    (topic,) = rows(cluster, "topic", "describe", TOPIC)
    assert [each["high_watermark"] for each in topic["partitions"]] == [RECORDS, RECORDS, None]
    assert [each["log_start_offset"] for each in topic["partitions"]] == [0, 0, None]
    assert topic["partitions"][LOST]["leader"] is None
    (group,) = rows(cluster, "group", "describe", "gm")
    of_http = http.get("/v1/groups/gm").json()
    assert group["total_lag"] is of_http["total_lag"] is None, "that of the others would look as if the lag fell"
    for found in (group["partitions"], of_http["partitions"]):
        assert [each["end_offset"] for each in found] == [RECORDS, RECORDS, None]
        assert [each["lag"] for each in found] == [known_lag(), known_lag(), None]
        assert [each["committed_offset"] for each in found] == [COMMITTED] * 3
    for arguments in (("topic", "describe", TOPIC), ("group", "describe", "gm")):
        result = run(cluster, *arguments)
        assert result.exit_code == 0
        assert f"{TOPIC}-{LOST} has no leader" in result.stderr


def test_a_trim_deletes_nothing_and_names_the_partition(cluster: Cluster) -> None:
    for options in (["--dry-run"], ["--yes"]):
        result = run(cluster, "topic", "trim", TOPIC, "--before", "5", *options)
        assert result.exit_code == ExitCode.UNAVAILABLE
        assert f"{TOPIC}-{LOST} has no leader, so nothing was deleted" in result.stderr
        assert "--partition 0 --partition 1" in result.stderr
    assert all(
        each["log_start_offset"] in (0, None) for each in rows(cluster, "topic", "describe", TOPIC)[0]["partitions"]
    )
    trimmed = run(cluster, "topic", "trim", TOPIC, "--before", "1", "--partition", "0", "--yes")
    assert trimmed.exit_code == 0, trimmed.output
