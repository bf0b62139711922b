"""The cleaner: compacts the batches of a log row by row, in small transactions.

Batches below the durable offset change only by truncation and retention. If one of them has happened meanwhile, the
round ends early. What it has written until then stays, because each row was compacted with the same offset map.
"""

import asyncio
from typing import TYPE_CHECKING

from moldau.concurrency.tasks import run_uncancelled
from moldau.logs.compaction import (
    OFFSET_MAP_BYTES_MAX,
    OffsetMap,
    TransactionOutcomes,
    clean_batch,
    is_last_of_producer,
    is_past_min_lag,
    should_compact,
)
from moldau.logs.postgres import statements
from moldau.logs.postgres.database import Cursor, Database
from moldau.logs.transaction_index import TransactionIndex
from moldau.records.batch import Batch

if TYPE_CHECKING:
    from moldau.logs.postgres.log import PostgresLog

_BATCHES_PER_YIELD = 16
"""How many batches are decoded before other tasks run."""
_CHANGED_BYTES, _CHANGED_ROWS = 4 * 1024 * 1024, 1_000
"""How much is replaced or removed in one transaction, so that flushes do not wait for long."""


class Cleaner:
    """One round of compaction of one log."""

    def __init__(self, log_: "PostgresLog", database: Database, now_ms: int) -> None:
        self._log = log_
        self._database = database
        self._settings = log_.settings
        self._now_ms = now_ms
        self._changes = log_.changes
        self._start_offset = log_.start_offset
        self._cleaned_offset = max(log_.cleaned_offset, log_.start_offset)
        self._below = 0
        """The round has the batches that end before this offset."""
        self._last_offset = -1
        """The end of the last batch of the round."""
        self._offsets = OffsetMap(OFFSET_MAP_BYTES_MAX, self._cleaned_offset)
        self._outcomes = TransactionOutcomes()
        self._removed: list[int] = []
        """The base offsets of batches without remaining records that are not deleted yet."""
        self._replaced: list[Batch] = []
        self._removed_bytes = 0
        """How much smaller the log becomes by what is removed and replaced."""
        self._written_offset = 0
        """The changes of all batches that end before this offset are written."""

    async def run(self, below: int) -> bool:
        """Compacts records with offsets less than `below`. Returns False if there was too little to clean, or if the
        log was truncated meanwhile."""
        if not await self._plan(min(below, self._log.durable_offset)):
            return False
        await self._map_keys()
        return await self._clean() and await self._finish()

    async def _plan(self, below: int) -> bool:
        """Selects the batches to clean. Returns False if too little of the log is dirty."""
        log_, settings, now_ms = self._log, self._settings, self._now_ms
        if self._cleaned_offset >= below:
            return False
        if not is_past_min_lag(settings, 2**63, now_ms):
            limit_ms = now_ms - settings.min_compaction_lag_ms
            found = await log_.query(
                statements.FIRST_AFTER_TIMESTAMP, offset=self._cleaned_offset, below=below, timestamp=limit_ms
            )
            if found:
                [(below,)] = found
        [(dirty_bytes, self._last_offset, oldest_dirty_ms)] = await log_.query(
            statements.DIRTY, offset=self._cleaned_offset, below=below
        )
        if not dirty_bytes:
            return False
        self._below = below
        [(total_bytes,)] = await log_.query(statements.SIZE_BETWEEN, offset=self._start_offset, below=below)
        return should_compact(settings, total_bytes, dirty_bytes, oldest_dirty_ms, now_ms)

    async def _map_keys(self) -> None:
        """Adds the keys of the dirty batches to the map, until the map is full."""
        outcomes = TransactionOutcomes()
        outcomes.add_aborted(self._log.aborted)
        async for batches in self._log.pages(self._cleaned_offset, self._below):
            for number, batch in enumerate(batches, 1):
                if not self._offsets.add(batch, is_obsolete=outcomes.is_obsolete(batch)):
                    return
                if number % _BATCHES_PER_YIELD == 0:
                    await asyncio.sleep(0)
        # An earlier round may have removed the last batches before this offset.
        self._offsets.end_offset = max(self._offsets.end_offset, self._last_offset + 1)

    async def _clean(self) -> bool:
        """Cleans all batches from the start of the log on. Returns False if the log was truncated meanwhile."""
        self._outcomes.add_aborted(self._log.aborted)
        async for batches in self._log.pages(self._start_offset, self._below):
            for number, batch in enumerate(batches, 1):
                if batch.base_offset >= self._offsets.end_offset:
                    return await self._write(batch.base_offset)
                self._clean_batch(batch)
                if number % _BATCHES_PER_YIELD == 0:
                    await asyncio.sleep(0)
            is_due = len(self._removed) + len(self._replaced) >= _CHANGED_ROWS or (
                sum(batch.size for batch in self._replaced) >= _CHANGED_BYTES
            )
            if is_due and not await self._write(batches[-1].next_offset):
                return False
        return await self._write(self._below)

    def _clean_batch(self, batch: Batch) -> None:
        # Keep the last batch of the round, if necessary without records, because the log may end there.
        is_last = batch.last_offset == self._last_offset
        remaining = clean_batch(
            batch,
            self._offsets,
            now_ms=self._now_ms,
            delete_retention_ms=self._settings.delete_retention_ms,
            retain_empty=is_last or is_last_of_producer(batch, self._log.producers),
            is_obsolete=self._outcomes.is_obsolete(batch),
        )
        if remaining is None:
            self._removed.append(batch.base_offset)
            self._removed_bytes += batch.size
        elif remaining is not batch:
            self._replaced.append(remaining)
            self._removed_bytes += batch.size - remaining.size

    async def _write(self, end: int) -> bool:
        """Writes the changes of the batches before `end`. Returns False if the log was truncated meanwhile."""
        done = [False]
        await run_uncancelled(self._write_exclusively(end, done))
        return done[0]

    async def _write_exclusively(self, end: int, done: list[bool]) -> None:
        log_, start = self._log, self._written_offset
        async with self._database.exclusive():
            log_.check()
            if log_.changes != self._changes:
                return
            remaining = list(self._outcomes.index)
            markers = {aborted.last_offset for aborted in remaining}
            past = [each.last_offset for each in log_.aborted if start <= each.last_offset < end]
            forgotten = [last_offset for last_offset in past if last_offset not in markers]
            removed, replaced = self._removed, [(batch, batch.to_bytes()) for batch in self._replaced]
            if removed or replaced or forgotten:

                async def work(cursor: Cursor) -> None:
                    if removed:
                        await cursor.execute(statements.REMOVE_BATCHES, log_.parameters(base_offsets=removed))
                    if replaced:
                        await cursor.execute(
                            statements.REPLACE_BATCHES,
                            log_.parameters(
                                base_offsets=[batch.base_offset for batch, _ in replaced],
                                max_timestamps=[batch.max_timestamp for batch, _ in replaced],
                                data=[data for _, data in replaced],
                            ),
                        )
                    if forgotten:
                        await cursor.execute(statements.DELETE_ABORTED, log_.parameters(last_offsets=forgotten))

                log_.is_rewriting = True
                try:
                    await self._database.execute_exclusively(work)
                finally:
                    log_.is_rewriting = False
                log_.forget_aborted(set(forgotten))
                log_.on_cleaned(self._removed_bytes)
                self._changes = log_.changes
            self._removed, self._replaced, self._removed_bytes = [], [], 0
            self._outcomes.index = TransactionIndex()
            self._written_offset = end
            done[0] = True

    async def _finish(self) -> bool:
        done = [False]
        await run_uncancelled(self._save_cleaned_offset(done))
        return done[0]

    async def _save_cleaned_offset(self, done: list[bool]) -> None:
        log_, offset = self._log, self._offsets.end_offset
        async with self._database.exclusive():
            log_.check()
            if log_.changes != self._changes:
                return

            async def work(cursor: Cursor) -> None:
                await cursor.execute(statements.SET_CLEANED, log_.parameters(offset=offset))

            await self._database.execute_exclusively(work)
            log_.cleaned_offset = offset
            done[0] = True
