"""Clients that work all the while, and write down what they did and saw: confluent-kafka and aiokafka, producing,
reading by assignment and in a group."""

import asyncio
import itertools
import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError as AioKafkaError
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from moldau.testing.simulation.history import History, Partition, Poll, Send

# Faults are what this is about; clients need not write of each.
logging.getLogger("aiokafka").setLevel(logging.CRITICAL)

SEND_EVERY_S = 0.004
POLL_S = 0.1
GIVE_UP_MS = 600_000
"""Longer than any fault: a producer that gives up would leave open what became of its records."""


class Journal:
    """The history, written by many threads, and the times of acknowledgements."""

    def __init__(self) -> None:
        self.history = History()
        self.acknowledged_at: list[float] = []
        self.failures: list[str] = []
        self.delivered: dict[Partition, set[int]] = {}
        """What the group's members have been given, by offset."""
        self._lock = threading.Lock()

    def send(self, producer: str, partition: Partition, value: bytes) -> Send:
        with self._lock:
            return self.history.send(producer, partition, [value], acks=-1, is_idempotent=True)

    def acknowledge(self, send: Send, offset: int) -> None:
        with self._lock:
            self.history.acknowledge(send, offset)
            self.acknowledged_at.append(time.monotonic())

    def fail(self, text: str) -> None:
        with self._lock:
            self.failures.append(text)

    def poll(self, consumer: str, partition: Partition, records: Sequence[tuple[int, bytes]]) -> None:
        with self._lock:
            end = records[-1][0] + 1
            self.history.polls.append(Poll(consumer, partition, records[0][0], end, records))

    def deliver(self, partition: Partition, offset: int) -> None:
        with self._lock:
            self.delivered.setdefault(partition, set()).add(offset)

    def longest_pause_s(self, began: float, ended: float) -> float:
        """The longest time in which nothing was acknowledged."""
        with self._lock:
            times = [began, *(at for at in self.acknowledged_at if began <= at <= ended), ended]
        return max(after - before for before, after in itertools.pairwise(times))


class Traffic:
    def __init__(self, bootstrap: str, partitions: Sequence[Partition], journal: Journal) -> None:
        self._bootstrap = bootstrap
        self._partitions = partitions
        self._journal = journal
        self._stop_sending = threading.Event()
        self._stop_reading = threading.Event()
        self._senders: list[threading.Thread] = []
        self._readers: list[threading.Thread] = []

    def start(self) -> None:
        for number in range(2):
            self._senders.append(self._thread(self._produce, f"confluent-{number}"))
        self._senders.append(self._thread(self._produce_with_aiokafka, "aiokafka"))
        self._readers.append(self._thread(self._read, "reader-0"))
        for number in range(2):
            self._readers.append(self._thread(self._read_in_group, f"member-{number}"))

    def stop_sending(self) -> None:
        """Returns when every producer has an answer for everything."""
        self._stop_sending.set()
        for thread in self._senders:
            thread.join()

    def stop_reading(self) -> None:
        self._stop_reading.set()
        for thread in self._readers:
            thread.join()

    def _thread(self, work: Callable[[str], None], name: str) -> threading.Thread:
        def run() -> None:
            try:
                work(name)
            except Exception as error:
                self._journal.fail(f"{name} ended: {error!r}")

        thread = threading.Thread(target=run, name=name, daemon=True)
        thread.start()
        return thread

    # Producing

    def _produce(self, name: str) -> None:
        producer = Producer(
            {
                "bootstrap.servers": self._bootstrap,
                "enable.idempotence": True,
                "message.timeout.ms": GIVE_UP_MS,
                "request.timeout.ms": 5_000,
                "log_level": 0,
                "socket.timeout.ms": 6_000,
                "linger.ms": 5,
                "reconnect.backoff.max.ms": 500,
                "topic.metadata.refresh.interval.ms": 2_000,
            }
        )
        places = itertools.cycle(self._partitions)
        for number in itertools.count():
            if self._stop_sending.is_set():
                break
            topic, partition = next(places)
            send = self._journal.send(name, (topic, partition), f"{name}-{number}".encode())
            while True:
                try:
                    producer.produce(
                        topic, send.values[0], partition=partition, on_delivery=self._delivered(send)
                    )
                    break
                except BufferError:
                    producer.poll(POLL_S)
            producer.poll(0)
            time.sleep(SEND_EVERY_S)
        left = producer.flush(GIVE_UP_MS / 1000)
        if left:
            self._journal.fail(f"{name} has no answer for {left} records")

    def _delivered(self, send: Send) -> Callable[[KafkaError | None, Message], None]:
        def told(error: KafkaError | None, message: Message) -> None:
            if error is None:
                offset = message.offset()
                # librdkafka says -1 where the broker confirmed a repetition without an offset.
                self._journal.acknowledge(send, offset if offset is not None and offset >= 0 else None)  # type: ignore[arg-type]
            else:
                self._journal.fail(f"{send.producer}: {error}")

        return told

    def _produce_with_aiokafka(self, name: str) -> None:
        asyncio.run(self._aiokafka(name))

    async def _aiokafka(self, name: str) -> None:
        """One producer after the other: aiokafka gives up on some faults, and then says so."""
        numbers = itertools.count()
        for life in itertools.count():
            if self._stop_sending.is_set():
                return
            await self._one_life(f"{name}.{life}", numbers)

    async def _one_life(self, name: str, numbers: "itertools.count[int]") -> None:
        producer = AIOKafkaProducer(
            bootstrap_servers=self._bootstrap,
            enable_idempotence=True,
            request_timeout_ms=6_000,
            retry_backoff_ms=100,
            metadata_max_age_ms=2_000,
        )
        try:
            await producer.start()
            places = itertools.cycle(self._partitions)
            while not self._stop_sending.is_set():
                topic, partition = next(places)
                send = self._journal.send(name, (topic, partition), f"aiokafka-{next(numbers)}".encode())
                done: Any = await producer.send_and_wait(topic, send.values[0], partition=partition)
                self._journal.acknowledge(send, done.offset)
        except AioKafkaError:
            # What became of its last record is open; the checker allows for both.
            await asyncio.sleep(POLL_S)
        finally:
            await producer.stop()

    # Reading

    def _read(self, name: str) -> None:
        consumer = Consumer(self._reading(name))
        consumer.assign([TopicPartition(topic, index, 0) for topic, index in self._partitions])
        while not self._stop_reading.is_set():
            found: dict[Partition, list[tuple[int, bytes]]] = {}
            for message in consumer.consume(500, POLL_S):
                if self._is_record(name, message):
                    found.setdefault((message.topic(), message.partition()), []).append(
                        (message.offset(), message.value())
                    )
            for partition, records in found.items():
                self._journal.poll(name, partition, records)
        consumer.close()

    def _read_in_group(self, name: str) -> None:
        settings = {**self._reading("chaos"), "enable.auto.commit": False, "session.timeout.ms": 6_000}
        consumer = Consumer(settings)
        consumer.subscribe(sorted({topic for topic, _ in self._partitions}))
        while not self._stop_reading.is_set():
            messages = [each for each in consumer.consume(500, POLL_S) if self._is_record(name, each)]
            for message in messages:
                self._journal.deliver((message.topic(), message.partition()), message.offset())
            if messages:
                try:
                    consumer.commit(asynchronous=False)
                except KafkaException:
                    # A commit may be lost to a rebalance or a fault: its records then come again, to somebody.
                    continue
        consumer.close()

    def _reading(self, group: str) -> dict[str, Any]:
        return {
            "bootstrap.servers": self._bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "socket.timeout.ms": 6_000,
            "reconnect.backoff.max.ms": 500,
            "log_level": 0,
            "topic.metadata.refresh.interval.ms": 2_000,
        }

    def _is_record(self, name: str, message: Message) -> bool:
        error = message.error()
        if error is not None and error.code() in (
            KafkaError.OFFSET_OUT_OF_RANGE,
            KafkaError._AUTO_OFFSET_RESET,
        ):
            self._journal.fail(f"{name}: {error}")
        return error is None
