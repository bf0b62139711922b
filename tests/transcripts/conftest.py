"""Every `*.txt` here is a test: the commands in it are given again, and what happens must be what it says."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from moldau.testing.simulation.platform.loop import SimulatedLoop
from transcripts.broker_storyteller import BrokerStoryteller
from transcripts.controller_storyteller import ControllerStoryteller
from transcripts.group_storyteller import GroupStoryteller
from transcripts.member_storyteller import MemberStoryteller
from transcripts.quorum_storyteller import QuorumStoryteller
from transcripts.replica_storyteller import ReplicaStoryteller
from transcripts.storyteller import Storyteller

Teller = (
    Storyteller
    | BrokerStoryteller
    | ControllerStoryteller
    | GroupStoryteller
    | MemberStoryteller
    | QuorumStoryteller
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
        storyteller = storyteller_of(self.name)
        factory = SimulatedLoop if isinstance(storyteller, BrokerStoryteller) else None
        with asyncio.Runner(loop_factory=factory) as runner:
            told = runner.run(tell(written, storyteller))
        if self.config.getoption("--rewrite"):
            self.path.write_text(told)
        else:
            assert told.splitlines() == written.splitlines(), (
                "see the difference; `pytest --rewrite` accepts it"
            )

    def reportinfo(self) -> tuple[Path, int, str]:
        return self.path, 0, self.name


def storyteller_of(name: str) -> Teller:
    if name.startswith("broker_"):
        return BrokerStoryteller()
    if name.startswith("controller_"):
        return ControllerStoryteller()
    if name.startswith("group_"):
        return GroupStoryteller()
    if name.startswith("quorum_"):
        return QuorumStoryteller()
    if name.startswith("replica_"):
        return ReplicaStoryteller()
    return MemberStoryteller() if name.startswith("member_") else Storyteller()


async def tell(written: str, storyteller: Teller) -> str:
    """The transcript with its comments and commands as they are, and under each command what happens now."""
    lines: list[str] = []
    for line in written.splitlines():
        if line.startswith("> "):
            lines.append(line)
            lines += ["  " + each for each in await storyteller.do(line[2:])]
        elif not line.startswith("  "):
            lines.append(line)
    return "\n".join(lines) + "\n"
