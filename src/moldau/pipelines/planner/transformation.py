"""Transformation from records to the rows of a view, for real streams, tests and checks.

The steps are decoding, expectations, the source's function, the watermark, and the SQL and functions of the views.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from moldau.pipelines.definition import PipelineDefinition, PipelineError, Source, TransformFunction, View
from moldau.pipelines.error_summary import summarize_error
from moldau.pipelines.records.bad_records import apply_expectations, good_records
from moldau.pipelines.records.columns import METADATA
from moldau.pipelines.records.decoder import decode_records
from moldau.pipelines.spec.dependencies import dependencies_of, parameters_of
from moldau.settings.option_parser import suggest_names
from moldau.spark.errors import SparkSourceError

ReadRecords = Callable[[Source], DataFrame]
"""Returns the records of a source with the columns of `decoder.raw_schema`."""

_SQL_POSITION = re.compile(r"line (\d+),? pos (\d+)")


def decode_and_check(raw: DataFrame, source: Source, schema: T.StructType) -> DataFrame:
    """Returns the decoded records. Bad records are marked."""
    with pipeline_errors(f"the expectations of the source {source.name}"):
        return apply_expectations(decode_records(raw, source, schema), source.expectations)


def view_rows(
    spark: SparkSession, pipeline: PipelineDefinition, name: str, raw: ReadRecords, schemas: Mapping[str, T.StructType]
) -> DataFrame:
    """Returns the rows of a view or source. Raises PipelineError with the name of the view."""
    frames: dict[str, DataFrame] = {}
    parts = dependencies_of(pipeline, name)
    with _restored_views(spark, [each.name for each in parts]):
        for each in parts:
            if isinstance(each, Source):
                records = decode_and_check(raw(each), each, schemas[each.name])
                frames[each.name] = _source_view(good_records(records, each, pipeline.on_bad), each)
            else:
                frames[each.name] = _view(spark, each, frames)
            frames[each.name].createOrReplaceTempView(each.name)
    return frames[name]


def _source_view(frame: DataFrame, source: Source) -> DataFrame:
    if source.transform is not None and (parameters := parameters_of(source.transform)):
        frame = _call_function(f"the source {source.name}", source.transform, {parameters[0]: frame})
    if source.watermark is None:
        return frame
    column = source.watermark.column
    if column not in frame.columns:
        hint = suggest_names(column, frame.columns)
        raise PipelineError(f"the watermark of the source {source.name} is on {column!r}, which is not a column{hint}")
    kind = frame.schema[column].dataType
    if not isinstance(kind, T.TimestampType | T.TimestampNTZType):
        raise PipelineError(
            f"the watermark of the source {source.name} is on {column!r}, which is {kind.simpleString().upper()}: "
            f"it must be TIMESTAMP, as in schema: {column} TIMESTAMP"
        )
    return frame.withWatermark(column, source.watermark.delay)


def _view(spark: SparkSession, view: View, frames: Mapping[str, DataFrame]) -> DataFrame:
    what = f"the view {view.name}"
    if view.transform is not None:
        return _call_function(what, view.transform, {name: frames[name] for name in parameters_of(view.transform)})
    with pipeline_errors(what):
        frame = spark.sql(view.sql or "")
    duplicates = [name for index, name in enumerate(frame.columns) if name in frame.columns[:index]]
    if duplicates:
        hint = "; name the columns you want instead of *" if duplicates[0] in METADATA else ": rename one with AS"
        raise PipelineError(f"{what} has two columns called {duplicates[0]!r}{hint}")
    return frame


def _call_function(what: str, transform: TransformFunction, frames: Mapping[str, DataFrame]) -> DataFrame:
    try:
        frame = transform(**frames)
    except PySparkException as error:
        raise PipelineError(f"{what}: {_spark_error_text(error)}") from error
    except Exception as error:
        raise PipelineError(f"{what}: its function raised {type(error).__name__}: {error}") from error
    if not isinstance(frame, DataFrame):
        raise PipelineError(f"{what}: its function must return a DataFrame, not {type(frame).__name__}")
    return frame


@contextmanager
def pipeline_errors(what: str) -> Iterator[None]:
    """Translates Spark errors to PipelineError. The message starts with `what`."""
    try:
        yield
    except (PySparkException, SparkSourceError) as error:
        raise PipelineError(f"{what}: {_spark_error_text(error)}") from error


def _spark_error_text(error: Exception) -> str:
    position = _SQL_POSITION.search(str(error))
    where = "" if position is None else f" (line {position[1]}, column {int(position[2]) + 1} of the SQL)"
    return summarize_error(error) + where


@contextmanager
def _restored_views(spark: SparkSession, names: list[str]) -> Iterator[None]:
    """Restores the temporary views of these names at the end. Drops those that did not exist.

    Plans that use the views stay valid, because Spark resolved the names when the plans were built.
    """
    catalog = spark._jsparkSession.sessionState().catalog()
    previous = {name: spark.table(name) if catalog.getTempView(name).isDefined() else None for name in names}
    try:
        yield
    finally:
        for name, frame in previous.items():
            if frame is None:
                spark.catalog.dropTempView(name)
            else:
                frame.createOrReplaceTempView(name)
