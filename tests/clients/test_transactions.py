"""Transactions of clients that add partitions before they write (TV1): librdkafka, kafka-python and aiokafka."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from kafka import KafkaProducer

from support.topics import QUIET, Topics, unique
from support.transaction_wire import last_stable_offset
from support.wire import WireClient, end_offset, wait_until

TIMEOUT_S = 20.0
TRANSACTIONS = 12
PARTITIONS = 3

RunTransactions = Callable[[str, str, str], None]


def values_of(number: int) -> list[bytes]:
    return [b"%d-%d" % (number, index) for index in range(2 * PARTITIONS)]


def is_committed(number: int) -> bool:
    return number % 3 != 1


def read(bootstrap: str, topic: str, isolation: str) -> list[bytes]:
    """Reads all partitions to their ends. The markers of the last transaction may be written only meanwhile, and until
    then its records are behind what readers with read_committed take for the end."""
    with WireClient(bootstrap) as wire:
        for index in range(PARTITIONS):
            wait_until(
                lambda: last_stable_offset(wire, topic, index) == end_offset(wire, topic, index),  # noqa: B023
                "the last transaction is complete",
            )
    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": "unused",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "isolation.level": isolation,
        **QUIET,
    }
    consumer = Consumer(settings)
    consumer.assign([TopicPartition(topic, index, 0) for index in range(PARTITIONS)])
    values: list[bytes] = []
    ended: set[int] = set()
    while len(ended) < PARTITIONS:
        message = consumer.poll(TIMEOUT_S)
        assert message is not None
        error = message.error()
        if error is None:
            values.append(bytes(message.value() or b""))
        else:
            assert error.code() == KafkaError._PARTITION_EOF, error
            ended.add(int(message.partition() or 0))
    consumer.close()
    return sorted(values)


def with_librdkafka(bootstrap: str, transactional_id: str, topic: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": transactional_id, **QUIET})
    producer.init_transactions(TIMEOUT_S)
    for number in range(TRANSACTIONS):
        producer.begin_transaction()
        for index, value in enumerate(values_of(number)):
            producer.produce(topic, value, partition=index % PARTITIONS)
        assert producer.flush(TIMEOUT_S) == 0
        if is_committed(number):
            producer.commit_transaction(TIMEOUT_S)
        else:
            producer.abort_transaction(TIMEOUT_S)


def with_kafka_python(bootstrap: str, transactional_id: str, topic: str) -> None:
    producer = KafkaProducer(bootstrap_servers=bootstrap, transactional_id=transactional_id, max_block_ms=20_000)
    producer.init_transactions()
    for number in range(TRANSACTIONS):
        producer.begin_transaction()
        for index, value in enumerate(values_of(number)):
            producer.send(topic, value, partition=index % PARTITIONS)
        producer.flush(TIMEOUT_S)
        if is_committed(number):
            producer.commit_transaction()
        else:
            producer.abort_transaction()
    producer.close(TIMEOUT_S)


def with_aiokafka(bootstrap: str, transactional_id: str, topic: str) -> None:
    async def main() -> None:
        async with AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=transactional_id) as producer:
            for number in range(TRANSACTIONS):
                await producer.begin_transaction()
                for index, value in enumerate(values_of(number)):
                    await producer.send_and_wait(topic, value, partition=index % PARTITIONS)
                if is_committed(number):
                    await producer.commit_transaction()
                else:
                    await producer.abort_transaction()

    asyncio.run(asyncio.wait_for(main(), 60))


@pytest.mark.parametrize("run", [with_librdkafka, with_kafka_python, with_aiokafka])
def test_consumers_read_committed_transactions(bootstrap: str, topics: Topics, run: RunTransactions) -> None:
    topic, transactional_id = topics.create(partitions=PARTITIONS), unique("tx")
    # The second producer fences the first and continues with its id.
    for _ in range(2):
        run(bootstrap, transactional_id, topic)
    everything = sorted(value for number in range(TRANSACTIONS) for value in values_of(number) * 2)
    committed = sorted(
        value for number in range(TRANSACTIONS) if is_committed(number) for value in values_of(number) * 2
    )
    assert read(bootstrap, topic, "read_committed") == committed
    assert read(bootstrap, topic, "read_uncommitted") == everything


def test_a_fenced_producer_cannot_write(bootstrap: str, topics: Topics) -> None:
    topic, transactional_id = topics.create(partitions=PARTITIONS), unique("tx")
    settings: dict[str, Any] = {"bootstrap.servers": bootstrap, "transactional.id": transactional_id, **QUIET}
    first, second = Producer(settings), Producer(settings)
    first.init_transactions(TIMEOUT_S)
    first.begin_transaction()
    first.produce(topic, b"first", partition=0)
    assert first.flush(TIMEOUT_S) == 0
    second.init_transactions(TIMEOUT_S)
    second.begin_transaction()
    second.produce(topic, b"second", partition=0)
    first.produce(topic, b"fenced", partition=1)
    with pytest.raises(KafkaException) as fenced:
        first.commit_transaction(TIMEOUT_S)
    assert fenced.value.args[0].code() == KafkaError._FENCED
    second.commit_transaction(TIMEOUT_S)
    assert read(bootstrap, topic, "read_committed") == [b"second"]
