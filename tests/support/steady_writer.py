"""A producer that writes to all partitions of a topic in turn, to measure how long writes pause during a fault."""

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from confluent_kafka import KafkaError, Message, Producer

from moldau.testing.simulation.checkers.history import History, Partition, SendOperation

RESUME_TIMEOUT_S = 60
SEND_INTERVAL_S = 0.002


class SteadyWriter:
    """Uses a producer's default settings unless `settings` overrides them."""

    def __init__(
        self, bootstrap: str, topic: str, partitions: int, history: History, settings: Mapping[str, int] | None = None
    ) -> None:
        self._producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, **(settings or {})})
        self._partitions: list[Partition] = [(topic, index) for index in range(partitions)]
        self._history = history
        self.failures: list[str] = []
        self._newest_acknowledged: dict[int, float] = {}
        """By partition: when the latest acknowledged record was sent."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._stop.is_set():
            topic, index = self._partitions[number % len(self._partitions)]
            value = f"w-{number}".encode()
            send = self._history.send("writer", (topic, index), [value], acks=-1, is_idempotent=True)
            self._producer.produce(topic, value, partition=index, on_delivery=self._on_delivery(send, time.monotonic()))
            self._producer.poll(0)
            number += 1
            self._stop.wait(SEND_INTERVAL_S)

    def _on_delivery(self, send: SendOperation, sent_at: float) -> Callable[[KafkaError | None, Message], None]:
        def report(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                self.failures.append(str(error))
                return
            offset = message.offset()
            self._history.acknowledge(send, offset if offset is not None and offset >= 0 else None)
            self._newest_acknowledged[send.partition[1]] = sent_at

        return report

    def wait_resumed(self, partitions: Sequence[int], since: float) -> float:
        """Returns the seconds until each partition has acknowledged a record that was sent after `since`."""
        deadline = time.monotonic() + RESUME_TIMEOUT_S
        while any(self._newest_acknowledged.get(index, 0.0) < since for index in partitions):
            assert time.monotonic() < deadline, "writes did not resume"
            time.sleep(0.005)
        return time.monotonic() - since

    def finish(self) -> None:
        self._stop.set()
        self._thread.join()
        assert self._producer.flush(RESUME_TIMEOUT_S) == 0


def format_pauses(paused: Sequence[float]) -> str:
    """Formats the lengths of write pauses as one line."""
    ordered = sorted(paused)
    median, late = (ordered[math.ceil(share * len(ordered)) - 1] for share in (0.5, 0.99))
    return f"writes paused for {median:.2f} s at p50, {late:.2f} s at p99, {ordered[-1]:.2f} s at most"
