"""Redrive of dead letters, which sends records back to their topics with the original key, value and headers.

A consumer group of the dead-letter topic stores the progress. A record is sent twice only if a redrive is interrupted
between send and commit. All consumers of the original topic receive the records again.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from moldau.client.consumer.consumer import Consumer
from moldau.client.errors import KafkaError
from moldau.client.listener.dead_letters import PREFIX, REDRIVEN, ErrorHeader
from moldau.client.net.cluster import Cluster
from moldau.client.producer.producer import Producer, RecordMetadata
from moldau.client.record import ConsumerRecord, TopicPartition
from moldau.pipelines.definition import PipelineDefinition, PipelineError
from moldau.pipelines.planner.connection import cluster_settings

POLL_MS = 1_000
BATCH_RECORDS = 500


@dataclass(slots=True)
class RedriveResult:
    topics: Counter[str] = field(default_factory=Counter)
    """The number of records by topic that were sent back. In a dry run, the number that would be sent back."""
    skipped: int = 0
    """The number of records without the headers of a dead letter."""
    others: int = 0
    """The number of dead letters of other pipelines in the same topic."""

    @property
    def count(self) -> int:
        return self.topics.total()


@dataclass(frozen=True, slots=True)
class OriginalRecord:
    """The record from which a dead letter was made, and the pipeline that could not process it."""

    pipeline: str
    topic: str
    partition: int | None
    timestamp_ms: int | None
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


def original_record(record: ConsumerRecord) -> OriginalRecord | None:
    """Returns the original record of a dead letter, or None for a record without dead-letter headers."""
    errors = {key: value for key, value in record.headers if key.startswith(PREFIX)}
    topic = _text(errors.get(ErrorHeader.TOPIC))
    if not topic:
        return None
    headers_kept = [(key, value) for key, value in record.headers if not key.startswith(PREFIX) and key != REDRIVEN]
    times_redriven = max((_number(value) or 0 for key, value in record.headers if key == REDRIVEN), default=0)
    return OriginalRecord(
        _text(errors.get(ErrorHeader.PIPELINE)),
        topic,
        _number(errors.get(ErrorHeader.PARTITION)),
        _number(errors.get(ErrorHeader.TIMESTAMP)),
        record.key,
        record.value,
        (*headers_kept, (REDRIVEN, str(times_redriven + 1).encode())),
    )


def _text(value: bytes | None) -> str:
    return "" if value is None else value.decode(errors="replace")


def _number(value: bytes | None) -> int | None:
    text = _text(value)
    return int(text) if text.isascii() and text.isdigit() else None


async def redrive(pipeline: PipelineDefinition, *, limit: int | None = None, dry_run: bool = False) -> RedriveResult:
    """Sends back this pipeline's dead letters that exist at the start of the redrive. Raises PipelineError."""
    topic = pipeline.dead_letter_topic
    if topic is None:
        raise PipelineError(f"the pipeline {pipeline.name} has no dead-letter topic: dead_letters: <topic> names one")
    group_id = f"moldau-redrive-{pipeline.name}-{topic}"
    try:
        async with Cluster(**cluster_settings(pipeline)) as cluster:
            return await _redrive(cluster, pipeline.name, topic, group_id, limit, dry_run)
    except KafkaError as error:
        raise PipelineError(
            f"not all dead letters of {topic} were sent back: {error}. Progress is committed to the group "
            f"{group_id}; run it again after fixing the cause"
        ) from error


async def _redrive(
    cluster: Cluster, pipeline: str, topic: str, group_id: str, limit: int | None, dry_run: bool
) -> RedriveResult:
    await cluster.refresh((topic,))
    known = cluster.topics.get(topic)
    if known is None:
        raise PipelineError(
            f"the topic {topic} does not exist: no dead letter was written yet, or bootstrap names another cluster"
        )
    partitions = [TopicPartition(topic, each.index) for each in known.partitions]
    result = RedriveResult()
    consumer = Consumer(
        cluster=cluster,
        group_id=group_id,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
    )
    async with consumer, Producer(cluster=cluster) as producer:
        consumer.assign(partitions)
        ends = await consumer.end_offsets(partitions)
        while (limit is None or result.count < limit) and (unread := await _unread_partitions(consumer, ends)):
            records_max = BATCH_RECORDS if limit is None else min(BATCH_RECORDS, limit - result.count)
            sends = []
            next_offsets: dict[TopicPartition, int] = {}
            for record in await consumer.poll(POLL_MS, max_records=records_max):
                partition = TopicPartition(record.topic, record.partition)
                next_offsets[partition] = min(record.offset + 1, ends[partition])
                if record.offset >= unread.get(partition, 0):
                    # The record was written after the start of the redrive.
                    continue
                original = original_record(record)
                if original is None:
                    result.skipped += 1
                elif original.pipeline != pipeline:
                    result.others += 1
                else:
                    result.topics[original.topic] += 1
                    if not dry_run:
                        sends.append(await _send(producer, original))
            for send in sends:
                await send
            if next_offsets and not dry_run:
                await consumer.commit(next_offsets)
    return result


async def _unread_partitions(consumer: Consumer, ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Returns the end offsets of partitions that are not read completely. Pauses the other partitions."""
    unread = {partition: end for partition, end in ends.items() if await consumer.position(partition) < end}
    consumer.pause([partition for partition in ends if partition not in unread])
    return unread


async def _send(producer: Producer, original: OriginalRecord) -> "asyncio.Future[RecordMetadata]":
    partition = original.partition
    # Send to the original partition if it exists, so that records of one key keep their order.
    if partition is not None and partition >= await producer.partition_count(original.topic):
        partition = None
    return await producer.send(
        original.topic,
        original.value,
        key=original.key,
        partition=partition,
        timestamp_ms=original.timestamp_ms,
        headers=original.headers,
    )
