"""Pipelines in tests: rows in, rows out, no broker. Decoding, expectations, transformation and encoding are those of a
real run; in the place of topics there are the rows of the test.

    def test_revenue():
        orders = [{"product": "tea", "quantity": 2, "price": 1.5}, b"not JSON"]
        result = run_pipeline("revenue.yaml", {"orders": orders})
        assert result.rows["revenue"] == [{"product": "tea", "revenue": 3.0}]
        assert [each.reason for each in result.dead_letters] == ["malformed"]

All rows are one batch, so a window is told of once, with all its rows, whatever the watermark.
"""

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from moldau.pipelines.definition import Format, OnBad, Pipeline, PipelineError, Sink, SinkKind, Source
from moldau.pipelines.form.loading import checked, load
from moldau.pipelines.form.python_form import Pipeline as PythonPipeline
from moldau.pipelines.records.error_headers import PREFIX
from moldau.settings.values import nearest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql import types as T

_FIRST_TIME = datetime(2024, 1, 1, tzinfo=UTC)
"""Records that have no time of their own are from here on, a millisecond apart."""


class Record(NamedTuple):
    """A record in all detail, where a value, or a key and a value, does not say enough."""

    value: Any
    """Bytes or None as they are; a mapping or a text in the source's format."""
    key: bytes | str | None = None
    timestamp: datetime | None = None
    headers: Sequence[tuple[str, bytes | None]] = ()
    topic: str | None = None
    partition: int = 0


@dataclass(frozen=True)
class DeadLetter:
    source: str
    reason: str
    """`malformed`, `schema_mismatch` or `expectation`."""
    detail: str
    key: bytes | None
    value: bytes | None
    headers: Mapping[str, bytes | None]
    """All of them, the ones that tell of the error too."""


@dataclass(frozen=True)
class PipelineResult:
    rows: Mapping[str, list[dict[str, Any]]]
    """By sink: the rows that it gets; for an upsert the table. Times have a zone."""
    records: Mapping[str, list[tuple[bytes | None, bytes | None]]] = field(default_factory=dict)
    """By sink, for topics: key and value."""
    dead_letters: list[DeadLetter] = field(default_factory=list)
    """Whatever becomes of bad records in a run; none where they fail it."""


def run_pipeline(
    pipeline: "Pipeline | PythonPipeline | Path | str",
    rows: Mapping[str, Sequence[Any]],
    *,
    spark: "SparkSession | None" = None,
) -> PipelineResult:
    """Runs a pipeline, or one from its file, over the rows of each source: mappings, texts, bytes, None for tombstones,
    `(key, value)`, or a `Record`. Raises PipelineError like a run would, also for a bad record where those fail it.

    Without a session the active one is used, or a small local one is started.
    """
    if isinstance(pipeline, PythonPipeline):
        pipeline = pipeline.definition()
    pipeline = checked(pipeline) if isinstance(pipeline, Pipeline) else load(Path(pipeline))
    names = [each.name for each in pipeline.sources]
    for name in rows:
        if name not in names:
            raise PipelineError(
                f"rows are given for {name!r}, which is no source of {pipeline.name}"
                f"{nearest(name, names) or '; there are ' + ', '.join(names)}"
            )
    return _Trial(spark or _session(), pipeline, rows).run()


def _session() -> "SparkSession":
    from pyspark.sql import SparkSession

    import moldau.spark

    active = SparkSession.getActiveSession()
    settings = {"spark.sql.shuffle.partitions": "2", "spark.ui.enabled": "false"}
    return active or moldau.spark.session("moldau-testing", master="local[2]", settings=settings, quiet=True)


class _Trial:
    def __init__(self, spark: "SparkSession", pipeline: Pipeline, rows: Mapping[str, Sequence[Any]]) -> None:
        self._spark = spark
        self._pipeline = pipeline
        self._raw = {each.name: self._frame(each, rows.get(each.name, ())) for each in pipeline.sources}
        self._schemas = {each.name: self._schema(each) for each in pipeline.sources}

    def run(self) -> PipelineResult:
        from moldau.pipelines.planning.transforming import rows_of, told_of
        from moldau.pipelines.records.encoding import encoded

        rows: dict[str, list[dict[str, Any]]] = {}
        records: dict[str, list[tuple[bytes | None, bytes | None]]] = {}
        for sink in self._pipeline.sinks:
            frame = rows_of(
                self._spark, self._pipeline, sink.view, lambda each: self._raw[each.name], self._schemas
            )
            with told_of(f"the sink {sink.name}"):
                rows[sink.name] = self._rows(frame, sink)
                if sink.kind is SinkKind.TOPIC:
                    records[sink.name] = [
                        (each["key"], each["value"]) for each in _collected(encoded(frame, sink))
                    ]
        return PipelineResult(rows, records, self._dead_letters())

    def _rows(self, frame: "DataFrame", sink: Sink) -> list[dict[str, Any]]:
        from moldau.pipelines.planning.writing import shaped_for
        from moldau.pipelines.records.bad_records import without_metadata

        if sink.kind is SinkKind.TOPIC:
            return _collected(without_metadata(frame))
        shaped = shaped_for(frame, sink)
        return self._table(shaped, sink) if sink.mode == "upsert" else _collected(shaped)

    def _table(self, frame: "DataFrame", sink: Sink) -> list[dict[str, Any]]:
        """What is in a table that knew nothing before."""
        from dataclasses import replace

        from moldau.pipelines.planning.writing import upserting
        from moldau.spark.sink.delta_commits import open_table
        from moldau.spark.sink.delta_options import locate

        with tempfile.TemporaryDirectory(prefix="moldau-testing-") as folder:
            upserting(replace(sink, target=folder, options={}), "test")(frame, 0)
            table = open_table(locate(folder))
            return [] if table is None else _plain(table.to_pyarrow_table())

    def _dead_letters(self) -> list[DeadLetter]:
        from moldau.pipelines.planning.transforming import judged, told_of
        from moldau.pipelines.records.bad_records import dead_letters

        if self._pipeline.on_bad is OnBad.FAIL:
            return []
        found = []
        for source in self._pipeline.sources:
            records = judged(self._raw[source.name], source, self._schemas[source.name])
            with told_of(f"the dead letters of the source {source.name}"):
                letters = _collected(dead_letters(records, self._pipeline.name, source))
            found += [_dead_letter(source, each) for each in letters]
        return found

    def _frame(self, source: Source, rows: Sequence[Any]) -> "DataFrame":
        from moldau.pipelines.records.decoding import raw_schema

        if isinstance(rows, Mapping | str | bytes):
            raise PipelineError(f"the rows of {source.name} must be a list, not {type(rows).__name__}")
        table = [_raw(source, index, _record(source, each)) for index, each in enumerate(rows)]
        return self._spark.createDataFrame(table, raw_schema())

    def _schema(self, source: Source) -> "T.StructType":
        from moldau.pipelines.records.decoding import value_schema
        from moldau.pipelines.records.inference import infer

        if source.format is not Format.JSON or source.schema is not None:
            return value_schema(source)
        return value_schema(source, infer(self._spark, self._raw[source.name], source))


def _record(source: Source, given: Any) -> Record:
    if isinstance(given, Record):
        return given
    if isinstance(given, tuple):
        if len(given) != 2:
            raise PipelineError(f"a row of {source.name} is a value or (key, value), not {len(given)} things")
        return Record(given[1], given[0])
    return Record(given)


def _raw(source: Source, index: int, record: Record) -> tuple[Any, ...]:
    """In the order of the data source's columns."""
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
        from moldau.pipelines.records.avro_codec import confluent_prefix, written

        prefix = confluent_prefix(0) if source.options.get("avro.wire") == "confluent" else b""
        return prefix + written(dict(value), source.schema or "")
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


def _collected(frame: "DataFrame") -> list[dict[str, Any]]:
    return _plain(frame.toArrow())


def _plain(table: Any) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = table.to_pylist(maps_as_pydicts="strict")
    return rows
