"""Reads one replica of a partition from a named broker, whether it leads the partition or follows.

Brokers serve consumers from every replica, up to the high watermark that the replica knows. Unlike the client's
fetcher, this reader never continues at another broker, and leaves damaged batches to its caller.
"""

import asyncio
from collections.abc import Iterator
from typing import Any

from moldau.client.consumer.completed_fetch import READ_COMMITTED, READ_UNCOMMITTED
from moldau.client.consumer.fetch_position import EMPTY_DURATION_MIN_S, EMPTY_RESPONSES_MIN
from moldau.client.errors import ConnectionLostError, ErrorCode, KafkaError
from moldau.client.net.cluster import Cluster
from moldau.client.record import TopicPartition
from moldau.errors import MoldauError
from moldau.records.batch import HEADER_SIZE, LOG_OVERHEAD, Batch
from moldau.wire.api_keys import ApiKey
from moldau.wire.codec import Message

LANE = "replica"
FETCH_BYTES = 4 * 1024 * 1024
_MAX_WAIT_MS = 500
_RETRY_BACKOFF_MS = 200
_STORAGE_ERRORS_MAX = 3
"""How often a batch is requested again after a storage error, which is rarely transient."""

_STORAGE_CODES = (ErrorCode.kafka_storage_error, ErrorCode.corrupt_message, ErrorCode.unknown_server_error)


class ReplicaReadError(Exception):
    """A replica cannot be read from `offset` on."""

    def __init__(self, offset: int, reason: str) -> None:
        super().__init__(reason)
        self.offset = offset


class ReplicaReader:
    """Fetches the offsets from `position` to `end`. The caller sets `position` to the end of the batches of a response.

    If the log of the replica starts at a later offset, the reader continues there, and `log_start` is that offset.
    """

    def __init__(
        self,
        cluster: Cluster,
        broker: int,
        partition: TopicPartition,
        start: int,
        end: int,
        *,
        read_committed: bool = False,
        fetch_bytes: int = FETCH_BYTES,
        stall_timeout_ms: int,
    ) -> None:
        """`stall_timeout_ms` limits how long the replica may make no progress."""
        self.position = start
        self.log_start: int | None = None
        self._cluster = cluster
        self._broker = broker
        self._partition = partition
        self._end = end
        self._isolation_level = READ_COMMITTED if read_committed else READ_UNCOMMITTED
        self._stall_timeout_s = stall_timeout_ms / 1000
        self._deadline_s = 0.0
        self._readable_end = -1
        self._bytes_max = fetch_bytes
        self._storage_errors = 0
        self._empty_responses = 0
        """The number of consecutive empty responses that came when the replica should have all records up to `end`."""
        self._empty_since_s = 0.0

    async def next(self) -> Message | None:
        """Returns the partition's part of the next response with records; None at the end.

        Raises ReplicaReadError if the replica cannot be read, or does not reach `end` in time.
        """
        self._restart_timeout()
        while self.position < self._end:
            try:
                data = await self._fetch(self.position, self._bytes_max)
            except KafkaError as error:
                await self._handle_error(error)
                continue
            if data.error_code != ErrorCode.none:
                await self._handle_error(KafkaError(data.error_code), data.log_start_offset)
            elif data.records:
                self._empty_responses = self._storage_errors = 0
                return data
            else:
                await self._handle_empty(data)
        return None

    async def read_batch(self, offset: int) -> Batch:
        """Returns the batch with this offset, or the next one. Raises KafkaError and ReplicaReadError."""
        data = await self._fetch(offset, 1)
        if data.error_code != ErrorCode.none:
            raise KafkaError(data.error_code)
        for batch in stored_batches(data.records, offset):
            return batch
        raise ReplicaReadError(offset, "the broker returned no batch")

    async def _fetch(self, offset: int, bytes_max: int) -> Message:
        request: dict[str, Any] = {
            "max_wait": _MAX_WAIT_MS,
            "min_bytes": 1,
            "max_bytes": bytes_max,
            "isolation_level": self._isolation_level,
            "topics": [
                {
                    "topic": self._partition.topic,
                    "partitions": [
                        {
                            "partition": self._partition.partition,
                            # The epoch is not checked: below the high watermark all leaders have the same records.
                            "current_leader_epoch": -1,
                            "fetch_offset": offset,
                            "last_fetched_epoch": -1,
                            "partition_max_bytes": bytes_max,
                        }
                    ],
                }
            ],
            "forgotten_topics_data": [],
        }
        timeout_ms = _MAX_WAIT_MS + min(self._cluster.request_timeout_ms, round(self._stall_timeout_s * 1000))
        response = await self._cluster.call(self._broker, ApiKey.FETCH, request, timeout_ms=timeout_ms, lane=LANE)
        if response.error_code != ErrorCode.none:
            raise KafkaError(response.error_code)
        for topic in response.responses:
            for each in topic.partitions:
                found: Message = each
                return found
        raise KafkaError(ErrorCode.network_exception, f"the response lacks {self._partition}")

    async def _handle_empty(self, data: Message) -> None:
        is_committed = self._isolation_level == READ_COMMITTED
        readable_end = data.last_stable_offset if is_committed else data.high_watermark
        if readable_end >= self._end:
            now_s = asyncio.get_running_loop().time()
            if self._empty_responses == 0:
                self._empty_since_s = now_s
            self._empty_responses += 1
            if self._empty_responses >= EMPTY_RESPONSES_MIN and now_s - self._empty_since_s >= EMPTY_DURATION_MIN_S:
                self.position = self._end
            else:
                # A broker that cannot read in time also returns an empty response.
                await asyncio.sleep(_RETRY_BACKOFF_MS / 1000)
            return
        if readable_end > self._readable_end:
            self._readable_end = readable_end
            self._restart_timeout()
        await self._wait_or_stop(f"it has no records from offset {self.position} on")

    async def _handle_error(self, error: KafkaError, log_start: int = -1) -> None:
        if error.code is ErrorCode.offset_out_of_range and log_start > self.position:
            self.log_start = self.position = log_start
            self._restart_timeout()
        elif error.code in _STORAGE_CODES or (isinstance(error, ConnectionLostError) and await self._is_reachable()):
            # Continue with single batches, to read all that precede the damage.
            self._storage_errors = self._storage_errors + 1 if self._bytes_max == 1 else 0
            self._bytes_max = 1
            if self._storage_errors >= _STORAGE_ERRORS_MAX:
                raise ReplicaReadError(self.position, self._storage_error_text(error))
            await self._wait_or_stop(self._storage_error_text(error))
        elif error.code in (ErrorCode.offset_not_available, ErrorCode.offset_out_of_range):
            await self._wait_or_stop(f"it has no records from offset {self.position} on")
        else:
            await self._wait_or_stop(f"broker {self._broker} cannot read it: {error}")

    def _storage_error_text(self, error: KafkaError) -> str:
        if isinstance(error, ConnectionLostError):
            return (
                f"broker {self._broker} closes the connection instead of sending the batch: its log file may be "
                "shorter than the broker expects"
            )
        return f"broker {self._broker} cannot read the batch ({error}): its log says more"

    async def _is_reachable(self) -> bool:
        """Returns whether the broker responds to other requests. If so, it closed the connection of a fetch."""
        try:
            await self._cluster.call(self._broker, ApiKey.API_VERSIONS, _API_VERSIONS_REQUEST, timeout_ms=5_000)
        except KafkaError:
            return False
        return True

    def _restart_timeout(self) -> None:
        self._deadline_s = asyncio.get_running_loop().time() + self._stall_timeout_s

    async def _wait_or_stop(self, reason: str) -> None:
        if asyncio.get_running_loop().time() >= self._deadline_s:
            raise ReplicaReadError(self.position, reason)
        await asyncio.sleep(_RETRY_BACKOFF_MS / 1000)


_API_VERSIONS_REQUEST = {"client_software_name": "moldau", "client_software_version": "0"}


def stored_batches(records: memoryview | None, position: int) -> Iterator[Batch]:
    """Yields the whole batches of a response, which starts at `position`. Does not verify checksums.

    Raises ReplicaReadError at bytes that are no batch, and if offsets do not ascend.
    """
    start, end = 0, 0 if records is None else len(records)
    while records is not None and end - start >= LOG_OVERHEAD:
        size = int.from_bytes(records[start + 8 : start + LOG_OVERHEAD], "big", signed=True) + LOG_OVERHEAD
        if size < HEADER_SIZE or (size > end - start and not start):
            raise ReplicaReadError(position, f"there is no record batch: its length field says {size} bytes")
        if size > end - start:
            return
        try:
            batch = Batch(records[start : start + size])
        except MoldauError as error:
            raise ReplicaReadError(position, f"there is no record batch: {error}") from None
        if batch.next_offset <= position or batch.last_offset_delta < 0:
            offsets = f"{batch.base_offset} to {batch.last_offset}"
            raise ReplicaReadError(position, f"the batch there has the offsets {offsets}")
        yield batch
        position = batch.next_offset
        start += size
