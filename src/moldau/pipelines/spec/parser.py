"""Parser of pipeline definitions from the mappings of a YAML file or the arguments of the Python API."""

import os.path
from dataclasses import replace
from pathlib import Path

from moldau.pipelines.definition import (
    DEFAULT_BOOTSTRAP,
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


def parse_pipeline(section: SpecSection, file: Path | None) -> PipelineDefinition:
    folder = None if file is None else file.parent
    sources = tuple(parse_source(name, each, folder) for name, each in section.sections("sources").items())
    views = _parse_views(section)
    sinks = tuple(parse_sink(name, each, folder) for name, each in section.sections("sinks").items())
    return parse_pipeline_settings(section, sources, views, sinks, file)


def parse_pipeline_settings(
    section: SpecSection,
    sources: tuple[Source, ...],
    views: tuple[View, ...],
    sinks: tuple[Sink, ...],
    file: Path | None,
) -> PipelineDefinition:
    topic = section.text("dead_letters")
    pipeline = PipelineDefinition(
        name=section.text("name") or (file.stem if file is not None else ""),
        sources=sources,
        views=views,
        sinks=tuple(_with_view(sink, sources, views) for sink in sinks),
        bootstrap=section.text("bootstrap") or DEFAULT_BOOTSTRAP,
        kafka={key.removeprefix("kafka."): value for key, value in section.settings("kafka").items()},
        on_bad=section.choice(
            "on_bad", BadRecordPolicy, BadRecordPolicy.FAIL if topic is None else BadRecordPolicy.DEAD_LETTER
        ),
        dead_letter_topic=topic,
        trigger=section.read("trigger", parse_interval),
        rate_limit=section.number("rate_limit"),
        checkpoint=_resolve_path(section.text("checkpoint"), None if file is None else file.parent),
        publish_progress=section.flag("publish_progress", default=True),
        spark=section.settings("spark"),
        file=file,
    )
    section.finish()
    return pipeline


def parse_source(name: str, section: SpecSection, folder: Path | None) -> Source:
    source = Source(
        name=name,
        pattern=section.text("pattern"),
        format=section.choice("format", Format, Format.JSON),
        schema=_schema(section, folder),
        key_format=section.choice("key", Format, Format.STRING),
        starting=section.read("starting", parse_starting) or "earliest",
        watermark=_watermark(section),
        expectations=section.settings("expectations"),
        options=section.settings("options"),
    )
    which = section.one_of("topic", "topics", "pattern")
    section.finish()
    return source if which == "pattern" else replace(source, topics=section.texts(which))


def parse_sink(name: str, section: SpecSection, folder: Path | None) -> Sink:
    mode = section.text("mode")
    sink = Sink(
        name=name,
        kind=SinkKind.CONSOLE,
        view=section.text("from") or "",
        mode=mode or "update",
        url=section.text("url") or "",
        key=section.texts("key"),
        order_by=section.texts("order_by"),
        delete_when=section.text("delete_when"),
        format=section.choice("format", Format, Format.JSON),
        schema=_schema(section, folder),
        partition_by=section.texts("partition_by"),
        options=section.settings("options"),
    )
    kind = SinkKind(section.one_of(*SinkKind))
    section.finish()
    if kind is SinkKind.CONSOLE:
        section.flag("console")
        return sink
    target = section.text(kind.value) or ""
    if kind in (SinkKind.PARQUET, SinkKind.DELTA):
        target = _resolve_path(target, folder) or ""
    return replace(sink, kind=kind, target=target, mode=mode or "append")


def _parse_views(section: SpecSection) -> tuple[View, ...]:
    """Parses one SELECT, or a mapping of view names to SELECTs."""
    if section.is_mapping("transform"):
        return tuple(View(name, sql) for name, sql in section.settings("transform").items())
    sql = section.text("transform")
    return () if sql is None else (View("transform", sql),)


def _with_view(sink: Sink, sources: tuple[Source, ...], views: tuple[View, ...]) -> Sink:
    """Sets the view of a sink that names none: the last view, or the only source if there are no views."""
    if sink.view:
        return sink
    if views:
        return replace(sink, view=views[-1].name)
    return replace(sink, view=sources[0].name) if len(sources) == 1 else sink


def _schema(section: SpecSection, folder: Path | None) -> str | None:
    if section.has("schema") and section.has("schema_file"):
        raise section.error("schema_file", "both schema and schema_file are set: remove one of them")
    return section.text("schema") or section.file_text("schema_file", folder)


def _watermark(section: SpecSection) -> Watermark | None:
    watermark_section = section.section("watermark")
    if watermark_section is None:
        return None
    column, delay = watermark_section.text("column"), watermark_section.read("delay", parse_interval)
    watermark_section.finish()
    if column is None or delay is None:
        raise section.error("watermark", "a watermark has a column and a delay: {column: at, delay: 10 seconds}")
    return Watermark(column, delay)


def _resolve_path(target: str | None, folder: Path | None) -> str | None:
    """Resolves a relative path against the directory of the pipeline's file. URLs such as `s3a://…` stay unchanged."""
    if not target or "://" in target or folder is None:
        return target
    # Normalise the path, because the next run compares it with the path that is stored in the checkpoint.
    return os.path.normpath(folder.absolute() / Path(target).expanduser())
