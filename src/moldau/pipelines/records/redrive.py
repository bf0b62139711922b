"""Redrive of dead letters, which sends records back to their topics with the original key, value and headers.

Progress is committed in a consumer group of the dead-letter topic. A record is sent twice only if a redrive is
interrupted between send and commit. All consumers of the original topic receive the records again.
"""

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from moldau.client.consumer.consumer import Consumer
from moldau.client.errors import KafkaError
from moldau.client.net.cluster import Cluster
from moldau.client.producer.producer import Producer, RecordMetadata
from moldau.client.record import ConsumerRecord, TopicPartition
from moldau.pipelines.definition import PipelineDefinition, PipelineError
from moldau.pipelines.planner.connection import cluster_settings
from moldau.pipelines.records.columns import PREFIX, REDRIVEN, ErrorHeader

POLL_MS = 1_000
BATCH_RECORDS = 500

Header = tuple[str, bytes | None]


@dataclass(frozen=True, slots=True)
class RedriveResult:
    count: int
    topics: Mapping[str, int] = field(default_factory=dict)
    """The number of records by topic that were sent back. In a dry run, the number that would be sent back."""
    skipped: int = 0
    """The number of records without the headers of a dead letter."""
    others: int = 0
    """The number of dead letters of other pipelines in the same topic."""


@dataclass(frozen=True, slots=True)
class RedrivenRecord:
    """The original record of a dead letter."""

    topic: str
    partition: int | None
    timestamp_ms: int | None
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]


def redrive_group(pipeline: str, dead_letter_topic: str) -> str:
    return f"moldau-redrive-{pipeline}-{dead_letter_topic}"


def is_from_pipeline(record: ConsumerRecord, pipeline: str) -> bool:
    return any(key == ErrorHeader.PIPELINE and _text(value) == pipeline for key, value in record.headers)


def original_record(record: ConsumerRecord) -> RedrivenRecord | None:
    """Returns the original record of a dead letter, or None for a record without dead-letter headers.

    The header REDRIVEN counts how often the record was sent back.
    """
    errors = {key: value for key, value in record.headers if key.startswith(PREFIX)}
    topic = _text(errors.get(ErrorHeader.TOPIC))
    if not topic:
        return None
    headers_kept = [(key, value) for key, value in record.headers if not key.startswith(PREFIX) and key != REDRIVEN]
    times_redriven = max((_number(value) or 0 for key, value in record.headers if key == REDRIVEN), default=0)
    return RedrivenRecord(
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


async def redrive(
    pipeline: PipelineDefinition,
    *,
    dead_letter_topic: str | None = None,
    limit: int | None = None,
    dry_run: bool = False,
) -> RedriveResult:
    """Sends back this pipeline's dead letters that exist at the start. Raises PipelineError.

    Records that fail during the redrive are not sent again.
    """
    topic = dead_letter_topic or pipeline.dead_letter_topic
    if topic is None:
        raise PipelineError(f"the pipeline {pipeline.name} has no dead-letter topic: dead_letters: <topic> names one")
    try:
        async with Cluster(**cluster_settings(pipeline)) as cluster:
            return await _Redrive(cluster, pipeline.name, topic, limit, dry_run).run()
    except KafkaError as error:
        raise PipelineError(
            f"not all dead letters of {topic} were sent back: {error}. Progress is committed to the group "
            f"{redrive_group(pipeline.name, topic)}; run it again after fixing the cause"
        ) from error


class _Redrive:
    def __init__(self, cluster: Cluster, pipeline: str, topic: str, limit: int | None, dry_run: bool) -> None:
        self._cluster = cluster
        self._pipeline = pipeline
        self._topic = topic
        self._left = limit
        self._dry_run = dry_run
        self._topics: Counter[str] = Counter()
        self._skipped = 0
        self._others = 0

    async def run(self) -> RedriveResult:
        await self._cluster.refresh((self._topic,))
        known = self._cluster.topics.get(self._topic)
        if known is None:
            raise PipelineError(
                f"the topic {self._topic} does not exist: no dead letter was written yet, or bootstrap names "
                "another cluster"
            )
        partitions = [TopicPartition(self._topic, each.index) for each in known.partitions]
        consumer = Consumer(
            cluster=self._cluster,
            group_id=redrive_group(self._pipeline, self._topic),
            enable_auto_commit=False,
            auto_offset_reset="earliest",
        )
        async with consumer, Producer(cluster=self._cluster) as producer:
            consumer.assign(partitions)
            ends = await consumer.end_offsets(partitions)
            while open_ones := await self._unread_partitions(consumer, ends):
                records = await consumer.poll(POLL_MS, max_records=self._batch())
                await self._send_back(
                    [each for each in records if each.offset < open_ones.get(_topic_partition(each), -1)], producer
                )
                if not self._dry_run and records:
                    await consumer.commit(_next_offsets(records, ends))
                if self._left == 0:
                    break
        return RedriveResult(sum(self._topics.values()), dict(self._topics), self._skipped, self._others)

    async def _unread_partitions(
        self, consumer: Consumer, ends: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        """Returns the end offsets of partitions that are not read completely. Pauses the other partitions."""
        unread, read = {}, []
        for partition, end in ends.items():
            if await consumer.position(partition) < end:
                unread[partition] = end
            else:
                read.append(partition)
        consumer.pause(read)
        return unread

    def _batch(self) -> int:
        return BATCH_RECORDS if self._left is None else min(BATCH_RECORDS, self._left)

    async def _send_back(self, records: Sequence[ConsumerRecord], producer: Producer) -> None:
        sent = []
        for record in records:
            back = original_record(record)
            if back is None:
                self._skipped += 1
                continue
            if not is_from_pipeline(record, self._pipeline):
                self._others += 1
                continue
            if self._left is not None:
                self._left -= 1
            self._topics[back.topic] += 1
            if not self._dry_run:
                sent.append(await self._send(back, producer))
        for each in sent:
            await each

    async def _send(self, back: RedrivenRecord, producer: Producer) -> "asyncio.Future[RecordMetadata]":
        partition = back.partition
        # Send to the original partition if it exists, so that records of one key keep their order.
        if partition is not None and partition >= await producer.partition_count(back.topic):
            partition = None
        return await producer.send(
            back.topic,
            back.value,
            key=back.key,
            partition=partition,
            timestamp_ms=back.timestamp_ms,
            headers=back.headers,
        )


def _topic_partition(record: ConsumerRecord) -> TopicPartition:
    return TopicPartition(record.topic, record.partition)


def _next_offsets(records: Iterable[ConsumerRecord], ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Returns the offsets to commit, which are at most the end offsets."""
    after: dict[TopicPartition, int] = {}
    for record in records:
        topic_partition = _topic_partition(record)
        after[topic_partition] = min(record.offset + 1, ends[topic_partition])
    return after
