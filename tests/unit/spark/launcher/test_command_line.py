"""Errors of `moldau spark …` for wrong arguments, before any Java is started."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from moldau.cli.commands import app
from moldau.cli.spark.parameters import parse_spark_conf
from moldau.cli.spark.shell import banner


def called(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["spark", *arguments])


def test_a_missing_program(tmp_path: Path) -> None:
    result = called("submit", str(tmp_path / "none.py"))
    assert result.exit_code == 1
    assert "does not exist" in result.output.replace("\n", " ")


@pytest.mark.parametrize("given", ["spark.x", "sql.x=1", "=1"])
def test_an_invalid_setting(tmp_path: Path, given: str) -> None:
    (tmp_path / "a.py").write_text("")
    result = called("submit", "--conf", given, str(tmp_path / "a.py"))
    assert result.exit_code == 2
    assert "is not a Spark setting" in result.output


def test_settings_may_have_equals_signs_in_their_values() -> None:
    assert parse_spark_conf(["spark.a=b=c", "spark.d="]) == {"spark.a": "b=c", "spark.d": ""}
    assert parse_spark_conf(None) == {}
    with pytest.raises(typer.BadParameter):
        parse_spark_conf(["a"])


def test_an_unreachable_master_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("")
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"spark://127.0.0.1:{server.getsockname()[1]}"
    result = called("submit", "--master", url, "--conf", "spark.moldau.masterTimeout=300ms", str(tmp_path / "a.py"))
    assert result.exit_code == 1
    assert f"No Spark master at {url}" in result.output.replace("\n", " ")


def test_an_invalid_master(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("")
    result = called("submit", "--master", "localhost", str(tmp_path / "a.py"))
    assert result.exit_code == 1
    assert "'localhost' is not a master" in result.output


def test_a_program_that_fails_shows_its_own_lines_only(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("def f():\n    raise ValueError('mine')\n\n\nf()\n")
    code = "import moldau.cli.spark.submit as it, pathlib, sys; it._run(pathlib.Path(sys.argv[1]), [])"
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "a.py")], capture_output=True, text=True)
    trace = done.stderr.partition("typer")[0].splitlines()
    assert trace[0] == "Traceback (most recent call last):"
    assert "a.py" in trace[1]
    assert "ValueError: mine" in trace
    assert not any("runpy" in line or "moldau" in line for line in trace[: trace.index("ValueError: mine")])


def test_a_worker_needs_a_standalone_master() -> None:
    result = called("worker", "local[2]")
    assert result.exit_code == 1
    assert "needs a standalone master" in result.output


def test_a_port_in_use_is_reported() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        result = called("master", "--port", str(server.getsockname()[1]))
    assert result.exit_code == 1
    assert "cannot listen on 127.0.0.1" in result.output.replace("\n", " ")


def test_the_banner_shows_a_first_line_to_try() -> None:
    assert 'spark.read.format("moldau")' in banner("4.3.0", "local[*]")
