"""Checks of a pipeline without starting it: topics, schemas, SQL, streaming operations and sinks.

Spark analyses the plans over empty streams. The topics and sample records come from the cluster.
"""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

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
from moldau.pipelines.planner.hadoop_files import HadoopFiles
from moldau.pipelines.planner.ownership import QueryIdentity, check_identity, check_owner, read_identity
from moldau.pipelines.planner.plan_analysis import empty_stream, output_mode_problem, unsupported_reason
from moldau.pipelines.planner.query_planner import CheckpointLocation, query_identities
from moldau.pipelines.planner.replay import sink_for_generation
from moldau.pipelines.planner.sink_writers import prepare_for_sink
from moldau.pipelines.planner.topic_checks import (
    ClusterTopics,
    Finding,
    check_topics,
    error,
    fetch_topics,
    missing_topics,
    warning,
)
from moldau.pipelines.planner.topic_streams import data_source_options, read_sample, starting_options, stream_options
from moldau.pipelines.planner.transformation import decode_and_check, view_rows
from moldau.pipelines.records.bad_records import bad_record_text
from moldau.pipelines.records.columns import IS_BAD
from moldau.pipelines.records.decoder import decode_records
from moldau.pipelines.records.schema_inference import source_schema
from moldau.pipelines.spec.dependencies import dependencies_of
from moldau.pipelines.spec.validation import find_problems
from moldau.spark.errors import OptionError, SparkSourceError

__all__ = ["Finding", "check"]

SAMPLE_RECORDS = 100
"""The number of sample records per source, which are used to validate the schema."""


def check(
    spark: SparkSession, pipeline: PipelineDefinition, checkpoint_location: CheckpointLocation | None = None
) -> list[Finding]:
    """Returns errors and warnings. Also checks the checkpoints if `checkpoint_location` is set."""
    option_errors = [error(".".join(where), message) for where, message in find_problems(pipeline)]
    if option_errors:
        # Stop here, because the other checks need consistent names.
        return option_errors
    return list(_PipelineChecker(spark, pipeline, checkpoint_location).findings())


@dataclass
class _PipelineChecker:
    spark: SparkSession
    pipeline: PipelineDefinition
    checkpoint_location: CheckpointLocation | None
    schemas: dict[str, T.StructType] = field(default_factory=dict)
    failed: set[str] = field(default_factory=set)
    """The names of sources and views with errors. Views that depend on them are skipped."""

    def findings(self) -> Iterator[Finding]:
        topics = fetch_topics(self.pipeline)
        if isinstance(topics, Finding):
            yield topics
        else:
            yield from check_topics(self.pipeline, topics)
        for source in self.pipeline.sources:
            yield from self._source(source, topics if isinstance(topics, ClusterTopics) else None)
        for view in self.pipeline.views:
            yield from self._view(view.name)
        for sink in self.pipeline.sinks:
            yield from self._sink(sink)
        if self.checkpoint_location is not None:
            yield from self._checkpoints(self.checkpoint_location)

    def _source(self, source: Source, topics: ClusterTopics | None) -> Iterator[Finding]:
        where = f"sources.{source.name}"
        option_errors = list(self._options(source))
        yield from option_errors
        is_inferred = source.format is Format.JSON and source.schema is None
        if is_inferred and (topics is None or missing_topics(source, topics)):
            # Yield nothing, because the missing topic has already been reported.
            self.failed.add(source.name)
            return
        try:
            schema_directory = None if self.checkpoint_location is None else self.checkpoint_location.directory
            self.schemas[source.name] = source_schema(self.spark, self.pipeline, source, schema_directory, keep=False)
            records = decode_records(empty_stream(self.spark, source), source, self.schemas[source.name])
        except (PipelineError, PySparkException, SparkSourceError) as failure:
            self.failed.add(source.name)
            yield error(f"{where}.schema", summarize_error(failure))
            return
        expectation_errors = list(self._expectations(source, records))
        yield from expectation_errors
        if expectation_errors:
            self.failed.add(source.name)
            return
        yield from self._view(source.name)
        if topics is not None and not missing_topics(source, topics) and not option_errors:
            yield from self._sample(source)

    def _sample(self, source: Source) -> Iterator[Finding]:
        """Yields a warning if existing records cannot be read or do not fit the schema."""
        try:
            records = read_sample(self.spark, self.pipeline, source, SAMPLE_RECORDS)
            checked = decode_and_check(records, source, self.schemas[source.name]).selectExpr(
                IS_BAD, f"CASE WHEN {IS_BAD} THEN {bad_record_text()} END AS why"
            )
            rows = checked.collect()
        except (PipelineError, PySparkException, SparkSourceError) as failure:
            yield warning(f"sources.{source.name}", f"its records cannot be read: {summarize_error(failure)}")
            return
        reasons = [row["why"] for row in rows if row[IS_BAD]]
        if reasons:
            consequence = {
                BadRecordPolicy.FAIL: "the run fails: change the schema, or set on_bad: drop or dead_letters: <topic>",
                BadRecordPolicy.DROP: "they are dropped; if they should not be, change the schema",
                BadRecordPolicy.DEAD_LETTER: (
                    "they are written to the dead-letter topic; if they should not be, change the schema"
                ),
            }[self.pipeline.on_bad]
            yield warning(
                f"sources.{source.name}",
                f"{len(reasons)} of the first {len(rows)} records are bad: {reasons[0]}",
                consequence,
            )

    def _options(self, source: Source) -> Iterator[Finding]:
        from moldau.spark.source.options import parse_source_options

        options = stream_options(self.pipeline, source, "check", starting_options(source.starting))
        try:
            parse_source_options(options, is_stream=True)
        except OptionError as failure:
            yield error(f"sources.{source.name}.options", str(failure))

    def _expectations(self, source: Source, records: DataFrame) -> Iterator[Finding]:
        for name, sql in source.expectations.items():
            where = f"sources.{source.name}.expectations.{name}"
            try:
                kind = records.select(F.expr(sql)).schema[0].dataType
            except PySparkException as failure:
                yield error(where, summarize_error(failure))
                continue
            if not isinstance(kind, T.BooleanType):
                yield error(where, f"{sql!r} is {kind.simpleString().upper()}", "write what must be true: price > 0")

    def _view(self, name: str) -> Iterator[Finding]:
        parts = [each.name for each in dependencies_of(self.pipeline, name)]
        if self.failed.intersection(parts):
            self.failed.add(name)
            return
        try:
            self._rows(name)
        except (PipelineError, PySparkException) as failure:
            self.failed.add(name)
            is_source = any(each.name == name for each in self.pipeline.sources)
            yield error(f"sources.{name}" if is_source else f"transform.{name}", summarize_error(failure))

    def _rows(self, name: str) -> DataFrame:
        return view_rows(self.spark, self.pipeline, name, lambda source: empty_stream(self.spark, source), self.schemas)

    def _sink(self, sink: Sink) -> Iterator[Finding]:
        where = f"sinks.{sink.name}"
        yield from _sink_options(self.pipeline, sink)
        if sink.view in self.failed:
            return
        rows = self._rows(sink.view)
        try:
            frame = prepare_for_sink(rows, sink)
            if sink.delete_when is not None:
                rows.select(F.expr(sink.delete_when))
        except (PipelineError, PySparkException) as failure:
            yield error(where, summarize_error(failure))
            return
        problem = output_mode_problem(frame, sink)
        if problem is not None:
            yield error(f"{where}.mode", *problem)
        is_ordered = bool(sink.order_by) or "_offset" in rows.columns or _is_aggregated(rows)
        if sink.mode == "upsert" and not is_ordered:
            yield warning(
                where,
                "two rows with the same key in one batch would fail the run: their order is not defined",
                "order_by: [a column], or keep _offset in the view",
            )
        if sink.kind in (SinkKind.PARQUET, SinkKind.DELTA):
            yield from _directory(sink)
        if sink.kind is SinkKind.DELTA:
            yield from _table(frame, sink)

    def _checkpoints(self, checkpoint_location: CheckpointLocation) -> Iterator[Finding]:
        storage = HadoopFiles(self.spark)
        for identity in query_identities(self.pipeline, checkpoint_location):
            checkpoint = checkpoint_location.of(identity.query)
            try:
                found = read_identity(storage, checkpoint)
                if found is not None:
                    check_identity(checkpoint, found, identity)
                    yield from _state(storage, checkpoint, found, identity)
            except PipelineError as failure:
                yield error("checkpoint", str(failure))
        for sink in self.pipeline.sinks:
            if sink.kind is SinkKind.PARQUET:
                yield from self._owner(
                    storage, sink_for_generation(sink, checkpoint_location.generation), checkpoint_location
                )

    def _owner(self, storage: HadoopFiles, sink: Sink, checkpoint_location: CheckpointLocation) -> Iterator[Finding]:
        try:
            known = read_identity(storage, checkpoint_location.of(sink.name))
        except PipelineError:
            # `_checkpoints` reports this error.
            return
        try:
            check_owner(storage, sink.target, sink.name, known)
        except PipelineError as failure:
            yield error(f"sinks.{sink.name}.parquet", str(failure))


def _state(storage: HadoopFiles, checkpoint: str, found: QueryIdentity, now: QueryIdentity) -> Iterator[Finding]:
    if found.sql and found.sql != now.sql and storage.exists(f"{checkpoint}/state"):
        yield warning(
            "checkpoint",
            (
                f"the SQL of {now.query} has changed since its state was created; if they are not compatible, the run "
                "fails"
            ),
            "change it back, or start over: moldau pipeline replay FILE --from earliest",
        )


def _is_aggregated(rows: DataFrame) -> bool:
    """Returns whether the rows are aggregated. Keys of aggregated rows are usually unique in a batch."""
    return unsupported_reason(rows, "complete") is None


def _sink_options(pipeline: PipelineDefinition, sink: Sink) -> Iterator[Finding]:
    from moldau.pipelines.planner.connection import connection_options
    from moldau.spark.sink.delta_options import parse_delta_options
    from moldau.spark.sink.options import parse_topic_options

    try:
        if sink.kind is SinkKind.TOPIC:
            parse_topic_options(
                {**connection_options(pipeline), **data_source_options(sink.options), "topic": sink.target}
            )
        elif sink.kind is SinkKind.DELTA:
            parse_delta_options({**sink.options, "path": sink.target}, is_streaming=True)
    except OptionError as failure:
        yield error(f"sinks.{sink.name}.options", str(failure))


def _directory(sink: Sink) -> Iterator[Finding]:
    """Yields an error if a local directory cannot be written to. Remote directories are not checked."""
    if "://" in sink.target:
        return
    path = Path(sink.target)
    while not path.exists():
        path = path.parent
    if not path.is_dir() or not os.access(path, os.W_OK | os.X_OK):
        what = "cannot be written to" if path.is_dir() else "is a file"
        yield error(
            f"sinks.{sink.name}.{sink.kind}", f"{path} {what}", "choose another directory, or change its permissions"
        )


def _table(frame: DataFrame, sink: Sink) -> Iterator[Finding]:
    from moldau.pipelines.planner.sink_writers import stored_columns
    from moldau.spark.sink.delta_commits import check_table_schema, open_table
    from moldau.spark.sink.delta_options import parse_delta_options

    if sink.mode == "complete":
        return
    try:
        location = parse_delta_options({**sink.options, "path": sink.target}, is_streaming=True).location
        table = open_table(location)
        if table is not None:
            check_table_schema(
                table, json.loads(stored_columns(frame, sink).schema.json()), sink.partition_by, location
            )
    except SparkSourceError as failure:
        yield error(f"sinks.{sink.name}.delta", str(failure))
