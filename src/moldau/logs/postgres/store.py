"""The log store in a Postgres schema: opens and deletes logs, and commits the appends of all logs together."""

import asyncio
import ctypes
from collections.abc import Iterator, Sequence
from contextlib import suppress
from struct import Struct
from uuid import UUID

from moldau.errors import CorruptRecordError, StorageError
from moldau.logs.postgres import statements
from moldau.logs.postgres.database import Cursor, Database, Statement
from moldau.logs.postgres.deletion import RowDeletion
from moldau.logs.postgres.log import Appends, LogRow, PostgresLog, write_snapshot
from moldau.logs.postgres.recent import RecentBytes
from moldau.logs.producer_state import PRODUCER_EXPIRATION_MS_DEFAULT
from moldau.logs.store import LogName, LogStore, StoreUnavailableError, copy_error, is_transient
from moldau.metrics.histogram import DurationHistogram
from moldau.observe.logging import get_logger
from moldau.platform.clock import Clock
from moldau.settings.topic import TopicSettings

log = get_logger(__name__)

RECENT_BYTES_MAX = 64 * 1024 * 1024
"""Memory for committed batches, from which consumers at the end of a log read without a query."""
UNCOMMITTED_BYTES_MAX = 64 * 1024 * 1024
"""Memory for batches that are not committed yet. Above it, appends wait."""
COMMIT_BYTES_MAX = 16 * 1024 * 1024
"""How much one transaction writes, so that it does not delay the next one for long."""
AT_ONCE_BYTES_MAX = 256 * 1024
"""Up to this size, one statement that commits itself is faster than a transaction with COPY."""
COMMIT_DELAY_S = 0.2
"""How long batches stay uncommitted at most without a flush, as with write.caching."""
SLOW_COMMIT_MS = 2_000

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_FREED_BYTES_MAX, _HEAP_BLOCK_BYTES_MAX = 64 * 1024 * 1024, 8 * 1024 * 1024

_COPY_HEADER = b"PGCOPY\n\xff\r\n\x00" + bytes(8)
_CHUNK_BYTES_MAX = 120 * 1024
"""psycopg sends up to 128 KiB in one call. Copying small batches together is cheaper than a call for each."""
_COPY_TRAILER = b"\xff\xff"
_COPY_ROW = Struct(">hiqiqiqiqiiiii")
"""The number of columns; the length and the value of each column except data; the length of data."""


class PostgresLogStore(LogStore):
    def __init__(
        self,
        database: Database,
        clock: Clock,
        *,
        producer_expiration_ms: int = PRODUCER_EXPIRATION_MS_DEFAULT,
        recent_bytes_max: int = RECENT_BYTES_MAX,
        uncommitted_bytes_max: int = UNCOMMITTED_BYTES_MAX,
    ) -> None:
        self.database = database
        self.producer_expiration_ms = producer_expiration_ms
        self.recent = RecentBytes(recent_bytes_max)
        self.deletion = RowDeletion(database)
        self._uncommitted_bytes_max = uncommitted_bytes_max
        self._clock = clock
        self._topic_ids: dict[LogName, UUID] = {}
        self._logs: dict[LogName, PostgresLog] = {}
        self._uncommitted: dict[PostgresLog, None] = {}
        """Logs with batches to commit, in the order of the first of them."""
        self._commit_durations = DurationHistogram()
        self._commit: asyncio.Task[StorageError | None] | None = None
        self._commit_timer: asyncio.TimerHandle | None = None
        self._last_error = ""
        """The last logged error of a commit. It is not logged again."""

    async def start(self) -> None:
        _reuse_freed_memory()
        self.had_clean_shutdown, self.previous_broker_epoch = await self.database.start()
        for topic, partition, topic_id in await self.database.query(statements.LIVE_LOGS):
            self._topic_ids[LogName(topic, partition)] = topic_id
        if not self._topic_ids:
            self.had_clean_shutdown = True
        for (log_id,) in await self.database.query(statements.DELETED_LOGS):
            self.deletion.add(log_id)

    @property
    def sync_durations(self) -> DurationHistogram:
        return self._commit_durations

    def list_logs(self) -> Sequence[tuple[LogName, UUID]]:
        return list(self._topic_ids.items())

    async def open(self, name: LogName, topic_id: UUID, settings: TopicSettings) -> PostgresLog:
        opened = self._logs.get(name)
        if opened is not None and opened.topic_id == topic_id and not opened.is_closed:
            opened.configure(settings)
            return opened
        known = self._topic_ids.get(name)
        if known is not None and known != topic_id:
            await self.move_to_stray(name)
            known = None
        if known is None:
            await self.database.run_to_end(self._create_exclusively(name, topic_id))
        parameters = {"topic": name.topic, "partition": name.partition}
        rows = [LogRow(*row) for row in await self.database.query(statements.FIND_LOG, parameters)]
        if not rows:
            raise StorageError(f"the log {name} is missing in the schema {self.database.schema}: restore a backup")
        try:
            opened = PostgresLog(self, rows[0], settings)
            await opened.load()
        except CorruptRecordError as error:
            raise StorageError(f"the log {name} is damaged: {error}; restore a backup") from error
        self._logs[name] = opened
        return opened

    async def _create_exclusively(self, name: LogName, topic_id: UUID) -> None:
        async def work(cursor: Cursor) -> None:
            parameters = {"topic": name.topic, "partition": name.partition, "topic_id": topic_id}
            await cursor.execute(statements.CREATE_LOG, parameters)

        async with self.database.exclusive():
            # An earlier call that took too long may have ended meanwhile.
            known = self._topic_ids.get(name)
            if known is not None and known != topic_id:
                raise StoreUnavailableError(f"the log {name} still exists for an earlier topic with this name")
            if known is None:
                await self.database.execute_exclusively(work)
                self._topic_ids[name] = topic_id

    # Commits

    @property
    def has_room(self) -> bool:
        return self.recent.uncommitted < self._uncommitted_bytes_max

    async def wait_for_room(self) -> None:
        """Waits until an append may keep its batches in memory. Raises StoreUnavailableError if the server does not
        commit the earlier ones."""
        while not self.has_room:
            await self.commit_appends()
            self.database.check()

    def on_appended(self, log_: PostgresLog) -> None:
        self._uncommitted[log_] = None
        self.recent.evict()
        if self._commit_timer is None:
            self._commit_timer = asyncio.get_running_loop().call_later(COMMIT_DELAY_S, self._on_commit_timer)

    def _on_commit_timer(self) -> None:
        self._commit_timer = None
        if self._uncommitted and self.database.failure is None:
            self._start_commit()
            self._commit_timer = asyncio.get_running_loop().call_later(COMMIT_DELAY_S, self._on_commit_timer)

    def _start_commit(self) -> "asyncio.Task[StorageError | None]":
        if self._commit is None or self._commit.done():
            self._commit = asyncio.get_running_loop().create_task(self._commit_once())
        return self._commit

    async def commit_appends(self) -> None:
        """Waits for the commit in progress, or for a new one. Raises StorageError if it has failed, and
        StoreUnavailableError if it takes too long. It goes on then, because it may have been executed."""
        commit, patience_s = self._start_commit(), self.database.patience_s
        await asyncio.wait((commit,), timeout=patience_s)
        if not commit.done():
            raise StoreUnavailableError(
                f"Postgres at {self.database.address} has not confirmed a commit for {patience_s:g} seconds"
            )
        error = commit.result()
        if error is not None:
            raise copy_error(error)

    async def _commit_once(self) -> StorageError | None:
        """Commits the oldest appends of all logs. Returns the error if nothing was committed."""
        try:
            async with self.database.exclusive():
                error = await self._commit_exclusively()
        except StorageError as refused:
            error = refused
        text = "" if error is None else str(error)
        if text not in ("", self._last_error):
            log.warning("a commit in Postgres failed, its batches wait", reason=text)
        self._last_error = text
        return error

    async def _commit_exclusively(self) -> StorageError | None:
        self.database.check()
        taken = self._take_appends()
        error = None
        if taken:
            started_us = self._clock.monotonic_us()
            error = await self._write(taken)
            if error is not None and not is_transient(error) and self.database.failure is None:
                error = await self._write_each(taken)
            duration_ms = (self._clock.monotonic_us() - started_us) / 1000
            if error is None:
                self._commit_durations.record(duration_ms)
            if duration_ms >= SLOW_COMMIT_MS:
                log.warning("a commit in Postgres was slow", duration_ms=round(duration_ms), logs=len(taken))
        return error

    def _take_appends(self) -> list[Appends]:
        taken: list[Appends] = []
        size = 0
        for log_ in list(self._uncommitted):
            if size >= COMMIT_BYTES_MAX:
                break
            appends = log_.take_appends(COMMIT_BYTES_MAX - size)
            if not appends.batches or log_.failure is not None:
                del self._uncommitted[log_]
                continue
            taken.append(appends)
            size += sum(len(batch.data) for batch in appends.batches)
        return taken

    async def _write(self, taken: Sequence[Appends]) -> StorageError | None:
        """Writes and commits the appends. Returns the error if they are not committed."""
        try:
            await self.database.execute_exclusively(_CommitWork(taken), _at_once(taken))
        except StorageError as error:
            return error
        for appends in taken:
            appends.log.on_committed(appends)
            # The next commit begins with the logs that had to wait in this one.
            del self._uncommitted[appends.log]
            if appends.log.durable_offset < appends.log.end_offset:
                self._uncommitted[appends.log] = None
        self.recent.evict()
        return None

    async def _write_each(self, taken: Sequence[Appends]) -> StorageError | None:
        """Commits the appends one log at a time, and takes the logs offline whose appends Postgres refuses. That error
        is not returned, because other logs wait for the same commit."""
        for appends in taken:
            error = await self._write([appends])
            if error is not None and (is_transient(error) or self.database.failure is not None):
                return error
            if error is not None:
                appends.log.mark_offline(f"writing {appends.log.name} failed: {error}")
                self._uncommitted.pop(appends.log, None)
        return None

    # Deletion

    async def remove(self, name: LogName) -> None:
        """Deletes a log. Its rows are deleted in the background."""
        await self._set_state(name, "deleted")

    async def move_to_stray(self, name: LogName) -> None:
        log_id = await self._set_state(name, "stray")
        if log_id is not None:
            log.warning(
                "kept a stray log, which no topic of the cluster has: delete its rows if no records are missing",
                log=str(name),
                schema=self.database.schema,
                log_id=log_id,
            )

    async def _set_state(self, name: LogName, state: str) -> int | None:
        """Closes a log without saving it and changes its state. Returns its id; None if there is no such log."""
        found: list[int] = []
        await self.database.run_to_end(self._set_state_exclusively(name, state, found))
        return found[0] if found else None

    async def _set_state_exclusively(self, name: LogName, state: str, found: list[int]) -> None:
        async def work(cursor: Cursor) -> None:
            await cursor.execute(
                statements.SET_STATE, {"topic": name.topic, "partition": name.partition, "state": state}
            )
            found[:] = [log_id for (log_id,) in await cursor.fetchall()]

        async with self.database.exclusive():
            opened = self._logs.pop(name, None)
            if opened is not None:
                opened.abandon()
                self._uncommitted.pop(opened, None)
            # The change may take longer than its caller waits. Then `open` waits for it to create a log, and does not
            # find the one that is about to be deleted.
            topic_id = self._topic_ids.pop(name, None)
            try:
                await self.database.execute_exclusively(work)
            except StorageError:
                if topic_id is not None:
                    self._topic_ids[name] = topic_id
                raise
            if state == "deleted":
                for log_id in found:
                    self.deletion.add(log_id)

    # Checkpoints and closing

    async def checkpoint_high_watermarks(self) -> None:
        changed: list[tuple[PostgresLog, int]] = []

        async def work(cursor: Cursor) -> None:
            # Looked up here, because a truncation that was earlier lowers them.
            changed[:] = self._changed_high_watermarks()
            await cursor.execute(
                statements.SET_HIGH_WATERMARKS,
                {"logs": [log_.id for log_, _ in changed], "high_watermarks": [offset for _, offset in changed]},
            )

        if self._changed_high_watermarks():
            await self.database.transaction(work)
            for log_, offset in changed:
                log_.stored_high_watermark = offset

    def _changed_high_watermarks(self) -> list[tuple[PostgresLog, int]]:
        return [
            (log_, log_.checkpointed_high_watermark)
            for log_ in self._logs.values()
            if log_.checkpointed_high_watermark != log_.stored_high_watermark and not log_.is_closed
        ]

    async def close(self, broker_epoch: int = -1) -> None:
        """Closes all logs and the database. The shutdown is clean only if every log was closed cleanly."""
        self.deletion.close()
        is_clean = await self._close_logs()
        if self._commit_timer is not None:
            self._commit_timer.cancel()

        async def work(cursor: Cursor) -> None:
            await cursor.execute(statements.SET_CLEAN_SHUTDOWN, {"broker_epoch": broker_epoch})

        try:
            if is_clean:
                await self.database.transaction(work)
        finally:
            self.database.stop_waiting()
            if self._commit is not None:
                await asyncio.wait((self._commit,))
            await self.deletion.wait_closed()
            await self.database.close()

    async def _close_logs(self) -> bool:
        """Closes all logs. Returns whether all were closed cleanly."""
        is_clean = True
        closes = [("high watermarks", self.checkpoint_high_watermarks)]
        closes += [(str(opened.name), opened.close) for opened in self._logs.values()]
        for name, close in closes:
            try:
                await close()
            except StorageError as error:
                log.error("log cannot be closed", log=name, reason=str(error))
                is_clean = False
                if isinstance(error, StoreUnavailableError):
                    # Do not wait for the server once for each log.
                    self.database.stop_waiting()
        return is_clean

    def space(self) -> tuple[int, int]:
        """Returns -1 for both sizes, which means "unknown" in Kafka."""
        return -1, -1


def _reuse_freed_memory() -> None:
    """Lets glibc reuse the memory of batches. By default it returns large blocks to the kernel, and the page faults of
    the next ones take as much CPU time as reading them from the server."""
    with suppress(OSError, AttributeError):
        # Other C libraries have no mallopt.
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_TRIM_THRESHOLD, _FREED_BYTES_MAX)
        mallopt(_M_MMAP_THRESHOLD, _HEAP_BLOCK_BYTES_MAX)


def _copy_chunks(taken: Sequence[Appends]) -> Iterator[bytes | memoryview]:
    """Yields the batches in the binary format of COPY."""
    pending: list[bytes] = [_COPY_HEADER]
    pending_bytes = 0
    for appends in taken:
        log_id = appends.log.id
        for base_offset, last_offset, max_timestamp, epoch, data in appends.batches:
            size = len(data)
            if pending_bytes + size > _CHUNK_BYTES_MAX:
                yield b"".join(pending)
                pending, pending_bytes = [], 0
            pending.append(
                _COPY_ROW.pack(7, 8, log_id, 8, base_offset, 8, last_offset, 8, max_timestamp, 4, epoch, 4, size, size)
            )
            if size > _CHUNK_BYTES_MAX:
                yield b"".join(pending)
                # psycopg writes slices of it, and slices of a view are not copied.
                yield memoryview(data)
                pending = []
            else:
                pending.append(data)
                pending_bytes += size + _COPY_ROW.size
    pending.append(_COPY_TRAILER)
    yield b"".join(pending)


def _at_once(taken: Sequence[Appends]) -> Statement | None:
    """Returns one statement for a small commit; None if COPY needs less CPU time, or if there is more to write."""
    batches = [(appends.log.id, batch) for appends in taken for batch in appends.batches]
    is_small = sum(len(batch.data) for _, batch in batches) <= AT_ONCE_BYTES_MAX
    if not is_small or any(appends.aborted or appends.snapshot is not None for appends in taken):
        return None
    parameters = {
        **_committed_ends(taken),
        "log_ids": [log_id for log_id, _ in batches],
        "base_offsets": [batch.base_offset for _, batch in batches],
        "last_offsets": [batch.last_offset for _, batch in batches],
        "max_timestamps": [batch.max_timestamp for _, batch in batches],
        "leader_epochs": [batch.leader_epoch for _, batch in batches],
        "data": [batch.data for _, batch in batches],
    }
    return statements.COMMIT_AT_ONCE, parameters


def _committed_ends(taken: Sequence[Appends]) -> dict[str, object]:
    return {
        "logs": [appends.log.id for appends in taken],
        "previous_ends": [appends.previous_end for appends in taken],
        "ends": [appends.end_offset for appends in taken],
        "epochs": [appends.leader_epochs for appends in taken],
    }


class _CommitWork:
    """The statements of a commit of appends."""

    def __init__(self, taken: Sequence[Appends]) -> None:
        self._taken = taken

    async def __call__(self, cursor: Cursor) -> None:
        taken = self._taken
        async with cursor.copy(statements.COPY_BATCHES) as copy:
            for chunk in _copy_chunks(taken):
                await copy.write(chunk)
        aborted = [(appends.log.id, each) for appends in taken for each in appends.aborted]
        if aborted:
            await cursor.execute(
                statements.ADD_ABORTED,
                {
                    "logs": [log_id for log_id, _ in aborted],
                    "last_offsets": [each.last_offset for _, each in aborted],
                    "producers": [each.producer_id for _, each in aborted],
                    "first_offsets": [each.first_offset for _, each in aborted],
                    "last_stable_offsets": [each.last_stable_offset for _, each in aborted],
                },
            )
        await cursor.execute(statements.SET_COMMITTED_ENDS, _committed_ends(taken))
        updated = {log_id for (log_id,) in await cursor.fetchall()}
        for appends in taken:
            if appends.log.id not in updated:
                raise StorageError(
                    f"the log {appends.log.name} does not end at {appends.previous_end} in the database any more: "
                    "another program has changed it"
                )
            if appends.snapshot is not None:
                await write_snapshot(cursor, appends.log.id, appends.end_offset, appends.snapshot)
