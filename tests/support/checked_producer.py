"""Producers that record acknowledgements, and the check that a topic has every acknowledged record at its offset, once
and in order."""

import time
from dataclasses import dataclass, field

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from support.topics import QUIET

PARTITIONS = 3
"""Partitions of the topics that are produced to here."""
DEADLINE_S = 30
RECONNECT = {"reconnect.backoff.ms": 10, "reconnect.backoff.max.ms": 50, "retry.backoff.ms": 10}


@dataclass
class CheckedProducer:
    """A producer and its acknowledged values by (partition, offset)."""

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


def idempotent_producer(bootstrap: str) -> CheckedProducer:
    """Creates a producer that resends batches after a crash; the broker must detect duplicates."""
    settings = {"enable.idempotence": True, "max.in.flight.requests.per.connection": 5, "linger.ms": 1}
    limits = {"batch.num.messages": 20, "queue.buffering.max.messages": 2000}
    return CheckedProducer(
        b"again", Producer({"bootstrap.servers": bootstrap, **settings, **limits, **RECONNECT, **QUIET})
    )


def plain_producer(bootstrap: str) -> CheckedProducer:
    """Creates a producer without retries: an unacknowledged record may or may not be in the log."""
    settings = {"acks": "all", "retries": 0, "max.in.flight.requests.per.connection": 5, "linger.ms": 1}
    limits = {"batch.num.messages": 20, "queue.buffering.max.messages": 2000, "message.timeout.ms": 5000}
    return CheckedProducer(
        b"once", Producer({"bootstrap.servers": bootstrap, **settings, **limits, **RECONNECT, **QUIET})
    )


def read_all(bootstrap: str, topic: str) -> dict[tuple[int, int], bytes]:
    """Returns all records of a topic by partition and offset, and checks that offsets have no gap."""
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


def check_log(found: dict[tuple[int, int], bytes], *senders: CheckedProducer) -> None:
    for sender in senders:
        for place, value in sender.acknowledged.items():
            assert found.get(place) == value, (
                f"{value[:20]!r} was acknowledged at {place}: {found.get(place)!r} is there"
            )
    for partition in range(PARTITIONS):
        values = [value for (where, _), value in sorted(found.items()) if where == partition]
        assert len(set(values)) == len(values), "a record is there twice"
        for sender in senders:
            own = [value for value in values if value.startswith(sender.name + b" ")]
            assert own == sorted(own), f"the records of {sender.name!r} are out of order"


def produce(topic: str, senders: tuple[CheckedProducer, ...], seconds: float) -> None:
    """Produces until every sender has an acknowledgement, and then for `seconds`."""
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
