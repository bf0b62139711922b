"""A minimal Kafka client for workloads: one connection, pipelined requests, no retries.

The workload decides what to do about a lost connection or an error code.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from moldau.client.errors import raise_for_code
from moldau.client.net.connection import Connection
from moldau.errors import MoldauError
from moldau.records.batch import LOG_OVERHEAD, Batch
from moldau.records.record import Record, iterate_records
from moldau.testing.simulation.checkers.history import Partition
from moldau.wire.api_keys import ApiKey
from moldau.wire.codec import Message

EARLIEST = -2
LATEST = -1
REQUEST_TIMEOUT_MS = 10_000
READ_BYTES = 200_000


@dataclass(frozen=True, slots=True)
class PartitionFetch:
    high_watermark: int
    log_start_offset: int
    records: Sequence[Record]


class RawClient:
    """A client with one connection. Raises KafkaError for connection failures and error codes."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @classmethod
    async def connect(cls, host: str, port: int, client_id: str) -> "RawClient":
        return cls(await Connection.open(host, port, client_id=client_id, timeout_ms=REQUEST_TIMEOUT_MS))

    def close(self) -> None:
        self._connection.close()

    async def create_topic(self, name: str, partitions: int, configs: Mapping[str, str] | None = None) -> None:
        topic = {
            "name": name,
            "num_partitions": partitions,
            "replication_factor": 1,
            "assignments": [],
            "configs": [{"name": key, "value": value} for key, value in (configs or {}).items()],
        }
        response = await self._call(ApiKey.CREATE_TOPICS, {"topics": [topic], "timeout": REQUEST_TIMEOUT_MS})
        raise_for_code(response.topics[0].error_code)

    async def delete_topic(self, name: str) -> None:
        topics = [{"name": name, "topic_id": None}]
        response = await self._call(ApiKey.DELETE_TOPICS, {"topics": topics, "timeout": REQUEST_TIMEOUT_MS})
        raise_for_code(response.responses[0].error_code)

    async def topics(self) -> dict[str, int]:
        """Returns partition counts by topic."""
        response = await self._call(
            ApiKey.METADATA,
            {"topics": None, "allow_auto_topic_creation": False, "include_topic_authorized_operations": False},
        )
        return {topic.name: len(topic.partitions) for topic in response.topics}

    async def init_producer_id(self) -> tuple[int, int]:
        """Returns a new producer id and its epoch."""
        response = await self._call(ApiKey.INIT_PRODUCER_ID, {"transactional_id": None, "transaction_timeout": 60_000})
        raise_for_code(response.error_code)
        return response.producer_id, response.producer_epoch

    async def produce(self, batches: Mapping[Partition, bytes], acks: int) -> Mapping[Partition, Message]:
        """Sends one request with a batch per partition. Returns the responses by partition, or none with acks=0."""
        tree = _produce_tree(batches, acks)
        if acks == 0:
            self._connection.send_without_response(ApiKey.PRODUCE, tree)
            return {}
        return self.produce_responses(await self._call(ApiKey.PRODUCE, tree))

    def send_produce(self, batches: Mapping[Partition, bytes], acks: int) -> "asyncio.Future[Message]":
        """Sends a produce request without waiting for the response. `produce_responses` decodes the response."""
        tree = _produce_tree(batches, acks)
        return self._connection.call(ApiKey.PRODUCE, tree, timeout_ms=REQUEST_TIMEOUT_MS)

    @staticmethod
    def produce_responses(response: Message) -> Mapping[Partition, Message]:
        return {(topic.name, each.index): each for topic in response.responses for each in topic.partition_responses}

    async def fetch(
        self, partition: Partition, offset: int, *, max_wait_ms: int = 500, min_bytes: int = 1, max_bytes: int = 1 << 20
    ) -> PartitionFetch:
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
        response = await self._call(ApiKey.FETCH, tree)
        raise_for_code(response.error_code)
        found = response.responses[0].partitions[0]
        raise_for_code(found.error_code)
        batches = split_batches(found.records or memoryview(b""))
        records = [record for batch in batches for record in iterate_records(batch) if record.offset >= offset]
        return PartitionFetch(found.high_watermark, found.log_start_offset, records)

    async def read_all(self, partition: Partition, *, until: int) -> list[tuple[int, bytes]]:
        """Returns the offsets and values of all records from the start of the log up to `until`."""
        position = await self.list_offset(partition, EARLIEST)
        found: list[tuple[int, bytes]] = []
        while position < until:
            fetched = await self.fetch(partition, position, max_bytes=READ_BYTES)
            found.extend((record.offset, record.value or b"") for record in fetched.records)
            if not fetched.records:
                raise AssertionError(f"no record at {position} of {partition}, which ends at {until}")
            position = found[-1][0] + 1
        return found

    async def list_offset(self, partition: Partition, timestamp: int) -> int:
        tree = {
            "replica_id": -1,
            "isolation_level": 0,
            "timeout": REQUEST_TIMEOUT_MS,
            "topics": [
                {"name": partition[0], "partitions": [{"partition_index": partition[1], "timestamp": timestamp}]}
            ],
        }
        response = await self._call(ApiKey.LIST_OFFSETS, tree)
        found = response.topics[0].partitions[0]
        raise_for_code(found.error_code)
        return int(found.offset)

    async def _call(self, api: ApiKey, tree: Mapping[str, Any]) -> Message:
        return await self._connection.call(api, tree, timeout_ms=REQUEST_TIMEOUT_MS)


def _produce_tree(batches: Mapping[Partition, bytes], acks: int) -> Mapping[str, Any]:
    topics: dict[str, list[dict[str, Any]]] = {}
    for (topic, partition), records in batches.items():
        topics.setdefault(topic, []).append({"index": partition, "records": records})
    return {
        "acks": acks,
        "timeout": REQUEST_TIMEOUT_MS,
        "topic_data": [{"name": name, "partition_data": each} for name, each in topics.items()],
    }


def split_batches(data: memoryview) -> Iterator[Batch]:
    """Yields all complete batches. The byte limit of a read may have truncated the last batch.

    Raises AssertionError for an invalid batch.
    """
    while len(data) > LOG_OVERHEAD:
        size = int.from_bytes(data[8:12], "big", signed=True) + LOG_OVERHEAD
        if size > len(data):
            return
        try:
            batch = Batch(data[:size])
        except MoldauError as error:
            raise AssertionError(f"invalid batch: {error}") from error
        if not batch.has_valid_checksum():
            raise AssertionError(f"{batch!r} has a wrong checksum")
        yield batch
        data = data[size:]
