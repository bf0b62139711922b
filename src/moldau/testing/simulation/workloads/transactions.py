"""Transaction workloads: producers that commit, abort and disappear, copiers from topic to topic, and readers.

Several producers share a transactional id, so that they fence each other. Workloads continue during faults until they
are stopped. They record operations and results in the history.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from unittest import mock

from moldau.client.consume_transform_produce import exactly_once
from moldau.client.consumer.consumer import Consumer
from moldau.client.consumer.fetcher import READ_COMMITTED, CompletedFetch, Fetcher
from moldau.client.consumer.subscription_state import OffsetAndMetadata
from moldau.client.errors import ProducerFencedError, RequestTimedOutError, TransactionAbortableError
from moldau.client.net.api_versions import choose_version
from moldau.client.net.connection import Connection
from moldau.client.producer.producer import Producer, RecordMetadata
from moldau.client.producer.transaction import GroupMember, Transaction
from moldau.client.record import TopicPartition, decode_records
from moldau.testing.simulation.checkers.history import Partition
from moldau.testing.simulation.checkers.history_transactions import (
    TransactionalRead,
    TransactionHistory,
    TransactionOperation,
    TransactionOutcome,
)
from moldau.testing.simulation.workloads.groups import ClusterWorkload
from moldau.testing.simulation.workloads.recorder import RecordingCluster
from moldau.testing.simulation.workloads.records import TIMESTAMP_MS
from moldau.transactions.transaction_metadata import TV2
from moldau.wire.api_keys import ApiKey
from moldau.wire.codec import Message

TIMEOUTS_MS = (1_000, 3_000, 8_000)
DELIVERY_TIMEOUT_MS = 10_000
BLOCK_MS_MAX = 10_000
COMMIT_ATTEMPTS_MAX = 3
SESSION_TIMEOUT_MS = 6_000
POLL_INTERVAL_MAX_MS = 10_000
REQUEST_TIMEOUT_MS = 5_000
SLOW_COPIER_CHANCE = 0.5
SLOW_COPIER_SESSION_TIMEOUT_MS = 2_000
SUSPENSION_CHANCE = 0.2
SUSPENSION_S = (2.5, 5.0)
"""Longer than the session of a slow copier, and shorter than its transaction may take."""


@dataclass(eq=False)
class TransactionalProducer(ClusterWorkload):
    """Moldau's transactional producer. Each transaction writes to several partitions, and then commits, aborts, takes
    longer than its timeout, or is abandoned."""

    transactional_ids: Sequence[str]
    """Each start of the producer draws one of these ids. Other producers may use the same."""
    partitions: Sequence[Partition]
    history: TransactionHistory
    is_tv1: bool = False
    """Whether the producer uses the protocol before TV2."""
    _incarnations: int = field(default=0, init=False)
    _transactions: int = field(default=0, init=False)

    async def _run_once(self, cluster: RecordingCluster) -> None:
        draw = self.randomness
        if self.is_tv1:
            cluster.feature_level_max = 0
        self._incarnations += 1
        timeout_ms = draw.choice(TIMEOUTS_MS)
        producer = Producer(
            cluster,
            transactional_id=draw.choice(self.transactional_ids),
            transaction_timeout_ms=timeout_ms,
            linger_ms=draw.choice((0, 5, 50)),
            delivery_timeout_ms=DELIVERY_TIMEOUT_MS,
            max_block_ms=BLOCK_MS_MAX,
        )
        try:
            await producer.start()
            for _ in range(draw.randint(1, 8)):
                if self._stopping:
                    break
                if not await self._run_transaction(producer, timeout_ms):
                    return
                await self._pause(draw.choice((0, 0.2, 1)))
            if draw.random() < 0.7:
                await producer.close(timeout_ms=BLOCK_MS_MAX)
        except ProducerFencedError:
            # Another producer has the id now. The next incarnation may take it back.
            await self._pause(0.5)
        finally:
            await producer.abort()

    async def _run_transaction(self, producer: Producer, timeout_ms: int) -> bool:
        """Runs one transaction. Returns whether it has ended; else the coordinator has to abort it."""
        draw = self.randomness
        self._transactions += 1
        operation = self.history.begin(f"{self.name}-{self._incarnations}/{self._transactions}")
        transaction = producer.transaction()
        await transaction.begin()
        plan = draw.choices(("commit", "abort", "overdue", "abandon"), (12, 4, 1, 1))[0]
        try:
            partitions = draw.sample(self.partitions, draw.randint(1, len(self.partitions)))
            for _ in range(draw.choice((1, 1, 2, 3))):
                for partition in partitions:
                    await _send(producer, operation, partition, f"{operation.name}/{len(operation.records)}")
                if draw.random() < 0.3:
                    await self._pause(0.3)
            if plan == "overdue":
                await asyncio.sleep(timeout_ms / 1000 * draw.uniform(0.9, 2))
            if plan == "abandon":
                return False
            if plan == "abort":
                await transaction.abort()
                operation.outcome = TransactionOutcome.ABORTED
            else:
                await self._commit(transaction, operation)
        except TransactionAbortableError:
            await transaction.abort()
            operation.outcome = TransactionOutcome.ABORTED
        return True

    async def _commit(self, transaction: Transaction, operation: TransactionOperation) -> None:
        operation.commit_invoked_at = self.history.next_event()
        for attempt in range(1, COMMIT_ATTEMPTS_MAX + 1):
            try:
                await transaction.commit()
            except RequestTimedOutError:
                if attempt == COMMIT_ATTEMPTS_MAX or self.randomness.random() < 0.3:
                    raise
            else:
                operation.outcome = TransactionOutcome.COMMITTED
                self.progress += 1
                return


@dataclass(eq=False)
class PlainRecordProducer(ClusterWorkload):
    """An idempotent producer without transactions, whose records stand between those of transactions."""

    partitions: Sequence[Partition]
    history: TransactionHistory
    _sent: int = field(default=0, init=False)

    async def _run_once(self, cluster: RecordingCluster) -> None:
        async with Producer(cluster, linger_ms=0, delivery_timeout_ms=DELIVERY_TIMEOUT_MS) as producer:
            while not self._stopping:
                self._sent += 1
                operation = self.history.begin(f"{self.name}/{self._sent}")
                operation.commit_invoked_at = self.history.next_event()
                partition = self.randomness.choice(self.partitions)
                delivered = await _send(producer, operation, partition, operation.name)
                await delivered
                operation.outcome = TransactionOutcome.COMMITTED
                self.progress += 1
                await self._pause(1)


class _AbortOnPurposeError(Exception):
    pass


class _CopierTransaction(Transaction):
    after_offsets: Callable[[], Awaitable[None]]

    async def send_offsets(
        self, offsets: Mapping[TopicPartition, int | OffsetAndMetadata], group: str | GroupMember
    ) -> None:
        await super().send_offsets(offsets, group)
        await self.after_offsets()


class _CopierProducer(Producer):
    """A producer that calls `after_offsets` between TxnOffsetCommit and EndTxn."""

    after_offsets: Callable[[], Awaitable[None]]

    def transaction(self) -> Transaction:
        transaction = _CopierTransaction(super().transaction()._coordinator)
        transaction.after_offsets = self.after_offsets
        return transaction


@dataclass(eq=False)
class Copier(ClusterWorkload):
    """Copies a topic to another one, exactly once: the output and the offsets of the group are one transaction.

    Some copiers are suspended before they commit, until their session has expired. Another copier then takes over
    partitions whose offsets are pending, and the transaction is committed afterwards.
    """

    MUST_PROGRESS = False

    group: str
    transactional_id: str
    source: str
    targets: Sequence[Partition]
    history: TransactionHistory
    suspend: Callable[[float], None]
    """Suspends the process of the copier for some seconds, from the next iteration of the event loop on."""
    _copied: int = field(default=0, init=False)

    async def _run_once(self, cluster: RecordingCluster) -> None:
        draw = self.randomness
        is_slow = draw.random() < SLOW_COPIER_CHANCE
        session_timeout_ms = SLOW_COPIER_SESSION_TIMEOUT_MS if is_slow else SESSION_TIMEOUT_MS
        async with (
            _CopierProducer(
                cluster,
                transactional_id=self.transactional_id,
                transaction_timeout_ms=TIMEOUTS_MS[-1] if is_slow else draw.choice(TIMEOUTS_MS),
                linger_ms=0,
                delivery_timeout_ms=DELIVERY_TIMEOUT_MS,
                max_block_ms=BLOCK_MS_MAX,
            ) as producer,
            Consumer(
                cluster=cluster,
                group_id=self.group,
                assignors=("cooperative-sticky",),
                auto_offset_reset="earliest",
                enable_auto_commit=False,
                session_timeout_ms=session_timeout_ms,
                heartbeat_interval_ms=session_timeout_ms // 4,
                max_poll_interval_ms=POLL_INTERVAL_MAX_MS,
                max_poll_records=draw.choice((1, 5, 50)),
                isolation_level="read_committed",
            ) as consumer,
        ):
            producer.after_offsets = partial(self._maybe_suspend, SUSPENSION_CHANCE if is_slow else 0.0)
            consumer.subscribe([self.source])
            while not self._stopping:
                await self._copy(consumer, producer)
                await self._pause(0.2)

    async def _maybe_suspend(self, chance: float) -> None:
        if self.randomness.random() < chance:
            self.suspend(self.randomness.uniform(*SUSPENSION_S))
            # The process is suspended during this sleep.
            await asyncio.sleep(0.001)

    async def _copy(self, consumer: Consumer, producer: Producer) -> None:
        draw = self.randomness
        try:
            async with exactly_once(consumer, producer, timeout_ms=500) as records:
                if not records:
                    return
                self._copied += 1
                operation = self.history.begin(f"{self.name}/{self._copied}")
                for record in records:
                    source = record.topic, record.partition
                    operation.sources.append((source, record.offset))
                    value = f"{operation.name}/{len(operation.records)} of {source[0]}-{source[1]} {record.offset}"
                    await _send(producer, operation, draw.choice(self.targets), value)
                if draw.random() < 0.1:
                    raise _AbortOnPurposeError
                # `exactly_once` commits now. It does not say whether it had to abort instead, so the outcome stays
                # unknown.
                operation.commit_invoked_at = self.history.next_event()
        except _AbortOnPurposeError:
            pass
        else:
            self.progress += 1


@dataclass(eq=False)
class TransactionReader(ClusterWorkload):
    """Reads partitions from their start without a group, either committed records only or all."""

    MUST_PROGRESS = False

    positions: dict[Partition, int]
    """The next offset to read, by partition."""
    isolation_level: int
    history: TransactionHistory

    async def _run_once(self, cluster: RecordingCluster) -> None:
        draw = self.randomness
        async with Fetcher(
            cluster,
            max_wait_ms=draw.choice((200, 500)),
            max_bytes=draw.choice((3_000, 100_000)),
            partition_max_bytes=draw.choice((700, 50_000)),
            isolation_level=self.isolation_level,
        ) as fetcher:
            fetcher.assign({TopicPartition(*each): offset for each, offset in self.positions.items()})
            while not self._stopping:
                for fetched in await fetcher.next(500):
                    self._record_reads(fetched)

    def _record_reads(self, fetched: CompletedFetch) -> None:
        history, partition = self.history, (fetched.partition.topic, fetched.partition.partition)
        at = history.next_event()
        all_reads = history.committed_reads if self.isolation_level == READ_COMMITTED else history.uncommitted_reads
        reads = all_reads.setdefault((self.name, partition), [])
        for batch in fetched.batches:
            for record in decode_records(fetched.partition, batch, fetched.position):
                reads.append(TransactionalRead(at, record.offset, record.value or b""))
                self.progress += 1
        self.positions[partition] = fetched.next_offset
        visible_end = fetched.last_stable_offset if self.isolation_level == READ_COMMITTED else fetched.high_watermark
        if fetched.error is not None:
            history.unexpected_errors.append(f"{self.name} of {fetched.partition}: {fetched.error}")
            raise fetched.error
        if fetched.next_offset > visible_end or fetched.last_stable_offset > fetched.high_watermark:
            offsets = f"last stable offset {fetched.last_stable_offset}, high watermark {fetched.high_watermark}"
            history.unexpected_errors.append(
                f"{self.name} of {fetched.partition} read up to {fetched.next_offset} with {offsets}"
            )


@dataclass(frozen=True, slots=True)
class SentRequest:
    """A request of a transaction that a client or a node has sent."""

    address: tuple[str, int]
    api: ApiKey
    version: int
    tree: Mapping[str, Any]


@dataclass(eq=False)
class LateRequests(ClusterWorkload):
    """Sends requests of transactions again, like a network that delivers a request long after its timeout."""

    MUST_PROGRESS = False

    sent: Sequence[SentRequest]

    async def _run_once(self, cluster: RecordingCluster) -> None:
        await self._pause(0.3)
        if not self.sent:
            return
        # Mostly take one of the latest, because old ones are fenced in every respect.
        latest = self.sent[-30:] if self.randomness.random() < 0.8 else self.sent
        request = self.randomness.choice(latest)
        connection = await Connection.open(*request.address, client_id=self.name, timeout_ms=REQUEST_TIMEOUT_MS)
        try:
            await connection.call(request.api, request.tree, timeout_ms=REQUEST_TIMEOUT_MS, version=request.version)
            self.progress += 1
        finally:
            connection.close()


_FIRST_VERSIONS = {
    # Before these versions, which belong to TV2, a late request can take part in the producer's next transaction.
    ApiKey.PRODUCE: 12,
    ApiKey.END_TXN: 5,
    ApiKey.TXN_OFFSET_COMMIT: 5,
    # The versions between brokers. Markers have the version of their transaction.
    ApiKey.ADD_PARTITIONS_TO_TXN: 4,
    ApiKey.WRITE_TXN_MARKERS: 0,
}


@contextmanager
def record_sent_requests(sent: list[SentRequest], late: str) -> Iterator[None]:
    """Records the requests of transactions that can be sent again. `late` is the client id that sends them."""
    call = Connection.call

    def record_and_call(
        connection: Connection, api: ApiKey, tree: Mapping[str, Any], **options: Any
    ) -> "asyncio.Future[Message]":
        if api in _FIRST_VERSIONS and connection._client_id != late.encode():
            chosen = {name: options.get(name) for name in ("version", "version_max")}
            version = choose_version(api, connection.versions, **chosen)
            if version >= _FIRST_VERSIONS[api] and _is_of_transaction(api, tree):
                sent.append(SentRequest(connection.address, api, version, deepcopy(tree)))
        return call(connection, api, tree, **options)

    with mock.patch.object(Connection, "call", record_and_call):
        yield


def _is_of_transaction(api: ApiKey, tree: Mapping[str, Any]) -> bool:
    if api == ApiKey.WRITE_TXN_MARKERS:
        return all(marker["transaction_version"] >= TV2 for marker in tree["markers"])
    return api != ApiKey.PRODUCE or tree["transactional_id"] is not None


async def _send(
    producer: Producer, operation: TransactionOperation, partition: Partition, value: str
) -> "asyncio.Future[RecordMetadata]":
    topic, index = partition
    operation.records.append((partition, value.encode()))
    return await producer.send(topic, value.encode(), partition=index, timestamp_ms=TIMESTAMP_MS)
