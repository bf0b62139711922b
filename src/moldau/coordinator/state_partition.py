"""Loading of a coordinator's state from its partition, and appends to this partition."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Generic, Protocol, TypeVar

from moldau.coordinator.runtime import CoordinatorState
from moldau.errors import CorruptRecordError, RecordTooLargeError, StorageError
from moldau.logs.producer_state import VerificationGuard
from moldau.partitions.partition import Partition
from moldau.platform.clock import Clock
from moldau.records.batch import Batch, split
from moldau.records.batch_builder import build_batch
from moldau.records.control_records import EndTransaction
from moldau.records.control_records import decode as decode_control_record
from moldau.records.record import Record, iterate_records

RECORDS_PER_YIELD = 200
"""The number of records that are applied before loading yields to the event loop."""

R = TypeVar("R")
R_contra = TypeVar("R_contra", contravariant=True)
S = TypeVar("S")

BatchReplay = Callable[[S, Batch, Sequence[R]], None]
"""Applies a batch of the log, with its decoded records, to the state. A control batch has no decoded records."""


class RecordSerde(Protocol[R]):
    """The format of a coordinator's records. The modules `formats` of the coordinators implement it."""

    def encode(self, record: R) -> tuple[bytes, bytes | None]:
        """Returns the key and value of a record. The value is None for a tombstone."""

    def decode(self, key: bytes, value: bytes | None) -> R | None:
        """Decodes a record. Returns None if the record type is ignored. Raises CorruptRecordError."""


class TransactionalState(CoordinatorState[R_contra], Protocol[R_contra]):
    """A state whose log also has records of transactions. They take effect when the transaction is committed."""

    def apply_transactional(self, producer_id: int, records: Sequence[R_contra], end_offset: int) -> None:
        """Applies records of a producer's open transaction. `end_offset` is the offset after the last of them."""

    def end_transaction(self, producer_id: int, *, commit: bool) -> None:
        """Commits or aborts the open transaction of a producer, if it has one."""


def replay_plain_batch(state: CoordinatorState[R], batch: Batch, records: Sequence[R]) -> None:
    """Applies a batch of a log without transactions."""
    state.apply(records, batch.next_offset)


def replay_batch(state: TransactionalState[R], batch: Batch, records: Sequence[R]) -> None:
    """Applies a batch of a log with transactions: plain records, records of a transaction, or a marker."""
    if batch.is_control:
        # Compaction removes the record of a marker when the transaction has no other records left.
        for record in iterate_records(batch):
            control = decode_control_record(record)
            if isinstance(control, EndTransaction):
                state.end_transaction(batch.producer_id, commit=control.commit)
    elif batch.is_transactional:
        state.apply_transactional(batch.producer_id, records, batch.next_offset)
    else:
        state.apply(records, batch.next_offset)


async def load(
    partition: Partition,
    leader_epoch: int,
    state: S,
    serde: RecordSerde[R],
    bytes_per_read: int,
    load_lock: AbstractAsyncContextManager[object],
    replay: BatchReplay[S, R],
) -> int:
    """Waits until the log is committed, then applies the log to the state while holding `load_lock`.

    Returns the end offset of the log. Raises the errors of `Partition.read`, and CorruptRecordError if a batch is
    invalid.
    """
    end_offset = partition.log.end_offset
    committed = partition.commit_future(end_offset, leader_epoch)
    if committed is not None:
        await committed
    applied = 0
    async with load_lock:
        offset = partition.log.start_offset
        while offset < end_offset:
            fetched = await partition.read(offset, bytes_per_read, current_leader_epoch=leader_epoch)
            try:
                data = fetched.records.read()
            except OSError as error:
                raise StorageError(f"reading {partition.name} failed: {error}") from error
            start_offset = offset
            for batch in split(data, allow_partial=True):
                records = _decode_batch(batch, serde)
                replay(state, batch, records)
                offset = batch.next_offset
                applied += len(records)
                if applied >= RECORDS_PER_YIELD:
                    applied = 0
                    await asyncio.sleep(0)
            if offset == start_offset:
                raise CorruptRecordError(f"{partition.name} has no batch at offset {offset}")
    return end_offset


def _decode_batch(batch: Batch, serde: RecordSerde[R]) -> list[R]:
    if not batch.has_valid_checksum():
        raise CorruptRecordError(f"{batch!r} has an invalid checksum")
    if batch.is_control:
        return []
    decoded = []
    for record in iterate_records(batch):
        if record.key is None:
            raise CorruptRecordError(f"the record at offset {record.offset} has no key")
        coordinator_record = serde.decode(record.key, record.value)
        if coordinator_record is not None:
            decoded.append(coordinator_record)
    return decoded


class PartitionWriter(Generic[R]):
    """Appends the records of a shard to its partition. Appends fail when `leader_epoch` is no longer current."""

    def __init__(self, partition: Partition, leader_epoch: int, serde: RecordSerde[R], clock: Clock) -> None:
        self._partition = partition
        self._leader_epoch = leader_epoch
        self._serde = serde
        self._clock = clock

    async def append(self, records: Sequence[R]) -> int:
        appended = await self._partition.append(
            self._build_batches(self._encode(records)), acks_all=True, current_leader_epoch=self._leader_epoch
        )
        return appended.next_offset

    async def append_transactional(
        self, records: Sequence[R], producer_id: int, producer_epoch: int, verification: VerificationGuard | None
    ) -> int:
        """Appends records as a part of a producer's transaction. The first batch of a transaction needs the guard of
        `Partition.begin_verification`.

        The batch has no sequence, because the producer numbers only the batches that it sends itself.
        """
        data = build_batch(
            self._encode(records), producer_id=producer_id, producer_epoch=producer_epoch, transactional=True
        )
        if len(data) > self._partition.log.settings.max_message_bytes:
            raise self._too_large_error(data)
        appended = await self._partition.append(
            [Batch(data)], acks_all=True, current_leader_epoch=self._leader_epoch, verification=verification
        )
        return appended.next_offset

    def _encode(self, records: Sequence[R]) -> list[Record]:
        now_ms = self._clock.wall_ms()
        return [Record(timestamp=now_ms, key=key, value=value) for key, value in map(self._serde.encode, records)]

    def _build_batches(self, records: Sequence[Record]) -> list[Batch]:
        data = build_batch(records)
        if len(data) <= self._partition.log.settings.max_message_bytes:
            return [Batch(data)]
        # Only tombstones can be split into several batches, because each is valid alone. Other changes must be atomic.
        if len(records) == 1 or any(record.value is not None for record in records):
            raise self._too_large_error(data)
        middle = len(records) // 2
        return self._build_batches(records[:middle]) + self._build_batches(records[middle:])

    def _too_large_error(self, data: bytes) -> RecordTooLargeError:
        return RecordTooLargeError(f"batch of {len(data)} bytes is too large for {self._partition.name}")
