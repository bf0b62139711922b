"""`moldau bench` against a broker."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from array import array
from collections.abc import Iterator

import pytest
from typer.testing import CliRunner, Result

from moldau.cli.bench import command
from moldau.cli.bench.load_test import PhaseResult, make_values
from moldau.cli.commands import app
from moldau.client import Admin
from moldau.testing import Broker

TIMEOUT_S = 60


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


def bench(broker: Broker, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["bench", *arguments], env={"MOLDAU_BOOTSTRAP": broker.bootstrap})


def topics(broker: Broker) -> list[str]:
    async def run() -> list[str]:
        async with Admin(broker.bootstrap) as admin:
            return [topic.name for topic in await admin.list_topics()]

    return asyncio.run(run())


def test_every_record_is_counted_in_a_table(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "LATENCY_S", 0.2)
    result = bench(broker, "--records", "1000", "--size", "100", "--partitions", "2")
    assert result.exit_code == 0, result.output
    header, produce, consume, latency = result.stdout.splitlines()
    assert header.split()[:3] == ["phase", "records", "seconds"]
    assert produce.split()[:2] == ["produce", "1,000"]
    assert consume.split()[:2] == ["consume", "1,000"]
    assert latency.split()[:2] == ["latency", "20"]
    assert "100 bytes per record, 2 partitions, acks=all" in result.stderr
    assert topics(broker) == []


@pytest.mark.parametrize("acks", ["all", "1", "0"])
def test_phases_are_printed_as_json(broker: Broker, acks: str) -> None:
    options = ["--duration", "300ms", "--acks", acks, "--compression", "lz4", "--rate", "50", "--json"]
    result = bench(broker, *options)
    assert result.exit_code == 0, result.output
    produce, consume, latency = (json.loads(line) for line in result.stdout.splitlines())
    assert produce["records"] == consume["records"] > 0
    assert (produce["p99_ms"] is None) == (acks == "0")
    assert consume["max_ms"] is None
    assert latency["records"] == 15
    assert 0 < latency["p50_ms"] <= latency["p99_ms"] <= latency["max_ms"]
    assert topics(broker) == []


def test_ctrl_c_deletes_the_topic(broker: Broker) -> None:
    environment = {**os.environ, "MOLDAU_BOOTSTRAP": broker.bootstrap}
    process = subprocess.Popen(
        [sys.executable, "-m", "moldau", "bench", "--duration", "1h"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + TIMEOUT_S
    try:
        while not topics(broker):
            assert process.poll() is None
            assert time.monotonic() < deadline
        process.send_signal(signal.SIGINT)
        output = process.communicate(timeout=TIMEOUT_S)
    finally:
        process.kill()
    assert (process.returncode, output) == (130, ("", ""))
    assert topics(broker) == []


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["--records", "1", "--duration", "1s"], 2, "either --records or --duration"),
        (["--duration", "soon"], 2, "a duration such as 500ms"),
        (["--duration", "0s"], 2, "longer than 0"),
        (["--size", "7"], 2, "Invalid value for '--size'"),
        (["--compression", "rar"], 2, "gzip"),
        (["--replicas", "3"], 1, "INVALID_REPLICATION_FACTOR"),
    ],
)
def test_invalid_options_are_reported(broker: Broker, arguments: list[str], code: int, told: str) -> None:
    result = bench(broker, *arguments)
    assert result.exit_code == code
    assert told in " ".join(result.output.replace("│", "").split())


def test_quantiles_are_those_of_the_sorted_latencies() -> None:
    result = PhaseResult("produce", 100, 100, 20_000, 2.0, array("d", range(1, 101)))
    assert [result.latency_ms(each) for each in (0.5, 0.99, 1.0)] == [51.0, 100.0, 100.0]
    assert result.records_per_second == 50
    assert result.mb_per_second == 0.01
    assert PhaseResult("consume", 0, 0, 0, 0.0, array("d")).latency_ms(0.5) is None


def test_values_have_the_size_and_differ() -> None:
    values = make_values(200)
    assert {len(each) for each in values} == {200}
    assert len(set(values)) == len(values)
