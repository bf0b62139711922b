"""A cluster of `moldau up` with the HTTP API, used through curl and the scripts in `client/`."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

import httpx
import typer
from typer.testing import CliRunner

from moldau.cli.log.dump import log_dump
from support.broker_process import clean_environment
from support.ports import free_ports

PROJECT = Path(__file__).parents[2]
CLIENT = PROJECT / "client"
TIMEOUT_S = 60.0
POLL_INTERVAL_S = 0.02
METADATA_LOG = "__cluster_metadata-0"


def wait_until(condition: Callable[[], Any], what: str, timeout_s: float = TIMEOUT_S) -> Any:
    """Returns the first true result of the condition. Errors of HTTP requests count as false."""
    deadline = time.monotonic() + timeout_s
    while True:
        problem: Exception | None = None
        try:
            if result := condition():
                return result
        except (HTTPException, httpx.HTTPError, OSError, AssertionError) as error:
            problem = error
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {timeout_s} s: {what}") from problem
        time.sleep(POLL_INTERVAL_S)


def health(port: int) -> dict[str, Any]:
    status, body = get(port, "/healthcheck")
    assert status == 200
    found: dict[str, Any] = json.loads(body)
    return found


def get(port: int, path: str) -> tuple[int, bytes]:
    """Sends a GET request without the costs of an httpx client. Returns status and body."""
    connection = HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def run_commands(script: str, ports: Mapping[int, int]) -> list[Any]:
    """Runs shell commands with curl and returns the JSON values and lines of text that they print.

    `ports` has the port to use for each port in the commands. `jq` only indents the output, so it is left out.
    """
    script = re.sub(r"localhost:(80\d\d)", lambda match: f"localhost:{ports[int(match[1])]}", script)
    script = script.replace("| jq", "")
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    return parse_output(done.stdout)


def parse_output(output: str) -> list[Any]:
    """Returns the JSON objects and the lines of text in the output of several commands."""
    found: list[Any] = []
    position = 0
    decoder = json.JSONDecoder()
    while position < len(output):
        if output[position].isspace():
            position += 1
        elif output[position] == "{":
            value, position = decoder.raw_decode(output, position)
            found.append(value)
        else:
            line, _, _ = output[position:].partition("\n")
            found.append(line)
            position += len(line)
    return found


def dump_lines(path: Path) -> list[str]:
    """Returns the output of `moldau log dump --lines`."""
    app = typer.Typer()
    app.command()(log_dump)
    result = CliRunner().invoke(app, ["--lines", str(path)])
    assert result.exit_code == 0, result.output
    return result.stdout.splitlines()


class HttpCluster:
    """The nodes are 1 to `count`. Entering the context starts them, leaving it ends those that run."""

    def __init__(
        self, directory: Path, count: int = 5, settings: Mapping[str, str] | None = None, **environment: str
    ) -> None:
        self.directory = directory
        self.node_ids = range(1, count + 1)
        self.ports = dict(enumerate(range(first := free_ports(2 * count), first + count), 1))
        options = [f"--set={name}={value}" for name, value in (settings or {}).items()]
        self._command = [sys.executable, "-m", "moldau", "up", "--nodes", str(count), "--data-dir", str(directory)]
        self._command += ["--http-port", str(first), "--port", str(first + count), *options]
        self._environment = {**clean_environment(), **environment}
        self._log = directory.with_name(directory.name + ".out")
        self._up: subprocess.Popen[bytes] | None = None
        self._restarted: dict[int, subprocess.Popen[bytes]] = {}
        """The processes of nodes that were started again; `moldau up` does not restart them."""

    @property
    def brokers(self) -> str:
        """The list of brokers for the option -b."""
        return ",".join(f"{node_id}@localhost:{port}" for node_id, port in self.ports.items())

    def __enter__(self) -> "HttpCluster":
        with self._log.open("ab") as log:
            self._up = subprocess.Popen(self._command, stdout=log, stderr=log, env=self._environment)
        try:
            wait_until(lambda: self._check_runs() and "The cluster is up" in self.output(), "the cluster is up")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for node_id in self.node_ids:
            self.resume(node_id)
        for process in self._restarted.values():
            process.kill()
            process.wait()
        if self._up is not None:
            self._up.terminate()
            try:
                self._up.wait(TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._up.kill()
                self._up.wait()

    def _check_runs(self) -> bool:
        assert self._up is not None
        if self._up.poll() is not None:
            raise RuntimeError(f"moldau up ended:\n{self.output()}")
        return True

    def output(self) -> str:
        return self._log.read_text(errors="replace")

    # Queries

    def leader(self) -> int:
        """Returns the leader on which all running nodes agree."""

        def agreed() -> int:
            named = {self.health(node_id)["leader_broker_id"] for node_id in self.node_ids if self.is_running(node_id)}
            return named.pop() if len(named) == 1 and min(named) > 0 else 0

        found: int = wait_until(agreed, "all nodes name the same leader")
        return found

    def health(self, node_id: int) -> dict[str, Any]:
        return health(self.ports[node_id])

    def epoch(self) -> int:
        """Returns the highest epoch of the quorum that a node has stored."""
        return max(int(self.quorum_state(node_id)["leader_epoch"]) for node_id in self.node_ids)

    def quorum_state(self, node_id: int) -> dict[str, Any]:
        state: dict[str, Any] = json.loads((self.data_dir(node_id) / METADATA_LOG / "quorum-state").read_text())
        return state

    def data_dir(self, node_id: int) -> Path:
        return self.directory / f"node-{node_id}"

    def partition_lines(self, node_id: int, topic_partition: str) -> list[str]:
        """Returns the lines of a partition, whose number counts from 1 here."""
        topic, _, number = topic_partition.rpartition("-")
        return dump_lines(self.data_dir(node_id) / f"{topic}-{int(number) - 1}")

    def metadata_lines(self, node_id: int) -> list[str]:
        return dump_lines(self.data_dir(node_id) / METADATA_LOG)

    # Use

    def ports_with_leader_first(self) -> dict[int, int]:
        """Returns the ports for commands in which 8001 is the leader and 8002 to 8005 are followers."""
        leader = self.leader()
        order = [leader, *(node_id for node_id in self.node_ids if node_id != leader)]
        return {8000 + number: self.ports[node_id] for number, node_id in enumerate(order, 1)}

    def run_commands(self, script: str) -> list[Any]:
        return run_commands(script, self.ports_with_leader_first())

    def start_script(self, name: str, *arguments: str, **options: Any) -> "subprocess.Popen[str]":
        command = [sys.executable, "-u", name, *arguments, "-b", self.brokers]
        return subprocess.Popen(command, cwd=CLIENT, text=True, stdout=subprocess.PIPE, **options)

    def run_script(self, name: str, *arguments: str, stdin: str = "") -> tuple[int, str]:
        """Runs a script of `client/` and returns exit code and output."""
        with self.start_script(name, *arguments, stdin=subprocess.PIPE) as process:
            output, _ = process.communicate(stdin, timeout=TIMEOUT_S)
            return process.returncode, output

    def delete_all_topics(self) -> None:
        url = f"http://127.0.0.1:{self.ports[self.leader()]}/admin/v1/topics"
        with httpx.Client(timeout=30, trust_env=False) as client:
            for topic in client.get(url).json()["topics"]:
                assert client.delete(f"{url}/{topic['topic_name']}").status_code == 204

    # Faults

    def pid(self, node_id: int) -> int:
        restarted = self._restarted.get(node_id)
        return restarted.pid if restarted else int((self.data_dir(node_id) / "pid").read_text())

    def is_running(self, node_id: int) -> bool:
        restarted = self._restarted.get(node_id)
        if restarted is not None:
            return restarted.poll() is None
        # `moldau up` waits for its nodes and removes the file of a node that has ended.
        return _is_alive(self.pid(node_id)) if (self.data_dir(node_id) / "pid").exists() else False

    def kill(self, node_id: int) -> None:
        """Sends SIGKILL and waits until the process has ended."""
        os.kill(self.pid(node_id), signal.SIGKILL)
        wait_until(lambda: not self.is_running(node_id), f"node {node_id} has ended")

    def start(self, node_id: int) -> None:
        """Starts a node that was killed, as `moldau up` advises."""
        with self._log.open("ab") as log:
            self._restarted[node_id] = subprocess.Popen(
                [sys.executable, "-m", "moldau", "serve", "--config", str(self.data_dir(node_id) / "node.toml")],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment,
            )
        wait_until(lambda: get(self.ports[node_id], "/readyz")[0] == 200, f"node {node_id} is ready")

    def pause(self, node_id: int) -> None:
        os.kill(self.pid(node_id), signal.SIGSTOP)

    def resume(self, node_id: int) -> None:
        if self.is_running(node_id):
            os.kill(self.pid(node_id), signal.SIGCONT)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
