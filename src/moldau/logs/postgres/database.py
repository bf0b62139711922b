"""The connections of a node to its Postgres schema, and transactions that are executed exactly once.

One process owns a schema. Its transactions run one after the other on one connection, the writer. Each of them
increases `node.commit_number`, and is refused if another process has replaced `node.incarnation`. So a process that
was replaced can write nothing, and after a lost connection the number tells whether the last commit was executed.
"""

import asyncio
import errno
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any
from uuid import UUID

import psycopg
from psycopg import errors as postgres_errors
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from moldau.concurrency.tasks import retrieve_exception, run_uncancelled
from moldau.errors import StorageError
from moldau.logs.postgres.schema import POOLER_MESSAGE, check_server, create_or_check_tables
from moldau.logs.postgres.views import create_views
from moldau.logs.store import StoreUnavailableError
from moldau.observe.logging import get_logger
from moldau.platform.sockets import shut_down

log = get_logger(__name__)

START_TIMEOUT_S = 30.0
"""How long a starting node waits for a server that does not accept connections, or for another process that still owns
the schema."""
PATIENCE_S = 10.0
"""How long callers wait for a server that is unreachable."""
QUERY_TIMEOUT_S = 60.0
"""How long a query may take until its connection counts as lost."""
SESSION_TIMEOUT_S = 15.0
"""How long the first statements of a new session of the writer may take. One of them waits for a lock for 5 seconds."""
READERS_MAX = 4
_RETRY_DELAY_S_MIN, _RETRY_DELAY_S_MAX = 0.05, 1.0

_CONNECTION_DEFAULTS = {
    # Notice within about ten seconds that the server's machine has disappeared.
    "connect_timeout": "5",
    "keepalives_idle": "5",
    "keepalives_interval": "2",
    "keepalives_count": "3",
    "tcp_user_timeout": "10000",
    # With several hosts, use the one that accepts writes, also after a failover.
    "target_session_attrs": "read-write",
}
_OPTIONS = {
    # Limits that the server or the role may have for other applications. As options of the connection they are set
    # before its first statement.
    "statement_timeout": "0",
    "lock_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "default_transaction_read_only": "off",
    # All statements find their rows by an index. Plans must not change with the statistics, nor be made again and
    # again: a sequential scan would read all logs.
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "plan_cache_mode": "force_generic_plan",
    "jit": "off",
    # A warning tells that a commit has not waited for the synchronous standbys.
    "client_min_messages": "warning",
    # The server must soon release the lock of a node whose machine has disappeared.
    "tcp_keepalives_idle": "5",
    "tcp_keepalives_interval": "2",
    "tcp_keepalives_count": "3",
}
_SETTINGS_SINCE = {
    # Set after connecting, because older servers do not have all of them.
    "default_transaction_isolation": ("read committed", 0),
    "idle_session_timeout": ("0", 140_000),
    "transaction_timeout": ("0", 170_000),
}

_OWNER = "select incarnation, commit_number from node"
_WAIT_CANCELLED = "01000"
"""The SQLSTATE of a warning, which a commit gives if it was cancelled while it waited for synchronous standbys."""
_INSUFFICIENT_RESOURCES = "53"
"""The class of SQLSTATE for a full disk, memory or connection limits."""

Connection = psycopg.AsyncConnection[Any]
Cursor = psycopg.AsyncCursor[Any]
Work = Callable[[Cursor], Awaitable[None]]
Statement = tuple[str, Mapping[str, object]]
"""A statement with its parameters."""

_CONFIGURATION_ERRORS = (
    postgres_errors.InvalidPassword,
    postgres_errors.InvalidAuthorizationSpecification,
    postgres_errors.InvalidCatalogName,
    postgres_errors.InsufficientPrivilege,
)
"""Errors of a connection attempt that no repetition repairs."""
_REPEATABLE_ERRORS = (
    postgres_errors.QueryCanceled,
    postgres_errors.DeadlockDetected,
    postgres_errors.SerializationFailure,
    postgres_errors.LockNotAvailable,
)


def storage_error(operation: str, error: psycopg.Error) -> StorageError:
    """Returns the error to raise, with its cause. It is transient if the same work may succeed later."""
    text = f"{operation} failed: {describe(error)}"
    failure = StoreUnavailableError(text) if isinstance(error, _REPEATABLE_ERRORS) else StorageError(text)
    is_full = (error.sqlstate or "").startswith(_INSUFFICIENT_RESOURCES)
    failure.__cause__ = OSError(errno.ENOSPC, describe(error)) if is_full else error
    return failure


def describe(error: BaseException) -> str:
    """Returns the first line of the error, without the position and the context that follow it."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


@contextmanager
def _shut_down_at(deadline: float, connection: Connection) -> Iterator[None]:
    """Ends the connection at this time of the loop if its work has not ended. A cancellation of the work would wait for
    the server, since psycopg sends it a request to cancel the query."""

    def end() -> None:
        if not connection.closed:
            shut_down(connection.fileno())

    timer = asyncio.get_running_loop().call_at(deadline, end)
    try:
        yield
    finally:
        timer.cancel()


async def _connect(conninfo: str, application_name: str) -> Connection:
    return await psycopg.AsyncConnection.connect(
        conninfo, autocommit=True, application_name=application_name, prepare_threshold=2
    )


async def _configure(connection: Connection, schema: str) -> None:
    settings = {"search_path": '"' + schema.replace('"', '""') + '"'}
    for name, (value, version) in _SETTINGS_SINCE.items():
        if connection.info.server_version >= version:
            settings[name] = value
    row = await (await connection.execute("select current_setting('synchronous_commit')")).fetchone()
    if row == ("off",):
        # A commit must be durable when it returns, whatever the default of the role or the database is.
        settings["synchronous_commit"] = "on"
    columns = ", ".join("set_config(%s, %s, false)" for _ in settings)
    await connection.execute(f"select {columns}", [each for item in settings.items() for each in item])


class Database:
    """A Postgres schema that this process owns."""

    def __init__(self, url: str, schema: str, incarnation: UUID, *, patience_s: float = PATIENCE_S) -> None:
        self.schema = schema
        self.failure: str | None = None
        """Why the schema cannot be used any more: another process owns it, or the server has lost commits."""
        self.patience_s = patience_s
        given = conninfo_to_dict(url)
        defaults = {name: value for name, value in _CONNECTION_DEFAULTS.items() if name not in given}
        options = " ".join(f"-c {name}={value}" for name, value in _OPTIONS.items())
        self._conninfo = make_conninfo(url, **defaults, options=f"{given.get('options') or ''} {options}".strip())
        host, port = given.get("host") or "the local socket", given.get("port") or 5432
        self.address = f"{host}:{port}/{given.get('dbname') or ''}"
        self._incarnation = incarnation
        self._writer: Connection | None = None
        self._writer_pid = 0
        self._commit_number = 0
        self._is_wait_cancelled = False
        """Whether the last commit has returned before the synchronous standbys had it."""
        self._lock = asyncio.Lock()
        """Held by the transaction in progress."""
        self._running: set[asyncio.Task[None]] = set()
        """Work that must not stop halfway."""
        self._readers: list[Connection] = []
        """Readers without a query."""
        self._busy_readers: set[Connection] = set()
        self._readers_open = 0
        self._reader_freed = asyncio.Condition()
        self._is_closing = False
        self._start_state: tuple[bool, int] | None = None

    # Start

    async def start(self) -> tuple[bool, int]:
        """Connects, creates the tables if needed, and becomes the owner. Returns whether the last owner has shut down
        cleanly, and with which broker epoch. Later calls only return the same again."""
        if self._start_state is None:
            self._start_state = await self._connect_and_own()
        return self._start_state

    async def _connect_and_own(self) -> tuple[bool, int]:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + START_TIMEOUT_S
        is_logged = False
        while True:
            try:
                connection = await _connect(self._conninfo, self._application_name("writer"))
            except psycopg.Error as error:
                if "unsupported startup parameter" in str(error):
                    raise StorageError(POOLER_MESSAGE) from error
                if isinstance(error, _CONFIGURATION_ERRORS) or not _may_pass(error) or loop.time() > deadline:
                    raise StorageError(f"cannot connect to Postgres at {self.address}: {describe(error)}") from error
                if not is_logged:
                    log.warning("waiting for Postgres", address=self.address, reason=describe(error))
                    is_logged = True
                await asyncio.sleep(_RETRY_DELAY_S_MAX)
                continue
            try:
                await _configure(connection, self.schema)
                await check_server(connection)
                await self._lock_schema(connection, deadline)
                state = await self._become_owner(connection)
            except psycopg.Error as error:
                is_lost = connection.closed
                await connection.close()
                if is_lost and loop.time() < deadline:
                    await asyncio.sleep(_RETRY_DELAY_S_MAX)
                    continue
                raise StorageError(
                    f"cannot use the schema {self.schema} at {self.address}: {describe(error)}"
                ) from error
            except BaseException:
                await connection.close()
                raise
            self._use_writer(connection)
            return state

    def _application_name(self, role: str) -> str:
        return f"moldau {self.schema} {role}"

    def _use_writer(self, connection: Connection) -> None:
        connection.add_notice_handler(self._on_notice)
        # psycopg deallocates statements above its limit right after another one. If that was a transaction of one
        # statement, an error would not mean any more that it was not executed.
        connection.prepared_max = None
        self._writer, self._writer_pid = connection, connection.info.backend_pid

    def _on_notice(self, notice: psycopg.errors.Diagnostic) -> None:
        if notice.sqlstate == _WAIT_CANCELLED:
            self._is_wait_cancelled = True

    async def _lock_schema(self, connection: Connection, deadline: float) -> None:
        """Takes the lock that keeps other processes off the schema. It is released with the connection."""
        loop = asyncio.get_running_loop()
        is_logged = False
        while True:
            row = await (
                await connection.execute("select pg_try_advisory_lock(hashtextextended(%s, 0))", (self._lock_name,))
            ).fetchone()
            if row == (True,):
                return
            if loop.time() > deadline:
                raise StorageError(
                    f"another process uses the schema {self.schema} at {self.address}: stop it, or give this node "
                    "another schema with postgres.schema"
                )
            if not is_logged:
                log.warning("waiting for another process to release the schema", schema=self.schema)
                is_logged = True
            await asyncio.sleep(0.2)

    @property
    def _lock_name(self) -> str:
        return f"moldau node of schema {self.schema}"

    async def _become_owner(self, connection: Connection) -> tuple[bool, int]:
        async with connection.transaction(), connection.cursor() as cursor:
            await create_or_check_tables(cursor, self.schema, self._incarnation)
            await create_views(cursor, self.schema)
            # A commit of the previous owner that is still in progress holds the row, so this statement waits for it.
            await cursor.execute("select had_clean_shutdown, broker_epoch, commit_number from node for update")
            row = await cursor.fetchone()
            assert row is not None
            await cursor.execute(
                "update node set incarnation = %s, had_clean_shutdown = false, broker_epoch = -1", (self._incarnation,)
            )
        had_clean_shutdown, broker_epoch, self._commit_number = row
        return had_clean_shutdown, broker_epoch if had_clean_shutdown else -1

    # Transactions

    def check(self) -> None:
        if self.failure is not None:
            raise StorageError(self.failure)

    def fail(self, reason: str) -> None:
        if self.failure is None:
            self.failure = reason
            log.error("the Postgres schema cannot be used any more", schema=self.schema, reason=reason)

    async def transaction(self, work: Work) -> None:
        """Executes the work in a transaction of its own, exactly once. Waits for a server that is unreachable.

        `work` runs again if its transaction was not committed, so it must only send statements.
        Raises StorageError if the work fails. Then it has changed nothing, except after the StoreUnavailableError of
        `run_to_end`.
        """
        await self.run_to_end(self.unbounded_transaction(work))

    async def unbounded_transaction(self, work: Work) -> None:
        """Executes the work in a transaction, as a part of what a caller of `run_to_end` waits for."""
        async with self.exclusive():
            await self.execute_exclusively(work)

    async def run_to_end(self, work: Coroutine[Any, Any, None]) -> None:
        """Awaits work with a transaction, which must not stop halfway. Raises StoreUnavailableError if it takes too
        long. It goes on then, because its transaction may have been executed."""
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        await run_uncancelled(self._wait_for(task))

    async def _wait_for(self, task: "asyncio.Task[None]") -> None:
        await asyncio.wait((task,), timeout=self.patience_s)
        if not task.done():
            task.add_done_callback(retrieve_exception)
            raise StoreUnavailableError(
                f"Postgres at {self.address} has not confirmed a transaction for {self.patience_s:g} seconds"
            )
        task.result()

    @asynccontextmanager
    async def exclusive(self, *, timeout_s: float | None = None) -> AsyncIterator[None]:
        """Holds the lock under which transactions are executed with `execute_exclusively`. Raises StoreUnavailableError
        if another transaction holds it for too long, because the server does not respond."""
        try:
            async with asyncio.timeout(self.patience_s if timeout_s is None else timeout_s):
                await self._lock.acquire()
        except TimeoutError as error:
            raise StoreUnavailableError(
                f"Postgres at {self.address} does not confirm an earlier transaction"
            ) from error
        try:
            yield
        finally:
            self._lock.release()

    async def wait_for_transaction(self) -> None:
        """Waits until the transaction in progress has ended."""
        # Requests are started outside of a task, in which asyncio has no timeouts.
        await asyncio.get_running_loop().create_task(self._wait_for_transaction())

    async def _wait_for_transaction(self) -> None:
        async with self.exclusive():
            pass

    async def execute_exclusively(self, work: Work, at_once: Statement | None = None) -> None:
        """Executes a transaction. The caller holds the lock and must not be cancelled.

        If the server is unreachable, the transaction is repeated for a while. If its commit may have been executed, it
        is repeated until the server tells.

        `at_once` is a statement that does the same as the whole transaction in one round trip. It has the parameters
        `number` and `incarnation`, and divides by zero if it finds another owner or other rows than expected. Then
        `work` is executed to find out why.
        """
        self.check()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.patience_s
        number = self._commit_number + 1
        is_in_doubt = is_logged = False
        delay_s = _RETRY_DELAY_S_MIN
        while True:
            try:
                connection = self._writer
                if connection is None:
                    connection, committed = await self._reconnect()
                    if committed == number:
                        await self._replicate(connection, number)
                        break
                    is_in_doubt = False
                if at_once is not None:
                    is_in_doubt, self._is_wait_cancelled = True, False
                    if not await self._execute_at_once(connection, at_once, number):
                        is_in_doubt, at_once = False, None
                if at_once is None:
                    async with connection.transaction(), connection.cursor(binary=True) as cursor:
                        await cursor.execute(
                            "update node set commit_number = %s where incarnation = %s and commit_number = %s",
                            (number, self._incarnation, number - 1),
                        )
                        if cursor.rowcount != 1:
                            self.fail(f"another process owns the schema {self.schema} now")
                            self.check()
                        await work(cursor)
                        is_in_doubt, self._is_wait_cancelled = True, False
                if self._is_wait_cancelled:
                    await self._replicate(connection, number)
                break
            except psycopg.Error as error:
                is_lost = self._writer is None or self._writer.closed
                if not is_lost and not isinstance(error, postgres_errors.ReadOnlySqlTransaction):
                    raise storage_error("writing to Postgres", error)  # noqa: B904 - it has its cause
                if not is_lost:
                    # The server has refused the transaction, because it is read-only.
                    is_in_doubt = False
                await self._drop_writer()
                reason = describe(error)
                if not is_logged:
                    log.warning("lost the connection to Postgres, retrying", address=self.address, reason=reason)
                    is_logged = True
                if self._is_closing or (not is_in_doubt and loop.time() + delay_s > deadline):
                    if is_in_doubt:
                        # The next transaction would have the same number, and be taken for this one.
                        self.fail(f"the node stopped before Postgres at {self.address} confirmed a commit")
                    raise StoreUnavailableError(f"Postgres at {self.address} is unreachable: {reason}") from error
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, _RETRY_DELAY_S_MAX)
        self._commit_number = number
        if is_logged:
            log.info("connected to Postgres again", address=self.address)

    async def _execute_at_once(self, connection: Connection, statement: Statement, number: int) -> bool:
        """Executes a transaction of one statement. Returns whether it found its rows; if not, it has no effect."""
        text, parameters = statement
        try:
            await connection.execute(text, {**parameters, "number": number, "incarnation": self._incarnation})
        except postgres_errors.DivisionByZero:
            return False
        return True

    async def _replicate(self, connection: Connection, number: int) -> None:
        """Waits until the synchronous standbys have an executed commit.

        The wait of the commit itself may have been cancelled, because its session was ended or by an operator. A later
        commit waits until the standbys have both.
        """
        self._is_wait_cancelled = True
        while self._is_wait_cancelled:
            self._is_wait_cancelled = False
            try:
                cursor = await connection.execute(
                    "update node set commit_number = %s where incarnation = %s and commit_number = %s",
                    (number, self._incarnation, number),
                )
            except psycopg.Error:
                # The commit stays in doubt, whatever the reason is.
                await self._drop_writer()
                raise
            if cursor.rowcount != 1:
                self.fail(f"another process owns the schema {self.schema} now")
                self.check()

    async def _drop_writer(self) -> None:
        connection, self._writer = self._writer, None
        if connection is not None:
            with suppress(psycopg.Error):
                await connection.close()

    async def _reconnect(self) -> tuple[Connection, int]:
        """Returns a new writer and the number of the last commit. Raises psycopg.Error, or StorageError if the schema
        has another owner."""
        connection = await _connect(self._conninfo, self._application_name("writer"))
        deadline = asyncio.get_running_loop().time() + SESSION_TIMEOUT_S
        try:
            with _shut_down_at(deadline, connection):
                await _configure(connection, self.schema)
                # Another owner holds the lock, so this is checked before waiting for it.
                await self._check_session(connection, self._commit_number)
                # The old session may not have noticed yet that its client is gone, and its commit may still be in
                # progress.
                await connection.execute(
                    # After a restart or a failover, another session may have the same process id. Long names are
                    # truncated.
                    "select pg_terminate_backend(pid) from pg_stat_activity where pid = %s and pid <> pg_backend_pid() "
                    "and application_name = current_setting('application_name') and datname = current_database()",
                    (self._writer_pid,),
                )
                await connection.execute("set lock_timeout = '5s'")
                await connection.execute("select pg_advisory_lock(hashtextextended(%s, 0))", (self._lock_name,))
                await connection.execute("set lock_timeout = 0")
                committed = await self._check_session(connection, self._commit_number)
        except BaseException:
            await connection.close()
            raise
        self._use_writer(connection)
        return connection, committed

    async def _check_session(self, connection: Connection, known: int) -> int:
        """Checks a new session, which may be on another server after a failover. Returns the number of the last commit.
        Raises StorageError if that is less than `known`, or if the schema has another owner."""
        try:
            await check_server(connection)
        except StorageError as error:
            self.fail(str(error))
        row = await (await connection.execute(_OWNER)).fetchone()
        incarnation, committed = row or (None, 0)
        self._check_owner(incarnation, committed, known)
        return int(committed)

    def _check_owner(self, incarnation: UUID | None, committed: int, known: int) -> None:
        if incarnation != self._incarnation:
            self.fail(f"another process owns the schema {self.schema} now")
        elif committed < known:
            self.fail(
                f"the Postgres server at {self.address} has lost transactions that it had committed (it has "
                f"{committed}, and had {known}): after a failover, start the node again to accept the loss"
            )
        self.check()

    async def check_owner(self, timeout_s: float) -> None:
        """Asks Postgres for the owner and the last commit. Raises StorageError, and fails for good, if another process
        owns the schema or commits are lost: a node without requests would not notice."""
        known = self._commit_number
        # Slow reads of clients do not mean that the server does not respond.
        [(incarnation, committed)] = await self.query(_OWNER, timeout_s=timeout_s, readers_max=READERS_MAX + 1)
        self._check_owner(incarnation, committed, known)

    # Queries

    async def query(
        self,
        statement: str,
        parameters: Sequence[object] | Mapping[str, object] = (),
        *,
        timeout_s: float | None = None,
        readers_max: int = READERS_MAX,
    ) -> list[Any]:
        """Returns the rows of a query outside of transactions. Waits for a server that is unreachable for a while;
        then raises StoreUnavailableError."""
        # Requests are started outside of a task, in which asyncio has no timeouts.
        return await asyncio.get_running_loop().create_task(self._query(statement, parameters, timeout_s, readers_max))

    async def _query(
        self,
        statement: str,
        parameters: Sequence[object] | Mapping[str, object],
        timeout_s: float | None,
        readers_max: int,
    ) -> list[Any]:
        loop = asyncio.get_running_loop()
        timeout_s = QUERY_TIMEOUT_S if timeout_s is None else timeout_s
        deadline, last_attempt = loop.time() + timeout_s, loop.time() + self.patience_s
        delay_s = _RETRY_DELAY_S_MIN
        while True:
            self.check()
            reader = None
            try:
                reader = await self._take_reader(deadline, readers_max)
                self._busy_readers.add(reader)
                self.check()
                with _shut_down_at(deadline, reader):
                    async with reader.cursor(binary=True) as cursor:
                        await cursor.execute(statement, parameters)
                        return await cursor.fetchall()
            except (TimeoutError, psycopg.Error) as error:
                if loop.time() >= deadline:
                    raise StoreUnavailableError(
                        f"Postgres at {self.address} has not answered a query for {timeout_s:g} seconds"
                    ) from error
                is_lost = reader is None or reader.closed
                if not is_lost and isinstance(error, psycopg.Error):
                    raise storage_error("reading from Postgres", error)  # noqa: B904 - it has its cause
                if loop.time() + delay_s > last_attempt or self._is_closing:
                    raise StoreUnavailableError(
                        f"Postgres at {self.address} is unreachable: {describe(error)}"
                    ) from error
            finally:
                if reader is not None:
                    self._busy_readers.discard(reader)
                    await self._give_reader(reader)
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, _RETRY_DELAY_S_MAX)

    async def _take_reader(self, deadline: float, readers_max: int) -> Connection:
        async with asyncio.timeout_at(deadline), self._reader_freed:
            await self._reader_freed.wait_for(lambda: self._readers or self._readers_open < readers_max)
            if self._readers:
                return self._readers.pop()
            self._readers_open += 1
        try:
            return await self._open_reader(deadline)
        except BaseException:
            await self._forget_reader()
            raise

    async def _open_reader(self, deadline: float) -> Connection:
        known = self._commit_number
        async with asyncio.timeout_at(deadline):
            reader = await _connect(self._conninfo, self._application_name("reader"))
        try:
            with _shut_down_at(deadline, reader):
                await _configure(reader, self.schema)
                await self._check_session(reader, known)
        except BaseException:
            await reader.close()
            raise
        return reader

    async def _give_reader(self, reader: Connection) -> None:
        is_idle = reader.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
        if reader.closed or not is_idle or self._is_closing or self._readers_open > READERS_MAX:
            # A cancelled query leaves a connection whose response was not read.
            await reader.close()
            await self._forget_reader()
            return
        async with self._reader_freed:
            self._readers.append(reader)
            self._reader_freed.notify()

    async def _forget_reader(self) -> None:
        async with self._reader_freed:
            self._readers_open -= 1
            self._reader_freed.notify()

    # Closing

    def stop_waiting(self) -> None:
        """Lets work that waits for an unreachable server fail."""
        self._is_closing = True

    @property
    def commit_number(self) -> int:
        return self._commit_number

    @property
    def is_busy(self) -> bool:
        """Whether a transaction is in progress, or work with one."""
        return self._lock.locked() or bool(self._running)

    def abort(self) -> None:
        """Lets all work fail, also the work that waits for the server on an open connection."""
        self.stop_waiting()
        self.fail(f"Postgres at {self.address} did not respond while the node was stopping")
        writers = [self._writer] if self._lock.locked() and self._writer is not None else []
        for connection in (*writers, *self._busy_readers):
            if not connection.closed:
                shut_down(connection.fileno())

    async def close(self) -> None:
        """Closes all connections, which releases the schema."""
        self._is_closing = True
        async with self._lock:
            await self._drop_writer()
            if self.failure is None:
                self.failure = f"the schema {self.schema} is closed"
        for reader in self._readers:
            await reader.close()
        self._readers.clear()


def _may_pass(error: psycopg.Error) -> bool:
    """Returns whether a later attempt to connect may succeed. A wrong password has no SQLSTATE in psycopg."""
    text = str(error)
    permanent = ("password authentication failed", "no password supplied", "does not exist", "no pg_hba.conf entry")
    return not any(each in text for each in permanent)
