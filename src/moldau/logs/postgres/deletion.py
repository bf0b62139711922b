"""The background deletion of rows that are not part of a log any more.

Deleted and reset logs, and logs whose start offset has advanced, leave their rows behind: the row of the log already
says that they are not part of it. They are deleted in small transactions, so that no flush waits for long. A crash
loses nothing: a starting store finds deleted logs by their state, and an opened log finds rows before its start.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from moldau.concurrency.tasks import run_uncancelled
from moldau.errors import StorageError
from moldau.logs.postgres import statements
from moldau.logs.postgres.database import Cursor, Database
from moldau.logs.store import is_transient
from moldau.observe.logging import get_logger

if TYPE_CHECKING:
    from moldau.logs.postgres.log import PostgresLog

log = get_logger(__name__)

DELETE_ROWS, DELETE_BYTES = 1_000, 64 * 1024 * 1024
"""How much is deleted in one transaction, so that flushes do not wait for long."""
RETRY_DELAY_S = 1.0


class RowDeletion:
    """The rows that a store has to delete, and the task that deletes them."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._pending: dict[int | PostgresLog, None] = {}
        """Ids of deleted logs, and logs with rows before their start offset."""
        self._task: asyncio.Task[None] | None = None
        self._is_closed = False

    @property
    def is_running(self) -> bool:
        return self._task is not None

    def add(self, target: int | PostgresLog) -> None:
        """Deletes all rows of the log with this id, or the rows before the start offset of a log, in the background."""
        self._pending[target] = None
        if self._task is None and not self._is_closed:
            self._task = asyncio.get_running_loop().create_task(self._run())

    def close(self) -> None:
        """Starts no more transactions."""
        self._is_closed = True
        if self._task is not None:
            self._task.cancel()

    async def wait_closed(self) -> None:
        """Waits until the last transaction has ended."""
        if self._task is not None:
            await asyncio.wait((self._task,))

    async def _run(self) -> None:
        try:
            while self._pending and not self._is_closed and self._database.failure is None:
                target = next(iter(self._pending))
                try:
                    await run_uncancelled(self._delete_some(target))
                except StorageError as error:
                    await self._handle_error(target, error)
        finally:
            self._task = None

    async def _handle_error(self, target: int | PostgresLog, error: StorageError) -> None:
        del self._pending[target]
        if is_transient(error):
            # The other ones are first now.
            self._pending[target] = None
            await asyncio.sleep(RETRY_DELAY_S)
        elif self._database.failure is None:
            log.warning("rows of a log are not deleted until the next start", log=str(target), reason=str(error))

    async def _delete_some(self, target: int | PostgresLog) -> None:
        """Deletes the first rows of a log; a deleted log itself together with the last ones."""
        is_done = False
        async with self._database.exclusive():
            if not isinstance(target, int) and target.is_closed:
                # Another object may represent the log now, with an earlier start offset.
                self._pending.pop(target, None)
                return
            # A truncation may have changed them until now.
            log_id, below = (target, 2**63 - 1) if isinstance(target, int) else (target.id, target.start_offset)
            parameters = {"log": log_id, "offset": below, "rows": DELETE_ROWS, "bytes": DELETE_BYTES}

            async def work(cursor: Cursor) -> None:
                nonlocal is_done
                await cursor.execute(statements.DELETE_BATCHES_BEFORE, parameters)
                [(deleted, found)] = await cursor.fetchall()
                is_done = deleted == found < DELETE_ROWS
                if is_done and isinstance(target, int):
                    await cursor.execute(statements.FORGET_LOG, {"log": log_id})

            await self._database.execute_exclusively(work)
            if is_done:
                with suppress(KeyError):
                    del self._pending[target]
