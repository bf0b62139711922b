"""Whether Spark can write a view in the mode that its sink has, and what to do where it cannot."""

from pyspark.sql import DataFrame

from moldau.pipelines.definition import PipelineError, Sink, SinkKind
from moldau.pipelines.planner.plan_analysis import unsupported_reason


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
