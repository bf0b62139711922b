"""Kafka Connect: workers, and connectors between files and topics."""

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from applications.application_process import ApplicationProcess, java_application, write_properties
from support.ports import free_port

START_TIMEOUT_S = 60
STANDALONE = "org.apache.kafka.connect.cli.ConnectStandalone"
DISTRIBUTED = "org.apache.kafka.connect.cli.ConnectDistributed"
NOT_READY = (404, 409, 503)
"""HTTP statuses of a worker that starts, does not know a connector yet, or whose group rebalances."""

WORKER = {
    "key.converter": "org.apache.kafka.connect.storage.StringConverter",
    "value.converter": "org.apache.kafka.connect.storage.StringConverter",
    "offset.flush.interval.ms": "500",
    # Connectors are found by their service files; a scan of all classes takes seconds.
    "plugin.discovery": "service_load",
    # Retries of a batch are not written twice. Connect switches this off by default.
    "producer.enable.idempotence": "true",
}
DISTRIBUTED_WORKER = {
    **WORKER,
    "offset.storage.partitions": "5",
    "status.storage.partitions": "2",
    # The tasks of a worker that left are assigned to the others at once.
    "scheduled.rebalance.max.delay.ms": "0",
}
EXACTLY_ONCE_WORKER = {
    **DISTRIBUTED_WORKER,
    "exactly.once.source.support": "enabled",
    # A killed worker is replaced after this time; 10 s by default.
    "session.timeout.ms": "6000",
    "heartbeat.interval.ms": "1000",
    # A task whose worker does not reach the end of the config topic in this time fails for good; 3 s by default.
    "worker.sync.timeout.ms": "60000",
}


class ConnectWorker:
    """A worker process and its REST interface."""

    def __init__(self, process: ApplicationProcess, address: str) -> None:
        self.process = process
        self.address = address

    def wait_until_ready(self) -> None:
        """Waits until the worker is in its group and serves requests."""
        self.process.wait_until(
            lambda: (self._request("GET", "/health") or {}).get("status") == "healthy",
            "the worker is ready",
            START_TIMEOUT_S,
        )

    def create_connector(self, name: str, configuration: Mapping[str, object]) -> None:
        self.process.wait_until(
            lambda: self._request("PUT", f"/connectors/{name}/config", configuration) is not None,
            f"{name} is created",
            START_TIMEOUT_S,
        )

    def wait_until_running(self, *connectors: str) -> None:
        """Waits until the connectors and their tasks run, one task each."""
        self.process.wait_until(
            lambda: all(self._states_of(each) == ["RUNNING", "RUNNING"] for each in connectors),
            f"{connectors} are running",
            START_TIMEOUT_S,
        )

    def wait_for_offset(self, connector: str, partition: object, offset: object) -> None:
        """Waits until this is the only offset that the connector has stored."""
        expected = {"offsets": [{"partition": partition, "offset": offset}]}
        self.process.wait_until(
            lambda: self._request("GET", f"/connectors/{connector}/offsets") == expected,
            f"{connector} has stored {expected}",
            START_TIMEOUT_S,
        )

    def _states_of(self, connector: str) -> list[str]:
        """Returns the states of a connector and its tasks."""
        status = self._request("GET", f"/connectors/{connector}/status")
        return [] if status is None else [each["state"] for each in (status["connector"], *status["tasks"])]

    def _request(self, method: str, path: str, body: object = None) -> Any:
        """Returns None if the worker is not ready for the request."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.address + path, data, {"Content-Type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=30) as response:
                return json.load(response)
        except urllib.error.HTTPError as error:
            if error.code not in NOT_READY:
                raise
        except (urllib.error.URLError, ConnectionError):
            # It does not listen yet.
            pass
        return None


def standalone_worker(directory: Path, bootstrap: str, connectors: Mapping[str, Mapping[str, object]]) -> ConnectWorker:
    port = free_port()
    worker = {
        **WORKER,
        "bootstrap.servers": bootstrap,
        "listeners": f"http://127.0.0.1:{port}",
        "offset.storage.file.filename": directory / "offsets",
    }
    files = [
        write_properties(directory / f"{name}.properties", {"name": name, **properties})
        for name, properties in connectors.items()
    ]
    process = java_application(
        directory / "standalone.log", STANDALONE, write_properties(directory / "worker.properties", worker), *files
    )
    return ConnectWorker(process, f"http://127.0.0.1:{port}")


def distributed_worker(
    directory: Path, bootstrap: str, group: str, number: int, settings: Mapping[str, str] = DISTRIBUTED_WORKER
) -> ConnectWorker:
    """Starts one worker of a group; the topics of the group are named after it."""
    port = free_port()
    worker = {
        **settings,
        "bootstrap.servers": bootstrap,
        "listeners": f"http://127.0.0.1:{port}",
        "group.id": group,
        "config.storage.topic": f"{group}-configs",
        "offset.storage.topic": f"{group}-offsets",
        "status.storage.topic": f"{group}-status",
    }
    process = java_application(
        directory / f"worker-{number}.log",
        DISTRIBUTED,
        write_properties(directory / f"worker-{number}.properties", worker),
    )
    return ConnectWorker(process, f"http://127.0.0.1:{port}")


def file_source(file: Path, topic: str) -> dict[str, object]:
    return {"connector.class": "FileStreamSource", "tasks.max": 1, "file": str(file), "topic": topic}


def file_sink(file: Path, topic: str) -> dict[str, object]:
    return {"connector.class": "FileStreamSink", "tasks.max": 1, "file": str(file), "topics": topic}
