"""Load for HTTP APIs: prebuilt requests over connections that are kept alive, parsed as little as possible so that the
client is not the limit."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

FILLED_RECORDS = 20_000
"""Records in a topic that is consumed."""

SIMPLE_PRODUCE = "/data/v1/produce"
SIMPLE_CONSUME = "/data/v1/consume"
V1_PRODUCE = "/v1 produce"
V1_CONSUME = "/v1 consume by offset"
PROXY_PRODUCE = "REST proxy produce"

_OK = (200, 204)
_NO_CONTENT = 204
_HEAD_END = b"\r\n\r\n"
_CONTENT_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)")


class HttpLoadFailed(Exception):
    """A response was not the expected one: a run with one is no result."""


@dataclass(frozen=True)
class Requests:
    """Requests that each connection sends again and again, starting at its own place."""

    encoded: tuple[bytes, ...]
    body_bytes_min: int = 0
    """A body with fewer bytes cannot have all records."""


def requests_of(api: str, address: str, topic: str, records: int, value_bytes: int) -> Requests:
    """Returns requests that produce or consume `records` records of partition 0 each."""
    value = "v" * value_bytes
    if api == SIMPLE_PRODUCE:
        return Requests((_post(address, api, {"topic_partition": f"{topic}-1", "payload": value}),))
    if api == V1_PRODUCE:
        body = {"records": [{"value": {"text": value}, "partition": 0}] * records}
        return Requests((_post(address, f"/v1/topics/{topic}/records", body),))
    if api == PROXY_PRODUCE:
        body = {"records": [{"value": value, "partition": 0}] * records}
        return Requests((_post(address, f"/topics/{topic}", body, "application/vnd.kafka.json.v2+json"),))
    offsets = range(0, FILLED_RECORDS - records + 1, records)
    if api == SIMPLE_CONSUME:
        bodies = (
            {"topic_partition": f"{topic}-1", "last_offset": offset - 1, "max_batch_size": records}
            for offset in offsets
        )
        encoded = tuple(_post(address, api, body) for body in bodies)
    elif api == V1_CONSUME:
        path = f"/v1/topics/{topic}/partitions/0/records?max_records={records}&wait_ms=0&format=text&offset="
        encoded = tuple(_encode(address, "GET", f"{path}{offset}") for offset in offsets)
    else:
        raise ValueError(f"no such API: {api}")
    return Requests(encoded, records * value_bytes)


def _post(address: str, path: str, body: Any, content_type: str = "application/json") -> bytes:
    return _encode(address, "POST", path, json.dumps(body).encode(), content_type)


def _encode(address: str, method: str, path: str, body: bytes = b"", content_type: str = "") -> bytes:
    lines = [f"{method} {path} HTTP/1.1", f"Host: {address}"]
    if body:
        lines += [f"Content-Type: {content_type}", f"Content-Length: {len(body)}"]
    return "\r\n".join(lines).encode() + _HEAD_END + body


def is_complete(data: bytes | bytearray, body_bytes_min: int = 0) -> bool:
    """Returns whether `data` is a whole response. Raises HttpLoadFailed if it is not the expected one."""
    head_end = data.find(_HEAD_END)
    if head_end < 0:
        return False
    status = int(data[9:12])
    length = 0
    if status != _NO_CONTENT:
        found = _CONTENT_LENGTH.search(bytes(data[:head_end]).lower())
        if found is None:
            raise HttpLoadFailed(f"a response has no Content-Length: {bytes(data[:300])!r}")
        length = int(found[1])
    missing = head_end + len(_HEAD_END) + length - len(data)
    if missing > 0:
        return False
    if missing < 0 or status not in _OK or length < body_bytes_min:
        raise HttpLoadFailed(f"not the expected response: {bytes(data[:300])!r}")
    return True


class _Connection(asyncio.Protocol):
    """Sends each request after the response to the previous one."""

    def __init__(self, requests: Requests, first: int) -> None:
        self._requests = requests
        self._next = first
        self._received = bytearray()
        self._latencies: list[float] = []
        self._done: asyncio.Future[list[float]] | None = None
        self._interval_s = 0.0
        self._sent_s = self._due_s = self.stop_s = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_exception(HttpLoadFailed(f"the server closed a connection: {error}"))

    async def run(self, stop_s: float, start_s: float, interval_s: float) -> list[float]:
        """Returns the latencies in seconds of all requests until a time. With an interval, requests are not sent
        earlier than it says."""
        loop = asyncio.get_running_loop()
        self._done, self._latencies = loop.create_future(), []
        self.stop_s, self._due_s, self._interval_s = stop_s, start_s, interval_s
        self._send_when_due()
        return await self._done

    def _send_when_due(self) -> None:
        wait_s = self._due_s - time.perf_counter() if self._interval_s else 0.0
        if wait_s > 0:
            asyncio.get_running_loop().call_later(wait_s, self._send)
        else:
            self._send()

    def _send(self) -> None:
        if self.transport.is_closing():
            return
        # A request that is late does not make the following ones come faster.
        self._sent_s = time.perf_counter()
        self._due_s = max(self._due_s + self._interval_s, self._sent_s)
        self.transport.write(self._requests.encoded[self._next % len(self._requests.encoded)])
        self._next += 1

    def data_received(self, data: bytes) -> None:
        self._received += data
        assert self._done is not None
        try:
            if not is_complete(self._received, self._requests.body_bytes_min):
                return
        except HttpLoadFailed as error:
            if not self._done.done():
                self._done.set_exception(error)
            return
        now_s = time.perf_counter()
        self._latencies.append(now_s - self._sent_s)
        self._received.clear()
        if now_s >= self.stop_s:
            self._done.set_result(self._latencies)
        else:
            self._send_when_due()


class Connections:
    """Several connections that send at the same time."""

    def __init__(self, address: str, requests: Requests, count: int, rate_per_s: float = 0.0) -> None:
        """`rate_per_s` is the limit of all connections together; 0 for none."""
        self._address = address
        self._requests = requests
        self._count = count
        self._interval_s = count / rate_per_s if rate_per_s else 0.0
        self._open: Sequence[_Connection] = ()

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        host, _, port = self._address.rpartition(":")
        opened = []
        for number in range(self._count):
            first = number * len(self._requests.encoded) // self._count
            _, connection = await loop.create_connection(partial(_Connection, self._requests, first), host, int(port))
            opened.append(connection)
        self._open = opened
        return self

    async def __aexit__(self, *_: object) -> None:
        for connection in self._open:
            connection.transport.close()

    async def run(self, seconds: float) -> list[float]:
        """Returns the latencies in seconds of all requests that were sent in this time."""
        now_s = time.perf_counter()
        step_s = self._interval_s / self._count
        taken = await asyncio.gather(
            *(
                each.run(now_s + seconds, now_s + number * step_s, self._interval_s)
                for number, each in enumerate(self._open)
            )
        )
        return [latency for each in taken for latency in each]

    def stop(self) -> None:
        """Lets `run` return after the responses to the current requests."""
        for connection in self._open:
            connection.stop_s = 0.0
