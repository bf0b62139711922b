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
    with state.locked(pipeline.checkpoint) as locks:
        known = state.generations(now())
        chosen = _chosen(known, options)
        generation = chosen.get(chosen.current)
        record = _record(pipeline, state, options, generation)
        state.write_run(record)
        with ProgressFile(state.progress) as file:
            file.append(_event("started", record.started, generation=generation.number))
            outcome = Outcome("stopped", (), generation.number)
            try:
                kept = _Kept(watcher, file)
                this = _Run(pipeline, state, record, options, known, chosen, wish, kept, locks)
                outcome = this.on_spark(spark)
            finally:
                ended = now()
                file.append(_event(outcome.name, ended, error=outcome.error))
                if outcome.failure is not None:
                    _keep_error(state, outcome.failure)
                state.write_run(replace(record, ended=ended, outcome=outcome.name, error=outcome.error))
        return outcome


@dataclass(frozen=True, slots=True)
class _Run:
    pipeline: Pipeline
    state: StateDirectory
    record: RunRecord
    options: RunOptions
    known: Generations
    """As they were before."""
    chosen: Generations
    wish: Wish
    watcher: Watcher
    locks: Sequence[int]

    @property
    def generation(self) -> Generation:
        return self.chosen.get(self.chosen.current)

    def on_spark(self, given: "SparkSession | None") -> Outcome:
        number, spark = self.chosen.current, given
        try:
            if spark is None:
                spark = self._session()
            self.wish.be_patient()
            # A number is used once: what is planned is kept in the place of its generation.
            self._write_generations(is_begun=False)
            queries = self._planned(spark)
            self.watcher.step("starting the queries")
            self._start(queries)
            states = watch(queries, self.wish, self.watcher)
        except Exception as error:
            return Outcome("failed", (), number, sentence_of(error), error)
        finally:
            if spark is not None and given is None:
                self.watcher.step("stopping Spark")
                spark.stop()
        if queries.failure is None:
            return Outcome("stopped" if self.wish.is_made else "done", states, number)
        failed = next(each for each in states if each.error)
        return Outcome("failed", states, number, f"{failed.query}: {failed.error}", queries.failure)

    def _session(self) -> "SparkSession":
        from moldau.spark import session

        starting = f"starting Spark on {self.record.master}"

        def say(text: str) -> None:
            """It comes in parts: what is begun, and how it ended."""
            self.watcher.step(starting if text.endswith("\n") else text.rstrip(". "))

        self.watcher.step(starting)
        return session(
            f"moldau {self.pipeline.name}",
            master=self.options.master,
            settings={**self.pipeline.spark, **self.options.conf},
            say=say,
            log=self.state.path / "spark.log",
            # So that nobody runs the pipeline while a Java that has lost its driver still writes.
            descriptors=self.locks,
        )

    def _planned(self, spark: "SparkSession") -> "Queries":
        from moldau.pipelines.planning.building import Place, Start, plan
        from moldau.pipelines.running.log_ends import LogEnds
        from moldau.pipelines.running.queries import Queries

        self.watcher.step("planning")
        place = Place(checkpoints=self.record.checkpoints, generation=self.generation.number)
        planned = plan(spark, self.pipeline, place, Start(self.generation.start), show=self.watcher.rows)
        return Queries(spark, planned, self.watcher.batch, LogEnds(self.pipeline))

    def _start(self, queries: "Queries") -> None:
        """Who is killed from now on goes on with this generation. Where the queries cannot begin, the one before stays
        in use."""
        self._write_generations(is_begun=True)
        try:
            queries.start(self.options.available_now)
        except BaseException:
            self._write_generations(is_begun=False)
            raise

    def _write_generations(self, *, is_begun: bool) -> None:
        current = self.chosen.current if is_begun else self.known.current
        self.state.write_generations(replace(self.chosen, current=current))


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


def _master(pipeline: Pipeline, options: RunOptions) -> str:
    settings = {**pipeline.spark, **options.conf}
    return options.master or settings.get("spark.master") or os.environ.get("MASTER") or "local[*]"


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
        file_hash=file_hash(Path(file)) if file else "",
        master=_master(pipeline, options),
        bootstrap=pipeline.bootstrap,
        generation=generation.number,
        checkpoints=pipeline.checkpoint or str(state.checkpoints),
        available_now=options.available_now,
    )


def file_hash(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _event(name: str, at: str, **facts: object) -> str:
    return json.dumps({"event": name, "at": at, **facts})


def _keep_error(state: StateDirectory, error: BaseException) -> None:
    traces = ["".join(traceback.format_exception(error)), *_java_traces(error)]
    state.error_log.write_text("\n".join([now(), *traces, ""]), errors="replace")


def _java_traces(error: BaseException) -> list[str]:
    """Where it happened in Java: PySpark keeps that of an error and of its causes, and shows neither."""
    traces = []
    at: object = error
    while at is not None:
        trace = getattr(at, "_stackTrace", None)
        if trace:
            traces.append(str(trace))
        at = getattr(at, "_cause", None)
    return traces


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
