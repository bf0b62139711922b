"""`docker-compose.yaml` and `Dockerfile`, checked without Docker: a node is started as a service would start it."""

import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.broker_process import clean_environment
from support.ports import free_port

PROJECT = Path(__file__).parents[2]
START_TIMEOUT_S = 60
STOP_TIMEOUT_S = 60


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    text = (PROJECT / "docker-compose.yaml").read_text()
    loaded: dict[str, Any] = yaml.safe_load(re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text))
    return loaded


def environment_of(service: dict[str, Any]) -> dict[str, str]:
    return {name: str(value) for name, value in service["environment"].items()}


def test_five_brokers_have_the_ports_8001_to_8005(compose: dict[str, Any]) -> None:
    services = compose["services"]
    assert list(services) == [f"broker-{number}" for number in range(1, 6)]
    for number, (name, service) in enumerate(services.items(), 1):
        assert service["ports"] == [f"127.0.0.1:{8000 + number}:80"]
        assert service["volumes"] == [f"{name}:/data"]
        assert name in compose["volumes"]
        assert service["build"] == "."
        environment = environment_of(service)
        assert environment["BROKER_ID"] == str(number)
        assert environment["BROKERS"] == "1@broker-1:80,2@broker-2:80,3@broker-3:80,4@broker-4:80,5@broker-5:80"
        assert environment["MAX_SEGMENT_SIZE_BYTES"] == "1073741824"
        assert len({environment_of(each)["MOLDAU_CLUSTER_ID"] for each in services.values()}) == 1


def test_the_image_has_all_files_of_the_build() -> None:
    copied = [
        source
        for line in (PROJECT / "Dockerfile").read_text().splitlines()
        if line.startswith("COPY")
        for source in line.split()[1:-1]
    ]
    allowed = (PROJECT / ".dockerignore").read_text().splitlines()
    assert copied
    for source in copied:
        assert (PROJECT / source).exists()
        assert f"!{source}" in allowed


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A directory with the command `moldau`, as the image has it."""
    directory = tmp_path / "bin"
    directory.mkdir()
    command = directory / "moldau"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m moldau "$@"\n')
    command.chmod(0o755)
    return directory


def run_entrypoint(programs: Path, environment: dict[str, str], **options: Any) -> "subprocess.Popen[str]":
    [entrypoint] = re.findall(r'^ENTRYPOINT \["(.+)"\]$', (PROJECT / "Dockerfile").read_text(), re.M)
    environment = {**clean_environment(), **environment, "PATH": f"{programs}:{os.environ['PATH']}"}
    return subprocess.Popen([PROJECT / entrypoint], env=environment, text=True, **options)


@pytest.fixture
def health_port(compose: dict[str, Any], programs: Path, tmp_path: Path) -> Iterator[int]:
    """The HTTP port of a node with the environment of broker-1, except for the ports and the directory of the data."""
    port = free_port()
    environment = environment_of(compose["services"]["broker-1"])
    environment["BROKERS"] = environment["BROKERS"].replace("broker-1:80", f"broker-1:{port}")
    environment |= {"KAFKA_PORT": str(free_port()), "DATA_DIR": str(tmp_path / "data")}
    environment["MAX_SEGMENT_SIZE_BYTES"] = "2048"
    with (tmp_path / "out").open("w") as out:
        node = run_entrypoint(programs, environment, stdout=out, stderr=out)
    try:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not is_healthy(port):
            assert node.poll() is None, (tmp_path / "out").read_text()
            assert time.monotonic() < deadline, (tmp_path / "out").read_text()
            time.sleep(0.05)
        yield port
    finally:
        node.terminate()
        assert node.wait(STOP_TIMEOUT_S) == 0, (tmp_path / "out").read_text()


def is_healthy(port: int) -> bool:
    try:
        health(port)
    except OSError:
        return False
    return True


def health(port: int) -> Any:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthcheck", timeout=5) as response:
        return json.load(response)


def test_a_service_runs_a_healthy_broker(compose: dict[str, Any], health_port: int, tmp_path: Path) -> None:
    # The other four brokers do not run, so there is no leader.
    assert health(health_port) == {"status": "up", "broker_id": 1, "leader_broker_id": -1}
    kind, *command = compose["services"]["broker-1"]["healthcheck"]["test"]
    assert kind == "CMD"
    assert command[0] == "python3"
    check = [sys.executable, *(part.replace("//localhost/", f"//localhost:{health_port}/") for part in command[1:])]
    assert subprocess.run(check, timeout=30).returncode == 0
    assert (tmp_path / "data" / "__cluster_metadata-0").is_dir()


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"BROKERS": "1@broker-1:80"}, "BROKER_ID: is the id of this node"),
        ({"BROKER_ID": "1"}, "BROKERS: lists all brokers"),
        ({"BROKER_ID": "1", "BROKERS": "broker-1:80"}, "broker-1:80 is not id@host:port"),
        ({"BROKER_ID": "6", "BROKERS": "1@broker-1:80"}, "does not list this node, broker 6"),
    ],
)
def test_a_wrong_environment_is_reported(programs: Path, environment: dict[str, str], message: str) -> None:
    process = run_entrypoint(programs, environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    output, _ = process.communicate(timeout=30)
    assert process.returncode == 2
    assert message in output
