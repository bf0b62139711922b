"""Spark writers for each kind of sink."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, Row

from moldau.pipelines.definition import PipelineDefinition, PipelineError, Sink, SinkKind
from moldau.pipelines.planner.connection import connection_options
from moldau.pipelines.planner.plan_analysis import supported_mode
from moldau.pipelines.planner.topic_streams import data_source_options
from moldau.pipelines.records.bad_records import without_metadata
from moldau.pipelines.records.columns import METADATA
from moldau.pipelines.records.encoder import check_column, encode_records

CONSOLE_ROWS_MAX = 20


@dataclass(frozen=True, slots=True)
class ConsoleBatch:
    """The rows of a batch for a console sink."""

    sink: Sink
    batch_id: int
    columns: list[str]
    rows: list[Row]
    is_truncated: bool
    """Whether the batch has more rows than `rows`."""


ShowBatch = Callable[[ConsoleBatch], None]


def prepare_for_sink(frame: DataFrame, sink: Sink) -> DataFrame:
    """Returns the rows in the form that the sink needs. Raises PipelineError if the columns do not match."""
    if sink.kind is SinkKind.TOPIC:
        return encode_records(frame, sink)
    for name in (*sink.key, *sink.order_by, *sink.partition_by):
        check_column(frame, name, f"the sink {sink.name}")
    # Keep metadata columns for an upsert, which can order and delete rows by them. `upsert_function` drops them later.
    return frame if sink.mode == "upsert" else without_metadata(frame, sink.partition_by)


def stored_columns(frame: DataFrame, sink: Sink) -> DataFrame:
    """Returns the frame with only the columns that are stored in the table."""
    return frame.drop(*_unstored_metadata(frame, sink)) if sink.mode == "upsert" else frame


def _unstored_metadata(frame: DataFrame, sink: Sink) -> list[str]:
    kept_columns = (*sink.key, *sink.partition_by)
    return [name for name in METADATA if name in frame.columns and name not in kept_columns]


def sink_writer(frame: DataFrame, sink: Sink, pipeline: PipelineDefinition, app_id: str, show: ShowBatch) -> Any:
    """Returns Spark's writer without checkpoint and trigger. `frame` is a result of `prepare_for_sink`."""
    if sink.kind is SinkKind.TOPIC:
        options = {**data_source_options(sink.options), "includeHeaders": "false"}
        return topic_writer(frame, pipeline, sink.target, options, sink.mode)
    if sink.kind is SinkKind.PARQUET:
        stream = frame.writeStream.format("parquet").option("path", sink.target).options(**sink.options)
        return stream.partitionBy(*sink.partition_by) if sink.partition_by else stream
    if sink.kind is SinkKind.DELTA:
        return _delta(frame, sink, app_id)
    if sink.kind is SinkKind.POSTGRES:
        modes = ("update", "append") if sink.mode == "upsert" else ("append",)
        return frame.writeStream.outputMode(supported_mode(frame, *modes)).foreachBatch(_postgres(sink, app_id))
    mode = supported_mode(frame, sink.mode, "append", "complete")
    return frame.writeStream.outputMode(mode).foreachBatch(_console_function(sink, show))


def topic_writer(
    frame: DataFrame, pipeline: PipelineDefinition, topic: str, options: Mapping[str, str], mode: str = "append"
) -> Any:
    options = {**connection_options(pipeline), **options, "topic": topic}
    if mode == "append":
        return frame.writeStream.format("moldau").options(**options)

    def append(batch: DataFrame, batch_id: int) -> None:
        batch.write.format("moldau").mode("append").options(**options, batchId=str(batch_id)).save()

    # Use foreachBatch, because Spark rejects `update` for Python data sources, and overwrites in the mode `complete`.
    return frame.writeStream.outputMode(mode).foreachBatch(append)


def _delta(frame: DataFrame, sink: Sink, app_id: str) -> Any:
    if sink.mode == "append":
        from moldau.spark.sink.delta import DeltaSink

        frame.sparkSession.dataSource.register(DeltaSink)
        stream = frame.writeStream.format(DeltaSink.name()).options(**sink.options)
        stream = stream.option("path", sink.target).option("appId", app_id)
        return stream.option("partitionBy", ",".join(sink.partition_by)) if sink.partition_by else stream
    if sink.mode == "complete":
        return frame.writeStream.outputMode("complete").foreachBatch(_overwrite_function(sink, app_id))
    mode = supported_mode(frame, "update", "append")
    return frame.writeStream.outputMode(mode).foreachBatch(upsert_function(sink, app_id))


def _postgres(sink: Sink, app_id: str) -> Callable[[DataFrame, int], None]:
    with _postgres_extra(sink):
        from moldau.spark.sink.postgres import write_batch

    def write(batch: DataFrame, batch_id: int) -> None:
        is_upsert = sink.mode == "upsert"
        write_batch(
            batch,
            batch_id,
            sink.url,
            sink.target,
            app_id,
            key=sink.key,
            order_by=upsert_order(sink, batch.columns) if is_upsert else (),
            delete_when=sink.delete_when,
            leave_out=_unstored_metadata(batch, sink) if is_upsert else (),
        )

    return write


def check_postgres(frame: DataFrame, sink: Sink) -> None:
    """Raises an error if the database cannot be reached, or if the rows do not fit its table."""
    with _postgres_extra(sink):
        from moldau.spark.sink.postgres import check_table, stored_schema
    order_by = upsert_order(sink, frame.columns) if sink.mode == "upsert" else ()
    leave_out = _unstored_metadata(frame, sink) if sink.mode == "upsert" else ()
    schema = stored_schema(frame.schema, sink.key, order_by, sink.delete_when, leave_out)
    check_table(sink.url, sink.target, schema, sink.key)


@contextmanager
def _postgres_extra(sink: Sink) -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in ("psycopg", "psycopg_binary"):
            raise
        raise PipelineError(
            f"the sink {sink.name} writes to Postgres, but psycopg is not installed: pip install 'moldau[postgres]'"
        ) from None


def upsert_order(sink: Sink, columns: Sequence[str]) -> tuple[str, ...]:
    """Returns the columns that determine the last row of a key: `order_by`, then the offset if it is a column."""
    has_offset = "_offset" in columns and "_offset" not in sink.order_by
    return (*sink.order_by, "_offset") if has_offset else sink.order_by


def upsert_function(sink: Sink, app_id: str) -> Callable[[DataFrame, int], None]:
    """Returns the foreachBatch function of an upsert into a Delta table."""
    from moldau.spark.sink.delta_upsert import upsert

    def merge(batch: DataFrame, batch_id: int) -> None:
        upsert(
            batch,
            batch_id,
            sink.target,
            app_id,
            sink.key,
            upsert_order(sink, batch.columns),
            sink.delete_when,
            partition_by=sink.partition_by,
            storage_options=_storage_options(sink),
            leave_out=_unstored_metadata(batch, sink),
        )

    return merge


def _overwrite_function(sink: Sink, app_id: str) -> Callable[[DataFrame, int], None]:
    def overwrite(batch: DataFrame, batch_id: int) -> None:
        from deltalake import write_deltalake

        from moldau.spark.sink.delta_commits import batch_commit_properties, is_batch_committed, open_table
        from moldau.spark.sink.delta_options import locate

        location = locate(sink.target, _storage_options(sink))
        if is_batch_committed(open_table(location), app_id, batch_id):
            return
        write_deltalake(
            location.path,
            batch.toArrow(),
            mode="overwrite",
            partition_by=list(sink.partition_by) or None,
            storage_options=location.options,
            commit_properties=batch_commit_properties(app_id, batch_id),
        )

    return overwrite


def _storage_options(sink: Sink) -> dict[str, str]:
    unknown = [name for name in sink.options if not name.startswith("storage.")]
    if unknown:
        raise PipelineError(
            f"the sink {sink.name} has no option {unknown[0]!r} in mode {sink.mode}: there are storage.<name> ones"
        )
    return {name.removeprefix("storage."): value for name, value in sink.options.items()}


def _console_function(sink: Sink, show: ShowBatch) -> Callable[[DataFrame, int], None]:
    def show_batch(batch: DataFrame, batch_id: int) -> None:
        rows = batch.limit(CONSOLE_ROWS_MAX + 1).collect()
        is_truncated = len(rows) > CONSOLE_ROWS_MAX
        show(ConsoleBatch(sink, batch_id, batch.columns, rows[:CONSOLE_ROWS_MAX], is_truncated))

    return show_batch
