"""Checks of a pipeline without starting it: topics, schemas, SQL, streaming operations and sinks.

Spark analyses the plans over empty streams. The topics and sample records come from the cluster.
"""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from moldau.pipelines.definition import (
    BadRecordPolicy,
    Format,
    PipelineDefinition,
    PipelineError,
    Sink,
    SinkKind,
    Source,
)
from moldau.pipelines.error_summary import summarize_error
from moldau.pipelines.planner.connection import connection_options
from moldau.pipelines.planner.hadoop_files import HadoopFiles
from moldau.pipelines.planner.ownership import QueryIdentity, check_identity, check_owner, read_identity
from moldau.pipelines.planner.plan_analysis import empty_stream, output_mode_problem, unsupported_reason
from moldau.pipelines.planner.query_planner import CheckpointLocation, query_identities
from moldau.pipelines.planner.replay import sink_for_generation
from moldau.pipelines.planner.sink_writers import check_postgres, prepare_for_sink, stored_columns
from moldau.pipelines.planner.topic_checks import ClusterTopics, Finding, check_cluster, error, missing_topics, warning
from moldau.pipelines.planner.topic_streams import data_source_options, read_sample, starting_options, stream_options
from moldau.pipelines.planner.transformation import decode_and_check, view_rows
from moldau.pipelines.records.bad_records import bad_record_text
from moldau.pipelines.records.columns import IS_BAD
from moldau.pipelines.records.decoder import decode_records
from moldau.pipelines.records.schema_inference import source_schema
from moldau.pipelines.spec.dependencies import dependencies_of
from moldau.pipelines.spec.validation import find_problems
from moldau.spark.errors import SparkSourceError
from moldau.spark.sink.delta_options import parse_delta_options
from moldau.spark.sink.options import parse_topic_options
from moldau.spark.source.options import parse_source_options

R = TypeVar("R")

SAMPLE_RECORDS = 100
"""The number of existing records per source that are checked against the schema."""
_BAD_RECORD_FIXES = {
    BadRecordPolicy.FAIL: "the run fails: change the schema, or set on_bad: drop or dead_letters: <topic>",
    BadRecordPolicy.DROP: "they are dropped; if they should not be, change the schema",
    BadRecordPolicy.DEAD_LETTER: "they are written to the dead-letter topic; if they should not be, change the schema",
}


def check(
    spark: SparkSession, pipeline: PipelineDefinition, checkpoint_location: CheckpointLocation | None = None
) -> list[Finding]:
    """Returns errors and warnings. Also checks the checkpoints if `checkpoint_location` is set."""
    problems = [error(".".join(where), message) for where, message in find_problems(pipeline)]
    # If the definition has problems, return only these, because the other checks need valid names.
    return problems or _PipelineChecker(spark, pipeline, checkpoint_location).run()


@dataclass
class _PipelineChecker:
    spark: SparkSession
    pipeline: PipelineDefinition
    checkpoint_location: CheckpointLocation | None
    findings: list[Finding] = field(default_factory=list)
    schemas: dict[str, T.StructType] = field(default_factory=dict)
    failed: set[str] = field(default_factory=set)
    """The names of sources and views with errors. Views that depend on them are skipped."""

    def run(self) -> list[Finding]:
        topics = check_cluster(self.pipeline, self.findings)
        for source in self.pipeline.sources:
            self._check_source(source, topics)
        for view in self.pipeline.views:
            self._check_view(f"transform.{view.name}", view.name)
        for sink in self.pipeline.sinks:
            self._check_sink(sink)
        if self.checkpoint_location is not None:
            self._check_checkpoints(self.checkpoint_location)
        return self.findings

    def _attempt(self, where: str, action: Callable[..., R], *arguments: object) -> R | None:
        """Returns the result of the action. If the action fails, adds an error and returns None."""
        try:
            return action(*arguments)
        except (PipelineError, PySparkException, SparkSourceError) as failure:
            self.findings.append(error(where, summarize_error(failure)))
            return None

    def _check_source(self, source: Source, topics: ClusterTopics | None) -> None:
        where = f"sources.{source.name}"
        options = stream_options(self.pipeline, source, "check", starting_options(source.starting))
        parsed = self._attempt(f"{where}.options", lambda: parse_source_options(options, is_stream=True))
        has_topics = topics is not None and not missing_topics(source, topics)
        is_inferred = source.format is Format.JSON and source.schema is None
        # Do not infer a schema if the source's topics cannot be read. `check_cluster` has already reported the reason.
        records = self._attempt(f"{where}.schema", self._decode, source) if has_topics or not is_inferred else None
        if records is None or not self._check_expectations(where, source, records):
            self.failed.add(source.name)
            return
        self._check_view(where, source.name)
        if has_topics and parsed is not None:
            self._check_sample(where, source)

    def _decode(self, source: Source) -> DataFrame:
        directory = None if self.checkpoint_location is None else self.checkpoint_location.directory
        self.schemas[source.name] = source_schema(self.spark, self.pipeline, source, directory, keep=False)
        return decode_records(empty_stream(self.spark, source), source, self.schemas[source.name])

    def _check_expectations(self, where: str, source: Source, records: DataFrame) -> bool:
        """Returns False, and adds errors, if an expectation is not a valid condition."""
        are_conditions = True
        for name, sql in source.expectations.items():
            at = f"{where}.expectations.{name}"
            kind = self._attempt(at, _type_of, records, sql)
            if kind is not None and not isinstance(kind, T.BooleanType):
                what = f"{sql!r} is {kind.simpleString().upper()}"
                self.findings.append(error(at, what, "write what must be true: price > 0"))
            are_conditions &= isinstance(kind, T.BooleanType)
        return are_conditions

    def _check_sample(self, where: str, source: Source) -> None:
        """Adds a warning if existing records cannot be read or do not fit the schema."""
        try:
            records = read_sample(self.spark, self.pipeline, source, SAMPLE_RECORDS)
            checked = decode_and_check(records, source, self.schemas[source.name])
            rows = checked.selectExpr(IS_BAD, f"CASE WHEN {IS_BAD} THEN {bad_record_text()} END AS why").collect()
        except (PipelineError, PySparkException, SparkSourceError) as failure:
            self.findings.append(warning(where, f"its records cannot be read: {summarize_error(failure)}"))
            return
        reasons = [row["why"] for row in rows if row[IS_BAD]]
        if reasons:
            what = f"{len(reasons)} of the first {len(rows)} records are bad: {reasons[0]}"
            self.findings.append(warning(where, what, _BAD_RECORD_FIXES[self.pipeline.on_bad]))

    def _check_view(self, where: str, name: str) -> None:
        parts = {each.name for each in dependencies_of(self.pipeline, name)}
        if self.failed & parts or self._attempt(where, self._rows, name) is None:
            self.failed.add(name)

    def _rows(self, name: str) -> DataFrame:
        return view_rows(self.spark, self.pipeline, name, lambda source: empty_stream(self.spark, source), self.schemas)

    def _check_sink(self, sink: Sink) -> None:
        where = f"sinks.{sink.name}"
        self._attempt(f"{where}.options", _check_sink_options, self.pipeline, sink)
        if sink.view in self.failed:
            return
        rows = self._rows(sink.view)
        frame = self._attempt(where, prepare_for_sink, rows, sink)
        if frame is None:
            return
        delete_when = sink.delete_when
        if delete_when is not None and self._attempt(where, lambda: rows.select(F.expr(delete_when))) is None:
            return
        problem = output_mode_problem(frame, sink)
        if problem is not None:
            self.findings.append(error(f"{where}.mode", *problem))
        # Spark supports the mode `complete` only for aggregated rows, so this call detects an aggregation. Keys of
        # aggregated rows are usually unique in a batch, so the rows need no order.
        is_ordered = sink.order_by or "_offset" in rows.columns or unsupported_reason(rows, "complete") is None
        if sink.mode == "upsert" and not is_ordered:
            what = "two rows with the same key in one batch would fail the run: their order is not defined"
            self.findings.append(warning(where, what, "order_by: [a column], or keep _offset in the view"))
        if sink.kind in (SinkKind.PARQUET, SinkKind.DELTA):
            self._check_directory(f"{where}.{sink.kind}", sink.target)
        if sink.kind is SinkKind.DELTA and sink.mode != "complete":
            self._attempt(f"{where}.delta", _check_table, frame, sink)
        if sink.kind is SinkKind.POSTGRES:
            self._attempt(f"{where}.postgres", check_postgres, frame, sink)

    def _check_directory(self, where: str, target: str) -> None:
        """Adds an error if a local directory cannot be written to. Remote directories are not checked."""
        if "://" in target:
            return
        path = Path(target)
        while not path.exists():
            path = path.parent
        if not path.is_dir() or not os.access(path, os.W_OK | os.X_OK):
            what = "cannot be written to" if path.is_dir() else "is a file"
            self.findings.append(error(where, f"{path} {what}", "choose another directory, or change its permissions"))

    def _check_checkpoints(self, location: CheckpointLocation) -> None:
        files = HadoopFiles(self.spark)
        stored: dict[str, QueryIdentity | None] = {}
        for identity in query_identities(self.pipeline, location):
            self._attempt("checkpoint", self._check_checkpoint, files, location, identity, stored)
        for sink in self.pipeline.sinks:
            # A sink that is not in `stored` has an unreadable checkpoint, which has already been reported.
            if sink.kind is SinkKind.PARQUET and sink.name in stored:
                target = sink_for_generation(sink, location.generation).target
                self._attempt(f"sinks.{sink.name}.parquet", check_owner, files, target, sink.name, stored[sink.name])

    def _check_checkpoint(
        self,
        files: HadoopFiles,
        location: CheckpointLocation,
        identity: QueryIdentity,
        stored: dict[str, QueryIdentity | None],
    ) -> None:
        """Compares a query with the identity in its checkpoint. Adds this identity to `stored`."""
        checkpoint = location.of(identity.query)
        found = stored[identity.query] = read_identity(files, checkpoint)
        if found is None:
            return
        check_identity(checkpoint, found, identity)
        if found.sql and found.sql != identity.sql and files.exists(f"{checkpoint}/state"):
            changed = f"the SQL of {identity.query} has changed since its state was created"
            fix = "change it back, or start over: moldau pipeline replay FILE --from earliest"
            self.findings.append(warning("checkpoint", f"{changed}; if they are not compatible, the run fails", fix))


def _type_of(records: DataFrame, sql: str) -> T.DataType:
    return records.select(F.expr(sql)).schema[0].dataType


def _check_sink_options(pipeline: PipelineDefinition, sink: Sink) -> None:
    if sink.kind is SinkKind.TOPIC:
        options = {**connection_options(pipeline), **data_source_options(sink.options), "topic": sink.target}
        parse_topic_options(options, is_stream=True)
    elif sink.kind is SinkKind.DELTA:
        parse_delta_options({**sink.options, "path": sink.target}, is_streaming=True)


def _check_table(frame: DataFrame, sink: Sink) -> None:
    from moldau.spark.sink.delta_commits import check_table_schema, open_table

    location = parse_delta_options({**sink.options, "path": sink.target}, is_streaming=True).location
    table = open_table(location)
    if table is not None:
        check_table_schema(table, json.loads(stored_columns(frame, sink).schema.json()), sink.partition_by, location)
