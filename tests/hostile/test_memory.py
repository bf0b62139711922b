"""Requests must not determine how much memory the broker uses: the memory of a broker process is measured."""

import contextlib
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import cramjam
import psutil
import pytest

from support.broker_process import BrokerProcess
from support.raw_group_member import DESCRIBE_GROUPS, JOIN_GROUP, OFFSET_FETCH, commit, find_coordinator, join_tree
from support.topics import Topics
from support.wire import (
    CREATE_TOPICS,
    FETCH,
    METADATA,
    PRODUCE,
    ConnectionClosedError,
    WireClient,
    batch,
    encode,
    fetch_tree,
    produce,
    produce_tree,
    record,
)

MEGABYTE = 1 << 20
NOT_LEADER = 6
GROWTH_MAX = 64 * MEGABYTE
FRAME = 100 * MEGABYTE
pytestmark = pytest.mark.usefixtures("only_moldau")


class Watched:
    def __init__(self, served: BrokerProcess) -> None:
        self.bootstrap = served.bootstrap
        self._process = psutil.Process(served.pid)
        with WireClient(self.bootstrap) as wire:
            wire.request(METADATA, 12, {"topics": []})
        self._before = self._process.memory_info().rss
        self._peak_file = Path(f"/proc/{served.pid}/status")

    def grown(self) -> int:
        return self._process.memory_info().rss - self._before

    def peak_growth(self) -> int:
        """The growth of the process from its start to its peak."""
        for line in self._peak_file.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024 - self._before
        raise LookupError("the kernel does not tell the peak")


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    with BrokerProcess(tmp_path / "data") as served:
        yield Watched(served)


def sent_and_closed(bootstrap: str, frame: bytes) -> None:
    """Sends a request that must close the connection or get a response."""
    with WireClient(bootstrap) as wire:
        with contextlib.suppress(ConnectionError):
            wire.send_frame(frame)
        with contextlib.suppress(ConnectionClosedError):
            wire.receive_frame()


def header(api_key: int, version: int) -> bytes:
    return struct.pack(">hhih", api_key, version, 7, 3) + b"raw"


@pytest.mark.parametrize("api_key", [PRODUCE, FETCH, METADATA, CREATE_TOPICS])
@pytest.mark.parametrize("count", [1_000_000, 100_000_000, 2**31 - 1])
def test_huge_element_counts_allocate_nothing(watched: Watched, api_key: int, count: int) -> None:
    version = {PRODUCE: 3, FETCH: 4, METADATA: 1, CREATE_TOPICS: 2}[api_key]
    fixed = {PRODUCE: b"\xff\xff\xff\xff\x00\x00\x10\x00", FETCH: bytes(17)}.get(api_key, b"")
    sent_and_closed(watched.bootstrap, header(api_key, version) + fixed + struct.pack(">i", count))
    assert watched.peak_growth() < GROWTH_MAX


def test_millions_of_tagged_fields_are_rejected(watched: Watched) -> None:
    tags = b"\xff\xff\x7f" + b"\x05\x00" * 2_000_000
    sent_and_closed(watched.bootstrap, header(METADATA, 12) + tags)
    sent_and_closed(watched.bootstrap, header(METADATA, 12) + b"\x00\x01\x00\x00" + tags)
    assert watched.peak_growth() < GROWTH_MAX


def test_millions_of_tiny_elements_do_not_multiply(watched: Watched) -> None:
    """Twenty megabytes of empty topic names must not become gigabytes of objects."""
    count = 10_000_000
    sent_and_closed(watched.bootstrap, header(METADATA, 1) + struct.pack(">i", count) + bytes(2 * count))
    assert watched.peak_growth() < 40 * MEGABYTE + GROWTH_MAX


@pytest.mark.parametrize("count", [50_000, 900_000])
def test_many_small_elements_stay_bounded(watched: Watched, count: int) -> None:
    sent_and_closed(watched.bootstrap, header(METADATA, 1) + struct.pack(">i", count) + bytes(2 * count))
    assert watched.peak_growth() < 128 * MEGABYTE


def test_announced_frames_cost_no_memory(watched: Watched) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(100):
            wire = stack.enter_context(WireClient(watched.bootstrap))
            wire.send_raw(struct.pack(">i", FRAME) + bytes(10))
        with WireClient(watched.bootstrap) as other:
            assert other.request(METADATA, 1, {"topics": []})["topics"] == []
        assert watched.peak_growth() < GROWTH_MAX


@pytest.mark.parametrize("codec", ["gzip", "zstd", "lz4", "snappy"])
@pytest.mark.parametrize("setting", [{"compression_type": "uncompressed"}, {"cleanup_policy": "compact"}], ids=str)
def test_a_decompression_bomb_stays_small(watched: Watched, codec: str, setting: dict[str, str]) -> None:
    """Two gigabytes of zeros in a batch that is small enough to be accepted."""
    topics = Topics(watched.bootstrap)
    topic = topics.create(max_message_bytes=90 * MEGABYTE, **setting)
    zeros = bytes(256 * MEGABYTE)
    number, squeezed = {
        "gzip": (1, lambda: bytes(cramjam.gzip.compress(zeros)) * 8),
        "snappy": (2, lambda: xerial(zeros)),
        "lz4": (3, lambda: bytes(cramjam.lz4.compress(zeros)) * 8),
        "zstd": (4, lambda: bytes(cramjam.zstd.compress(zeros)) * 8),
    }[codec]
    with WireClient(watched.bootstrap, timeout_s=60) as wire:
        code, _ = produce(wire, topic, batch(attributes=number, records=squeezed()))
        assert code in (2, 10, 87)
        # On a busy machine the node may have been at it for longer than its lease, and has to hear of its controller.
        deadline = time.monotonic() + 30
        while (code := produce(wire, topic, batch(key=b"k"))[0]) == NOT_LEADER:
            assert time.monotonic() < deadline
        assert code == 0
    assert watched.peak_growth() < 400 * MEGABYTE


def xerial(zeros: bytes) -> bytes:
    block = bytes(cramjam.snappy.compress_raw(zeros[: 32 * MEGABYTE]))
    return b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01" + (struct.pack(">i", len(block)) + block) * 24


def test_many_simultaneous_clients_stay_within_the_memory_limit(watched: Watched) -> None:
    topic = Topics(watched.bootstrap).create()
    large = batch([bytes(900_000)])
    with contextlib.ExitStack() as stack:
        wires = [stack.enter_context(WireClient(watched.bootstrap)) for _ in range(30)]
        for _ in range(10):
            for wire in wires:
                wire.send(PRODUCE, 9, produce_tree(topic, large))
            for wire in wires:
                wire.receive(PRODUCE, 9)
    assert watched.peak_growth() < 400 * MEGABYTE
    assert watched.grown() < 150 * MEGABYTE


def test_clients_that_never_read_stay_within_bounds(watched: Watched) -> None:
    topic = Topics(watched.bootstrap).create()
    with WireClient(watched.bootstrap) as wire:
        for _ in range(10):
            assert produce(wire, topic, batch([bytes(900_000)]))[0] == 0
    with contextlib.ExitStack() as stack:
        for _ in range(20):
            deaf = stack.enter_context(WireClient(watched.bootstrap, timeout_s=1))
            with contextlib.suppress(TimeoutError):
                for _ in range(100):
                    deaf.send(FETCH, 12, fetch_tree(topic, 0, partition_max_bytes=10 * MEGABYTE))
        with WireClient(watched.bootstrap) as other:
            assert produce(other, topic, batch([record(0, b"x")]))[0] == 0
        assert watched.peak_growth() < 300 * MEGABYTE


# Groups


def with_ballast(frame: bytes, size: int) -> bytes:
    """The same request with an unknown tagged field."""
    assert frame.endswith(b"\x00"), "no tagged fields of its own"
    return frame[:-1] + b"\x01" + unsigned_varint(999) + unsigned_varint(size) + bytes(size)


def unsigned_varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def test_pending_members_do_not_keep_their_frames(tmp_path: Path) -> None:
    patient = ("--group-initial-rebalance-delay-ms", "600000", "--offsets-topic-num-partitions", "1")
    with BrokerProcess(tmp_path / "data", *patient) as served, contextlib.ExitStack() as stack:
        with WireClient(served.bootstrap) as wire:
            find_coordinator(wire, "g")
        watched = Watched(served)
        for number in range(10):
            wire = stack.enter_context(WireClient(served.bootstrap))
            tree = join_tree("g", group_instance_id=f"i{number}", protocols=protocols(200_000))
            wire.send_frame(with_ballast(encode(JOIN_GROUP, 9, tree, number), 30 * MEGABYTE))
        deadline = time.monotonic() + 30
        while members_of(served, "g") < 10:
            assert time.monotonic() < deadline, "they have not all joined"
        assert watched.grown() < GROWTH_MAX


def members_of(served: BrokerProcess, group_id: str) -> int:
    with WireClient(served.bootstrap) as wire:
        (group,) = wire.request(DESCRIBE_GROUPS, 5, {"groups": [group_id]})["groups"]
        return len(group["members"])


def test_members_too_large_for_a_record_are_not_kept(watched: Watched) -> None:
    with WireClient(watched.bootstrap) as wire:
        find_coordinator(wire, "g")
        for _ in range(6):
            response = wire.request(JOIN_GROUP, 3, join_tree("g", protocols=protocols(50 * MEGABYTE)))
            assert response["error_code"] == 10
    # The last one may still be on its way out.
    assert watched.grown() < 50 * MEGABYTE + GROWTH_MAX


def test_a_group_that_is_named_many_times_has_one_result(watched: Watched) -> None:
    topic = Topics(watched.bootstrap).create(partitions=100)
    with WireClient(watched.bootstrap) as wire:
        find_coordinator(wire, "g")
        offsets = [(index, index) for index in range(100)]
        assert set(commit(wire, "g", topic, *offsets, metadata="m" * 4096)) == {0}
        everything = {"group_id": "g", "topics": None}
        wire.send(OFFSET_FETCH, 8, {"groups": [everything] * 1_000, "require_stable": False})
        assert len(wire.receive_frame()) < MEGABYTE
    assert watched.peak_growth() < GROWTH_MAX


def protocols(size: int) -> list[dict[str, object]]:
    return [{"name": "range", "metadata": bytes(size)}]
