"""Every `*.txt` here is a test: its commands are executed, and the output must match."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from moldau.testing.simulation.platform.loop import SimulatedLoop
from transcripts.broker_runner import BrokerTranscriptRunner
from transcripts.control_plane_runner import ControlPlaneTranscriptRunner
from transcripts.controller_runner import ControllerTranscriptRunner
from transcripts.delayed_runner import DelayedTranscriptRunner
from transcripts.group_runner import GroupTranscriptRunner
from transcripts.member_runner import MemberTranscriptRunner
from transcripts.quorum_runner import QuorumTranscriptRunner
from transcripts.replica_runner import ReplicaTranscriptRunner
from transcripts.transaction_runner import TransactionTranscriptRunner

TranscriptRunner = (
    ControlPlaneTranscriptRunner
    | BrokerTranscriptRunner
    | DelayedTranscriptRunner
    | ControllerTranscriptRunner
    | GroupTranscriptRunner
    | MemberTranscriptRunner
    | QuorumTranscriptRunner
    | TransactionTranscriptRunner
)


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> "TranscriptFile | None":
    if file_path.suffix != ".txt":
        return None
    found: TranscriptFile = TranscriptFile.from_parent(parent, path=file_path)
    return found


class TranscriptFile(pytest.File):
    def collect(self) -> Iterator[pytest.Item]:
        yield TranscriptItem.from_parent(self, name=self.path.stem)


class TranscriptItem(pytest.Item):
    def runtest(self) -> None:
        written = self.path.read_text()
        runner = runner_for(self.name)
        factory = SimulatedLoop if isinstance(runner, BrokerTranscriptRunner) else None
        with asyncio.Runner(loop_factory=factory) as loop_runner:
            replayed = loop_runner.run(replay(written, runner))
        if self.config.getoption("--rewrite"):
            self.path.write_text(replayed)
        else:
            assert replayed.splitlines() == written.splitlines(), "see the difference; `pytest --rewrite` accepts it"

    def reportinfo(self) -> tuple[Path, int, str]:
        return self.path, 0, self.name


def runner_for(name: str) -> TranscriptRunner:
    if name.startswith("broker_"):
        return BrokerTranscriptRunner()
    if name.startswith("controller_"):
        return ControllerTranscriptRunner()
    if name.startswith("delayed_"):
        return DelayedTranscriptRunner()
    if name.startswith("group_"):
        return GroupTranscriptRunner()
    if name.startswith("quorum_"):
        return QuorumTranscriptRunner()
    if name.startswith("replica_"):
        return ReplicaTranscriptRunner()
    if name.startswith("transaction_"):
        return TransactionTranscriptRunner()
    return MemberTranscriptRunner() if name.startswith("member_") else ControlPlaneTranscriptRunner()


async def replay(written: str, runner: TranscriptRunner) -> str:
    """Returns the transcript with its comments and commands, and the current output below each command."""
    lines: list[str] = []
    for line in written.splitlines():
        if line.startswith("> "):
            lines.append(line)
            lines += ["  " + each for each in await runner.execute(line[2:])]
        elif not line.startswith("  "):
            lines.append(line)
    return "\n".join(lines) + "\n"
