"""Spark's Kafka connector from its published jars, fetched once through Maven into a cache."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
from pathlib import Path

# Not all jars of Spark's own version are published; these work with PySpark 4.3.
ARTIFACTS = (
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    "org.apache.kafka:kafka-clients:3.9.1",
    "org.apache.commons:commons-pool2:2.12.1",
)
CONNECTOR_VERSION = ARTIFACTS[0].rpartition(":")[2]
CACHE = Path(__file__).resolve().parents[2] / ".cache" / "spark-kafka"
FETCH_TIMEOUT_S = 300


class ConnectorUnavailable(Exception):
    """The connector cannot be fetched here; the message says why."""


def fetch() -> list[Path]:
    """Returns the connector's jars, copied through Maven the first time; raises ConnectorUnavailable."""
    jars = [CACHE / _file_name(artifact) for artifact in ARTIFACTS]
    if all(jar.is_file() for jar in jars):
        return jars
    maven = shutil.which("mvn")
    if maven is None:
        raise ConnectorUnavailable("Maven (mvn) is not installed and the jars are not in the cache")
    CACHE.mkdir(parents=True, exist_ok=True)
    with open(CACHE / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for artifact, jar in zip(ARTIFACTS, jars, strict=True):
            if not jar.is_file():
                _copy(maven, artifact, jar)
    return jars


def available() -> str | None:
    """Returns None if the connector is available (fetching it if needed), else the reason."""
    try:
        fetch()
    except ConnectorUnavailable as error:
        return str(error)
    return None


def spark_jars() -> str:
    """Returns the value of `spark.jars` that enables `format("kafka")`."""
    return ",".join(str(jar) for jar in fetch())


def _file_name(artifact: str) -> str:
    _, name, version = artifact.split(":")
    return f"{name}-{version}.jar"


def _copy(maven: str, artifact: str, jar: Path) -> None:
    """Copies one artifact without dependencies: their list names a repository that may be unreachable."""
    # Copied to a temporary name, so that an interrupted download is not used.
    partial = CACHE / "partial"
    command = [maven, "-q", "-B", "dependency:copy", f"-Dartifact={artifact}", f"-DoutputDirectory={partial}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_TIMEOUT_S, cwd=CACHE)
    except subprocess.TimeoutExpired:
        raise ConnectorUnavailable(f"Maven did not copy {artifact} within {FETCH_TIMEOUT_S} s") from None
    if done.returncode != 0:
        last = "\n".join((done.stdout + done.stderr).strip().splitlines()[-6:])
        raise ConnectorUnavailable(f"Maven could not copy {artifact}: {last}")
    (partial / jar.name).rename(jar)
