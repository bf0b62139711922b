"""A standalone Spark cluster on this machine, whose executors' Python has all third-party packages but not Moldau."""

import json
import os
import subprocess
import sys
import sysconfig
import time
import urllib.request
import venv
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from support.ports import free_port

STARTED_WITHIN_S = 120.0


class StandaloneCluster:
    """`with StandaloneCluster(directory, workers=2) as cluster: cluster.url`"""

    def __init__(
        self, directory: Path, *, workers: int, memory: str = "1g", hosts: Sequence[str] = ("127.0.0.1",)
    ) -> None:
        """The workers have the `hosts` in turn."""
        self._directory = directory
        self._hosts = hosts
        self._workers = workers
        self._memory = memory
        self._processes: list[subprocess.Popen[bytes]] = []
        self._logs: list[IO[bytes]] = []
        self._port, self._page_port = free_port(), free_port()
        self.url = f"spark://127.0.0.1:{self._port}"

    def __enter__(self) -> Self:
        try:
            self._start("master", "--port", str(self._port), "--webui-port", str(self._page_port))
            for number in range(self._workers):
                work = self._directory / f"work-{number}"
                limits = ("--cores", "1", "--memory", self._memory, "--work-dir", str(work))
                self._start("worker", self.url, "--host", self._hosts[number % len(self._hosts)], *limits)
            self._wait_for_workers()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def _start(self, *arguments: str) -> None:
        log = (self._directory / f"{arguments[0]}-{len(self._processes)}.log").open("wb")
        self._logs.append(log)
        command = [sys.executable, "-m", "moldau", "spark", *arguments]
        self._processes.append(
            subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self._directory)
        )

    def _wait_for_workers(self) -> None:
        deadline = time.monotonic() + STARTED_WITHIN_S
        while self.alive_workers() < self._workers:
            ended = [each.args for each in self._processes if each.poll() is not None]
            assert not ended, f"{ended} ended: {self.logs()}"
            assert time.monotonic() < deadline, self.logs()
            time.sleep(0.1)

    def alive_workers(self) -> int:
        """Reads the master's web UI."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._page_port}/json/", timeout=5) as page:
                return int(json.load(page)["aliveworkers"])
        except (OSError, json.JSONDecodeError):
            # The port is not open yet, or the UI still returns its start page for every path.
            return 0

    @property
    def pids(self) -> tuple[int, ...]:
        """The processes of the master and the workers, whose children are the executors."""
        return tuple(process.pid for process in self._processes)

    def logs(self) -> str:
        files = [*self._directory.glob("*.log"), *self._directory.glob("work-*/app-*/*/stderr")]
        return "\n".join(f"{path.name}: {path.read_text(errors='replace')[-2000:]}" for path in files)

    def _stop(self) -> None:
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for log in self._logs:
            log.close()


def python_without_moldau(directory: Path) -> Path:
    """Creates a virtual environment with every package of this one but Moldau."""
    venv.EnvBuilder(symlinks=True).create(directory)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    target = directory / "lib" / version / "site-packages"
    for package in Path(sysconfig.get_path("purelib")).iterdir():
        if "moldau" not in package.name and package.suffix != ".pth" and package.name != "__pycache__":
            (target / package.name).symlink_to(package)
    return directory / "bin" / "python"


def moldau(*arguments: str, environ: Mapping[str, str], within_s: float = 240.0) -> "subprocess.CompletedProcess[str]":
    """Runs a command as a driver."""
    return subprocess.run(
        [sys.executable, "-m", "moldau", *arguments],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=within_s,
    )
