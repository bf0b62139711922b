"""The pipeline commands that need no Spark, and what the others refuse before they start it."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from moldau.cli.commands import app
from moldau.pipelines.form.loading import load
from moldau.pipelines.running.process_identity import process_start
from moldau.pipelines.running.progress import Progress, to_json
from moldau.pipelines.running.state_directory import RunRecord, StateDirectory
from moldau.pipelines.shipped import TEMPLATES

HELD = """
import signal, sys, time
from pathlib import Path
from moldau.pipelines.running.state_directory import StateDirectory
if sys.argv[2] == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
with StateDirectory(Path(sys.argv[1])).locked():
    print("locked", flush=True)
    time.sleep(60)
"""


@pytest.fixture(autouse=True)
def in_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MOLDAU_PIPELINES", raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path


def moldau(*arguments: str) -> Any:
    return CliRunner().invoke(app, list(arguments))


def succeeds(*arguments: str) -> str:
    result = moldau(*arguments)
    assert result.exit_code == 0, result.output
    return result.output


def fails(*arguments: str, code: int = 1) -> str:
    result = moldau(*arguments)
    assert result.exit_code == code, result.output
    assert result.exception is None or isinstance(result.exception, SystemExit), repr(result.exception)
    return " ".join(result.output.split())


def ran(path: Path, **changed: Any) -> StateDirectory:
    """A pipeline that has run."""
    state = StateDirectory.of(path / "moldau-pipelines", "revenue")
    facts = {
        "name": "revenue",
        "pid": 1,
        "process_start": "0",
        "host": socket.gethostname(),
        "started": "2026-01-31T12:00:00.000Z",
        "file": "/p/revenue.yaml",
        "file_hash": "0",
        "master": "local[2]",
        "bootstrap": "127.0.0.1:9092",
        "generation": 1,
        "checkpoints": "/p/checkpoints",
    }
    state.write_run(RunRecord(**{**facts, **changed}))
    state.write_generations(state.generations("2026-01-31T12:00:00.000Z"))
    return state


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("python", [False, True])
def test_a_new_file_is_a_pipeline_of_that_name(template: str, python: bool) -> None:
    form = ["--python"] if python else []
    said = succeeds("pipeline", "new", "mine", "--from", template, *form)
    file = Path("mine.py" if python else "mine.yaml")
    assert f"moldau pipeline check {file}" in said
    assert load(file).name == "mine"
    assert f"moldau pipeline run {file}" in file.read_text()


def test_both_forms_of_a_template_are_the_same_pipeline() -> None:
    for template in TEMPLATES:
        succeeds("pipeline", "new", "mine", "--from", template, "--force")
        succeeds("pipeline", "new", "mine", "--from", template, "--force", "--python")
        yaml, python = load(Path("mine.yaml")), load(Path("mine.py"))
        for name in ("bootstrap", "on_bad", "dead_letter_topic", "trigger", "spark"):
            assert getattr(yaml, name) == getattr(python, name), name
        for one, other in zip(yaml.sinks, python.sinks, strict=True):
            assert (one.name, one.kind, one.target, one.mode, one.key, one.order_by, one.delete_when) == (
                other.name,
                other.kind,
                other.target,
                other.mode,
                other.key,
                other.order_by,
                other.delete_when,
            )
        for one, other in zip(yaml.sources, python.sources, strict=True):
            assert (one.name, one.topics, one.format, one.schema, one.watermark, one.expectations) == (
                other.name,
                other.topics,
                other.format,
                other.schema,
                other.watermark,
                other.expectations,
            )


def test_new_does_not_write_over_a_file_unless_told_to() -> None:
    Path("mine.yaml").write_text("precious")
    assert "mine.yaml is there already" in fails("pipeline", "new", "mine")
    assert Path("mine.yaml").read_text() == "precious"
    succeeds("pipeline", "new", "mine", "--force")
    assert Path("mine.yaml").read_text() != "precious"


def test_what_cannot_be_a_name_or_a_template_is_told() -> None:
    assert "cannot be a name" in fails("pipeline", "new", "a/b")
    assert "is none of orders-revenue, compacted-table, blank" in fails(
        "pipeline", "new", "mine", "--from", "nothing", code=2
    )


@pytest.mark.parametrize("command", ["check", "run"])
def test_a_file_with_a_mistake_is_told_before_spark_is_started(command: str) -> None:
    succeeds("pipeline", "new", "mine")
    Path("mine.yaml").write_text(Path("mine.yaml").read_text().replace("watermark:", "watermrak:"))
    said = fails("pipeline", command, "mine.yaml")
    assert "watermrak" in said
    assert "watermark" in said
    assert "Spark" not in said


def test_a_replay_says_what_is_written_twice_and_does_nothing_unless_told_to() -> None:
    succeeds("pipeline", "new", "mine")
    said = fails("pipeline", "replay", "mine.yaml", "--from", "2 hours ago")
    assert "as generation 2" in said
    assert "revenue (topic revenue): everything since then is written a second time." in said
    assert "tables/revenue): rows with the same key are replaced, none is there twice." in said
    assert "dead letters (topic orders.dead): are sent a second time." in said
    assert "Windows that had begun before that time" in said
    assert "--generation 1` goes back to it." in said
    assert "add --yes to do it" in said
    assert not Path("moldau-pipelines").exists()
    assert "is not a time" in fails("pipeline", "replay", "mine.yaml", "--from", "tomorrow")


def test_a_setting_of_spark_that_is_none_is_the_callers_mistake() -> None:
    succeeds("pipeline", "new", "mine")
    assert "'x' is not NAME=VALUE" in fails("pipeline", "run", "mine.yaml", "--conf", "x", code=2)


def test_nothing_has_run_yet(in_directory: Path) -> None:
    assert "No pipeline has run" in succeeds("pipeline", "list")
    said = fails("pipeline", "status", "revenue")
    assert "None has run here yet" in said
    ran(in_directory)
    assert "There is revenue." in fails("pipeline", "stop", "revenu")


def test_status_tells_how_a_run_ended(in_directory: Path) -> None:
    state = ran(
        in_directory, ended="2026-01-31T12:05:00.000Z", outcome="failed", error="table: the disk is full"
    )
    progress = Progress("table", "2026-01-31T12:04:59.000Z", 41, 1200, 600.0, 2400.0, 500, 3)
    state.progress.write_text(to_json(progress) + "\n")
    said = succeeds("pipeline", "status", "revenue")
    assert "failed" in said
    assert "table: the disk is full" in said
    assert "/p/checkpoints/1" in said
    assert "1,200" in said
    told = json.loads(succeeds("pipeline", "status", "revenue", "--json"))
    assert told["state"] == "failed"
    assert told["queries"][0]["lag"] == 3
    assert "failed" in succeeds("pipeline", "list")


def test_a_run_that_left_without_a_word_was_killed(in_directory: Path) -> None:
    ran(in_directory)
    assert "killed" in succeeds("pipeline", "status", "revenue")
    assert "is not running" in succeeds("pipeline", "stop", "revenue")


def test_stop_asks_the_process_and_waits_for_its_end(in_directory: Path) -> None:
    path = in_directory / "moldau-pipelines" / "revenue"
    command = [sys.executable, "-c", HELD, str(path), "hears"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"locked\n"
        ran(in_directory, pid=process.pid, process_start=process_start(process.pid))
        assert "running" in succeeds("pipeline", "status", "revenue")
        said = succeeds("pipeline", "stop", "revenue")
        assert "revenue is stopped." in said
        assert process.wait() == -signal.SIGTERM
    assert "is not running" in succeeds("pipeline", "stop", "revenue")


def test_a_process_that_only_has_the_same_number_is_left_alone(in_directory: Path) -> None:
    state = ran(in_directory, pid=os.getpid(), process_start="12")
    with state.locked():
        assert "is not the one that runs it" in fails("pipeline", "stop", "revenue")
    state = ran(in_directory, pid=os.getpid(), process_start="12", host="elsewhere")
    with state.locked():
        assert "runs on elsewhere: stop it there" in fails("pipeline", "stop", "revenue")


def test_a_run_that_does_not_stop_in_time_is_told(in_directory: Path) -> None:
    path = in_directory / "moldau-pipelines" / "revenue"
    with subprocess.Popen([sys.executable, "-c", HELD, str(path), "deaf"], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"locked\n"
        ran(in_directory, pid=process.pid, process_start=process_start(process.pid))
        said = fails("pipeline", "stop", "revenue", "--timeout", "0.3")
        assert "has not stopped within 0.3 s" in said
        process.kill()


def test_without_the_extra_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    succeeds("pipeline", "new", "mine")
    code = (
        "import sys\nsys.modules['yaml'] = None\nsys.modules['pyspark'] = None\n"
        "sys.argv = ['moldau', *sys.argv[1:]]\nfrom moldau.cli.main import main\nmain()"
    )
    for command in (["pipeline", "run", "mine.yaml"], ["pipeline", "check", "mine.yaml"], ["demo"]):
        done = subprocess.run([sys.executable, "-c", code, *command], capture_output=True, text=True)
        assert done.returncode == 1, done.stderr
        assert "pip install 'moldau[spark]'" in done.stderr
        assert "Traceback" not in done.stderr
    # Those that only look need nothing of it.
    done = subprocess.run([sys.executable, "-c", code, "pipeline", "list"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_help_teaches() -> None:
    said = succeeds("pipeline", "--help")
    for command in ("new", "check", "run", "list", "status", "stop", "replay", "redrive"):
        assert command in said
