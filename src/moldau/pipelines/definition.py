"""The definition of a pipeline: sources, views and sinks.

A pipeline runs one streaming query per sink. It also runs one per source whose bad records go to a dead-letter topic.
Each query has its own checkpoint and consumer group, so a query that fails or lags does not delay the others.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"

TransformFunction = Callable[..., Any]
"""A function from DataFrames to a DataFrame. Its parameter names are the names of the views that it receives."""


class PipelineError(Exception):
    """The error of a pipeline that cannot be loaded, checked or run. The message names the cause and what to do."""


class Format(StrEnum):
    """The encoding of record values."""

    BYTES = "bytes"
    STRING = "string"
    JSON = "json"
    AVRO = "avro"


class SinkKind(StrEnum):
    TOPIC = "topic"
    PARQUET = "parquet"
    DELTA = "delta"
    POSTGRES = "postgres"
    CONSOLE = "console"


class BadRecordPolicy(StrEnum):
    """What to do with records that cannot be decoded or that violate an expectation."""

    FAIL = "fail"
    DROP = "drop"
    DEAD_LETTER = "dead_letter"


@dataclass(frozen=True, slots=True)
class Watermark:
    column: str
    delay: str
    """A Spark interval, for example `10 seconds`."""


@dataclass(frozen=True, slots=True)
class Source:
    """A view over topics. Its columns are those of the decoded values and `records.columns.METADATA`."""

    name: str
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    """A regular expression for topic names; None if `topics` is set."""
    format: Format = Format.JSON
    schema: str | None = None
    """Spark DDL, or an Avro schema as JSON. None infers the schema of a JSON source at the first run."""
    key_format: Format = Format.STRING
    starting: str = "earliest"
    """`earliest`, `latest` or an ISO 8601 time. Applies to the first run; later runs resume from the checkpoint."""
    watermark: Watermark | None = None
    expectations: Mapping[str, str] = field(default_factory=dict)
    """SQL conditions on the columns, by name. A condition that is null is violated."""
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Additional options of the data source."""
    transform: TransformFunction | None = None


@dataclass(frozen=True, slots=True)
class View:
    """A step of the transformation: an SQL query over sources and earlier views, or a function."""

    name: str
    sql: str | None = None
    transform: TransformFunction | None = None


@dataclass(frozen=True, slots=True)
class Sink:
    name: str
    kind: SinkKind
    target: str = ""
    """The topic, the table's directory, or the table in Postgres; empty for the console."""
    view: str = ""
    """The view or source that is written."""
    mode: str = "append"
    """`append`, `update` or `complete` as in Spark; for Delta and Postgres also `upsert`."""
    url: str = field(default="", repr=False)
    """The URL of the Postgres database. It may contain a password, so it is not stored and not shown."""
    key: tuple[str, ...] = ()
    """The columns of the record key of a topic, or the columns that identify a row in an upsert."""
    order_by: tuple[str, ...] = ()
    """The columns that order the rows of a batch in an upsert. Of the rows with one key, the last row is stored."""
    delete_when: str | None = None
    """An SQL condition. A row that satisfies it deletes the row with its key from an upsert table, or writes a
    tombstone for its key to a topic."""
    format: Format = Format.JSON
    schema: str | None = None
    """An Avro schema as JSON, for the records of a topic."""
    partition_by: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def label(self) -> str:
        """The kind and target, such as `topic revenue`. Checkpoints store it."""
        return f"{self.kind} {self.target}".strip()


@dataclass(frozen=True, slots=True)
class PipelineDefinition:
    name: str
    sources: tuple[Source, ...]
    views: tuple[View, ...]
    sinks: tuple[Sink, ...]
    bootstrap: str = DEFAULT_BOOTSTRAP
    kafka: Mapping[str, str] = field(default_factory=dict, repr=False)
    """`kafka.*` options for all sources and sinks, without the prefix."""
    on_bad: BadRecordPolicy = BadRecordPolicy.FAIL
    dead_letter_topic: str | None = None
    trigger: str | None = None
    """The trigger interval, for example `1 second`. None starts a batch as soon as the previous one ends."""
    rate_limit: int | None = None
    """The maximum number of records per batch and query."""
    checkpoint: str | None = None
    """The directory of the checkpoints. Executors must have access to it. None uses the pipeline's state directory."""
    publish_progress: bool = True
    """Whether a run writes reports of its queries to the topic `query_report.REPORT_TOPIC`."""
    spark: Mapping[str, str] = field(default_factory=dict)
    file: Path | None = None
