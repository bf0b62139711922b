"""The three phases of a load test: produce at full speed, consume everything, and latency at a fixed rate."""

import asyncio
import random
import string
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Literal, NamedTuple

from moldau.client.consumer.consumer import Consumer
from moldau.client.errors import KafkaError
from moldau.client.net.cluster import Cluster
from moldau.client.producer.producer import ACKS_ALL, Producer, RecordMetadata
from moldau.client.record import TopicPartition

SIZE_MIN = 8
"""Bytes of the number that identifies a record of the latency phase."""
DISTINCT_VALUES = 1_000
RECORDS_PER_YIELD = 100
POLL_MS = 100
POLL_RECORDS = 5_000
SILENCE_TIMEOUT_S = 10.0
"""How long a phase waits for the next record, before it ends without the missing ones."""
DELIVERY_TIMEOUT_MS = 30_000


@dataclass(frozen=True)
class LoadTest:
    """What to send."""

    topic: str
    partitions: int
    records: int | None
    """The number of records to produce; None if `duration_s` limits the phase."""
    duration_s: float | None
    size: int
    acks: Literal["all", "1", "0"]
    compression: str
    rate: float
    """Records per second in the latency phase."""
    latency_s: float
    """Duration of the latency phase."""


class PhaseResult(NamedTuple):
    phase: str
    records: int
    expected: int
    """The number of records that should have been counted. It is larger than `records` if some were lost."""
    value_bytes: int
    seconds: float
    latencies_ms: "array[float]"
    """Sorted; empty if the phase measures no latency."""

    @property
    def records_per_second(self) -> float:
        return self.records / self.seconds if self.seconds else 0.0

    @property
    def mb_per_second(self) -> float:
        return self.value_bytes / self.seconds / 1e6 if self.seconds else 0.0

    def latency_ms(self, quantile: float) -> float | None:
        """Returns the latency that this share of the records did not exceed; None if the phase measures none."""
        if not self.latencies_ms:
            return None
        return self.latencies_ms[min(len(self.latencies_ms) - 1, int(quantile * len(self.latencies_ms)))]


class Progress(NamedTuple):
    """Where a phase reports how far it is, and learns that it must stop early."""

    update: Callable[[float], None]
    """Takes the completed share, from 0 to 1."""
    stop_requested: "asyncio.Future[int]"

    @property
    def is_stopped(self) -> bool:
        return self.stop_requested.done()


def make_values(size: int) -> list[bytes]:
    """Returns values of random letters and digits, which compress to about three quarters."""
    # A fixed seed, so that runs with compression are comparable.
    letters = random.Random(1).choices(string.ascii_letters + string.digits, k=size + DISTINCT_VALUES)
    text = "".join(letters).encode()
    return [text[start : start + size] for start in range(DISTINCT_VALUES)]


class _Deliveries:
    """Counts acknowledged records and their latencies."""

    def __init__(self) -> None:
        self.count = 0
        self.latencies_ms = array("d")
        self.failure: BaseException | None = None

    def add(self, sent_at: float, delivery: "asyncio.Future[RecordMetadata]") -> None:
        error = delivery.exception()
        if error is not None:
            self.failure = self.failure or error
            return
        self.count += 1
        self.latencies_ms.append((perf_counter() - sent_at) * 1_000)

    def raise_failure(self) -> None:
        if self.failure is not None:
            raise self.failure


def _producer(cluster: Cluster, test: LoadTest, *, linger_ms: int) -> Producer:
    return Producer(
        cluster,
        acks=ACKS_ALL if test.acks == "all" else int(test.acks),
        idempotent=test.acks == "all",
        compression=test.compression,
        linger_ms=linger_ms,
        max_request_size=max(1024 * 1024, 2 * test.size),
        delivery_timeout_ms=DELIVERY_TIMEOUT_MS,
    )


async def run_produce(cluster: Cluster, test: LoadTest, progress: Progress) -> PhaseResult:
    """Sends records as fast as the producer accepts them. Latency is from the call of `send` to the acknowledgement."""
    values = make_values(test.size)
    deliveries = _Deliveries()
    sent = 0
    async with _producer(cluster, test, linger_ms=5) as producer:
        started_at = perf_counter()
        while not progress.is_stopped and deliveries.failure is None:
            elapsed = perf_counter() - started_at
            share = elapsed / test.duration_s if test.duration_s else sent / (test.records or 1)
            progress.update(min(share, 1.0))
            if share >= 1:
                break
            remaining = RECORDS_PER_YIELD if test.records is None else min(RECORDS_PER_YIELD, test.records - sent)
            for _ in range(remaining):
                sent_at = perf_counter()
                delivery = await producer.send(test.topic, values[sent % DISTINCT_VALUES])
                delivery.add_done_callback(partial(deliveries.add, sent_at))
                sent += 1
            await asyncio.sleep(0)
        await producer.flush()
        # The callbacks of the last deliveries run in the next turn of the event loop.
        await asyncio.sleep(0)
        seconds = perf_counter() - started_at
    deliveries.raise_failure()
    # Without acknowledgements, a delivery is only a write to the socket.
    latencies = array("d") if test.acks == "0" else array("d", sorted(deliveries.latencies_ms))
    return PhaseResult("produce", deliveries.count, sent, deliveries.count * test.size, seconds, latencies)


async def run_consume(cluster: Cluster, test: LoadTest, expected: int, progress: Progress) -> PhaseResult:
    """Reads all records of the topic from the beginning."""
    received = received_bytes = 0
    async with Consumer(cluster=cluster, auto_offset_reset="earliest") as consumer:
        consumer.assign(TopicPartition(test.topic, each) for each in range(test.partitions))
        started_at = last_at = perf_counter()
        while received < expected and not progress.is_stopped and perf_counter() < last_at + SILENCE_TIMEOUT_S:
            records = await consumer.poll(POLL_MS, max_records=POLL_RECORDS)
            if records:
                last_at = perf_counter()
            received += len(records)
            received_bytes += sum(len(each.value or b"") for each in records)
            progress.update(received / expected)
        seconds = last_at - started_at
    return PhaseResult("consume", received, expected, received_bytes, seconds, array("d"))


async def run_latency(cluster: Cluster, test: LoadTest, progress: Progress) -> PhaseResult:
    """Sends records at a fixed rate while a consumer waits for them. Latency is from `send` until `poll` returns it."""
    total = max(1, round(test.rate * test.latency_s))
    padding = make_values(test.size)[0][SIZE_MIN:]
    sent_at = array("d")
    latencies = array("d")
    deliveries = _Deliveries()
    partitions = [TopicPartition(test.topic, each) for each in range(test.partitions)]

    async def receive(consumer: Consumer) -> None:
        last_at = perf_counter()
        while len(latencies) < total and not progress.is_stopped and perf_counter() < last_at + SILENCE_TIMEOUT_S:
            records = await consumer.poll(POLL_MS, max_records=POLL_RECORDS)
            now = perf_counter()
            for each in records:
                latencies.append((now - sent_at[int.from_bytes((each.value or b"")[:SIZE_MIN], "big")]) * 1_000)
                last_at = now
            progress.update(len(latencies) / total)

    async def send(producer: Producer) -> None:
        started_at = perf_counter()
        for number in range(total):
            await asyncio.sleep(max(0.0, started_at + number / test.rate - perf_counter()))
            if progress.is_stopped:
                return
            sent_at.append(perf_counter())
            value = number.to_bytes(SIZE_MIN, "big") + padding
            delivery = await producer.send(test.topic, value, partition=number % test.partitions)
            delivery.add_done_callback(partial(deliveries.add, sent_at[-1]))
            deliveries.raise_failure()

    async with (
        Consumer(cluster=cluster, auto_offset_reset="latest") as consumer,
        _producer(cluster, test, linger_ms=0) as producer,
    ):
        consumer.assign(partitions)
        # Records that are sent before the end of each partition is known would be missed.
        for each in partitions:
            await consumer.position(each)
        started_at = perf_counter()
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(receive(consumer))
                tasks.create_task(send(producer))
        except* KafkaError as group:
            raise group.exceptions[0] from None
        seconds = perf_counter() - started_at
    deliveries.raise_failure()
    size = len(latencies) * test.size
    return PhaseResult("latency", len(latencies), len(sent_at), size, seconds, array("d", sorted(latencies)))
