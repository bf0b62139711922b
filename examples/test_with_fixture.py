"""A test with its own broker: the fixture `moldau_broker` comes with the package.

Run: pip install pytest confluent-kafka; pytest examples/test_with_fixture.py
"""

import pytest
from confluent_kafka import Consumer, Producer

from moldau.testing import Broker


@pytest.mark.moldau(topics={"orders": 1})
def test_records_arrive_in_order(moldau_broker: Broker) -> None:
    producer = Producer({"bootstrap.servers": moldau_broker.bootstrap})
    for number in range(3):
        producer.produce("orders", str(number).encode())
    assert producer.flush(30) == 0

    consumer = Consumer(
        {"bootstrap.servers": moldau_broker.bootstrap, "group.id": "test", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe(["orders"])
    received: list[bytes] = []
    while len(received) < 3:
        received += [message.value() for message in consumer.consume(3, timeout=1)]
    consumer.close()
    assert received == [b"0", b"1", b"2"]
