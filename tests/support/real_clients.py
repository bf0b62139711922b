"""Two independent Kafka clients behind one interface, to show a cluster's guarantees with each."""

import asyncio
import time
from collections.abc import Sequence
from typing import Protocol

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioPartition
from confluent_kafka import Consumer, Producer, TopicPartition

CLIENT_TIMEOUT_S = 60.0


class RealClient(Protocol):
    def produce(self, bootstrap: str, topic: str, values: Sequence[str], partition: int = 0) -> list[int]:
        """Produces with idempotence and acks=all; returns the offsets in order. Raises if a record is not
        acknowledged."""

    def read(self, bootstrap: str, topic: str, count: int, partition: int = 0) -> list[tuple[int, str]]:
        """Returns the first `count` records with their offsets."""


class Confluent:
    def produce(self, bootstrap: str, topic: str, values: Sequence[str], partition: int = 0) -> list[int]:
        producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "message.timeout.ms": int(CLIENT_TIMEOUT_S * 1000),
                "socket.timeout.ms": 5_000,
                "request.timeout.ms": 4_000,
            }
        )
        offsets: list[int] = []
        errors: list[str] = []
        for value in values:
            producer.produce(
                topic,
                value,
                partition=partition,
                on_delivery=lambda error, message: (
                    offsets.append(message.offset()) if error is None else errors.append(str(error))
                ),
            )
        left = producer.flush(CLIENT_TIMEOUT_S)
        if errors or left:
            raise AssertionError(f"not acknowledged: {errors[:3]}, {left} without an answer")
        return offsets

    def read(self, bootstrap: str, topic: str, count: int, partition: int = 0) -> list[tuple[int, str]]:
        consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reader", "enable.auto.commit": False})
        consumer.assign([TopicPartition(topic, partition, 0)])
        found: list[tuple[int, str]] = []
        deadline = time.monotonic() + CLIENT_TIMEOUT_S
        while len(found) < count and time.monotonic() < deadline:
            found += [
                (message.offset(), message.value().decode())
                for message in consumer.consume(count - len(found), 0.5)
                if message.error() is None
            ]
        consumer.close()
        return found


class Aiokafka:
    def produce(self, bootstrap: str, topic: str, values: Sequence[str], partition: int = 0) -> list[int]:
        async def produce() -> list[int]:
            # After this time without a leader, aiokafka gives up.
            producer = AIOKafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True, request_timeout_ms=15_000)
            await producer.start()
            try:
                sent = [await producer.send(topic, value.encode(), partition=partition) for value in values]
                return [(await each).offset for each in sent]
            finally:
                await producer.stop()

        return asyncio.run(asyncio.wait_for(produce(), CLIENT_TIMEOUT_S))

    def read(self, bootstrap: str, topic: str, count: int, partition: int = 0) -> list[tuple[int, str]]:
        async def read() -> list[tuple[int, str]]:
            consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest")
            await consumer.start()
            try:
                consumer.assign([AioPartition(topic, partition)])
                found: list[tuple[int, str]] = []
                while len(found) < count:
                    message = await consumer.getone()
                    found.append((message.offset, message.value.decode()))
                return found
            finally:
                await consumer.stop()

        return asyncio.run(asyncio.wait_for(read(), CLIENT_TIMEOUT_S))


CLIENTS: dict[str, RealClient] = {"confluent-kafka": Confluent(), "aiokafka": Aiokafka()}
