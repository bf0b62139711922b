"""A pipeline as streaming queries: one per sink, and one more per source whose bad records go to a dead-letter topic.

Everything that can be found wrong is found here, before the first query starts.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from moldau.pipelines.definition import OnBad, Pipeline, Sink, SinkKind, Source
from moldau.pipelines.form.needing import needed, sources_of
from moldau.pipelines.planning.console import print_batch
from moldau.pipelines.planning.identity import (
    Identity,
    claimed,
    hash_of,
    identity_of,
    read_identity,
    what_is_written,
)
from moldau.pipelines.planning.output_modes import check_mode
from moldau.pipelines.planning.replaying import replayed
from moldau.pipelines.planning.starts import settled_start
from moldau.pipelines.planning.storage import Storage
from moldau.pipelines.planning.stream_plans import columns_needed, empty_stream
from moldau.pipelines.planning.table_owner import check_owner, claim
from moldau.pipelines.planning.topic_streams import AS_THE_SOURCES_SAY, Start, stream, stream_options
from moldau.pipelines.planning.transforming import Raw, judged, rows_of, told_of
from moldau.pipelines.planning.writing import Show, shaped_for, topic_writer, writer
from moldau.pipelines.records.bad_records import dead_letters
from moldau.pipelines.records.inference import schema_of

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["Place", "PlannedQuery", "Start", "plan"]

Shape = Callable[[Raw], DataFrame]
"""What a query writes, made of the records of its sources."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where checkpoints are: a query's is `<checkpoints>/<generation>/<query>`."""

    checkpoints: str
    generation: int

    @property
    def directory(self) -> str:
        return f"{str(self.checkpoints).rstrip('/')}/{self.generation}"

    def of(self, query: str) -> str:
        return f"{self.directory}/{query}"


@dataclass(frozen=True, slots=True)
class PlannedQuery:
    name: str
    group: str
    """The consumer group in which its offsets can be seen."""
    start: "Callable[[bool], StreamingQuery]"
    """Takes whether to stop when what is there now has been read."""
    sink: Sink | None = None
    source: Source | None = None
    """Of a query for dead letters."""


def group_of(pipeline: Pipeline, query: str) -> str:
    return f"moldau-{pipeline.name}-{query}"


def dead_letter_query(source: Source) -> str:
    # No sink has a dot in its name.
    return f"{source.name}.dead_letters"


def plan(
    spark: SparkSession,
    pipeline: Pipeline,
    place: Place,
    start: Start = AS_THE_SOURCES_SAY,
    *,
    show: Show = print_batch,
) -> list[PlannedQuery]:
    """Raises PipelineError. Nothing is started; the schemas that had to be inferred, and where the sources begin, are
    kept in the place."""
    schemas = {
        each.name: schema_of(spark, pipeline, each, place.directory) for each in _all_sources(pipeline)
    }
    files = Storage(spark)
    has_begun = any(
        files.exists(f"{place.of(each.query)}/metadata") for each in query_identities(pipeline, place)
    )
    begins = {
        each.name: settled_start(files, pipeline, each, start, place.directory, has_begun=has_begun)
        for each in _all_sources(pipeline)
    }
    planning = _Planning(spark, pipeline, place, begins, schemas, show)
    queries = [planning.of_sink(sink) for sink in pipeline.sinks]
    if pipeline.on_bad is OnBad.DEAD_LETTER:
        queries += [planning.of_dead_letters(source) for source in _all_sources(pipeline)]
    return queries


def query_identities(pipeline: Pipeline, place: Place) -> list[Identity]:
    """Of all queries that `plan` makes."""
    identities = [_of_sink(pipeline, replayed(sink, place.generation)) for sink in pipeline.sinks]
    if pipeline.on_bad is OnBad.DEAD_LETTER:
        identities += [_of_dead_letters(pipeline, source) for source in _all_sources(pipeline)]
    return identities


def _of_sink(pipeline: Pipeline, sink: Sink) -> Identity:
    sql = hash_of(needed(pipeline, sink.view))
    return identity_of(pipeline, sink.name, sources_of(pipeline, sink.view), what_is_written(sink), sql)


def _of_dead_letters(pipeline: Pipeline, source: Source) -> Identity:
    return identity_of(pipeline, dead_letter_query(source), [source], f"topic {pipeline.dead_letter_topic}")


def _all_sources(pipeline: Pipeline) -> list[Source]:
    """Those that some sink needs."""
    used = {each.name for sink in pipeline.sinks for each in sources_of(pipeline, sink.view)}
    return [each for each in pipeline.sources if each.name in used]


@dataclass(frozen=True)
class _Planning:
    spark: SparkSession
    pipeline: Pipeline
    place: Place
    begins: Mapping[str, Mapping[str, str]]
    """By source: what says where it begins."""
    schemas: Mapping[str, T.StructType]
    show: Show

    def of_sink(self, sink: Sink) -> PlannedQuery:
        sink = replayed(sink, self.place.generation)
        sources = sources_of(self.pipeline, sink.view)

        def shape(raw: Raw) -> DataFrame:
            rows = rows_of(self.spark, self.pipeline, sink.view, raw, self.schemas)
            with told_of(f"the sink {sink.name}"):
                return shaped_for(rows, sink)

        if sink.kind is SinkKind.PARQUET:
            files = Storage(self.spark)
            check_owner(files, sink.target, sink.name, read_identity(files, self.place.of(sink.name)))
        frame = self._over_topics(sink.name, shape, sources)
        check_mode(frame, sink)
        return self._query(
            _of_sink(self.pipeline, sink),
            lambda app_id: writer(frame, sink, self.pipeline, app_id, self.show),
            sink=sink,
        )

    def of_dead_letters(self, source: Source) -> PlannedQuery:
        topic = self.pipeline.dead_letter_topic
        assert topic is not None, "a pipeline with dead letters has a topic for them"

        def shape(raw: Raw) -> DataFrame:
            records = judged(raw(source), source, self.schemas[source.name])
            return dead_letters(records, self.pipeline.name, source)

        name = dead_letter_query(source)
        frame = self._over_topics(name, shape, [source])
        return self._query(
            _of_dead_letters(self.pipeline, source),
            lambda _: topic_writer(frame, self.pipeline, topic, headers=True),
            source=source,
        )

    def _over_topics(self, query: str, shape: Shape, sources: list[Source]) -> DataFrame:
        """The frame over topics, of which only the columns are read that it needs."""
        probe = shape(lambda source: empty_stream(self.spark, source))
        needed = {each.name: columns_needed(probe, each) for each in sources}

        def raw(source: Source) -> DataFrame:
            options = stream_options(
                self.pipeline, source, group_of(self.pipeline, query), self.begins[source.name]
            )
            with told_of(f"the source {source.name}"):
                return stream(self.spark, options, needed[source.name])

        return shape(raw)

    def _query(
        self,
        identity: Identity,
        writing: Callable[[str], Any],
        *,
        sink: Sink | None = None,
        source: Source | None = None,
    ) -> PlannedQuery:
        name = identity.query
        checkpoint = self.place.of(name)

        def begin(available_now: bool) -> "StreamingQuery":
            files = Storage(self.spark)
            known = claimed(files, checkpoint, identity)
            if sink is not None and sink.kind is SinkKind.PARQUET:
                claim(files, sink.target, known)
            stream = writing(f"moldau-{self.pipeline.name}-{name}-{known.id}")
            stream = stream.queryName(f"{self.pipeline.name}: {name}").option(
                "checkpointLocation", checkpoint
            )
            if available_now:
                stream = stream.trigger(availableNow=True)
            elif self.pipeline.trigger is not None:
                stream = stream.trigger(processingTime=self.pipeline.trigger)
            with told_of(name):
                query: StreamingQuery = stream.start()
            return query

        return PlannedQuery(name, group_of(self.pipeline, name), begin, sink, source)
