"""A run of a pipeline: the lock, the Spark session, the queries, and the files that record the run."""

import hashlib
import json
import os
import socket
import traceback
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from moldau.pipelines.definition import PipelineDefinition
from moldau.pipelines.error_summary import summarize_error
from moldau.pipelines.runtime.progress import Progress, ProgressFile, QueryState, to_json
from moldau.pipelines.runtime.state_directory import Generations, RunRecord, StateDirectory, own_process_start
from moldau.pipelines.runtime.stop_request import StopRequest
from moldau.pipelines.runtime.times import iso

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from moldau.pipelines.planner.sink_writers import ConsoleBatch
    from moldau.pipelines.runtime.query_group import QueryGroup
    from moldau.pipelines.runtime.report_publisher import ReportPublisher

POLL_INTERVAL_S = 0.25
FINISH_TIMEOUT_S = 60.0
"""How long the current batches may take after a stop request."""
FINISH_TIMEOUT_AFTER_FAILURE_S = 10.0
"""How long the batches of other queries may take after a query failed. It is short: the cause may delay them too."""


class RunObserver(Protocol):
    def step(self, what: str) -> None:
        """Receives the current step when the run starts or stops."""

    def batch(self, progress: Progress) -> None: ...

    def states(self, states: Sequence[QueryState]) -> None: ...

    def rows(self, batch: "ConsoleBatch") -> None:
        """Receives the rows of a console sink. Called from another thread."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    master: str | None = None
    available_now: bool = False
    conf: Mapping[str, str] = field(default_factory=dict)
    """Spark settings that override the settings of the pipeline."""
    generation: int | None = None
    """The number of the checkpoint generation; None for the current one."""
    replay_from: str | None = None
    """The start of a new generation: a time, `earliest` or `latest`. None uses an existing generation."""


@dataclass(frozen=True, slots=True)
class RunOutcome:
    name: str
    """`done`, `stopped` or `failed`."""
    states: Sequence[QueryState] = ()
    error: str | None = None
    """A one-sentence summary of the failure."""
    failure: BaseException | None = None


def run(
    pipeline: PipelineDefinition,
    state: StateDirectory,
    options: RunOptions,
    stop_request: StopRequest,
    observer: RunObserver,
    *,
    spark: "SparkSession | None" = None,
) -> RunOutcome:
    """Runs the pipeline until all queries end, a query fails, or a stop is requested.

    Raises PipelineError if the pipeline is already running. The run does not stop a session that is passed as `spark`.
    """
    with state.locked(pipeline.checkpoint) as locks:
        known = state.generations(now())
        selected = known.with_current(options.generation or known.current)
        if options.replay_from is not None:
            selected = known.with_next(options.replay_from, now())
        record = _new_run_record(pipeline, state, options, selected.current)
        state.write_run(record)
        with closing(ProgressFile(state.progress)) as file:
            file.append(json.dumps({"event": "started", "at": record.started, "generation": selected.current}))
            outcome = RunOutcome("stopped")
            try:
                outcome = _Run(
                    pipeline, state, record, options, known, selected, stop_request, observer, file, locks
                ).execute(spark)
            finally:
                ended = now()
                file.append(json.dumps({"event": outcome.name, "at": ended, "error": outcome.error}))
                if outcome.failure is not None:
                    _write_error_log(state, outcome.failure)
                state.write_run(replace(record, ended=ended, outcome=outcome.name, error=outcome.error))
        return outcome


@dataclass(frozen=True, slots=True)
class _Run:
    pipeline: PipelineDefinition
    state: StateDirectory
    record: RunRecord
    options: RunOptions
    known: Generations
    """The generations before this run."""
    selected: Generations
    stop_request: StopRequest
    observer: RunObserver
    file: ProgressFile
    locks: Sequence[int]

    def execute(self, given_session: "SparkSession | None") -> RunOutcome:
        spark = given_session
        from moldau.pipelines.runtime.report_publisher import ReportPublisher

        try:
            if spark is None:
                spark = self._session()
            self.stop_request.defer_signals()
            # Store the generation first. `_planned` writes files under its number, which a later run must not reuse.
            self._write_generations(is_started=False)
            queries = self._planned(spark)
            self.observer.step("starting the queries")
            self._start(queries)
            reports = ReportPublisher(self.pipeline, self.record)
            states = run_until_stopped(queries, self.stop_request, self.observer, reports)
        except Exception as error:
            return RunOutcome("failed", error=summarize_error(error), failure=error)
        finally:
            if spark is not None and given_session is None:
                self.observer.step("stopping Spark")
                spark.stop()
        if queries.failure is None:
            return RunOutcome("stopped" if self.stop_request.is_requested else "done", states)
        failed = next(each for each in states if each.error)
        return RunOutcome("failed", states, f"{failed.query}: {failed.error}", queries.failure)

    def _session(self) -> "SparkSession":
        from moldau.spark import session

        starting = f"starting Spark on {self.record.master}"

        def say(text: str) -> None:
            """Receives a step before the start of Spark, then its result, which ends with a newline."""
            self.observer.step(starting if text.endswith("\n") else text.rstrip(". "))

        self.observer.step(starting)
        return session(
            f"moldau {self.pipeline.name}",
            master=self.options.master,
            settings={**self.pipeline.spark, **self.options.conf},
            say=say,
            log=self.state.path / "spark.log",
            # Java keeps the locks, so that no other run can start while the Java process of a killed run still writes.
            descriptors=self.locks,
        )

    def _planned(self, spark: "SparkSession") -> "QueryGroup":
        from moldau.pipelines.planner.query_planner import CheckpointLocation, plan
        from moldau.pipelines.runtime.end_offsets import EndOffsetTracker
        from moldau.pipelines.runtime.query_group import QueryGroup

        self.observer.step("planning")
        generation = self.selected.get(self.selected.current)
        checkpoint_location = CheckpointLocation(self.record.checkpoints, generation.number)
        planned = plan(spark, self.pipeline, checkpoint_location, generation.start, show=self.observer.rows)
        return QueryGroup(spark, planned, self._record_batch, EndOffsetTracker(self.pipeline))

    def _record_batch(self, progress: Progress) -> None:
        self.file.append(to_json(progress))
        self.observer.batch(progress)

    def _start(self, queries: "QueryGroup") -> None:
        """Starts the queries. If a query cannot start, the previous generation becomes the current one again."""
        self._write_generations(is_started=True)
        try:
            queries.start(self.options.available_now)
        except BaseException:
            self._write_generations(is_started=False)
            raise

    def _write_generations(self, *, is_started: bool) -> None:
        current = self.selected.current if is_started else self.known.current
        self.state.write_generations(replace(self.selected, current=current))


def run_until_stopped(
    queries: "QueryGroup", stop_request: StopRequest, observer: RunObserver, reports: "ReportPublisher"
) -> list[QueryState]:
    """Polls the queries until all end, one fails or a stop is requested. Then stops the remaining queries."""
    while True:
        states = queries.poll()
        observer.states(states)
        reports.publish(states)
        if queries.failure is not None:
            states = queries.stop(FINISH_TIMEOUT_AFTER_FAILURE_S)
            break
        if queries.are_finished:
            states = queries.end()
            break
        if stop_request.wait(POLL_INTERVAL_S):
            observer.step("finishing the current batches")
            states = queries.stop(FINISH_TIMEOUT_S)
            break
    observer.states(states)
    reports.close(states)
    return states


def _new_run_record(
    pipeline: PipelineDefinition, state: StateDirectory, options: RunOptions, generation: int
) -> RunRecord:
    file = "" if pipeline.file is None else str(pipeline.file.absolute())
    configured_master = {**pipeline.spark, **options.conf}.get("spark.master")
    return RunRecord(
        name=pipeline.name,
        pid=os.getpid(),
        process_start=own_process_start(),
        host=socket.gethostname(),
        started=now(),
        file=file,
        file_hash=file_hash(Path(file)) if file else "",
        master=options.master or configured_master or os.environ.get("MASTER") or "local[*]",
        bootstrap=pipeline.bootstrap,
        generation=generation,
        checkpoints=pipeline.checkpoint or str(state.checkpoints),
        available_now=options.available_now,
    )


def file_hash(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _write_error_log(state: StateDirectory, error: BaseException) -> None:
    """Writes the traceback, and the Java stack traces of the error and its causes, which PySpark does not show."""
    traces = ["".join(traceback.format_exception(error))]
    at: object = error
    while at is not None:
        if trace := getattr(at, "_stackTrace", None):
            traces.append(str(trace))
        at = getattr(at, "_cause", None)
    state.error_log.write_text("\n".join([now(), *traces, ""]), errors="replace")


def now() -> str:
    return iso(datetime.now(UTC))
