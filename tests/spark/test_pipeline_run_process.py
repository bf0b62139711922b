"""`moldau pipeline run` and `moldau demo` as processes with signals and terminals."""

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from moldau.pipelines.templates.generator import GeneratedRecord
from moldau.testing import Broker
from support.pipeline_runs import read_json, send_all

pytestmark = pytest.mark.spark

COMMAND = [sys.executable, "-m", "moldau"]
TIMEOUT_S = 240
PIPELINE = """
name: numbers
sources:
  numbers: {topic: numbers, schema: number INT}
sinks:
  out: {topic: numbers.out}
spark: {spark.driver.memory: 1g}
"""


@pytest.fixture
def directory(broker: Broker, tmp_path: Path) -> Path:
    (tmp_path / "numbers.yaml").write_text(PIPELINE)
    return tmp_path


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(topics={"numbers": 1, "numbers.out": 1}) as running:
        send_all(
            running.bootstrap,
            "numbers",
            [GeneratedRecord(b"", json.dumps({"number": each}).encode()) for each in range(10)],
        )
        yield running


@contextmanager
def moldau(*arguments: str, directory: Path, bootstrap: str = "", **how: Any) -> Iterator["subprocess.Popen[bytes]"]:
    environment = {**os.environ, "MASTER": "local[2]"}
    given = ["--bootstrap", bootstrap] if bootstrap else []
    process = subprocess.Popen([*COMMAND, *arguments, *given], cwd=directory, env=environment, **how)
    # Everything here has a timeout.
    too_late = threading.Timer(TIMEOUT_S, process.kill)
    too_late.start()
    try:
        yield process
    finally:
        too_late.cancel()
        process.kill()
        process.wait()


def done(*arguments: str, directory: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([*COMMAND, *arguments], cwd=directory, capture_output=True, text=True, timeout=TIMEOUT_S)


class Terminal:
    """A terminal of 100 columns, and all output."""

    def __init__(self) -> None:
        self._master, self.slave = pty.openpty()
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
        self._written = b""
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        while True:
            try:
                self._written += os.read(self._master, 65536)
            except OSError:
                return

    @property
    def text(self) -> str:
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self._written.decode(errors="replace"))

    def wait_for(self, pattern: str, process: "subprocess.Popen[bytes]") -> None:
        while re.search(pattern, self.text) is None:
            assert process.poll() is None, self.text
            time.sleep(0.05)

    def press_ctrl_c(self) -> None:
        os.write(self._master, b"\x03")


def take_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def test_a_terminal_shows_a_table_and_ctrl_c_ends_the_run(broker: Broker, directory: Path) -> None:
    terminal = Terminal()
    on_terminal: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), terminal.slave)
    with moldau(
        "pipeline",
        "run",
        "numbers.yaml",
        directory=directory,
        bootstrap=broker.bootstrap,
        start_new_session=True,
        preexec_fn=take_terminal,
        **on_terminal,
    ) as process:
        terminal.wait_for("starting Spark on local", process)
        # The query has read and shown all records.
        terminal.wait_for(r"out +(running|waiting) .* 10 +0\b", process)
        status = done("pipeline", "status", "numbers", "--json", directory=directory)
        message = json.loads(status.stdout)
        assert (message["state"], message["run"]["pid"]) == ("running", process.pid)
        second = done("pipeline", "run", "numbers.yaml", directory=directory)
        assert second.returncode == 1
        assert f"numbers is already running as process {process.pid}" in second.stderr
        terminal.press_ctrl_c()
        assert process.wait() == 130, terminal.text
    assert "numbers is stopped. The next run continues from here." in terminal.text
    assert "Traceback" not in terminal.text
    assert "WARN" not in terminal.text
    assert "stopped" in done("pipeline", "list", directory=directory).stdout


def test_without_a_terminal_batches_are_json_lines_and_stop_waits(broker: Broker, directory: Path) -> None:
    with moldau(
        "pipeline",
        "run",
        "numbers.yaml",
        "--json",
        directory=directory,
        bootstrap=broker.bootstrap,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        first = json.loads(process.stdout.readline())
        assert (first["event"], first["query"], first["rows"], first["lag"]) == ("batch", "out", 10, 0)
        stopped = done("pipeline", "stop", "numbers", directory=directory)
        assert stopped.returncode == 0, stopped.stderr
        assert "numbers is stopped." in stopped.stdout
        assert process.wait() == 0
        assert all(json.loads(line)["event"] == "batch" for line in process.stdout)
        assert process.stderr.read() == b""
    assert [row["number"] for row in read_json(broker.bootstrap, "numbers.out")][-10:] == list(range(10))


def test_the_demo_shows_results_and_leaves_nothing_behind(tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path), "MASTER": "local[2]"}
    shown = subprocess.run(
        [*COMMAND, "demo", "--seconds", "1", "--port", "0", "--rate", "20"],
        capture_output=True,
        text=True,
        env=environment,
        timeout=TIMEOUT_S,
    )
    assert shown.returncode == 0, shown.stderr
    assert "Traceback" not in shown.stdout + shown.stderr
    assert re.search(r"revenue at \d\d:\d\d: .*(cake|tea|espresso) \d+\.\d\d", shown.stdout)
    assert "Try in another terminal:" in shown.stdout
    assert not list(tmp_path.glob("moldau-demo-*"))
