"""A log in a Postgres database. Batches are rows; the newest ones are in memory, too."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from psycopg import errors as postgres_errors

from moldau.concurrency.tasks import run_uncancelled
from moldau.errors import CorruptRecordError, OffsetOutOfRangeError, RecordTooLargeError, StorageError
from moldau.logs.compaction import has_record_from
from moldau.logs.leader_epochs import LeaderEpochCache
from moldau.logs.postgres import statements
from moldau.logs.postgres.cleaner import Cleaner
from moldau.logs.postgres.database import Cursor
from moldau.logs.postgres.recent import RecentBatch, RecentBatches
from moldau.logs.producer_state import ProducerStateManager
from moldau.logs.store import (
    BATCHES_SKIPPED_MAX,
    EMPTY_SLICES,
    BatchTime,
    Log,
    LogName,
    RecordSlices,
    TimestampAndOffset,
)
from moldau.logs.timestamp_lookup import first_record_at_or_after, max_timestamp_record
from moldau.logs.transaction_index import AbortedTransaction, TransactionIndex
from moldau.observe.logging import get_logger
from moldau.records.batch import HEADER_SIZE, TIMESTAMP_TYPE_MASK, Batch, is_data
from moldau.records.batch_header import BatchHeader
from moldau.settings.topic import TopicSettings

if TYPE_CHECKING:
    from moldau.logs.postgres.store import PostgresLogStore

log = get_logger(__name__)

BATCH_BYTES_MAX = 2**30 - 2**20
"""Postgres limits a value and its message to 1 GiB."""
SNAPSHOT_BYTES, SNAPSHOT_BATCHES = 32 * 1024 * 1024, 10_000
"""A snapshot of the producers is written after this many bytes or batches. Recovery reads the headers after it."""
SNAPSHOTS_RETAINED = 4
PAGE_ROWS, PAGE_BYTES = 256, 1024 * 1024
"""How many batches are read at once."""
HEADER_ROWS = 2_000
"""How many headers are read at once during recovery."""
OFFSET_LIMIT = 2**63


class Appends(NamedTuple):
    """What a transaction writes for one log."""

    log: PostgresLog
    batches: Sequence[RecentBatch]
    previous_end: int
    end_offset: int
    aborted: Sequence[AbortedTransaction]
    leader_epochs: str | None
    """The new leader epochs; None if they have not changed."""
    snapshot: bytes | None
    """The state of the producers at end_offset, if a snapshot is due."""


class LogRow(NamedTuple):
    id: int
    topic: str
    partition: int
    topic_id: UUID
    start_offset: int
    end_offset: int
    cleaned_offset: int
    high_watermark: int
    leader_epochs: str


class PostgresLog(Log):
    def __init__(self, store: PostgresLogStore, row: LogRow, settings: TopicSettings) -> None:
        self.name = LogName(row.topic, row.partition)
        self.topic_id = row.topic_id
        self.settings = settings
        self.id = row.id
        self.start_offset = row.start_offset
        self.end_offset = self.durable_offset = row.end_offset
        self.checkpointed_high_watermark = self.stored_high_watermark = row.high_watermark
        self.cleaned_offset = row.cleaned_offset
        """The offset below which all records are compacted."""
        self.producers = ProducerStateManager()
        self.epochs = LeaderEpochCache.from_text(row.leader_epochs) if row.leader_epochs else LeaderEpochCache()
        self.aborted = TransactionIndex()
        self.changes = 0
        """How often rows were removed or replaced. A reader repeats its query if this number has changed meanwhile."""
        self.is_rewriting = False
        """Whether compaction may have replaced rows already, and their aborted transactions are still in memory."""
        self._store = store
        self._database = store.database
        self._recent = RecentBatches(row.end_offset, store.recent)
        self._size = 0
        self._batch_bytes = 4_096
        """The mean size of the batches of the last read, which tells how many rows the next one needs."""
        self._stored_epochs = row.leader_epochs
        self._new_aborted: list[AbortedTransaction] = []
        """Aborted transactions whose markers are not committed yet."""
        self._snapshot_due_bytes, self._snapshot_due_batches = SNAPSHOT_BYTES, SNAPSHOT_BATCHES
        self._failure: str | None = None

    async def load(self) -> None:
        """Loads size, aborted transactions and producers. Raises StorageError if the rows contradict each other."""
        [(size, next_offset, has_rows_before)] = await self.query(statements.SIZE_AND_END, start=self.start_offset)
        if next_offset > self.end_offset:
            raise StorageError(
                f"the log {self.name} ends at {self.end_offset}, but the table batch has a batch up to {next_offset}: "
                f"another program has changed the tables of the schema {self._database.schema}; restore a backup"
            )
        self._size = size
        for row in await self.query(statements.ABORTED):
            self.aborted.append(AbortedTransaction(*row))
        self.producers.replace(await self._producers_at(self.end_offset))
        if has_rows_before:
            # Not before the last query: if one fails, another object represents the log.
            self._store.deletion.add(self)

    @property
    def size(self) -> int:
        return self._size

    @property
    def failure(self) -> str | None:
        return self._failure or self._database.failure

    @property
    def is_closed(self) -> bool:
        return self._failure is not None

    def check(self) -> None:
        if self._failure is not None or self._database.failure is not None:
            raise StorageError(str(self.failure))

    def mark_offline(self, reason: str) -> None:
        if self._failure is None:
            self._failure = reason
            # Nothing can be committed any more, so the memory is for other logs.
            self._recent.reset(self.durable_offset)
            log.error("log is offline", log=str(self.name), reason=reason)

    def configure(self, settings: TopicSettings) -> None:
        self.settings = settings

    async def query(self, statement: str, **parameters: object) -> list[Any]:
        """Returns the rows of a query with the parameter `log`. Damaged rows take the log offline."""
        try:
            return await self._database.query(statement, {"log": self.id, **parameters})
        except StorageError as error:
            if isinstance(error.__cause__, postgres_errors.DataCorrupted | postgres_errors.IndexCorrupted):
                self.mark_offline(f"reading {self.name} failed: {error}")
            raise

    def parameters(self, **more: object) -> Mapping[str, object]:
        return {"log": self.id, **more}

    # Appending

    async def append(self, batches: Sequence[Batch]) -> None:
        self.check()
        if not batches:
            return
        for batch in batches:
            if batch.size > BATCH_BYTES_MAX:
                raise RecordTooLargeError(
                    f"a batch of {batch.size} bytes does not fit into a value of Postgres, which has at most 1 GiB: "
                    "make the batches of the producer smaller"
                )
        if not self._store.has_room:
            await self._store.wait_for_room()
            self.check()
        for batch in batches:
            self._recent.append(batch)
            self._size += batch.size
            self.end_offset = batch.next_offset
            if batch.producer_id >= 0:
                aborted = self.producers.update(batch)
                if aborted is not None:
                    self.aborted.append(aborted)
                    self._new_aborted.append(aborted)
            if batch.leader_epoch != self.epochs.latest:
                self.epochs.assign(batch.leader_epoch, batch.base_offset)
        self._store.on_appended(self)

    async def flush(self) -> None:
        self.check()
        changes, end = self.changes, self.end_offset
        while self.durable_offset < min(end, self.end_offset):
            await self._store.commit_appends()
            self.check()
            if self.changes != changes:
                # A truncation may have replaced the batches by later ones.
                changes, end = self.changes, self.end_offset

    def take_appends(self, bytes_max: int) -> Appends:
        """Returns what a transaction has to write, at least one batch and at most about bytes_max bytes. The caller
        holds the lock of the database."""
        batches = self._recent.from_offset(self.durable_offset, bytes_max)
        end = batches[-1].last_offset + 1 if batches else self.durable_offset
        is_all = end == self.end_offset
        epochs = self.epochs.to_text() if is_all else self.epochs.text_below(end)
        self._snapshot_due_bytes -= sum(len(batch.data) for batch in batches)
        self._snapshot_due_batches -= len(batches)
        is_snapshot_due = is_all and (self._snapshot_due_bytes <= 0 or self._snapshot_due_batches <= 0)
        return Appends(
            self,
            batches,
            self.durable_offset,
            end,
            [each for each in self._new_aborted if each.last_offset < end],
            epochs if epochs != self._stored_epochs else None,
            self.producers.snapshot() if is_snapshot_due else None,
        )

    def on_committed(self, appends: Appends) -> None:
        self.durable_offset = appends.end_offset
        self._recent.set_committed(appends.end_offset)
        self._new_aborted = self._new_aborted[len(appends.aborted) :]
        if appends.leader_epochs is not None:
            self._stored_epochs = appends.leader_epochs
        if appends.snapshot is not None:
            self._snapshot_due_bytes, self._snapshot_due_batches = SNAPSHOT_BYTES, SNAPSHOT_BATCHES

    # Reading

    async def read(
        self, offset: int, bytes_max: int, below: int, *, min_one_batch: bool = True, skip_empty: bool = False
    ) -> RecordSlices:
        self.check()
        parts: list[bytes] = []
        size = 0
        position = offset
        is_first_unneeded = False
        """Whether the only part has no record from the offset on, and is needed only if no batch follows."""
        while position < below:
            found, is_limited = await self._batches(
                position, bytes_max - size, below, at_least_one=not parts or is_first_unneeded
            )
            for data in found:
                if is_first_unneeded:
                    parts.clear()
                    size, is_first_unneeded = 0, False
                if size + len(data) > bytes_max and (parts or not min_one_batch):
                    return RecordSlices(parts, size) if parts else EMPTY_SLICES
                if skip_empty and parts and len(parts[-1]) == len(data) == HEADER_SIZE:
                    size -= len(parts.pop())
                    return RecordSlices(parts, size)
                parts.append(data)
                size += len(data)
                if skip_empty and len(parts) == 1:
                    is_first_unneeded = not has_record_from(Batch(data), offset)
            if not found or (is_limited and not is_first_unneeded):
                break
            position = self._next_offset(found[-1], position)
        return RecordSlices(parts, size) if parts else EMPTY_SLICES

    def _next_offset(self, data: bytes, offset: int) -> int:
        """Returns the end of a batch that should end after `offset`. Takes the log offline if it does not, because a
        reader would read it again and again."""
        end: int = BatchHeader(data, 0, 0).last_offset + 1
        if end <= offset:
            self.mark_offline(f"{self.name} has a damaged batch: its row is after {offset}, and it ends at {end}")
            self.check()
        return end

    async def _batches(
        self, offset: int, bytes_max: int, below: int, *, at_least_one: bool
    ) -> tuple[Sequence[bytes], bool]:
        """Returns the next batches that end at or after `offset` and before `below` and have at most bytes_max bytes
        together, and whether this limit was the reason that there are not more."""
        page_rows = max(1, min(PAGE_ROWS, bytes_max // self._batch_bytes + 2))
        # Batches that are committed and evicted during a query are neither in its rows nor in memory any more. Then
        # there are later rows.
        while offset < (recent_start := self._recent.start):
            while True:
                changes = self.changes
                rows = await self.query(
                    statements.READ,
                    offset=offset,
                    below=below,
                    bytes=bytes_max,
                    rows=page_rows,
                    at_least_one=at_least_one,
                )
                if changes == self.changes:
                    break
            if rows:
                found = [data for (data,) in rows]
                self._batch_bytes = sum(map(len, found)) // len(found)
                is_page_end = len(found) == page_rows or self._next_offset(found[-1], offset) >= recent_start
                return found, not is_page_end
            if not at_least_one:
                return (), True
            if recent_start == self._recent.start:
                # There are no rows up to the batches in memory, for example after a gap in the offsets.
                break
        found = []
        size = 0
        for batch in self._recent.overlapping(offset, below):
            if size + len(batch.data) > bytes_max and (found or not at_least_one):
                return found, True
            found.append(batch.data)
            size += len(batch.data)
        return found, False

    async def read_committed(
        self, offset: int, bytes_max: int, below: int, *, min_one_batch: bool = True
    ) -> tuple[RecordSlices, Sequence[AbortedTransaction]]:
        while True:
            changes = self.changes
            records = await self.read(offset, bytes_max, below, min_one_batch=min_one_batch, skip_empty=True)
            if changes == self.changes and not self.is_rewriting:
                break
            # Compaction removes records together with their aborted transactions, so both must be of the same time.
            if self.is_rewriting:
                await self._database.wait_for_transaction()
        found: list[AbortedTransaction] = []
        if records.size and self.aborted:
            last = records.parts[-1]
            assert isinstance(last, bytes)
            self.aborted.find(offset, Batch(last).next_offset, found)
        return records, found

    async def offset_for_timestamp(self, timestamp_ms: int, below: int) -> TimestampAndOffset | None:
        offset, recent_start = self.start_offset, self._recent.start
        # Taken now, because batches that are evicted during a query may not be in its rows.
        recents = self._recent.overlapping(max(offset, recent_start), below)
        while offset < min(below, recent_start):
            rows = await self.query(
                statements.FIRST_SINCE_TIMESTAMP, offset=offset, below=below, timestamp=timestamp_ms
            )
            if not rows:
                break
            batch = Batch(rows[0][0])
            found = first_record_at_or_after(batch, timestamp_ms, self.start_offset)
            if found is not None:
                return found
            offset = self._next_offset(rows[0][0], offset)
        for recent in recents:
            if recent.max_timestamp >= timestamp_ms:
                found = first_record_at_or_after(Batch(recent.data), timestamp_ms, self.start_offset)
                if found is not None:
                    return found
        return None

    async def max_timestamp(self, below: int) -> TimestampAndOffset | None:
        latest: TimestampAndOffset | None = None
        # Taken now, because batches that are evicted during a query may not be in its rows.
        recents = self._recent.overlapping(max(self.start_offset, self._recent.start), below)
        # Usually the first row has the record. Compaction may have removed it, or it is before the start offset.
        rows = await self.query(statements.MAX_TIMESTAMP, offset=self.start_offset, below=below)
        while rows:
            data, row_timestamp = rows[0]
            found = max_timestamp_record(Batch(data), self.start_offset)
            if found is not None and (latest is None or _is_better(found, latest)):
                latest = found
            if latest is not None and latest.timestamp_ms >= row_timestamp:
                break
            rows = await self.query(
                statements.NEXT_MAX_TIMESTAMP,
                offset=self.start_offset,
                below=below,
                timestamp=row_timestamp,
                base_offset=Batch(data).base_offset,
            )
        for recent in recents:
            if latest is None or recent.max_timestamp > latest.timestamp_ms:
                found = max_timestamp_record(Batch(recent.data), self.start_offset)
                if found is not None and (latest is None or _is_better(found, latest)):
                    latest = found
        return latest

    async def find_batch_time(self, offset: int, below: int) -> BatchTime | None:
        skipped = 0
        position, recent_start = offset, self._recent.start
        # Taken now, because batches that are evicted during a query may not be in its rows.
        recents = self._recent.overlapping(max(position, recent_start), OFFSET_LIMIT)
        while position < recent_start:
            rows = await self.query(statements.HEADERS, offset=position, below=recent_start, rows=PAGE_ROWS)
            for (data,) in rows:
                header = BatchHeader(data, 0, 0)
                if header.base_offset >= below:
                    return None
                skipped += 1
                if skipped > BATCHES_SKIPPED_MAX or is_data(header.attributes, header.count):
                    is_append_time = bool(header.attributes & TIMESTAMP_TYPE_MASK)
                    return BatchTime(max(offset, header.base_offset), header.max_timestamp, is_append_time)
                position = self._next_offset(data, position)
            if not rows:
                break
        for recent in recents:
            batch = Batch(recent.data)
            if batch.base_offset >= below:
                return None
            skipped += 1
            if skipped > BATCHES_SKIPPED_MAX or is_data(batch.attributes, batch.count):
                return BatchTime(max(offset, batch.base_offset), batch.max_timestamp, batch.is_log_append_time)
        return None

    async def pages(self, offset: int, below: int) -> AsyncIterator[Sequence[Batch]]:
        """Yields all committed batches that end at or after `offset` and before `below`, some at a time."""
        while offset < below:
            rows = await self.query(
                statements.READ, offset=offset, below=below, bytes=PAGE_BYTES, rows=PAGE_ROWS, at_least_one=True
            )
            if not rows:
                return
            batches = [Batch(data) for (data,) in rows]
            offset = self._next_offset(rows[-1][0], offset)
            yield batches

    # Truncation

    async def truncate_to(self, offset: int) -> None:
        self.check()
        if offset < self.end_offset:
            # However long it takes: it must not remove batches that are appended after it has failed.
            await run_uncancelled(self._truncate(offset))
            await self.flush()

    async def truncate_fully_and_start_at(self, offset: int) -> None:
        self.check()
        await run_uncancelled(self._reset(offset))

    async def _truncate(self, offset: int) -> None:
        async with self._database.exclusive():
            if offset < self.start_offset:
                start = end = offset
            else:
                start = self.start_offset
                end = max(start, await self._end_below(offset))
            durable = min(self.durable_offset, end)
            epochs = self.epochs.text_below(durable)
            producers = await self._producers_at(end)
            size = 0

            async def work(cursor: Cursor) -> None:
                nonlocal size
                await cursor.execute(statements.DELETE_BATCHES_FROM, self.parameters(offset=offset))
                await cursor.execute(statements.DELETE_ABORTED_FROM, self.parameters(offset=end))
                await cursor.execute(statements.DELETE_SNAPSHOTS_AFTER, self.parameters(offset=end))
                await cursor.execute(statements.SET_OFFSETS, self.parameters(start=start, end=durable, epochs=epochs))
                # In the transaction, because nothing may fail after its commit.
                await cursor.execute(statements.SIZE_AND_END, self.parameters(start=start))
                [(size, *_)] = await cursor.fetchall()

            await self._database.execute_exclusively(work)
            self.changes += 1
            self._recent.truncate(offset, end)
            self.start_offset, self.end_offset, self.durable_offset = start, end, durable
            self.cleaned_offset = min(self.cleaned_offset, end)
            self.checkpointed_high_watermark = min(self.checkpointed_high_watermark, end)
            self.stored_high_watermark = min(self.stored_high_watermark, durable)
            self.epochs.truncate_from_end(end)
            self._stored_epochs = epochs
            self.aborted.truncate_from_end(end)
            self._new_aborted = [each for each in self._new_aborted if each.last_offset < end]
            self.producers.replace(producers)
            self._size = size + sum(len(each.data) for each in self._recent.overlapping(durable, OFFSET_LIMIT))

    async def _end_below(self, offset: int) -> int:
        """Returns the end of the last batch that ends at or before `offset`; 0 if there is none."""
        end = self._recent.end_below(offset)
        if end is None:
            [(end,)] = await self.query(statements.END_BELOW, offset=offset)
        return int(end)

    async def _reset(self, offset: int) -> None:
        async with self._database.exclusive():
            # The rows remain with the old id until they are deleted, because there may be many.
            old_id = new_id = self.id

            async def work(cursor: Cursor) -> None:
                nonlocal new_id
                await cursor.execute(statements.DELETE_LOG, self.parameters())
                await cursor.execute(statements.CREATE_LOG_AT, self.parameters(offset=offset))
                [(new_id,)] = await cursor.fetchall()

            await self._database.execute_exclusively(work)
            self.id = new_id
            self._store.deletion.add(old_id)
            self.changes += 1
            self._recent.reset(offset)
            self.start_offset = self.end_offset = self.durable_offset = self.cleaned_offset = offset
            self.checkpointed_high_watermark = self.stored_high_watermark = offset
            self.epochs.clear()
            self._stored_epochs = ""
            self.aborted = TransactionIndex()
            self._new_aborted = []
            self.producers.rebuild(None, ())
            self._size = 0

    async def _producers_at(self, end: int) -> ProducerStateManager:
        """Returns the state of the producers at `end`, from the last snapshot before it and the headers after that."""
        producers = ProducerStateManager()
        position = 0
        for snapshot_offset, data in await self.query(statements.SNAPSHOTS, offset=end):
            try:
                producers.rebuild(data, ())
            except CorruptRecordError as error:
                log.warning("ignoring a producer snapshot", log=str(self.name), reason=str(error))
                producers.rebuild(None, ())
                continue
            position = snapshot_offset
            break
        committed_end = min(end, self.durable_offset)
        while position < committed_end:
            rows = await self.query(statements.HEADERS, offset=position, below=committed_end, rows=HEADER_ROWS)
            if not rows:
                break
            for (data,) in rows:
                header = BatchHeader(data, 0, 0)
                position = self._next_offset(data, position)
                if header.producer_id >= 0:
                    producers.update(Batch(data) if len(data) == header.size else header)
            producers.unstable.forget_committed(self.checkpointed_high_watermark)
        for recent in self._recent.overlapping(max(position, self.durable_offset), end):
            batch = Batch(recent.data)
            if batch.producer_id >= 0:
                producers.update(batch)
        producers.unstable.forget_committed(self.checkpointed_high_watermark)
        return producers

    # The start offset and retention

    async def advance_start_offset(self, offset: int) -> None:
        self.check()
        if offset > self.end_offset:
            raise OffsetOutOfRangeError(f"{self.name} ends at {self.end_offset}, before {offset}")
        if offset <= self.start_offset:
            return
        if offset > self.durable_offset:
            # Flush before advancing, because after a crash the log must not end before its start offset.
            await self.flush()
        await self._database.run_to_end(self._advance_start(offset))

    async def _advance_start(self, offset: int) -> None:
        # No commit waits for this sum over many rows, unless they change meanwhile.
        start, changes, removed = self.start_offset, self.changes, await self._size_until(offset)
        async with self._database.exclusive():
            # The log may have been deleted or replaced during the sum.
            self.check()
            if offset <= self.start_offset or offset > self.durable_offset:
                # Another call or a truncation was earlier.
                return
            if (self.start_offset, self.changes) != (start, changes):
                removed = await self._size_until(offset)
            # The batches with the last sequences of idle producers are deleted, so the snapshot replaces them. It is
            # taken at the end of a batch, because a truncation may remove the batch that contains the start offset.
            boundary = min(offset, max(self.start_offset, await self._end_below(offset)))
            snapshot = (await self._producers_at(boundary)).snapshot()
            epochs = LeaderEpochCache.from_text(self._stored_epochs) if self._stored_epochs else LeaderEpochCache()
            epochs.truncate_from_start(offset)
            text = epochs.to_text()

            async def work(cursor: Cursor) -> None:
                await cursor.execute(statements.PUT_SNAPSHOT, self.parameters(offset=boundary, data=snapshot))
                await cursor.execute(statements.DELETE_SNAPSHOTS_BEFORE, self.parameters(offset=boundary))
                await cursor.execute(statements.DELETE_ABORTED_BEFORE, self.parameters(offset=offset))
                await cursor.execute(statements.SET_START, self.parameters(offset=offset, epochs=text))

            await self._database.execute_exclusively(work)
            self.start_offset = offset
            self._stored_epochs = text
            self.epochs.truncate_from_start(offset)
            self.aborted.truncate_from_start(offset)
            self._recent.evict_before(offset)
            self._size -= removed
            self.changes += 1
            self._store.deletion.add(self)

    async def _size_until(self, offset: int) -> int:
        """Returns the size of the batches from the start offset to `offset`."""
        [(size,)] = await self.query(statements.SIZE_BETWEEN, offset=self.start_offset, below=offset)
        return int(size)

    async def apply_retention(self, now_ms: int, below: int) -> None:
        self.check()
        self.producers.expire(now_ms, self._store.producer_expiration_ms)
        await self.flush()
        settings = self.settings
        if "delete" in settings.cleanup_policy:
            limit = min(below, self.durable_offset)
            offset = self.start_offset
            if settings.retention_ms >= 0:
                timestamp = now_ms - settings.retention_ms
                [(expired,)] = await self.query(statements.EXPIRED_END, offset=offset, below=limit, timestamp=timestamp)
                offset = max(offset, expired)
            if settings.retention_bytes >= 0:
                offset = max(offset, await self._end_of_excess(self._size - settings.retention_bytes, limit))
            if offset > self.start_offset:
                await self.advance_start_offset(offset)

    async def _end_of_excess(self, excess: int, below: int) -> int:
        """Returns the end of the first batches of the log that have at most `excess` bytes together."""
        position = self.start_offset
        while excess > 0:
            rows = await self.query(statements.SIZES, offset=position, below=below, rows=PAGE_ROWS)
            for last_offset, size in rows:
                if size > excess:
                    return position
                excess -= size
                position = last_offset + 1
            if not rows:
                break
        return position

    # Compaction

    async def compact(self, now_ms: int, below: int) -> bool:
        self.check()
        if "compact" not in self.settings.cleanup_policy:
            return False
        changes = self.changes
        try:
            return await Cleaner(self, self._database, now_ms).run(below)
        except CorruptRecordError as error:
            if self.changes != changes:
                # A truncation during the compaction caused the error, so the log is not damaged.
                return False
            raise StorageError(f"{self.name} has a damaged batch: {error}; restore a backup") from error

    def on_cleaned(self, removed_bytes: int) -> None:
        """Compaction has replaced or removed rows, so the copies in memory are stale."""
        self.changes += 1
        self._size -= removed_bytes
        self._recent.evict_committed()

    def forget_aborted(self, markers: set[int]) -> None:
        """Removes the aborted transactions with these markers, of which compaction has removed all batches."""
        kept = TransactionIndex()
        for aborted in self.aborted:
            if aborted.last_offset not in markers:
                kept.append(aborted)
        self.aborted = kept

    # Closing

    async def close(self) -> None:
        if self._failure is not None:
            return
        await self.flush()
        if self._snapshot_due_batches < SNAPSHOT_BATCHES:
            await self._write_snapshot()
        self._failure = f"{self.name} is closed"

    async def _write_snapshot(self) -> None:
        offset, snapshot = self.durable_offset, self.producers.snapshot()

        async def work(cursor: Cursor) -> None:
            await write_snapshot(cursor, self.id, offset, snapshot)

        await self._database.transaction(work)

    def abandon(self) -> None:
        """Closes a log that is being deleted. The caller holds the lock of the database."""
        if self._failure is None:
            self._failure = f"{self.name} is deleted"
        self._recent.reset(self.end_offset)


async def write_snapshot(cursor: Cursor, log_id: int, offset: int, snapshot: bytes) -> None:
    await cursor.execute(statements.PUT_SNAPSHOT, {"log": log_id, "offset": offset, "data": snapshot})
    await cursor.execute(statements.DELETE_OLD_SNAPSHOTS, {"log": log_id, "retained": SNAPSHOTS_RETAINED})


def _is_better(found: TimestampAndOffset, latest: TimestampAndOffset) -> bool:
    """Returns whether a record has a larger timestamp, or the same one at a smaller offset."""
    return (found.timestamp_ms, -found.offset) > (latest.timestamp_ms, -latest.offset)
