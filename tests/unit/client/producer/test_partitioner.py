"""The partitioners: keys as in Java's producer, and sticky partitions without a key."""

import random

import pytest
from confluent_kafka import Producer as ConfluentProducer
from hypothesis import given
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2 as murmur2_of_kafka_python

from moldau.client.producer.partitioner import StickyPartitioner, murmur2, partition_of_key
from moldau.testing import Broker


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        # From the unit tests of Java's client.
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_of_known_keys(key: bytes, expected: int) -> None:
    assert murmur2(key) == expected % 2**32


@given(st.binary(max_size=70))
def test_murmur2_is_that_of_kafka_python(key: bytes) -> None:
    assert murmur2(key) == murmur2_of_kafka_python(key) % 2**32


def test_librdkafka_and_this_client_agree_on_partitions() -> None:
    keys = [bytes([number % 256] * (number % 9)) + str(number).encode() for number in range(200)]
    chosen: dict[bytes, int] = {}
    with Broker(topics={"keyed": 7}) as broker:
        producer = ConfluentProducer({"bootstrap.servers": broker.bootstrap, "partitioner": "murmur2_random"})
        for key in keys:
            producer.produce(
                "keyed", key=key, on_delivery=lambda _, message: chosen.update({message.key(): message.partition()})
            )
        assert producer.flush(20) == 0
    assert chosen == {key: partition_of_key(key, 7) for key in keys}


def test_keyless_records_stay_until_moved_on_and_then_go_elsewhere() -> None:
    sticky = StickyPartitioner(random.Random(1).randrange)
    first = sticky.current_partition("orders", 3, [0, 1, 2])
    assert [sticky.current_partition("orders", 3, [0, 1, 2]) for _ in range(5)] == [first] * 5
    for _ in range(20):
        before = sticky.current_partition("orders", 3, [0, 1, 2])
        after = sticky.next_partition("orders", 3, [0, 1, 2])
        assert after != before
        assert sticky.current_partition("orders", 3, [0, 1, 2]) == after


def test_keyless_records_avoid_partitions_without_a_leader() -> None:
    sticky = StickyPartitioner(random.Random(1).randrange)
    assert {sticky.next_partition("orders", 4, [1, 3]) for _ in range(10)} == {1, 3}
    assert sticky.current_partition("orders", 4, [2]) == 2
    assert sticky.next_partition("orders", 4, [2]) == 2
    assert sticky.next_partition("orders", 4, []) in range(4)


def test_topics_move_on_by_themselves() -> None:
    sticky = StickyPartitioner(random.Random(1).randrange)
    orders = sticky.current_partition("orders", 8, range(8))
    for _ in range(5):
        sticky.next_partition("payments", 8, range(8))
    assert sticky.current_partition("orders", 8, range(8)) == orders
