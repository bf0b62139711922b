"""Transactional producers of confluent-kafka (TV1) and Moldau's client (TV2), and a reader of their topic.

The producers commit, abort, and vanish with an open transaction. Then the next producer with their id fences them.
"""

import asyncio
import itertools
import logging
import random
import threading
import time
from collections.abc import Sequence

from confluent_kafka import KafkaException
from confluent_kafka import Producer as ConfluentProducer

from chaos.transaction_recorder import TransactionRecorder
from moldau.client import (
    Consumer,
    KafkaError,
    Producer,
    RequestTimedOutError,
    TopicPartition,
    TransactionAbortableError,
)
from moldau.client.producer.transaction import Transaction
from moldau.testing.simulation.checkers.history import Partition
from moldau.testing.simulation.checkers.history_transactions import TransactionOperation, TransactionOutcome

# Errors are expected here, so do not log them.
logging.getLogger("moldau").setLevel(logging.CRITICAL)

TRANSACTION_TIMEOUT_MS = 8_000
"""Shorter than some faults, so that some transactions time out."""
RECORDS_MAX = 8
REQUEST_TIMEOUT_S = 5.0
RETRY_S = 0.1
PAUSE_S = 0.02
COMMIT_SHARE, ABORT_SHARE = 0.7, 0.25
"""The remaining producers vanish with an open transaction."""


class Stopped(Exception):
    """The run ends while a producer waits for a result."""


class TransactionWorkload:
    """What all transactional producers share."""

    def __init__(
        self, bootstrap: str, partitions: Sequence[Partition], recorder: TransactionRecorder, stop: threading.Event
    ) -> None:
        self.bootstrap = bootstrap
        self.recorder = recorder
        self._partitions = partitions
        self._stop = stop
        self.deadline = float("inf")
        """Monotonic time after which no result is waited for."""

    @property
    def is_stopping(self) -> bool:
        return self._stop.is_set()

    def check_deadline(self) -> None:
        if time.monotonic() > self.deadline:
            raise Stopped

    def draw_records(self, name: str, number: int, draw: random.Random) -> list[tuple[Partition, bytes]]:
        return [
            (draw.choice(self._partitions), f"{name}-{number}-{each}".encode())
            for each in range(draw.randint(1, RECORDS_MAX))
        ]


# confluent-kafka


def produce_with_confluent(workload: TransactionWorkload, name: str) -> None:
    draw = random.Random(name)
    producer: ConfluentProducer | None = None
    for number in itertools.count():
        if workload.is_stopping:
            return
        try:
            if producer is None:
                producer = _open_confluent(workload, name)
            transaction = workload.recorder.begin(f"{name}.{number}")
            if not _run_confluent(workload, producer, name, transaction, number, draw):
                producer = None
        except Stopped:
            return
        except KafkaException:
            # The producer is fenced, or has another fatal error.
            producer = None
        time.sleep(PAUSE_S)


def _open_confluent(workload: TransactionWorkload, name: str) -> ConfluentProducer:
    while True:
        workload.check_deadline()
        producer = ConfluentProducer(
            {
                "bootstrap.servers": workload.bootstrap,
                "transactional.id": name,
                "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
                "message.timeout.ms": TRANSACTION_TIMEOUT_MS,
                "request.timeout.ms": 5_000,
                "socket.timeout.ms": 6_000,
                "linger.ms": 1,
                "reconnect.backoff.max.ms": 500,
                "topic.metadata.refresh.interval.ms": 2_000,
                "log_level": 0,
            }
        )
        try:
            producer.init_transactions(REQUEST_TIMEOUT_S)
            return producer
        except KafkaException:
            time.sleep(RETRY_S)


def _run_confluent(
    workload: TransactionWorkload,
    producer: ConfluentProducer,
    name: str,
    transaction: TransactionOperation,
    number: int,
    draw: random.Random,
) -> bool:
    """Runs a transaction; returns whether the producer can be used for the next one."""
    recorder = workload.recorder
    producer.begin_transaction()
    try:
        for (topic, partition), value in workload.draw_records(name, number, draw):
            recorder.send(transaction, (topic, partition), value)
            producer.produce(topic, value, partition=partition)
        way = draw.random()
        if draw.random() < 0.5:
            producer.flush(REQUEST_TIMEOUT_S)
        if way < COMMIT_SHARE:
            recorder.commit(transaction)
            _end_confluent(workload, producer, commit=True)
            recorder.end(name, transaction, TransactionOutcome.COMMITTED)
            return True
        if way >= COMMIT_SHARE + ABORT_SHARE:
            return False
    except KafkaException as error:
        if not error.args[0].txn_requires_abort():
            raise
    _end_confluent(workload, producer, commit=False)
    recorder.end(name, transaction, TransactionOutcome.ABORTED)
    return True


def _end_confluent(workload: TransactionWorkload, producer: ConfluentProducer, *, commit: bool) -> None:
    while True:
        try:
            if commit:
                producer.commit_transaction(REQUEST_TIMEOUT_S)
            else:
                producer.abort_transaction(REQUEST_TIMEOUT_S)
            return
        except KafkaException as error:
            if not error.args[0].retriable():
                raise
            workload.check_deadline()


# Moldau's client


def produce_with_moldau(workload: TransactionWorkload, name: str) -> None:
    asyncio.run(_produce_with_moldau(workload, name))


async def _produce_with_moldau(workload: TransactionWorkload, name: str) -> None:
    draw = random.Random(name)
    producer: Producer | None = None
    for number in itertools.count():
        if workload.is_stopping:
            break
        try:
            if producer is None:
                producer = await _open_moldau(workload, name)
            operation = workload.recorder.begin(f"{name}.{number}")
            if not await _run_moldau(workload, producer, name, operation, number, draw):
                vanished, producer = producer, await _open_moldau(workload, name)
                await vanished.close()
        except Stopped:
            break
        except KafkaError:
            # The producer is fenced, or has another fatal error.
            if producer is not None:
                await producer.close()
                producer = None
        await asyncio.sleep(PAUSE_S)
    if producer is not None:
        await producer.close()


async def _open_moldau(workload: TransactionWorkload, name: str) -> Producer:
    while True:
        workload.check_deadline()
        producer = Producer(
            workload.bootstrap,
            transactional_id=name,
            transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
            delivery_timeout_ms=TRANSACTION_TIMEOUT_MS,
            max_block_ms=round(REQUEST_TIMEOUT_S * 1000),
            request_timeout_ms=5_000,
            linger_ms=1,
        )
        try:
            await producer.start()
            return producer
        except KafkaError:
            await producer.close()
            await asyncio.sleep(RETRY_S)


async def _run_moldau(
    workload: TransactionWorkload,
    producer: Producer,
    name: str,
    operation: TransactionOperation,
    number: int,
    draw: random.Random,
) -> bool:
    """Runs a transaction; returns False if it stays open."""
    recorder = workload.recorder
    transaction = producer.transaction()
    await transaction.begin()
    try:
        for (topic, partition), value in workload.draw_records(name, number, draw):
            recorder.send(operation, (topic, partition), value)
            await producer.send(topic, value, partition=partition)
        way = draw.random()
        if draw.random() < 0.5:
            await producer.flush()
        if way < COMMIT_SHARE:
            recorder.commit(operation)
            await _end_moldau(workload, transaction, commit=True)
            recorder.end(name, operation, TransactionOutcome.COMMITTED)
            return True
        if way >= COMMIT_SHARE + ABORT_SHARE:
            return False
    except TransactionAbortableError:
        pass
    await _end_moldau(workload, transaction, commit=False)
    recorder.end(name, operation, TransactionOutcome.ABORTED)
    return True


async def _end_moldau(workload: TransactionWorkload, transaction: Transaction, *, commit: bool) -> None:
    while True:
        try:
            await (transaction.commit() if commit else transaction.abort())
            return
        except RequestTimedOutError:
            workload.check_deadline()


def read_with_moldau(
    bootstrap: str, name: str, recorder: TransactionRecorder, partitions: Sequence[Partition], stop: threading.Event
) -> None:
    """Reads all partitions from offset 0 with read_committed."""

    async def read() -> None:
        async with Consumer(bootstrap, isolation_level="read_committed", auto_offset_reset="none") as consumer:
            consumer.assign([TopicPartition(topic, index) for topic, index in partitions])
            for topic, index in partitions:
                consumer.seek(TopicPartition(topic, index), 0)
            while not stop.is_set():
                found: dict[Partition, list[tuple[int, bytes]]] = {}
                for record in await consumer.poll(100):
                    found.setdefault((record.topic, record.partition), []).append((record.offset, record.value or b""))
                for partition, records in found.items():
                    recorder.poll(name, partition, records)

    asyncio.run(read())
