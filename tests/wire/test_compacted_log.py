"""Fetches and offset lookups in a compacted log, whose removed batches leave gaps in the offsets."""

import struct
import time
from collections.abc import Iterator
from itertools import count
from typing import NamedTuple

import pytest
from broker_under_test import AGAINST_KAFKA, Broker, broker

from support.topics import Topics
from support.wire import (
    DELETE_RECORDS,
    DESCRIBE_LOG_DIRS,
    LIST_OFFSETS,
    PRODUCE,
    WireClient,
    batch,
    end_offset,
    fetch,
    new_producer_id,
    produce,
    produce_tree,
    wait_until,
)

# The newest segment of a log in files is not compacted.
pytestmark = pytest.mark.usefixtures("only_files")

KEYS = 5
RECORDS = 60
VALUE = b"x" * 100_000
SEGMENT_BYTES = 1024 * 1024
"""The smallest segment of Kafka 4. Ten batches fit into it."""
PER_SEGMENT = 10
T0 = 1_700_000_000_000
OFFSET_OUT_OF_RANGE = 1
PATIENCE_S = 60


class Header(NamedTuple):
    base_offset: int
    last_offset: int
    count: int


def whole_batches(data: bytes) -> list[Header]:
    """Returns the headers of the batches in a fetch response, without a truncated last one."""
    found = []
    position = 0
    while len(data) - position >= 61:
        base_offset, length = struct.unpack_from(">qi", data, position)
        (last_offset_delta,) = struct.unpack_from(">i", data, position + 23)
        (records,) = struct.unpack_from(">i", data, position + 57)
        position += 12 + length
        if position <= len(data):
            found.append(Header(base_offset, base_offset + last_offset_delta, records))
    return found


def read(wire: WireClient, topic: str, offset: int, **more: int) -> list[Header]:
    """Reads to the end of the log as clients do: each fetch continues after the last batch of the one before."""
    found: list[Header] = []
    end = end_offset(wire, topic)
    while offset < end:
        batches = whole_batches(fetch(wire, topic, offset, **more)["records"] or b"")
        assert batches, f"the fetch from offset {offset} returned no whole batch"
        assert batches[-1].last_offset >= offset, f"the fetch from offset {offset} does not advance"
        found += [each for each in batches if each.last_offset >= offset]
        offset = batches[-1].last_offset + 1
    return found


def surviving_offsets(wire: WireClient, topic: str, offset: int = 0, **more: int) -> list[int]:
    return [each.base_offset for each in read(wire, topic, offset, **more) if each.count]


def partition_size(wire: WireClient, topic: str) -> int:
    """Returns the size of the partition on disk."""
    tree = {"topics": [{"topic": topic, "partitions": [0]}]}
    (directory,) = wire.request(DESCRIBE_LOG_DIRS, 4, tree)["results"]
    ((partition,),) = [each["partitions"] for each in directory["topics"]]
    size: int = partition["partition_size"]
    return size


@pytest.fixture(scope="module")
def cleaning_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    settings = {"log.cleaner.backoff.ms": "100"}
    with broker(tmp_path_factory.mktemp("compaction") / "data", settings=settings) as started:
        yield started


@pytest.fixture
def wire(cleaning_node: Broker) -> Iterator[WireClient]:
    with WireClient(cleaning_node.bootstrap) as connected:
        yield connected


def create_topic(node: Broker, policy: str = "compact", **more: str) -> str:
    return Topics(node.bootstrap).create(
        cleanup_policy=policy, retention_ms=-1, segment_bytes=SEGMENT_BYTES, min_cleanable_dirty_ratio=0.001, **more
    )


def key_of(number: int) -> bytes:
    return b"key-%d" % (number % KEYS)


def batch_of(number: int, key: bytes, **more: int) -> bytes:
    return batch([VALUE], key=key, base_timestamp=T0 + 1000 * number, **more)


def write(wire: WireClient, topic: str, number: int, key: bytes, **more: int) -> None:
    assert produce(wire, topic, batch_of(number, key, **more)) == (0, number)


def check_that_only_survivors_are_stored(wire: WireClient, topic: str, survivors: dict[int, bytes]) -> None:
    """Plain producers leave no empty batches. `survivors` are the keys by offset."""
    assert all(each.count for each in read(wire, topic, 0))
    expected = sum(len(batch_of(offset, key)) for offset, key in survivors.items())
    wait_until(lambda: partition_size(wire, topic) == expected, f"{partition_size(wire, topic)} bytes, not {expected}")


def wait_for_offsets(wire: WireClient, topic: str, expected: list[int]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while (found := surviving_offsets(wire, topic)) != expected:
        assert time.monotonic() < deadline, f"offsets {found} are left, and not {expected}"
        time.sleep(0.1)


@pytest.fixture(scope="module")
def compacted(cleaning_node: Broker) -> str:
    """A topic of six segments, of which the first four and half of the fifth one were removed."""
    topic = create_topic(cleaning_node)
    with WireClient(cleaning_node.bootstrap) as wire:
        for number in range(RECORDS):
            write(wire, topic, number, key_of(number))
        # The keys of the active segment do not count.
        wait_for_offsets(wire, topic, EXPECTED)
        check_that_only_survivors_are_stored(wire, topic, {each: key_of(each) for each in EXPECTED})
    return topic


LAST_SEGMENT = RECORDS - PER_SEGMENT
EXPECTED = list(range(LAST_SEGMENT - KEYS, RECORDS))


@pytest.mark.parametrize("max_bytes", [1, 61, 100, 100_000, 1024 * 1024])
@pytest.mark.parametrize("offset", [0, 1, PER_SEGMENT, 23, LAST_SEGMENT - KEYS - 1])
def test_a_fetch_from_a_gap_returns_the_next_record(
    wire: WireClient, compacted: str, offset: int, max_bytes: int
) -> None:
    first, *_ = whole_batches(fetch(wire, compacted, offset, partition_max_bytes=max_bytes)["records"])
    assert (first.base_offset, first.count) == (EXPECTED[0], 1)
    assert surviving_offsets(wire, compacted, offset, partition_max_bytes=max_bytes) == EXPECTED


@pytest.mark.parametrize("isolation_level", [0, 1])
def test_a_compacted_log_keeps_its_start_and_end(wire: WireClient, compacted: str, isolation_level: int) -> None:
    found = fetch(wire, compacted, 0, isolation_level=isolation_level)
    assert (found["error_code"], found["log_start_offset"]) == (0, 0)
    assert (found["high_watermark"], found["last_stable_offset"]) == (RECORDS, RECORDS)
    assert whole_batches(found["records"])[0].base_offset == EXPECTED[0]
    assert fetch(wire, compacted, RECORDS + 1)["error_code"] == OFFSET_OUT_OF_RANGE


@pytest.fixture(scope="module")
def partly_compacted(cleaning_node: Broker) -> str:
    """A topic in which the first batch of each segment stays. Kafka does not find offsets by timestamp beyond a segment
    whose batches were all removed."""
    topic = create_topic(cleaning_node)
    with WireClient(cleaning_node.bootstrap) as wire:
        keys = [b"shared" if number % PER_SEGMENT else b"key-%d" % number for number in range(3 * PER_SEGMENT)]
        for number, key in enumerate(keys):
            write(wire, topic, number, key)
        expected = [0, 10, 19, *range(20, 30)]
        wait_for_offsets(wire, topic, expected)
        check_that_only_survivors_are_stored(wire, topic, {offset: keys[offset] for offset in expected})
    return topic


@pytest.mark.parametrize(
    ("timestamp", "offset"),
    [
        (T0, 0),
        (T0 + 1, 10),
        (T0 + 5_000, 10),
        (T0 + 10_000, 10),
        (T0 + 10_001, 19),
        (T0 + 19_001, 20),
        (T0 + 29_001, -1),
        (-1, 30),
        (-2, 0),
        (-3, 29),
    ],
)
def test_offsets_are_found_by_timestamp(wire: WireClient, partly_compacted: str, timestamp: int, offset: int) -> None:
    wanted = {"partition_index": 0, "timestamp": timestamp, "current_leader_epoch": -1}
    tree = {"replica_id": -1, "topics": [{"name": partly_compacted, "partitions": [wanted]}]}
    found = wire.request(LIST_OFFSETS, 7, tree)["topics"][0]["partitions"][0]
    assert (found["error_code"], found["offset"]) == (0, offset)
    if timestamp >= 0 and offset >= 0:
        assert found["timestamp"] == T0 + 1000 * offset


def test_batches_of_idempotent_producers_do_not_stop_a_reader(cleaning_node: Broker, wire: WireClient) -> None:
    """The last batch of each producer stays without records, because it has the producer's last sequence."""
    topic = create_topic(cleaning_node)
    offsets = count()
    producers = []
    for _ in range(12):
        producers.append(new_producer_id(wire))
        for sequence in range(2):
            write(
                wire, topic, next(offsets), b"key", producer_id=producers[-1], producer_epoch=0, base_sequence=sequence
            )
    for _ in range(PER_SEGMENT):
        write(wire, topic, next(offsets), b"key")
    last_segment = next(offsets) // PER_SEGMENT * PER_SEGMENT
    end = end_offset(wire, topic)
    wait_for_offsets(wire, topic, list(range(last_segment - 1, end)))
    for max_bytes in (1, 61, 122, 1_000, SEGMENT_BYTES):
        for offset in (0, 1, 7):
            found_batches = read(wire, topic, offset, partition_max_bytes=max_bytes)
            empty = [each.last_offset for each in found_batches if not each.count]
            assert set(empty) <= {2 * number + 1 for number in range(12)}
            assert [each.base_offset for each in found_batches if each.count] == list(range(last_segment - 1, end))
    # The producers continue after their last sequence.
    for producer_id in producers:
        repeated = batch([VALUE], key=b"key", producer_id=producer_id, producer_epoch=0, base_sequence=1)
        assert produce(wire, topic, repeated) == (0, 2 * producers.index(producer_id) + 1)
    following = batch([b"small"], key=b"last", producer_id=producers[0], producer_epoch=0, base_sequence=2)
    assert produce(wire, topic, following) == (0, end)


def test_records_can_be_deleted_up_to_an_offset_in_a_gap(cleaning_node: Broker, wire: WireClient) -> None:
    topic = create_topic(cleaning_node, "compact,delete")
    for number in range(3 * PER_SEGMENT + 1):
        write(wire, topic, number, key_of(number))
    expected = list(range(3 * PER_SEGMENT - KEYS, 3 * PER_SEGMENT + 1))
    wait_for_offsets(wire, topic, expected)
    check_that_only_survivors_are_stored(wire, topic, {each: key_of(each) for each in expected})
    wanted = {"name": topic, "partitions": [{"partition_index": 0, "offset": 13}]}
    deleted = wire.request(DELETE_RECORDS, 2, {"topics": [wanted], "timeout": 10_000})
    assert deleted["topics"][0]["partitions"][0] == {"partition_index": 0, "low_watermark": 13, "error_code": 0}
    assert fetch(wire, topic, 12)["error_code"] == OFFSET_OUT_OF_RANGE
    assert fetch(wire, topic, 13)["log_start_offset"] == 13
    assert surviving_offsets(wire, topic, 13, partition_max_bytes=1) == expected
    # Compaction continues with the new start offset.
    for number in range(3 * PER_SEGMENT + 1, 5 * PER_SEGMENT + 1):
        write(wire, topic, number, b"key-0")
    expected = [*range(3 * PER_SEGMENT - KEYS + 1, 3 * PER_SEGMENT), *range(5 * PER_SEGMENT - 1, 5 * PER_SEGMENT + 1)]
    deadline = time.monotonic() + PATIENCE_S
    while surviving_offsets(wire, topic, 13) != expected:
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_log_that_is_not_flushed_by_appends_is_compacted(cleaning_node: Broker, wire: WireClient) -> None:
    """With write.caching closed segments are flushed in the background. Otherwise a check of the retention, which runs
    every five minutes, would flush them. Kafka has no write.caching, and it never flushes before it responds."""
    caching = {} if AGAINST_KAFKA else {"write_caching": "true"}
    topic = create_topic(cleaning_node, **caching)
    records, window = 300, 30
    for first in range(0, records, window):
        # Many requests in flight close segments while others are flushed.
        for number in range(first, first + window):
            wire.send(PRODUCE, 9, produce_tree(topic, batch_of(number, key_of(number))))
        for number in range(first, first + window):
            _, response = wire.receive(PRODUCE, 9)
            answer = response["responses"][0]["partition_responses"][0]
            assert (answer["error_code"], answer["base_offset"]) == (0, number)
    expected = list(range(records - PER_SEGMENT - KEYS, records))
    wait_for_offsets(wire, topic, expected)
    check_that_only_survivors_are_stored(wire, topic, {each: key_of(each) for each in expected})


def test_a_compacted_log_survives_a_restart(tmp_path_factory: pytest.TempPathFactory) -> None:
    data_dir = tmp_path_factory.mktemp("restart") / "data"
    with broker(data_dir, settings={"log.cleaner.backoff.ms": "100"}) as node:
        topic = create_topic(node)
        with WireClient(node.bootstrap) as wire:
            for number in range(RECORDS):
                write(wire, topic, number, key_of(number))
            wait_for_offsets(wire, topic, EXPECTED)
        for stop in (node.kill, node.stop):
            stop()
            node.start()
            with WireClient(node.bootstrap) as wire:
                wait_for_leader(wire, topic)
                assert end_offset(wire, topic) == RECORDS
                assert surviving_offsets(wire, topic, partition_max_bytes=1) == EXPECTED
                assert surviving_offsets(wire, topic, 17) == EXPECTED
                check_that_only_survivors_are_stored(wire, topic, {each: key_of(each) for each in EXPECTED})


def wait_for_leader(wire: WireClient, topic: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while fetch(wire, topic, 0)["error_code"]:
        assert time.monotonic() < deadline
        time.sleep(0.1)
