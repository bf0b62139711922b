"""Transactional load: producers that commit small transactions, with librdkafka (TV1) and with moldau.client (TV2)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count
from typing import Any
from uuid import uuid4

from moldau.client import Consumer, Producer, TopicPartition

TIMEOUT_S = 60.0
ABORTED_EVERY = 10
"""Every tenth transaction of `fill` is aborted."""


@dataclass(frozen=True)
class Load:
    bootstrap: str
    topic: str
    partitions: int
    value_bytes: int
    producers: int
    records: int
    """Records in a transaction. They go to one partition after the other."""


class Committed:
    """Transactions that were committed so far, with their durations in seconds."""

    def __init__(self, seconds: float) -> None:
        self.durations: list[float] = []
        self.began = time.perf_counter()
        self._deadline = self.began + seconds
        self.elapsed = 0.0

    @property
    def is_time_left(self) -> bool:
        return time.perf_counter() < self._deadline

    def add(self, began: float) -> None:
        now = time.perf_counter()
        self.durations.append(now - began)
        self.elapsed = now - self.began


class LibrdkafkaLoad:
    """One thread per producer: librdkafka's transaction calls block."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._value = b"v" * load.value_bytes
        self._producers = [self._open() for _ in range(load.producers)]

    def _open(self) -> Any:
        from confluent_kafka import Producer as LibrdkafkaProducer

        producer = LibrdkafkaProducer(
            {
                "bootstrap.servers": self._load.bootstrap,
                "transactional.id": f"bench-{uuid4().hex[:12]}",
                "linger.ms": 0,
                "socket.nagle.disable": True,
                "log_level": 3,
            }
        )
        producer.init_transactions(TIMEOUT_S)
        return producer

    def _write(self, producer: Any) -> None:
        producer.begin_transaction()
        for number in range(self._load.records):
            producer.produce(self._load.topic, self._value, partition=number % self._load.partitions)

    def commit_for(self, seconds: float) -> Committed:
        committed = Committed(seconds)

        def work(producer: Any) -> None:
            while committed.is_time_left:
                began = time.perf_counter()
                self._write(producer)
                producer.commit_transaction(TIMEOUT_S)
                committed.add(began)

        self._on_each_producer(work)
        return committed

    def fill(self, records: int) -> int:
        """Writes at least `records` records and aborts every tenth transaction. Returns how many were committed."""
        numbers = count()
        transactions = -(-records // self._load.records)

        def work(producer: Any) -> int:
            committed = 0
            while (number := next(numbers)) < transactions:
                self._write(producer)
                if number % ABORTED_EVERY:
                    producer.commit_transaction(TIMEOUT_S)
                    committed += self._load.records
                else:
                    producer.flush(TIMEOUT_S)
                    producer.abort_transaction(TIMEOUT_S)
            return committed

        return sum(self._on_each_producer(work))

    def end_to_end(self, transactions: int) -> list[float]:
        """Returns the seconds from the begin of each transaction until a read_committed consumer has its record."""
        from confluent_kafka import OFFSET_END, KafkaException
        from confluent_kafka import Consumer as LibrdkafkaConsumer
        from confluent_kafka import TopicPartition as LibrdkafkaPartition

        consumer = LibrdkafkaConsumer(
            {
                "bootstrap.servers": self._load.bootstrap,
                "group.id": "bench",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "socket.nagle.disable": True,
                "log_level": 3,
            }
        )
        consumer.assign([LibrdkafkaPartition(self._load.topic, 0, OFFSET_END)])
        consumer.poll(1.0)
        taken = []
        for _ in range(transactions):
            began = time.perf_counter()
            self._write(self._producers[0])
            self._producers[0].commit_transaction(TIMEOUT_S)
            message = consumer.poll(TIMEOUT_S)
            if message is None:
                raise TimeoutError("a committed record did not reach the consumer")
            if message.error() is not None:
                raise KafkaException(message.error())
            taken.append(time.perf_counter() - began)
        consumer.close()
        return taken

    def _on_each_producer(self, work: Callable[[Any], Any]) -> list[Any]:
        with ThreadPoolExecutor(len(self._producers)) as threads:
            return list(threads.map(work, self._producers))


class MoldauClientLoad:
    """All producers on one event loop, each with its own connections."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._value = b"v" * load.value_bytes
        self._runner = asyncio.Runner()
        self._producers = self._runner.run(self._open())

    async def _open(self) -> list[Producer]:
        producers = [
            Producer(self._load.bootstrap, transactional_id=f"bench-{uuid4().hex[:12]}", linger_ms=0)
            for _ in range(self._load.producers)
        ]
        for producer in producers:
            await producer.start()
        return producers

    async def _commit(self, producer: Producer) -> None:
        async with producer.transaction():
            for number in range(self._load.records):
                await producer.send(self._load.topic, self._value, partition=number % self._load.partitions)

    def commit_for(self, seconds: float) -> Committed:
        committed = Committed(seconds)

        async def work(producer: Producer) -> None:
            while committed.is_time_left:
                began = time.perf_counter()
                await self._commit(producer)
                committed.add(began)

        async def all_producers() -> None:
            await asyncio.gather(*map(work, self._producers))

        self._runner.run(all_producers())
        return committed

    def end_to_end(self, transactions: int) -> list[float]:
        """Returns the seconds from the begin of each transaction until a read_committed consumer has its record."""

        async def measure() -> list[float]:
            taken = []
            partition = TopicPartition(self._load.topic, 0)
            async with Consumer(self._load.bootstrap, isolation_level="read_committed") as consumer:
                consumer.assign([partition])
                consumer.seek_to_end([partition])
                await consumer.position(partition)
                for _ in range(transactions):
                    began = time.perf_counter()
                    await self._commit(self._producers[0])
                    async with asyncio.timeout(TIMEOUT_S):
                        await anext(aiter(consumer))
                    taken.append(time.perf_counter() - began)
            return taken

        return self._runner.run(measure())


CLIENTS: dict[str, type[LibrdkafkaLoad] | type[MoldauClientLoad]] = {
    "librdkafka": LibrdkafkaLoad,
    "moldau.client": MoldauClientLoad,
}
