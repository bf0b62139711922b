"""confluent-kafka (librdkafka, TV1) commits offsets of consumer groups in transactions."""

import time
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from support.topics import QUIET, Topics, unique

DEADLINE_S = 20


def producer(bootstrap: str, transactional_id: str) -> Producer:
    created = Producer({"bootstrap.servers": bootstrap, "transactional.id": transactional_id, **QUIET})
    created.init_transactions(DEADLINE_S)
    return created


def consumer(bootstrap: str, group: str, **settings: Any) -> Consumer:
    base = {"bootstrap.servers": bootstrap, "group.id": group, "enable.auto.commit": False, **QUIET}
    return Consumer({**base, "auto.offset.reset": "earliest", **settings})


def committed(bootstrap: str, group: str, topic: str) -> int:
    """The committed offset of partition 0. librdkafka requires stable offsets and retries."""
    reader = consumer(bootstrap, group)
    (found,) = reader.committed([TopicPartition(topic, 0)], DEADLINE_S)
    reader.close()
    assert found.error is None
    return int(found.offset)


@pytest.mark.parametrize("commit", [True, False])
def test_a_transaction_with_offsets_only(bootstrap: str, topics: Topics, commit: bool) -> None:
    topic, group = topics.create(), unique("group")
    sender, reader = producer(bootstrap, unique("tx")), consumer(bootstrap, group)
    for number in (1, 2):
        sender.begin_transaction()
        offsets = [TopicPartition(topic, 0, number)]
        sender.send_offsets_to_transaction(offsets, reader.consumer_group_metadata(), DEADLINE_S)
        (sender.commit_transaction if commit else sender.abort_transaction)(DEADLINE_S)
    reader.close()
    assert committed(bootstrap, group, topic) == (2 if commit else -1001)


def test_a_consumer_waits_until_offsets_are_stable(bootstrap: str, topics: Topics) -> None:
    topic, group = topics.create(), unique("group")
    sender, reader = producer(bootstrap, unique("tx")), consumer(bootstrap, group)
    sender.begin_transaction()
    sender.send_offsets_to_transaction([TopicPartition(topic, 0, 5)], reader.consumer_group_metadata(), DEADLINE_S)
    with pytest.raises(KafkaException) as unstable:
        reader.committed([TopicPartition(topic, 0)], 0.5)
    assert unstable.value.args[0].code() == KafkaError._TIMED_OUT
    sender.commit_transaction(DEADLINE_S)
    (found,) = reader.committed([TopicPartition(topic, 0)], DEADLINE_S)
    assert found.offset == 5
    reader.close()


def test_a_member_of_an_old_generation_cannot_commit(bootstrap: str, topics: Topics) -> None:
    topic, group = topics.create(), unique("group")
    old = consumer(bootstrap, group)
    old.subscribe([topic])
    wait_for_assignment(old)
    identity = old.consumer_group_metadata()
    old.close()
    sender = producer(bootstrap, unique("tx"))
    sender.begin_transaction()
    with pytest.raises(KafkaException) as fenced:
        sender.send_offsets_to_transaction([TopicPartition(topic, 0, 5)], identity, DEADLINE_S)
    assert fenced.value.args[0].txn_requires_abort()
    sender.abort_transaction(DEADLINE_S)
    assert committed(bootstrap, group, topic) == -1001


def test_consume_transform_produce(bootstrap: str, topics: Topics) -> None:
    """Copies a topic in transactions of 10 records, of which every second is aborted and repeated."""
    source, target, group = topics.create(), topics.create(), unique("group")
    plain = Producer({"bootstrap.servers": bootstrap, **QUIET})
    for number in range(100):
        plain.produce(source, str(number))
    assert plain.flush(DEADLINE_S) == 0
    transactional_id, done, attempt = unique("tx"), 0, 0
    while done < 100:
        sender, reader = producer(bootstrap, transactional_id), consumer(bootstrap, group)
        reader.subscribe([source])
        for commit in (True, False):
            messages = read(reader, 10)
            assert [int(each.value() or b"") for each in messages] == list(range(done, done + 10))
            sender.begin_transaction()
            for each in messages:
                sender.produce(target, each.value())
            position = reader.position(reader.assignment())
            sender.send_offsets_to_transaction(position, reader.consumer_group_metadata(), DEADLINE_S)
            (sender.commit_transaction if commit else sender.abort_transaction)(DEADLINE_S)
            done += 10 * commit
            if done == 100:
                break
        reader.close()
        attempt += 1
    assert attempt == 10
    copied = consumer(bootstrap, unique("group"), **{"isolation.level": "read_committed"})
    copied.subscribe([target])
    assert [int(each.value() or b"") for each in read(copied, 100)] == list(range(100))
    copied.close()
    assert committed(bootstrap, group, source) == 100


def wait_for_assignment(reader: Consumer) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not reader.assignment():
        assert time.monotonic() < deadline
        reader.poll(0.05)


def read(reader: Consumer, count: int) -> list[Any]:
    messages: list[Any] = []
    deadline = time.monotonic() + DEADLINE_S
    while len(messages) < count:
        assert time.monotonic() < deadline, f"{len(messages)} of {count} records came"
        for message in reader.consume(count - len(messages), timeout=0.1):
            assert message.error() is None, message.error()
            messages.append(message)
    return messages
