"""A run of a pipeline, from its file to its end: the lock, Spark, the queries, and what is left for others to see.

It tells whoever watches through a `Watcher`; terminals are the command line's business.
"""

import hashlib
import json
import os
import socket
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from moldau.pipelines.definition import Pipeline
from moldau.pipelines.failures import sentence_of
from moldau.pipelines.running.process_identity import own_start
from moldau.pipelines.running.progress import Progress, QueryState, to_json
from moldau.pipelines.running.progress_file import ProgressFile
from moldau.pipelines.running.state_directory import Generation, Generations, RunRecord, StateDirectory
from moldau.pipelines.running.stopping import Wish
from moldau.pipelines.running.times import iso

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from moldau.pipelines.planning.writing import ShownBatch
    from moldau.pipelines.running.queries import Queries

LOOK_S = 0.25
FINISH_S = 60.0
"""How long a batch that is under way may take when the run shall end."""
OTHERS_FINISH_S = 10.0
"""The same, when another query failed: what made it fail may hold up the others too."""


class Watcher(Protocol):
    def step(self, what: str) -> None:
        """What is being done now, before the first batch and after the last."""

    def batch(self, progress: Progress) -> None: ...

    def states(self, states: Sequence[QueryState]) -> None: ...

    def rows(self, batch: "ShownBatch") -> None:
        """Of a console sink; from another thread."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    master: str | None = None
    available_now: bool = False
    conf: Mapping[str, str] = field(default_factory=dict)
    """Settings of the Spark session, over those of the pipeline."""
    generation: int | None = None
    """Of the checkpoints; None: the current one."""
    replay_from: str | None = None
    """A time, `earliest` or `latest`: a new generation begins there."""


@dataclass(frozen=True, slots=True)
class Outcome:
    name: str
    """`done`, `stopped` or `failed`."""
    states: Sequence[QueryState]
    generation: int
    error: str | None = None
    """In a sentence."""
    failure: BaseException | None = None
    """With all that is known about it."""


def run(
    pipeline: Pipeline,
    state: StateDirectory,
    options: RunOptions,
    wish: Wish,
    watcher: Watcher,
    *,
    spark: "SparkSession | None" = None,
) -> Outcome:
    """Runs until it is done, fails, or is wished to end. Raises PipelineError where it cannot begin. A session that is
    given is used, and stays."""
    with state.locked():
        generations = _chosen(state.generations(now()), options)
        generation = generations.get(generations.current)
        # Before anything is read: a run that is killed at once has still begun a generation.
        state.write_generations(generations)
        record = _record(pipeline, state, options, generation)
        state.write_run(record)
        with ProgressFile(state.progress) as file:
            file.append(_event("started", record.started, generation=generation.number))
            outcome = Outcome("stopped", (), generation.number)
            try:
                spark_log = state.path / "spark.log"
                outcome = _run_on_spark(
                    pipeline, record, generation, options, wish, _Kept(watcher, file), spark, spark_log
                )
            finally:
                ended = now()
                file.append(_event(outcome.name, ended, error=outcome.error))
                if outcome.failure is not None:
                    _keep_error(state, outcome.failure)
                state.write_run(replace(record, ended=ended, outcome=outcome.name, error=outcome.error))
        return outcome


def _run_on_spark(
    pipeline: Pipeline,
    record: RunRecord,
    generation: Generation,
    options: RunOptions,
    wish: Wish,
    watcher: Watcher,
    given: "SparkSession | None",
    spark_log: Path,
) -> Outcome:
    spark = given
    try:
        if spark is None:
            spark = _session(pipeline, options, watcher, spark_log)
        wish.be_patient()
        queries = _planned(spark, pipeline, record, generation, watcher)
        watcher.step("starting the queries")
        queries.start(options.available_now)
        states = watch(queries, wish, watcher)
    except Exception as error:
        return Outcome("failed", (), generation.number, sentence_of(error), error)
    finally:
        if spark is not None and given is None:
            watcher.step("stopping Spark")
            spark.stop()
    if queries.failure is None:
        return Outcome("stopped" if wish.is_made else "done", states, generation.number)
    failed = next(each for each in states if each.error)
    return Outcome("failed", states, generation.number, f"{failed.query}: {failed.error}", queries.failure)


def watch(queries: "Queries", wish: Wish, watcher: Watcher) -> list[QueryState]:
    """Looks at them until they are done, one fails or a wish is made; then none runs any more."""
    while True:
        states = queries.look()
        watcher.states(states)
        if queries.failure is not None:
            states = queries.stop(OTHERS_FINISH_S)
            break
        if queries.are_over:
            states = queries.end()
            break
        if wish.wait(LOOK_S):
            watcher.step("finishing the batches that are under way")
            states = queries.stop(FINISH_S)
            break
    watcher.states(states)
    return states


def _session(pipeline: Pipeline, options: RunOptions, watcher: Watcher, log: Path) -> "SparkSession":
    from moldau.spark import session

    settings = {**pipeline.spark, **options.conf}
    starting = f"starting Spark on {_master(pipeline, options)}"

    def say(text: str) -> None:
        """It comes in parts: what is begun, and how it ended."""
        watcher.step(starting if text.endswith("\n") else text.rstrip(". "))

    watcher.step(starting)
    return session(f"moldau {pipeline.name}", master=options.master, settings=settings, say=say, log=log)


def _master(pipeline: Pipeline, options: RunOptions) -> str:
    settings = {**pipeline.spark, **options.conf}
    return options.master or settings.get("spark.master") or os.environ.get("MASTER") or "local[*]"


def _planned(
    spark: "SparkSession", pipeline: Pipeline, record: RunRecord, generation: Generation, watcher: Watcher
) -> "Queries":
    from moldau.pipelines.planning.building import Place, Start, plan
    from moldau.pipelines.running.queries import Queries

    watcher.step("planning")
    place = Place(checkpoints=record.checkpoints, generation=generation.number)
    planned = plan(spark, pipeline, place, Start(generation.start), show=watcher.rows)
    return Queries(spark, planned, watcher.batch)


def _chosen(generations: Generations, options: RunOptions) -> Generations:
    if options.replay_from is not None:
        return generations.with_new(options.replay_from, now())
    if options.generation is not None:
        return generations.going_back_to(options.generation)
    return generations


def _record(
    pipeline: Pipeline, state: StateDirectory, options: RunOptions, generation: Generation
) -> RunRecord:
    file = "" if pipeline.file is None else str(pipeline.file.absolute())
    return RunRecord(
        name=pipeline.name,
        pid=os.getpid(),
        process_start=own_start(),
        host=socket.gethostname(),
        started=now(),
        file=file,
        file_hash=hashlib.sha256(Path(file).read_bytes()).hexdigest() if file else "",
        master=_master(pipeline, options),
        bootstrap=pipeline.bootstrap,
        generation=generation.number,
        checkpoints=pipeline.checkpoint or str(state.checkpoints),
        available_now=options.available_now,
    )


def _event(name: str, at: str, **facts: object) -> str:
    return json.dumps({"event": name, "at": at, **facts})


def _keep_error(state: StateDirectory, error: BaseException) -> None:
    trace = "".join(traceback.format_exception(error))
    state.error_log.write_text(f"{now()}\n{trace}\n", errors="replace")


class _Kept:
    """A watcher whose batches are also written down."""

    def __init__(self, watcher: Watcher, file: ProgressFile) -> None:
        self._watcher = watcher
        self._file = file

    def step(self, what: str) -> None:
        self._watcher.step(what)

    def batch(self, progress: Progress) -> None:
        self._file.append(to_json(progress))
        self._watcher.batch(progress)

    def states(self, states: Sequence[QueryState]) -> None:
        self._watcher.states(states)

    def rows(self, batch: "ShownBatch") -> None:
        self._watcher.rows(batch)


def now() -> str:
    return iso(datetime.now(UTC))
