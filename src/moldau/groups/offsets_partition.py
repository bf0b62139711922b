"""The log of a shard: reading the groups out of it when this node begins to lead it, and writing to it after."""

import asyncio
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager

from moldau.errors import CorruptRecordError, RecordTooLargeError, StorageError
from moldau.groups.formats import decode, encode
from moldau.groups.records import GroupRecord
from moldau.groups.shard import GroupCoordinatorShard
from moldau.partitions.partition import Partition
from moldau.platform.clock import Clock
from moldau.records.batch import Batch, split, trim_partial_batch
from moldau.records.batch_builder import build_batch
from moldau.records.record import Record, iterate_records

RECORDS_PER_YIELD = 200
"""Records that are applied before other work of the node gets its turn."""


async def load(
    partition: Partition,
    leader_epoch: int,
    state: GroupCoordinatorShard,
    bytes_per_read: int,
    load_lock: AbstractAsyncContextManager[object],
) -> int:
    """Applies the whole log to `state`, once all of it is committed; gives the offset after the last record. The log
    is read within `load_lock`, for which those take turns who have nothing else to wait for.

    Raises as `Partition.read` does, and CorruptRecordError where a batch is not what was written.
    """
    end_offset = partition.log.end_offset
    committed = partition.commit_future(end_offset, leader_epoch)
    if committed is not None:
        await committed
    async with load_lock:
        await _replay(partition, leader_epoch, state, end_offset, bytes_per_read)
    return end_offset


async def _replay(
    partition: Partition,
    leader_epoch: int,
    state: GroupCoordinatorShard,
    end_offset: int,
    bytes_per_read: int,
) -> None:
    offset = partition.log.start_offset
    applied = 0
    while offset < end_offset:
        fetched = await partition.read(offset, bytes_per_read, current_leader_epoch=leader_epoch)
        try:
            data = fetched.records.read()
        except OSError as error:
            raise StorageError(f"{partition.name} cannot be read: {error}") from error
        began_at = offset
        for batch in split(trim_partial_batch(data)):
            records = _decode_batch(batch)
            state.apply(records, batch.next_offset)
            offset = batch.next_offset
            applied += len(records)
            if applied >= RECORDS_PER_YIELD:
                applied = 0
                await asyncio.sleep(0)
        if offset == began_at:
            raise CorruptRecordError(f"no batch is found at offset {offset} of {partition.name}")


def _decode_batch(batch: Batch) -> list[GroupRecord]:
    if not batch.has_valid_checksum():
        raise CorruptRecordError(f"the checksum of {batch!r} is wrong")
    if batch.is_control:
        return []
    found = []
    for record in iterate_records(batch):
        if record.key is None:
            raise CorruptRecordError(f"the record at offset {record.offset} has no key")
        group_record = decode(record.key, record.value)
        if group_record is not None:
            found.append(group_record)
    return found


class PartitionWriter:
    """The partition as the decision runtime sees it, in one leader epoch: what was decided in it may not be written in
    another, in which others may have decided better."""

    def __init__(self, partition: Partition, leader_epoch: int, clock: Clock) -> None:
        self._partition = partition
        self._leader_epoch = leader_epoch
        self._clock = clock

    async def append(self, records: Sequence[GroupRecord]) -> int:
        now_ms = self._clock.wall_ms()
        encoded = [Record(timestamp=now_ms, key=key, value=value) for key, value in map(encode, records)]
        appended = await self._partition.append(
            self._build_batches(encoded), acks_all=True, current_leader_epoch=self._leader_epoch
        )
        return appended.next_offset

    def _build_batches(self, records: Sequence[Record]) -> list[Batch]:
        data = build_batch(records)
        if len(data) <= self._partition.log.settings.max_message_bytes:
            return [Batch(data)]
        # Tombstones may come in any number, when a topic is deleted or much expires, and each stands for
        # itself; anything else is one change, whole or not at all.
        if len(records) == 1 or any(record.value is not None for record in records):
            raise RecordTooLargeError(f"{len(data)} bytes are more than {self._partition.name} takes at once")
        middle = len(records) // 2
        return self._build_batches(records[:middle]) + self._build_batches(records[middle:])
