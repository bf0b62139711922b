"""The process of a driver that is killed, and the processes below it and below a standalone cluster."""

import json
import os
import queue
import random
import subprocess
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

import psutil  # type: ignore[import-untyped]

from kills.driver_program import FINISH
from support.broker_process import clean_environment

EVENT_TIMEOUT_S = 300.0
FINISH_TIMEOUT_S = 240.0
EXECUTOR_CLASS = "CoarseGrainedExecutorBackend"

Tree = dict[psutil.Process, tuple[str, int]]
"""Processes with name and parent."""


class DriverJob(Protocol):
    """The argument of a driver's program."""

    @property
    def directory(self) -> str: ...

    @property
    def run(self) -> int: ...

    def as_json(self) -> str: ...


class Driver:
    """The process of a program such as `queries.py`: its JVM is its child. On a local master, the daemon of the Python
    workers is a child of the JVM; on a cluster, of an executor, and executors are children of the `cluster` processes.
    """

    def __init__(self, module: str, job: DriverJob, cluster: Iterable[int] = ()) -> None:
        self._cluster = list(cluster)
        self.log_path = Path(job.directory, f"driver-{job.run}.out")
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", module, job.as_json()],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=_environment(),
            )
        self._events: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._jvms: list[psutil.Process] = []
        self._left_behind: list[psutil.Process] = []
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                self._events.put(json.loads(line))
        self._events.put(None)

    def next_event(self) -> dict[str, Any] | None:
        """Returns the next micro-batch with rows, or None when the driver has ended."""
        try:
            event = self._events.get(timeout=EVENT_TIMEOUT_S)
        except queue.Empty:
            raise AssertionError(f"no query made progress for {EVENT_TIMEOUT_S:.0f} s:\n{self.said()}") from None
        if not self._jvms and event is not None and self.process.poll() is None:
            self._jvms = [process for process, (name, _) in self._tree().items() if name == "java"]
        return event

    def kill_worker(self, chance: random.Random) -> bool:
        """Kills one of Spark's Python workers, if there is one; it may be idle."""
        return _kill_one(self._workers(), chance)

    def kill_workers(self) -> bool:
        """Kills all Python workers, of which some are idle, so that those of running tasks are hit."""
        killed = [worker for worker in self._workers() if _kill(worker)]
        return bool(killed)

    def _workers(self) -> list[psutil.Process]:
        """Returns the children of Spark's daemons."""
        roots = self._cluster or [self.process.pid]
        tree = {process: seen for root in roots for process, seen in _tree(root).items()}
        jvms = {process.pid for process, (name, _) in tree.items() if name == "java"}
        daemons = {process.pid for process, (name, parent) in tree.items() if parent in jvms and name != "java"}
        return [process for process, (_, parent) in tree.items() if parent in daemons]

    def kill_executor(self, chance: random.Random) -> bool:
        """Kills the JVM of an executor of the cluster, if there is one."""
        tree = [process for root in self._cluster for process, (name, _) in _tree(root).items() if name == "java"]
        return _kill_one([process for process in tree if _is_executor(process)], chance)

    def _tree(self) -> Tree:
        return _tree(self.process.pid)

    def kill(self) -> None:
        """Kills the driver and its JVM together; the workers exit by themselves."""
        tree = self._tree()
        self._jvms = [process for process, (name, _) in tree.items() if name == "java"]
        self.process.kill()
        for jvm in self._jvms:
            jvm.kill()
        self._left_behind = list(tree)
        self.wait_until_gone()

    def wait_until_gone(self) -> None:
        """Waits until neither the driver nor its JVM can write."""
        self.process.wait(EVENT_TIMEOUT_S)
        assert not psutil.wait_procs(self._jvms, EVENT_TIMEOUT_S)[1], "a killed JVM is still there"

    def finish(self) -> bool:
        """Returns whether the driver has finished all queries."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(FINISH + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            return False
        return self.process.wait(FINISH_TIMEOUT_S) == 0

    def end(self) -> None:
        """Cleans up after any failure."""
        if self.process.poll() is None:
            self.kill()
        for process in psutil.wait_procs(self._left_behind, timeout=10)[1]:
            process.kill()

    def said(self) -> str:
        return self.log_path.read_text(errors="replace")[-3000:]


def _tree(root: int) -> Tree:
    """Returns all processes below a process; they change while they are listed."""
    found = {}
    try:
        below = psutil.Process(root).children(recursive=True)
    except psutil.NoSuchProcess:
        return {}
    for process in below:
        try:
            found[process] = (process.name(), process.ppid())
        except psutil.NoSuchProcess:
            continue
    return found


def _is_executor(process: psutil.Process) -> bool:
    try:
        return any(EXECUTOR_CLASS in part for part in process.cmdline())
    except psutil.NoSuchProcess:
        return False


def _kill_one(processes: list[psutil.Process], chance: random.Random) -> bool:
    return bool(processes) and _kill(chance.choice(sorted(processes, key=lambda process: process.pid)))


def _kill(process: psutil.Process) -> bool:
    """Returns whether the process still existed."""
    try:
        process.kill()
    except psutil.NoSuchProcess:
        return False
    return True


def _environment() -> dict[str, str]:
    here = Path(__file__).parents[1]
    environment = clean_environment()
    paths = [str(here), str(here.parent), *filter(None, [environment.get("PYTHONPATH")])]
    return {**environment, "PYTHONPATH": os.pathsep.join(paths)}
