"""Requests of transactions without TV2 that arrive late: the client has repeated them on a newer connection.

The producer epoch stays the same from transaction to transaction, so Kafka applies the late copy to the next
transaction (KIP-890). Moldau recognizes it by its older connection.
"""

from collections.abc import Iterator
from typing import Any

import pytest
from broker_under_test import AGAINST_KAFKA, Broker

from support.topics import Topics
from support.transaction_wire import (
    NONE,
    WRITE_MARKERS,
    Coordinator,
    Producer,
    committed_values,
    produce_codes,
    transactional_batch,
)
from support.transactional_offsets import TransactionalGroup
from support.wire import ConnectionClosedError, WireClient

END_VERSION, PRODUCE_VERSION, OFFSETS_VERSION = 3, 11, 4


@pytest.fixture
def topic(topics: Topics) -> str:
    return topics.create(partitions=2)


@pytest.fixture
def newer(node: Broker, client: WireClient) -> Iterator[WireClient]:
    """A connection that is opened after `client`."""
    with WireClient(node.bootstrap) as opened:
        yield opened


def send(coordinator: Coordinator, producer: Producer, topic: str, value: bytes, partition: int, sequence: int) -> None:
    coordinator.add(producer, (topic, partition))
    data = transactional_batch(producer, value, sequence=sequence)
    batches = {(topic, partition): data}
    assert produce_codes(coordinator.client, coordinator.id, batches, version=PRODUCE_VERSION) == [NONE]


def end(coordinator: Coordinator, producer: Producer, *, commit: bool) -> None:
    assert coordinator.end_code(producer, commit=commit, version=END_VERSION) == NONE
    coordinator.wait_for("CompleteCommit" if commit else "CompleteAbort")


def test_a_late_end_does_not_end_the_next_transaction(client: WireClient, newer: WireClient, topic: str) -> None:
    coordinator = Coordinator(client)
    producer = coordinator.init()
    send(coordinator, producer, topic, b"aborted", 0, sequence=0)
    coordinator.client = newer
    end(coordinator, producer, commit=False)
    send(coordinator, producer, topic, b"first", 0, sequence=1)
    coordinator.client = client
    if AGAINST_KAFKA:
        end(coordinator, producer, commit=False)
    else:
        with pytest.raises(ConnectionClosedError):
            coordinator.end_response(producer, commit=False, version=END_VERSION)
    coordinator.client = newer
    send(coordinator, producer, topic, b"second", 1, sequence=0)
    end(coordinator, producer, commit=True)
    # In Kafka, the commit is acknowledged and one of its two records is missing.
    assert committed_values(newer, topic, 0) == ([] if AGAINST_KAFKA else [b"first"])
    assert committed_values(newer, topic, 1) == [b"second"]


def test_a_client_with_two_connections_continues_on_a_new_one(node: Broker, newer: WireClient, topic: str) -> None:
    coordinator = Coordinator(newer)
    producer = coordinator.init()
    for number in range(3):
        send(coordinator, producer, topic, b"%d" % number, 0, sequence=number)
        with WireClient(node.bootstrap) as newest:
            coordinator.client = newest
            end(coordinator, producer, commit=True)
        coordinator.client = WireClient(node.bootstrap)
    assert committed_values(coordinator.client, topic) == [b"0", b"1", b"2"]
    coordinator.client.close()


def test_a_late_marker_does_not_end_the_next_transaction(client: WireClient, newer: WireClient, topic: str) -> None:
    coordinator = Coordinator(newer)
    producer = coordinator.init()
    send(coordinator, producer, topic, b"aborted", 0, sequence=0)
    marker = {
        "producer_id": producer[0],
        "producer_epoch": producer[1],
        "transaction_result": False,
        "topics": [{"name": topic, "partition_indexes": [0]}],
        "coordinator_epoch": 0,
    }
    assert marker_code(newer, marker) == NONE
    end(coordinator, producer, commit=False)
    send(coordinator, producer, topic, b"next", 0, sequence=1)
    if AGAINST_KAFKA:
        assert marker_code(client, marker) == NONE
    else:
        with pytest.raises(ConnectionClosedError):
            marker_code(client, marker)
    end(coordinator, producer, commit=True)
    assert committed_values(newer, topic, 0) == ([] if AGAINST_KAFKA else [b"next"])


def marker_code(wire: WireClient, marker: dict[str, Any]) -> int:
    (result,) = wire.request(WRITE_MARKERS, 1, {"markers": [marker]})["markers"]
    (partition,) = result["topics"][0]["partitions"]
    return int(partition["error_code"])


def test_late_offsets_do_not_replace_those_of_the_next_transaction(
    client: WireClient, newer: WireClient, topic: str
) -> None:
    group = TransactionalGroup(newer, topic)
    producer = group.transaction.init()
    for offset in (5, 9):
        group.add(producer)
        assert group.commit_codes(producer, {0: offset}, version=OFFSETS_VERSION) == [NONE]
        if offset == 9:
            group.client = client
            if AGAINST_KAFKA:
                assert group.commit_codes(producer, {0: 5}, version=OFFSETS_VERSION) == [NONE]
            else:
                with pytest.raises(ConnectionClosedError):
                    group.commit_codes(producer, {0: 5}, version=OFFSETS_VERSION)
            group.client = newer
        group.end(producer, commit=True, version=4)
    assert group.offsets(0) == ([5] if AGAINST_KAFKA else [9])
