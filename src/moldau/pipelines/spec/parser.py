"""Parser from the mappings of a YAML file, or the arguments of the Python API, to a definition."""

import os.path
from dataclasses import replace
from pathlib import Path

from moldau.pipelines.definition import (
    BadRecordPolicy,
    Format,
    PipelineDefinition,
    Sink,
    SinkKind,
    Source,
    View,
    Watermark,
)
from moldau.pipelines.spec.section import SpecSection
from moldau.pipelines.spec.values import parse_interval, parse_starting

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"


def parse_pipeline(given: SpecSection, file: Path | None) -> PipelineDefinition:
    folder = None if file is None else file.parent
    sources = tuple(parse_source(name, each, folder) for name, each in given.sections("sources").items())
    views = _parse_views(given)
    sinks = tuple(parse_sink(name, each, folder) for name, each in given.sections("sinks").items())
    return parse_pipeline_settings(given, sources, views, sinks, file)


def parse_pipeline_settings(
    given: SpecSection,
    sources: tuple[Source, ...],
    views: tuple[View, ...],
    sinks: tuple[Sink, ...],
    file: Path | None,
) -> PipelineDefinition:
    """Parses the settings of the pipeline as a whole."""
    topic = given.text("dead_letters")
    pipeline = PipelineDefinition(
        name=given.text("name") or (file.stem if file is not None else ""),
        sources=sources,
        views=views,
        sinks=tuple(_with_view(sink, sources, views) for sink in sinks),
        bootstrap=given.text("bootstrap") or DEFAULT_BOOTSTRAP,
        kafka={key.removeprefix("kafka."): value for key, value in given.settings("kafka").items()},
        on_bad=given.choice(
            "on_bad", BadRecordPolicy, BadRecordPolicy.FAIL if topic is None else BadRecordPolicy.DEAD_LETTER
        ),
        dead_letter_topic=topic,
        trigger=given.read("trigger", parse_interval),
        rate_limit=given.number("rate_limit"),
        checkpoint=_resolve_path(given.text("checkpoint"), None if file is None else file.parent),
        spark=given.settings("spark"),
        file=file,
    )
    given.finish()
    return pipeline


def parse_source(name: str, given: SpecSection, folder: Path | None) -> Source:
    source = Source(
        name=name,
        pattern=given.text("pattern"),
        format=given.choice("format", Format, Format.JSON),
        schema=_schema(given, folder),
        key_format=given.choice("key", Format, Format.STRING),
        starting=given.read("starting", parse_starting) or "earliest",
        watermark=_watermark(given),
        expectations=given.settings("expectations"),
        options=given.settings("options"),
    )
    which = given.one_of("topic", "topics", "pattern")
    given.finish()
    return source if which == "pattern" else replace(source, topics=given.texts(which))


def parse_sink(name: str, given: SpecSection, folder: Path | None) -> Sink:
    mode = given.text("mode")
    sink = Sink(
        name=name,
        kind=SinkKind.CONSOLE,
        view=given.text("from") or "",
        mode=mode or "update",
        key=given.texts("key"),
        order_by=given.texts("order_by"),
        delete_when=given.text("delete_when"),
        format=given.choice("format", Format, Format.JSON),
        schema=_schema(given, folder),
        partition_by=given.texts("partition_by"),
        options=given.settings("options"),
    )
    kind = SinkKind(given.one_of(*SinkKind))
    given.finish()
    if kind is SinkKind.CONSOLE:
        given.flag("console")
        return sink
    target = given.text(kind.value) or ""
    if kind is not SinkKind.TOPIC:
        target = _resolve_path(target, folder) or ""
    return replace(sink, kind=kind, target=target, mode=mode or "append")


def _parse_views(given: SpecSection) -> tuple[View, ...]:
    """Parses one SELECT, or several by name."""
    if given.is_mapping("transform"):
        return tuple(View(name, sql) for name, sql in given.settings("transform").items())
    sql = given.text("transform")
    return () if sql is None else (View("transform", sql),)


def _with_view(sink: Sink, sources: tuple[Source, ...], views: tuple[View, ...]) -> Sink:
    """Adds the default view of a sink: the last view, or the only source."""
    if sink.view:
        return sink
    if views:
        return replace(sink, view=views[-1].name)
    return replace(sink, view=sources[0].name) if len(sources) == 1 else sink


def _schema(given: SpecSection, folder: Path | None) -> str | None:
    if given.has("schema") and given.has("schema_file"):
        raise given.error("schema_file", "both schema and schema_file are set: remove one of them")
    return given.text("schema") or given.file_text("schema_file", folder)


def _watermark(given: SpecSection) -> Watermark | None:
    inside = given.section("watermark")
    if inside is None:
        return None
    column, delay = inside.text("column"), inside.read("delay", parse_interval)
    inside.finish()
    if column is None or delay is None:
        raise given.error(
            "watermark", "a watermark has a column and a delay: {column: at, delay: 10 seconds}"
        )
    return Watermark(column, delay)


def _resolve_path(target: str | None, folder: Path | None) -> str | None:
    """Resolves relative paths against the pipeline's file; URLs such as `s3a://…` stay unchanged."""
    if not target or "://" in target or folder is None:
        return target
    # Normalised, because checkpoints store the directory.
    return os.path.normpath(folder.absolute() / Path(target).expanduser())
