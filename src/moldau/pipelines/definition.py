"""What a pipeline is: topics in, a transformation, sinks out. Values only; `loading` reads them from a file, `building`
makes Spark queries of them.

A pipeline runs as one streaming query per sink, and one more per source whose bad records go to a dead-letter topic:
each has its checkpoint and its consumer group, so one that fails or lags does not hold up the others.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

TransformFunction = Callable[..., Any]
"""Makes a DataFrame of DataFrames; what its parameters are called says which views it gets."""


class PipelineError(Exception):
    """A pipeline cannot be loaded, checked or run as it stands. Its text says why, and what to do about it."""


class Format(StrEnum):
    """How the bytes of a record become columns, and columns the bytes of a record."""

    BYTES = "bytes"
    STRING = "string"
    JSON = "json"
    AVRO = "avro"


class SinkKind(StrEnum):
    TOPIC = "topic"
    PARQUET = "parquet"
    DELTA = "delta"
    CONSOLE = "console"


class BadRecordPolicy(StrEnum):
    """What becomes of records that cannot be decoded or violate an expectation."""

    FAIL = "fail"
    DROP = "drop"
    DEAD_LETTER = "dead_letter"


@dataclass(frozen=True, slots=True)
class Watermark:
    column: str
    delay: str
    """As Spark takes it: `10 seconds`."""


@dataclass(frozen=True, slots=True)
class Source:
    """A view over topics. Beside the decoded columns it has `_key`, `_topic`, `_partition`, `_offset`, `_timestamp`,
    `_headers`, and `_deleted`, which is true of tombstones."""

    name: str
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    """Instead of topics."""
    format: Format = Format.JSON
    schema: str | None = None
    """Spark's DDL; for Avro the schema as JSON. JSON without one: inferred from a sample at the first run, and kept."""
    key_format: Format = Format.STRING
    starting: str = "earliest"
    """`earliest`, `latest`, or a time as ISO 8601 has it; for the first run only, a checkpoint goes before it."""
    watermark: Watermark | None = None
    expectations: Mapping[str, str] = field(default_factory=dict)
    """What must be true of a record, as SQL over its columns, by name. Null counts as a violation."""
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    """More options of the data source."""
    transform: TransformFunction | None = None


@dataclass(frozen=True, slots=True)
class View:
    """A step of the transformation: SQL over the sources and the views before it, or a function."""

    name: str
    sql: str | None = None
    transform: TransformFunction | None = None


@dataclass(frozen=True, slots=True)
class Sink:
    name: str
    kind: SinkKind
    target: str = ""
    """The topic, or the directory of the table; nothing for the console."""
    view: str = ""
    """What it shows: a view or a source."""
    mode: str = "append"
    """`append`, `update` or `complete`, as Spark has them; for Delta also `upsert`."""
    key: tuple[str, ...] = ()
    """For topics the columns of the record's key; for an upsert those that identify a row."""
    order_by: tuple[str, ...] = ()
    """For an upsert: of several rows with one key in a batch the one that is last by these counts."""
    delete_when: str | None = None
    """For an upsert: SQL that is true of rows which remove their key from the table; for a topic: which are written
    without a value."""
    format: Format = Format.JSON
    schema: str | None = None
    """For topics in Avro: the schema as JSON."""
    partition_by: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class PipelineDefinition:
    name: str
    sources: tuple[Source, ...]
    views: tuple[View, ...]
    sinks: tuple[Sink, ...]
    bootstrap: str = "127.0.0.1:9092"
    kafka: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Security and other `kafka.*` options, for sources and sinks alike, without the prefix."""
    on_bad: BadRecordPolicy = BadRecordPolicy.FAIL
    dead_letter_topic: str | None = None
    trigger: str | None = None
    """How often a batch begins, as `1 second`; None: as soon as the last one is done."""
    rate_limit: int | None = None
    """Records per batch and query, at most."""
    checkpoint: str | None = None
    """Where checkpoints lie; None: in the pipeline's state directory. Executors of a cluster must reach it too."""
    spark: Mapping[str, str] = field(default_factory=dict)
    """Settings of the Spark session."""
    file: Path | None = None
