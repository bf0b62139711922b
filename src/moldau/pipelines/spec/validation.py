"""Validation of a definition without Spark and without a cluster. `planner.checks` has the other checks. No I/O."""

import json
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence

from moldau.pipelines.definition import BadRecordPolicy, Format, PipelineDefinition, Sink, SinkKind, Source, View
from moldau.pipelines.spec.dependencies import parameters_of, sources_of
from moldau.pipelines.spec.values import SLUG_RULE, is_slug, is_sql_name
from moldau.settings.option_parser import suggest_names

Problem = tuple[tuple[str, ...], str]
"""A key path such as `("sources", "orders", "topic")`, and a message."""

_BOOTSTRAP = "kafka.bootstrap.servers"

_MODES = {
    SinkKind.TOPIC: ("append", "update", "complete"),
    SinkKind.PARQUET: ("append",),
    SinkKind.DELTA: ("append", "upsert", "complete"),
    SinkKind.POSTGRES: ("append", "upsert"),
    SinkKind.CONSOLE: ("append", "update", "complete"),
}


def find_problems(pipeline: PipelineDefinition) -> Iterator[Problem]:
    """Yields problems in the order of the pipeline file."""
    found = list(_definition_problems(pipeline))
    yield from found
    if not found:
        # Look for cycles only if there is no other problem, because the search needs valid names.
        yield from _cycle_problems(pipeline)


def _definition_problems(pipeline: PipelineDefinition) -> Iterator[Problem]:
    if not is_slug(pipeline.name):
        yield ("name",), f"{pipeline.name!r} cannot name a pipeline: {SLUG_RULE}"
    if not pipeline.sources:
        yield ("sources",), "a pipeline needs a source: sources: {orders: {topic: orders, …}}"
    if not pipeline.sinks:
        yield ("sinks",), "a pipeline needs a sink; to see the rows: sinks: {screen: {console: true}}"
    names: list[str] = []
    for source in pipeline.sources:
        yield from _source_problems(source)
        yield from _duplicate_problems(("sources", source.name), source.name, names)
        names.append(source.name)
    for view in pipeline.views:
        yield from _view_problems(view, names)
        names.append(view.name)
    seen: list[str] = []
    for sink in pipeline.sinks:
        yield from _sink_problems(sink, names)
        yield from _duplicate_problems(("sinks", sink.name), sink.name, seen)
        seen.append(sink.name)
    yield from _table_problems(pipeline.sinks)
    yield from _dead_letter_problems(pipeline)


def _duplicate_problems(path: tuple[str, ...], name: str, earlier: Sequence[str]) -> Iterator[Problem]:
    if name.lower() in (each.lower() for each in earlier):
        yield path, f"two are named {name!r}; SQL ignores case"


def _source_problems(source: Source) -> Iterator[Problem]:
    path = ("sources", source.name)
    if not is_sql_name(source.name):
        yield path, f"{source.name!r} cannot be a name in SQL: use letters, digits and _"
    if source.pattern is not None:
        try:
            re.compile(source.pattern)
        except re.error as error:
            yield (*path, "pattern"), f"{source.pattern!r} is not a regular expression: {error}"
    elif not source.topics or "" in source.topics:
        yield (*path, "topic"), f"the source {source.name} has no topic"
    if source.key_format not in (Format.BYTES, Format.STRING):
        yield (*path, "key"), f"keys are bytes or string, not {source.key_format}"
    if source.format is Format.AVRO:
        yield from _avro_schema_problems(path, source.schema, "the source " + source.name)
    elif source.schema is not None and source.format is not Format.JSON:
        yield (*path, "schema"), f"{source.format} has no schema: its only column is `value`"


def _avro_schema_problems(path: tuple[str, ...], schema: str | None, what: str) -> Iterator[Problem]:
    if schema is None:
        yield path, f"{what} is in Avro: it needs schema_file: …avsc (or schema: with the JSON itself)"
        return
    try:
        json.loads(schema)
    except ValueError as error:
        yield (*path, "schema"), f"the Avro schema of {what} is not JSON: {error}"


def _view_problems(view: View, earlier: Sequence[str]) -> Iterator[Problem]:
    path = ("transform", view.name)
    if not is_sql_name(view.name) and not view.name.startswith("_"):
        yield path, f"{view.name!r} cannot be a name in SQL: use letters, digits and _"
    yield from _duplicate_problems(path, view.name, earlier)
    if view.transform is not None:
        for parameter in parameters_of(view.transform):
            if parameter not in earlier:
                wrong = f"{view.name} has the parameter {parameter!r}, but no earlier source or view has this name"
                yield path, wrong + suggest_names(parameter, earlier)
    elif not (view.sql or "").strip():
        yield path, f"the view {view.name} is empty: write a SELECT"


def _sink_problems(sink: Sink, views: Sequence[str]) -> Iterator[Problem]:
    path = ("sinks", sink.name)
    if not is_slug(sink.name):
        yield path, f"{sink.name!r} cannot name a sink: {SLUG_RULE}"
    if not sink.view:
        yield path, f"the sink {sink.name} needs a source or view: from: {' or '.join(views) or 'a source'}"
    elif sink.view not in views:
        yield (*path, "from"), f"there is no source or view {sink.view!r}{suggest_names(sink.view, views)}"
    if sink.kind is not SinkKind.CONSOLE and not sink.target:
        yield (*path, sink.kind.value), f"the sink {sink.name} needs a {sink.kind.value}"
    modes = _MODES[sink.kind]
    if sink.mode not in modes:
        yield (*path, "mode"), f"a {sink.kind} sink has no mode {sink.mode!r}{suggest_names(sink.mode, modes)}"
    if sink.mode == "upsert" and not sink.key:
        yield path, "an upsert needs the columns that identify a row: key: [id]"
    if sink.order_by and sink.mode != "upsert":
        yield (*path, "order_by"), "order_by is for upserts: mode: upsert"
    if sink.delete_when and sink.mode != "upsert" and not (sink.kind is SinkKind.TOPIC and sink.key):
        yield (*path, "delete_when"), "delete_when is for mode: upsert, or for a topic with a key"
    if sink.key and sink.mode != "upsert" and sink.kind is not SinkKind.TOPIC:
        yield (*path, "key"), f"a {sink.kind} sink in mode {sink.mode} has no key; did you mean mode: upsert?"
    if sink.partition_by and sink.kind not in (SinkKind.PARQUET, SinkKind.DELTA):
        yield (*path, "partition_by"), "partition_by is for Parquet and Delta"
    if sink.kind is SinkKind.TOPIC and sink.format is Format.AVRO:
        yield from _avro_schema_problems(path, sink.schema, f"the sink {sink.name}")
    if sink.kind is SinkKind.POSTGRES:
        yield from _postgres_problems(path, sink)
    elif sink.url:
        yield (*path, "url"), "url is for Postgres: postgres: <table>"


def _postgres_problems(path: tuple[str, ...], sink: Sink) -> Iterator[Problem]:
    if not sink.url:
        yield path, f"the sink {sink.name} needs the database: url: postgresql://user@host/database"
    for name in sink.options:
        yield (*path, "options", name), f"a postgres sink has no option {name!r}; options of the connection are in url"


def _table_problems(sinks: Sequence[Sink]) -> Iterator[Problem]:
    """Yields a problem if two sinks write to the same table, because they would skip each other's batches."""
    writers: dict[str, str] = {}
    for sink in sinks:
        if sink.kind not in (SinkKind.PARQUET, SinkKind.DELTA) or not sink.target:
            continue
        # Split off the scheme, because normpath would merge the slashes of `s3a://bucket`.
        earlier, slashes, path = sink.target.rpartition("://")
        directory = earlier + slashes + posixpath.normpath(path)
        other = writers.setdefault(directory, sink.name)
        if other != sink.name:
            both = f"the sinks {other} and {sink.name} write to one directory, {directory}"
            advice = "use a directory for each, or combine their rows in one view with UNION ALL"
            yield ("sinks", sink.name, sink.kind.value), f"{both}: {advice}"


def _dead_letter_problems(pipeline: PipelineDefinition) -> Iterator[Problem]:
    topic, has_dead_letters = pipeline.dead_letter_topic, pipeline.on_bad is BadRecordPolicy.DEAD_LETTER
    if has_dead_letters and not topic:
        yield ("on_bad",), "on_bad: dead_letter needs the topic: dead_letters: <topic>"
    if topic and not has_dead_letters:
        yield ("on_bad",), f"on_bad: {pipeline.on_bad} does not write to dead_letters: {topic}; remove one of them"


def _cycle_problems(pipeline: PipelineDefinition) -> Iterator[Problem]:
    """Yields a problem for each topic that the pipeline writes and reads again."""
    dead = pipeline.dead_letter_topic
    if dead and pipeline.on_bad is BadRecordPolicy.DEAD_LETTER:
        for source in _readers(pipeline, dead, {}):
            advice = "bad records would cycle forever; use another topic for them"
            yield ("dead_letters",), f"{_reader_text(source, dead)}: {advice}"
    sources_by_sink = {sink.name: [each.name for each in sources_of(pipeline, sink.view)] for sink in pipeline.sinks}
    readers_by_sink = {
        sink.name: _readers(pipeline, sink.target, sink.options) if sink.kind is SinkKind.TOPIC else []
        for sink in pipeline.sinks
    }
    for sink in pipeline.sinks:
        for source in readers_by_sink[sink.name]:
            if _reaches(source.name, sink.name, sources_by_sink, readers_by_sink):
                what = f"{_reader_text(source, sink.target)}, which feeds this sink: its rows would cycle forever"
                yield ("sinks", sink.name, "topic"), what


def _readers(pipeline: PipelineDefinition, topic: str, options: Mapping[str, str]) -> list[Source]:
    """Returns the sources that read this topic in the cluster that `options` name, by default the pipeline's."""
    cluster = options.get(_BOOTSTRAP, pipeline.bootstrap)
    return [
        each
        for each in pipeline.sources
        if each.options.get(_BOOTSTRAP, pipeline.bootstrap) == cluster
        and (topic in each.topics if each.pattern is None else re.fullmatch(each.pattern, topic))
    ]


def _reader_text(source: Source, topic: str) -> str:
    note = "" if source.pattern is None else f" ({source.pattern!r} matches it)"
    return f"{topic} is read by the source {source.name}{note}"


def _reaches(
    source: str, sink: str, sources_by_sink: Mapping[str, list[str]], readers_by_sink: Mapping[str, list[Source]]
) -> bool:
    """Returns whether records of a source reach a sink, directly or through topics of other sinks."""
    reached = [source]
    for name in reached:
        for each, sources in sources_by_sink.items():
            if name in sources:
                if each == sink:
                    return True
                reached += [reader.name for reader in readers_by_sink[each] if reader.name not in reached]
    return False
