"""`kill -9` of a leader under load, again and again: clients carry on by themselves and nothing acknowledged is lost,
doubled or out of order. MOLDAU_LEADER_KILLS sets how often (3); how long writes paused is printed, not judged."""

import os
import statistics
import threading
import time
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Message, Producer

from moldau.testing.simulation.checker import check
from moldau.testing.simulation.history import History, Partition, Send
from support.log_reader import all_records
from support.served_cluster import ServedCluster

pytestmark = pytest.mark.clients

KILLS = int(os.environ.get("MOLDAU_LEADER_KILLS", "3"))
PARTITIONS = 6
RESUME_TIMEOUT_S = 60
SEND_EVERY_S = 0.002


class Writer:
    """Sends to every partition in turn, all the while, with a producer's default settings."""

    def __init__(self, bootstrap: str, topic: str, history: History) -> None:
        self._producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
        self._partitions: list[Partition] = [(topic, index) for index in range(PARTITIONS)]
        self._history = history
        self.failures: list[str] = []
        self.newest_acknowledged: dict[int, float] = {}
        """By partition: when the newest of the acknowledged records was sent."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._stop.is_set():
            topic, index = self._partitions[number % PARTITIONS]
            value = f"w-{number}".encode()
            send = self._history.send("writer", (topic, index), [value], acks=-1, is_idempotent=True)
            self._producer.produce(
                topic, value, partition=index, on_delivery=self._told(send, time.monotonic())
            )
            self._producer.poll(0)
            number += 1
            self._stop.wait(SEND_EVERY_S)

    def _told(self, send: Send, sent_at: float):  # type: ignore[no-untyped-def]
        def told(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                self.failures.append(str(error))
                return
            self._history.acknowledge(send, message.offset() if message.offset() >= 0 else None)
            self.newest_acknowledged[send.partition[1]] = sent_at

        return told

    def wait_resumed(self, partitions: list[int], since: float) -> float:
        """Seconds until a record sent after `since` is acknowledged in each of the partitions."""
        deadline = time.monotonic() + RESUME_TIMEOUT_S
        while any(self.newest_acknowledged.get(index, 0.0) < since for index in partitions):
            assert time.monotonic() < deadline, "writes did not resume"
            time.sleep(0.005)
        return time.monotonic() - since

    def finish(self) -> None:
        self._stop.set()
        self._thread.join()
        assert self._producer.flush(RESUME_TIMEOUT_S) == 0


def test_writes_resume_after_leaders_are_killed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    history = History()
    paused: list[float] = []
    with ServedCluster(tmp_path) as cluster:
        cluster.create_topic("kills", partitions=PARTITIONS)
        cluster.wait_in_sync("kills")
        writer = Writer(cluster.bootstrap, "kills", history)
        writer.wait_resumed(list(range(PARTITIONS)), time.monotonic())
        for number in range(KILLS):
            led = {
                index: each.leader for index, each in cluster.metadata().topics["kills"].partitions.items()
            }
            victim = led[number % PARTITIONS]
            killed_at = time.monotonic()
            cluster.kill(victim)
            paused.append(
                writer.wait_resumed([at for at, leader in led.items() if leader == victim], killed_at)
            )
            cluster.start(victim)
            cluster.wait_in_sync("kills")
        writer.finish()
        for record in all_records(cluster.bootstrap, "kills"):
            history.logs.setdefault(("kills", record.partition), []).append(  # type: ignore[attr-defined]
                (record.offset, record.value or b"")
            )
    paused.sort()
    acknowledged = sum(send.is_acknowledged for send in history.sends)
    with capsys.disabled():
        print(
            f"\n{KILLS} kills of a leader, {acknowledged} writes acknowledged; writes paused for "
            f"{statistics.median(paused):.2f} s at p50, {paused[int(0.99 * (len(paused) - 1))]:.2f} s at p99, "
            f"{paused[-1]:.2f} s at most"
        )
    assert check(history) == []
    assert not writer.failures
    assert acknowledged == len(history.sends)
