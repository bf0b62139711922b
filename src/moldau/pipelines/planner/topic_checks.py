"""Checks of the cluster and of the topics that a pipeline reads and writes."""

import asyncio
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from moldau.client.admin.admin import Admin
from moldau.client.admin.types import ConfigResource, ResourceType
from moldau.client.errors import KafkaError
from moldau.client.net.cluster import Cluster
from moldau.pipelines.definition import BadRecordPolicy, PipelineDefinition, PipelineError, SinkKind, Source
from moldau.pipelines.planner.connection import cluster_settings
from moldau.settings.option_parser import did_you_mean

CLUSTER_TIMEOUT_MS = 5_000
"""The request timeout, unless the pipeline sets one."""


@dataclass(frozen=True, slots=True)
class Finding:
    severity: Literal["error", "warning"]
    """An error prevents the pipeline from running; a warning does not."""
    where: str
    """The key path in the pipeline file, such as `sources.orders.topic`."""
    message: str
    fix: str = ""


def error(where: str, message: str, fix: str = "") -> Finding:
    return Finding("error", where, message, fix)


def warning(where: str, message: str, fix: str = "") -> Finding:
    return Finding("warning", where, message, fix)


@dataclass(frozen=True)
class ClusterTopics:
    names: list[str]
    are_auto_created: bool


def check_cluster(pipeline: PipelineDefinition, findings: list[Finding]) -> ClusterTopics | None:
    """Adds findings about cluster and topics. Returns the cluster's topics, or None if they cannot be fetched."""
    try:
        topics = asyncio.run(_fetch_topics({"request_timeout_ms": CLUSTER_TIMEOUT_MS, **cluster_settings(pipeline)}))
    except PipelineError as failure:
        findings.append(error("kafka", str(failure)))
        return None
    except KafkaError as failure:
        what = f"no response from the cluster at {pipeline.bootstrap}: {failure}"
        findings.append(error("bootstrap", what, "start a broker there (moldau serve), or change bootstrap:"))
        return None
    findings += _check_topics(pipeline, topics)
    return topics


async def _fetch_topics(settings: Mapping[str, object]) -> ClusterTopics:
    async with Cluster(**settings) as cluster:  # type: ignore[arg-type]
        await cluster.refresh(all_topics=True)
        resource = ConfigResource(ResourceType.BROKER, str(min(cluster.brokers)))
        try:
            entries = (await Admin(cluster=cluster).describe_configs([resource]))[resource]
        except KafkaError as failure:
            entries = failure
        # Ignore errors, because a client without permission to describe configs can still read and write records.
        entry = None if isinstance(entries, KafkaError) else entries.get("auto.create.topics.enable")
        return ClusterTopics(sorted(cluster.topics), entry is not None and entry.value == "true")


def _check_topics(pipeline: PipelineDefinition, topics: ClusterTopics) -> Iterator[Finding]:
    for source in pipeline.sources:
        yield from _check_read_topics(source, topics)
    for sink in pipeline.sinks:
        if sink.kind is SinkKind.TOPIC:
            yield from _check_written_topic(f"sinks.{sink.name}.topic", sink.target, topics)
    if pipeline.on_bad is BadRecordPolicy.DEAD_LETTER and pipeline.dead_letter_topic:
        yield from _check_written_topic("dead_letters", pipeline.dead_letter_topic, topics)


def missing_topics(source: Source, topics: ClusterTopics) -> list[str]:
    return [topic for topic in source.topics if topic not in topics.names]


def _check_read_topics(source: Source, topics: ClusterTopics) -> Iterator[Finding]:
    where = f"sources.{source.name}"
    for topic in missing_topics(source, topics):
        fix = f"moldau topic create {topic}, or name another"
        yield error(f"{where}.topic", _missing_text(topic, topics), fix)
    if source.pattern is not None and not any(re.fullmatch(source.pattern, name) for name in topics.names):
        fix = "matching topics are read once they exist"
        yield warning(f"{where}.pattern", f"no topic matches {source.pattern!r} yet", fix)


def _check_written_topic(where: str, topic: str, topics: ClusterTopics) -> Iterator[Finding]:
    if topic in topics.names:
        return
    if topics.are_auto_created:
        fix = "it is created automatically, with the broker's default number of partitions"
        yield warning(where, _missing_text(topic, topics), fix)
    else:
        yield error(where, _missing_text(topic, topics), f"moldau topic create {topic}")


def _missing_text(topic: str, topics: ClusterTopics) -> str:
    return f"there is no topic {topic}{did_you_mean(topic, topics.names)}"
