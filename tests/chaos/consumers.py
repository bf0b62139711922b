"""Consumers of a run: one with assigned partitions, whose polls are recorded, and group members that commit."""

import threading
from collections.abc import Sequence
from typing import Any, Protocol

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from chaos.recorder import HistoryRecorder
from moldau.testing.simulation.checkers.history import Partition

GROUP = "chaos"
POLL_S = 0.1
COMMITTED_TIMEOUT_S = 5.0


class PollRecorder(Protocol):
    def poll(self, consumer: str, partition: Partition, records: Sequence[tuple[int, bytes]], /) -> None: ...

    def fail(self, text: str) -> None: ...


def read_assigned(
    bootstrap: str,
    name: str,
    recorder: PollRecorder,
    partitions: list[Partition],
    stop: threading.Event,
    isolation_level: str = "read_committed",
) -> None:
    """Reads all partitions from offset 0."""
    consumer = Consumer({**_settings(bootstrap, name), "isolation.level": isolation_level})
    consumer.assign([TopicPartition(topic, index, 0) for topic, index in partitions])
    while not stop.is_set():
        found: dict[Partition, list[tuple[int, bytes]]] = {}
        for message in consumer.consume(500, POLL_S):
            if _is_record(name, message, recorder):
                partition, offset = _position(message)
                found.setdefault(partition, []).append((offset, message.value() or b""))
        for partition, records in found.items():
            recorder.poll(name, partition, records)
    consumer.close()


def read_in_group(
    bootstrap: str, name: str, recorder: HistoryRecorder, partitions: list[Partition], stop: threading.Event
) -> None:
    def assigned(consumer: Consumer, given: list[TopicPartition]) -> None:
        _check_committed(consumer, name, recorder, given)

    consumer = Consumer({**_settings(bootstrap, GROUP), "session.timeout.ms": 6_000})
    consumer.subscribe(sorted({topic for topic, _ in partitions}), on_assign=assigned)
    while not stop.is_set():
        messages = [each for each in consumer.consume(500, POLL_S) if _is_record(name, each, recorder)]
        for message in messages:
            recorder.deliver(*_position(message))
        if messages:
            try:
                done = consumer.commit(asynchronous=False)
            except KafkaException:
                # A fault or a rebalance may fail a commit; the records are then delivered again.
                continue
            for each in done:
                if each.error is None:
                    recorder.commit((each.topic, each.partition), each.offset)
    consumer.close()


def check_committed(bootstrap: str, recorder: HistoryRecorder, partitions: list[Partition]) -> None:
    """Checks that everything ever committed is still committed at the end."""
    consumer = Consumer(_settings(bootstrap, GROUP))
    given = [TopicPartition(topic, index) for topic, index in partitions]
    if not _check_committed(consumer, "observer", recorder, given):
        recorder.fail("committed offsets could not be fetched at the end")
    consumer.close()


def _check_committed(consumer: Consumer, reader: str, recorder: HistoryRecorder, given: list[TopicPartition]) -> bool:
    at_least = recorder.committed()
    try:
        found = consumer.committed(given, timeout=COMMITTED_TIMEOUT_S)
    except KafkaException:
        return False
    offsets = {(each.topic, each.partition): each.offset for each in found if each.error is None}
    recorder.check_committed_offsets(reader, offsets, at_least)
    return len(offsets) == len(given)


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
        # A corrupted record must not pass as one that was sent.
        "check.crcs": True,
    }


def _position(message: Message) -> tuple[Partition, int]:
    topic, index, offset = message.topic(), message.partition(), message.offset()
    assert topic is not None
    assert index is not None
    assert offset is not None
    return (topic, index), offset


def _is_record(name: str, message: Message, recorder: PollRecorder) -> bool:
    error = message.error()
    if error is not None and error.code() in (
        KafkaError.OFFSET_OUT_OF_RANGE,
        KafkaError._AUTO_OFFSET_RESET,
        KafkaError._BAD_MSG,
    ):
        recorder.fail(f"{name}: {error}")
    return error is None
