"""The Java process of a Python driver. The Java process ends when the driver ends."""

import os
import signal
import struct
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moldau.spark.errors import LaunchError

START_TIMEOUT_S = 120.0
"""The time until the Java process must be ready, which includes downloads of `spark.jars.packages`."""
POLL_INTERVAL_S = 0.02
STOP_TIMEOUT_S = 5.0


@dataclass
class Gateway:
    process: "subprocess.Popen[bytes]"
    port: int
    secret: str

    def connect(self) -> Any:
        """Returns PySpark's gateway object for this process."""
        from pyspark.java_gateway import launch_gateway

        # Set these variables only for `launch_gateway`. To later sessions they mean that another program started Java.
        os.environ |= {"PYSPARK_GATEWAY_PORT": str(self.port), "PYSPARK_GATEWAY_SECRET": self.secret}
        try:
            gateway = launch_gateway()  # type: ignore[no-untyped-call]
        finally:
            del os.environ["PYSPARK_GATEWAY_PORT"], os.environ["PYSPARK_GATEWAY_SECRET"]
        gateway.proc = self.process
        return gateway

    def shut_down(self) -> None:
        """Closes the pipe to the Java process, so that the process exits, and waits for the exit."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()

    def kill(self) -> None:
        kill_process(self.process)


def start_gateway(
    build_command: Callable[[Path], Sequence[str]],
    properties: str,
    environ: Mapping[str, str],
    log: Path | None = None,
    descriptors: Sequence[int] = (),
) -> Gateway:
    """Starts the Java command with a file of these properties. The output goes to `log`; None inherits the output.

    The Java process keeps `descriptors` open. Raises LaunchError if the process exits or is not ready in time.
    """
    with ExitStack() as stack:
        temporary = tempfile.TemporaryDirectory(prefix="moldau-spark-", ignore_cleanup_errors=True)
        directory = Path(stack.enter_context(temporary))
        output = None if log is None else stack.enter_context(log.open("wb"))
        connection_file, settings = directory / "connection", directory / "settings"
        settings.write_text(properties)
        process = subprocess.Popen(
            build_command(settings),
            # Java exits when this pipe closes. The pipe also closes if the driver is killed.
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            # Ctrl-C must interrupt only the driver, which may still need Java, for example to stop queries.
            process_group=0,
            pass_fds=tuple(descriptors),
            env={**environ, "SPARK_CONNECT_MODE": "0", "_PYSPARK_DRIVER_CONN_INFO_PATH": str(connection_file)},
        )
        try:
            port, secret = _wait_for_connection(process, connection_file, log)
        except BaseException:
            kill_process(process)
            raise
    return Gateway(process, port, secret)


def _wait_for_connection(
    process: "subprocess.Popen[bytes]", connection_file: Path, log: Path | None
) -> tuple[int, str]:
    deadline = time.monotonic() + START_TIMEOUT_S
    while not connection_file.is_file():
        if process.poll() is not None:
            raise LaunchError(
                f"Spark's Java process ended with exit code {process.returncode} before it could be used; "
                + ("see its output above." if log is None else f"see {log}.")
            )
        if time.monotonic() > deadline:
            raise LaunchError(
                f"Spark's Java process was not ready within {START_TIMEOUT_S:.0f} s. If it downloads packages "
                "(spark.jars.packages), check the network; otherwise try again with less load on the machine."
            )
        time.sleep(POLL_INTERVAL_S)
    return parse_connection(connection_file.read_bytes())


def parse_connection(data: bytes) -> tuple[int, str]:
    """Parses the connection file that Spark writes: a port, and a secret with its length before it."""
    port, length = struct.unpack_from(">ii", data)
    return port, data[8 : 8 + length].decode()


def terminate_process(process: "subprocess.Popen[bytes]") -> None:
    """Terminates a process, and kills it if it does not exit in time."""
    if process.poll() is None:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(STOP_TIMEOUT_S)
    kill_process(process)


def kill_process(process: "subprocess.Popen[bytes]") -> None:
    if process.stdin is not None:
        with suppress(OSError):
            process.stdin.close()
    if process.poll() is None:
        process.send_signal(signal.SIGKILL)
    process.wait()
