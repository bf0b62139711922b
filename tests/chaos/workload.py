"""Clients that run during the faults and record what they do: confluent-kafka and aiokafka producers, an assigned
consumer and a group on one topic, transactional producers and their readers on another."""

import asyncio
import functools
import itertools
import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from aiokafka import AIOKafkaProducer  # type: ignore[import-untyped]
from aiokafka.errors import KafkaError as AioKafkaError  # type: ignore[import-untyped]
from confluent_kafka import KafkaError, Message, Producer

from chaos.consumers import read_assigned, read_in_group
from chaos.recorder import HistoryRecorder
from chaos.transaction_recorder import TransactionRecorder
from chaos.transactions import TransactionWorkload, produce_with_confluent, produce_with_moldau, read_with_moldau
from moldau.testing.simulation.checkers.history import Partition, SendOperation

# Errors are expected here, so do not log them.
logging.getLogger("aiokafka").setLevel(logging.CRITICAL)

SEND_INTERVAL_S = 0.004
POLL_S = 0.1
DELIVERY_TIMEOUT_MS = 600_000
"""Longer than any fault, so that every record gets a definite result."""
STOP_TIMEOUT_S = 10.0


TRANSACTIONAL_PRODUCERS = ("tv1-0", "tv1-1", "tv2-0", "tv2-1")
COMMITTED_READERS = ("committed-confluent", "committed-moldau")
UNCOMMITTED_READERS = ("uncommitted",)


class Workload:
    def __init__(
        self,
        bootstrap: str,
        partitions: Sequence[Partition],
        recorder: HistoryRecorder,
        transaction_partitions: Sequence[Partition],
        transaction_recorder: TransactionRecorder,
    ) -> None:
        self._bootstrap = bootstrap
        self._partitions = list(partitions)
        self._recorder = recorder
        self._transaction_partitions = list(transaction_partitions)
        self._transaction_recorder = transaction_recorder
        self._stop_sending = threading.Event()
        self._transactions = TransactionWorkload(
            bootstrap, self._transaction_partitions, transaction_recorder, self._stop_sending
        )
        self._stop_reading = threading.Event()
        self._deadline = float("inf")
        self._senders: list[threading.Thread] = []
        self._readers: list[threading.Thread] = []

    def start(self) -> None:
        for number in range(2):
            self._senders.append(self._thread(self._produce, f"confluent-{number}"))
        self._senders.append(self._thread(self._produce_with_aiokafka, "aiokafka"))
        self._readers.append(self._thread(self._reader(read_assigned), "reader-0"))
        for number in range(2):
            self._readers.append(self._thread(self._reader(read_in_group), f"member-{number}"))
        self._start_transactions()

    def _start_transactions(self) -> None:
        for name in TRANSACTIONAL_PRODUCERS:
            produce = produce_with_confluent if name.startswith("tv1") else produce_with_moldau
            self._senders.append(self._thread(functools.partial(produce, self._transactions), name))
        for name in (*COMMITTED_READERS, *UNCOMMITTED_READERS):
            read = self._read_with_moldau if name == "committed-moldau" else self._read_with_confluent
            self._readers.append(self._thread(read, name))

    def _read_with_moldau(self, name: str) -> None:
        read_with_moldau(
            self._bootstrap, name, self._transaction_recorder, self._transaction_partitions, self._stop_reading
        )

    def _read_with_confluent(self, name: str) -> None:
        read_assigned(
            self._bootstrap,
            name,
            self._transaction_recorder,
            self._transaction_partitions,
            self._stop_reading,
            isolation_level="read_uncommitted" if name in UNCOMMITTED_READERS else "read_committed",
        )

    def stop_sending(self, timeout_s: float) -> None:
        """Returns when all records have a result, or when the timeout shows that some never will."""
        self._deadline = self._transactions.deadline = time.monotonic() + timeout_s
        self._stop_sending.set()
        self._join(self._senders, timeout_s + STOP_TIMEOUT_S)

    def stop_reading(self, timeout_s: float) -> None:
        self._stop_reading.set()
        self._join(self._readers, timeout_s)

    def _join(self, threads: list[threading.Thread], timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                self._recorder.fail(f"stuck: {thread.name} does not end")

    def _thread(self, function: Callable[[str], None], name: str) -> threading.Thread:
        def run() -> None:
            try:
                function(name)
            except Exception as error:
                self._recorder.fail(f"{name} ended: {error!r}")

        thread = threading.Thread(target=run, name=name, daemon=True)
        thread.start()
        return thread

    def _reader(self, function: Callable[..., None]) -> Callable[[str], None]:
        return lambda name: function(self._bootstrap, name, self._recorder, self._partitions, self._stop_reading)

    def _produce(self, name: str) -> None:
        producer = Producer(
            {
                "bootstrap.servers": self._bootstrap,
                "enable.idempotence": True,
                "message.timeout.ms": DELIVERY_TIMEOUT_MS,
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
            send = self._recorder.send(name, (topic, partition), f"{name}-{number}".encode())
            while not self._stop_sending.is_set():
                try:
                    producer.produce(topic, send.values[0], partition=partition, on_delivery=self._delivered(send))
                    break
                except BufferError:
                    producer.poll(POLL_S)
            producer.poll(0)
            time.sleep(SEND_INTERVAL_S)
        remaining = producer.flush(max(0.0, self._deadline - time.monotonic()))
        if remaining:
            self._recorder.fail(f"stuck: {name} has no answer for {remaining} records")
            producer.purge()

    def _delivered(self, send: SendOperation) -> Callable[[KafkaError | None, Message], None]:
        def report(error: KafkaError | None, message: Message) -> None:
            if error is None:
                offset = message.offset()
                # librdkafka reports -1 if the broker confirmed a duplicate without an offset.
                self._recorder.acknowledge(send, offset if offset is not None and offset >= 0 else None)
            elif error.code() != KafkaError._PURGE_QUEUE:
                self._recorder.fail(f"{send.producer}: {error}")

        return report

    def _produce_with_aiokafka(self, name: str) -> None:
        asyncio.run(self._aiokafka(name))

    async def _aiokafka(self, name: str) -> None:
        """Runs one producer after the other: aiokafka fails on some faults."""
        numbers = itertools.count()
        for number in itertools.count():
            if self._stop_sending.is_set():
                return
            await self._run_producer(f"{name}.{number}", numbers)

    async def _run_producer(self, name: str, numbers: "itertools.count[int]") -> None:
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
                send = self._recorder.send(name, (topic, partition), f"aiokafka-{next(numbers)}".encode())
                done: Any = await producer.send_and_wait(topic, send.values[0], partition=partition)
                self._recorder.acknowledge(send, done.offset)
        except AioKafkaError:
            # The result of its last record is unknown; the checker allows for both.
            await asyncio.sleep(POLL_S)
        finally:
            try:
                await asyncio.wait_for(producer.stop(), STOP_TIMEOUT_S)
            except (TimeoutError, AioKafkaError):
                # It waits for responses that are not needed any more.
                pass
