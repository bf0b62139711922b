"""The HTTP server of a node process: start, flags, memory, stop."""

import json
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from moldau.cli.serve import serve_help
from moldau.node import node
from moldau.testing import Broker
from support.broker_process import BrokerProcess, clean_environment
from support.http_connection import RawConnection, request_bytes
from support.http_node import http_address

pytestmark = pytest.mark.usefixtures("only_moldau")

CHECK_MODULES = """
import asyncio, json, sys
from moldau.testing import Broker

API = ("fastapi", "starlette", "pydantic", "uvicorn", "httptools")
def loaded():
    return [name for name in (*API, "moldau.http") if name in sys.modules]

async def get(address, path):
    reader, writer = await asyncio.open_connection(*address.split(":"))
    writer.write(f"GET {path} HTTP/1.1\\r\\nconnection: close\\r\\n\\r\\n".encode())
    response = await reader.read()
    writer.close()
    return response.split(b" ")[1].decode()

async def main():
    async with Broker(): found = {"without": loaded()}
    async with Broker(settings={"http.port": "0"}) as broker:
        found["started"] = loaded()
        found["statuses"] = [await get(broker.node.http_address, "/readyz")]
        found["after health"] = loaded()
        found["statuses"].append(await get(broker.node.http_address, "/admin/v1/topics"))
        found["after topics"] = loaded()
    print(json.dumps(found))

asyncio.run(main())
"""


def test_the_api_is_loaded_at_its_first_request() -> None:
    output = subprocess.run(
        [sys.executable, "-c", CHECK_MODULES], env=clean_environment(), capture_output=True, check=True
    ).stdout
    assert json.loads(output) == {
        "without": [],
        "started": ["moldau.http"],
        "statuses": ["200", "200"],
        "after health": ["moldau.http"],
        "after topics": ["fastapi", "starlette", "pydantic", "uvicorn", "httptools", "moldau.http"],
    }


def test_no_port_is_open_without_the_flag(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as process:
        assert "http" not in process.output().lower().replace("https://", "")


def test_the_startup_line_has_the_address(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", "--http-port", "0") as process:
        found = re.search(r"ready on 127\.0\.0\.1:\d+, HTTP on http://(127\.0\.0\.1:\d+), data in", process.output())
        assert found is not None, process.output()
        with RawConnection(found[1]) as connection:
            assert connection.request("GET", "/readyz").status == 200


def test_a_port_in_use_is_a_clear_error(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        process = BrokerProcess(tmp_path / "data", "--http-port", str(port))
        with pytest.raises(RuntimeError, match="ended with 1"):
            process.start()
    assert (
        f"moldau: cannot listen on 127.0.0.1:{port}: the port is in use; choose another with --http-port"
        in process.output()
    )


@pytest.mark.parametrize("value", ["-2", "65536", "many"])
def test_an_invalid_port_is_rejected(tmp_path: Path, value: str) -> None:
    process = BrokerProcess(tmp_path / "data", "--http-port", value)
    with pytest.raises(RuntimeError, match="ended with 2"):
        process.start()
    assert "--http-port" in process.output() or "http.port" in process.output()


def test_help_names_the_flags() -> None:
    for flag in (
        "--http-port",
        "--http-host",
        "--http-request-max-bytes",
        "--cluster-secret",
        "--[no-]http-kraft-open",
    ):
        assert flag in serve_help()


def test_the_stop_does_not_wait_for_idle_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node, "CLOSE_GRACE_S", 120)
    broker = Broker(settings={"http.port": "0"}).__enter__()
    address = broker.node.http_address
    assert address is not None
    with RawConnection(address) as unused, RawConnection(address) as front, RawConnection(address) as app:
        assert front.request("GET", "/livez").status == 200
        assert app.request("GET", "/admin/v1/topics").status == 200
        started_s = time.monotonic()
        broker.__exit__(None, None, None)
        assert time.monotonic() - started_s < 60
        assert unused.is_closed()
        assert front.is_closed()
        assert app.is_closed()


def test_the_stop_ends_a_request_that_never_completes(tmp_path: Path) -> None:
    with (
        BrokerProcess(tmp_path / "data", "--http-port", "0") as process,
        RawConnection(http_address(process)) as connection,
    ):
        assert connection.request("GET", "/admin/v1/topics").status == 200
        connection.send(request_bytes("POST", "/data/v1/produce", {"topic_partition": "t-1"})[:-1])
        assert process.stop() == 0
        assert connection.is_closed()
        assert "Traceback" not in process.output()


def test_the_stop_during_loading_is_clean(tmp_path: Path) -> None:
    with (
        BrokerProcess(tmp_path / "data", "--http-port", "0") as process,
        RawConnection(http_address(process)) as connection,
    ):
        connection.send(request_bytes("GET", "/admin/v1/topics"))
        assert process.stop() == 0
        assert "Traceback" not in process.output()
