"""Helpers for tests of log stores: batches, the content of a log, and a store whose every call suspends."""

import asyncio
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from moldau.logs.store import BatchTime, Log, LogName, LogStore, RecordSlices, TimestampAndOffset
from moldau.logs.transaction_index import AbortedTransaction
from moldau.records.batch import Batch, split
from moldau.records.batch_builder import build_batch
from moldau.records.record import Record, iterate_records
from moldau.settings.topic import TopicSettings

TOPIC_ID = UUID(int=0x0123456789ABCDEF0123456789ABCDEF)
OTHER_TOPIC_ID = UUID(int=0xFEDCBA9876543210FEDCBA9876543210)
NAME = LogName("orders", 0)
FOREVER = 2**63 - 1


def batch_at(
    offset: int,
    values: Sequence[bytes | None],
    *,
    keys: Sequence[bytes | None] | None = None,
    timestamp_ms: int = 1_000,
    leader_epoch: int = 0,
    **more: Any,
) -> Batch:
    """Returns a batch of these values at `offset`, with consecutive timestamps."""
    records = [
        Record(timestamp=timestamp_ms + number, key=keys[number] if keys is not None else None, value=value)
        for number, value in enumerate(values)
    ]
    return Batch(build_batch(records, base_offset=offset, leader_epoch=leader_epoch, **more))


async def flush_and_finalize(log: Log) -> None:
    """Flushes the log and finalizes its closed segments, as a partition does."""
    await log.flush()
    if log.has_unfinalized_segments:
        await log.finalize_segments()


async def append(log: Log, *values: bytes | None, **more: Any) -> Batch:
    """Appends one batch."""
    batch = batch_at(log.end_offset, values, **more)
    await log.append([batch])
    return batch


async def batches_of(log: Log, offset: int | None = None, below: int = FOREVER) -> list[Batch]:
    """Returns all batches from an offset (by default the start offset) on."""
    found: list[Batch] = []
    offset = log.start_offset if offset is None else offset
    while (slices := await log.read(offset, 1, min(below, log.end_offset))).size:
        read = list(split(slices.read()))
        found += read
        offset = read[-1].next_offset
    return found


async def records_of(log: Log) -> list[Record]:
    """Returns all records from the start offset on."""
    records = [record for batch in await batches_of(log) for record in iterate_records(batch)]
    return [record for record in records if record.offset >= log.start_offset]


async def values_of(log: Log) -> list[bytes | None]:
    return [record.value for record in await records_of(log)]


class YieldingLog(Log):
    """A log whose calls yield to the event loop before and after the inner log's."""

    def __init__(self, inner: Log) -> None:
        self.inner = inner

    def __getattribute__(self, attribute: str) -> Any:
        if attribute in (
            "name",
            "topic_id",
            "settings",
            "start_offset",
            "end_offset",
            "durable_offset",
            "checkpointed_high_watermark",
            "producers",
            "epochs",
            "failure",
            "has_unfinalized_segments",
        ):
            return getattr(self.inner, attribute)
        return super().__getattribute__(attribute)

    async def append(self, batches: Sequence[Batch]) -> None:
        await asyncio.sleep(0)
        await self.inner.append(batches)
        await asyncio.sleep(0)

    async def flush(self) -> None:
        await asyncio.sleep(0)
        await self.inner.flush()
        await asyncio.sleep(0)

    async def finalize_segments(self) -> None:
        await asyncio.sleep(0)
        await self.inner.finalize_segments()
        await asyncio.sleep(0)

    async def read(
        self, offset: int, bytes_max: int, below: int, *, min_one_batch: bool = True, skip_empty: bool = False
    ) -> RecordSlices:
        await asyncio.sleep(0)
        slices = await self.inner.read(offset, bytes_max, below, min_one_batch=min_one_batch, skip_empty=skip_empty)
        await asyncio.sleep(0)
        return slices

    async def read_committed(
        self, offset: int, bytes_max: int, below: int, *, min_one_batch: bool = True
    ) -> tuple[RecordSlices, Sequence[AbortedTransaction]]:
        await asyncio.sleep(0)
        read = await self.inner.read_committed(offset, bytes_max, below, min_one_batch=min_one_batch)
        await asyncio.sleep(0)
        return read

    async def offset_for_timestamp(self, timestamp_ms: int, below: int) -> TimestampAndOffset | None:
        await asyncio.sleep(0)
        found = await self.inner.offset_for_timestamp(timestamp_ms, below)
        await asyncio.sleep(0)
        return found

    async def max_timestamp(self, below: int) -> TimestampAndOffset | None:
        await asyncio.sleep(0)
        found = await self.inner.max_timestamp(below)
        await asyncio.sleep(0)
        return found

    async def find_batch_time(self, offset: int, below: int) -> BatchTime | None:
        await asyncio.sleep(0)
        found = await self.inner.find_batch_time(offset, below)
        await asyncio.sleep(0)
        return found

    async def truncate_to(self, offset: int) -> None:
        await asyncio.sleep(0)
        await self.inner.truncate_to(offset)
        await asyncio.sleep(0)

    async def truncate_fully_and_start_at(self, offset: int) -> None:
        await asyncio.sleep(0)
        await self.inner.truncate_fully_and_start_at(offset)
        await asyncio.sleep(0)

    async def advance_start_offset(self, offset: int) -> None:
        await asyncio.sleep(0)
        await self.inner.advance_start_offset(offset)
        await asyncio.sleep(0)

    async def apply_retention(self, now_ms: int, below: int) -> None:
        await asyncio.sleep(0)
        await self.inner.apply_retention(now_ms, below)
        await asyncio.sleep(0)

    async def compact(self, now_ms: int, below: int) -> bool:
        await asyncio.sleep(0)
        done = await self.inner.compact(now_ms, below)
        await asyncio.sleep(0)
        return done

    def configure(self, settings: TopicSettings) -> None:
        self.inner.configure(settings)

    @property
    def size(self) -> int:
        return self.inner.size

    async def close(self) -> None:
        await asyncio.sleep(0)
        await self.inner.close()
        await asyncio.sleep(0)


class YieldingLogStore(LogStore):
    """A store whose calls yield to the event loop."""

    def __init__(self, inner: LogStore) -> None:
        self.inner = inner

    async def start(self) -> None:
        await asyncio.sleep(0)
        await self.inner.start()
        self.had_clean_shutdown = self.inner.had_clean_shutdown

    def list_logs(self) -> Sequence[tuple[LogName, UUID]]:
        return self.inner.list_logs()

    async def open(self, name: LogName, topic_id: UUID, settings: TopicSettings) -> Log:
        await asyncio.sleep(0)
        log = await self.inner.open(name, topic_id, settings)
        await asyncio.sleep(0)
        return YieldingLog(log)

    async def remove(self, name: LogName) -> None:
        await asyncio.sleep(0)
        await self.inner.remove(name)
        await asyncio.sleep(0)

    async def move_to_stray(self, name: LogName) -> None:
        await asyncio.sleep(0)
        await self.inner.move_to_stray(name)
        await asyncio.sleep(0)

    async def checkpoint_high_watermarks(self) -> None:
        await asyncio.sleep(0)
        await self.inner.checkpoint_high_watermarks()

    async def close(self, broker_epoch: int = -1) -> None:
        await asyncio.sleep(0)
        await self.inner.close(broker_epoch)
        await asyncio.sleep(0)

    def space(self) -> tuple[int, int]:
        return self.inner.space()
