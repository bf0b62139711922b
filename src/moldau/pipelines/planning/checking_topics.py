"""Whether the cluster is there, and the topics that a pipeline reads and writes."""

import asyncio
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from moldau.client.admin.admin import Admin
from moldau.client.admin.cluster import ConfigResource, ResourceType
from moldau.client.errors import KafkaError
from moldau.client.net.cluster import Cluster
from moldau.pipelines.definition import OnBad, Pipeline, PipelineError, SinkKind, Source
from moldau.pipelines.planning.connecting import cluster_settings
from moldau.pipelines.planning.findings import Finding, error, warning
from moldau.settings.values import nearest

ANSWER_MS = 5_000
"""How long the cluster may take, where the pipeline does not say."""
_AUTO_CREATE = "auto.create.topics.enable"


@dataclass(frozen=True)
class Topics:
    """What a cluster has."""

    names: Sequence[str]
    are_made_by_writing: bool


def ask(pipeline: Pipeline) -> Topics | Finding:
    """What the cluster says, or why it says nothing."""
    try:
        return asyncio.run(_asked({"request_timeout_ms": ANSWER_MS, **cluster_settings(pipeline)}))
    except PipelineError as failure:
        return error("kafka", str(failure))
    except KafkaError as failure:
        return error(
            "bootstrap",
            f"no answer from the cluster at {pipeline.bootstrap}: {failure}",
            "start a broker there (moldau serve), or change bootstrap:",
        )


async def _asked(settings: Mapping[str, object]) -> Topics:
    async with Cluster(**settings) as cluster:  # type: ignore[arg-type]
        await cluster.refresh(all_topics=True)
        return Topics(
            sorted(cluster.topics), await _makes_topics(Admin(cluster=cluster), min(cluster.brokers))
        )


async def _makes_topics(admin: Admin, broker: int) -> bool:
    resource = ConfigResource(ResourceType.BROKER, str(broker))
    try:
        answers = await admin.describe_configs([resource])
    except KafkaError:
        # Whoever may not ask this may still read and write.
        return False
    entries = answers[resource]
    if isinstance(entries, KafkaError):
        return False
    entry = entries.get(_AUTO_CREATE)
    return entry is not None and entry.value == "true"


def check_topics(pipeline: Pipeline, topics: Topics) -> Iterator[Finding]:
    for source in pipeline.sources:
        yield from _read(source, topics)
    for sink in pipeline.sinks:
        if sink.kind is SinkKind.TOPIC:
            yield from _written(f"sinks.{sink.name}.topic", sink.target, topics)
    if pipeline.on_bad is OnBad.DEAD_LETTER and pipeline.dead_letter_topic:
        yield from _written("dead_letters", pipeline.dead_letter_topic, topics)


def missing(source: Source, topics: Topics) -> list[str]:
    return [topic for topic in source.topics if topic not in topics.names]


def _read(source: Source, topics: Topics) -> Iterator[Finding]:
    where = f"sources.{source.name}"
    for topic in missing(source, topics):
        yield error(
            f"{where}.topic",
            f"there is no topic {topic}{nearest(topic, topics.names)}",
            f"moldau topic create {topic}, or name another",
        )
    if source.pattern is not None and not any(re.fullmatch(source.pattern, name) for name in topics.names):
        yield warning(
            f"{where}.pattern",
            f"no topic fits {source.pattern!r} yet",
            "topics that fit are picked up when they are there",
        )


def _written(where: str, topic: str, topics: Topics) -> Iterator[Finding]:
    if topic in topics.names:
        return
    told = f"there is no topic {topic}{nearest(topic, topics.names)}"
    if topics.are_made_by_writing:
        yield warning(where, told, "the first record makes it, with the broker's number of partitions")
    else:
        yield error(where, told, f"moldau topic create {topic}")
