"""`kill -9` in the middle of acks=all production, again and again on the same data: every acknowledged record is
there after each restart, once, at its offset, in order. MOLDAU_KILLS sets how often (20)."""

import os
import random
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from support.served import Served
from support.topics import QUIET, Topics

KILLS = int(os.environ.get("MOLDAU_KILLS", "20"))
SEED = int(os.environ.get("MOLDAU_SEED", "1"))
PARTITIONS = 3
DEADLINE_S = 30
RECONNECT = {"reconnect.backoff.ms": 10, "reconnect.backoff.max.ms": 50, "retry.backoff.ms": 10}


@dataclass
class Sender:
    """A producer and what it was told: the value acknowledged at each (partition, offset)."""

    name: bytes
    producer: Producer
    sent: int = 0
    acknowledged: dict[tuple[int, int], bytes] = field(default_factory=dict)
    failed: set[bytes] = field(default_factory=set)

    def send(self, topic: str, count: int) -> None:
        for _ in range(count):
            value = b"%s %09d " % (self.name, self.sent) + b"x" * (self.sent % 300)
            try:
                self.producer.produce(topic, value, partition=self.sent % PARTITIONS, on_delivery=self._report)
            except BufferError:
                return
            self.sent += 1

    def _report(self, error: KafkaError | None, message: Message) -> None:
        value: bytes = message.value()
        if error is not None:
            self.failed.add(value)
            return
        place = (message.partition(), message.offset())
        assert place not in self.acknowledged, f"two records were acknowledged at {place}"
        self.acknowledged[place] = value


def idempotent(bootstrap: str) -> Sender:
    """Keeps its batches through a crash and sends them again: the broker must know which it has."""
    settings = {"enable.idempotence": True, "max.in.flight.requests.per.connection": 5, "linger.ms": 1}
    limits = {"batch.num.messages": 20, "queue.buffering.max.messages": 2000}
    return Sender(b"again", Producer({"bootstrap.servers": bootstrap, **settings, **limits, **RECONNECT, **QUIET}))


def at_most_once(bootstrap: str) -> Sender:
    """Sends nothing twice: what is not acknowledged may or may not be there."""
    settings = {"acks": "all", "retries": 0, "max.in.flight.requests.per.connection": 5, "linger.ms": 1}
    limits = {"batch.num.messages": 20, "queue.buffering.max.messages": 2000, "message.timeout.ms": 5000}
    return Sender(b"once", Producer({"bootstrap.servers": bootstrap, **settings, **limits, **RECONNECT, **QUIET}))


def everything(bootstrap: str, topic: str) -> dict[tuple[int, int], bytes]:
    """All records of a topic, by partition and offset; reading goes up in offsets without a gap."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "check", "enable.auto.commit": False, **QUIET})
    found: dict[tuple[int, int], bytes] = {}
    position = [0] * PARTITIONS
    ends = [
        consumer.get_watermark_offsets(TopicPartition(topic, each), timeout=DEADLINE_S)[1] for each in range(PARTITIONS)
    ]
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    deadline = time.monotonic() + DEADLINE_S
    while any(position[each] < ends[each] for each in range(PARTITIONS)):
        assert time.monotonic() < deadline, f"read up to {position} of {ends}"
        for message in consumer.consume(5000, timeout=0.05):
            assert message.error() is None, message.error()
            partition, offset = message.partition(), message.offset()
            assert offset == position[partition], f"offset {offset} came after {position[partition] - 1}"
            position[partition] += 1
            found[partition, offset] = message.value()
    consumer.close()
    return found


def check(found: dict[tuple[int, int], bytes], *senders: Sender) -> None:
    for sender in senders:
        for place, value in sender.acknowledged.items():
            assert found.get(place) == value, f"{value[:20]!r} was acknowledged at {place}: {found.get(place)!r} is there"
    for partition in range(PARTITIONS):
        values = [value for (where, _), value in sorted(found.items()) if where == partition]
        assert len(set(values)) == len(values), "a record is there twice"
        for sender in senders:
            own = [value for value in values if value.startswith(sender.name + b" ")]
            assert own == sorted(own), f"the records of {sender.name!r} are out of order"


def produce(topic: str, senders: tuple[Sender, ...], seconds: float) -> None:
    """Produces until every sender has had an acknowledgement, and then for so long."""
    before = [len(sender.acknowledged) for sender in senders]
    deadline = time.monotonic() + DEADLINE_S
    end = None
    while end is None or time.monotonic() < end:
        assert time.monotonic() < deadline, "nothing was acknowledged"
        for sender in senders:
            sender.send(topic, 50)
            sender.producer.poll(0.001)
        if end is None and all(len(s.acknowledged) > had for s, had in zip(senders, before, strict=True)):
            end = time.monotonic() + seconds


@pytest.mark.slow
def test_acknowledged_records_survive_kill_nine(tmp_path: Path, only_moldau: None) -> None:
    chance = random.Random(SEED)
    with Served(tmp_path / "data") as served:
        topic = Topics(served.bootstrap).create(partitions=PARTITIONS, segment_bytes=1_000_000)
        senders = retrying, once = idempotent(served.bootstrap), at_most_once(served.bootstrap)
        for _ in range(KILLS):
            produce(topic, senders, chance.uniform(0.0, 0.3))
            served.kill()
            if chance.random() < 0.3:
                served.start_and_kill(after_s=chance.uniform(0.05, 0.5))
            for sender in senders:
                sender.producer.poll(0)
            served.start()
            check(everything(served.bootstrap, topic), *senders)
        for sender in senders:
            assert sender.producer.flush(DEADLINE_S) == 0
        check(everything(served.bootstrap, topic), *senders)
        assert not retrying.failed, "an idempotent producer gave up"
        assert len(retrying.acknowledged) == retrying.sent
        assert once.failed, "no kill came while a request was under way"


def test_topics_and_configs_survive_kill_nine(tmp_path: Path, only_moldau: None) -> None:
    with Served(tmp_path / "data") as served:
        names = set()
        for number in range(5):
            topics = Topics(served.bootstrap)
            names.add(topics.create(partitions=2, retention_ms=100_000 + number))
            served.kill()
            served.start()
            assert set(Topics(served.bootstrap).admin.list_topics(timeout=DEADLINE_S).topics) == names


def test_a_deleted_topic_stays_deleted_after_kill_nine(tmp_path: Path, only_moldau: None) -> None:
    with Served(tmp_path / "data") as served:
        topics = Topics(served.bootstrap)
        kept, gone = topics.create(), topics.create()
        topics.admin.delete_topics([gone])[gone].result(DEADLINE_S)
        served.kill()
        served.start()
        assert set(Topics(served.bootstrap).admin.list_topics(timeout=DEADLINE_S).topics) == {kept}
