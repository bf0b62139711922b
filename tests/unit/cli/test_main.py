"""The command tree and its lazy imports."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from moldau import __version__
from moldau.cli.commands import app
from moldau.settings.docs_page import settings_page

HEAVY = ("asyncio", "uvloop", "kio", "cramjam", "moldau.node", "moldau.handlers")


def imported_by(statement: str) -> set[str]:
    code = (
        f"import sys\ntry:\n    {statement}\nexcept SystemExit: pass\nprint(*sys.modules, sep='\\n', file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stderr.split())


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == 0, result.output
    return result.stdout


def test_help_lists_commands_without_heavy_imports() -> None:
    modules = imported_by("sys.argv = ['moldau', '--help']; from moldau.cli.main import main; main()")
    assert "typer" in modules
    assert not modules.intersection(HEAVY)
    text = run("--help")
    assert all(command in text for command in ("serve", "settings", "version", "log"))


def test_serve_does_not_import_typer() -> None:
    modules = imported_by("sys.argv = ['moldau', 'serve', '--store', 'x']; from moldau.cli.main import main; main()")
    assert "moldau.cli.serve" in modules
    assert not modules.intersection({"typer", "rich", "pydantic", *HEAVY})


def test_a_node_does_not_import_the_cli() -> None:
    modules = imported_by("import moldau.node.node")
    assert not modules.intersection({"typer", "rich", "pydantic", "moldau.cli"})


@pytest.mark.parametrize("arguments", [["version"], ["--version"]])
def test_version_is_printed(arguments: list[str]) -> None:
    assert run(*arguments).startswith(f"moldau {__version__} (Python 3.")


def test_settings_are_printed_or_written(tmp_path: Path) -> None:
    assert run("settings") == settings_page()
    run("settings", "--write", str(tmp_path / "settings.md"))
    assert (tmp_path / "settings.md").read_text() == settings_page()


def test_settings_are_printed_as_json() -> None:
    found = {(each["scope"], each["name"]): each for each in map(json.loads, run("settings", "--json").splitlines())}
    retention = found["topic", "retention.ms"]
    assert set(retention) == {"name", "scope", "default", "values", "description", "is_dynamic"}
    assert (retention["default"], retention["is_dynamic"]) == ("604800000", True)
    assert found["broker", "node.id"]["is_dynamic"] is False


def test_log_help_lists_its_commands() -> None:
    text = run("log", "--help")
    assert "dump" in text
    assert "verify" in text


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        (["up", "--set"], "--set"),
        (["topic", "create", "x", "-c"], "--config"),
        (["topic", "alter", "x", "-c"], "--config"),
    ],
)
def test_an_invalid_pair_names_its_option(arguments: list[str], option: str) -> None:
    result = CliRunner().invoke(app, [*arguments, "nonsense"])
    assert result.exit_code == 2
    assert f"Invalid value for {option}: 'nonsense' is not NAME=VALUE" in result.output


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["consum", "x"], "No such command 'consum'. Did you mean 'consume'?"),
        (["topic", "lst"], "No such command 'lst'; did you mean list?"),
        (["log", "x"], "No such command 'x'; there are dump, verify"),
        (["consume", "x", "--form-beginning"], "--from-beginning"),
    ],
)
def test_misspelt_commands_and_options_are_reported_with_a_suggestion(arguments: list[str], told: str) -> None:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    assert told in result.output


@pytest.mark.parametrize("arguments", [["completion", "tcsh"], ["bench", "--acks", "x"]])
def test_a_value_that_is_no_choice_is_reported_without_a_prefix(arguments: list[str]) -> None:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    assert f"{arguments[-1]!r} is not one of" in result.output
    assert "Value error" not in result.output


def test_serve_is_a_typer_command_too() -> None:
    result = CliRunner().invoke(app, ["serve", "--store", "tape"])
    assert result.exit_code == 2
    assert "flag --store: store cannot be 'tape'" in result.output
    assert "--advertised-listeners" in run("serve", "--help")
