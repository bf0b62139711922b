"""`moldau up` as a user runs it: real processes, their output, and how they end."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.broker_process import clean_environment
from support.ports import free_ports

COMMAND = [sys.executable, "-m", "moldau"]
TIMEOUT_S = 60.0


class UpCommand:
    def __init__(self, directory: Path, *arguments: str) -> None:
        self.directory = directory
        self.path = directory.with_name(directory.name + ".out")
        with self.path.open("ab") as out:
            self.start = out.tell()
            self.process = subprocess.Popen(
                [*COMMAND, "up", "--data-dir", str(directory), *arguments],
                stdout=out,
                stderr=subprocess.STDOUT,
                env=clean_environment(),
            )

    def output(self) -> str:
        return self.path.read_bytes()[self.start :].decode()

    def wait_for(self, text: str) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while text not in self.output():
            assert self.process.poll() is None or text in self.output(), self.output()
            assert time.monotonic() < deadline, self.output()
            time.sleep(0.02)

    def pid(self, node_id: int) -> int:
        return int((self.directory / f"node-{node_id}" / "pid").read_text())

    def end(self, by: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(by)
        return self.process.wait(TIMEOUT_S)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    try:
        state = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    # A zombie is not alive.
    return state.rpartition(")")[2].split()[0] != "Z"


def wait_gone(*pids: int) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while any(is_alive(pid) for pid in pids):
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "cluster"
    yield place
    for file in place.glob("node-*/pid"):
        pid = int(file.read_text())
        if is_alive(pid):
            os.kill(pid, signal.SIGKILL)


def test_three_nodes_start_and_survive_the_death_of_one(directory: Path) -> None:
    port = free_ports(3)
    up = UpCommand(directory, "--nodes", "3", "--port", str(port))
    up.wait_for("The cluster is up")
    for node_id in (1, 2, 3):
        assert f"node {node_id} is up on 127.0.0.1:{port + node_id - 1}, process {up.pid(node_id)}" in up.output()
    assert "write.caching" not in up.output()
    bootstrap = ",".join(f"127.0.0.1:{port + number}" for number in range(3))
    assert f"export MOLDAU_BOOTSTRAP={bootstrap}\n" in up.output()
    pids = [up.pid(node_id) for node_id in (1, 2, 3)]

    os.kill(pids[1], signal.SIGKILL)
    up.wait_for("node 2 was killed (SIGKILL), 2 nodes still running")
    assert not (directory / "node-2" / "pid").exists()
    assert is_alive(pids[0])
    assert is_alive(pids[2])
    environment = {**clean_environment(), "MOLDAU_BOOTSTRAP": bootstrap}
    made = subprocess.run(
        [*COMMAND, "topic", "create", "orders", "--replicas", "3"], env=environment, capture_output=True, timeout=60
    )
    assert made.returncode == 0, made.stderr

    assert up.end() == 0, up.output()
    assert "node 1 has stopped" in up.output()
    assert "node 3 has stopped" in up.output()
    assert not any(is_alive(pid) for pid in pids)
    assert list(directory.glob("node-*/pid")) == []

    again = UpCommand(directory, "--nodes", "3", "--write-caching")
    again.wait_for("The cluster is up")
    assert f"127.0.0.1:{port}" in again.output()
    assert "acknowledged before fsync (write.caching)" in again.output()
    listed = subprocess.run([*COMMAND, "topic", "list"], env=environment, capture_output=True, text=True, timeout=60)
    assert "orders" in listed.stdout
    assert again.end(signal.SIGINT) == 0


def test_a_second_signal_kills_nodes_that_have_not_stopped(directory: Path) -> None:
    up = UpCommand(directory, "--nodes", "1", "--port", str(free_ports(1)))
    up.wait_for("The cluster is up")
    pid = up.pid(1)
    os.kill(pid, signal.SIGSTOP)
    up.process.send_signal(signal.SIGINT)
    up.wait_for("Stopping")
    assert is_alive(pid)
    assert up.end(signal.SIGINT) != 0
    wait_gone(pid)


def test_nodes_end_when_their_command_is_killed(directory: Path) -> None:
    up = UpCommand(directory, "--nodes", "1", "--port", str(free_ports(1)))
    up.wait_for("The cluster is up")
    pid = up.pid(1)
    up.end(signal.SIGKILL)
    wait_gone(pid)
    again = UpCommand(directory, "--nodes", "1")
    again.wait_for("The cluster is up")
    assert "node 1 was not shut down cleanly" in again.output()
    assert again.end() == 0


def test_a_cluster_can_be_stopped_while_it_starts(directory: Path) -> None:
    up = UpCommand(directory, "--nodes", "3", "--port", str(free_ports(3)))
    deadline = time.monotonic() + TIMEOUT_S
    while sum(file.read_text().endswith("\n") for file in directory.glob("node-*/pid")) < 3:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    pids = [up.pid(node_id) for node_id in (1, 2, 3)]
    assert up.end() == 0, up.output()
    assert not any(is_alive(pid) for pid in pids)


def test_a_node_that_cannot_start_stops_the_others(directory: Path) -> None:
    port = free_ports(3)
    up = UpCommand(directory, "--nodes", "3", "--port", str(port))
    up.wait_for("The cluster is up")
    assert up.end() == 0
    (directory / "node-2" / "meta.properties").write_text("torn")
    again = UpCommand(directory, "--nodes", "3")
    assert again.process.wait(TIMEOUT_S) == 1
    assert "Node 2 failed to start" in again.output()
    assert "meta.properties" in again.output()
    assert list(directory.glob("node-*/pid")) == []


def test_conflicting_options_are_an_error_and_nothing_is_started(directory: Path) -> None:
    port = free_ports(3)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port + 1))
        taken.listen()
        up = UpCommand(directory, "--nodes", "3", "--port", str(port))
        assert up.process.wait(TIMEOUT_S) == 1
    assert f"Port {port + 1} of node 2 is in use" in up.output()
    assert list(directory.glob("node-*")) == []


def test_two_commands_do_not_share_a_directory(directory: Path) -> None:
    up = UpCommand(directory, "--nodes", "1", "--port", str(free_ports(1)))
    up.wait_for("The cluster is up")
    other = subprocess.run(
        [*COMMAND, "up", "--nodes", "1", "--data-dir", str(directory)],
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert other.returncode == 1
    assert "in use by process" in other.stderr
    assert up.end() == 0
