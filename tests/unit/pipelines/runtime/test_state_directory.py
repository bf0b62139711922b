"""The state directory: one run at a time, the run record, and checkpoint generations."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from moldau.pipelines.definition import PipelineError
from moldau.pipelines.runtime.state_directory import (
    CheckpointGeneration,
    Generations,
    RunRecord,
    StateDirectory,
    own_process_start,
    process_start,
    state_directories,
    state_root,
)

NOW = "2026-01-31T12:00:00.000Z"


def record(name: str = "revenue", pid: int = 1, start: str = "0") -> RunRecord:
    return RunRecord(
        name=name,
        pid=pid,
        process_start=start,
        host="here",
        started=NOW,
        file="/p/revenue.yaml",
        file_hash="0",
        master="local[2]",
        bootstrap="127.0.0.1:9092",
        generation=1,
        checkpoints="/p/checkpoints",
    )


def test_a_second_run_is_refused_and_the_first_is_named(tmp_path: Path) -> None:
    state = StateDirectory.of(tmp_path, "revenue")
    assert not state.is_locked()
    with state.locked():
        assert state.is_locked()
        with (
            pytest.raises(PipelineError, match=rf"already running as process {os.getpid()}; stop it with `moldau"),
            state.locked(),
        ):
            pass
        assert state.is_locked(), "who was refused must not let go of the other's lock"
    assert not state.is_locked()
    with state.locked():
        pass


def test_a_killed_process_leaves_no_lock(tmp_path: Path) -> None:
    code = (
        "import sys, time\nfrom pathlib import Path\n"
        "from moldau.pipelines.runtime.state_directory import StateDirectory\n"
        "with StateDirectory(Path(sys.argv[1])).locked():\n"
        "    print('locked', flush=True)\n    time.sleep(60)\n"
    )
    state = StateDirectory.of(tmp_path, "revenue")
    with subprocess.Popen([sys.executable, "-c", code, str(state.path)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"locked\n"
        assert state.is_locked()
        process.kill()
        process.wait()
    assert not state.is_locked()


JAVA = """
import os, pathlib, struct, sys, time
told = pathlib.Path(os.environ["_PYSPARK_DRIVER_CONN_INFO_PATH"])
told.with_name("new").write_bytes(struct.pack(">ii", 1, 0))
told.with_name("new").rename(told)
time.sleep(60)
"""
DRIVER = f"""
import os, sys, time
from pathlib import Path
from moldau.pipelines.runtime.state_directory import StateDirectory
from moldau.spark.launcher import gateway
with StateDirectory(Path(sys.argv[1])).locked() as locks:
    java = gateway.start_gateway(lambda _: [sys.executable, "-c", {JAVA!r}], "", os.environ, descriptors=locks)
    print(java.process.pid, flush=True)
    if sys.argv[2] == "killed":
        time.sleep(60)
print("left", flush=True)
time.sleep(60)
"""


def test_the_lock_is_held_until_the_java_of_a_killed_run_exits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = StateDirectory.of(tmp_path, "revenue")
    command = [sys.executable, "-c", DRIVER, str(state.path), "killed"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as driver:
        assert driver.stdout is not None
        java = int(driver.stdout.readline())
        driver.kill()
        driver.wait()
    try:
        assert state.is_locked()
        monkeypatch.setattr("moldau.pipelines.runtime.state_directory.ORPHAN_TIMEOUT_S", 0.2)
        with pytest.raises(PipelineError, match="is already running"), state.locked():
            pass
    finally:
        os.kill(java, signal.SIGKILL)
    monkeypatch.undo()
    with state.locked():
        """The lock is waited for."""


def test_an_ended_run_releases_its_lock_although_java_lives_on(tmp_path: Path) -> None:
    state = StateDirectory.of(tmp_path, "revenue")
    command = [sys.executable, "-c", DRIVER, str(state.path), "ended"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as driver:
        assert driver.stdout is not None
        java = int(driver.stdout.readline())
        try:
            assert driver.stdout.readline() == b"left\n"
            assert not state.is_locked()
        finally:
            os.kill(java, signal.SIGKILL)
            driver.kill()


@pytest.mark.parametrize("scheme", ["", "file:", "file://"])
def test_two_runs_with_one_checkpoint_are_refused_in_any_state_directories(tmp_path: Path, scheme: str) -> None:
    checkpoint = f"{scheme}{tmp_path / 'checkpoints'}"
    one, other = (StateDirectory.of(tmp_path / each, "revenue") for each in ("one", "other"))
    with one.locked(checkpoint):
        with (
            pytest.raises(PipelineError, match=f"another state directory as process {os.getpid()}"),
            other.locked(checkpoint),
        ):
            pass
        assert not other.is_locked(), "who was refused holds nothing"
        with StateDirectory.of(tmp_path / "one", "orders").locked(checkpoint):
            """Another pipeline has other queries."""
    with other.locked(checkpoint):
        pass
    with one.locked("s3a://bucket/checkpoints"), other.locked("s3a://bucket/checkpoints"):
        """Buckets have no locks."""


def test_a_directory_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(PipelineError, match="choose another with --state"),
        StateDirectory(tmp_path / "file" / "revenue").locked(),
    ):
        pass


@pytest.mark.parametrize("name", ["", "..", "a/b", "a b", "-x", ".hidden", "ä", "a" * 129])
def test_an_invalid_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(PipelineError, match="cannot name a directory"):
        StateDirectory.of(tmp_path, name)


def test_a_run_record_is_read_back(tmp_path: Path) -> None:
    state = StateDirectory.of(tmp_path, "revenue")
    assert state.read_run() is None
    state.write_run(record())
    assert state.read_run() == record()
    assert [path.name for path in state.path.iterdir()] == ["run.json"], "nothing is left beside it"
    assert [each.name for each in state_directories(tmp_path)] == ["revenue"]


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    state = StateDirectory.of(tmp_path, "revenue")
    state.path.mkdir()
    (state.path / "run.json").write_text('{"pid": ')
    with pytest.raises(PipelineError, match=r"run\.json cannot be read"):
        state.read_run()
    (state.path / "run.json").write_text('{"pid": 3, "from the future": 1}')
    with pytest.raises(PipelineError, match=r"run\.json is not a run's"):
        state.read_run()
    (state.path / "generations.json").write_text('{"current": 1}')
    with pytest.raises(PipelineError, match=r"generations\.json is damaged"):
        state.generations(NOW)


def test_a_process_is_identified_by_pid_and_start_time() -> None:
    assert record(pid=os.getpid(), start=own_process_start()).is_process_alive()
    assert not record(pid=os.getpid(), start="12").is_process_alive()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        start = process_start(process.pid)
        assert start is not None
        assert record(pid=process.pid, start=start).is_process_alive()
        process.kill()
        process.wait()
        assert not record(pid=process.pid, start=start).is_process_alive()


def test_a_replay_starts_a_generation_and_the_old_one_can_be_selected_again(tmp_path: Path) -> None:
    state = StateDirectory.of(tmp_path, "revenue")
    first = state.generations(NOW)
    assert first == Generations(1, (CheckpointGeneration(1, NOW),))
    second = first.with_next("earliest", NOW)
    assert second.get(second.current) == CheckpointGeneration(2, NOW, "earliest")
    state.write_generations(second.with_current(1))
    kept = state.generations("later")
    assert kept == Generations(1, second.all)
    assert kept.with_next("latest", NOW).current == 3, "a number is used once"
    with pytest.raises(PipelineError, match="generation 4 of checkpoints does not exist; there are 1, 2"):
        kept.with_current(4)


def test_the_state_root_follows_argument_and_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert state_root(None) == tmp_path / "moldau-pipelines"
    (tmp_path / "a").mkdir()
    assert state_root(None, Path("a/../x.yaml")) == tmp_path / "moldau-pipelines"
    assert state_root(None, tmp_path / "a" / "x.yaml") == tmp_path / "a" / "moldau-pipelines"
    assert state_root(Path("given")) == tmp_path / "given"
    assert state_directories(tmp_path / "nowhere") == []
