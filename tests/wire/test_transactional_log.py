"""Transactions in the log of a partition: Produce, markers, Fetch and ListOffsets with read_committed, and
DescribeProducers."""

import struct
import time
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from broker_under_test import AGAINST_KAFKA, Broker

from moldau.wire.codec import decoder
from support.topics import Topics
from support.transaction_wire import (
    HEADER_SIZE,
    INVALID_EPOCH,
    INVALID_STATE,
    NONE,
    WRITE_MARKERS,
    Coordinator,
    Producer,
)
from support.wire import (
    DELETE_RECORDS,
    FETCH,
    LIST_OFFSETS,
    WireClient,
    batch,
    fetch,
    fetch_tree,
    produce,
    topic_id,
    wait_until,
)

DESCRIBE_PRODUCERS = 61
UNKNOWN_TOPIC, OUT_OF_ORDER, COORDINATOR_FENCED, TRANSACTIONAL_ID_DENIED = 3, 45, 52, 53
TRANSACTIONAL = 0x10
READ_COMMITTED = 1
TV1, TV2 = 1, 2
T0 = 1_700_000_000_000
StartNode = Callable[[Mapping[str, str]], Broker]


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class TransactionalProducer:
    """A producer that writes to partition 0 of one topic."""

    def __init__(self, wire: WireClient, topic: str, version: int = TV2) -> None:
        self.wire = wire
        self.topic = topic
        self.version = version
        self.coordinator = Coordinator(wire)
        self.producer: Producer = self.coordinator.init(version=5 if version == TV2 else 4)
        self.sequence = 0

    @property
    def id(self) -> int:
        return self.producer[0]

    def batch(self, *values: bytes, sequence: int | None = None, **more: Any) -> bytes:
        # With an old timestamp, the marker would start a new segment (segment.ms), and a fetch reads only one.
        more.setdefault("base_timestamp", now_ms())
        return batch(
            list(values),
            attributes=more.pop("attributes", TRANSACTIONAL),
            producer_id=more.pop("producer_id", self.producer[0]),
            producer_epoch=more.pop("producer_epoch", self.producer[1]),
            base_sequence=self.sequence if sequence is None else sequence,
            **more,
        )

    def add(self) -> None:
        """Adds the partition to the transaction. With TV2 the first Produce does this."""
        if self.version == TV1:
            self.coordinator.add(self.producer, (self.topic, 0))

    def send(self, data: bytes) -> tuple[int, int]:
        version = 12 if self.version == TV2 else 11
        return produce(self.wire, self.topic, data, version=version, transactional_id=self.coordinator.id)

    def write(self, *values: bytes, **more: Any) -> int:
        """Appends to the transaction and returns the base offset."""
        self.add()
        data = self.batch(*values, **more)
        deadline = time.monotonic() + 20
        # The previous transaction may not be complete yet.
        while (result := self.send(data))[0] in (19, 51):
            assert time.monotonic() < deadline, result
            time.sleep(0.01)
        assert result[0] == NONE
        self.sequence += len(values)
        return result[1]

    def end(self, *, commit: bool) -> None:
        """Ends the transaction and waits for its marker."""
        before = uncommitted_end(self.wire, self.topic)
        if self.version == TV2:
            self.producer = self.coordinator.end(self.producer, commit=commit)
            self.sequence = 0
        else:
            assert self.coordinator.end_code(self.producer, commit=commit, version=4) == NONE
        wait_until(lambda: uncommitted_end(self.wire, self.topic) > before, "there is no marker")


def uncommitted_end(wire: WireClient, topic: str) -> int:
    return list_offset(wire, topic, -1, isolation_level=0)[0]


def stable_end(wire: WireClient, topic: str) -> int:
    return list_offset(wire, topic, -1)[0]


def list_offset(wire: WireClient, topic: str, timestamp: int, isolation_level: int = 1) -> tuple[int, int]:
    """Returns offset and timestamp."""
    wanted = {"partition_index": 0, "timestamp": timestamp, "current_leader_epoch": -1}
    tree = {"replica_id": -1, "isolation_level": isolation_level, "topics": [{"name": topic, "partitions": [wanted]}]}
    found = wire.request(LIST_OFFSETS, 7, tree)["topics"][0]["partitions"][0]
    assert found["error_code"] == NONE
    return found["offset"], found["timestamp"]


def fetched(
    wire: WireClient, topic: str, offset: int = 0, **more: Any
) -> tuple[list[int], list[tuple[int, int]] | None]:
    """Returns the base offsets of the batches, and the aborted transactions as producer id and first offset."""
    found = fetch(wire, topic, offset, isolation_level=more.pop("isolation_level", READ_COMMITTED), **more)
    assert found["error_code"] == NONE
    return base_offsets(found["records"] or b""), aborted_in(found)


def aborted_in(found: dict[str, Any]) -> list[tuple[int, int]] | None:
    aborted = found["aborted_transactions"]
    return None if aborted is None else [(each["producer_id"], each["first_offset"]) for each in aborted]


def base_offsets(data: bytes) -> list[int]:
    found, position = [], 0
    while position + 12 <= len(data):
        base_offset, length = struct.unpack_from(">qi", data, position)
        position += 12 + length
        if position <= len(data):
            found.append(base_offset)
    return found


def write_marker(
    wire: WireClient,
    topic: str,
    producer: Producer,
    *,
    commit: bool = False,
    coordinator_epoch: int = 0,
    transaction_version: int = 0,
) -> int:
    marker = {
        "producer_id": producer[0],
        "producer_epoch": producer[1],
        "transaction_result": commit,
        "topics": [{"name": topic, "partition_indexes": [0]}],
        "coordinator_epoch": coordinator_epoch,
        "transaction_version": transaction_version,
    }
    (result,) = wire.request(WRITE_MARKERS, 2, {"markers": [marker]})["markers"]
    (partition,) = result["topics"][0]["partitions"]
    return int(partition["error_code"])


@pytest.fixture
def topic(topics: Topics) -> str:
    return topics.create()


@pytest.fixture(params=[TV1, TV2])
def producer(request: pytest.FixtureRequest, client: WireClient, topic: str) -> TransactionalProducer:
    return TransactionalProducer(client, topic, request.param)


@pytest.fixture
def other(client: WireClient, topic: str) -> TransactionalProducer:
    return TransactionalProducer(client, topic)


# Reading


def test_an_open_transaction_holds_back_readers_of_committed_records(
    client: WireClient, topic: str, producer: TransactionalProducer
) -> None:
    assert produce(client, topic, batch(base_timestamp=now_ms())) == (NONE, 0)
    assert producer.write(b"a", b"b") == 1
    assert producer.write(b"c") == 3
    assert produce(client, topic, batch(base_timestamp=now_ms())) == (NONE, 4)
    assert fetched(client, topic) == ([0], [])
    assert fetched(client, topic, isolation_level=0) == ([0, 1, 3, 4], None)
    for offset in (1, 3, 5):
        assert fetched(client, topic, offset) == ([], [])
    for isolation_level in (0, 1):
        found = fetch(client, topic, 0, isolation_level=isolation_level)
        assert (found["high_watermark"], found["last_stable_offset"]) == (5, 1)
    assert (stable_end(client, topic), uncommitted_end(client, topic)) == (1, 5)
    producer.end(commit=True)
    assert (stable_end(client, topic), uncommitted_end(client, topic)) == (6, 6)
    assert fetched(client, topic) == ([0, 1, 3, 4, 5], [])


def test_aborted_transactions_are_listed(client: WireClient, topic: str, producer: TransactionalProducer) -> None:
    assert producer.write(b"a") == 0
    producer.end(commit=False)
    assert producer.write(b"b") == 2
    producer.end(commit=True)
    assert producer.write(b"c") == 4
    assert producer.write(b"d") == 5
    producer.end(commit=False)
    assert fetched(client, topic) == ([0, 1, 2, 3, 4, 5, 6], [(producer.id, 0), (producer.id, 4)])
    assert fetched(client, topic, 1)[1] == [(producer.id, 0), (producer.id, 4)], "the marker belongs to it"
    assert fetched(client, topic, 2)[1] == [(producer.id, 4)]
    assert fetched(client, topic, 5)[1] == [(producer.id, 4)]
    assert fetched(client, topic, 7) == ([], [])
    assert fetched(client, topic, isolation_level=0)[1] is None


def test_interleaved_transactions(
    client: WireClient, topic: str, producer: TransactionalProducer, other: TransactionalProducer
) -> None:
    assert producer.write(b"a") == 0
    assert other.write(b"b") == 1
    assert producer.write(b"c") == 2
    other.end(commit=False)
    assert stable_end(client, topic) == 0, "the first transaction is still open"
    assert other.write(b"d") == 4
    producer.end(commit=False)
    assert stable_end(client, topic) == 4
    assert fetched(client, topic) == ([0, 1, 2, 3], [(other.id, 1), (producer.id, 0)])
    other.end(commit=True)
    assert stable_end(client, topic) == 7
    assert fetched(client, topic, 3)[1] == [(other.id, 1), (producer.id, 0)]
    assert fetched(client, topic, 4)[1] == [(producer.id, 0)]


def test_a_marker_without_records_changes_nothing_for_readers(client: WireClient, topic: str) -> None:
    producer = TransactionalProducer(client, topic, TV1)
    producer.add()
    producer.end(commit=False)
    assert fetched(client, topic) == ([0], [])
    assert stable_end(client, topic) == 1


@pytest.mark.parametrize("version", [4, 11, 12, 16])
def test_every_version_of_fetch_lists_aborted_transactions(client: WireClient, topic: str, version: int) -> None:
    producer = TransactionalProducer(client, topic)
    producer.write(b"a")
    producer.end(commit=False)
    tree = fetch_tree(topic, 0, isolation_level=READ_COMMITTED)
    tree["topics"][0]["topic_id"] = topic_id(client, topic)
    response = client.request(FETCH, version, tree)
    (found,) = response["responses"][0]["partitions"]
    assert (found["last_stable_offset"], aborted_in(found)) == (2, [(producer.id, 0)])


def test_a_waiting_fetch_of_committed_records_ends_with_the_transaction(
    node: Broker, client: WireClient, topic: str, producer: TransactionalProducer
) -> None:
    producer.write(b"a")
    with WireClient(node.bootstrap) as reader:
        tree = fetch_tree(topic, 0, isolation_level=READ_COMMITTED, max_wait=15_000)
        reader.send(FETCH, 12, tree)
        producer.write(b"b")
        assert stable_end(client, topic) == 0
        started = time.monotonic()
        producer.end(commit=True)
        _, response = reader.receive(FETCH, 12)
        assert time.monotonic() - started < 10
    (found,) = response["responses"][0]["partitions"]
    assert base_offsets(found["records"]) == [0, 1, 2]
    assert (found["last_stable_offset"], found["high_watermark"]) == (3, 3)


def test_offsets_by_time_end_at_the_last_stable_offset(client: WireClient, topic: str) -> None:
    assert produce(client, topic, batch(base_timestamp=T0)) == (NONE, 0)
    producer = TransactionalProducer(client, topic)
    producer.write(b"a", base_timestamp=T0 + 1_000)
    assert produce(client, topic, batch(base_timestamp=T0 + 500)) == (NONE, 2)
    assert list_offset(client, topic, T0) == (0, T0)
    assert list_offset(client, topic, T0 + 1) == (-1, -1)
    assert list_offset(client, topic, T0 + 1, isolation_level=0) == (1, T0 + 1_000)
    assert list_offset(client, topic, -3) == (-1, -1), "the newest record is not stable"
    assert list_offset(client, topic, -3, isolation_level=0) == (1, T0 + 1_000)
    assert list_offset(client, topic, -2)[0] == 0
    producer.end(commit=True)
    assert list_offset(client, topic, T0 + 1) == (1, T0 + 1_000)


def test_records_of_an_open_transaction_can_be_deleted(client: WireClient, topic: str) -> None:
    producer = TransactionalProducer(client, topic)
    producer.write(b"a", b"b")
    producer.write(b"c")
    wanted = {"name": topic, "partitions": [{"partition_index": 0, "offset": 2}]}
    deleted = client.request(DELETE_RECORDS, 2, {"topics": [wanted], "timeout": 10_000})
    assert deleted["topics"][0]["partitions"][0]["error_code"] == NONE
    assert (stable_end(client, topic), uncommitted_end(client, topic)) == (2, 3)
    producer.end(commit=False)
    assert stable_end(client, topic) == 4
    assert fetched(client, topic, 2) == ([2, 3], [(producer.id, 0)])


# Appending


def test_a_repeated_batch_is_found_in_the_open_and_in_the_ended_transaction(
    client: WireClient, topic: str, producer: TransactionalProducer
) -> None:
    data = producer.batch(b"a")
    producer.write(b"a")
    producer.write(b"b")
    assert producer.send(data) == (NONE, 0)
    assert uncommitted_end(client, topic) == 2


def test_a_plain_batch_inside_a_transaction_is_refused(
    client: WireClient, topic: str, producer: TransactionalProducer
) -> None:
    producer.write(b"a")
    assert produce(client, topic, producer.batch(b"b", attributes=0)) == (INVALID_STATE, -1)
    assert producer.write(b"c") == 1


def test_a_transactional_batch_needs_a_transactional_id(
    client: WireClient, topic: str, producer: TransactionalProducer
) -> None:
    producer.add()
    assert produce(client, topic, producer.batch(b"a"), version=11)[0] == TRANSACTIONAL_ID_DENIED


def test_an_older_epoch_is_fenced(client: WireClient, topic: str, producer: TransactionalProducer) -> None:
    producer.write(b"a")
    old = producer.batch(b"b")
    producer.end(commit=True)
    producer.producer = producer.coordinator.init()
    producer.sequence = 0
    producer.write(b"c")
    assert producer.send(old) == (INVALID_EPOCH, -1)


def test_a_batch_out_of_order_is_refused(producer: TransactionalProducer) -> None:
    producer.write(b"a")
    assert producer.send(producer.batch(b"b", sequence=5))[0] == OUT_OF_ORDER


# Markers


def test_a_marker_of_an_older_producer_epoch_is_refused(client: WireClient, topic: str) -> None:
    producer = TransactionalProducer(client, topic, TV1)
    producer.producer = producer.coordinator.init(version=4)
    producer.write(b"a")
    assert write_marker(client, topic, (producer.id, 0)) == INVALID_EPOCH
    assert stable_end(client, topic) == 0
    assert write_marker(client, topic, producer.producer) == NONE
    wait_until(lambda: stable_end(client, topic) == 2, "the transaction is still open")


def test_a_marker_of_an_earlier_coordinator_is_refused(client: WireClient, topic: str) -> None:
    producer = TransactionalProducer(client, topic, TV1)
    producer.write(b"a")
    assert write_marker(client, topic, producer.producer, coordinator_epoch=7) == NONE
    assert write_marker(client, topic, producer.producer, coordinator_epoch=6) == COORDINATOR_FENCED
    assert write_marker(client, topic, producer.producer, coordinator_epoch=7) == NONE


def test_a_marker_with_an_epoch_bump_needs_a_higher_epoch_or_repeats_the_last(client: WireClient, topic: str) -> None:
    producer = TransactionalProducer(client, topic)
    producer.write(b"a")
    producer_id, epoch = producer.producer
    assert write_marker(client, topic, (producer_id, epoch), transaction_version=2) == INVALID_EPOCH
    assert write_marker(client, topic, (producer_id, epoch + 1), transaction_version=2) == NONE
    assert write_marker(client, topic, (producer_id, epoch + 1), transaction_version=2) == NONE
    assert write_marker(client, topic, (producer_id, epoch), transaction_version=2) == INVALID_EPOCH
    wait_until(lambda: stable_end(client, topic) == 3, "the transaction is still open")
    assert fetched(client, topic) == ([0, 1, 2], [(producer_id, 0)])


# Producers


def producers_of(wire: WireClient, topic: str, partition: int = 0) -> dict[str, Any]:
    # kio cannot decode the tagged fields that Moldau adds.
    wire.send(DESCRIBE_PRODUCERS, 0, {"topics": [{"name": topic, "partition_indexes": [partition]}]})
    frame = wire.receive_frame()
    (found,) = decoder(DESCRIBE_PRODUCERS, 0, "response")(memoryview(frame)[HEADER_SIZE:]).topics
    assert found.name == topic
    (described,) = found.partitions
    return {**vars(described), "active_producers": [vars(each) for each in described.active_producers]}


def test_producers_are_described_with_their_transactions(
    client: WireClient, topic: str, producer: TransactionalProducer
) -> None:
    assert producers_of(client, topic)["active_producers"] == []
    producer.write(b"a", b"b", base_timestamp=T0, max_timestamp=T0)
    (state,) = producers_of(client, topic)["active_producers"]
    assert state == {
        "producer_id": producer.id,
        "producer_epoch": producer.producer[1],
        "last_sequence": 1,
        "last_timestamp": T0,
        "coordinator_epoch": -1,
        "current_txn_start_offset": 0,
        "transactional_id": "" if AGAINST_KAFKA else producer.coordinator.id,
        "client_id": "" if AGAINST_KAFKA else client.client_id,
        "client_host": "" if AGAINST_KAFKA else "/127.0.0.1",
    }
    producer.end(commit=True)
    (state,) = producers_of(client, topic)["active_producers"]
    assert (state["producer_epoch"], state["last_sequence"]) == (
        producer.producer[1],
        -1 if producer.version == TV2 else 1,
    )
    assert (state["coordinator_epoch"], state["current_txn_start_offset"]) == (0, -1)
    assert state["last_timestamp"] > T0
    producer.write(b"c")
    (state,) = producers_of(client, topic)["active_producers"]
    assert state["current_txn_start_offset"] == 3


def test_producers_of_a_partition_that_does_not_exist(client: WireClient, topic: str) -> None:
    assert producers_of(client, topic, 5)["error_code"] == UNKNOWN_TOPIC
    assert producers_of(client, "there-is-none")["error_code"] == UNKNOWN_TOPIC


# Restarts


@pytest.mark.usefixtures("only_files")
@pytest.mark.parametrize("how", ["kill", "stop"])
def test_transactions_survive_a_restart(start_node: StartNode, how: str) -> None:
    own_node = start_node({})
    topic = Topics(own_node.bootstrap).create(segment_bytes=1024 * 1024)
    padding = b"x" * 900_000
    with WireClient(own_node.bootstrap) as wire:
        aborted, opened = TransactionalProducer(wire, topic), TransactionalProducer(wire, topic, TV1)
        aborted.write(b"a")
        assert produce(wire, topic, batch([padding], base_timestamp=now_ms())) == (NONE, 1)
        assert opened.write(b"b") == 2
        aborted.end(commit=False)
        assert produce(wire, topic, batch([padding], base_timestamp=now_ms())) == (NONE, 4)
        before = fetched(wire, topic)
        assert before == ([0, 1], [(aborted.id, 0)])
    getattr(own_node, how)()
    own_node.start()
    with WireClient(own_node.bootstrap) as wire:
        wait_until(lambda: fetch(wire, topic, 0)["error_code"] == NONE, "the partition has no leader")
        assert fetched(wire, topic) == before
        assert (stable_end(wire, topic), uncommitted_end(wire, topic)) == (2, 5)
        states = {each["producer_id"]: each for each in producers_of(wire, topic)["active_producers"]}
        assert states[opened.id]["current_txn_start_offset"] == 2
        assert states[aborted.id]["current_txn_start_offset"] == -1
        opened.wire = opened.coordinator.client = wire
        opened.end(commit=True)
        assert stable_end(wire, topic) == 6
        assert fetched(wire, topic, 2) == ([2, 3], [(aborted.id, 0)])
        assert fetched(wire, topic, 4) == ([4, 5], []), "the next segment"
