"""Record workloads on raw connections: producers with and without idempotence, consumers, topic changes.

Workloads continue during crashes and errors until they are stopped. They record operations and results in the history.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from moldau.client.errors import KafkaError
from moldau.records import compression
from moldau.records.batch import NO_SEQUENCE
from moldau.records.batch_builder import build_batch
from moldau.records.record import Record
from moldau.testing.simulation.checkers.history import (
    History,
    Partition,
    PollOperation,
    SendOperation,
    TopicChange,
    UnexpectedError,
)
from moldau.testing.simulation.workloads.client import EARLIEST, READ_BYTES, PartitionFetch, RawClient
from moldau.testing.simulation.workloads.workload import Workload
from moldau.wire.codec import Message
from moldau.wire.kio import ErrorCode

ClientFactory = Callable[[str], Awaitable[RawClient]]
"""A function that takes a client id and opens a connection."""

IN_FLIGHT_MAX = 5
TIMESTAMP_MS = 1_767_139_200_000
"""A day before the start of simulated clocks, so that no clock jump puts records in the future."""
NO_PRODUCER = -1, -1
VALUE_BYTES_MAX = 3000
FETCH_BYTES = (1, 1000, 100_000, 10_000_000)
COMPRESSIONS = (compression.NONE, compression.NONE, compression.GZIP, compression.LZ4, compression.ZSTD)


@dataclass(eq=False)
class ClientWorkload(Workload):
    """A client that reconnects after errors."""

    connect: ClientFactory
    history: History
    _client: RawClient | None = field(default=None, init=False)

    async def run(self) -> None:
        while not self._stopping:
            try:
                await self._run_once(await self._connection())
            except KafkaError:
                self._disconnect()
                await self._sleep_after_error()
        self._disconnect()

    async def run_once(self) -> None:
        """Runs one step after `run` has ended. Raises the error of the step."""
        await self._run_once(await self._connection())

    async def _run_once(self, client: RawClient) -> None:
        raise NotImplementedError

    async def _connection(self) -> RawClient:
        if self._client is None:
            self._client = await self.connect(self.name)
        return self._client

    def _disconnect(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def _stop_with(self, code: ErrorCode, partition: Partition) -> None:
        self.history.unexpected_errors.append(UnexpectedError(self.name, partition, f"refused: {code.name}"))
        self._stopping = True

    async def _pause(self) -> None:
        if self.randomness.random() < 0.5:
            await asyncio.sleep(self.randomness.expovariate(1 / 0.02))

    def _values(self, number: int) -> list[bytes]:
        """Returns unique values, so that the checker detects a corrupted or duplicated value."""
        count = self.randomness.choice((1, 1, 2, 5, 20))
        return [
            f"{self.name}/{number}/{index}/".encode()
            + b"x" * self.randomness.randrange(self.randomness.choice((10, 100, VALUE_BYTES_MAX)))
            for index in range(count)
        ]

    def _batch(
        self, values: Sequence[bytes], producer: tuple[int, int] = NO_PRODUCER, sequence: int = NO_SEQUENCE
    ) -> bytes:
        return build_batch(
            [Record(timestamp=TIMESTAMP_MS + index, value=value) for index, value in enumerate(values)],
            compression=self.randomness.choice(COMPRESSIONS),
            producer_id=producer[0],
            producer_epoch=producer[1],
            base_sequence=sequence,
        )


@dataclass(eq=False)
class PlainProducer(ClientWorkload):
    """Sends one request at a time, for several partitions, with any acks and without retries."""

    partitions: Sequence[Partition]
    acks: int
    _sent: int = field(default=0, init=False)

    async def _run_once(self, client: RawClient) -> None:
        count = self.randomness.randint(1, min(3, len(self.partitions)))
        sends: dict[Partition, SendOperation] = {}
        batches: dict[Partition, bytes] = {}
        for partition in self.randomness.sample(self.partitions, count):
            self._sent += 1
            values = self._values(self._sent)
            sends[partition] = self.history.send(self.name, partition, values, acks=self.acks)
            batches[partition] = self._batch(values)
        for partition, response in (await client.produce(batches, self.acks)).items():
            if response.error_code == ErrorCode.none:
                self.history.acknowledge(sends[partition], response.base_offset)
                self.progress += 1
        if self.acks == 0:
            self.progress += 1
            # Limit the rate, because acks=0 has no backpressure and would slow down the other clients.
            await asyncio.sleep(self.randomness.uniform(0.02, 0.2))
        await self._pause()


@dataclass(eq=False)
class IdempotentProducer(ClientWorkload):
    """Keeps up to five batches in flight to one partition. Sends unacknowledged batches again, in order."""

    partition: Partition
    _producer: tuple[int, int] | None = field(default=None, init=False)
    _sequence: int = field(default=0, init=False)
    _sent: int = field(default=0, init=False)
    _window: deque[tuple[SendOperation, bytes]] = field(default_factory=deque, init=False)

    async def _run_once(self, client: RawClient) -> None:
        if self._producer is None:
            self._producer = await client.init_producer_id()
            self.history.producer_ids.append(self._producer[0])
        responses = deque(self._send(client, batch) for _, batch in self._window)
        while not self._stopping:
            while len(self._window) < IN_FLIGHT_MAX and (not self._window or self.randomness.random() < 0.7):
                self._make_batch()
                responses.append(self._send(client, self._window[-1][1]))
            response = RawClient.produce_responses(await responses.popleft())[self.partition]
            self._on_response(ErrorCode(response.error_code), response.base_offset)
            await self._pause()

    def _send(self, client: RawClient, batch: bytes) -> "asyncio.Future[Message]":
        return client.send_produce({self.partition: batch}, -1)

    def _make_batch(self) -> None:
        assert self._producer is not None
        self._sent += 1
        values = self._values(self._sent)
        batch = self._batch(values, self._producer, self._sequence)
        self._sequence += len(values)
        send = self.history.send(self.name, self.partition, values, acks=-1, is_idempotent=True)
        self._window.append((send, batch))

    def _on_response(self, code: ErrorCode, offset: int) -> None:
        """Handles the response to the oldest batch in flight. Raises KafkaError if the batch was not acknowledged."""
        if code in (ErrorCode.none, ErrorCode.duplicate_sequence_number):
            send, _ = self._window.popleft()
            self.history.acknowledge(send, offset if code == ErrorCode.none and offset >= 0 else None)
            self.progress += 1
            return
        if code in (ErrorCode.out_of_order_sequence_number, ErrorCode.unknown_producer_id):
            # All earlier batches were acknowledged, so the broker has lost producer state that it must keep.
            self._stop_with(code, self.partition)
        raise KafkaError(code)


@dataclass(eq=False)
class PartitionConsumer(ClientWorkload):
    """Reads one partition from its start, without a group."""

    partition: Partition
    position: int | None = field(default=None, init=False)
    reads_large_fetches: bool = field(default=False, init=False)
    """Whether all fetches are large. If not, the size of each fetch is random."""

    async def _run_once(self, client: RawClient) -> None:
        if self.position is None:
            self.position = await client.list_offset(self.partition, EARLIEST)
        try:
            fetched = await client.fetch(
                self.partition,
                self.position,
                max_wait_ms=self.randomness.choice((0, 10, 500)),
                min_bytes=self.randomness.choice((0, 1, 10_000)),
                max_bytes=READ_BYTES if self.reads_large_fetches else self.randomness.choice(FETCH_BYTES),
            )
        except KafkaError as error:
            if error.code == ErrorCode.offset_out_of_range:
                self._stop_with(error.code, self.partition)
            raise
        self._record_poll(fetched)
        await self._pause()

    def _record_poll(self, fetched: PartitionFetch) -> None:
        assert self.position is not None
        records = [(record.offset, record.value or b"") for record in fetched.records]
        self.history.polls.append(
            PollOperation(self.name, self.partition, self.position, fetched.high_watermark, records)
        )
        if records:
            self.position = records[-1][0] + 1
            self.progress += 1


@dataclass(eq=False)
class TopicChurn(ClientWorkload):
    """Creates topics, and later deletes some of them."""

    _created: int = field(default=0, init=False)
    _topics: list[str] = field(default_factory=list, init=False)

    async def _run_once(self, client: RawClient) -> None:
        is_creation = not self._topics or self.randomness.random() >= 0.5
        if is_creation:
            self._created += 1
            topic = f"side-{self._created}"
        else:
            topic = self._topics.pop(self.randomness.randrange(len(self._topics)))
        change = TopicChange(topic, is_creation)
        self.history.topic_changes.append(change)
        if is_creation:
            await client.create_topic(topic, self.randomness.randint(1, 3))
            self._topics.append(topic)
        else:
            await client.delete_topic(topic)
        change.is_acknowledged = True
        self.progress += 1
        await asyncio.sleep(self.randomness.uniform(0, 1))
