"""What serves HTTP: a node of Moldau, a cluster of three, and Karapace's REST proxy in front of a node."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from http.client import HTTPConnection, HTTPException
from pathlib import Path

import psutil  # type: ignore[import-untyped]
from tests.support.ports import free_port

from bench.brokers import START_TIMEOUT_S, STOP_TIMEOUT_S, Broker, BrokerFailed, Durability, Moldau
from bench.cluster_nodes import MoldauCluster

KARAPACE_DIR = Path(__file__).resolve().parents[1] / ".cache" / "karapace"
KARAPACE_PROGRAM = KARAPACE_DIR / "bin" / "karapace_rest_proxy"
REQUEST_TIMEOUT_S = 60.0
POLL_INTERVAL_S = 0.02


def get_status(address: str, path: str) -> int:
    """Sends one request on its own connection; returns the status of the response."""
    connection = HTTPConnection(address, timeout=REQUEST_TIMEOUT_S)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        response.read()
        return response.status
    finally:
        connection.close()


def wait_for_status(address: str, path: str, what: str, alive: Callable[[], bool] = lambda: True) -> None:
    """Returns when the response has status 200."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            why = f"status {get_status(address, path)}"
        except (OSError, HTTPException) as error:
            why = str(error)
        if why == "status 200":
            return
        if time.monotonic() > deadline or not alive():
            raise BrokerFailed(f"{what} does not respond to {path}: {why}")
        time.sleep(POLL_INTERVAL_S)


class HttpNode(Moldau):
    """A node with `--http-port`."""

    def __init__(self, data_dir: Path, durability: Durability, command: tuple[str, ...] | None = None) -> None:
        super().__init__(data_dir, durability, command)
        self.http_address = f"127.0.0.1:{free_port()}"
        self._command += ["--http-port", self.http_address.rpartition(":")[2]]


class HttpCluster(MoldauCluster):
    """Three nodes with `--http-port`."""

    def __init__(self, data_dir: Path, durability: Durability) -> None:
        super().__init__(data_dir, durability)
        self.http_addresses = {node_id: f"127.0.0.1:{free_port()}" for node_id in self.ids}
        for node_id, address in self.http_addresses.items():
            self._nodes[node_id].add("--http-port", address.rpartition(":")[2])

    def log_of(self, node_id: int) -> Path:
        return self._nodes[node_id].data_dir / "server.log"


def install_karapace() -> str | None:
    """Installs Karapace into its own virtual environment, once. Returns why it is missing, None if it is there."""
    if KARAPACE_PROGRAM.exists():
        return None
    KARAPACE_DIR.parent.mkdir(parents=True, exist_ok=True)
    pip = [str(KARAPACE_DIR / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    for command in ([sys.executable, "-m", "venv", str(KARAPACE_DIR)], [*pip, "karapace"]):
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            lines = (done.stdout + done.stderr).strip().splitlines()
            return f"`pip install karapace` failed: {lines[-1].removeprefix('ERROR: ') if lines else done.returncode}"
    return None if KARAPACE_PROGRAM.exists() else "the package karapace of PyPI has no REST proxy"


class Karapace(Broker):
    """Karapace's REST proxy. CPU time and memory are the proxy's and the node's together."""

    name = "Karapace"

    def __init__(self, data_dir: Path, node: Moldau) -> None:
        self.data_dir = data_dir
        self._node = node
        self.http_address = f"127.0.0.1:{free_port()}"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def bootstrap(self) -> str:
        return self._node.bootstrap

    @property
    def pid(self) -> int:
        if self._process is None:
            raise BrokerFailed("Karapace is not running")
        return self._process.pid

    def prepare(self) -> None:
        self.data_dir.mkdir(parents=True, exist_ok=True)

    def launch(self) -> None:
        host, _, port = self.http_address.rpartition(":")
        settings = {
            "BOOTSTRAP_URI": self.bootstrap,
            "HOST": host,
            "PORT": port,
            "KARAPACE_REST": "true",
            "KARAPACE_REGISTRY": "false",
            "PRODUCER_ACKS": "all",
            # By default a record waits 100 ms for others.
            "PRODUCER_LINGER_MS": "0",
            "LOG_LEVEL": "WARNING",
        }
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        with open(self.data_dir / "server.log", "ab") as log:
            self._process = subprocess.Popen(
                [str(KARAPACE_PROGRAM)],
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env={**environment, **{f"KARAPACE_{name}": value for name, value in settings.items()}},
                cwd=self.data_dir,
            )

    def wait_for_acknowledgement(self) -> None:
        wait_for_status(self.http_address, "/topics", self.name, self.alive)

    def stop(self) -> None:
        if self._process is None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        finally:
            self._process = None

    def _processes(self) -> list[psutil.Process]:
        return [*super()._processes(), psutil.Process(self._node.pid)]
