"""Readers of a run: one by assignment, whose every poll is written down, and members of a group that commit."""

import threading
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from chaos.journal import Journal
from moldau.testing.simulation.checkers.history import Partition

GROUP = "chaos"
POLL_S = 0.1
ASK_S = 5.0


def read(
    bootstrap: str, name: str, journal: Journal, partitions: list[Partition], stop: threading.Event
) -> None:
    """Everything from the beginning, in order and without a gap."""
    consumer = Consumer(_settings(bootstrap, name))
    consumer.assign([TopicPartition(topic, index, 0) for topic, index in partitions])
    while not stop.is_set():
        found: dict[Partition, list[tuple[int, bytes]]] = {}
        for message in consumer.consume(500, POLL_S):
            if _is_record(name, message, journal):
                partition, offset = _place_of(message)
                found.setdefault(partition, []).append((offset, message.value() or b""))
        for partition, records in found.items():
            journal.poll(name, partition, records)
    consumer.close()


def read_in_group(
    bootstrap: str, name: str, journal: Journal, partitions: list[Partition], stop: threading.Event
) -> None:
    def assigned(consumer: Consumer, given: list[TopicPartition]) -> None:
        _look_at_committed(consumer, name, journal, given)

    consumer = Consumer({**_settings(bootstrap, GROUP), "session.timeout.ms": 6_000})
    consumer.subscribe(sorted({topic for topic, _ in partitions}), on_assign=assigned)
    while not stop.is_set():
        messages = [each for each in consumer.consume(500, POLL_S) if _is_record(name, each, journal)]
        for message in messages:
            journal.deliver(*_place_of(message))
        if messages:
            try:
                done = consumer.commit(asynchronous=False)
            except KafkaException:
                # A commit may be lost to a rebalance or a fault: its records then come again, to somebody.
                continue
            for each in done:
                if each.error is None:
                    journal.commit((each.topic, each.partition), each.offset)
    consumer.close()


def check_committed(bootstrap: str, journal: Journal, partitions: list[Partition]) -> None:
    """What was ever committed is, at the end."""
    consumer = Consumer(_settings(bootstrap, GROUP))
    given = [TopicPartition(topic, index) for topic, index in partitions]
    if not _look_at_committed(consumer, "an onlooker", journal, given):
        journal.fail("nobody could be asked in the end what is committed")
    consumer.close()


def _look_at_committed(consumer: Consumer, who: str, journal: Journal, given: list[TopicPartition]) -> bool:
    at_least = journal.committed()
    try:
        found = consumer.committed(given, timeout=ASK_S)
    except KafkaException:
        return False
    answers = {(each.topic, each.partition): each.offset for each in found if each.error is None}
    journal.find_committed(who, answers, at_least)
    return len(answers) == len(given)


def _settings(bootstrap: str, group: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "socket.timeout.ms": 6_000,
        "reconnect.backoff.max.ms": 500,
        "log_level": 0,
        "topic.metadata.refresh.interval.ms": 2_000,
        # A record that was damaged on the way must not be taken for one that was sent.
        "check.crcs": True,
    }


def _place_of(message: Message) -> tuple[Partition, int]:
    topic, index, offset = message.topic(), message.partition(), message.offset()
    assert topic is not None
    assert index is not None
    assert offset is not None
    return (topic, index), offset


def _is_record(name: str, message: Message, journal: Journal) -> bool:
    error = message.error()
    if error is not None and error.code() in (
        KafkaError.OFFSET_OUT_OF_RANGE,
        KafkaError._AUTO_OFFSET_RESET,
        KafkaError._BAD_MSG,
    ):
        journal.fail(f"{name}: {error}")
    return error is None
