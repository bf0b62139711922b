"""A model test of logs with transactions: last stable offset, aborted transactions and producer state.

The file log store runs on a simulated disk that loses and tears unsynced writes, the Postgres log store on a server.
"""

import asyncio
import random
from collections.abc import Callable, Sequence

import pytest

from moldau.logs.files.store import FileLogStore
from moldau.logs.memory import MemoryLogStore
from moldau.logs.postgres.store import PostgresLogStore
from moldau.logs.store import Log, LogStore
from moldau.logs.transaction_index import AbortedTransaction
from moldau.platform.clock import SystemClock
from moldau.records.batch import Batch, split
from moldau.records.record import Record
from moldau.settings.topic import TopicSettings
from moldau.testing.simulation.platform.disk import DiskSettings, SimulatedDisk
from support.logs import NAME, TOPIC_ID, batch_at, flush_and_finalize
from support.postgres_logs import EVICTED_AT_ONCE, drop_schema, kill, new_schema, postgres_store, shared_server
from support.transactional_logs import data, marker, visible_records

QUICK = DiskSettings(sync_ms_min=0, sync_ms_max=0, slow_sync_chance=0)
SETTINGS = TopicSettings(segment_bytes=500, index_interval_bytes=150)
COMPACTED = TopicSettings(
    cleanup_policy=("compact",),
    segment_bytes=500,
    index_interval_bytes=150,
    min_cleanable_dirty_ratio=0.0,
    delete_retention_ms=10,
)
KEYS = [b"a", b"b", b"c", b"d", b"e"]
STEPS = 60


class Model:
    """All batches of the log, and what a consumer of committed records may see of them."""

    def __init__(
        self,
        rng: random.Random,
        settings: TopicSettings,
        *,
        disk: SimulatedDisk | None = None,
        new_postgres_store: Callable[[], PostgresLogStore] | None = None,
    ) -> None:
        self.settings = settings
        self.new_postgres_store = new_postgres_store
        self.cleaned_below = self.now_ms = 0
        self.rng = rng
        self.disk = disk
        self.batches: list[Batch] = []
        self.start = self.high_watermark = 0
        self.store: LogStore
        self.log: Log

    # Operations

    async def open(self) -> None:
        if self.disk is not None:
            self.store = FileLogStore(self.disk, "data", SystemClock())
        elif self.new_postgres_store is not None:
            self.store = self.new_postgres_store()
        else:
            self.store = MemoryLogStore()
        await self.store.start()
        self.log = await self.store.open(NAME, TOPIC_ID, self.settings)

    async def append(self) -> None:
        rng, offset = self.rng, self.log.end_offset
        producer = rng.randrange(5)
        choice = rng.random()
        state = self.log.producers.get(producer)
        values = [b"%d" % offset] * rng.randint(1, 3)
        keys = [rng.choice(KEYS) for _ in values]
        if choice < 0.2:
            batch = batch_at(offset, values, keys=keys)
        elif choice < 0.45:
            batch = marker(offset, commit=rng.random() < 0.5, producer=producer, coordinator_epoch=rng.randrange(3))
        else:
            sequence = 0 if state is None else state.last_sequence + 1
            batch = data(offset, values, keys=keys, producer=producer, sequence=sequence)
        await self.log.append([batch])
        self.batches.append(batch)

    async def step(self) -> None:
        rng, choice = self.rng, self.rng.random()
        end = self.log.end_offset
        if choice < 0.6:
            for _ in range(rng.randint(1, 6)):
                await self.append()
        elif choice < 0.75:
            await flush_and_finalize(self.log)
            self.high_watermark = rng.randint(self.high_watermark, self.log.durable_offset)
        elif choice < 0.8:
            await self.log.truncate_to(rng.randint(self.high_watermark, end))
            self.forget_from(self.log.end_offset)
        elif choice < 0.85:
            self.start = rng.randint(self.start, self.high_watermark)
            await self.log.advance_start_offset(self.start)
        elif choice < 0.92 and self.settings is COMPACTED:
            self.now_ms += rng.choice([0, 20])
            await flush_and_finalize(self.log)
            below = self.log.last_stable_offset(self.high_watermark)
            await self.log.compact(self.now_ms, below)
            self.cleaned_below = max(self.cleaned_below, below)
        elif self.disk is not None or self.new_postgres_store is not None:
            await self.reopen(rng.choice(["close", "kill", "power failure"]))

    async def reopen(self, how: str) -> None:
        durable = self.log.durable_offset
        if how == "close":
            await self.store.close()
            durable = self.log.end_offset
            if self.disk is not None:
                self.disk = self.disk.next_boot()
        elif isinstance(self.store, PostgresLogStore):
            await kill(self.store)
        else:
            assert self.disk is not None
            self.disk = self.disk.kill() if how == "kill" else self.disk.crash()
        await self.open()
        assert self.log.end_offset >= durable
        self.forget_from(self.log.end_offset)

    def forget_from(self, end: int) -> None:
        self.batches = [batch for batch in self.batches if batch.next_offset <= end]
        # A truncation inside a batch removes the whole batch.
        self.high_watermark = min(self.high_watermark, end)

    # Expectations

    def transactions(self) -> list[tuple[int, int, int, bool]]:
        """Returns producer, first offset, marker (-1 if open) and outcome of all transactions."""
        found: list[tuple[int, int, int, bool]] = []
        started: dict[int, int] = {}
        for batch in self.batches:
            if batch.is_control:
                first = started.pop(batch.producer_id, None)
                if first is not None:
                    key = next(iter(visible_records([batch], (), with_control=True))).key
                    found.append((batch.producer_id, first, batch.base_offset, key == b"\x00\x00\x00\x01"))
            elif batch.is_transactional:
                started.setdefault(batch.producer_id, batch.base_offset)
        return found + [(producer, first, -1, False) for producer, first in started.items()]

    def last_stable_offset(self) -> int:
        unstable = [first for _, first, last, _ in self.transactions() if last < 0 or last >= self.high_watermark]
        return max(self.start, min([*unstable, self.high_watermark]))

    def visible(self, offset: int, below: int) -> list[Record]:
        aborted = [(producer, first, last) for producer, first, last, commit in self.transactions() if not commit]
        return [
            record
            for batch in self.batches
            if not batch.is_control
            and batch.next_offset <= below
            and not any(
                batch.is_transactional and batch.producer_id == producer and first <= batch.base_offset < last
                for producer, first, last in aborted
            )
            for record in visible_records([batch], ())
            if record.offset >= offset
        ]

    async def check(self) -> None:
        rng, log = self.rng, self.log
        last_stable_offset = log.last_stable_offset(self.high_watermark)
        assert last_stable_offset == self.last_stable_offset()
        opened = {producer: first for producer, first, last, _ in self.transactions() if last < 0}
        known = {state.producer_id: state.transaction_first_offset for state in log.producers}
        assert {producer: first for producer, first in known.items() if first is not None} == opened
        for _ in range(3):
            offset = rng.randint(self.start, max(self.start, last_stable_offset))
            bytes_max = rng.choice([1, 200, 1_000, 100_000])
            read: list[Record] = []
            position = offset
            while position < last_stable_offset:
                slices, aborted = await log.read_committed(position, bytes_max, last_stable_offset)
                batches = list(split(slices.read()))
                if not batches:
                    whole = [each for each in self.batches if position < each.next_offset <= last_stable_offset]
                    assert not whole or self.cleaned_below
                    break
                if not self.cleaned_below:
                    self.check_needed(batches, aborted)
                read += [record for record in visible_records(batches, aborted) if record.offset >= offset]
                position = batches[-1].next_offset
            expected = self.visible(offset, last_stable_offset)
            cleaned = [record for record in self.visible(0, last_stable_offset) if record.offset < self.cleaned_below]
            newest = {record.key: record.offset for record in cleaned}
            offsets = {record.offset for record in read}
            assert read == [record for record in expected if record.offset in offsets]
            missing = [record for record in expected if record.offset not in offsets]
            assert all(record.offset < newest.get(record.key, 0) for record in missing), "it has a later value"

    @staticmethod
    def check_needed(batches: list[Batch], aborted: Sequence[AbortedTransaction]) -> None:
        """No transaction is listed that begins after the records. In a compacted log some are: the end of a read is the
        start of the next batch that is left."""
        assert all(each.first_offset < batches[-1].next_offset for each in aborted)


@pytest.mark.parametrize("store", ["memory", "files"])
@pytest.mark.parametrize("settings", [SETTINGS, COMPACTED], ids=["deleted", "compacted"])
@pytest.mark.parametrize("seed", range(40))
def test_committed_records_are_exactly_those_of_the_model(store: str, settings: TopicSettings, seed: int) -> None:
    disk = SimulatedDisk(random.Random(seed), settings=QUICK) if store == "files" else None
    asyncio.run(run_model(Model(random.Random(f"{store} {seed}"), settings, disk=disk)))


@pytest.mark.parametrize("settings", [SETTINGS, COMPACTED], ids=["deleted", "compacted"])
@pytest.mark.parametrize("seed", range(4))
def test_committed_records_in_postgres_are_those_of_the_model(settings: TopicSettings, seed: int) -> None:
    server, schema = shared_server(), new_schema()
    options = EVICTED_AT_ONCE if seed % 2 else {}
    model = Model(
        random.Random(f"postgres {seed}"),
        settings,
        new_postgres_store=lambda: postgres_store(server.url, schema, **options),
    )
    asyncio.run(run_model(model))
    drop_schema(server, schema)


async def run_model(model: Model) -> None:
    await model.open()
    for _ in range(STEPS):
        await model.step()
        await model.check()
    await model.store.close()
