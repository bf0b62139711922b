"""Whether a pipeline would run, without starting it: topics, schemas, SQL, streaming operations, sinks. Spark analyses
the plans over empty streams; the cluster is asked for its topics, and for a sample of their records."""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from moldau.pipelines.definition import Format, OnBad, Pipeline, PipelineError, Sink, SinkKind, Source
from moldau.pipelines.failures import sentence_of
from moldau.pipelines.form.needing import needed
from moldau.pipelines.form.validating import problems
from moldau.pipelines.planning.building import Place, query_identities
from moldau.pipelines.planning.checking_topics import Topics, ask, check_topics, missing
from moldau.pipelines.planning.findings import Finding, error, warning
from moldau.pipelines.planning.identity import Identity, check_same, read_identity
from moldau.pipelines.planning.output_modes import mode_problem
from moldau.pipelines.planning.replaying import replayed
from moldau.pipelines.planning.storage import Storage
from moldau.pipelines.planning.stream_plans import empty_stream, unsupported
from moldau.pipelines.planning.table_owner import check_owner
from moldau.pipelines.planning.topic_streams import own_options, sample, starting, stream_options
from moldau.pipelines.planning.transforming import judged, rows_of
from moldau.pipelines.planning.writing import shaped_for
from moldau.pipelines.records.bad_records import where_and_why
from moldau.pipelines.records.columns import IS_BAD
from moldau.pipelines.records.decoding import decoded
from moldau.pipelines.records.inference import schema_of
from moldau.spark.errors import OptionError, SparkSourceError

__all__ = ["Finding", "check"]

SAMPLE_RECORDS = 100
"""Of each source, to see whether they are as the pipeline takes them."""


def check(spark: SparkSession, pipeline: Pipeline, place: Place | None = None) -> list[Finding]:
    """What is wrong, and what may be; nothing where all is well. With a place its checkpoints are looked at, too."""
    wrong = [error(".".join(where), message) for where, message in problems(pipeline)]
    if wrong:
        # What follows builds on names that fit together.
        return wrong
    return list(_Check(spark, pipeline, place).findings())


@dataclass
class _Check:
    spark: SparkSession
    pipeline: Pipeline
    place: Place | None
    schemas: dict[str, T.StructType] = field(default_factory=dict)
    failed: set[str] = field(default_factory=set)
    """Sources and views that cannot be used: what is made of them is not looked at."""

    def findings(self) -> Iterator[Finding]:
        topics = ask(self.pipeline)
        if isinstance(topics, Finding):
            yield topics
        else:
            yield from check_topics(self.pipeline, topics)
        for source in self.pipeline.sources:
            yield from self._source(source, topics if isinstance(topics, Topics) else None)
        for view in self.pipeline.views:
            yield from self._view(view.name)
        for sink in self.pipeline.sinks:
            yield from self._sink(sink)
        if self.place is not None:
            yield from self._checkpoints(self.place)

    # Sources

    def _source(self, source: Source, topics: Topics | None) -> Iterator[Finding]:
        where = f"sources.{source.name}"
        wrong = list(self._options(source))
        yield from wrong
        is_inferred = source.format is Format.JSON and source.schema is None
        if is_inferred and (topics is None or missing(source, topics)):
            # The topic is the trouble, and that was told.
            self.failed.add(source.name)
            return
        try:
            kept_in = None if self.place is None else self.place.directory
            self.schemas[source.name] = schema_of(self.spark, self.pipeline, source, kept_in, keep=False)
            records = decoded(empty_stream(self.spark, source), source, self.schemas[source.name])
        except (PipelineError, PySparkException, SparkSourceError) as failure:
            self.failed.add(source.name)
            yield error(f"{where}.schema", sentence_of(failure))
            return
        broken = list(self._expectations(source, records))
        yield from broken
        if broken:
            self.failed.add(source.name)
            return
        yield from self._view(source.name)
        if topics is not None and not missing(source, topics) and not wrong:
            yield from self._sample(source)

    def _sample(self, source: Source) -> Iterator[Finding]:
        """Whether the schema fits what is there."""
        try:
            records = sample(self.spark, self.pipeline, source, SAMPLE_RECORDS)
            judged_ones = judged(records, source, self.schemas[source.name]).selectExpr(
                IS_BAD, f"CASE WHEN {IS_BAD} THEN {where_and_why()} END AS why"
            )
            rows = judged_ones.collect()
        except (PipelineError, PySparkException, SparkSourceError) as failure:
            yield warning(f"sources.{source.name}", f"its records cannot be read: {sentence_of(failure)}")
            return
        reasons = [row["why"] for row in rows if row[IS_BAD]]
        if reasons:
            becomes = {
                OnBad.FAIL: "the run ends there: change the schema, or set on_bad: drop or dead_letters: <topic>",
                OnBad.DROP: "they are left out; if they should not be, change the schema",
                OnBad.DEAD_LETTER: "they go to the dead letters; if they should not, change the schema",
            }[self.pipeline.on_bad]
            yield warning(
                f"sources.{source.name}",
                f"{len(reasons)} of the first {len(rows)} records are bad: {reasons[0]}",
                becomes,
            )

    def _options(self, source: Source) -> Iterator[Finding]:
        from moldau.spark.source.options import parse_source

        options = stream_options(self.pipeline, source, "check", starting(source.starting))
        try:
            parse_source(options, is_stream=True)
        except OptionError as failure:
            yield error(f"sources.{source.name}.options", str(failure))

    def _expectations(self, source: Source, records: DataFrame) -> Iterator[Finding]:
        for name, sql in source.expectations.items():
            where = f"sources.{source.name}.expectations.{name}"
            try:
                kind = records.select(F.expr(sql)).schema[0].dataType
            except PySparkException as failure:
                yield error(where, sentence_of(failure))
                continue
            if not isinstance(kind, T.BooleanType):
                yield error(
                    where, f"{sql!r} is {kind.simpleString().upper()}", "write what must be true: price > 0"
                )

    # Views

    def _view(self, name: str) -> Iterator[Finding]:
        parts = [each.name for each in needed(self.pipeline, name)]
        if self.failed.intersection(parts):
            self.failed.add(name)
            return
        try:
            self._rows(name)
        except (PipelineError, PySparkException) as failure:
            self.failed.add(name)
            is_source = any(each.name == name for each in self.pipeline.sources)
            yield error(f"sources.{name}" if is_source else f"transform.{name}", sentence_of(failure))

    def _rows(self, name: str) -> DataFrame:
        return rows_of(
            self.spark, self.pipeline, name, lambda source: empty_stream(self.spark, source), self.schemas
        )

    # Sinks

    def _sink(self, sink: Sink) -> Iterator[Finding]:
        where = f"sinks.{sink.name}"
        yield from _sink_options(self.pipeline, sink)
        if sink.view in self.failed:
            return
        rows = self._rows(sink.view)
        try:
            frame = shaped_for(rows, sink)
            if sink.delete_when is not None:
                rows.select(F.expr(sink.delete_when))
        except (PipelineError, PySparkException) as failure:
            yield error(where, sentence_of(failure))
            return
        problem = mode_problem(frame, sink)
        if problem is not None:
            yield error(f"{where}.mode", *problem)
        is_ordered = bool(sink.order_by) or "_offset" in rows.columns or _is_aggregated(rows)
        if sink.mode == "upsert" and not is_ordered:
            yield warning(
                where,
                "two rows with the same key in one batch would end the run: which is the last is not said",
                "order_by: [a column], or keep _offset in the view",
            )
        if sink.kind in (SinkKind.PARQUET, SinkKind.DELTA):
            yield from _directory(sink)
        if sink.kind is SinkKind.DELTA:
            yield from _table(frame, sink)

    # Checkpoints

    def _checkpoints(self, place: Place) -> Iterator[Finding]:
        storage = Storage(self.spark)
        for identity in query_identities(self.pipeline, place):
            checkpoint = place.of(identity.query)
            try:
                found = read_identity(storage, checkpoint)
                if found is not None:
                    check_same(checkpoint, found, identity)
                    yield from _state(storage, checkpoint, found, identity)
            except PipelineError as failure:
                yield error("checkpoint", str(failure))
        for sink in self.pipeline.sinks:
            if sink.kind is SinkKind.PARQUET:
                yield from self._owner(storage, replayed(sink, place.generation), place)

    def _owner(self, storage: Storage, sink: Sink, place: Place) -> Iterator[Finding]:
        try:
            known = read_identity(storage, place.of(sink.name))
        except PipelineError:
            # That was told.
            return
        try:
            check_owner(storage, sink.target, sink.name, known)
        except PipelineError as failure:
            yield error(f"sinks.{sink.name}.parquet", str(failure))


def _state(storage: Storage, checkpoint: str, found: Identity, now: Identity) -> Iterator[Finding]:
    if found.sql and found.sql != now.sql and storage.exists(f"{checkpoint}/state"):
        yield warning(
            "checkpoint",
            f"the SQL of {now.query} is not the one its state was made with; if the state does not fit, the run ends",
            "change it back, or begin anew: moldau pipeline replay FILE --from earliest",
        )


def _is_aggregated(rows: DataFrame) -> bool:
    """Then a key is there once in a batch, as a rule."""
    return unsupported(rows, "complete") is None


def _sink_options(pipeline: Pipeline, sink: Sink) -> Iterator[Finding]:
    from moldau.pipelines.planning.connecting import connection
    from moldau.spark.sink.delta_options import parse_delta
    from moldau.spark.sink.options import parse_topic_options

    try:
        if sink.kind is SinkKind.TOPIC:
            parse_topic_options({**connection(pipeline), **own_options(sink.options), "topic": sink.target})
        elif sink.kind is SinkKind.DELTA:
            parse_delta({**sink.options, "path": sink.target}, is_streaming=True)
    except OptionError as failure:
        yield error(f"sinks.{sink.name}.options", str(failure))


def _directory(sink: Sink) -> Iterator[Finding]:
    """Of this machine only: others are asked when they are written to."""
    if "://" in sink.target:
        return
    path = Path(sink.target)
    while not path.exists():
        path = path.parent
    if not path.is_dir() or not os.access(path, os.W_OK | os.X_OK):
        what = "cannot be written to" if path.is_dir() else "is a file"
        yield error(
            f"sinks.{sink.name}.{sink.kind}", f"{path} {what}", "name another directory, or change its owner"
        )


def _table(frame: DataFrame, sink: Sink) -> Iterator[Finding]:
    from moldau.pipelines.planning.writing import stored
    from moldau.spark.sink.delta_commits import check_fits, open_table
    from moldau.spark.sink.delta_options import parse_delta

    if sink.mode == "complete":
        return
    try:
        location = parse_delta({**sink.options, "path": sink.target}, is_streaming=True).location
        table = open_table(location)
        if table is not None:
            check_fits(table, json.loads(stored(frame, sink).schema.json()), sink.partition_by, location)
    except SparkSourceError as failure:
        yield error(f"sinks.{sink.name}.delta", str(failure))
