"""Runs pipelines on rows that a test provides, without a broker. All steps between source and sink are those of a real
run.

    def test_revenue():
        orders = [{"product": "tea", "quantity": 2, "price": 1.5}, b"not JSON"]
        result = run_pipeline("revenue.yaml", {"orders": orders})
        assert result.rows["revenue"] == [{"product": "tea", "revenue": 3.0}]
        assert [each.reason for each in result.dead_letters] == ["malformed"]

All rows are one batch, so each window is complete, regardless of the watermark.
"""

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from moldau.client.listener.dead_letters import PREFIX
from moldau.pipelines.definition import (
    BadRecordPolicy,
    Format,
    PipelineDefinition,
    PipelineError,
    Sink,
    SinkKind,
    Source,
)
from moldau.pipelines.spec.loader import check_definition, load
from moldau.pipelines.spec.python_file import Pipeline
from moldau.settings.option_parser import suggest_names

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql import types as T

_FIRST_TIME = datetime(2024, 1, 1, tzinfo=UTC)
"""The default timestamp of a source's first record. Each later record is one millisecond later."""


class Record(NamedTuple):
    """A record with all fields, for rows that need more than a key and a value."""

    value: Any
    """Bytes and None are used unchanged. Text is encoded as UTF-8. A mapping is encoded in the source's format."""
    key: bytes | str | None = None
    timestamp: datetime | None = None
    headers: Sequence[tuple[str, bytes | None]] = ()
    topic: str | None = None
    partition: int = 0


@dataclass(frozen=True)
class DeadLetter:
    source: str
    reason: str
    detail: str
    key: bytes | None
    value: bytes | None
    headers: Mapping[str, bytes | None]
    """All headers, including those that describe the error."""


@dataclass(frozen=True)
class PipelineResult:
    rows: Mapping[str, list[dict[str, Any]]]
    """By sink, the written rows, or all rows of the table after an upsert. Timestamps have a time zone."""
    records: Mapping[str, list[tuple[bytes | None, bytes | None]]] = field(default_factory=dict)
    """By sink, the keys and values of the written records. Only for sinks that write to a topic."""
    dead_letters: list[DeadLetter] = field(default_factory=list)
    """The bad records. Empty if the pipeline fails on bad records."""


def run_pipeline(
    pipeline: "PipelineDefinition | Pipeline | Path | str",
    rows: Mapping[str, Sequence[Any]],
    *,
    spark: "SparkSession | None" = None,
) -> PipelineResult:
    """Runs a pipeline or a pipeline file over the rows of each source.

    A row is a mapping, text, bytes, None (a tombstone), `(key, value)` or a `Record`. Without `spark`, the active
    session is used. If no session is active, a local session is started. Raises PipelineError for the same errors as a
    real run.
    """
    if isinstance(pipeline, Pipeline):
        pipeline = pipeline.definition()
    pipeline = check_definition(pipeline) if isinstance(pipeline, PipelineDefinition) else load(Path(pipeline))
    names = [each.name for each in pipeline.sources]
    for name in rows:
        if name not in names:
            raise PipelineError(
                f"rows are given for {name!r}, which is not a source of {pipeline.name}{suggest_names(name, names)}"
            )
    return _TestRun(spark or _session(), pipeline, rows).run()


def _session() -> "SparkSession":
    from pyspark.sql import SparkSession

    import moldau.spark

    active = SparkSession.getActiveSession()
    settings = {"spark.sql.shuffle.partitions": "2", "spark.ui.enabled": "false"}
    return active or moldau.spark.session("moldau-testing", master="local[2]", settings=settings, quiet=True)


class _TestRun:
    def __init__(self, spark: "SparkSession", pipeline: PipelineDefinition, rows: Mapping[str, Sequence[Any]]) -> None:
        self._spark = spark
        self._pipeline = pipeline
        self._raw_frames = {each.name: self._frame(each, rows.get(each.name, ())) for each in pipeline.sources}
        self._schemas = {each.name: self._schema(each) for each in pipeline.sources}

    def run(self) -> PipelineResult:
        from moldau.pipelines.planner.transformation import pipeline_errors, view_rows
        from moldau.pipelines.records.encoder import encode_records

        rows: dict[str, list[dict[str, Any]]] = {}
        records: dict[str, list[tuple[bytes | None, bytes | None]]] = {}
        for sink in self._pipeline.sinks:
            frame = view_rows(
                self._spark, self._pipeline, sink.view, lambda each: self._raw_frames[each.name], self._schemas
            )
            with pipeline_errors(f"the sink {sink.name}"):
                rows[sink.name] = self._rows(frame, sink)
                if sink.kind is SinkKind.TOPIC:
                    records[sink.name] = [
                        (each["key"], each["value"]) for each in _collect(encode_records(frame, sink))
                    ]
        return PipelineResult(rows, records, self._dead_letters())

    def _rows(self, frame: "DataFrame", sink: Sink) -> list[dict[str, Any]]:
        from moldau.pipelines.planner.sink_writers import prepare_for_sink
        from moldau.pipelines.records.bad_records import without_metadata

        if sink.kind is SinkKind.TOPIC:
            return _collect(without_metadata(frame))
        prepared = prepare_for_sink(frame, sink)
        return self._table(prepared, sink) if sink.mode == "upsert" else _collect(prepared)

    def _table(self, frame: "DataFrame", sink: Sink) -> list[dict[str, Any]]:
        """Returns the rows of a new table after an upsert of the frame."""
        from dataclasses import replace

        from moldau.pipelines.planner.sink_writers import upsert_function
        from moldau.spark.sink.delta_commits import open_table
        from moldau.spark.sink.delta_options import locate

        with tempfile.TemporaryDirectory(prefix="moldau-testing-") as folder:
            upsert_function(replace(sink, target=folder, options={}), "test")(frame, 0)
            table = open_table(locate(folder))
            return [] if table is None else _plain(table.to_pyarrow_table())

    def _dead_letters(self) -> list[DeadLetter]:
        from moldau.pipelines.planner.transformation import decode_and_check, pipeline_errors
        from moldau.pipelines.records.bad_records import dead_letter_records

        if self._pipeline.on_bad is BadRecordPolicy.FAIL:
            return []
        found = []
        for source in self._pipeline.sources:
            records = decode_and_check(self._raw_frames[source.name], source, self._schemas[source.name])
            with pipeline_errors(f"the dead letters of the source {source.name}"):
                letters = _collect(dead_letter_records(records, self._pipeline.name, source))
            found += [_dead_letter(source, each) for each in letters]
        return found

    def _frame(self, source: Source, rows: Sequence[Any]) -> "DataFrame":
        from moldau.pipelines.records.decoder import raw_schema

        if isinstance(rows, Mapping | str | bytes):
            raise PipelineError(f"the rows of {source.name} must be a list, not {type(rows).__name__}")
        table = [_raw_row(source, index, _record(source, each)) for index, each in enumerate(rows)]
        return self._spark.createDataFrame(table, raw_schema())

    def _schema(self, source: Source) -> "T.StructType":
        from moldau.pipelines.records.decoder import value_schema
        from moldau.pipelines.records.schema_inference import infer_schema

        if source.format is not Format.JSON or source.schema is not None:
            return value_schema(source)
        return value_schema(source, infer_schema(self._spark, self._raw_frames[source.name], source))


def _record(source: Source, given_row: Any) -> Record:
    if isinstance(given_row, Record):
        return given_row
    if isinstance(given_row, tuple):
        if len(given_row) != 2:
            raise PipelineError(f"a row of {source.name} is a value or (key, value), not {len(given_row)} things")
        return Record(given_row[1], given_row[0])
    return Record(given_row)


def _raw_row(source: Source, index: int, record: Record) -> tuple[Any, ...]:
    """Returns the record as a row with the columns of the data source, in order."""
    key = record.key.encode() if isinstance(record.key, str) else record.key
    topic = record.topic or (source.topics[0] if source.topics else source.name)
    time = record.timestamp or _FIRST_TIME + timedelta(milliseconds=index)
    return key, _bytes(source, record.value), topic, record.partition, index, time, 0, list(record.headers)


def _bytes(source: Source, value: Any) -> bytes | None:
    if value is None or isinstance(value, bytes | bytearray):
        return None if value is None else bytes(value)
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, Mapping) and source.format is Format.JSON:
        return json.dumps(value, default=_json).encode()
    if isinstance(value, Mapping) and source.format is Format.AVRO:
        from moldau.pipelines.records.avro_codec import confluent_prefix, encode_record

        prefix = confluent_prefix(0) if source.options.get("avro.wire") == "confluent" else b""
        return prefix + encode_record(dict(value), source.schema or "")
    raise PipelineError(
        f"a row of {source.name} is {type(value).__name__}: records in {source.format} are given as "
        f"{'mappings, ' if source.format in (Format.JSON, Format.AVRO) else ''}texts, bytes or None"
    )


def _json(value: Any) -> Any:
    if isinstance(value, datetime | date):
        return value.isoformat()
    return str(value)


def _dead_letter(source: Source, row: Mapping[str, Any]) -> DeadLetter:
    headers = {each["key"]: each["value"] for each in row["headers"]}
    return DeadLetter(
        source.name,
        headers[PREFIX + "reason"].decode(),
        headers[PREFIX + "detail"].decode(),
        row["key"],
        row["value"],
        headers,
    )


def _collect(frame: "DataFrame") -> list[dict[str, Any]]:
    return _plain(frame.toArrow())


def _plain(table: Any) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = table.to_pylist(maps_as_pydicts="strict")
    return rows
