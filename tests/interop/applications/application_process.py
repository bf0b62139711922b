"""A process of an application, with its output in a file."""

import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from apache_kafka import ApacheKafka
from java_clients import POLL_INTERVAL_S, poll_until

JVM = ("java", "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.awt.headless=true")
LOG_LEVEL = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
STOP_TIMEOUT_S = 60


class ApplicationProcess:
    """A running application. Leaving the context stops it with SIGTERM, or kills it if the test has failed."""

    def __init__(self, log_path: Path, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        self.log_path = log_path
        with log_path.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=environment
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.stop()
        else:
            self.kill()

    def kill(self) -> None:
        """Kills the application with SIGKILL, if it runs."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def stop(self) -> None:
        """Stops the application with SIGTERM, if it runs."""
        if self._process.poll() is not None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise AssertionError(f"the application did not stop in {STOP_TIMEOUT_S} s:\n{self.output_tail()}") from None

    def wait_until(
        self, condition: Callable[[], bool], what: str, timeout_s: float, interval_s: float = POLL_INTERVAL_S
    ) -> None:
        """Waits for the application; fails with its output if it ends or takes too long."""

        def is_met() -> bool:
            assert self._process.poll() is None, f"it ended with {self._process.returncode}"
            return condition()

        try:
            poll_until(is_met, what, timeout_s, interval_s)
        except AssertionError as error:
            raise AssertionError(f"{error}; output:\n{self.output_tail()}") from None

    def output_tail(self, lines: int = 60) -> str:
        return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-lines:])


def java_application(log_path: Path, main: str, *arguments: str) -> ApplicationProcess:
    """Starts a main class of Kafka's jars, or a Java source file."""
    return ApplicationProcess(log_path, [*JVM, LOG_LEVEL, "-cp", ApacheKafka.classpath(), main, *arguments])


def write_properties(path: Path, properties: Mapping[str, object]) -> str:
    """Writes a properties file and returns its path."""
    path.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
    return str(path)
