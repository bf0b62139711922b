"""Writer of a task's rows to topics. A section is the encoded records of one batch, without producer id and sequence.

The task encodes sections while the event loop thread sends earlier ones. Later tasks of the process use the same
producer. After a failed write the producer is closed, so that no records of the failed write are sent later.
"""

import asyncio
import random
import time
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass

import pyarrow as pa

from moldau.client.admin.admin import Admin
from moldau.client.admin.types import ConfigResource, ResourceType
from moldau.client.errors import ErrorCode, KafkaError
from moldau.client.net.cluster import Cluster
from moldau.client.net.metadata import NO_LEADER
from moldau.client.producer.producer import Producer
from moldau.client.producer.transaction_group import MemberProducer
from moldau.columnar.encode import to_sections
from moldau.records.batch import HEADER_SIZE
from moldau.records.batch_builder import Section
from moldau.records.compression import CODECS_BY_NAME
from moldau.spark.errors import SparkSourceError
from moldau.spark.loop_thread import EventLoopThread, event_loop_thread, settings_key
from moldau.spark.sink.columns import SinkColumns
from moldau.spark.sink.options import TopicSinkOptions
from moldau.spark.sink.records import RowPartitioner, check_sizes, merge_batches, record_columns, split_by_topic

MERGED_BATCH_BYTES_MIN = 4 * 1024 * 1024


def write_rows(batches: Iterator[pa.RecordBatch], options: TopicSinkOptions, columns: SinkColumns) -> None:
    """Writes all rows and waits for the acknowledgements."""
    loop_thread = event_loop_thread()
    send_rows(merge_rows(batches), options, columns, SectionSender(loop_thread, options))


def merge_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Merges Arrow batches to tables that are large enough to be encoded. Every table has rows."""
    return merge_batches(batches, MERGED_BATCH_BYTES_MIN)


def send_rows(
    tables: Iterable[pa.Table], options: TopicSinkOptions, columns: SinkColumns, sender: "SectionSender"
) -> None:
    """Sends all rows and waits for the acknowledgements. Aborts the sender if that fails."""
    try:
        for topic, partition, section in encode_rows(tables, options, columns, sender.targets):
            sender.send(topic, partition, section)
        sender.flush()
    except BaseException:
        sender.abort()
        raise


def encode_rows(
    tables: Iterable[pa.Table], options: TopicSinkOptions, columns: SinkColumns, targets: "TopicTargets"
) -> Iterator[tuple[str, int, Section]]:
    """Yields sections with their topic and partition."""
    request_bytes_max = options.producer["max_request_size"] - HEADER_SIZE
    batch_bytes = min(options.producer["batch_size"] - HEADER_SIZE, request_bytes_max)
    compression = CODECS_BY_NAME[options.producer["compression"]]
    partitioner = RowPartitioner(random.randrange(2**31))
    for table in tables:
        for topic, topic_table in split_by_topic(table, columns, options.topic):
            rows = record_columns(topic_table, columns, time.time_ns() // 1_000_000)
            check_sizes(rows, topic, request_bytes_max)
            target = targets.get(topic)
            bytes_max = max(1, min(batch_bytes, target.batch_bytes_max - HEADER_SIZE))
            partitions = partitioner.partitions(rows, topic, target.partition_count, target.available, bytes_max)
            for partition, section in to_sections(
                partitions,
                key=rows.key,
                value=rows.value,
                headers=rows.headers,
                timestamp_ms=rows.timestamp_ms,
                batch_bytes_max=bytes_max,
                compression=compression,
            ):
                yield topic, partition, section


TOPIC_WAIT_MS = 15_000
"""How long to wait for a topic that does not exist. Automatic topic creation takes less time."""

CONFIGS_WAIT_MS = 5000
"""How long to wait for the topic's max.message.bytes."""

ABORT_WAIT_MS = 5000
"""How long a failed task waits for the end of its transaction. Otherwise the coordinator ends it later."""

SECTIONS_MAX = 1000
"""The maximum number of sections (encoded batches) in flight."""


@dataclass(frozen=True, slots=True)
class TopicTarget:
    partition_count: int
    available: tuple[int, ...]
    """Partitions with a leader."""
    batch_bytes_max: int
    """The topic's max.message.bytes, or the largest 32-bit number if the brokers do not return the value."""


class TopicTargets:
    """The metadata of the topics that a task writes to."""

    def __init__(self, event_loop_thread: EventLoopThread, options: TopicSinkOptions) -> None:
        self._loop_thread = event_loop_thread
        self._options = options
        self._targets: dict[str, TopicTarget] = {}

    def get(self, topic: str) -> TopicTarget:
        """Returns the topic's metadata. Fetches it once per task, so that all rows have the same partition count."""
        if topic not in self._targets:
            self._targets[topic] = self._loop_thread.run(self._fetch(topic))
        return self._targets[topic]

    async def _fetch(self, topic: str) -> TopicTarget:
        cluster = await self._loop_thread.cluster(self._options.connection)
        wait_ms = min(TOPIC_WAIT_MS, int(self._options.producer.get("max_block_ms", TOPIC_WAIT_MS)))
        try:
            if topic in cluster.topics:
                await _refresh(cluster, topic, wait_ms)
            await cluster.wait_for_topics([topic], timeout_ms=wait_ms, create=True)
        except KafkaError as error:
            raise user_error(error, topic, self._options) from error
        partitions = cluster.topics[topic].partitions
        available = tuple(each.index for each in partitions if each.leader != NO_LEADER)
        return TopicTarget(len(partitions), available, await _batch_bytes_max(cluster, topic))


async def _refresh(cluster: Cluster, topic: str, timeout_ms: int) -> None:
    """Refreshes the metadata of a known topic. Waits for brokers that are being restarted, because Spark would repeat a
    failed task at once, and fail the query after a few attempts."""
    retry = cluster.retry(timeout_ms)
    while True:
        try:
            return await cluster.refresh([topic], timeout_ms=retry.remaining_ms)
        except KafkaError as error:
            await retry.wait_or_raise(retry.cause(error))


class SectionSender:
    """Sender of one task's sections (encoded batches). All calls come from one thread."""

    def __init__(
        self, event_loop_thread: EventLoopThread, options: TopicSinkOptions, member: MemberProducer | None = None
    ) -> None:
        """Without `member`, the sections are sent with a producer that other tasks of the process use, too."""
        self._loop_thread = event_loop_thread
        self._options = options
        self.targets = TopicTargets(event_loop_thread, options)
        self._producer_key = (settings_key(options.connection), settings_key(options.producer))
        self._in_flight: deque[tuple[int, Future[None]]] = deque()
        self._in_flight_bytes = 0
        self._bytes_max = int(options.producer["buffer_memory"])
        self._send_lock = asyncio.Lock()
        self._member = member
        if member is not None:
            self._producer = member.producer
            return
        try:
            self._producer = event_loop_thread.run(self._open())
        except KafkaError as error:
            raise SparkSourceError(
                f"no response from the brokers at {options.bootstrap} ({error}): check "
                "kafka.bootstrap.servers, the security options, and that the brokers run"
            ) from error

    async def _open(self) -> Producer:
        producer = self._loop_thread.producers.get(self._producer_key)
        if producer is None:
            cluster = await self._loop_thread.cluster(self._options.connection)
            producer = Producer(cluster, **self._options.producer)
            await producer.start()
            self._loop_thread.producers[self._producer_key] = producer
        return producer

    def send(self, topic: str, partition: int, section: Section) -> None:
        """Queues a section. Waits while too many sections are in flight. Raises the error of an earlier section."""
        size = len(section.data)
        while self._in_flight and (
            # Remove a finished section even if there is room, so that its error is raised now and not only by `flush`.
            self._in_flight[0][1].done()
            or self._in_flight_bytes + size > self._bytes_max
            or len(self._in_flight) >= SECTIONS_MAX
        ):
            self._wait_for_oldest()
        self._in_flight.append((size, self._loop_thread.start(self._deliver(topic, partition, section))))
        self._in_flight_bytes += size

    def flush(self) -> None:
        """Waits until all sections are acknowledged."""
        while self._in_flight:
            self._wait_for_oldest()

    def abort(self) -> None:
        """Discards the sections that have not been sent, after a failure. Aborts the transaction of a member."""
        for _, each in self._in_flight:
            each.cancel()
        self._in_flight.clear()
        if self._member is not None:
            self._loop_thread.run(self._member.abort(timeout_ms=ABORT_WAIT_MS))
            return
        self._loop_thread.producers.pop(self._producer_key, None)
        self._loop_thread.run(self._producer.abort())

    def _wait_for_oldest(self) -> None:
        size, oldest = self._in_flight[0]
        oldest.result()
        self._in_flight.popleft()
        self._in_flight_bytes -= size

    async def _deliver(self, topic: str, partition: int, section: Section) -> None:
        try:
            # Send under the lock, which is fair, so that sections are sent in order.
            async with self._send_lock:
                delivered = await self._producer.send_section(topic, partition, section)
            await delivered
        except KafkaError as error:
            raise user_error(error, topic, self._options, partition) from error


async def _batch_bytes_max(cluster: Cluster, topic: str) -> int:
    """Returns the topic's max.message.bytes, or the largest 32-bit number if the brokers do not return the value."""
    resource = ConfigResource(ResourceType.TOPIC, topic)
    found = (await Admin(cluster, timeout_ms=CONFIGS_WAIT_MS).describe_configs([resource]))[resource]
    limit = None if isinstance(found, KafkaError) else found.get("max.message.bytes")
    if limit is None or limit.value is None or not limit.value.isdecimal():
        return 2**31 - 1
    return int(limit.value)


def user_error(
    error: KafkaError, topic: str, options: TopicSinkOptions, partition: int | None = None
) -> SparkSourceError:
    where = repr(topic) if partition is None else f"partition {partition} of {topic!r}"
    match error.code:
        case ErrorCode.unknown_topic_or_partition if partition is not None:
            text = (
                f"{where} at {options.bootstrap} no longer exists ({error}): the topic was deleted, or recreated with "
                "fewer partitions, during the write. Start the write again"
            )
        case ErrorCode.unknown_topic_or_partition:
            text = (
                f"the topic {topic!r} does not exist, and the broker at {options.bootstrap} did "
                "not create it: create it, or correct the name"
            )
        case ErrorCode.invalid_topic_exception:
            text = f"{topic!r} is not a valid topic name ({error}): correct it"
        case ErrorCode.message_too_large | ErrorCode.record_list_too_large:
            text = (
                f"{topic!r} does not accept a batch of this size ({error}): raise the topic's max.message.bytes or "
                "shorten the values; if many rows fill the batch, set kafka.batch.size below max.message.bytes"
            )
        case ErrorCode.topic_authorization_failed | ErrorCode.cluster_authorization_failed:
            text = f"writing to {topic!r} is not authorized ({error}): request the permission, or use another user"
        case ErrorCode.request_timed_out | ErrorCode.network_exception:
            text = (
                f"{where} at {options.bootstrap} did not accept records in time ({error}): check "
                "its brokers and that the partition exists, or raise kafka.delivery.timeout.ms"
            )
        case _:
            text = f"writing to {topic!r} failed: {error}"
    return SparkSourceError(text)
