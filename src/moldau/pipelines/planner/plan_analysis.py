"""Analysis of streaming plans over empty streams: supported output modes and required columns."""

import atexit
import shutil
import tempfile
from functools import cache
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from moldau.pipelines.definition import PipelineError, Sink, SinkKind, Source
from moldau.pipelines.error_summary import summarize_error
from moldau.pipelines.records.decoder import raw_schema


def empty_stream(spark: SparkSession, source: Source) -> DataFrame:
    """Returns a stream without records. The leaf of its plan has columns `<source>:<name>`, for `required_columns`."""
    schema = raw_schema()
    leaf = spark.readStream.schema(
        ", ".join(f"`{source.name}:{field.name}` {field.dataType.simpleString()}" for field in schema.fields)
    )
    frame = leaf.format("parquet").load(_empty_directory())
    return frame.selectExpr(*[f"`{source.name}:{name}` AS {name}" for name in schema.names])


@cache
def _empty_directory() -> str:
    path = tempfile.mkdtemp(prefix="moldau-empty-stream-")
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path


def unsupported_reason(frame: DataFrame, mode: str) -> str | None:
    """Returns the reason why Spark does not support the plan in this output mode, or None if Spark supports it."""
    jvm: Any = frame.sparkSession._jvm
    output = jvm.org.apache.spark.sql.streaming.OutputMode
    modes = {"append": output.Append, "update": output.Update, "complete": output.Complete}
    checker = jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
    try:
        checker.checkForStreaming(_analyzed(frame), modes[mode]())
    except PySparkException as error:
        return summarize_error(error)
    return None


def supported_mode(frame: DataFrame, *candidates: str) -> str:
    """Returns the first supported mode. If there is none, returns the first candidate, which Spark rejects."""
    return next((mode for mode in candidates if unsupported_reason(frame, mode) is None), candidates[0])


def required_columns(frame: DataFrame, source: Source) -> list[str]:
    """Returns the record columns of a source that a frame needs. The frame must be built on `empty_stream`."""
    state = frame.sparkSession._jsparkSession.sessionState()
    plan: Any = state.optimizer().execute(_analyzed(frame))
    used = _expression_ids(plan.output())
    names: dict[int, str] = {}
    _collect_attributes(plan, used, names)
    prefix = f"{source.name}:"
    found = {names[id].removeprefix(prefix) for id in used if names.get(id, "").startswith(prefix)}
    return [name for name in raw_schema().names if name in found]


def _analyzed(frame: DataFrame) -> Any:
    return frame._jdf.queryExecution().analyzed()


def _collect_attributes(node: Any, used: set[int], names: dict[int, str]) -> None:
    """Adds the ids of attributes that the plan uses to `used`. Adds the names of the leaves' attributes to `names`."""
    children = _scala_items(node.children())
    if not children:
        names.update({each.exprId().id(): each.name() for each in _scala_items(node.output())})
        return
    used |= _expression_ids(node.references().toSeq())
    for each in (*children, *_scala_items(node.subqueries())):
        _collect_attributes(each, used, names)


def _expression_ids(attributes: Any) -> set[int]:
    return {each.exprId().id() for each in _scala_items(attributes)}


def _scala_items(scala: Any) -> list[Any]:
    return [scala.apply(index) for index in range(scala.size())]


def output_mode_problem(frame: DataFrame, sink: Sink) -> tuple[str, str] | None:
    """Returns the problem with the sink's output mode and its fix, or None. `frame` is from `prepare_for_sink`."""
    tried: tuple[str, ...] = ("update", "append") if sink.mode == "upsert" else (sink.mode,)
    if sink.kind is SinkKind.CONSOLE:
        tried = (sink.mode, "append", "complete")
    reasons = [unsupported_reason(frame, mode) for mode in tried]
    if None in reasons:
        return None
    others = [mode for mode in ("append", "update", "complete") if unsupported_reason(frame, mode) is None]
    fix = f"mode: {' or '.join(others)}" if others else "see Spark's guide to structured streaming"
    if sink.mode == "append" and others:
        fix += ", or a watermark on its source and a window in GROUP BY"
    return reasons[0] or "", fix


def check_output_mode(frame: DataFrame, sink: Sink) -> None:
    """Raises PipelineError for an unsupported output mode."""
    problem = output_mode_problem(frame, sink)
    if problem is not None:
        what, fix = problem
        raise PipelineError(f"the sink {sink.name}: {what.rstrip('.')}. What helps: {fix}")
