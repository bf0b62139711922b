"""Full load on every core without a fault: no lease expires, no ISR shrinks, no leader changes. MOLDAU_LOAD_SECONDS
sets the duration (20)."""

import os
import threading
import time
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from support.broker_process_cluster import BrokerProcessCluster

# Other tests would take the processor from the nodes, so it runs alone.
pytestmark = [pytest.mark.clients, pytest.mark.slow]

SECONDS = float(os.environ.get("MOLDAU_LOAD_SECONDS", "20"))
PARTITIONS = 12
PRODUCERS = 2
TROUBLE = (
    "fenced",
    "ISRs changed",
    "quorum leader changed",
    "fetches from the leader fail",
    "partition is not writable for now",
)
"""Log texts about elections, ISR changes, lost leaders and full disks."""


class Load:
    """Produces and consumes as fast as the brokers allow, with large queues."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.acknowledged = 0
        self.failures: list[str] = []
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._produce, args=(bootstrap, topic), daemon=True) for _ in range(PRODUCERS)
        ]
        self._threads.append(threading.Thread(target=self._consume, args=(bootstrap, topic), daemon=True))
        self.consumed = 0
        for thread in self._threads:
            thread.start()

    def _produce(self, bootstrap: str, topic: str) -> None:
        producer = Producer(
            {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 20, "log_level": 3}
        )
        value = os.urandom(500) * 2

        def report(error: KafkaError | None, _: Message) -> None:
            if error is None:
                self.acknowledged += 1
            else:
                self.failures.append(str(error))

        while not self._stop.is_set():
            try:
                producer.produce(topic, value, on_delivery=report)
            except BufferError:
                producer.poll(0.05)
            producer.poll(0)
        if producer.flush(60):
            self.failures.append("records without an acknowledgement")

    def _consume(self, bootstrap: str, topic: str) -> None:
        consumer = Consumer(
            {"bootstrap.servers": bootstrap, "group.id": "load", "enable.auto.commit": False, "log_level": 3}
        )
        consumer.assign([TopicPartition(topic, index, 0) for index in range(PARTITIONS)])
        while not self._stop.is_set():
            self.consumed += len(consumer.consume(1000, 0.2))
        consumer.close()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()


def test_full_load_causes_no_election_and_no_isr_change(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # At 200 MB/s the disk would be full before the default retention check.
    with BrokerProcessCluster(tmp_path, settings={"log.retention.check.interval.ms": "5000"}) as cluster:
        cluster.create_topic("load", partitions=PARTITIONS, retention_bytes="50000000", segment_bytes="20000000")
        cluster.wait_in_sync("load")
        quiet = {node_id: len(node.output()) for node_id, node in cluster.nodes.items()}
        load = Load(cluster.bootstrap, "load")
        time.sleep(SECONDS)
        load.stop()
        trouble = [
            f"node {node_id}: {line}"
            for node_id, node in cluster.nodes.items()
            for line in node.output()[quiet[node_id] :].splitlines()
            if any(word in line for word in TROUBLE)
        ]
    with capsys.disabled():
        print(
            f"\n{SECONDS:.0f} s of full load: {load.acknowledged} writes acknowledged, {load.consumed} records read, "
            f"{len(trouble)} elections, fences and changes of in-sync sets"
        )
    assert not trouble
    assert not load.failures
    assert load.acknowledged > 0
    assert load.consumed > 0
