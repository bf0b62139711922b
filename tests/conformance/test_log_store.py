"""The behaviour of every log store: each test runs on every implementation."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from moldau.errors import OffsetOutOfRangeError, OutOfOrderSequenceError
from moldau.logs.files.store import FileLogStore
from moldau.logs.memory import MemoryLogStore
from moldau.logs.store import EMPTY_SLICES, BatchTime, Log, LogName, LogStore, TimestampAndOffset
from moldau.platform.clock import SystemClock
from moldau.platform.os_disk import OsDisk
from moldau.records.batch import Batch, split
from moldau.records.control_records import EndTransaction
from moldau.records.record import section
from moldau.settings.topic import TopicSettings
from support.control_batches import control_batch
from support.logs import (
    FOREVER,
    NAME,
    OTHER_TOPIC_ID,
    TOPIC_ID,
    YieldingLogStore,
    append,
    batch_at,
    batches_of,
    flush_and_finalize,
    records_of,
    values_of,
)
from support.postgres_logs import EVICTED_AT_ONCE, VERSIONS, drop_schema, new_schema, postgres_store, shared_server

MakeStore = Callable[[], LogStore]

ONE_BATCH_SEGMENTS = TopicSettings(segment_bytes=1024, index_interval_bytes=0)
"""With `big` values, every batch fills a segment."""


def big(letter: bytes) -> bytes:
    return letter * 900


POSTGRES: dict[str, tuple[str, dict[str, int]]] = {
    f"postgres {VERSIONS[0]}": (VERSIONS[0], {}),
    f"postgres {VERSIONS[-1]} without cache": (VERSIONS[-1], EVICTED_AT_ONCE),
}


@pytest.fixture(params=["memory", "files", "awaiting files", "awaiting memory", *POSTGRES])
def make_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MakeStore]:
    kind: str = request.param
    if kind in POSTGRES:
        version, options = POSTGRES[kind]
        server, schema = shared_server(version), new_schema()
        yield lambda: postgres_store(server.url, schema, **options)
        drop_schema(server, schema)
        return

    def make() -> LogStore:
        store: LogStore
        if kind.endswith("memory"):
            store = MemoryLogStore()
        else:
            store = FileLogStore(OsDisk(), str(tmp_path / "data"), SystemClock())
        return YieldingLogStore(store) if kind.startswith("awaiting") else store

    yield make


@asynccontextmanager
async def opened(make_store: MakeStore, settings: TopicSettings | None = None) -> AsyncIterator[Log]:
    store = make_store()
    await store.start()
    yield await store.open(NAME, TOPIC_ID, settings or TopicSettings())
    await store.close()


def test_a_new_log_is_empty(make_store: MakeStore) -> None:
    async def body() -> None:
        async with opened(make_store) as log:
            assert (log.start_offset, log.end_offset, log.durable_offset, log.size) == (0, 0, 0, 0)
            assert (log.name, log.topic_id) == (NAME, TOPIC_ID)
            assert await log.read(0, 1000, 0) == EMPTY_SLICES
            assert await log.read(0, 1000, 10) == EMPTY_SLICES
            assert await log.offset_for_timestamp(0, 10) is None
            assert await log.max_timestamp(10) is None
            await flush_and_finalize(log)
            await log.apply_retention(FOREVER, 0)
            assert not await log.compact(FOREVER, 0)

    asyncio.run(body())


def test_reads_return_the_appended_bytes(make_store: MakeStore) -> None:
    async def body() -> None:
        async with opened(make_store) as log:
            first = batch_at(0, [b"a", b"b"], leader_epoch=3)
            second = batch_at(2, [b"c"], leader_epoch=3)
            third = batch_at(3, [b"d", b"e", b"f"], leader_epoch=4)
            await log.append([first, second])
            await log.append([third])
            assert log.end_offset == 6
            assert log.size == first.size + second.size + third.size
            everything = first.to_bytes() + second.to_bytes() + third.to_bytes()
            slices = await log.read(0, 1_000_000, 6)
            assert slices.read() == everything
            assert slices.size == len(everything)
            assert list(log.epochs) == [(3, 0), (4, 3)]

    asyncio.run(body())


def test_the_buffer_of_an_appended_batch_can_be_reused(make_store: MakeStore) -> None:
    async def body() -> None:
        async with opened(make_store) as log:
            buffer = bytearray(batch_at(0, [b"keep me"]).to_bytes())
            await log.append([Batch(memoryview(buffer))])
            buffer[:] = bytes(len(buffer))
            assert await values_of(log) == [b"keep me"]

    asyncio.run(body())


def test_a_read_starts_with_the_batch_that_contains_the_offset(make_store: MakeStore) -> None:
    async def body() -> None:
        async with opened(make_store) as log:
            await append(log, b"a", b"b", b"c")
            second = await append(log, b"d", b"e", b"f")
            for offset in (3, 4, 5):
                assert (await log.read(offset, 1_000_000, 6)).read() == second.to_bytes()

    asyncio.run(body())


def test_a_read_in_a_gap_starts_with_the_next_batch(make_store: MakeStore) -> None:
    async def body() -> None:
        async with opened(make_store) as log:
            await append(log, b"a")
            far = batch_at(100, [b"b"])
            await log.append([far])
            assert log.end_offset == 101
            for offset in (1, 50, 100):
                assert (await log.read(offset, 1_000_000, 101)).read() == far.to_bytes()

    asyncio.run(body())


def test_nothing_at_or_above_the_bound_is_read(make_store: MakeStore) -> None:
    async def body() -> None:
        async with opened(make_store, TopicSettings(index_interval_bytes=0)) as log:
            batches = [await append(log, b"a", b"b") for _ in range(20)]
            for below in range(41):
                whole = [batch.to_bytes() for batch in batches if batch.next_offset <= below]
                assert (await log.read(0, 1_000_000, below)).read() == b"".join(whole)
            assert await log.read(10, 1_000_000, 10) == EMPTY_SLICES
            assert await log.read(11, 1_000_000, 10) == EMPTY_SLICES

    asyncio.run(body())


def test_reads_respect_the_byte_limit_except_for_min_one_batch(make_store: MakeStore) -> None:
    async def body() -> None:
        async with opened(make_store) as log:
            batches = [await append(log, b"x" * 200) for _ in range(5)]
            size = batches[0].size
            first = await log.read(0, 1, 5)
            assert first.read() == batches[0].to_bytes()
            assert (await log.read(0, 1, 5, min_one_batch=False)).size == 0
            assert (await log.read(0, size - 1, 5, min_one_batch=False)).size == 0
            for limit in range(size, 5 * size, 97):
                slices = await log.read(0, limit, 5, min_one_batch=False)
                assert size <= slices.size <= limit
                data = slices.read()
                assert b"".join(batch.to_bytes() for batch in batches).startswith(data)

    asyncio.run(body())


def test_a_consumer_reads_across_segments(make_store: MakeStore) -> None:
    async def body() -> None:
        async with opened(make_store, TopicSettings(segment_bytes=1024, index_interval_bytes=100)) as log:
            values = [b"%03d" % number * 20 for number in range(200)]
            for number in range(0, 200, 4):
                await append(log, *values[number : number + 4])
            assert await values_of(log) == values
            for offset in range(200):
                first = next(split((await log.read(offset, 1, 200)).read()))
                assert first.base_offset <= offset <= first.last_offset

    asyncio.run(body())


def test_flush_moves_the_durable_offset_to_the_end(make_store: MakeStore) -> None:
    async def body() -> None:
        async with opened(make_store, ONE_BATCH_SEGMENTS) as log:
            for letter in (b"a", b"b", b"c"):
                await append(log, big(letter))
            assert log.durable_offset <= log.end_offset
            await asyncio.gather(*(log.flush() for _ in range(5)))
            assert log.durable_offset == log.end_offset == 3

    asyncio.run(body())


def test_appends_continue_during_a_flush(make_store: MakeStore) -> None:
    async def body() -> None:
        async with opened(make_store, ONE_BATCH_SEGMENTS) as log:

            async def produce() -> None:
                for number in range(30):
                    await append(log, big(b"%d" % (number % 10)))
                    end = log.end_offset
                    await flush_and_finalize(log)
                    assert log.durable_offset >= end

            await asyncio.gather(produce(), *(log.flush() for _ in range(3)))
            assert log.durable_offset == log.end_offset == 30
            assert len(await records_of(log)) == 30

    asyncio.run(body())


def test_records_are_found_by_timestamp(make_store: MakeStore) -> None:
    async def body() -> None:
        async with opened(make_store, TopicSettings(segment_bytes=1024, index_interval_bytes=0)) as log:
            # Each batch has the timestamps t, t+1, t+2; one is out of order.
            for timestamp_ms in (100, 200, 150, 300, 400, 500, 600, 700, 800):
                await append(log, *[b"v" * 100] * 3, timestamp_ms=timestamp_ms, leader_epoch=7)
            end = log.end_offset
            assert await log.offset_for_timestamp(0, end) == TimestampAndOffset(100, 0, 7)
            assert await log.offset_for_timestamp(101, end) == TimestampAndOffset(101, 1, 7)
            assert await log.offset_for_timestamp(103, end) == TimestampAndOffset(200, 3, 7)
            assert await log.offset_for_timestamp(151, end) == TimestampAndOffset(200, 3, 7)
            assert await log.offset_for_timestamp(202, end) == TimestampAndOffset(202, 5, 7)
            assert await log.offset_for_timestamp(203, end) == TimestampAndOffset(300, 9, 7)
            assert await log.offset_for_timestamp(802, end) == TimestampAndOffset(802, 26, 7)
            assert await log.offset_for_timestamp(803, end) is None
            assert await log.offset_for_timestamp(701, 21) is None
            assert await log.max_timestamp(end) == TimestampAndOffset(802, 26, 7)
            assert await log.max_timestamp(9) == TimestampAndOffset(202, 5, 7)
            assert await log.max_timestamp(0) is None

    asyncio.run(body())


def test_timestamp_lookups_never_return_offsets_below_the_start(make_store: MakeStore) -> None:
    async def body() -> None:
        async with opened(make_store) as log:
            await append(log, b"a", b"b", b"c", timestamp_ms=900)
            await append(log, b"d", b"e", b"f", timestamp_ms=500)
            await log.advance_start_offset(2)
            assert await log.offset_for_timestamp(0, 6) == TimestampAndOffset(902, 2, 0)
            await log.advance_start_offset(4)
            assert await log.offset_for_timestamp(0, 6) == TimestampAndOffset(501, 4, 0)
            assert await log.max_timestamp(6) == TimestampAndOffset(502, 5, 0)

    asyncio.run(body())


def test_append_time_and_missing_timestamps(make_store: MakeStore) -> None:
    async def body() -> None:
        async with opened(make_store) as log:
            await append(log, b"a", b"b", append_time_ms=77)
            assert await log.offset_for_timestamp(77, 2) == TimestampAndOffset(77, 0, 0)
            assert await log.max_timestamp(2) == TimestampAndOffset(77, 0, 0)

    asyncio.run(body())


def test_the_time_of_the_first_batch_with_records_of_clients_is_found(make_store: MakeStore) -> None:
    async def body() -> None:
        async with opened(make_store, TopicSettings(segment_bytes=1024, index_interval_bytes=0)) as log:
            for timestamp_ms in (100, 200, 300, 400):
                await append(log, *[b"v" * 200] * 3, timestamp_ms=timestamp_ms)
            producer = {"producer_id": 9, "producer_epoch": 0}
            await append(log, b"t", timestamp_ms=500, transactional=True, base_sequence=0, **producer)
            marker = Batch(control_batch(EndTransaction(True, 0), timestamp=600, base_offset=13, **producer))
            await log.append([marker])
            await append(log, b"e", append_time_ms=700)
            assert await log.find_batch_time(0, 15) == BatchTime(0, 102, False)
            assert await log.find_batch_time(4, 15) == BatchTime(4, 202, False)
            assert await log.find_batch_time(9, 15) == BatchTime(9, 402, False)
            assert await log.find_batch_time(13, 15) == BatchTime(14, 700, True)
            assert await log.find_batch_time(13, 14) is None
            assert await log.find_batch_time(12, 12) is None
            assert await log.find_batch_time(15, 15) is None
            await log.advance_start_offset(8)
            assert await log.find_batch_time(8, 15) == BatchTime(8, 302, False)

    asyncio.run(body())


def test_truncation_removes_records_epochs_and_producers(make_store: MakeStore) -> None:
    async def body() -> None:
        async with opened(make_store, TopicSettings(segment_bytes=1024, index_interval_bytes=0)) as log:
            producer = {"producer_id": 9, "producer_epoch": 0}
            for number in range(12):
                await append(
                    log, *[b"%d" % number * 100] * 2, leader_epoch=number // 4, base_sequence=2 * number, **producer
                )
            await flush_and_finalize(log)
            assert list(log.epochs) == [(0, 0), (1, 8), (2, 16)]
            await log.truncate_to(10)
            assert (log.end_offset, log.durable_offset) == (10, 10)
            assert await values_of(log) == [b"%d" % (n // 2) * 100 for n in range(10)]
            assert list(log.epochs) == [(0, 0), (1, 8)]
            with pytest.raises(OutOfOrderSequenceError):
                log.producers.check(batch_at(10, [b"x"], base_sequence=24, **producer))
            repeated = log.producers.check(batch_at(10, [b"x", b"y"], base_sequence=8, **producer))
            assert repeated is not None
            assert (repeated.base_offset, repeated.last_offset) == (8, 9)
            assert log.producers.check(batch_at(10, [b"x"], base_sequence=10, **producer)) is None
            await append(log, b"new", leader_epoch=5, base_sequence=10, **producer)
            await flush_and_finalize(log)
            assert (await values_of(log))[-1] == b"new"
            assert list(log.epochs) == [(0, 0), (1, 8), (5, 10)]

    asyncio.run(body())


def test_truncation_inside_a_batch_removes_the_whole_batch(make_store: MakeStore) -> None:
    async def body() -> None:
        async with opened(make_store) as log:
            await append(log, b"a", b"b")
            await append(log, b"c", b"d", b"e")
            await log.truncate_to(4)
            assert log.end_offset == 2
            assert await values_of(log) == [b"a", b"b"]
            await log.truncate_to(9)
            assert log.end_offset == 2
            await log.truncate_to(0)
            assert (log.start_offset, log.end_offset, log.size) == (0, 0, 0)

    asyncio.run(body())


def test_truncation_below_the_start_offset_resets_the_log(make_store: MakeStore) -> None:
    async def body() -> None:
        async with opened(make_store, ONE_BATCH_SEGMENTS) as log:
            for letter in (b"a", b"b", b"c", b"d"):
                await append(log, big(letter))
            await log.advance_start_offset(3)
            await log.truncate_to(1)
            assert (log.start_offset, log.end_offset, log.durable_offset, log.size) == (1, 1, 1, 0)
            await append(log, b"x")
            assert [(record.offset, record.value) for record in await records_of(log)] == [(1, b"x")]

    asyncio.run(body())


def test_truncation_into_the_batch_of_the_start_offset_keeps_earlier_producer_state(make_store: MakeStore) -> None:
    async def body() -> None:
        producer = {"producer_id": 9, "producer_epoch": 0}
        async with opened(make_store) as log:
            await append(log, b"a", base_sequence=0, **producer)
            await append(log, b"b", b"c", base_sequence=1, **producer)
            await log.advance_start_offset(2)
            await log.truncate_to(2)
            assert (log.start_offset, log.end_offset, log.size) == (2, 2, 0)
            repeated = log.producers.check(batch_at(2, [b"a"], base_sequence=0, **producer))
            assert repeated is not None
            assert repeated.base_offset == 0
            assert log.producers.check(batch_at(2, [b"b", b"c"], base_sequence=1, **producer)) is None
            await append(log, b"b", b"c", base_sequence=1, **producer)
            assert await values_of(log) == [b"b", b"c"]

    asyncio.run(body())


@pytest.mark.parametrize("offset", [0, 1, 2, 3, 4, 5, 1_000_000, 2**40])
def test_a_log_can_be_reset_to_any_offset(make_store: MakeStore, offset: int) -> None:
    async def body() -> None:
        async with opened(make_store, ONE_BATCH_SEGMENTS) as log:
            for number, letter in enumerate((b"a", b"b", b"c", b"d")):
                await append(
                    log, big(letter), leader_epoch=number, producer_id=9, producer_epoch=0, base_sequence=number
                )
            await log.advance_start_offset(2)
            await log.truncate_fully_and_start_at(offset)
            assert (log.start_offset, log.end_offset, log.durable_offset) == (offset,) * 3
            assert (log.size, list(log.epochs), len(log.producers)) == (0, [], 0)
            assert await log.read(offset, 1000, offset + 1) == EMPTY_SLICES
            assert await log.max_timestamp(offset + 1) is None
            await append(log, b"x", leader_epoch=2)
            await append(log, big(b"y"), leader_epoch=2)
            await flush_and_finalize(log)
            assert [(record.offset, record.value) for record in await records_of(log)] == [
                (offset, b"x"),
                (offset + 1, big(b"y")),
            ]
            assert list(log.epochs) == [(2, offset)]
            await log.truncate_to(offset + 1)
            assert log.end_offset == offset + 1

    asyncio.run(body())


def test_a_read_continues_during_a_reset(make_store: MakeStore) -> None:
    async def body() -> None:
        async with opened(make_store) as log:
            await append(log, b"a", b"b")
            await flush_and_finalize(log)
            slices = await log.read(0, 1000, 2)
            before = slices.read()
            await log.truncate_fully_and_start_at(0)
            await append(log, b"other")
            assert slices.read() == before

    asyncio.run(body())


def test_advancing_the_start_offset_deletes_what_is_below(make_store: MakeStore) -> None:
    async def body() -> None:
        async with opened(make_store, ONE_BATCH_SEGMENTS) as log:
            for number, letter in enumerate((b"a", b"b", b"c", b"d")):
                await append(log, big(letter), leader_epoch=number)
            size = log.size
            await log.advance_start_offset(2)
            assert log.start_offset == 2
            assert log.size < size
            assert await values_of(log) == [big(b"c"), big(b"d")]
            assert list(log.epochs) == [(2, 2), (3, 3)]
            await log.advance_start_offset(1)
            assert log.start_offset == 2
            with pytest.raises(OffsetOutOfRangeError):
                await log.advance_start_offset(5)
            await log.advance_start_offset(4)
            assert (log.start_offset, log.end_offset, log.size) == (4, 4, 0)
            await append(log, b"e", leader_epoch=3)
            assert [record.offset for record in await records_of(log)] == [4]

    asyncio.run(body())


def test_retention_by_time(make_store: MakeStore) -> None:
    async def body() -> None:
        settings = TopicSettings(segment_bytes=1024, retention_ms=1000, index_interval_bytes=0)
        async with opened(make_store, settings) as log:
            for number in range(5):
                await append(log, big(b"%d" % number), timestamp_ms=10_000 + 500 * number)
            await flush_and_finalize(log)
            await log.apply_retention(11_000, log.end_offset)
            assert log.start_offset == 0
            await log.apply_retention(11_501, log.end_offset)
            assert log.start_offset == 2
            await log.apply_retention(99_999, below=3)
            assert log.start_offset == 3
            await log.apply_retention(99_999, log.end_offset)
            assert (log.start_offset, log.end_offset, log.size) == (5, 5, 0)
            await append(log, b"next")
            assert [record.offset for record in await records_of(log)] == [5]

    asyncio.run(body())


def test_retention_by_size(make_store: MakeStore) -> None:
    async def body() -> None:
        async with opened(make_store, ONE_BATCH_SEGMENTS) as log:
            for number in range(6):
                await append(log, big(b"%d" % number))
            one = log.size // 6
            log.configure(
                TopicSettings(segment_bytes=1024, index_interval_bytes=0, retention_bytes=3 * one, retention_ms=-1)
            )
            await log.apply_retention(FOREVER, log.end_offset)
            assert log.start_offset == 3
            assert log.size == 3 * one

    asyncio.run(body())


def test_retention_does_not_apply_to_compacted_topics(make_store: MakeStore) -> None:
    async def body() -> None:
        settings = TopicSettings(cleanup_policy=("compact",), segment_bytes=1024, retention_ms=1)
        async with opened(make_store, settings) as log:
            for number in range(3):
                await append(log, big(b"%d" % number), keys=[b"k%d" % number])
            await log.apply_retention(FOREVER, log.end_offset)
            assert log.start_offset == 0

    asyncio.run(body())


def test_retention_expires_idle_producers(make_store: MakeStore) -> None:
    async def body() -> None:
        async with opened(make_store, TopicSettings(retention_ms=-1)) as log:
            await append(log, b"a", producer_id=1, producer_epoch=0, base_sequence=0)
            await log.apply_retention(1_000_000, 0)
            await log.apply_retention(1_000_000 + 86_400_000 - 1, 0)
            assert len(log.producers) == 1
            await log.apply_retention(1_000_000 + 86_400_000, 0)
            assert len(log.producers) == 0

    asyncio.run(body())


COMPACTED = TopicSettings(
    cleanup_policy=("compact",),
    segment_bytes=1024,
    index_interval_bytes=0,
    min_cleanable_dirty_ratio=0.01,
    delete_retention_ms=1_000,
)


async def filler(log: Log) -> None:
    """Rolls the active segment, in stores with segments."""
    await append(log, big(b"_"), keys=[b"filler%d" % log.end_offset])
    await append(log, big(b"_"), keys=[b"filler%d" % log.end_offset])
    await flush_and_finalize(log)


def test_compaction_keeps_the_latest_record_of_each_key(make_store: MakeStore) -> None:
    async def body() -> None:
        async with opened(make_store, COMPACTED) as log:
            for number in range(20):
                await append(log, b"x%d" % number, b"y%d" % number, keys=[b"x", b"y%d" % number], timestamp_ms=number)
            await filler(log)
            end = log.end_offset
            before = await records_of(log)
            assert await log.compact(1_000_000, end)
            assert (log.start_offset, log.end_offset) == (0, end)
            after = await records_of(log)
            newest = {record.key: record for record in before}
            assert after == [record for record in before if newest[record.key] is record]
            assert not await log.compact(1_000_000, end)

    asyncio.run(body())


def test_compaction_stays_below_the_bound(make_store: MakeStore) -> None:
    async def body() -> None:
        async with opened(make_store, COMPACTED) as log:
            for number in range(10):
                await append(log, big(b"%d" % number), keys=[b"k"])
            await flush_and_finalize(log)
            await log.compact(1_000_000, 5)
            offsets = [record.offset for record in await records_of(log)]
            assert offsets == [4, 5, 6, 7, 8, 9]

    asyncio.run(body())


def test_tombstones_are_kept_for_delete_retention_ms_after_the_first_cleaning(make_store: MakeStore) -> None:
    async def body() -> None:
        async with opened(make_store, COMPACTED) as log:
            await append(log, b"value", keys=[b"gone"])
            await append(log, None, keys=[b"gone"])
            await filler(log)
            assert await log.compact(10_000, log.end_offset)
            assert [r.value for r in await records_of(log) if r.key == b"gone"] == [None]
            await filler(log)
            await log.compact(10_999, log.end_offset)
            assert [r.value for r in await records_of(log) if r.key == b"gone"] == [None]
            await filler(log)
            await log.compact(11_000, log.end_offset)
            assert [r.value for r in await records_of(log) if r.key == b"gone"] == []

    asyncio.run(body())


def test_compaction_keeps_the_last_batch_of_each_producer(make_store: MakeStore) -> None:
    async def body() -> None:
        async with opened(make_store, COMPACTED) as log:
            for sequence in range(3):
                await append(log, b"old", keys=[b"k"], producer_id=5, producer_epoch=1, base_sequence=sequence)
            await append(log, b"new", keys=[b"k"])
            await filler(log)
            end = log.end_offset
            assert await log.compact(1_000_000, end)
            await append(log, b"tail", keys=[b"t"])
            await log.truncate_to(end)
            state = log.producers.get(5)
            assert state is not None
            assert (state.epoch, state.last_sequence, state.last_offset) == (1, 2, 2)

    asyncio.run(body())


async def log_with_empty_batches(log: Log) -> None:
    """Fills a log whose compaction leaves the last batches of two producers without records, then two records."""
    for producer_id in (5, 6):
        for sequence in range(3):
            await append(log, big(b"o"), keys=[b"k"], producer_id=producer_id, producer_epoch=0, base_sequence=sequence)
    await append(log, big(b"n"), keys=[b"k"])
    await append(log, big(b"t"), keys=[b"t"])
    await flush_and_finalize(log)
    assert await log.compact(1_000_000, log.end_offset)


def test_compaction_removes_batches_without_records(make_store: MakeStore) -> None:
    async def body() -> None:
        async with opened(make_store, COMPACTED) as log:
            await log_with_empty_batches(log)
            expected = [(2, 0), (5, 0), (6, 1), (7, 1)]
            assert [(batch.last_offset, batch.count) for batch in await batches_of(log)] == expected
            assert (log.start_offset, log.end_offset) == (0, 8)
            for producer_id in (5, 6):
                await append(log, big(b"k"), keys=[b"x"], producer_id=producer_id, producer_epoch=0, base_sequence=3)
            await append(log, big(b"u"), keys=[b"u"])
            await flush_and_finalize(log)
            assert await log.compact(1_000_000, log.end_offset)
            # Batch 8 is the last one of its producer now.
            expected = [(6, 1), (7, 1), (8, 0), (9, 1), (10, 1)]
            assert [(batch.last_offset, batch.count) for batch in await batches_of(log)] == expected

    asyncio.run(body())


@pytest.mark.parametrize("bytes_max", [0, 61, 100, 1_000_000])
@pytest.mark.parametrize("offset", [0, 2, 3, 6])
def test_a_read_can_skip_empty_batches(make_store: MakeStore, bytes_max: int, offset: int) -> None:
    async def body() -> None:
        async with opened(make_store, COMPACTED) as log:
            await log_with_empty_batches(log)
            read = list(split((await log.read(offset, bytes_max, 8, skip_empty=True)).read(), allow_partial=True))
            assert (read[0].base_offset, read[0].count) == (6, 1)
            if bytes_max == 0:
                assert not (await log.read(offset, bytes_max, 8, skip_empty=True, min_one_batch=False)).size

    asyncio.run(body())


def test_a_read_skips_a_batch_whose_last_records_were_removed(make_store: MakeStore) -> None:
    async def body() -> None:
        async with opened(make_store, COMPACTED) as log:
            for codec in (0, 1):
                await append(log, b"1", b"2", b"3", keys=[b"a%d" % codec, b"b", b"c"], compression=codec)
            await append(log, b"b", b"c", keys=[b"b", b"c"])
            await filler(log)
            end = log.end_offset
            assert await log.compact(1_000_000, end)
            assert [record.offset for record in await records_of(log)][:4] == [0, 3, 6, 7]
            for offset, expected in [(0, 0), (1, 3), (2, 3), (3, 3), (4, 6), (5, 6), (6, 6), (7, 6)]:
                read, *_ = split((await log.read(offset, 0, end, skip_empty=True)).read())
                assert read.base_offset == expected
                (read,) = split((await log.read(offset, 0, end)).read())
                assert read.base_offset <= offset <= read.last_offset
            # Without a later batch the reader gets the last one.
            (read,) = split((await log.read(4, 0, 6, skip_empty=True)).read())
            assert (read.base_offset, read.last_offset) == (3, 5)

    asyncio.run(body())


def test_a_read_of_whole_batches_does_not_decode_them(make_store: MakeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body() -> None:
        async with opened(make_store, COMPACTED) as log:
            for number in range(4):
                keys = [b"%d-%d" % (number, each) for each in range(3)]
                await append(log, b"1", b"2", b"3", keys=keys, compression=1)
            # The first batch loses its last record.
            await append(log, b"2", keys=[b"0-2"])
            await filler(log)
            end = log.end_offset
            assert await log.compact(1_000_000, end)
            decoded: list[int] = []

            def counted_section(batch: Batch) -> bytes:
                decoded.append(batch.base_offset)
                return section(batch)

            monkeypatch.setattr("moldau.logs.compaction.section", counted_section)
            for offset, expected in [(0, 0), (3, 3), (4, 3), (5, 3), (8, 6), (12, 12)]:
                read, *_ = split((await log.read(offset, 1, end, skip_empty=True)).read())
                assert read.base_offset == expected
            assert decoded == []
            for offset, expected in [(1, 0), (2, 3)]:
                read, *_ = split((await log.read(offset, 1, end, skip_empty=True)).read())
                assert read.base_offset == expected
            assert decoded == [0, 0]

    asyncio.run(body())


def test_a_read_ends_before_two_empty_batches(make_store: MakeStore) -> None:
    async def body() -> None:
        async with opened(make_store, COMPACTED) as log:
            await append(log, b"1", keys=[b"a"])
            await append(log, b"2", keys=[b"k"], producer_id=1, producer_epoch=0, base_sequence=0)
            await append(log, b"3", keys=[b"b"])
            for producer_id in (2, 3):
                await append(log, b"4", keys=[b"k"], producer_id=producer_id, producer_epoch=0, base_sequence=0)
            await append(log, b"5", keys=[b"k"])
            await filler(log)
            end = log.end_offset
            assert await log.compact(1_000_000, end)
            assert [batch.count for batch in await batches_of(log)][:6] == [1, 0, 1, 0, 0, 1]
            read = list(split((await log.read(0, 10_000, end, skip_empty=True)).read()))
            assert [batch.base_offset for batch in read] == [0, 1, 2]
            read = list(split((await log.read(3, 10_000, end, skip_empty=True)).read()))
            assert read[0].base_offset == 5
            read = list(split((await log.read(0, 10_000, end)).read()))
            assert [batch.base_offset for batch in read][:6] == [0, 1, 2, 3, 4, 5]

    asyncio.run(body())


@pytest.mark.parametrize("index_interval_bytes", [0, 1_000_000])
def test_a_read_has_whole_batches(make_store: MakeStore, index_interval_bytes: int) -> None:
    async def body() -> None:
        async with opened(make_store, TopicSettings(index_interval_bytes=index_interval_bytes)) as log:
            size = (await append(log, b"x")).size
            for _ in range(9):
                await append(log, b"x")
            for bytes_max in range(3 * size):
                read = await log.read(2, bytes_max, 10)
                assert read.size == max(1, bytes_max // size) * size
                assert next(split(read.read())).base_offset == 2
                assert (await log.read(2, bytes_max, 10, min_one_batch=False)).size == bytes_max // size * size

    asyncio.run(body())


def test_a_read_returns_the_last_batch_if_all_are_empty(make_store: MakeStore) -> None:
    async def body() -> None:
        async with opened(make_store, COMPACTED) as log:
            await log_with_empty_batches(log)
            for offset in (0, 2, 3, 5):
                (read,) = split((await log.read(offset, 0, 6, skip_empty=True)).read())
                assert (read.last_offset, read.count) == (5, 0)
                assert not (await log.read(offset, 60, 6, skip_empty=True, min_one_batch=False)).size
            (read,) = split((await log.read(0, 1_000, 5, skip_empty=True)).read())
            assert (read.last_offset, read.count) == (2, 0)
            assert await log.read(3, 1_000, 5, skip_empty=True) == EMPTY_SLICES

    asyncio.run(body())


def test_a_follower_replicates_a_compacted_log(make_store: MakeStore, tmp_path: Path) -> None:
    async def body() -> None:
        follower_store = FileLogStore(OsDisk(), str(tmp_path / "follower"), SystemClock())
        await follower_store.start()
        follower = await follower_store.open(NAME, TOPIC_ID, TopicSettings())
        async with opened(make_store, COMPACTED) as log:
            await log_with_empty_batches(log)
            while follower.end_offset < log.end_offset:
                records = (await log.read(follower.end_offset, 0, log.end_offset)).read()
                await follower.append(list(split(records)))
            leaders = [batch.to_bytes() for batch in await batches_of(log)]
        assert [batch.to_bytes() for batch in await batches_of(follower)] == leaders
        assert follower.end_offset == 8
        # The empty batches are in the active segment of the follower.
        for offset in (0, 2, 3, 6):
            (read,) = split((await follower.read(offset, 0, 8, skip_empty=True)).read())
            assert (read.base_offset, read.count) == (6, 1)
        state = follower.producers.get(6)
        assert state is not None
        assert state.last_sequence == 2
        await follower_store.close()

    asyncio.run(body())


def test_the_last_batch_is_kept_without_records(make_store: MakeStore) -> None:
    async def body() -> None:
        settings = TopicSettings(
            cleanup_policy=("compact",), segment_bytes=1024, segment_ms=1, min_cleanable_dirty_ratio=0.0
        )
        async with opened(make_store, settings) as log:
            await append(log, big(b"a"), keys=[b"a"])
            await append(log, big(b"b"))
            await append(log, big(b"c"))
            await log.flush()
            # Rolls the active segment in stores with segments.
            await log.apply_retention(1_000_000, 3)
            assert await log.compact(1_000_000, 3)
            assert [(batch.last_offset, batch.count) for batch in await batches_of(log)] == [(0, 1), (2, 0)]
            (read,) = split((await log.read(1, 0, 3, skip_empty=True)).read())
            assert read.next_offset == log.end_offset == 3
            await append(log, big(b"d"), keys=[b"d"])
            (read,) = split((await log.read(1, 0, 4, skip_empty=True)).read())
            assert (read.base_offset, read.count) == (3, 1)

    asyncio.run(body())


def test_compaction_waits_for_min_compaction_lag(make_store: MakeStore) -> None:
    async def body() -> None:
        settings = TopicSettings(
            cleanup_policy=("compact",), segment_bytes=1024, min_cleanable_dirty_ratio=0.01, min_compaction_lag_ms=5_000
        )
        async with opened(make_store, settings) as log:
            for number in range(6):
                await append(log, big(b"%d" % number), keys=[b"k"], timestamp_ms=10_000)
            await flush_and_finalize(log)
            assert not await log.compact(14_999, log.end_offset)
            assert len(await records_of(log)) == 6
            assert await log.compact(15_000, log.end_offset)
            assert len(await records_of(log)) < 6

    asyncio.run(body())


def test_compaction_starts_at_the_dirty_ratio(make_store: MakeStore) -> None:
    async def body() -> None:
        settings = TopicSettings(cleanup_policy=("compact",), segment_bytes=1024, min_cleanable_dirty_ratio=0.5)
        async with opened(make_store, settings) as log:
            for number in range(9):
                await append(log, big(b"%d" % number), keys=[b"k%d" % number])
            await flush_and_finalize(log)
            assert await log.compact(1_000_000, log.end_offset)
            await append(log, big(b"x"), keys=[b"k1"])
            await append(log, big(b"x"), keys=[b"k2"])
            await flush_and_finalize(log)
            assert not await log.compact(1_000_000, log.end_offset)

    asyncio.run(body())


def test_appends_and_reads_continue_during_compaction(make_store: MakeStore) -> None:
    async def body() -> None:
        async with opened(make_store, COMPACTED) as log:
            for number in range(200):
                await append(log, b"%d" % number * 50, keys=[b"k%d" % (number % 7)])
            await flush_and_finalize(log)
            held = await log.read(0, 1_000_000, log.end_offset)
            content = held.read()

            async def produce() -> None:
                for number in range(50):
                    await append(log, b"during %d" % number, keys=[b"d%d" % number])
                    await flush_and_finalize(log)
                    await batches_of(log)

            await asyncio.gather(log.compact(1_000_000, log.end_offset), produce())
            assert held.read() == content
            during = [r.value for r in await records_of(log) if r.key and r.key.startswith(b"d")]
            assert during == [b"during %d" % number for number in range(50)]

    asyncio.run(body())


def test_a_removed_log_is_deleted_and_its_name_can_be_reused(make_store: MakeStore) -> None:
    async def body() -> None:
        store = make_store()
        await store.start()
        log = await store.open(NAME, TOPIC_ID, ONE_BATCH_SEGMENTS)
        for letter in (b"a", b"b", b"c"):
            await append(log, big(letter))
        await log.advance_start_offset(2)
        await store.remove(NAME)
        assert NAME not in [name for name, _ in store.list_logs()]
        await store.remove(NAME)
        log = await store.open(NAME, TOPIC_ID, TopicSettings())
        assert (log.start_offset, log.end_offset) == (0, 0)
        await store.close()

    asyncio.run(body())


def test_a_log_of_another_topic_id_is_replaced(make_store: MakeStore) -> None:
    async def body() -> None:
        store = make_store()
        await store.start()
        old = await store.open(NAME, TOPIC_ID, TopicSettings())
        await append(old, b"of the deleted topic")
        await old.flush()
        new = await store.open(NAME, OTHER_TOPIC_ID, TopicSettings())
        assert (new.start_offset, new.end_offset, new.topic_id) == (0, 0, OTHER_TOPIC_ID)
        assert list(store.list_logs()) == [(NAME, OTHER_TOPIC_ID)]
        await store.close()

    asyncio.run(body())


def test_logs_of_one_store_are_independent(make_store: MakeStore) -> None:
    async def body() -> None:
        store = make_store()
        await store.start()
        names = [LogName("orders", 0), LogName("orders", 1), LogName("orders-1", 0), LogName("a.b_c-d", 12)]
        logs = [await store.open(name, TOPIC_ID, TopicSettings()) for name in names]
        for name, log in zip(names, logs, strict=True):
            await append(log, str(name).encode())
        for name, log in zip(names, logs, strict=True):
            assert await values_of(log) == [str(name).encode()]
        assert sorted(name for name, _ in store.list_logs()) == sorted(names)
        await store.close()

    asyncio.run(body())
