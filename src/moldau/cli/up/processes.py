"""The node processes of `moldau up`."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import Sequence

from moldau.cli.child_node import child_environment
from moldau.cli.up.plan import PASSWORD_SETTING, NodePlan
from moldau.settings.broker import BrokerSettings
from moldau.settings.sources import environment_variable_name

READY = b"Moldau is ready on "


class NodeProcess:
    def __init__(self, plan: NodePlan) -> None:
        self.plan = plan
        self._process: asyncio.subprocess.Process | None = None
        self._log_start = 0

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def start(self) -> None:
        with self.plan.log_file.open("ab") as log:
            self._log_start = log.tell()
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "moldau.cli.child_node",
                "--config",
                str(self.plan.settings_file),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=child_environment() | password_variable(self.plan.settings),
                # In a new session the node does not receive Ctrl-C. The parent handles Ctrl-C and stops the nodes.
                start_new_session=True,
            )
        self.plan.pid_file.write_text(f"{self.pid}\n")

    async def wait_ready(self) -> bool:
        """Waits until the node is ready. Returns False if the node exits first."""
        assert self._process is not None
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            if line.startswith(READY):
                return True
        return False

    async def wait(self) -> int:
        """Waits until the process exits. Returns the exit code, or 0 if the process was never started."""
        if self._process is None:
            return 0
        code = await self._process.wait()
        self.plan.pid_file.unlink(missing_ok=True)
        return code

    def send_signal(self, number: signal.Signals) -> None:
        if self._process is not None and self.is_running:
            self._process.send_signal(number)

    def last_log_line(self) -> str:
        """Returns the last log line since the node was started. This line is usually the reason for an exit."""
        output = self.plan.log_file.read_bytes()[self._log_start :]
        lines = output.decode(errors="replace").strip().splitlines()
        return lines[-1].removeprefix("moldau: ") if lines else "no log output"


def password_variable(settings: BrokerSettings) -> dict[str, str]:
    """Returns the environment variable with the password of the Postgres user; nothing if there is none."""
    password = settings.postgres_password
    return {environment_variable_name(PASSWORD_SETTING): password} if password else {}


def describe_exit(code: int) -> str:
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"was killed ({signal.Signals(-code).name})"
    except ValueError:
        return f"was killed (signal {-code})"


async def kill_all(processes: Sequence[NodeProcess]) -> None:
    for process in processes:
        process.send_signal(signal.SIGKILL)
    await asyncio.gather(*(process.wait() for process in processes))
