"""Steady producers of one client library, in their own process: each sends a record per interval and measures the
longest time in which one of its partitions acknowledged nothing.

The harness writes one command per line to the standard input and reads one line for each: `start BOOTSTRAP INTERVAL
PRODUCER...` (see `ProducerSettings`), `mark` starts the measurement, `report` returns the pauses when every partition
has acknowledged a record that was sent after this command, `stop`.
"""

from __future__ import annotations

import abc
import asyncio
import logging
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

VALUE = bytes(100)
STEADY_RECORDS = 50
"""A partition is steady when it has acknowledged this many records."""
TIMEOUT_S = 90.0
POLL_S = 0.005
LATE_S_MAX = 0.02
"""A producer that is later than this does not catch up with the records it has not sent."""


@dataclass(frozen=True)
class ProducerSettings:
    """One producer; on the command line `topic,partitions,idempotent,linger_ms`, for example `orders,6,1,5`."""

    topic: str
    partitions: int
    idempotent: bool
    linger_ms: int

    @classmethod
    def parse(cls, text: str) -> ProducerSettings:
        topic, partitions, idempotent, linger_ms = text.split(",")
        return cls(topic, int(partitions), idempotent == "1", int(linger_ms))

    def __str__(self) -> str:
        return f"{self.topic},{self.partitions},{int(self.idempotent)},{self.linger_ms}"


class PauseMeter:
    """The acknowledgements of one producer."""

    def __init__(self, settings: ProducerSettings) -> None:
        partitions = settings.partitions
        self._counts = [0] * partitions
        self._latest = [0.0] * partitions
        """When each partition acknowledged its latest record."""
        self._newest_sent = [0.0] * partitions
        """When the newest acknowledged record of each partition was sent."""
        self._pause = 0.0
        self.failures: list[str] = []

    def acknowledged(self, partition: int, sent_at: float) -> None:
        now = time.monotonic()
        if self._latest[partition]:
            self._pause = max(self._pause, now - self._latest[partition])
        self._latest[partition] = now
        self._newest_sent[partition] = max(self._newest_sent[partition], sent_at)
        self._counts[partition] += 1

    def failed(self, error: object) -> None:
        self.failures.append(f"{type(error).__name__}: {error}")

    @property
    def is_steady(self) -> bool:
        return min(self._counts) >= STEADY_RECORDS

    def mark(self) -> None:
        self._pause = 0.0

    def has_resumed(self, since: float) -> bool:
        """Returns whether every partition has acknowledged a record that was sent after `since`."""
        return min(self._newest_sent) > since

    @property
    def pause(self) -> float:
        """The longest time in which a partition acknowledged nothing, including one that has not ended."""
        return max(self._pause, time.monotonic() - min(self._latest))


class Pace:
    """When to send the next record."""

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._next = time.monotonic()

    def delay_s(self) -> float:
        now = time.monotonic()
        self._next = max(self._next + self._interval_s, now - LATE_S_MAX)
        return max(0.0, self._next - now)


class Library(abc.ABC):
    """The producers of one client library."""

    def __init__(self, bootstrap: str, interval_s: float, producers: Sequence[ProducerSettings]) -> None:
        self.bootstrap = bootstrap
        self.interval_s = interval_s
        self.meters = [PauseMeter(each) for each in producers]

    @abc.abstractmethod
    def stop(self) -> None: ...


class ConfluentKafka(Library):
    """librdkafka, with a thread for each producer."""

    def __init__(self, bootstrap: str, interval_s: float, producers: Sequence[ProducerSettings]) -> None:
        super().__init__(bootstrap, interval_s, producers)
        self._stop = threading.Event()
        pairs = zip(producers, self.meters, strict=True)
        self._threads = [threading.Thread(target=self._run, args=pair, daemon=True) for pair in pairs]
        for thread in self._threads:
            thread.start()

    def _run(self, settings: ProducerSettings, meter: PauseMeter) -> None:
        from confluent_kafka import Producer

        producer = Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "enable.idempotence": settings.idempotent,
                "acks": "all",
                "linger.ms": settings.linger_ms,
                "log_level": 0,
            }
        )
        pace, number = Pace(self.interval_s), 0
        while not self._stop.is_set():
            partition, sent_at = number % settings.partitions, time.monotonic()

            def on_delivery(error: Any, message: Any, partition: int = partition, sent_at: float = sent_at) -> None:
                if error is None:
                    meter.acknowledged(partition, sent_at)
                else:
                    meter.failed(error)

            producer.produce(settings.topic, VALUE, partition=partition, on_delivery=on_delivery)
            number += 1
            producer.poll(pace.delay_s())
        producer.flush(TIMEOUT_S)

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(TIMEOUT_S)


class AsyncLibrary(Library):
    """A library for asyncio: all producers on one event loop in a thread."""

    def __init__(self, bootstrap: str, interval_s: float, producers: Sequence[ProducerSettings]) -> None:
        super().__init__(bootstrap, interval_s, producers)
        self._is_stopped = False
        self._producers = producers
        self._thread = threading.Thread(target=self._run_loop, daemon=True)
        self._thread.start()

    def _run_loop(self) -> None:
        import uvloop

        uvloop.run(self._run_all())

    async def _run_all(self) -> None:
        runs = [self._run(*pair) for pair in zip(self._producers, self.meters, strict=True)]
        for result in await asyncio.gather(*runs, return_exceptions=True):
            if isinstance(result, BaseException):
                self.meters[0].failed(result)

    @abc.abstractmethod
    async def _run(self, settings: ProducerSettings, meter: PauseMeter) -> None: ...

    async def _send_steadily(
        self,
        settings: ProducerSettings,
        meter: PauseMeter,
        send: Callable[[str, bytes, int], Coroutine[Any, Any, asyncio.Future[Any]]],
    ) -> None:
        pace, number = Pace(self.interval_s), 0
        while not self._is_stopped:
            partition, sent_at = number % settings.partitions, time.monotonic()

            def on_done(future: asyncio.Future[Any], partition: int = partition, sent_at: float = sent_at) -> None:
                error = future.exception()
                if error is None:
                    meter.acknowledged(partition, sent_at)
                else:
                    meter.failed(error)

            try:
                (await send(settings.topic, VALUE, partition)).add_done_callback(on_done)
            except Exception as error:
                meter.failed(error)
            number += 1
            await asyncio.sleep(pace.delay_s())

    def stop(self) -> None:
        self._is_stopped = True
        self._thread.join(TIMEOUT_S)


class MoldauClient(AsyncLibrary):
    async def _run(self, settings: ProducerSettings, meter: PauseMeter) -> None:
        from moldau.client import Producer

        async with Producer(self.bootstrap, idempotent=settings.idempotent, linger_ms=settings.linger_ms) as producer:

            async def send(topic: str, value: bytes, partition: int) -> asyncio.Future[Any]:
                return await producer.send(topic, value, partition=partition)

            await self._send_steadily(settings, meter, send)


class AioKafka(AsyncLibrary):
    async def _run(self, settings: ProducerSettings, meter: PauseMeter) -> None:
        from aiokafka import AIOKafkaProducer  # type: ignore[import-untyped]

        # No logs about unreachable nodes: they are killed on purpose.
        logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
        producer = AIOKafkaProducer(
            bootstrap_servers=self.bootstrap,
            enable_idempotence=settings.idempotent,
            linger_ms=settings.linger_ms,
            acks="all",
        )
        await producer.start()

        async def send(topic: str, value: bytes, partition: int) -> asyncio.Future[Any]:
            future: asyncio.Future[Any] = await producer.send(topic, value, partition=partition)
            return future

        try:
            await self._send_steadily(settings, meter, send)
        finally:
            await producer.stop()


LIBRARIES: dict[str, type[Library]] = {
    "confluent-kafka": ConfluentKafka,
    "moldau.client": MoldauClient,
    "aiokafka": AioKafka,
}


def wait_for(condition: Callable[[PauseMeter], bool], meters: Sequence[PauseMeter]) -> bool:
    """Returns whether the condition becomes true for all meters in time."""
    deadline = time.monotonic() + TIMEOUT_S
    while not all(map(condition, meters)):
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_S)
    return True


def start(running: Library) -> str:
    if wait_for(lambda meter: meter.is_steady, running.meters):
        return "steady"
    return f"failed: not steady, errors {[meter.failures[:1] for meter in running.meters]}"


def mark(running: Library) -> str:
    for meter in running.meters:
        meter.mark()
    return "marked"


def report(running: Library) -> str:
    """Returns the pause of each producer in seconds, and the number of its records that failed."""
    now = time.monotonic()
    wait_for(lambda meter: meter.has_resumed(now), running.meters)
    for failure in [meter.failures[0] for meter in running.meters if meter.failures]:
        print(failure, file=sys.stderr, flush=True)
    return " ".join(f"{meter.pause:.4f},{len(meter.failures)}" for meter in running.meters)


def stop(running: Library) -> str:
    running.stop()
    return "stopped"


COMMANDS = {"start": start, "mark": mark, "report": report, "stop": stop}


def main() -> None:
    library = LIBRARIES[sys.argv[1]]
    running: Library | None = None
    for line in sys.stdin:
        command, *words = line.split()
        if command == "start":
            bootstrap, interval_s, *producers = words
            running = library(bootstrap, float(interval_s), [ProducerSettings.parse(each) for each in producers])
        assert running is not None, "the first command is `start`"
        print(COMMANDS[command](running), flush=True)


if __name__ == "__main__":
    main()
