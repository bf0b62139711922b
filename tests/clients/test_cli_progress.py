"""Progress bars of commands: on a terminal that is standard error only, and never between records."""

import asyncio
import os
import pty
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from moldau.cli.cluster import audit
from moldau.client import Producer
from moldau.testing import Broker

# The bar appears at once.
MAIN = "from moldau.cli import progress; progress.DELAY_S = 0; from moldau.cli.main import main; main()"
RECORDS = 2_000
VALUE = b"v" * 500
TIMEOUT_S = 60


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    async def fill(bootstrap: str) -> None:
        async with Producer(bootstrap) as producer:
            for number in range(RECORDS):
                await producer.send("full", VALUE, partition=number % 2)

    data = tmp_path_factory.mktemp("node")
    with Broker({"full": 2, "target": 1}, {"data.dir": str(data), "store": "files"}) as started:
        asyncio.run(fill(started.bootstrap))
        yield started


def run(
    broker: Broker, *arguments: str, stdin: Any = subprocess.DEVNULL, is_one_terminal: bool = False
) -> tuple[str, str]:
    """Runs a command with standard error on a terminal. Returns standard output and what the terminal shows."""
    main, side = pty.openpty()
    environment = {**os.environ, "MOLDAU_BOOTSTRAP": broker.bootstrap, "TERM": "xterm", "COLUMNS": "100"}
    process = subprocess.Popen(
        [sys.executable, "-c", MAIN, *arguments],
        stdin=stdin,
        stdout=side if is_one_terminal else subprocess.PIPE,
        stderr=side,
        env=environment,
    )
    os.close(side)
    shown = bytearray()
    # A terminal holds a few kilobytes only.
    reader = threading.Thread(target=_read_terminal, args=(main, shown))
    reader.start()
    output, _ = process.communicate(timeout=TIMEOUT_S)
    reader.join(TIMEOUT_S)
    os.close(main)
    assert process.returncode == 0, shown.decode()
    return (output or b"").decode(), shown.decode()


def _read_terminal(descriptor: int, shown: bytearray) -> None:
    # Linux reports the end of a terminal as an error.
    with suppress(OSError):
        while part := os.read(descriptor, 65_536):
            shown += part


def test_a_file_is_produced_with_a_bar(broker: Broker, tmp_path: Path) -> None:
    (tmp_path / "lines").write_bytes(b"".join(VALUE + b"\n" for _ in range(RECORDS)))
    with open(tmp_path / "lines", "rb") as file:
        _, shown = run(broker, "produce", "target", stdin=file)
    assert "producing" in shown
    assert "1.0 MB of 1.0 MB" in shown
    assert f"{RECORDS} records acknowledged." in shown


def test_a_pipe_is_produced_without_a_bar(broker: Broker) -> None:
    assert "producing" not in run(broker, "produce", "target")[1]


@pytest.mark.parametrize(
    ("options", "status"),
    [
        (["--exit"], "2,000 of 2,000 offsets"),
        (["--from", "900", "--until", "end"], "200 of 200 offsets"),
        (["--from-beginning", "--count", "100"], "100 of 100 records"),
        (["--group", "readers", "--from-beginning", "--count", "100"], "100 of 100 records"),
    ],
)
def test_records_are_consumed_into_a_file_with_a_bar(broker: Broker, options: list[str], status: str) -> None:
    output, shown = run(broker, "consume", "full", *options)
    assert set(output.splitlines()) == {VALUE.decode()}
    assert "consuming" in shown
    assert status in shown


def test_no_bar_is_between_records_on_a_terminal(broker: Broker) -> None:
    _, shown = run(broker, "consume", "full", "--from-beginning", "--count", "5", is_one_terminal=True)
    assert "consuming" not in shown
    assert shown.splitlines() == [VALUE.decode()] * 5


@pytest.mark.parametrize("options", [[], ["--records", "--json"], ["--lines"]])
def test_log_files_are_dumped_into_a_file_with_a_bar(broker: Broker, options: list[str]) -> None:
    directory = broker.node.broker.settings.broker.data_dir
    output, shown = run(broker, "log", "dump", f"{directory}/full-0", *options)
    assert "reading" in shown
    assert "MB of " in shown or "kB of " in shown
    assert "reading" not in output
    _, shown = run(broker, "log", "dump", f"{directory}/target-0", "--limit", "1", is_one_terminal=True)
    assert "reading" not in shown


@pytest.mark.parametrize("topics", [[], ["full"]])
def test_leaders_are_elected_with_a_bar(broker: Broker, topics: list[str]) -> None:
    output, shown = run(broker, "cluster", "elect-leaders", *topics)
    assert "leaders elected" in output
    assert "electing leaders" in shown


def test_the_tasks_of_an_audit_are_counted_over_its_stages() -> None:
    stages = {0: SimpleNamespace(numCompletedTasks=3, numTasks=4)}
    tracker = SimpleNamespace(getActiveStageIds=lambda: list(stages), getStageInfo=lambda stage: stages.get(stage))
    tasks: dict[int, tuple[int, int]] = {}
    audit._update_tasks(tasks, tracker)
    assert tasks == {0: (3, 4)}
    del stages[0]
    stages[1] = SimpleNamespace(numCompletedTasks=0, numTasks=2)
    audit._update_tasks(tasks, tracker)
    assert tasks == {0: (4, 4), 1: (0, 2)}
