"""Invalid frames: the broker closes the connection where Kafka does, and responds where Kafka does."""

import contextlib
import random
import socket
import struct

import pytest

from support.healthy_client import HealthyClient
from support.topics import Topics
from support.wire import (
    API_VERSIONS,
    FETCH,
    METADATA,
    PRODUCE,
    ConnectionClosedError,
    WireClient,
    batch,
    decode,
    encode,
    fetch_tree,
    produce_tree,
)

REQUEST_BYTES_MAX = 104_857_600
NO_TOPICS = struct.pack(">i", 0)


def header(api_key: int, version: int, client_id: bytes = b"raw", correlation_id: int = 7) -> bytes:
    return struct.pack(">hhih", api_key, version, correlation_id, len(client_id)) + client_id


def sized(frame: bytes) -> bytes:
    return struct.pack(">i", len(frame)) + frame


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(struct.pack(">i", 0), id="an empty frame"),
        pytest.param(struct.pack(">i", -1), id="a size of -1"),
        pytest.param(struct.pack(">i", -(2**31)), id="the most negative size"),
        pytest.param(struct.pack(">i", REQUEST_BYTES_MAX + 1) + b"x", id="a size over the limit"),
        pytest.param(struct.pack(">i", 2**31 - 1) + b"x", id="the largest size"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n", id="HTTP"),
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100), id="a TLS greeting"),
        pytest.param(sized(b"abc"), id="shorter than a header"),
        pytest.param(sized(header(999, 0)), id="an unknown API"),
        pytest.param(sized(header(-1, 0)), id="a negative API"),
        pytest.param(sized(header(52, 0) + bytes(30)), id="an API of the controller listener"),
        pytest.param(sized(header(METADATA, 99)), id="a version too new"),
        pytest.param(sized(header(METADATA, -1)), id="a negative version"),
        pytest.param(sized(header(FETCH, 3) + bytes(40)), id="a version too old"),
        pytest.param(sized(header(PRODUCE, 0) + bytes(20)), id="Produce 0, which is only advertised"),
        pytest.param(sized(header(PRODUCE, 2) + bytes(20)), id="Produce 2, which is only advertised"),
        pytest.param(sized(header(API_VERSIONS, 3) + b"\x00"), id="a body that ends at once"),
        pytest.param(sized(header(METADATA, 1) + b"\x00\x00"), id="a body cut short"),
        pytest.param(sized(struct.pack(">hhih", METADATA, 1, 7, 500) + b"raw"), id="a client id that does not end"),
        pytest.param(sized(header(METADATA, 1) + struct.pack(">i", 2**31 - 1)), id="an array of 2^31 elements"),
        pytest.param(sized(header(METADATA, 12) + b"\x00\xff\xff\xff\xff\x0f"), id="a compact array of 2^32 elements"),
        pytest.param(sized(header(METADATA, 12) + b"\x00" + b"\xff" * 12), id="a number that does not end"),
    ],
)
def test_an_invalid_request_closes_the_connection(wire: WireClient, data: bytes) -> None:
    wire.send_raw(data)
    assert wire.is_closed()


@pytest.mark.parametrize(
    "frame",
    [
        pytest.param(header(METADATA, 1) + NO_TOPICS + b"more", id="bytes behind the body"),
        pytest.param(struct.pack(">hhih", METADATA, 1, 7, -1) + NO_TOPICS, id="no client id"),
        pytest.param(header(METADATA, 1, b"") + NO_TOPICS, id="an empty client id"),
        pytest.param(header(METADATA, 1, b"\xff\xfe") + NO_TOPICS, id="a client id that is not UTF-8"),
        pytest.param(header(METADATA, 12) + b"\x01\x63\x02ab\x01\x00\x00\x00", id="an unknown tag in the header"),
        pytest.param(header(METADATA, 12) + b"\x00\x01\x00\x00\x01\x63\x02ab", id="an unknown tag in the body"),
    ],
)
def test_an_unusual_but_valid_request_gets_a_response(wire: WireClient, frame: bytes) -> None:
    wire.send_frame(frame)
    correlation_id, response = decode(METADATA, frame[3], wire.receive_frame())
    assert correlation_id == 7
    assert response["topics"] == []


@pytest.mark.parametrize("version", [5, 99, 32767, -1])
def test_api_versions_of_an_unknown_version_lists_the_supported_ones(wire: WireClient, version: int) -> None:
    wire.send_frame(header(API_VERSIONS, version) + b"\x00whatever")
    assert wire.receive_frame() == struct.pack(">ihihhh", 7, 35, 1, API_VERSIONS, 0, 4)
    response = wire.request(API_VERSIONS, 4, {"client_software_name": "test", "client_software_version": "1"})
    assert response["error_code"] == 0


@pytest.mark.parametrize("name", ["", "no spaces!", "-begins-badly"])
def test_api_versions_rejects_an_invalid_software_name(wire: WireClient, name: str) -> None:
    tree = {"client_software_name": name, "client_software_version": "1"}
    assert wire.request(API_VERSIONS, 3, tree)["error_code"] == 42


def test_a_truncated_request_affects_no_other_client(bootstrap: str, topics: Topics) -> None:
    whole = sized(encode(PRODUCE, 9, produce_tree(topics.create(), batch()), 1))
    for length in (1, 3, 4, 10, len(whole) // 2, len(whole) - 1):
        with WireClient(bootstrap) as wire:
            wire.send_raw(whole[:length])


def test_random_bytes_close_the_connection_or_get_a_response(bootstrap: str) -> None:
    chance = random.Random(20)
    for _ in range(100):
        with WireClient(bootstrap) as wire:
            api_key, version = chance.choice([(0, 9), (1, 12), (2, 7), (3, 12), (18, 3), (19, 7), (22, 4), (32, 4)])
            wire.send_frame(header(api_key, version) + chance.randbytes(chance.randrange(200)))
            # acks=0 has no answer: the witness's request behind it is what must be answered then.
            with contextlib.suppress(ConnectionError):
                wire.send(API_VERSIONS, 0, {})
            with contextlib.suppress(ConnectionClosedError):
                wire.receive_frame()


def test_a_request_sent_byte_by_byte_blocks_no_other_client(wire: WireClient, witness: HealthyClient) -> None:
    for byte in sized(encode(METADATA, 1, {"topics": []}, 55)):
        wire.send_raw(bytes([byte]))
        assert witness.check()
    assert wire.receive(METADATA, 1)[0] == 55


def test_many_partial_large_requests_block_no_other_client(
    bootstrap: str, witness: HealthyClient, only_moldau: None
) -> None:
    """Kafka allocates what a frame announces, and runs out of memory here with a small heap."""
    with contextlib.ExitStack() as stack:
        slow = [stack.enter_context(WireClient(bootstrap)) for _ in range(200)]
        for wire in slow:
            wire.send_raw(struct.pack(">i", REQUEST_BYTES_MAX) + b"only the beginning")
        assert witness.check()


def test_pipelined_requests_get_responses_in_order(wire: WireClient, topics: Topics) -> None:
    topic = topics.create()
    kinds = []
    for round_ in range(20):
        wait = {"max_wait": 200 if round_ == 0 else 0}
        kinds.append((FETCH, 12, wire.send(FETCH, 12, fetch_tree(topic, 0, **wait))))
        kinds.append((METADATA, 1, wire.send(METADATA, 1, {"topics": []})))
        kinds.append((PRODUCE, 9, wire.send(PRODUCE, 9, produce_tree(topic, batch()))))
        kinds.append((API_VERSIONS, 0, wire.send(API_VERSIONS, 0, {})))
    for api_key, version, sent in kinds:
        correlation_id, _ = wire.receive(api_key, version)
        assert correlation_id == sent


def test_a_produce_without_response_keeps_the_order_of_the_others(wire: WireClient, topics: Topics) -> None:
    topic = topics.create()
    for _ in range(10):
        wire.send(PRODUCE, 9, produce_tree(topic, batch(), acks=0))
        sent = wire.send(METADATA, 1, {"topics": []})
        assert wire.receive(METADATA, 1)[0] == sent


def test_a_half_closed_connection_still_gets_its_responses(bootstrap: str, topics: Topics) -> None:
    topic = topics.create()
    for wait_ms in (0, 300):
        with WireClient(bootstrap) as wire:
            sent = wire.send(FETCH, 12, fetch_tree(topic, 0, max_wait=wait_ms))
            wire.socket.shutdown(socket.SHUT_WR)
            assert wire.receive(FETCH, 12)[0] == sent
            assert wire.is_closed()


def test_a_client_that_disconnects_during_a_pending_request_affects_no_other(bootstrap: str, topics: Topics) -> None:
    topic = topics.create()
    for _ in range(20):
        wire = WireClient(bootstrap)
        wire.send(FETCH, 12, fetch_tree(topic, 0, max_wait=30_000))
        wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        wire.close()


def test_a_client_that_never_reads_blocks_no_other(wire: WireClient, topics: Topics, witness: HealthyClient) -> None:
    topic = topics.create(max_message_bytes=2_000_000)
    with WireClient(f"{wire.socket.getpeername()[0]}:{wire.socket.getpeername()[1]}") as other:
        for _ in range(4):
            other.request(PRODUCE, 9, produce_tree(topic, batch([bytes(1_000_000)])))
    wire.socket.settimeout(1)
    with contextlib.suppress(TimeoutError):
        for _ in range(2000):
            wire.send(FETCH, 12, fetch_tree(topic, 0, partition_max_bytes=5_000_000))
            if wire.correlation_id % 200 == 0:
                assert witness.check()
    assert witness.check()


def test_closed_connections_leave_no_state(bootstrap: str, witness: HealthyClient) -> None:
    for _ in range(200):
        WireClient(bootstrap).close()
    assert witness.check()
