"""The storage of a node in Postgres. Only a node that uses it imports psycopg."""

import asyncio
from collections.abc import Callable

from moldau.concurrency.tasks import cancel_and_wait
from moldau.controller.ids import random_uuid
from moldau.errors import InvalidConfigError, StorageError
from moldau.node.storage import Storage
from moldau.observe.logging import get_logger
from moldau.platform import Platform
from moldau.platform.disk import SmallFiles
from moldau.settings.broker import BrokerSettings

try:
    from psycopg import ProgrammingError
    from psycopg.conninfo import make_conninfo
except ImportError as error:
    raise InvalidConfigError(
        f"store: a Postgres store needs the package psycopg ({error}): pip install 'moldau[postgres]'"
    ) from None

from moldau.logs.postgres.database import Database
from moldau.logs.postgres.files import FileTable
from moldau.logs.postgres.store import PostgresLogStore

PROBE_INTERVAL_S = 1.0
UNAVAILABLE_AFTER_S = 5.0
"""How long Postgres may not respond before the node gives up its leadership. A restart of the server takes less."""
CLOSE_PATIENCE_S = 5.0
"""How long a node that stops waits for Postgres."""

log = get_logger(__name__)


class PostgresStorage(Storage):
    def __init__(self, database: Database, logs: PostgresLogStore, files: FileTable) -> None:
        super().__init__(logs, files)
        self._database = database
        self._file_table = files
        self._watcher: asyncio.Task[None] | None = None
        self._close_timer: asyncio.TimerHandle | None = None
        self._is_closed = False

    async def start(self) -> SmallFiles:
        try:
            files = await super().start()
            await self._file_table.load()
        except BaseException:
            self._is_closed = True
            await self._database.close()
            raise
        return files

    def watch(self, *, on_unavailable: Callable[[], None], on_failure: Callable[[BaseException], None]) -> None:
        watching = self._watch(on_unavailable, on_failure)
        self._watcher = asyncio.get_running_loop().create_task(watching)

    async def _watch(self, on_unavailable: Callable[[], None], on_failure: Callable[[BaseException], None]) -> None:
        is_available = True
        while self._database.failure is None:
            was_available, is_available = is_available, await self._responds()
            if not is_available:
                if was_available:
                    log.error("Postgres does not respond", address=self._database.address)
                on_unavailable()
            elif not was_available:
                log.info("Postgres responds again", address=self._database.address)
            await asyncio.sleep(PROBE_INTERVAL_S)
        on_failure(StorageError(self._database.failure))

    async def _responds(self) -> bool:
        """Returns whether Postgres answers a query, and no transaction takes very long."""
        try:
            await self._database.check_owner(UNAVAILABLE_AFTER_S)
            async with self._database.exclusive(timeout_s=UNAVAILABLE_AFTER_S):
                return True
        except StorageError:
            return False

    def begin_close(self) -> None:
        if self._close_timer is None and not self._is_closed:
            self._abort_later()
        if self._watcher is not None:
            self._watcher.cancel()

    def _abort_later(self) -> None:
        """Lets the close fail when transactions have been in progress for a while and none was committed."""
        loop, database = asyncio.get_running_loop(), self._database
        commit_number = database.commit_number
        waited_s = 0.0

        def check() -> None:
            nonlocal commit_number, waited_s
            if database.commit_number != commit_number:
                commit_number, waited_s = database.commit_number, 0.0
            elif database.is_busy:
                waited_s += PROBE_INTERVAL_S
            if waited_s < CLOSE_PATIENCE_S:
                self._close_timer = loop.call_later(PROBE_INTERVAL_S, check)
            else:
                database.abort()

        self._close_timer = loop.call_later(PROBE_INTERVAL_S, check)

    async def close(self, broker_epoch: int) -> None:
        self.begin_close()
        await cancel_and_wait(self._watcher)
        try:
            await super().close(broker_epoch)
        finally:
            self._is_closed = True
            if self._close_timer is not None:
                self._close_timer.cancel()


def make_postgres_storage(platform: Platform, settings: BrokerSettings) -> PostgresStorage:
    password = {"password": settings.postgres_password} if settings.postgres_password else {}
    try:
        conninfo = make_conninfo(settings.store, **password)
    except ProgrammingError as error:
        raise InvalidConfigError(f"store: {settings.store} is no valid URL of Postgres: {error}") from None
    database = Database(conninfo, settings.postgres_schema, random_uuid(platform.random))
    logs = PostgresLogStore(database, platform.clock, producer_expiration_ms=settings.producer_id_expiration_ms)
    return PostgresStorage(database, logs, FileTable(database, settings.log_dir))
