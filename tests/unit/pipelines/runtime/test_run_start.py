"""A run that cannot start changes no state, and its error names the query once."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from moldau.pipelines.definition import PipelineDefinition, PipelineError
from moldau.pipelines.runtime import query_group
from moldau.pipelines.runtime.progress import Progress
from moldau.pipelines.runtime.run import RunOptions, RunOutcome, run
from moldau.pipelines.runtime.state_directory import CheckpointGeneration, Generations, StateDirectory
from moldau.pipelines.runtime.stop_request import StopRequest
from support.spark_state import clear_spark_state

NOW = "2026-01-31T12:00:00.000Z"
FIRST = Generations(1, (CheckpointGeneration(1, NOW),))


class Nobody:
    def step(self, what: str) -> None: ...
    def batch(self, progress: Progress) -> None: ...
    def states(self, states: Any) -> None: ...
    def rows(self, batch: Any) -> None: ...


class Streams:
    def addListener(self, listener: object) -> None: ...
    def removeListener(self, listener: object) -> None: ...


@pytest.fixture
def state(tmp_path: Path) -> StateDirectory:
    made = StateDirectory.of(tmp_path, "revenue")
    made.write_generations(FIRST)
    return made


SPARK: Any = SimpleNamespace(streams=Streams())


@pytest.fixture(autouse=True)
def _without_jvm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query_group, "prepare_streams", lambda spark: None)


def run_replay(state: StateDirectory, spark: Any = SPARK) -> RunOutcome:
    pipeline = PipelineDefinition("revenue", (), (), ())
    return run(pipeline, state, RunOptions(replay_from="earliest"), StopRequest(), Nobody(), spark=spark)


def test_a_replay_without_spark_creates_no_generation(state: StateDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    clear_spark_state(monkeypatch)
    outcome = run_replay(state, spark=None)
    assert outcome.error is not None
    assert "JAVA_HOME is /nowhere" in outcome.error
    assert state.generations("later") == FIRST


def test_a_replay_that_cannot_be_planned_does_not_become_current(
    state: StateDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def plan(*_: object, **__: object) -> list[object]:
        raise PipelineError("there is no column numbr")

    monkeypatch.setattr("moldau.pipelines.planner.query_planner.plan", plan)
    outcome = run_replay(state)
    assert (outcome.name, outcome.error) == ("failed", "there is no column numbr")
    kept = state.generations("later")
    assert (kept.current, [each.number for each in kept.all]) == (1, [1, 2]), "its number is not used again"


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (PipelineError("out: Invalid mode"), "out: Invalid mode"),
        (RuntimeError("the disk is full"), "out: the disk is full"),
    ],
)
def test_a_replay_whose_queries_do_not_start_does_not_become_current(
    state: StateDirectory, monkeypatch: pytest.MonkeyPatch, error: Exception, message: str
) -> None:
    current: list[int] = []

    def start(available_now: bool) -> object:
        current.append(state.generations("later").current)
        raise error

    planned = [SimpleNamespace(name="out", start=start)]
    monkeypatch.setattr("moldau.pipelines.planner.query_planner.plan", lambda *_, **__: planned)
    assert run_replay(state).error == message
    assert current == [2], "who is killed from now on has begun"
    kept = state.generations("later")
    assert (kept.current, [each.number for each in kept.all]) == (1, [1, 2]), "its number is not used again"
