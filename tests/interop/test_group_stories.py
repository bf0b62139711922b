"""The group transcripts hold for Moldau and for Apache Kafka, over the wire and in real time."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from apache_kafka import ApacheKafka, available
from broker_under_test import Broker

from support.broker_process import BrokerProcess
from support.classic_group import GroupHarness
from support.group_wire import WireGroupHarness
from transcripts.group_runner import GroupTranscriptRunner

pytestmark = pytest.mark.slow
"""In real time, with every timeout in full: five minutes for both brokers."""

STORIES = sorted((Path(__file__).parents[1] / "transcripts").glob("group_*.txt"))

LATE_S = 0.3
"""Brokers check their timers a little later than the transcript says."""


SETTINGS = {
    "offsets.topic.num.partitions": "1",
    "auto.create.topics.enable": "true",
    "group.initial.rebalance.delay.ms": "3000",
}


@pytest.fixture(scope="module", params=["moldau", "kafka"])
def broker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    data_dir = tmp_path_factory.mktemp(request.param) / "data"
    if request.param == "moldau":
        flags = [part for name, value in SETTINGS.items() for part in (f"--{name.replace('.', '-')}", value)]
        started: Broker = BrokerProcess(data_dir, *flags)
    else:
        reason = available()
        if reason is not None:
            pytest.skip(f"Apache Kafka is not there: {reason}")
        started = ApacheKafka(data_dir, SETTINGS, heap="512m")
    with started:
        yield started


class WireTranscriptRunner(GroupTranscriptRunner):
    """A transcript runner that sees what members see: responses, but no log and no state."""

    def __init__(self, harness: WireGroupHarness, restart: Callable[[], None]) -> None:
        super().__init__(cast(GroupHarness, _Adapted(harness, restart)))
        self._wire = harness

    def _let_pass(self, delay_ms: int) -> None:
        self._wire.wait(delay_ms / 1_000 + LATE_S)
        self._emit_changes()

    def _emit_state(self) -> None:
        pass


class _Adapted:
    def __init__(self, harness: WireGroupHarness, restart: Callable[[], None]) -> None:
        self._harness = harness
        self.crash = restart
        self.now_ms = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._harness, name)


def seen_by_members(lines: list[str]) -> list[str]:
    """Removes what only the coordinator sees, and sorts where no order is guaranteed."""
    seen = []
    for line in lines:
        if line.split()[0] not in ("group", "log"):
            head, separator, members = line.partition("; members ")
            first, semicolon, rest = members.partition(";")
            seen.append(head + separator + ", ".join(sorted(first.split(", "))) + semicolon + rest)
    return sorted(seen)


@pytest.mark.parametrize("path", STORIES, ids=lambda path: path.stem)
def test_brokers_match_the_transcript(path: Path, broker: Broker) -> None:
    harness = WireGroupHarness(broker.bootstrap, path.stem)
    harness.prepare()

    def restart() -> None:
        harness.close()
        broker.stop()
        broker.start()
        harness.prepare()

    runner = WireTranscriptRunner(harness, restart)
    for command, expected in commands(path.read_text()):
        actual = asyncio.run(runner.execute(command))
        assert seen_by_members(actual) == seen_by_members(expected), command
    harness.close()


def commands(transcript: str) -> Iterator[tuple[str, list[str]]]:
    """Yields each command with the lines below it."""
    for part in transcript.split("> ")[1:]:
        command, *lines = part.splitlines()
        yield command, [line[2:] for line in lines if line.startswith("  ")]
