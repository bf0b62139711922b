"""Every client reconnects by itself after a restart of its broker."""

import asyncio
import time
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioPartition
from confluent_kafka import Consumer, Producer, TopicPartition
from kafka import KafkaConsumer, KafkaProducer
from kafka import TopicPartition as PythonPartition

from support.broker_process import BrokerProcess
from support.topics import QUIET, Topics

DEADLINE_S = 30
pytestmark = pytest.mark.usefixtures("only_moldau")


def interrupt(served: BrokerProcess, how: str) -> None:
    if how == "killed":
        served.kill()
    else:
        served.stop()
    served.start()


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_confluent_kafka_goes_on(tmp_path: Path, how: str) -> None:
    with BrokerProcess(tmp_path / "data") as served:
        topic = Topics(served.bootstrap).create()
        backoff = {"reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 100}
        producer = Producer({"bootstrap.servers": served.bootstrap, **backoff, **QUIET})
        consumer = Consumer(
            {"bootstrap.servers": served.bootstrap, "group.id": "x", "enable.auto.commit": False} | backoff | QUIET
        )
        consumer.assign([TopicPartition(topic, 0, 0)])
        seen: list[bytes] = []
        for value in (b"before", b"after"):
            producer.produce(topic, value)
            assert producer.flush(DEADLINE_S) == 0
            deadline = time.monotonic() + DEADLINE_S
            while value not in seen and time.monotonic() < deadline:
                message = consumer.poll(0.1)
                if message is not None and message.error() is None:
                    seen.append(message.value())
            if value == b"before":
                interrupt(served, how)
        assert seen == [b"before", b"after"]
        consumer.close()


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_kafka_python_goes_on(tmp_path: Path, how: str) -> None:
    with BrokerProcess(tmp_path / "data") as served:
        topic = Topics(served.bootstrap).create()
        producer = KafkaProducer(bootstrap_servers=served.bootstrap)
        consumer = KafkaConsumer(bootstrap_servers=served.bootstrap, group_id=None, auto_offset_reset="earliest")
        consumer.assign([PythonPartition(topic, 0)])
        seen: list[bytes] = []
        for value in (b"before", b"after"):
            producer.send(topic, value).get(DEADLINE_S)
            deadline = time.monotonic() + DEADLINE_S
            while value not in seen and time.monotonic() < deadline:
                seen += [record.value for batch in consumer.poll(100).values() for record in batch]
            if value == b"before":
                interrupt(served, how)
        assert seen == [b"before", b"after"]
        producer.close()
        consumer.close()


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_aiokafka_goes_on(tmp_path: Path, how: str) -> None:
    async def scenario(served: BrokerProcess, topic: str) -> None:
        producer = AIOKafkaProducer(bootstrap_servers=served.bootstrap)
        consumer = AIOKafkaConsumer(bootstrap_servers=served.bootstrap, group_id=None, auto_offset_reset="earliest")
        await producer.start()
        await consumer.start()
        try:
            consumer.assign([AioPartition(topic, 0)])
            for value in (b"before", b"after"):
                await asyncio.wait_for(producer.send_and_wait(topic, value), DEADLINE_S)
                assert (await asyncio.wait_for(consumer.getone(), DEADLINE_S)).value == value
                if value == b"before":
                    await asyncio.to_thread(interrupt, served, how)
        finally:
            await producer.stop()
            await consumer.stop()

    with BrokerProcess(tmp_path / "data") as served:
        asyncio.run(scenario(served, Topics(served.bootstrap).create()))
