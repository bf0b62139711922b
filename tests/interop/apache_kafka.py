"""Apache Kafka from its published artifacts: broker, tools and applications, fetched once through Maven into a cache.
A broker runs as one process with broker and controller on free loopback ports."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import IO, Self
from xml.sax.saxutils import escape

from tests.support.ports import free_port

KAFKA_VERSION = "4.3.0"
COORDINATES = (
    ("org.apache.kafka", "kafka_2.13", KAFKA_VERSION),
    ("org.apache.kafka", "kafka-tools", KAFKA_VERSION),
    ("org.apache.kafka", "connect-file", KAFKA_VERSION),
    ("org.apache.kafka", "connect-mirror", KAFKA_VERSION),
    ("org.apache.kafka", "kafka-streams", KAFKA_VERSION),
    ("org.slf4j", "slf4j-simple", "1.7.36"),
)
CACHE = Path(__file__).resolve().parents[2] / ".cache" / "kafka" / KAFKA_VERSION
CLUSTER_ID = "bW9sZGF1LWludGVyb3AtMQ"
FETCH_TIMEOUT_S = 600
START_TIMEOUT_S = 60
STOP_TIMEOUT_S = 60

# The JVM options of Kafka's own start script.
JVM_OPTIONS = (
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-XX:MaxInlineLevel=15",
    "-Djava.awt.headless=true",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
)


class KafkaUnavailable(Exception):
    """Apache Kafka cannot be fetched or run here; the message says why."""


class KafkaFailed(Exception):
    """A command of Apache Kafka failed; the message has its output."""


def _pom() -> str:
    dependencies = "".join(
        f"<dependency><groupId>{escape(group)}</groupId><artifactId>{escape(artifact)}</artifactId>"
        f"<version>{escape(version)}</version></dependency>"
        for group, artifact, version in COORDINATES
    )
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        "<groupId>moldau.cache</groupId><artifactId>apache-kafka</artifactId><version>1</version>"
        f"<packaging>pom</packaging><dependencies>{dependencies}</dependencies></project>\n"
    )


def fetch() -> Path:
    """Returns the directory of Kafka's jars, filled through Maven the first time and when COORDINATES have changed;
    raises KafkaUnavailable."""
    if shutil.which("java") is None:
        raise KafkaUnavailable("java is not installed")
    jars = CACHE / "jars"
    if _is_complete(jars):
        return jars
    maven = shutil.which("mvn")
    if maven is None:
        raise KafkaUnavailable("Maven (mvn) is not installed and the artifacts are not in the cache")
    CACHE.mkdir(parents=True, exist_ok=True)
    with open(CACHE / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not _is_complete(jars):
            _download(maven, jars)
    return jars


def _is_complete(jars: Path) -> bool:
    """Returns whether the directory has the jars of COORDINATES: its pom.xml tells what it was filled with."""
    pom = jars / "pom.xml"
    return pom.is_file() and pom.read_text() == _pom()


def _download(maven: str, jars: Path) -> None:
    # Filled under a temporary name, so that an interrupted download is not used.
    partial = jars.with_name("jars.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    (partial / "pom.xml").write_text(_pom())
    command = [maven, "-q", "-B", "-f", str(partial / "pom.xml"), "dependency:copy-dependencies"]
    command += ["-DincludeScope=runtime", f"-DoutputDirectory={partial}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise KafkaUnavailable(f"Maven did not finish within {FETCH_TIMEOUT_S} s") from None
    if done.returncode != 0:
        raise KafkaUnavailable(f"Maven failed: {_tail(done.stdout + done.stderr)}")
    if jars.exists():
        shutil.rmtree(jars)
    partial.rename(jars)


def available() -> str | None:
    """Returns None if Apache Kafka can be run (fetching it if needed), else the reason."""
    try:
        fetch()
    except KafkaUnavailable as error:
        return str(error)
    return None


def _tail(text: str, lines: int = 12) -> str:
    return "\n".join(text.strip().splitlines()[-lines:])


class ApacheKafka:
    """One Kafka node with its data below `data_dir`, started and stopped by `with`. `start` and `stop` may be called in
    between; data and ports stay."""

    def __init__(
        self,
        data_dir: Path | str,
        properties: Mapping[str, str] | None = None,
        heap: str = "1g",
        scram: Sequence[str] = (),
        features: Sequence[str] = (),
    ) -> None:
        """`scram` are users that exist from the first start, as `SCRAM-SHA-256=[name=ada,password=...]`. `features` are
        levels other than those of the release, as `group.version=0`."""
        self.data_dir = Path(data_dir).resolve()
        self.scram = scram
        self.features = features
        self.properties: dict[str, str] = dict(properties or {})
        self.heap = heap
        self.port = free_port()
        self.controller_port = free_port()
        self.format_s: float | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @staticmethod
    def available() -> str | None:
        return available()

    @staticmethod
    def classpath() -> str:
        return f"{fetch()}{os.sep}*"

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def log_dir(self) -> Path:
        """Directory of the segments: `log_dir / "topic-0" / "00000000000000000000.log"`."""
        return self.data_dir / "logs"

    @property
    def server_log(self) -> Path:
        return self.data_dir / "server.log"

    @property
    def pid(self) -> int:
        if self._process is None:
            raise KafkaFailed("the broker is not running")
        return self._process.pid

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def format(self) -> None:
        """Writes the configuration and formats the storage the first time; separate from `start` so that a start can be
        timed."""
        self.data_dir.mkdir(parents=True, exist_ok=True)
        configuration = self._configuration()
        lines = (f"{name}={value}\n" for name, value in sorted(configuration.items()))
        self._file().write_text("".join(lines))
        if (self.log_dir / "meta.properties").exists():
            return
        began = time.monotonic()
        users = [argument for user in self.scram for argument in ("--add-scram", user)]
        features = [argument for feature in self.features for argument in ("--feature", feature)]
        arguments = ["format", "-t", CLUSTER_ID, "-c", str(self._file()), *users, *features]
        self.run_tool("kafka.tools.StorageTool", arguments)
        self.format_s = time.monotonic() - began

    def start(self, properties: Mapping[str, str] | None = None, wait: bool = True) -> None:
        """Starts the broker with additional `properties`. With `wait` it accepts connections when this returns."""
        if self._process is not None:
            raise KafkaFailed("the broker is already running")
        self.properties.update(properties or {})
        self.format()
        java = ["java", f"-Xmx{self.heap}", f"-Xms{self.heap}", *JVM_OPTIONS]
        with open(self.server_log, "ab") as log:
            self._process = subprocess.Popen(
                [*java, "-cp", self.classpath(), "kafka.Kafka", str(self._file())],
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                cwd=self.data_dir,
            )
        if wait:
            self.wait_until_open()

    def wait_until_open(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            if self._process is None or self._process.poll() is not None:
                self._process = None
                raise KafkaFailed(f"the broker ended while starting:\n{self._server_log_tail()}")
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return
            except OSError:
                time.sleep(0.01)
        self.kill()
        raise KafkaFailed(f"the broker did not open its port in {START_TIMEOUT_S} s:\n{self._server_log_tail()}")

    def stop(self) -> None:
        """Shuts the broker down cleanly, if it is running."""
        if self._process is None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise KafkaFailed(f"the broker did not stop in {STOP_TIMEOUT_S} s") from None
        self._process = None

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def run_tool(
        self, main_class: str, arguments: Sequence[str], input: str | None = None, timeout_s: float = 120
    ) -> str:
        """Runs one of Kafka's command-line tools and returns its output; raises KafkaFailed."""
        done = subprocess.run(
            self._tool_command(main_class, arguments), input=input, capture_output=True, text=True, timeout=timeout_s
        )
        if done.returncode != 0:
            raise KafkaFailed(f"{main_class} exited with {done.returncode}:\n{_tail(done.stdout + done.stderr)}")
        return done.stdout

    @contextmanager
    def tool(self, main_class: str, arguments: Sequence[str]) -> Iterator[IO[str]]:
        """Runs a tool that does not exit by itself, and yields its output; the tool is killed on exit."""
        command = self._tool_command(main_class, arguments)
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as running:
            assert running.stdout is not None
            try:
                yield running.stdout
            finally:
                running.kill()

    def _tool_command(self, main_class: str, arguments: Sequence[str]) -> list[str]:
        command = ["java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        command += ["-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", self.classpath(), main_class]
        return [*command, *arguments]

    def _file(self) -> Path:
        return self.data_dir / "server.properties"

    def _server_log_tail(self) -> str:
        return _tail(self.server_log.read_text(errors="replace")) if self.server_log.exists() else "(no output)"

    def _configuration(self) -> dict[str, str]:
        return {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{self.controller_port}",
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{self.controller_port}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{self.port}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "PLAINTEXT",
            "log.dirs": str(self.log_dir),
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "transaction.state.log.num.partitions": "1",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
            **self.properties,
        }
