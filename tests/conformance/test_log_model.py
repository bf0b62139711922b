"""A model test of logs: appends, reads, truncation, retention, compaction and crashes.

The file log store runs on a simulated disk that loses and tears unsynced writes, the Postgres log store on a server.
"""

import asyncio
import errno
import random
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from moldau.errors import StorageError
from moldau.logs.files.store import FileLogStore
from moldau.logs.memory import MemoryLogStore
from moldau.logs.store import Log, LogStore
from moldau.platform.clock import SystemClock
from moldau.records.batch import Batch, split
from moldau.records.record import iterate_records
from moldau.settings.topic import TopicSettings
from moldau.testing.simulation.platform.disk import DiskSettings, SimulatedDisk
from support.logs import NAME, TOPIC_ID, batch_at, batches_of, flush_and_finalize
from support.postgres_logs import EVICTED_AT_ONCE, drop_schema, kill, new_schema, postgres_store, shared_server

SETTINGS = TopicSettings(
    cleanup_policy=("compact", "delete"),
    segment_bytes=400,
    index_interval_bytes=150,
    retention_ms=5_000,
    segment_ms=3_000,
    min_cleanable_dirty_ratio=0.0,
    delete_retention_ms=2_000,
)

QUICK = DiskSettings(sync_ms_min=0, sync_ms_max=0, slow_sync_chance=0)

keys = st.sampled_from([b"a", b"b", b"c", None])
values = st.one_of(st.none(), st.binary(max_size=8), st.just(b"x" * 300))
records = st.lists(st.tuples(keys, values), min_size=1, max_size=4)


class ModelBatch:
    def __init__(self, batch: Batch) -> None:
        self.base_offset = batch.base_offset
        self.next_offset = batch.next_offset
        self.leader_epoch = batch.leader_epoch
        self.producer_id = batch.producer_id
        self.base_sequence = batch.base_sequence
        self.records = list(iterate_records(batch))


class LogModel(RuleBasedStateMachine):
    """The model is a list of all batches and the offsets that compaction may have removed."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.batches: list[ModelBatch] = []
        self.start = 0
        self.end = 0
        self.compacted = 0
        """Truncation stays above this offset, as it stays above the high watermark in a cluster."""
        self.taken: set[int] = set()
        """Offsets that compaction may have removed."""
        self.now_ms = 10_000
        self.epoch = 0
        self.producers = [0, 1]
        self.next_sequence = [0, 0]
        self.store: LogStore
        self.log: Log

    def run(self, coroutine: Any) -> Any:
        return self.runner.run(coroutine)

    def teardown(self) -> None:
        self.runner.close()

    # Operations

    @rule(contents=st.lists(records, min_size=1, max_size=8), later_ms=st.integers(0, 800))
    def append(self, contents: list[list[tuple[bytes | None, bytes | None]]], later_ms: int) -> None:
        self.now_ms += later_ms
        self._append([self._batch(content) for content in contents])

    @rule(content=records, producer=st.integers(0, 1))
    def append_idempotent(self, content: list[tuple[bytes | None, bytes | None]], producer: int) -> None:
        sequence = self.next_sequence[producer]
        batch = self._batch(content, producer_id=self.producers[producer], producer_epoch=0, base_sequence=sequence)
        assert self.log.producers.check(batch) is None
        self._append([batch])
        self.next_sequence[producer] += len(content)

    def _batch(self, content: list[tuple[bytes | None, bytes | None]], **more: Any) -> Batch:
        return batch_at(
            0,
            [value for _, value in content],
            keys=[key for key, _ in content],
            timestamp_ms=self.now_ms,
            leader_epoch=self.epoch,
            **more,
        )

    def _append(self, batches: list[Batch]) -> None:
        offset = self.end
        for batch in batches:
            batch.base_offset = offset
            offset = batch.next_offset
        self.run(self.log.append(batches))
        self.batches += map(ModelBatch, batches)
        self.end = offset

    @rule()
    def new_leader(self) -> None:
        self.epoch += 1

    @rule()
    def flush(self) -> None:
        self.run(self.log.flush())
        assert self.log.durable_offset == self.end

    @rule(part=st.floats(0, 1))
    def truncate(self, part: float) -> None:
        low = max(self.start, self.compacted)
        offset = low + int(part * (self.end - low))
        self.run(self.log.truncate_to(offset))
        if offset < self.end:
            self._truncate_model(offset)
            self._end_before_removed_batches()
            assert self.log.durable_offset == self.end

    @rule(part=st.floats(0, 1))
    def truncate_after_an_unclean_election(self, part: float) -> None:
        offset = self.start + int(part * (self.end - self.start))
        self.run(self.log.truncate_to(offset))
        if offset < self.end:
            self._truncate_model(offset)
            self._end_before_removed_batches()
            self.compacted = min(self.compacted, self.end)
            # Compaction may have removed the batches that were the last of these producers.
            self.producers = [max(self.producers) + 1, max(self.producers) + 2]
            self.next_sequence = [0, 0]

    def _end_before_removed_batches(self) -> None:
        """Applies that a truncated log ends after its last batch, which compaction may have left before the offset."""
        if self.taken:
            assert self.start <= self.log.end_offset <= self.end
            self.end = self.log.end_offset
            self.batches = [batch for batch in self.batches if batch.next_offset <= self.end]
            self.taken = {offset for offset in self.taken if offset < self.end}

    def _truncate_model(self, offset: int) -> None:
        for batch in self.batches:
            if batch.base_offset < offset < batch.next_offset:
                offset = batch.base_offset
        # Only the start offset can be inside a truncated batch.
        self.end = max(offset, self.start)
        self.batches = [batch for batch in self.batches if batch.next_offset <= offset]
        self.next_sequence = [
            max((b.base_sequence + len(b.records) for b in self.batches if b.producer_id == producer), default=0)
            for producer in self.producers
        ]

    @precondition(lambda self: len(self.batches) > 20)
    @rule(offset=st.integers(0, 150))
    def reset_log(self, offset: int) -> None:
        self.run(self.log.truncate_fully_and_start_at(offset))
        self.batches = []
        self.taken = set()
        self.start = self.end = self.compacted = offset
        self.next_sequence = [0, 0]
        assert self.log.durable_offset == offset
        assert len(self.log.epochs) == 0

    @rule(part=st.floats(0, 0.5))
    def advance_start_offset(self, part: float) -> None:
        self.start += int(part * (self.end - self.start))
        self.run(self.log.advance_start_offset(self.start))

    @rule(later_ms=st.integers(0, 4_000))
    def apply_retention(self, later_ms: int) -> None:
        self.now_ms += later_ms
        self.run(self.log.flush())
        self.run(self.log.apply_retention(self.now_ms, self.end))
        start = self.log.start_offset
        assert self.start <= start <= self.end
        dropped = [batch for batch in self.batches if self.start < batch.next_offset <= start]
        timestamps = [each.timestamp for batch in dropped for each in batch.records if each.offset not in self.taken]
        assert all(self.now_ms - timestamp > 5_000 for timestamp in timestamps)
        self.start = start

    @rule(contents=st.lists(records, min_size=2, max_size=8), later_ms=st.integers(0, 3_000))
    def append_and_compact(self, contents: list[list[tuple[bytes | None, bytes | None]]], later_ms: int) -> None:
        self.now_ms += later_ms
        for content in contents:
            self._append([self._batch(content)])
        self.run(flush_and_finalize(self.log))
        if self.run(self.log.compact(self.now_ms, self.end)):
            self._only_needed_batches_are_empty()
        self.compacted = self.end
        newest: dict[bytes | None, int] = {}
        for batch in self.batches:
            for record in batch.records:
                newest[record.key] = record.offset
        for batch in self.batches:
            for record in batch.records:
                if newest[record.key] != record.offset or None in (record.key, record.value):
                    self.taken.add(record.offset)

    def _only_needed_batches_are_empty(self) -> None:
        last_offsets = {state.last_offset for state in self.log.producers}
        empty = [each for each in self.run(batches_of(self.log)) if not each.count]
        assert len([each for each in empty if each.last_offset not in last_offsets]) <= 1, "the last one of the round"

    # Invariants

    @invariant()
    def offsets_are_right(self) -> None:
        assert (self.log.start_offset, self.log.end_offset) == (self.start, self.end)
        assert self.log.durable_offset <= self.end

    @invariant()
    def records_are_right(self) -> None:
        found = self.run(batches_of(self.log))
        actual = [record for batch in found for record in iterate_records(batch) if record.offset >= self.start]
        expected = {
            record.offset: record for batch in self.batches for record in batch.records if record.offset >= self.start
        }
        offsets = [record.offset for record in actual]
        assert offsets == sorted(offsets)
        for record in actual:
            assert expected[record.offset].key == record.key
            assert expected[record.offset].value == record.value
            assert expected[record.offset].timestamp == record.timestamp
        assert set(expected) - set(offsets) <= self.taken

    @invariant()
    def the_last_five_batches_of_producers_are_known(self) -> None:
        for producer in self.producers:
            written = [batch for batch in self.batches if batch.producer_id == producer]
            last_uncompacted = [batch for batch in written[-5:] if batch.base_offset >= self.compacted]
            for batch in {id(batch): batch for batch in written[-1:] + last_uncompacted}.values():
                again = batch_at(
                    0,
                    [b""] * len(batch.records),
                    producer_id=producer,
                    producer_epoch=0,
                    base_sequence=batch.base_sequence,
                )
                repeated = self.log.producers.check(again)
                assert repeated is not None
                assert repeated.base_offset == batch.base_offset

    @invariant()
    def epochs_are_right(self) -> None:
        epochs = {batch.base_offset: batch.leader_epoch for batch in self.batches}
        for batch in self.run(batches_of(self.log)):
            assert batch.leader_epoch == epochs[batch.base_offset]
            assert self.log.epochs.epoch_for_offset(batch.last_offset) == batch.leader_epoch

    @rule(offset=st.integers(0, 200), bytes_max=st.integers(0, 3_000), bound=st.integers(0, 200))
    def read_any_range(self, offset: int, bytes_max: int, bound: int) -> None:
        offset, below = max(offset, self.start), min(bound, self.end)
        slices = self.run(self.log.read(offset, bytes_max, below, min_one_batch=False))
        data = slices.read()
        assert len(data) == slices.size <= bytes_max
        visible = self.run(batches_of(self.log, offset, below)) if offset < below else []
        assert b"".join(batch.to_bytes() for batch in visible).startswith(data)

    @rule(part=st.floats(0, 1), bytes_max=st.sampled_from([0, 61, 62, 200, 3_000]))
    def read_as_a_consumer(self, part: float, bytes_max: int) -> None:
        self._check_that_a_consumer_advances(self.log, self.start + int(part * (self.end - self.start)), bytes_max)

    @invariant()
    def a_consumer_reaches_the_end(self) -> None:
        self._check_that_a_consumer_advances(self.log, self.start, bytes_max=1)

    def _check_that_a_consumer_advances(self, log: Log, offset: int, bytes_max: int) -> None:
        """Every read takes a consumer forward, and each but the last one has a record for it."""
        batches = self.run(batches_of(log, offset)) if offset < self.end else []
        expected = [record for batch in batches for record in iterate_records(batch) if record.offset >= offset]
        records = []
        while offset < self.end:
            slices = self.run(log.read(offset, bytes_max, self.end, skip_empty=True))
            batches = list(split(slices.read(), allow_partial=True))
            assert batches, f"there is nothing to read from offset {offset} to {self.end}"
            assert batches[-1].next_offset > offset, "the reader does not advance"
            wanted = [r for batch in batches for r in iterate_records(batch) if r.offset >= offset]
            assert wanted or batches[-1].next_offset == self.end
            assert all(first.count or second.count for first, second in pairwise(batches))
            records += wanted
            offset = batches[-1].next_offset
        assert records == expected
        assert offset == self.end

    @rule(part=st.floats(0, 1), bytes_max=st.sampled_from([0, 61, 500, 3_000]))
    def replicate(self, part: float, bytes_max: int) -> None:
        """A follower gets the same batches, the empty ones too, and the same end offset."""
        offset = self.start + int(part * (self.end - self.start))
        expected = self.run(batches_of(self.log, offset)) if offset < self.end else []
        follower: Log = self.run(self._new_store().open(NAME, TOPIC_ID, SETTINGS))
        self.run(follower.truncate_fully_and_start_at(offset))
        while follower.end_offset < self.end:
            slices = self.run(self.log.read(follower.end_offset, bytes_max, self.end))
            self.run(follower.append(list(split(slices.read(), allow_partial=True))))
        assert follower.end_offset == self.log.end_offset
        replicated = self.run(batches_of(follower, offset))
        assert [batch.to_bytes() for batch in replicated] == [batch.to_bytes() for batch in expected]
        self._check_that_a_consumer_advances(follower, offset, bytes_max)

    def _new_store(self) -> LogStore:
        raise NotImplementedError

    @rule(timestamp_ms=st.integers(9_000, 30_000), bound=st.integers(0, 200))
    def find_by_time(self, timestamp_ms: int, bound: int) -> None:
        below = min(bound, self.end)
        found = self.run(self.log.offset_for_timestamp(timestamp_ms, below))
        visible = self.run(batches_of(self.log, self.start, below)) if self.start < below else []
        times = [(r.timestamp, r.offset) for b in visible for r in iterate_records(b) if r.offset >= self.start]
        later = [(timestamp, offset) for timestamp, offset in times if timestamp >= timestamp_ms]
        assert (found and (found.timestamp_ms, found.offset)) == (later[0] if later else None)
        newest = self.run(self.log.max_timestamp(below))
        expected = max(times, key=lambda entry: (entry[0], -entry[1]), default=None)
        assert (newest and (newest.timestamp_ms, newest.offset)) == expected


class MemoryModel(LogModel):
    @initialize()
    def begin(self) -> None:
        self.store = self._new_store()
        self.log = self.run(self.store.open(NAME, TOPIC_ID, SETTINGS))

    def _new_store(self) -> LogStore:
        return MemoryLogStore()


class FilesModel(LogModel):
    @initialize(seed=st.integers(0, 2**32))
    def begin(self, seed: int) -> None:
        self.disk = SimulatedDisk(random.Random(seed), settings=QUICK)
        self._open()

    def _new_store(self) -> LogStore:
        return FileLogStore(SimulatedDisk(random.Random(0), settings=QUICK), "data", SystemClock())

    def _open(self) -> None:
        async def reopen() -> None:
            self.store = FileLogStore(self.disk, "data", SystemClock())
            await self.store.start()
            self.log = await self.store.open(NAME, TOPIC_ID, SETTINGS)

        self.run(reopen())

    @rule()
    def restart(self) -> None:
        self.run(self.store.close())
        self._open()
        assert self.store.had_clean_shutdown
        assert self.log.durable_offset == self.end

    @rule()
    def kill(self) -> None:
        self.disk = self.disk.kill()
        self._open()
        assert self.log.durable_offset == self.end

    @rule()
    def crash(self) -> None:
        durable = self.log.durable_offset
        self.disk = self.disk.crash()
        self._open()
        assert durable <= self.log.end_offset <= self.end
        assert self.log.durable_offset == self.log.end_offset
        self._truncate_model(self.log.end_offset)

    @rule(content=records)
    def append_to_a_full_disk(self, content: list[tuple[bytes | None, bytes | None]]) -> None:
        self.disk.inject("append", "*.log*", error=errno.ENOSPC)
        batch = self._batch(content)
        batch.base_offset = self.end
        with pytest.raises(StorageError):
            self.run(self.log.append([batch]))

    @rule()
    def lose_the_recovery_point(self) -> None:
        self.disk = self.disk.kill()
        self.disk.remove("data/recovery-point-offset-checkpoint")
        self._open()
        assert self.log.durable_offset == self.end

    @precondition(lambda self: self.end > 0)
    @rule()
    def lose_index_files(self) -> None:
        self.run(self.store.close())
        for path, _ in list(self.disk.volume.files()):
            if path.endswith(("index", "leader-epoch-checkpoint")):
                self.disk.remove(path)
        self._open()


class PostgresModel(LogModel):
    @initialize(options=st.sampled_from([{}, EVICTED_AT_ONCE, {"recent_bytes_max": 3_000}]))
    def begin(self, options: dict[str, int]) -> None:
        self.server, self.schema, self.options = shared_server(), new_schema(), options
        self._open()

    def _new_store(self) -> LogStore:
        return MemoryLogStore()

    def _open(self) -> None:
        async def reopen() -> None:
            self.opened = self.store = postgres_store(self.server.url, self.schema, **self.options)
            await self.store.start()
            self.log = await self.store.open(NAME, TOPIC_ID, SETTINGS)

        self.run(reopen())

    @rule()
    def restart(self) -> None:
        self.run(self.store.close())
        self._open()
        assert self.store.had_clean_shutdown
        assert self.log.durable_offset == self.end

    @rule()
    def kill(self) -> None:
        durable = self.log.durable_offset
        self.run(kill(self.opened))
        self._open()
        assert self.log.durable_offset == self.log.end_offset == durable
        self._truncate_model(durable)

    def teardown(self) -> None:
        if hasattr(self, "opened"):
            self.run(kill(self.opened))
            drop_schema(self.server, self.schema)
        super().teardown()


MEMORY_EXAMPLES = hypothesis_settings(max_examples=30, stateful_step_count=30, deadline=None)
POSTGRES_EXAMPLES = hypothesis_settings(max_examples=8, stateful_step_count=30, deadline=None)
FILES_EXAMPLES = hypothesis_settings(max_examples=60, stateful_step_count=40, deadline=None)


class TestMemory(MemoryModel.TestCase):
    settings = MEMORY_EXAMPLES


class TestFiles(FilesModel.TestCase):
    settings = FILES_EXAMPLES


class TestPostgres(PostgresModel.TestCase):
    settings = POSTGRES_EXAMPLES
