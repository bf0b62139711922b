"""Pipeline commands, as far as they do not need Spark."""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from moldau.cli.commands import app
from moldau.cli.pipeline import list as list_module
from moldau.cli.pipeline.parameters import load_pipeline, state_directory
from moldau.cli.spark.parameters import exit_on_error
from moldau.pipelines.planner.topic_checks import Finding
from moldau.pipelines.query_report import QueryReport
from moldau.pipelines.runtime.progress import Progress, to_json
from moldau.pipelines.runtime.run import file_hash
from moldau.pipelines.runtime.state_directory import RunRecord, StateDirectory, process_start
from moldau.pipelines.spec.loader import load
from moldau.pipelines.templates import TEMPLATES
from moldau.spark.errors import SparkSourceError
from support.spark_state import clear_spark_state

HELD = """
import signal, sys, time
from pathlib import Path
from moldau.pipelines.runtime.state_directory import StateDirectory
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
def test_new_creates_a_valid_pipeline(template: str, python: bool) -> None:
    form = ["--python"] if python else []
    said = succeeds("pipeline", "new", "mine", "--from", template, *form)
    file = Path("mine.py" if python else "mine.yaml")
    assert f"moldau pipeline check {file}" in said
    assert load(file).name == "mine"
    assert f"moldau pipeline run {file}" in file.read_text()


def test_yaml_and_python_templates_define_the_same_pipeline() -> None:
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


def test_new_overwrites_a_file_only_with_force() -> None:
    Path("mine.yaml").write_text("precious")
    assert "mine.yaml already exists" in fails("pipeline", "new", "mine")
    assert Path("mine.yaml").read_text() == "precious"
    succeeds("pipeline", "new", "mine", "--force")
    assert Path("mine.yaml").read_text() != "precious"


def test_invalid_names_and_templates_are_errors() -> None:
    assert "is not a valid name" in fails("pipeline", "new", "a/b")
    assert "is not one of orders-revenue, compacted-table, lag-history, blank" in fails(
        "pipeline", "new", "mine", "--from", "nothing", code=2
    )


@pytest.mark.parametrize("command", ["check", "run"])
def test_file_errors_are_reported_before_spark_starts(command: str) -> None:
    succeeds("pipeline", "new", "mine")
    Path("mine.yaml").write_text(Path("mine.yaml").read_text().replace("watermark:", "watermrak:"))
    said = fails("pipeline", command, "mine.yaml")
    assert "watermrak" in said
    assert "watermark" in said
    assert "Spark" not in said


def test_replay_lists_its_effects_and_needs_confirmation() -> None:
    succeeds("pipeline", "new", "mine")
    said = fails("pipeline", "replay", "mine.yaml", "--from", "2 hours ago")
    assert "as generation 2" in said
    assert "revenue (topic revenue): everything since then is written again." in said
    assert "tables/revenue): rows with the same key are replaced, without duplicates; until it has caught up" in said
    assert "dead letters (topic orders.dead): are written again." in said
    assert "Windows that started before that time" in said
    assert "--generation 1` returns to it." in said
    assert "Add --yes to replay" in said
    assert not Path("moldau-pipelines").exists()
    assert "is not a time" in fails("pipeline", "replay", "mine.yaml", "--from", "tomorrow")


def test_an_invalid_spark_setting_is_a_usage_error() -> None:
    succeeds("pipeline", "new", "mine")
    assert "'x' is not a Spark setting" in fails("pipeline", "run", "mine.yaml", "--conf", "x", code=2)


def test_commands_without_any_run(in_directory: Path) -> None:
    assert "No pipeline has state" in succeeds("pipeline", "list")
    said = fails("pipeline", "status", "revenue")
    assert "No pipeline has run there yet" in said
    ran(in_directory)
    assert "Pipelines with state there: revenue." in fails("pipeline", "stop", "revenu")


def test_status_shows_the_outcome_of_a_run(in_directory: Path) -> None:
    state = ran(in_directory, ended="2026-01-31T12:05:00.000Z", outcome="failed", error="table: the disk is full")
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
    listed = json.loads(succeeds("pipeline", "list", "--json"))
    assert (listed["pipeline"], listed["state"], listed["generation"]) == ("revenue", "failed", 1)


def test_a_run_without_outcome_is_shown_as_killed(in_directory: Path) -> None:
    ran(in_directory)
    assert "killed" in succeeds("pipeline", "status", "revenue")
    assert "is not running" in succeeds("pipeline", "stop", "revenue")


def write(path: Path, text: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text or "name: revenue\nsources: {orders: {topic: orders}}\nsinks: {out: {delta: out}}\n")
    return path


def test_the_state_directory_is_next_to_the_file(in_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(in_directory / "pipelines" / "revenue.yaml")
    ran(in_directory / "pipelines")
    (in_directory / "elsewhere").mkdir()
    for place, file in (("elsewhere", "../pipelines/revenue.yaml"), ("pipelines", "revenue.yaml")):
        monkeypatch.chdir(in_directory / place)
        assert "killed" in succeeds("pipeline", "status", file)
        assert "is not running" in succeeds("pipeline", "stop", file)
        pipeline = load_pipeline(Path(file), None)
        assert state_directory(pipeline, None).path == in_directory / "pipelines/moldau-pipelines/revenue"
        assert pipeline.sinks[0].target == str(in_directory / "pipelines" / "out")
        assert state_directory(pipeline, Path("given")).path.parent == in_directory / place / "given"
    monkeypatch.chdir(in_directory / "elsewhere")
    assert "Use the file instead of the name" in fails("pipeline", "status", "revenue")
    assert "File none.yaml does not exist" in fails("pipeline", "status", "none.yaml")
    assert "No pipeline has state" in succeeds("pipeline", "list")
    assert "killed" in succeeds("pipeline", "list", "../pipelines")
    monkeypatch.setenv("MOLDAU_PIPELINES", "../pipelines/moldau-pipelines")
    assert "killed" in succeeds("pipeline", "list")


def test_status_shows_a_changed_file(in_directory: Path) -> None:
    file = write(in_directory / "revenue.yaml")
    ran(in_directory, file=str(file), file_hash=file_hash(file))
    assert "changed since" not in succeeds("pipeline", "status", "revenue")
    file.write_text(file.read_text() + "# a word more\n")
    assert "revenue.yaml (changed since the run started)" in succeeds("pipeline", "status", "revenue")
    file.unlink()
    assert "revenue.yaml (deleted)" in succeeds("pipeline", "status", "revenue")


def test_markup_is_printed_literally(in_directory: Path) -> None:
    ran(in_directory, outcome="failed", error="out: [/b] no [red]such[/red] zz-[abc]x", file="/p/[a].yaml")
    said = succeeds("pipeline", "status", "revenue")
    assert "out: [/b] no [red]such[/red] zz-[abc]x" in said
    assert "/p/[a].yaml" in said
    assert "/p/[a].yaml" in succeeds("pipeline", "list")


def test_check_prints_findings_and_removes_its_log(in_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(in_directory / "revenue.yaml")
    (in_directory / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(in_directory / "temporary"))
    logs: list[Path] = []

    class Session:
        def stop(self) -> None:
            logs.extend((in_directory / "temporary").iterdir())

    monkeypatch.setattr("moldau.spark.session", lambda *_, **__: Session())
    found = [Finding("error", "sources.orders", "no topic matches zz-[abc]x", "[/b]")]
    monkeypatch.setattr("moldau.pipelines.planner.checks.check", lambda *_: found)
    said = fails("pipeline", "check", "revenue.yaml")
    assert "no topic matches zz-[abc]x" in said
    assert "[/b]" in said
    (log,) = logs
    assert str(os.getpid()) not in log.name
    assert not log.exists()
    checked = moldau("pipeline", "check", "revenue.yaml", "--json")
    assert checked.exit_code == 1
    assert json.loads(checked.stdout) == {
        "severity": "error",
        "where": "sources.orders",
        "message": "no topic matches zz-[abc]x",
        "fix": "[/b]",
    }


@pytest.mark.parametrize(
    ("given", "environment", "told"),
    [
        (["--master", "bogus"], {}, "'bogus' is not a master"),
        ([], {"JAVA_HOME": "/nowhere"}, "JAVA_HOME is /nowhere"),
        (
            ["--master", "spark://127.0.0.1:1", "--conf", "spark.moldau.masterTimeout=200ms"],
            {},
            "No Spark master at spark://127.0.0.1:1",
        ),
    ],
)
def test_check_without_spark_is_one_error_line(
    in_directory: Path, monkeypatch: pytest.MonkeyPatch, given: list[str], environment: dict[str, str], told: str
) -> None:
    write(in_directory / "revenue.yaml")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    clear_spark_state(monkeypatch)
    assert told in fails("pipeline", "check", "revenue.yaml", *given)


def test_data_source_errors_are_one_error_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit), exit_on_error():
        raise SparkSourceError("there is no topic 'orders'")
    assert "there is no topic 'orders'" in capsys.readouterr().err


def test_status_ignores_other_generations(in_directory: Path) -> None:
    state = ran(in_directory, generation=2)
    old = Progress("old", "2026-01-31T12:04:59.000Z", 41, 1200, 600.0, 2400.0, 500, 3)
    events = [{"event": "started", "generation": 1}, to_json(old), {"event": "started", "generation": 2}]
    lines = [each if isinstance(each, str) else json.dumps(each) for each in events]
    state.progress.write_text("\n".join(lines) + "\n")
    assert "1,200" not in succeeds("pipeline", "status", "revenue")
    state.progress.write_text("\n".join([*lines, to_json(old)]) + "\n")
    assert "1,200" in succeeds("pipeline", "status", "revenue")


def test_stop_signals_the_process_and_waits(in_directory: Path) -> None:
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


def test_stop_does_not_signal_a_reused_process_id(in_directory: Path) -> None:
    state = ran(in_directory, pid=os.getpid(), process_start="12")
    with state.locked():
        assert "of its last run" in fails("pipeline", "stop", "revenue")
    state = ran(in_directory, pid=os.getpid(), process_start="12", host="elsewhere")
    with state.locked():
        assert "is running on elsewhere: stop it there" in fails("pipeline", "stop", "revenue")


def test_stop_fails_after_its_timeout(in_directory: Path) -> None:
    path = in_directory / "moldau-pipelines" / "revenue"
    with subprocess.Popen([sys.executable, "-c", HELD, str(path), "deaf"], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"locked\n"
        ran(in_directory, pid=process.pid, process_start=process_start(process.pid))
        said = fails("pipeline", "stop", "revenue", "--timeout", "0.3")
        assert "has not stopped within 0.3 s" in said
        process.kill()


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_group_help_has_examples() -> None:
    said = succeeds("pipeline", "--help")
    for command in ("new", "check", "run", "list", "status", "stop", "replay", "redrive"):
        assert command in said


def test_the_json_of_reports_names_lost_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    report = QueryReport("revenue", "table", "running", 0, "2026-01-01T00:00:00+00:00", "host", 1, "local", 1)
    monkeypatch.setattr(list_module, "run_admin", lambda operation, bootstrap: [report])
    listed = json.loads(succeeds("pipeline", "list", "--bootstrap", "127.0.0.1:9092", "--json"))
    assert (listed["query"], listed["state"]) == ("table", "lost")
