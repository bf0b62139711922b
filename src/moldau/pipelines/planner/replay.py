"""The effects of a replay on each sink, which are shown before the replay starts. No I/O."""

from collections.abc import Iterator
from dataclasses import replace

from moldau.pipelines.definition import PipelineDefinition, Sink, SinkKind
from moldau.pipelines.runtime.state_directory import Generations
from moldau.pipelines.runtime.times import EARLIEST


def describe_replay(pipeline: PipelineDefinition, start: str, generations: Generations) -> Iterator[str]:
    new = max(each.number for each in generations.all) + 1
    since = "from the earliest record" if start == EARLIEST else f"from {start}"
    yield f"{pipeline.name} reads {since} again, as generation {new}:"
    for sink in pipeline.sinks:
        yield f"  {sink.name} ({sink.label}): {_replay_effect(sink, new)}"
    if pipeline.dead_letter_topic is not None:
        yield f"  dead letters (topic {pipeline.dead_letter_topic}): are written again."
    if start != EARLIEST and any(source.watermark is not None for source in pipeline.sources):
        yield "  Windows that started before that time are computed from later records only."
    yield (
        f"Generation {generations.current} stays unchanged; `moldau pipeline run {pipeline.file or 'FILE'} "
        f"--generation {generations.current}` returns to it."
    )


def sink_for_generation(sink: Sink, generation: int) -> Sink:
    """Returns the sink of a generation. Each generation of a Parquet sink has its own directory.

    Spark's Parquet sink recognises batches by number. In a shared directory it would skip the batches of a replay,
    because their numbers start at 0 again.
    """
    if sink.kind is not SinkKind.PARQUET or generation == 1:
        return sink
    return replace(sink, target=f"{sink.target.rstrip('/')}.{generation}")


def _replay_effect(sink: Sink, generation: int) -> str:
    if sink.mode == "upsert":
        return "rows with the same key are replaced, without duplicates; until it has caught up they have old values."
    if sink.kind is SinkKind.DELTA and sink.mode == "complete":
        return "is computed again."
    if sink.kind is SinkKind.CONSOLE:
        return "is printed again."
    if sink.kind is SinkKind.PARQUET:
        target = sink_for_generation(sink, generation).target
        return f"everything since then goes to {target}; existing files stay unchanged."
    return "everything since then is written again."
