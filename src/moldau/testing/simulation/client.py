"""A small Kafka client for workloads inside a simulation: one connection, requests pipelined, nothing hidden.

It does not retry: what to do about a lost connection or an error code is the workload's to decide.
"""

import asyncio
import struct
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from moldau.errors import MoldauError
from moldau.records.batch import LOG_OVERHEAD, Batch
from moldau.records.record import Record, iterate
from moldau.wire.api_keys import ApiKey
from moldau.wire.codec import Message, decoder, encoder, uses_flexible_headers
from moldau.wire.frames import skip_tags
from moldau.wire.kio import ErrorCode

VERSIONS = {
    ApiKey.PRODUCE: 9,
    ApiKey.FETCH: 12,
    ApiKey.LIST_OFFSETS: 7,
    ApiKey.METADATA: 12,
    ApiKey.CREATE_TOPICS: 7,
    ApiKey.DELETE_TOPICS: 6,
    ApiKey.INIT_PRODUCER_ID: 4,
}
"""All of them name topics, not topic ids, and have flexible headers."""

EARLIEST = -2
LATEST = -1
REQUEST_TIMEOUT_MS = 10_000
FRAME_BYTES_MAX = 1 << 26

_SIZE = struct.Struct(">i")
_HEADER = struct.Struct(">hhih")

Partition = tuple[str, int]


class BrokerError(Exception):
    """The broker answered with an error code."""

    def __init__(self, code: int) -> None:
        super().__init__(ErrorCode(code).name)
        self.code = ErrorCode(code)


@dataclass(frozen=True, slots=True)
class Fetched:
    """What a fetch of one partition brought."""

    high_watermark: int
    log_start_offset: int
    records: Sequence[Record]


class Client:
    """Use `connect` to make one. Whatever goes wrong with the connection raises OSError."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, client_id: str) -> None:
        self._reader = reader
        self._writer = writer
        self._client_id = client_id.encode()
        self._correlation_id = 0
        self._waiting: deque[tuple[int, asyncio.Future[bytes]]] = deque()
        self._failure: OSError | None = None
        self._receiving = asyncio.get_running_loop().create_task(
            self._receive(), name=f"{client_id} receives"
        )

    @classmethod
    async def connect(cls, host: str, port: int, client_id: str) -> "Client":
        async with asyncio.timeout(REQUEST_TIMEOUT_MS / 1000):
            reader, writer = await asyncio.open_connection(host, port)
        return cls(reader, writer, client_id)

    def close(self) -> None:
        self._fail(ConnectionAbortedError("the client closed the connection"))

    # Operations

    async def create_topic(
        self, name: str, partitions: int, configs: Mapping[str, str] | None = None
    ) -> None:
        topic = {
            "name": name,
            "num_partitions": partitions,
            "replication_factor": 1,
            "assignments": [],
            "configs": [{"name": key, "value": value} for key, value in (configs or {}).items()],
        }
        answer = await self.call(ApiKey.CREATE_TOPICS, {"topics": [topic], "timeout": REQUEST_TIMEOUT_MS})
        _check(answer.topics[0].error_code)

    async def delete_topic(self, name: str) -> None:
        topics = [{"name": name, "topic_id": None}]
        answer = await self.call(ApiKey.DELETE_TOPICS, {"topics": topics, "timeout": REQUEST_TIMEOUT_MS})
        _check(answer.responses[0].error_code)

    async def topics(self) -> list[str]:
        """The names of all topics."""
        answer = await self.call(
            ApiKey.METADATA,
            {
                "topics": None,
                "allow_auto_topic_creation": False,
                "include_topic_authorized_operations": False,
            },
        )
        return [topic.name for topic in answer.topics]

    async def init_producer(self) -> tuple[int, int]:
        """A new producer id and its epoch."""
        answer = await self.call(
            ApiKey.INIT_PRODUCER_ID, {"transactional_id": None, "transaction_timeout": 60_000}
        )
        _check(answer.error_code)
        return answer.producer_id, answer.producer_epoch

    async def produce(self, batches: Mapping[Partition, bytes], acks: int) -> Mapping[Partition, Message]:
        """Sends one request with a batch per partition; the answers by partition, none with acks=0."""
        future = self.send_produce(batches, acks)
        return {} if future is None else self.read_produce(await self.take(future))

    def send_produce(self, batches: Mapping[Partition, bytes], acks: int) -> "asyncio.Future[bytes] | None":
        """As `produce`, without waiting; the future goes to `take` and then to `read_produce`."""
        topics: dict[str, list[dict[str, Any]]] = {}
        for (topic, partition), records in batches.items():
            topics.setdefault(topic, []).append({"index": partition, "records": records})
        tree = {
            "acks": acks,
            "timeout": REQUEST_TIMEOUT_MS,
            "topic_data": [{"name": name, "partition_data": each} for name, each in topics.items()],
        }
        return self._send(ApiKey.PRODUCE, tree, is_answered=acks != 0)

    @staticmethod
    def read_produce(body: bytes) -> Mapping[Partition, Message]:
        answer = decoder(ApiKey.PRODUCE, VERSIONS[ApiKey.PRODUCE], "response")(memoryview(body))
        return {
            (topic.name, each.index): each for topic in answer.responses for each in topic.partition_responses
        }

    async def fetch(
        self,
        partition: Partition,
        offset: int,
        *,
        max_wait_ms: int = 500,
        min_bytes: int = 1,
        max_bytes: int = 1 << 20,
    ) -> Fetched:
        tree = {
            "max_wait": max_wait_ms,
            "min_bytes": min_bytes,
            "max_bytes": max_bytes,
            "topics": [
                {
                    "topic": partition[0],
                    "partitions": [
                        {"partition": partition[1], "fetch_offset": offset, "partition_max_bytes": max_bytes}
                    ],
                }
            ],
            "forgotten_topics_data": [],
        }
        answer = await self.call(ApiKey.FETCH, tree)
        _check(answer.error_code)
        found = answer.responses[0].partitions[0]
        _check(found.error_code)
        records = [record for record in _read_records(found.records) if record.offset >= offset]
        return Fetched(found.high_watermark, found.log_start_offset, records)

    async def list_offset(self, partition: Partition, timestamp: int) -> int:
        tree = {
            "replica_id": -1,
            "isolation_level": 0,
            "topics": [
                {
                    "name": partition[0],
                    "partitions": [{"partition_index": partition[1], "timestamp": timestamp}],
                }
            ],
        }
        answer = await self.call(ApiKey.LIST_OFFSETS, tree)
        found = answer.topics[0].partitions[0]
        _check(found.error_code)
        return int(found.offset)

    # Frames

    async def call(self, api_key: ApiKey, tree: Mapping[str, Any]) -> Message:
        future = self._send(api_key, tree)
        assert future is not None
        body = await self.take(future)
        return decoder(api_key, VERSIONS[api_key], "response")(memoryview(body))

    async def take(self, future: "asyncio.Future[bytes]") -> bytes:
        """Waits for an answer; one that does not come in time ends the connection."""
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_MS / 1000):
                return await future
        except TimeoutError:
            self.close()
            raise

    def _send(
        self, api_key: ApiKey, tree: Mapping[str, Any], *, is_answered: bool = True
    ) -> "asyncio.Future[bytes] | None":
        if self._failure is not None:
            raise _fresh(self._failure)
        version = VERSIONS[api_key]
        assert uses_flexible_headers(api_key, version)
        self._correlation_id += 1
        frame = bytearray(_HEADER.pack(api_key, version, self._correlation_id, len(self._client_id)))
        frame += self._client_id
        frame.append(0)
        encoder(api_key, version, "request")(frame, tree)
        self._writer.writelines([_SIZE.pack(len(frame)), frame])
        if not is_answered:
            return None
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting.append((self._correlation_id, future))
        return future

    async def _receive(self) -> None:
        try:
            while True:
                (size,) = _SIZE.unpack(await self._reader.readexactly(_SIZE.size))
                if not 4 <= size <= FRAME_BYTES_MAX:
                    raise AssertionError(f"the broker sent a frame of {size} bytes")
                frame = await self._reader.readexactly(size)
                self._take_answer(frame)
        except (OSError, asyncio.IncompleteReadError) as error:
            self._fail(ConnectionResetError(f"the connection ended: {error}"))

    def _take_answer(self, frame: bytes) -> None:
        if self._failure is not None:
            # It had arrived before the connection failed, but nobody waits for it any more.
            return
        (correlation_id,) = _SIZE.unpack_from(frame)
        expected, future = self._waiting.popleft()
        if correlation_id != expected:
            raise AssertionError(f"answer {correlation_id} came where {expected} was due")
        if not future.done():
            future.set_result(frame[skip_tags(memoryview(frame), _SIZE.size) :])

    def _fail(self, error: OSError) -> None:
        if self._failure is None:
            self._failure = error
            self._writer.transport.abort()
        while self._waiting:
            _, future = self._waiting.popleft()
            if not future.done():
                future.set_exception(_fresh(error))
                # A pipelined request whose sender has gone on already is no news.
                future.exception()


def _fresh(error: OSError) -> OSError:
    return type(error)(*error.args)


def _check(code: int) -> None:
    if code != ErrorCode.none:
        raise BrokerError(code)


def _read_records(data: memoryview | None) -> list[Record]:
    """The records of all whole batches; a last one that the byte limit has cut off is left out."""
    records: list[Record] = []
    position, end = 0, 0 if data is None else len(data)
    while data is not None and end - position > LOG_OVERHEAD:
        size = int.from_bytes(data[position + 8 : position + 12], "big", signed=True) + LOG_OVERHEAD
        if position + size > end:
            break
        try:
            batch = Batch(data[position : position + size])
            records.extend(iterate(batch))
        except MoldauError as error:
            raise AssertionError(f"the broker sent a batch that cannot be read: {error}") from error
        if not batch.checksum_is_right():
            raise AssertionError(f"the broker sent {batch!r} with a wrong checksum")
        position += size
    return records
