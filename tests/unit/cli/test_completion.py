"""Completion of command lines, without a cluster."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from moldau.cli.completion import complete

UNREACHABLE = "127.0.0.1:1"


def values(*words: str, shell: str = "fish") -> list[str]:
    kind, *rows = complete([shell, *words]).splitlines()
    assert kind == "values"
    return [row.partition("\t")[0] for row in rows]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["con"], ["consume"]),
        (["comp"], ["completion"]),
        (["topic", "de"], ["describe", "delete"]),
        (["nosuch", ""], []),
        (["topic", "nosuch", ""], []),
        (["--"], ["--help"]),
        (["--version", "version", "--"], ["--help"]),
        (["consume", "--fro"], ["--from-beginning", "--from"]),
        (["consume", "-n", "--fro"], []),
        (["consume", "--isolation-level", "read_c"], ["read_committed"]),
        (["consume", "--isolation-level=read_c"], ["--isolation-level=read_committed"]),
        (["consume", "--nosuch="], []),
        (["produce", "x", "--compression", "z"], ["zstd"]),
        (["produce", "x", "y", ""], []),
        (["completion", ""], ["bash", "zsh", "fish"]),
        (["serve", "--listen"], ["--listen"]),
        (["serve", "--store", "m"], ["memory"]),
        (["group", "reset", "g", "--to-e"], ["--to-earliest"]),
        (["consume", "x", "--json", "--js"], []),
        (["topic", "create", "x", "--config", "a=b", "--conf"], ["--config"]),
        (["spark", "submit", "--py-f"], ["--py-files"]),
        (["consume", "--", "--fro"], []),
    ],
)
def test_commands_options_and_values_are_completed(words: list[str], expected: list[str]) -> None:
    assert values(*words) == expected


def test_candidates_have_descriptions() -> None:
    assert "consume\tPrint the records of topics\n" in complete(["zsh", ""])
    assert complete(["zsh", "topic", "delet"]) == "values\ndelete\tDelete topics and all their records\n"


@pytest.mark.parametrize("words", [["log", "dump", ""], ["spark", "submit", "rev"], ["settings", "--write", ""]])
def test_paths_are_left_to_the_shell(words: list[str]) -> None:
    assert complete(["bash", *words]) == "files\n"


@pytest.mark.parametrize("words", [["consume", ""], ["consume", "--bootstrap", UNREACHABLE, ""], ["consume", "-g", ""]])
def test_an_unreachable_cluster_has_no_names(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOLDAU_BOOTSTRAP", UNREACHABLE)
    assert values(*words) == []
    monkeypatch.setenv("MOLDAU_BOOTSTRAP", "not:an:address")
    assert values("consume", "") == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_is_valid(shell: str, tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    script = subprocess.run([sys.executable, "-m", "moldau", "completion", shell], capture_output=True, check=True)
    (tmp_path / "script").write_bytes(script.stdout)
    subprocess.run([shell, "-n", str(tmp_path / "script")], check=True)
