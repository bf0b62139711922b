"""Asks Spark about a streaming plan before anything is started: which output modes it has, and which columns of the
records it needs. The plans stand on an empty stream, so no cluster is asked."""

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
    """A stream with the columns of records and none of these; whose columns they are can be seen in the plan."""
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
    """What Spark cannot do in this mode, in its words; None where it can."""
    jvm: Any = frame.sparkSession._jvm
    output = jvm.org.apache.spark.sql.streaming.OutputMode
    modes = {"append": output.Append, "update": output.Update, "complete": output.Complete}
    checker = jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
    try:
        checker.checkForStreaming(_analyzed(frame), modes[mode]())
    except PySparkException as error:
        return summarize_error(error)
    return None


def supported_mode(frame: DataFrame, *wanted: str) -> str:
    """The first of these modes that Spark has for the plan; where it has none the first of all, which will tell why."""
    return next((mode for mode in wanted if unsupported_reason(frame, mode) is None), wanted[0])


def required_columns(frame: DataFrame, source: Source) -> list[str]:
    """Those columns of the records of a source that a frame over its `empty_stream` needs."""
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
    """Notes the attributes that are used anywhere, and what those of the leaves are called."""
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
    """What is wrong, and what to do; of a frame that is `prepare_for_sink` the sink."""
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
    """Raises PipelineError."""
    problem = output_mode_problem(frame, sink)
    if problem is not None:
        what, fix = problem
        raise PipelineError(f"the sink {sink.name}: {what.rstrip('.')}. What helps: {fix}")
