"""Planner of a pipeline's streaming queries: one per sink, and one per source with dead letters."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from moldau.pipelines.definition import BadRecordPolicy, PipelineDefinition, Sink, SinkKind, Source
from moldau.pipelines.planner.console import print_batch
from moldau.pipelines.planner.hadoop_files import HadoopFiles
from moldau.pipelines.planner.ownership import (
    QueryIdentity,
    check_owner,
    claim_checkpoint,
    claim_directory,
    identity_of,
    read_identity,
    sql_hash,
)
from moldau.pipelines.planner.plan_analysis import check_output_mode, empty_stream, required_columns
from moldau.pipelines.planner.replay import sink_for_generation
from moldau.pipelines.planner.sink_writers import ShowBatch, prepare_for_sink, sink_writer, topic_writer
from moldau.pipelines.planner.starting_offsets import starting_options_for
from moldau.pipelines.planner.topic_streams import read_stream, stream_options
from moldau.pipelines.planner.transformation import ReadRecords, decode_and_check, pipeline_errors, view_rows
from moldau.pipelines.records.bad_records import dead_letter_records
from moldau.pipelines.records.schema_inference import source_schema
from moldau.pipelines.spec.dependencies import dependencies_of, sources_of

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery


@dataclass(frozen=True, slots=True)
class CheckpointLocation:
    """The location of checkpoints: `<checkpoints>/<generation>/<query>`."""

    checkpoints: str
    generation: int

    @property
    def directory(self) -> str:
        return f"{self.checkpoints.rstrip('/')}/{self.generation}"

    def of(self, query: str) -> str:
        return f"{self.directory}/{query}"


@dataclass(frozen=True, slots=True)
class PlannedQuery:
    name: str
    start: "Callable[[bool], StreamingQuery]"
    """Starts the query. If the argument is True, the query stops after the records that are available now."""


def plan(
    spark: SparkSession,
    pipeline: PipelineDefinition,
    checkpoint_location: CheckpointLocation,
    start: str | None = None,
    *,
    show: ShowBatch = print_batch,
) -> list[PlannedQuery]:
    """Plans all queries without starting them. Raises PipelineError for errors that are detectable before the start.

    Stores inferred schemas and starting offsets with the checkpoints. `start` (`earliest`, `latest` or an ISO time)
    overrides where queries without a checkpoint start.
    """
    sources, directory = _used_sources(pipeline), checkpoint_location.directory
    schemas = {each.name: source_schema(spark, pipeline, each, directory) for each in sources}
    files = HadoopFiles(spark)
    has_started = any(
        files.exists(f"{checkpoint_location.of(each.query)}/metadata")
        for each in query_identities(pipeline, checkpoint_location)
    )
    starting_options = {
        each.name: starting_options_for(files, pipeline, each, start, directory, has_started=has_started)
        for each in sources
    }
    planner = _QueryPlanner(spark, pipeline, checkpoint_location, starting_options, schemas, show)
    queries = [planner.plan_sink(sink) for sink in pipeline.sinks]
    if pipeline.on_bad is BadRecordPolicy.DEAD_LETTER:
        queries += [planner.plan_dead_letters(source) for source in sources]
    return queries


def query_identities(pipeline: PipelineDefinition, checkpoint_location: CheckpointLocation) -> list[QueryIdentity]:
    """Returns the identities of all queries that `plan` returns."""
    identities = [
        _sink_identity(pipeline, sink_for_generation(sink, checkpoint_location.generation)) for sink in pipeline.sinks
    ]
    if pipeline.on_bad is BadRecordPolicy.DEAD_LETTER:
        identities += [_dead_letter_identity(pipeline, source) for source in _used_sources(pipeline)]
    return identities


def _sink_identity(pipeline: PipelineDefinition, sink: Sink) -> QueryIdentity:
    sql = sql_hash(dependencies_of(pipeline, sink.view))
    return identity_of(pipeline, sink.name, sources_of(pipeline, sink.view), sink.label, sql)


def _dead_letter_identity(pipeline: PipelineDefinition, source: Source) -> QueryIdentity:
    # No sink's query has this name, because sink names contain no dot.
    return identity_of(pipeline, f"{source.name}.dead_letters", [source], f"topic {pipeline.dead_letter_topic}")


def _used_sources(pipeline: PipelineDefinition) -> list[Source]:
    """Returns the sources that at least one sink needs."""
    used = {each.name for sink in pipeline.sinks for each in sources_of(pipeline, sink.view)}
    return [each for each in pipeline.sources if each.name in used]


@dataclass(frozen=True)
class _QueryPlanner:
    spark: SparkSession
    pipeline: PipelineDefinition
    checkpoint_location: CheckpointLocation
    starting_options: Mapping[str, Mapping[str, str]]
    """The starting options by source name."""
    schemas: Mapping[str, T.StructType]
    show: ShowBatch

    def plan_sink(self, sink: Sink) -> PlannedQuery:
        sink = sink_for_generation(sink, self.checkpoint_location.generation)

        def build(raw: ReadRecords) -> DataFrame:
            rows = view_rows(self.spark, self.pipeline, sink.view, raw, self.schemas)
            with pipeline_errors(f"the sink {sink.name}"):
                return prepare_for_sink(rows, sink)

        if sink.kind is SinkKind.PARQUET:
            files = HadoopFiles(self.spark)
            check_owner(files, sink.target, sink.name, read_identity(files, self.checkpoint_location.of(sink.name)))
        frame = self._stream_frame(sink.name, build, sources_of(self.pipeline, sink.view))
        check_output_mode(frame, sink)
        return self._query(
            _sink_identity(self.pipeline, sink),
            lambda app_id: sink_writer(frame, sink, self.pipeline, app_id, self.show),
            sink,
        )

    def plan_dead_letters(self, source: Source) -> PlannedQuery:
        topic = self.pipeline.dead_letter_topic
        assert topic is not None, "a pipeline with dead letters has a topic for them"

        def build(raw: ReadRecords) -> DataFrame:
            records = decode_and_check(raw(source), source, self.schemas[source.name])
            return dead_letter_records(records, self.pipeline.name, source)

        identity = _dead_letter_identity(self.pipeline, source)
        frame = self._stream_frame(identity.query, build, [source])
        return self._query(identity, lambda _: topic_writer(frame, self.pipeline, topic, {"includeHeaders": "true"}))

    def _stream_frame(self, query: str, build: Callable[[ReadRecords], DataFrame], sources: list[Source]) -> DataFrame:
        """Builds the frame over empty streams to find the required columns, then over topics with these columns."""
        probe = build(lambda source: empty_stream(self.spark, source))
        needed = {each.name: required_columns(probe, each) for each in sources}

        def raw(source: Source) -> DataFrame:
            group_id = f"moldau-{self.pipeline.name}-{query}"
            options = stream_options(self.pipeline, source, group_id, self.starting_options[source.name])
            with pipeline_errors(f"the source {source.name}"):
                return read_stream(self.spark, options, needed[source.name])

        return build(raw)

    def _query(
        self, identity: QueryIdentity, make_writer: Callable[[str], Any], sink: Sink | None = None
    ) -> PlannedQuery:
        """Returns the query. `make_writer` receives the app id that identifies the query's batches in a table."""
        name = identity.query
        checkpoint = self.checkpoint_location.of(name)

        def begin(available_now: bool) -> "StreamingQuery":
            files = HadoopFiles(self.spark)
            identity_with_id = claim_checkpoint(files, checkpoint, identity)
            if sink is not None and sink.kind is SinkKind.PARQUET:
                claim_directory(files, sink.target, identity_with_id)
            stream = make_writer(f"moldau-{self.pipeline.name}-{name}-{identity_with_id.id}")
            stream = stream.queryName(f"{self.pipeline.name}: {name}").option("checkpointLocation", checkpoint)
            if available_now:
                stream = stream.trigger(availableNow=True)
            elif self.pipeline.trigger is not None:
                stream = stream.trigger(processingTime=self.pipeline.trigger)
            with pipeline_errors(name):
                query: StreamingQuery = stream.start()
            return query

        return PlannedQuery(name, begin)
