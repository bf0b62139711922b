"""Detection of cycles. A cycle is a pipeline that reads its own output. No I/O."""

import re
from collections.abc import Iterator, Mapping

from moldau.pipelines.definition import BadRecordPolicy, PipelineDefinition, SinkKind, Source
from moldau.pipelines.spec.dependencies import sources_of

_BOOTSTRAP = "kafka.bootstrap.servers"


def find_cycles(pipeline: PipelineDefinition) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yields, for each cycle, its key path in the pipeline file and a message."""
    dead = pipeline.dead_letter_topic
    if dead and pipeline.on_bad is BadRecordPolicy.DEAD_LETTER:
        for source in _readers(pipeline, dead, {}):
            reader = f"{dead} is read by the source {source.name}{_pattern_note(source)}"
            yield ("dead_letters",), f"{reader}: bad records would cycle forever; use another topic for them"
    sources_by_sink = {sink.name: [each.name for each in sources_of(pipeline, sink.view)] for sink in pipeline.sinks}
    readers_by_sink = {
        sink.name: _readers(pipeline, sink.target, sink.options) if sink.kind is SinkKind.TOPIC else []
        for sink in pipeline.sinks
    }
    for sink in pipeline.sinks:
        for source in readers_by_sink[sink.name]:
            if _reaches(source.name, sink.name, sources_by_sink, readers_by_sink):
                reader = f"{sink.target} is read by the source {source.name}{_pattern_note(source)}"
                where = ("sinks", sink.name, "topic")
                yield where, f"{reader}, which feeds this sink: its rows would cycle forever"


def _readers(pipeline: PipelineDefinition, topic: str, options: Mapping[str, str]) -> list[Source]:
    """Returns the sources that read this topic. `options` may name another cluster than the pipeline's."""
    cluster = options.get(_BOOTSTRAP, pipeline.bootstrap)
    return [
        each
        for each in pipeline.sources
        if each.options.get(_BOOTSTRAP, pipeline.bootstrap) == cluster and _reads(each, topic)
    ]


def _reads(source: Source, topic: str) -> bool:
    if source.pattern is None:
        return topic in source.topics
    return re.fullmatch(source.pattern, topic) is not None


def _pattern_note(source: Source) -> str:
    return "" if source.pattern is None else f" ({source.pattern!r} matches it)"


def _reaches(
    source: str, sink: str, sources_by_sink: Mapping[str, list[str]], readers_by_sink: Mapping[str, list[Source]]
) -> bool:
    """Returns whether records of a source reach a sink, directly or through topics of other sinks."""
    reached, queue = {source}, [source]
    while queue:
        name = queue.pop()
        for each, sources in sources_by_sink.items():
            if name not in sources:
                continue
            if each == sink:
                return True
            new = [reader.name for reader in readers_by_sink[each] if reader.name not in reached]
            reached.update(new)
            queue += new
    return False
