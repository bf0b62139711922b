"""A `moldau serve` process with a data directory, which tests start, kill and restart on the same port."""

import hashlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

from support.ports import free_port

READY = "Moldau is ready on "
"""Printed when clients are served; the node listens earlier, for other nodes."""

START_TIMEOUT_S = 60
STOP_TIMEOUT_S = 20


def clean_environment() -> dict[str, str]:
    """Returns the environment without MOLDAU_… variables, which would be settings of the node."""
    return {name: value for name, value in os.environ.items() if not name.startswith("MOLDAU_")}


class PostgresStore:
    """The store of the nodes whose tests choose none: a schema of this database for each data directory."""

    url: str | None = None
    """None for files in the data directory."""

    @classmethod
    def arguments(cls, data_dir: Path) -> tuple[str, ...]:
        if cls.url is None:
            return ()
        schema = "node_" + hashlib.sha256(str(data_dir).encode()).hexdigest()[:16]
        return ("--store", cls.url, "--postgres-schema", schema)


class BrokerProcess:
    """The process of one node. The output of all its runs is in `log_path`."""

    def __init__(
        self,
        data_dir: Path,
        *arguments: str,
        host: str = "127.0.0.1",
        port: int | None = None,
        wrapper: tuple[str, ...] = (),
        environment: dict[str, str] | None = None,
    ) -> None:
        self.data_dir = data_dir
        self.host = host
        self.port = free_port() if port is None else port
        self.log_path = data_dir.with_name(data_dir.name + ".out")
        self._arguments = arguments if "--store" in arguments else (*PostgresStore.arguments(data_dir), *arguments)
        self._wrapper = wrapper
        self._environment = {**clean_environment(), **(environment or {})}
        self._run_start = 0
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def bootstrap(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def start(self) -> "BrokerProcess":
        self.spawn()
        return self.wait_ready()

    def wait_ready(self) -> "BrokerProcess":
        process = self.process
        assert process is not None
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._is_ready():
            if process.poll() is not None:
                self.process = None
                raise RuntimeError(
                    f"moldau serve ended with {process.returncode} before it was ready:\n{self.output()}"
                )
            if time.monotonic() > deadline:
                self.kill()
                raise RuntimeError(f"moldau serve was not ready in {START_TIMEOUT_S} s:\n{self.output()}")
            time.sleep(0.01)
        return self

    def start_and_kill(self, after_s: float) -> None:
        """Starts the process and kills it, perhaps during recovery."""
        self.spawn()
        time.sleep(after_s)
        self.kill()

    def spawn(self) -> None:
        """Starts the process without waiting until it is ready."""
        assert self.process is None, "the process is already running"
        command = [*self._wrapper, sys.executable, "-m", "moldau", "serve", "--listen", self.bootstrap]
        command += ["--data-dir", str(self.data_dir), *self._arguments]
        self._run_start = self.log_path.stat().st_size if self.log_path.exists() else 0
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=self._environment
            )

    def _is_ready(self) -> bool:
        _, ready, line = self.output().partition(READY)
        if not ready or "\n" not in line:
            return False
        if self.port == 0:
            match = re.match(re.escape(self.host) + r":(\d+)", line)
            assert match is not None, line
            self.port = int(match[1])
        return True

    def output(self) -> str:
        """Returns the output of the current or last run."""
        with self.log_path.open("rb") as log:
            log.seek(self._run_start)
            return log.read().decode(errors="replace")

    def kill(self) -> None:
        """Sends SIGKILL."""
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.process = None

    def stop(self, by: signal.Signals = signal.SIGTERM) -> int:
        """Stops the process and returns its exit code; raises if it does not stop in time."""
        assert self.process is not None
        self.process.send_signal(by)
        try:
            return self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise RuntimeError(f"moldau serve did not end on {by.name}:\n{self.output()}") from None
        finally:
            self.process = None

    def restart(self) -> "BrokerProcess":
        self.stop()
        return self.start()

    def __enter__(self) -> "BrokerProcess":
        return self.start()

    def __exit__(self, *_: object) -> None:
        if self.process is not None:
            self.kill()
