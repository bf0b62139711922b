"""The HTTP load generator: requests, and when a response is complete."""

import asyncio
import json

import pytest
from bench.http_load import (
    FILLED_RECORDS,
    SIMPLE_CONSUME,
    V1_CONSUME,
    V1_PRODUCE,
    Connections,
    HttpLoadFailed,
    Requests,
    is_complete,
    requests_of,
)

RESPONSE = b"HTTP/1.1 200 OK\r\nserver: x\r\nContent-Length: 5\r\n\r\nhello"


def test_a_response_is_complete_with_its_last_byte() -> None:
    assert [is_complete(RESPONSE[:length]) for length in range(len(RESPONSE) + 1)] == [False] * len(RESPONSE) + [True]
    assert is_complete(b"HTTP/1.1 204 No Content\r\n\r\n")


@pytest.mark.parametrize(
    "response",
    [
        RESPONSE.replace(b"200", b"207"),
        RESPONSE.replace(b"200", b"503"),
        RESPONSE + b"HTTP/1.1",
        RESPONSE.replace(b"Content-Length: 5", b"Transfer-Encoding: chunked"),
    ],
)
def test_an_unexpected_response_fails(response: bytes) -> None:
    with pytest.raises(HttpLoadFailed):
        is_complete(response)


def test_a_response_without_all_records_fails() -> None:
    assert is_complete(RESPONSE, body_bytes_min=5)
    with pytest.raises(HttpLoadFailed):
        is_complete(RESPONSE, body_bytes_min=6)


def test_a_produce_request_has_all_records() -> None:
    [request] = requests_of(V1_PRODUCE, "localhost:1", "topic", 100, 10).encoded
    head, _, body = request.partition(b"\r\n\r\n")
    assert f"Content-Length: {len(body)}".encode() in head
    assert json.loads(body)["records"] == [{"value": {"text": "v" * 10}, "partition": 0}] * 100


@pytest.mark.parametrize("api", [SIMPLE_CONSUME, V1_CONSUME])
def test_consume_requests_cover_the_topic(api: str) -> None:
    requests = requests_of(api, "localhost:1", "topic", 100, 10)
    assert len(requests.encoded) == FILLED_RECORDS // 100
    assert requests.body_bytes_min == 1000


@pytest.mark.parametrize("rate_per_s", [0.0, 200.0])
def test_connections_send_at_most_the_wanted_rate(rate_per_s: float) -> None:
    sent, served = asyncio.run(_load(rate_per_s, connections=4, seconds=0.2))
    assert sent == served >= 4
    if rate_per_s:
        # 40 in this time, and each connection may send one more before it looks at the clock.
        assert served <= 40 + 2 * 4


async def _load(rate_per_s: float, connections: int, seconds: float) -> tuple[int, int]:
    """Returns how many requests were sent and how many were served."""
    served = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal served
        while await reader.readline():
            served += 1
            writer.write(RESPONSE)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with Connections(address, Requests((b"GET\n",)), connections, rate_per_s) as opened:
            return len(await opened.run(seconds)), served
