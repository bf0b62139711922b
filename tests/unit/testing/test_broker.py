"""`moldau.testing.Broker`: it starts at once, serves real clients and cleans up."""

import asyncio
import subprocess
import sys

import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import Consumer, Producer, TopicPartition

from moldau.errors import InvalidTopicError
from moldau.testing import Broker


def produce(bootstrap: str, topic: str, value: bytes) -> int:
    offsets: list[int] = []
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    producer.produce(topic, value, on_delivery=lambda error, message: offsets.append(message.offset()))
    assert producer.flush(10) == 0
    return offsets[0]


def test_with_starts_a_broker_for_blocking_clients() -> None:
    with Broker(topics={"orders": 3}) as broker:
        assert produce(broker.bootstrap, "orders", b"one") == 0
        consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "unused", "log_level": 0})
        consumer.assign([TopicPartition("orders", partition, 0) for partition in range(3)])
        message = consumer.poll(10)
        assert message is not None
        assert message.value() == b"one"
        consumer.close()


def test_async_with_runs_the_broker_in_the_current_loop() -> None:
    async def main() -> int:
        async with Broker(topics=["orders"]) as broker:
            producer = AIOKafkaProducer(bootstrap_servers=broker.bootstrap)
            await producer.start()
            sent = await producer.send_and_wait("orders", b"one")
            await producer.stop()
            return int(sent.offset)

    assert asyncio.run(main()) == 0


def test_two_brokers_are_independent() -> None:
    with Broker(topics=["orders"]) as first, Broker(topics=["orders"]) as second:
        produce(first.bootstrap, "orders", b"one")
        assert produce(second.bootstrap, "orders", b"one") == 0
        assert first.bootstrap != second.bootstrap


def test_settings_use_kafkas_names() -> None:
    with Broker(topics=["orders"], settings={"num.partitions": "7"}) as broker:
        assert len(broker.node.broker.metadata.image.topics["orders"].partitions) == 7


def test_an_invalid_topic_is_an_error_at_start() -> None:
    with pytest.raises(InvalidTopicError), Broker(topics=["not a name"]):
        pass


@pytest.mark.moldau(topics={"orders": 2})
def test_the_fixture_starts_a_broker(moldau_broker: Broker) -> None:
    assert produce(moldau_broker.bootstrap, "orders", b"one") == 0


def test_starting_a_broker_does_not_import_test_or_cli_libraries() -> None:
    script = (
        "import sys\n"
        "from moldau.testing import Broker\n"
        "from kafka import KafkaProducer\n"
        "with Broker(topics=['orders']) as broker:\n"
        "    KafkaProducer(bootstrap_servers=broker.bootstrap).send('orders', b'one').get(10)\n"
        "print(sorted({'hypothesis', 'typer', 'rich', 'pytest', 'pydantic'} & set(sys.modules)))\n"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert run.stdout.strip() == "[]"
