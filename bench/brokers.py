"""The two brokers that are compared, each a process that is started, stopped and measured in the same way."""

from __future__ import annotations

import abc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil  # type: ignore[import-untyped]
from tests.interop.apache_kafka import ApacheKafka, free_port

from bench import raw

START_TIMEOUT_S = 60
STOP_TIMEOUT_S = 60


@dataclass(frozen=True)
class Durability:
    """When a record is acknowledged, in the settings of each broker."""

    name: str
    moldau_arguments: tuple[str, ...]
    kafka_properties: tuple[tuple[str, str], ...]


PAGE_CACHE = Durability("page cache", ("--write-caching", "true"), ())
FSYNC = Durability("fsync", (), (("log.flush.interval.messages", "1"),))


class BrokerFailed(Exception):
    """A broker did not start, or exited by itself."""


class Broker(abc.ABC):
    """A running broker as the benchmarks see it."""

    name: str
    data_dir: Path

    @property
    @abc.abstractmethod
    def bootstrap(self) -> str: ...

    @property
    @abc.abstractmethod
    def pid(self) -> int: ...

    @abc.abstractmethod
    def prepare(self) -> None:
        """Does what is needed once before the first start, and is not part of the start."""

    @abc.abstractmethod
    def launch(self) -> None:
        """Starts the process and returns at once."""

    @abc.abstractmethod
    def stop(self) -> None: ...

    def start(self) -> None:
        self.prepare()
        self.launch()
        self.wait_for_acknowledgement()

    def wait_for_acknowledgement(self) -> None:
        """Returns when the broker has acknowledged a record; it may still be starting."""
        try:
            raw.first_acknowledgement(self.bootstrap, "started", START_TIMEOUT_S, self.alive)
        except TimeoutError as error:
            tail = (self.data_dir / "server.log").read_text(errors="replace")[-2000:]
            raise BrokerFailed(f"{self.name}: {error}:\n{tail}") from None

    def alive(self) -> bool:
        return bool(psutil.Process(self.pid).status() != psutil.STATUS_ZOMBIE)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _processes(self) -> list[psutil.Process]:
        process = psutil.Process(self.pid)
        return [process, *process.children(recursive=True)]

    def cpu_s(self) -> float:
        """Returns CPU seconds, user and system, of the broker's process and its children so far."""
        total = 0.0
        for process in self._processes():
            used = process.cpu_times()
            total += used.user + used.system
        return total

    def resident_bytes(self) -> int:
        return sum(process.memory_info().rss for process in self._processes())

    def resident_bytes_peak(self) -> int:
        return sum(_peak(process.pid) for process in self._processes())


def _peak(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise BrokerFailed(f"process {pid} has no memory figures")


def _without_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """Drops settings from the caller's environment, which would change what the figures mean."""
    return {name: value for name, value in environment.items() if not name.startswith("MOLDAU_")}


class Moldau(Broker):
    name = "Moldau"

    def __init__(self, data_dir: Path, durability: Durability, command: tuple[str, ...] | None = None) -> None:
        self.data_dir = data_dir
        self._port = free_port()
        program = command or (str(Path(sys.executable).with_name("moldau")),)
        self._command = [*program, "serve", "--listen", self.bootstrap, "--data-dir", str(data_dir / "data")]
        self._command += durability.moldau_arguments
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self._port}"

    @property
    def pid(self) -> int:
        if self._process is None:
            raise BrokerFailed("Moldau is not running")
        return self._process.pid

    def prepare(self) -> None:
        self.data_dir.mkdir(parents=True, exist_ok=True)

    def launch(self) -> None:
        with open(self.data_dir / "server.log", "ab") as log:
            self._process = subprocess.Popen(
                self._command,
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=_without_settings(os.environ),
            )

    def stop(self) -> None:
        if self._process is None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise BrokerFailed(f"Moldau did not stop in {STOP_TIMEOUT_S} s") from None
        finally:
            self._process = None


class Kafka(Broker):
    name = "Kafka"

    def __init__(self, data_dir: Path, durability: Durability) -> None:
        self.data_dir = data_dir
        self._node = ApacheKafka(data_dir, dict(durability.kafka_properties))

    @property
    def bootstrap(self) -> str:
        return self._node.bootstrap

    @property
    def pid(self) -> int:
        return self._node.pid

    @property
    def format_s(self) -> float | None:
        return self._node.format_s

    def prepare(self) -> None:
        self._node.format()

    def launch(self) -> None:
        self._node.start(wait=False)

    def stop(self) -> None:
        self._node.stop()


def let_idle(seconds: float = 0.0) -> None:
    """Lets the disk catch up, so that a run does not pay for the writes of the previous one."""
    subprocess.run(["sync"], check=True)
    time.sleep(seconds)
