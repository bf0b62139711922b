"""The producer: `send` puts a record into a batch of the accumulator, and the sender moves it to its leader.

Idempotent unless told otherwise: whatever happens to connections and leaders, a record that is acknowledged is in the
log once, and the records of a partition are in the order in which they were sent.

    async with Producer("localhost:9092") as producer:
        sent = await producer.send("orders", key=b"42", value=b"...")
        print((await sent).offset)
"""

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any, NamedTuple, Self

from moldau.client.errors import (
    ConnectionLostError,
    ErrorCode,
    IllegalStateError,
    KafkaError,
    RequestTimedOutError,
)
from moldau.client.net.cluster import Cluster, resolve_cluster
from moldau.client.net.metadata import NO_LEADER
from moldau.client.producer.partitioner import StickyPartitioner, partition_of_key
from moldau.client.producer.record_accumulator import ProduceResult, RecordAccumulator, estimate_record_size
from moldau.client.producer.sender import Sender
from moldau.client.record import TopicPartition, is_valid_topic_name
from moldau.observe.logging import get_logger
from moldau.records.batch import HEADER_SIZE
from moldau.records.batch_builder import Section
from moldau.records.compression import CODECS_BY_NAME
from moldau.records.record import TIMESTAMP_MAX, Header, Record

ACKS_ALL = -1

_log = get_logger("client.producer")


class RecordMetadata(NamedTuple):
    """Where a record is."""

    topic: str
    partition: int
    offset: int
    """-1 where the broker does not say: with acks=0, or of a repetition of what it wrote long ago."""
    timestamp: int
    """The record's own, or the broker's where the topic says so."""


class Producer:
    def __init__(
        self,
        cluster: str | Sequence[str] | Cluster,
        *,
        acks: int = ACKS_ALL,
        idempotent: bool = True,
        compression: str = "none",
        linger_ms: int = 5,
        batch_size: int = 64 * 1024,
        max_request_size: int = 1024 * 1024,
        buffer_memory: int = 32 * 1024 * 1024,
        max_in_flight: int = 5,
        max_block_ms: int = 60_000,
        delivery_timeout_ms: int = 120_000,
        **cluster_settings: Any,
    ) -> None:
        """`cluster` is bootstrap servers (with `cluster_settings` as `Cluster` has them), or one that is shared
        and started. Sizes are in bytes before compression."""
        if acks not in (ACKS_ALL, 0, 1):
            raise ValueError(f"acks is -1 (all), 0 or 1, not {acks}")
        if idempotent and (acks != ACKS_ALL or not 1 <= max_in_flight <= 5):
            raise ValueError("an idempotent producer needs acks=-1 and 1 to 5 requests in flight")
        if compression not in CODECS_BY_NAME:
            raise ValueError(f"compression is one of {', '.join(CODECS_BY_NAME)}, not {compression!r}")
        self._cluster, self._owns_cluster = resolve_cluster(cluster, cluster_settings)
        self._max_request_size = max_request_size
        self._max_block_ms = max_block_ms
        self._accumulator = RecordAccumulator(
            linger_ms=linger_ms,
            batch_size=batch_size,
            buffer_memory=buffer_memory,
            delivery_timeout_ms=delivery_timeout_ms,
            in_flight_max=max_in_flight,
            idempotent=idempotent,
            compression=CODECS_BY_NAME[compression],
        )
        self._sender = Sender(
            self._cluster,
            self._accumulator,
            self._handle_results,
            acks=acks,
            max_request_size=max_request_size,
            max_in_flight=max_in_flight,
        )
        self._sticky = StickyPartitioner(self._cluster.random.randrange)
        self._tracked_topics: dict[str, None] = {}
        """Those that were sent to, which the cluster keeps track of."""
        self._memory_waiters: deque[tuple[int, asyncio.Future[None]]] = deque()
        """Sizes of records that wait for memory, in the order of their coming."""
        self._pending_flushes: list[tuple[int, asyncio.Future[None]]] = []
        self._is_open = False
        self._is_closed = False

    # Life

    async def start(self) -> None:
        if self._is_open or self._is_closed:
            raise IllegalStateError("a producer is started once")
        if self._owns_cluster:
            await self._cluster.start()
        self._is_open = True
        self._sender.start()

    async def close(self, *, timeout_ms: int | None = None) -> None:
        """Delivers what was sent, as long as delivery may take or for this time, and ends. What has no outcome by then,
        or when this is cancelled, fails as in `abort`."""
        self._is_open = False
        self._wake_memory_waiter()
        try:
            if not self._is_closed:
                async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000):
                    await self.flush()
        except TimeoutError:
            _log.warning("the producer closes before everything is delivered", timeout_ms=timeout_ms)
        finally:
            await self.abort()

    async def abort(self) -> None:
        """Ends at once. Records that have no outcome yet fail: whether they were written is not known."""
        self._is_open = False
        self._is_closed = True
        try:
            await self._sender.stop()
        finally:
            if self._owns_cluster:
                await self._cluster.close()
                await self._sender.wait_for_responses()
            self._handle_results([])
            self._cluster.untrack(self._tracked_topics)
            self._tracked_topics.clear()

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.abort()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            await self.close()
        else:
            await self.abort()

    # Sending

    async def send(
        self,
        topic: str,
        value: bytes | None = None,
        *,
        key: bytes | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Iterable[Header] = (),
    ) -> "asyncio.Future[RecordMetadata]":
        """Takes a record and gives the future of its delivery, which raises KafkaError if that fails.

        Waits while the topic is not known or the memory is full, up to max_block_ms; then raises KafkaError.
        Without a partition the key decides; records without a key stay together for a batch.
        """
        self._check_open()
        _validate_topic_name(topic)
        timestamp = self._cluster.clock.wall_ms() if timestamp_ms is None else timestamp_ms
        record = _validate_record(Record(timestamp=timestamp, key=key, value=value, headers=tuple(headers)))
        size = estimate_record_size(record)
        if size + HEADER_SIZE > self._max_request_size:
            raise KafkaError(
                ErrorCode.message_too_large,
                f"a record of about {size} bytes, and max_request_size is {self._max_request_size}",
            )
        if (
            topic not in self._tracked_topics
            or topic not in self._cluster.topics
            or self._must_wait_for_memory(size)
        ):
            await self._wait_for_metadata_and_memory(topic, size)
        target = TopicPartition(topic, self._choose_partition(topic, key, partition, size))
        future: asyncio.Future[RecordMetadata] = asyncio.get_running_loop().create_future()
        if self._accumulator.append(target, record, size, future, self._sender.now_ms()):
            self._sender.wakeup()
        return future

    async def send_section(
        self, topic: str, partition: int, section: Section
    ) -> "asyncio.Future[RecordMetadata]":
        """Takes records that were encoded beforehand, which become one batch, in the order of all that is sent to the
        partition. The future is of its first record; if the batch is refused all of it is.

        Waits and raises as `send` does. What is too large for the broker fails, for it cannot be split. The section's
        bytes are kept, not copied: they stay as they are until the future is done.
        """
        self._check_open()
        _validate_topic_name(topic)
        size = len(_validate_section(section).data)
        if size + HEADER_SIZE > self._max_request_size:
            raise KafkaError(
                ErrorCode.message_too_large,
                f"a section of {size} bytes, and max_request_size is {self._max_request_size}:"
                " build smaller ones (batch.size), or raise that (max.request.size)",
            )
        await self._wait_for_metadata_and_memory(topic, size)
        target = TopicPartition(topic, self._choose_partition(topic, None, partition, size))
        future: asyncio.Future[RecordMetadata] = asyncio.get_running_loop().create_future()
        self._accumulator.append_section(target, section, future, self._sender.now_ms())
        self._sender.wakeup()
        return future

    async def flush(self) -> None:
        """Sends without lingering; returns when everything sent before has been delivered or has failed."""
        number = self._accumulator.close_batches()
        if self._accumulator.is_complete(number):
            return
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._pending_flushes.append((number, done))
        self._sender.wakeup()
        await done

    async def partition_count(self, topic: str) -> int:
        self._check_open()
        await self._wait_on_metadata(topic)
        return len(self._cluster.topics[topic].partitions)

    def _check_open(self) -> None:
        if self._sender.failure is not None:
            raise KafkaError(self._sender.failure.code, self._sender.failure.message)
        if not self._is_open:
            raise IllegalStateError(
                "the producer is not open: start it before use, and use it before it is closed"
            )

    async def _wait_for_metadata_and_memory(self, topic: str, size: int) -> None:
        """Waits until the topic is known and there is room for so many bytes."""
        try:
            async with asyncio.timeout(self._max_block_ms / 1000):
                await self._wait_on_metadata(topic)
                await self._wait_for_memory(size)
        except TimeoutError:
            raise RequestTimedOutError(
                f"{topic!r} could take no record for {self._max_block_ms} ms"
            ) from None
        # Of a producer that was closed meanwhile nobody would send the record.
        self._check_open()

    async def _wait_on_metadata(self, topic: str) -> None:
        """Waits until a topic is there, and has the cluster keep track of it."""
        is_new = topic not in self._tracked_topics
        if is_new:
            self._tracked_topics[topic] = None
            self._cluster.track([topic])
        try:
            if topic not in self._cluster.topics:
                await self._cluster.wait_for_topics([topic], timeout_ms=self._max_block_ms, create=True)
        except BaseException:
            if is_new and topic in self._tracked_topics:
                del self._tracked_topics[topic]
                self._cluster.untrack([topic])
            raise

    def _must_wait_for_memory(self, size: int) -> bool:
        return bool(self._memory_waiters) or not self._accumulator.has_memory(size)

    async def _wait_for_memory(self, size: int) -> None:
        is_behind_others = bool(self._memory_waiters)
        while is_behind_others or not self._accumulator.has_memory(size):
            is_behind_others = False
            # The sooner what is there leaves, the sooner there is room.
            self._accumulator.close_batches()
            self._sender.wakeup()
            turn = (size, asyncio.get_running_loop().create_future())
            self._memory_waiters.append(turn)
            try:
                await turn[1]
            finally:
                if turn in self._memory_waiters:
                    self._memory_waiters.remove(turn)
                else:
                    # The turn is used, or lost by being cancelled: the next one may find room as well.
                    asyncio.get_running_loop().call_soon(self._wake_memory_waiter)
            self._check_open()

    def _wake_memory_waiter(self) -> None:
        if self._memory_waiters and (
            not self._is_open or self._accumulator.has_memory(self._memory_waiters[0][0])
        ):
            _, turn = self._memory_waiters.popleft()
            if not turn.done():
                turn.set_result(None)

    def _choose_partition(self, topic: str, key: bytes | None, partition: int | None, size: int) -> int:
        info = self._cluster.topics.get(topic)
        if info is None:
            raise KafkaError(ErrorCode.unknown_topic_or_partition, f"the topic {topic!r} is gone")
        known = info.partitions
        if partition is not None:
            if not 0 <= partition < len(known):
                raise KafkaError(
                    ErrorCode.unknown_topic_or_partition,
                    f"{topic!r} has {len(known)} partitions, and {partition} is none of them",
                )
            return partition
        if key is not None:
            return partition_of_key(key, len(known))
        available = [each.index for each in known if each.leader != NO_LEADER]
        current_partition = self._sticky.current_partition(topic, len(known), available)
        if self._accumulator.fits_open_batch(TopicPartition(topic, current_partition), size):
            return current_partition
        return self._sticky.next_partition(topic, len(known), available)

    # Outcomes

    def _handle_results(self, outcomes: Iterable[ProduceResult]) -> None:
        """Tells those who wait for these batches, for memory and for flushes."""
        for outcome in outcomes:
            _resolve_futures(outcome)
        if self._is_closed:
            closed = ConnectionLostError("the producer was ended before this was delivered")
            for outcome in self._accumulator.abort_undrained(closed):
                _resolve_futures(outcome)
        self._wake_memory_waiter()
        for flush in [each for each in self._pending_flushes if self._accumulator.is_complete(each[0])]:
            self._pending_flushes.remove(flush)
            if not flush[1].done():
                flush[1].set_result(None)


def _validate_topic_name(name: str) -> None:
    if not is_valid_topic_name(name):
        raise ValueError(f"{name!r} is not a topic's name")


def _validate_section(section: Section) -> Section:
    if section.count < 1:
        raise ValueError("a section has at least one record")
    if not 0 <= section.base_timestamp <= TIMESTAMP_MAX or not 0 <= section.max_timestamp <= TIMESTAMP_MAX:
        raise ValueError(
            "the timestamps of a section are milliseconds since 1970, not"
            f" {section.base_timestamp} and {section.max_timestamp}"
        )
    if section.compression not in CODECS_BY_NAME.values():
        raise ValueError(f"{section.compression} is not the number of a codec")
    return section


def _validate_record(record: Record) -> Record:
    """Says at once what could not be encoded later, when nobody would know where it came from."""
    for name, part in (("key", record.key), ("value", record.value)):
        if part is not None and not isinstance(part, bytes):
            raise TypeError(f"a record's {name} is bytes or None, not {type(part).__name__}")
    for header in record.headers:
        name, content = header
        if not isinstance(name, str) or not (content is None or isinstance(content, bytes)):
            raise TypeError(f"a header is a str with bytes or None, not {header!r}")
        try:
            name.encode()
        except UnicodeEncodeError:
            raise ValueError(f"the name of a header is UTF-8, which has no {name!r}") from None
    if not isinstance(record.timestamp, int):
        raise TypeError(f"a timestamp is a whole number, not {record.timestamp!r}")
    if not 0 <= record.timestamp <= TIMESTAMP_MAX:
        raise ValueError(f"a timestamp is milliseconds since 1970, not {record.timestamp}")
    return record


def _resolve_futures(outcome: ProduceResult) -> None:
    topic, partition = outcome.batch.partition
    for future, offset, timestamp in outcome.batch.payload.record_results(
        outcome.base_offset, outcome.log_append_time_ms
    ):
        if future.done():
            continue
        if outcome.error is not None:
            future.set_exception(KafkaError(outcome.error.code, outcome.error.message))
            # Whoever sends without looking at the future has chosen not to know.
            future.exception()
        else:
            future.set_result(RecordMetadata(topic, partition, offset, timestamp))
