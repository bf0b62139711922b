"""A load generator on the wire protocol: batches are built once and sent repeatedly with several requests in flight,
and of fetched batches only headers are read. It costs a few microseconds per request, so it measures the broker."""

from __future__ import annotations

import selectors
import socket
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack

from crc32c import crc32c

PRODUCE, FETCH, METADATA, API_VERSIONS = 0, 1, 3, 18
PRODUCE_VERSION, FETCH_VERSION, METADATA_VERSION, API_VERSIONS_VERSION = 8, 11, 4, 0
ACKS_ALL = -1
READ_UNCOMMITTED, READ_COMMITTED = 0, 1
REQUEST_TIMEOUT_MS = 30_000
SOCKET_TIMEOUT_S = 60.0
PARTITION_FETCH_BYTES = 1 << 20
FETCH_BYTES_MAX = 50 << 20
BATCH_OVERHEAD = 61
CLIENT_ID = "bench"

# UNKNOWN_TOPIC_OR_PARTITION, LEADER_NOT_AVAILABLE, NOT_LEADER_OR_FOLLOWER, REPLICA_NOT_AVAILABLE
LEADER_NOT_READY = frozenset({3, 5, 6, 9})


class BrokerError(Exception):
    """The broker responded with an error code."""

    def __init__(self, what: str, code: int) -> None:
        super().__init__(f"{what} was answered with error {code}")
        self.code = code


def _varint(number: int) -> bytes:
    zigzag = (number << 1) ^ (number >> 63)
    out = bytearray()
    while zigzag > 0x7F:
        out.append((zigzag & 0x7F) | 0x80)
        zigzag >>= 7
    out.append(zigzag)
    return bytes(out)


def _record(offset_delta: int, value: bytes) -> bytes:
    body = b"\x00" + _varint(0) + _varint(offset_delta) + _varint(-1) + _varint(len(value)) + value + _varint(0)
    return _varint(len(body)) + body


def batch_of(values: Sequence[bytes], timestamp_ms: int) -> bytes:
    """Returns an uncompressed v2 batch of records without keys and without a producer id."""
    records = b"".join(_record(delta, value) for delta, value in enumerate(values))
    count = len(values)
    checked = struct.pack(">hiqqqhii", 0, count - 1, timestamp_ms, timestamp_ms, -1, -1, -1, count) + records
    head = struct.pack(">qiib", 0, BATCH_OVERHEAD - 12 + len(records), -1, 2)
    return head + struct.pack(">I", crc32c(checked)) + checked


def records_per_batch(value_bytes: int, batch_bytes: int) -> int:
    """Returns how many values fit into a batch; at least one."""
    record_bytes_max = len(_record(1 << 20, bytes(value_bytes)))
    return max(1, (batch_bytes - BATCH_OVERHEAD) // record_bytes_max)


def _string(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


def _header(api_key: int, version: int, correlation: int) -> bytes:
    return struct.pack(">hhi", api_key, version, correlation) + _string(CLIENT_ID)


def produce_frame(topic: str, partition: int, batch: bytes) -> bytes:
    """Returns a complete Produce request, with its length, that can be sent repeatedly."""
    body = struct.pack(">hhii", -1, ACKS_ALL, REQUEST_TIMEOUT_MS, 1) + _string(topic)
    body += struct.pack(">iii", 1, partition, len(batch)) + batch
    payload = _header(PRODUCE, PRODUCE_VERSION, 0) + body
    return struct.pack(">i", len(payload)) + payload


def fetch_frame(
    topic: str, offsets: dict[int, int], wait_ms: int = 500, isolation_level: int = READ_UNCOMMITTED
) -> bytes:
    body = struct.pack(">iiiibii", -1, wait_ms, 1, FETCH_BYTES_MAX, isolation_level, 0, -1)
    body += struct.pack(">i", 1) + _string(topic) + struct.pack(">i", len(offsets))
    for partition, offset in offsets.items():
        body += struct.pack(">iiqqi", partition, -1, offset, -1, PARTITION_FETCH_BYTES)
    body += struct.pack(">i", 0) + _string("")
    payload = _header(FETCH, FETCH_VERSION, 0) + body
    return struct.pack(">i", len(payload)) + payload


def metadata_frame(topic: str, create: bool) -> bytes:
    payload = _header(METADATA, METADATA_VERSION, 0) + struct.pack(">i", 1) + _string(topic) + bytes([create])
    return struct.pack(">i", len(payload)) + payload


def api_versions_frame() -> bytes:
    payload = _header(API_VERSIONS, API_VERSIONS_VERSION, 0)
    return struct.pack(">i", len(payload)) + payload


def connect(bootstrap: str) -> socket.socket:
    host, _, port = bootstrap.rpartition(":")
    sock = socket.create_connection((host, int(port)), timeout=SOCKET_TIMEOUT_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


class Responses:
    """Responses on one socket, in a reused buffer: a view is valid until the next one."""

    def __init__(self, sock: socket.socket, buffer_bytes: int = 1 << 16) -> None:
        self._sock = sock
        self._buffer = memoryview(bytearray(buffer_bytes))
        self._start = 0
        self._end = 0

    def receive(self) -> None:
        """Reads once; raises if the broker has closed the connection."""
        if self._end == len(self._buffer):
            self._make_room(self._end - self._start + 1)
        size = self._sock.recv_into(self._buffer[self._end :])
        if size == 0:
            raise ConnectionError("the broker closed the connection")
        self._end += size

    def ready(self) -> memoryview | None:
        """Returns the next complete response without its length, or None."""
        if self._end - self._start < 4:
            return None
        (size,) = struct.unpack_from(">i", self._buffer, self._start)
        stop = self._start + 4 + size
        if stop > self._end:
            if stop > len(self._buffer):
                self._make_room(4 + size)
            return None
        response = self._buffer[self._start + 4 : stop]
        self._start = stop
        if self._start == self._end:
            self._start = self._end = 0
        return response

    def next(self) -> memoryview:
        while (response := self.ready()) is None:
            self.receive()
        return response

    def _make_room(self, needed: int) -> None:
        """Moves unread bytes to the front, into a larger buffer if `needed` bytes do not fit."""
        unread = bytes(self._buffer[self._start : self._end])
        if needed > len(self._buffer):
            self._buffer = memoryview(bytearray(needed * 2))
        self._buffer[: len(unread)] = unread
        self._start, self._end = 0, len(unread)


def check_produced(response: memoryview, topic_bytes: int) -> None:
    (code,) = struct.unpack_from(">h", response, 4 + 4 + 2 + topic_bytes + 4 + 4)
    if code != 0:
        raise BrokerError("Produce", code)


def fetched(response: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Yields each partition of a Fetch response for one topic, with its records."""
    (code,) = struct.unpack_from(">h", response, 8)
    if code != 0:
        raise BrokerError("Fetch", code)
    (topics,) = struct.unpack_from(">i", response, 14)
    if topics == 0:
        return
    (name_bytes,) = struct.unpack_from(">h", response, 18)
    at = 20 + name_bytes
    (partitions,) = struct.unpack_from(">i", response, at)
    at += 4
    for _ in range(partitions):
        partition, code = struct.unpack_from(">ih", response, at)
        if code != 0:
            raise BrokerError(f"Fetch of partition {partition}", code)
        (aborted,) = struct.unpack_from(">i", response, at + 30)
        at += 34 + 16 * max(aborted, 0) + 4
        (size,) = struct.unpack_from(">i", response, at)
        at += 4
        yield partition, response[at : at + max(size, 0)]
        at += max(size, 0)


def count_complete_batches(records: memoryview) -> tuple[int, int] | None:
    """Returns the number of records in complete batches and the next offset; a partial last batch is skipped."""
    at, count, next_offset = 0, 0, -1
    while len(records) - at >= BATCH_OVERHEAD:
        base_offset, size = struct.unpack_from(">qi", records, at)
        if at + 12 + size > len(records):
            break
        (last_delta,) = struct.unpack_from(">i", records, at + 23)
        count += last_delta + 1
        next_offset = base_offset + last_delta + 1
        at += 12 + size
    return None if count == 0 else (count, next_offset)


def produce(
    bootstrap: str,
    topic: str,
    partitions: int,
    value_bytes: int,
    batch_bytes: int,
    connections: int,
    in_flight: int,
    seconds: float | None = None,
    batches: int | None = None,
) -> tuple[int, float]:
    """Sends for `seconds` or `batches`, with `in_flight` requests per connection; returns the acknowledged records and
    the seconds from the first byte to the last acknowledgement."""
    count = records_per_batch(value_bytes, batch_bytes)
    batch = batch_of([b"v" * value_bytes] * count, int(time.time() * 1000))
    frames = [produce_frame(topic, partition, batch) for partition in range(partitions)]
    topic_bytes = len(topic.encode())
    left = batches if batches is not None else 1 << 62
    sent = acknowledged = 0
    with ExitStack() as stack:
        socks = [stack.enter_context(connect(bootstrap)) for _ in range(connections)]
        selector = stack.enter_context(selectors.DefaultSelector())
        began = time.perf_counter()
        until = began + seconds if seconds is not None else float("inf")
        for sock in socks:
            selector.register(sock, selectors.EVENT_READ, Responses(sock))
            for _ in range(min(in_flight, left - sent)):
                sock.sendall(frames[sent % partitions])
                sent += 1
        while acknowledged < sent:
            for key, _ in selector.select(SOCKET_TIMEOUT_S):
                sock, responses = socks[socks.index(key.fileobj)], key.data  # type: ignore[arg-type]
                responses.receive()
                while (response := responses.ready()) is not None:
                    check_produced(response, topic_bytes)
                    acknowledged += 1
                    if sent < left and time.perf_counter() < until:
                        sock.sendall(frames[sent % partitions])
                        sent += 1
        elapsed = time.perf_counter() - began
    return acknowledged * count, elapsed


def consume(
    bootstrap: str, topic: str, partitions: int, records: int, isolation_level: int = READ_UNCOMMITTED
) -> tuple[int, float]:
    """Fetches every partition from its start until `records` have arrived, one request in flight."""
    offsets = dict.fromkeys(range(partitions), 0)
    seen = 0
    with connect(bootstrap) as sock:
        responses = Responses(sock, (PARTITION_FETCH_BYTES * 2) * partitions + 4096)
        began = time.perf_counter()
        while seen < records:
            sock.sendall(fetch_frame(topic, offsets, isolation_level=isolation_level))
            for partition, part in fetched(responses.next()):
                if (found := count_complete_batches(part)) is not None:
                    seen += found[0]
                    offsets[partition] = found[1]
        return seen, time.perf_counter() - began


def latencies(bootstrap: str, topic: str, value_bytes: int, count: int) -> list[float]:
    """Returns the seconds from each record's send to its acknowledgement, one at a time."""
    frame = produce_frame(topic, 0, batch_of([b"v" * value_bytes], int(time.time() * 1000)))
    topic_bytes = len(topic.encode())
    taken = []
    with connect(bootstrap) as sock:
        responses = Responses(sock)
        for _ in range(count):
            began = time.perf_counter()
            sock.sendall(frame)
            response = responses.next()
            taken.append(time.perf_counter() - began)
            check_produced(response, topic_bytes)
    return taken


def wait_until_served(bootstrap: str, topic: str, partitions: int, deadline_s: float) -> None:
    """Returns when every partition can be read. Kafka's metadata names a leader shortly before it leads."""
    frame = fetch_frame(topic, dict.fromkeys(range(partitions), 0), wait_ms=0)
    deadline = time.monotonic() + deadline_s
    with connect(bootstrap) as sock:
        responses = Responses(sock)
        while True:
            sock.sendall(frame)
            try:
                for _ in fetched(responses.next()):
                    pass
                return
            except BrokerError as error:
                if error.code not in LEADER_NOT_READY or time.monotonic() > deadline:
                    raise
            time.sleep(0.005)


def first_acknowledgement(bootstrap: str, topic: str, deadline_s: float, alive: Callable[[], bool]) -> None:
    """Returns when a broker that may still be starting acknowledges a record: connects, requests the topic (creating it
    if needed) and sends, repeatedly without backoff."""
    frame = produce_frame(topic, 0, batch_of([b"first"], int(time.time() * 1000)))
    deadline = time.monotonic() + deadline_s
    while time.monotonic() < deadline and alive():
        try:
            with connect(bootstrap) as sock:
                responses = Responses(sock)
                while time.monotonic() < deadline:
                    sock.sendall(metadata_frame(topic, create=True))
                    responses.next()
                    sock.sendall(frame)
                    try:
                        check_produced(responses.next(), len(topic.encode()))
                        return
                    except BrokerError:
                        time.sleep(0.002)
        except OSError:
            time.sleep(0.002)
    why = f"within {deadline_s} s" if alive() else "before its process ended"
    raise TimeoutError(f"no acknowledgement from {bootstrap} {why}")
