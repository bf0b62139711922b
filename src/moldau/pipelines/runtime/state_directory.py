"""The state directory of a pipeline: `moldau-pipelines/<name>/` beside the pipeline's file.

lock                     locked while the pipeline runs
run.json                 the current or the last run
generations.json         all checkpoint generations, and the current one
checkpoints/1/<query>    Spark's checkpoints of each query; a replay creates checkpoints/2
progress.jsonl           a line per batch; rotated to `progress.jsonl.1`
error.log                details of the last failure
"""

import fcntl
import json
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from moldau.pipelines.definition import PipelineError
from moldau.pipelines.spec.values import SLUG_RULE, is_slug

DIRECTORY = "moldau-pipelines"
ORPHAN_TIMEOUT_S = 30.0
"""How long to wait for the Java process of a killed run to exit."""
POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class RunRecord:
    """The record of a run in `run.json`. Times are ISO 8601 in UTC."""

    name: str
    pid: int
    process_start: str
    """The start time of the process. It identifies the process together with the pid, because a pid may be reused."""
    host: str
    started: str
    file: str
    file_hash: str
    master: str
    bootstrap: str
    generation: int
    checkpoints: str
    available_now: bool = False
    ended: str | None = None
    outcome: str | None = None
    """`done`, `stopped` or `failed`; None while the run is active or if the run was killed."""
    error: str | None = None

    def is_process_alive(self) -> bool:
        return process_start(self.pid) == self.process_start


@dataclass(frozen=True, slots=True)
class CheckpointGeneration:
    """A set of checkpoints, and the start position of its queries."""

    number: int
    made: str
    start: str | None = None
    """A time, `earliest` or `latest`; None if the settings of the sources apply."""


@dataclass(frozen=True, slots=True)
class Generations:
    current: int
    all: tuple[CheckpointGeneration, ...]

    def get(self, number: int) -> CheckpointGeneration:
        by_number = {each.number: each for each in self.all}
        if number not in by_number:
            known = ", ".join(map(str, by_number))
            raise PipelineError(f"generation {number} of checkpoints does not exist; there are {known}")
        return by_number[number]

    def with_next(self, start: str, made: str) -> "Generations":
        number = max(each.number for each in self.all) + 1
        return Generations(number, (*self.all, CheckpointGeneration(number, made, start)))

    def with_current(self, number: int) -> "Generations":
        return replace(self, current=self.get(number).number)


def state_root(given: Path | None, file: Path | None = None) -> Path:
    """Returns the parent of all state directories: `given`, or by default beside `file` or in the working directory."""
    if given is not None:
        return given.absolute()
    return (Path() if file is None else file.parent).resolve() / DIRECTORY


def state_directories(root: Path) -> list["StateDirectory"]:
    if not root.is_dir():
        return []
    return [StateDirectory(path) for path in sorted(root.iterdir()) if (path / "run.json").is_file()]


class StateDirectory:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = path.name
        self.checkpoints = path / "checkpoints"
        self.progress = path / "progress.jsonl"
        self.error_log = path / "error.log"

    @classmethod
    def of(cls, root: Path, name: str) -> "StateDirectory":
        if not is_slug(name):
            raise PipelineError(f"{name!r} cannot name a directory: {SLUG_RULE}")
        return cls(root / name)

    @contextmanager
    def locked(self, checkpoint: str | None = None) -> Iterator[list[int]]:
        """Locks the state directory and a local checkpoint directory. Yields the file descriptors of the locks.

        Raises PipelineError with the id of the other process if the pipeline is running. A killed run keeps its locks
        until all processes that inherited the descriptors have exited.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise PipelineError(
                f"cannot use the state directory {self.path}: {error.strerror}; choose another with --state"
            ) from error
        with ExitStack() as held:
            stop = f"stop it with `moldau pipeline stop {self.name} --state {self.path.parent}`"
            lock = _locked(self.path / "lock", f"{self.name} is already running as ", f"; {stop}")
            locks = [held.enter_context(lock)]
            directory = None if checkpoint is None else _local_path(checkpoint)
            if directory is not None:
                advice = f" and the same checkpoints in {directory}; stop that run first"
                running = f"{self.name} runs with another state directory as "
                locks.append(held.enter_context(_locked(directory / f"{self.name}.lock", running, advice)))
            yield locks

    def is_locked(self) -> bool:
        try:
            descriptor = os.open(self.path / "lock", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            # Use a shared lock, so that two concurrent checks do not mistake each other for a run.
            return not _try_lock(descriptor, fcntl.LOCK_SH)
        finally:
            os.close(descriptor)

    def read_run(self) -> RunRecord | None:
        document = self._read("run.json")
        if document is None:
            return None
        known = {field.name for field in fields(RunRecord)}
        try:
            return RunRecord(**{name: value for name, value in document.items() if name in known})
        except TypeError as error:
            raise PipelineError(f"{self.path / 'run.json'} is not a run's: {error}") from error

    def write_run(self, record: RunRecord) -> None:
        self._write("run.json", asdict(record))

    def generations(self, now: str) -> Generations:
        """Returns the stored generations. For a pipeline that never ran, returns generation 1."""
        document = self._read("generations.json")
        if document is None:
            return Generations(1, (CheckpointGeneration(1, now),))
        try:
            return Generations(document["current"], tuple(CheckpointGeneration(**each) for each in document["all"]))
        except (KeyError, TypeError) as error:
            raise PipelineError(f"{self.path / 'generations.json'} is damaged: {error!r}") from error

    def write_generations(self, generations: Generations) -> None:
        self._write("generations.json", asdict(generations))

    def _read(self, name: str) -> Any:
        path = self.path / name
        try:
            return json.loads(path.read_bytes())
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise PipelineError(f"{path} cannot be read: {error}") from error

    def _write(self, name: str, content: object) -> None:
        """Writes the file atomically."""
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_name(f"{name}.{os.getpid()}.new")
        with beside.open("w") as file:
            json.dump(content, file, indent=2)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)


@contextmanager
def _locked(path: Path, running: str, advice: str) -> Iterator[int]:
    """Locks a file. If another run holds the lock, raises PipelineError: `running`, the process id, `advice`.

    If the Java process of a killed run holds the lock, waits up to ORPHAN_TIMEOUT_S until Java exits.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise PipelineError(f"cannot use {path}: {error.strerror}") from error
    try:
        deadline = time.monotonic() + ORPHAN_TIMEOUT_S
        while not _try_lock(descriptor):
            pid, _, start = os.pread(descriptor, 64, 0).decode("ascii", "replace").strip().partition(" ")
            is_dead = pid.isdigit() and process_start(int(pid)) != start
            if not is_dead or time.monotonic() >= deadline:
                owner = f"process {pid}" if pid.isdigit() else "another process"
                raise PipelineError(f"{running}{owner}{advice}")
            time.sleep(POLL_S)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()} {own_process_start()}\n".encode(), 0)
        try:
            yield descriptor
        finally:
            # Unlock explicitly, because Java may also hold the descriptor and exit later than this run.
            fcntl.flock(descriptor, fcntl.LOCK_UN)
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int, kind: int = fcntl.LOCK_EX) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _local_path(checkpoint: str) -> Path | None:
    """Returns the local path of a checkpoint directory, or None for remote file systems, which have no locks."""
    if checkpoint.startswith("file:"):
        return Path("/" + checkpoint.removeprefix("file:").lstrip("/"))
    return None if "://" in checkpoint else Path(checkpoint)


def process_start(pid: int) -> str | None:
    """Returns the start time of a process in the system's format, or None if the process does not exist."""
    stat = Path(f"/proc/{pid}/stat")
    try:
        # Parse after the last parenthesis, because the program name in parentheses may contain any character.
        fields = stat.read_text(errors="replace").rpartition(")")[2].split()
        return None if fields[0] == "Z" else fields[19]
    except OSError:
        if Path("/proc/self/stat").exists():
            return None
        # The system has no /proc.
        done = subprocess.run(["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
        return done.stdout.strip() or None


def own_process_start() -> str:
    start = process_start(os.getpid())
    assert start is not None, "this process runs"
    return start
