"""`moldau serve` as a process: startup, signals and error messages."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from moldau.cli.serve import serve
from moldau.cli.serve_node import loop_factory, ready_line
from moldau.settings.broker import BrokerSettings

COMMAND = [sys.executable, "-m", "moldau", "serve"]


@contextmanager
def served(*flags: str) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    """A node and its ready line."""
    process = subprocess.Popen([*COMMAND, *flags], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, process.communicate()[1]
        yield process, line
    finally:
        process.kill()
        process.communicate()


def refused(*flags: str) -> tuple[int, str]:
    done = subprocess.run([*COMMAND, *flags], capture_output=True, text=True, timeout=30)
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    return done.returncode, done.stderr


@pytest.mark.parametrize("asked", [signal.SIGTERM, signal.SIGINT])
def test_a_node_prints_a_ready_line_and_stops_cleanly(tmp_path: Path, asked: signal.Signals) -> None:
    data_dir = tmp_path / "data"
    with served("--listen", "127.0.0.1:0", "--data-dir", str(data_dir)) as (process, line):
        address = line.removeprefix("Moldau is ready on ").partition(",")[0]
        host, port = address.split(":")
        assert f"data in {data_dir}" in line
        assert f"kcat -P -b {address}" in line
        with socket.create_connection((host, int(port))):
            pass
        process.send_signal(asked)
        _, errors = process.communicate()
        assert process.returncode == 0, errors
        assert "stopped" in errors


def test_a_memory_node_writes_no_files(tmp_path: Path) -> None:
    with served("--listen", "127.0.0.1:0", "--store", "memory", "--data-dir", str(tmp_path / "data")) as (
        process,
        line,
    ):
        assert "data in memory only" in line
        process.terminate()
        assert process.wait() == 0
    assert not (tmp_path / "data").exists()


def test_a_port_or_directory_in_use_is_one_error_line(tmp_path: Path) -> None:
    with served("--listen", "127.0.0.1:0", "--data-dir", str(tmp_path / "a")) as (process, line):
        address = line.removeprefix("Moldau is ready on ").partition(",")[0]
        code, said = refused("--listen", address, "--data-dir", str(tmp_path / "b"), "--log-level", "error")
        assert code == 1
        assert said == f"moldau: cannot listen on {address}: the port is in use; choose another with --listen\n"
        code, said = refused("--listen", "127.0.0.1:0", "--data-dir", str(tmp_path / "a"))
        assert code == 1
        assert said.startswith(f"moldau: the data directory {tmp_path / 'a'} is in use by process {process.pid};")


def test_a_foreign_or_damaged_directory_is_one_error_line(tmp_path: Path) -> None:
    flags = ("--listen", "127.0.0.1:0", "--data-dir", str(tmp_path), "--log-level", "error")
    (tmp_path / "meta.properties").write_bytes(b"\xff\xff garbage")
    code, said = refused(*flags)
    assert code == 1
    assert said.startswith(f"moldau: {tmp_path / 'meta.properties'} cannot be read")
    assert said.count("\n") == 1
    (tmp_path / "meta.properties").write_text(
        "version=1\ncluster.id=abc\nnode.id=7\ndirectory.id=AAAAAAAAAAAAAAAAAAAAAQ\n"
    )
    code, said = refused(*flags)
    assert code == 1
    assert said.startswith(f"moldau: {tmp_path} belongs to node 7, not to node 1")


def test_a_foreign_address_is_one_error_line() -> None:
    code, said = refused("--store", "memory", "--listen", "192.0.2.1:9092", "--log-level", "error")
    assert code == 1
    assert said == "moldau: cannot listen on 192.0.2.1:9092: not an address of this machine\n"


def test_a_config_that_would_expose_the_node_does_not_start(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MOLDAU_LISTEN", "0.0.0.0:0")
    assert serve(["--store", "memory"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("moldau: listen: 0.0.0.0:0 listens on all interfaces")
    assert said.endswith("(listen is set by environment MOLDAU_LISTEN)\n")


def test_a_second_signal_exits_at_once(tmp_path: Path) -> None:
    script = tmp_path / "stuck.py"
    script.write_text(
        "import asyncio, sys\n"
        "import moldau.node.node as node\n"
        "from moldau.cli.serve import serve\n"
        "async def stop(self):\n"
        "    print('stopping', flush=True)\n"
        "    await asyncio.Event().wait()\n"
        "node.Node.stop = stop\n"
        "sys.exit(serve(['--store', 'memory', '--listen', '127.0.0.1:0']))\n"
    )
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith(b"Moldau is ready")
            process.terminate()
            assert process.stdout.readline() == b"stopping\n"
            process.send_signal(signal.SIGINT)
            assert process.wait(timeout=30) == 128 + signal.SIGINT
        finally:
            process.kill()


def test_a_fatal_error_stops_the_node_with_its_message(tmp_path: Path) -> None:
    script = tmp_path / "failing.py"
    script.write_text(
        "import sys\n"
        "import moldau.node.node as node\n"
        "from moldau.cli.serve import serve\n"
        "from moldau.errors import StorageError\n"
        "start = node.Node.start\n"
        "async def start_and_fail(self):\n"
        "    await start(self)\n"
        "    self._fail(StorageError('the metadata log cannot be written'))\n"
        "node.Node.start = start_and_fail\n"
        "sys.exit(serve(['--store', 'memory', '--listen', '127.0.0.1:0']))\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=30)
    assert done.returncode == 1
    assert done.stderr.endswith("moldau: the metadata log cannot be written\n")
    assert "Traceback" not in done.stderr


def test_the_ready_line_has_address_and_storage() -> None:
    assert ready_line(["a:1", "b:2"], BrokerSettings(data_dir="/data")) == (
        "Moldau is ready on a:1, b:2, data in /data. Try it: echo hello | kcat -P -b a:1 -t greetings\n"
    )


def test_the_event_loop_can_be_chosen() -> None:
    for choice, module in (("asyncio", "asyncio"), ("uvloop", "uvloop"), ("auto", "uvloop")):
        loop = loop_factory(choice)()
        assert type(loop).__module__.partition(".")[0] == module
        loop.close()


def test_a_read_only_directory_is_one_error_line(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        (tmp_path / "locked").write_text("a file where a directory should be")
    else:
        (tmp_path / "locked").mkdir(mode=0o500)
    code, said = refused("--listen", "127.0.0.1:0", "--data-dir", str(tmp_path / "locked"))
    assert code == 1
    assert said.startswith(f"moldau: cannot use the data directory {tmp_path / 'locked'}: ")
