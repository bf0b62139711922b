"""The relay: sends the rows of the outbox to Kafka, each exactly once.

One batch is in flight. It is recorded in Postgres, then sent in a Kafka transaction that also commits the number and
the token of the batch, and then its rows are deleted. After a crash this position tells whether the batch was sent:

    Postgres   rows of batch n are recorded          | delete them, record batch n + 1
    Kafka                         records, position n |

A new relay has the lock of the database and the transactional id of the outbox, which fences an earlier relay and ends
its transaction, before it reads the position.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

from moldau.client.errors import ErrorCode, KafkaError, TransactionAbortableError
from moldau.client.net.cluster import Cluster
from moldau.client.producer.producer import Producer, RecordMetadata
from moldau.concurrency.backoff import Backoff
from moldau.observe.logging import get_logger
from moldau.outbox.batches import FIELD_BYTES_MAX, NextBatch, OutboxBatches, RelayState
from moldau.outbox.database import check_installed, connect, translate_errors
from moldau.outbox.errors import PositionMismatchError, PostgresUnavailableError
from moldau.outbox.position import POSITION_TOPIC, OutboxPosition, SentBatch
from moldau.outbox.rows import OutboxRow, decode_headers
from moldau.outbox.schema import DEFAULT_SCHEMA

APPLICATION_NAME = "moldau outbox relay"
ROWS_MAX = 2_000
"""Rows in a batch. Consumers with read_committed get a batch when all of it is written."""
BYTES_MAX = 8 * 1024 * 1024
"""Bytes in a batch; one larger row is a batch of its own."""
REQUEST_BYTES_MAX = FIELD_BYTES_MAX
"""The largest record that the relay sends. Topics usually have a lower limit (max.message.bytes)."""
POLL_MS = 10
"""How often an idle relay looks for rows."""
POLL_SHARE_MAX = 0.25
"""The largest part of the time that an idle relay's queries may take."""
STANDBY_POLL_MS = 500
CONNECT_TIMEOUT_MS = 10_000
TOPIC_TIMEOUT_MS = 5_000
"""How long brokers may take to create the missing topics of a batch."""
MISSING_TOPIC_S = 30.0
"""How long a topic counts as missing before the relay looks for it again, which takes up to TOPIC_TIMEOUT_MS."""
DELIVERY_TIMEOUT_MS = 30_000
POSITION_REFRESH_S = 3_600.0
"""How often the position of an idle outbox is committed again. Brokers forget it after offsets.retention.minutes."""
RETRY_MS, RETRY_MAX_MS = 100, 5_000

_ROW_ERRORS = frozenset(
    {
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.invalid_topic_exception,
        ErrorCode.topic_authorization_failed,
        ErrorCode.message_too_large,
        ErrorCode.record_list_too_large,
        ErrorCode.invalid_record,
        ErrorCode.invalid_timestamp,
        ErrorCode.corrupt_message,
        ErrorCode.policy_violation,
    }
)
"""Errors of a row or its topic. They do not pass by themselves, so the row goes to the dead-letter table."""

_log = get_logger("outbox.relay")


@dataclass
class RelayCounts:
    sent: int = 0
    dead: int = 0
    """Rows that were moved to the dead-letter table, with those that wait there."""


class _RowsFailedError(Exception):
    """These rows cannot be sent, and their transaction was aborted."""

    def __init__(self, failures: dict[int, str]) -> None:
        super().__init__(f"{len(failures)} rows cannot be sent")
        self.failures = failures


class _BatchRejectedError(Exception):
    """A broker has refused a row of the batch, and did not say which one."""


class Relay:
    """Relays one outbox until it is told to stop. Failures of Postgres and Kafka are retried once it has begun."""

    def __init__(
        self,
        database_url: str,
        bootstrap: str,
        *,
        name: str,
        schema: str = DEFAULT_SCHEMA,
        compression: str = "none",
        poll_ms: int = POLL_MS,
        resets_position: bool = False,
        on_begin: Callable[[str], None] = lambda outbox: None,
        on_standby: Callable[[], None] = lambda: None,
    ) -> None:
        """`name` shows who the relay is. With `resets_position`, the relay continues although the position in Kafka
        does not fit the database, and may send the rows of one batch twice."""
        self.counts = RelayCounts()
        self._database_url = database_url
        self._bootstrap = bootstrap
        self._name = name
        self._schema = schema
        self._compression = compression
        self._poll_ms = poll_ms
        self._resets_position = resets_position
        self._on_begin = on_begin
        self._on_standby = on_standby
        self._has_begun = False
        self._is_standby = False

    async def run(self, stop: "asyncio.Future[int]") -> None:
        """Relays until `stop` is done. Raises OutboxError or KafkaError if it cannot begin or must not continue."""
        backoff: Backoff | None = None
        while not stop.done():
            cluster = Cluster(self._bootstrap, client_id=APPLICATION_NAME.replace(" ", "-"))
            if backoff is None:
                backoff = Backoff(cluster.random, RETRY_MS, RETRY_MAX_MS)
            session = _Session(self, cluster, stop, backoff)
            try:
                with translate_errors():
                    await session.run()
            except (PostgresUnavailableError, KafkaError) as error:
                if not self._has_begun:
                    raise
                delay_ms = backoff.next_delay_ms()
                _log.warning("the relay failed and begins again", error=error, delay_ms=delay_ms)
                await _wait(stop, delay_ms)
            finally:
                await cluster.close()


class _Session:
    """One connection to each of Postgres and Kafka. Any failure ends the session; the next one recovers."""

    def __init__(self, relay: Relay, cluster: Cluster, stop: "asyncio.Future[int]", backoff: Backoff) -> None:
        self._relay = relay
        self._cluster = cluster
        self._stop = stop
        self._backoff = backoff
        self._rows_max = ROWS_MAX
        self._missing_topics: dict[str, tuple[str, float]] = {}
        """The errors of topics that could not be found, and until when they count."""
        self._missing_requeues = -1
        self._position_s = 0.0
        """When the position was committed last."""
        self._batches: OutboxBatches
        self._producer: Producer
        self._position: OutboxPosition

    async def run(self) -> None:
        relay = self._relay
        async with AsyncExitStack() as stack:
            connection = await stack.enter_async_context(connect(relay._database_url, APPLICATION_NAME))
            await check_installed(connection, relay._schema)
            self._batches = OutboxBatches(connection, relay._schema)
            await self._batches.prepare_session()
            if not await self._wait_for_lock():
                return
            await self._connect_to_kafka()
            state = await self._batches.begin(relay._name)
            name = f"moldau-outbox-{state.outbox_id}"
            self._position = OutboxPosition(self._cluster, name)
            await self._position.create_topic()
            self._producer = Producer(
                self._cluster,
                transactional_id=name,
                compression=relay._compression,
                linger_ms=0,
                batch_size=256 * 1024,
                max_request_size=REQUEST_BYTES_MAX,
                buffer_memory=2 * REQUEST_BYTES_MAX,
                delivery_timeout_ms=DELIVERY_TIMEOUT_MS,
            )
            # An error in the block leaves the transaction to the next session, which ends it.
            await stack.enter_async_context(self._producer)
            await self._recover(state)
            relay._has_begun = True
            relay._on_begin(name)
            self._backoff.reset()
            await self._relay_rows()

    async def _connect_to_kafka(self) -> None:
        """Connects. A cluster that was started just before the relay needs a moment."""
        retry = self._cluster.retry(CONNECT_TIMEOUT_MS)
        while True:
            try:
                await self._cluster.refresh()
                break
            except KafkaError as error:
                await retry.wait_or_raise(error)
        await self._cluster.start()

    async def _wait_for_lock(self) -> bool:
        """Waits until no other relay has the lock. Returns whether this one has it."""
        while not self._stop.done():
            if await self._batches.try_lock():
                self._relay._is_standby = False
                return True
            if not self._relay._is_standby:
                self._relay._is_standby = self._relay._has_begun = True
                self._relay._on_standby()
            await _wait(self._stop, STANDBY_POLL_MS)
        return False

    # Recovery

    async def _recover(self, state: RelayState) -> None:
        """Finds out whether the last batch was sent, and sends it otherwise."""
        position = await self._position.read()
        problem = _find_mismatch(state, position)
        is_sent = problem is None and position is not None and position.token == state.token
        if problem is not None:
            if not self._relay._resets_position:
                raise PositionMismatchError(
                    f"{problem}, so it is unknown whether rows of the outbox were sent already. If this database was "
                    "copied or restored or the relay uses another cluster, run the relay once with --reset-position: "
                    "it sends what is in the outbox, possibly again"
                )
            _log.warning("the position is reset and rows may be sent twice", problem=problem)
            number = max(0 if position is None else position.number, state.batch)
            token = await self._batches.restart_history(number + 1)
            await self._commit_position(SentBatch(number, token))
        elif not state.ids:
            # From the first time on, a missing position means that Kafka has lost it.
            await self._commit_current_position()
        elif is_sent:
            self._batches.mark_sent()
        self._relay._resets_position = False
        if state.ids and not is_sent:
            await self._send_current(await self._batches.read_current())

    @property
    def _current(self) -> SentBatch:
        return SentBatch(self._batches.number, self._batches.token)

    async def _commit_current_position(self) -> None:
        await self._commit_position(self._current)
        self._batches.mark_sent()

    async def _commit_position(self, batch: SentBatch) -> None:
        async with self._producer.transaction() as transaction:
            await self._position.send(transaction, batch)
        self._position_s = asyncio.get_running_loop().time()

    # Sending

    async def _relay_rows(self) -> None:
        while not self._stop.done():
            batch = await self._batches.next(self._rows_max, BYTES_MAX)
            self._count_dead(batch)
            if batch.rows:
                await self._send_current(batch.rows)
            elif batch.newly_waiting == batch.newly_failed == 0:
                await self._wait_for_rows()
        await self._batches.finish()

    async def _wait_for_rows(self) -> None:
        loop = asyncio.get_running_loop()
        while not self._stop.done():
            began = loop.time()
            if began - self._position_s > POSITION_REFRESH_S:
                await self._commit_current_position()
                continue
            if await self._batches.has_work():
                return
            query_ms = (loop.time() - began) * 1000
            await _wait(self._stop, max(self._relay._poll_ms, query_ms / POLL_SHARE_MAX))

    async def _send_current(self, rows: Sequence[OutboxRow]) -> None:
        """Sends the rows of the current batch, without those that cannot be sent."""
        while rows:
            try:
                failures = await self._find_missing_topics(rows)
                if failures:
                    raise _RowsFailedError(failures)
                await self._send(rows)
                self._rows_max = min(2 * self._rows_max, ROWS_MAX)
                self._relay.counts.sent += len(rows)
                return
            except _RowsFailedError as error:
                failures = error.failures
            except _BatchRejectedError as error:
                # The topics may have changed since the last look.
                await self._cluster.refresh(list({each.topic for each in rows}))
                if len(rows) == 1:
                    failures = {rows[0].id: str(error)}
                else:
                    # Halves lead to the row that is refused, whatever the reason is.
                    self._rows_max = len(rows) // 2
                    rows, failures = rows[: self._rows_max], {}
            replaced = await self._batches.replace(rows, failures)
            self._count_dead(replaced)
            rows = replaced.rows

    def _count_dead(self, batch: NextBatch) -> None:
        self._relay.counts.dead += batch.newly_failed + batch.newly_waiting

    async def _find_missing_topics(self, rows: Iterable[OutboxRow]) -> dict[int, str]:
        """Returns the errors of rows whose topics do not exist and are not created by the brokers."""
        now_s = asyncio.get_running_loop().time()
        if self._missing_requeues != self._batches.requeues:
            # Dead letters were retried or discarded, perhaps because their topics exist now.
            self._missing_requeues = self._batches.requeues
            self._missing_topics.clear()
        self._missing_topics = {name: each for name, each in self._missing_topics.items() if each[1] > now_s}
        await self._wait_for_topics({each.topic for each in rows})
        missing = self._missing_topics
        return {each.id: missing[each.topic][0] for each in rows if each.topic in missing}

    async def _wait_for_topics(self, names: Iterable[str]) -> None:
        """Waits until these topics exist, all for the same time. Records the topics that do not."""
        retry = self._cluster.retry(TOPIC_TIMEOUT_MS)
        cluster, missing = self._cluster, self._missing_topics
        while unknown := sorted(each for each in names if each not in cluster.topics and each not in missing):
            try:
                await cluster.wait_for_topics(unknown, timeout_ms=retry.remaining_ms, create=True)
            except KafkaError as error:
                if error.code not in _ROW_ERRORS:
                    raise
                if error.is_retriable:
                    # It may be the error of an earlier attempt, after which no broker has responded any more.
                    await cluster.refresh(unknown, timeout_ms=CONNECT_TIMEOUT_MS)
                until_s = asyncio.get_running_loop().time() + MISSING_TOPIC_S
                for name in unknown:
                    if name in cluster.topics:
                        continue
                    found = KafkaError(cluster.topic_errors.get(name, error.code), f"the topic {name!r}")
                    # A retriable error means that the time is up for all topics.
                    if error.is_retriable and found.code not in _ROW_ERRORS:
                        raise found from error
                    if error.is_retriable or not found.is_retriable:
                        missing[name] = str(found), until_s
            cluster.track(each for each in unknown if each in cluster.topics)

    async def _send(self, rows: Iterable[OutboxRow]) -> None:
        """Sends rows and the number of their batch in one transaction."""
        failures: dict[int, str] = {}
        deliveries: list[asyncio.Future[RecordMetadata]] = []
        try:
            async with self._producer.transaction() as transaction:
                for row in rows:
                    try:
                        delivery = await self._producer.send(
                            row.topic,
                            row.value,
                            key=row.key,
                            partition=row.partition,
                            timestamp_ms=row.timestamp_ms,
                            headers=decode_headers(row.headers),
                        )
                    except ValueError as error:
                        failures[row.id] = str(error)
                    except TransactionAbortableError:
                        raise
                    except KafkaError as error:
                        if error.code not in _ROW_ERRORS:
                            raise
                        failures[row.id] = str(error)
                    else:
                        deliveries.append(delivery)
                if failures:
                    raise _RowsFailedError(failures)
                await self._position.send(transaction, self._current)
        except TransactionAbortableError as error:
            if error.code in _ROW_ERRORS and POSITION_TOPIC not in error.message:
                raise _BatchRejectedError(str(error.cause)) from error
            raise
        finally:
            for delivery in deliveries:
                if delivery.done() and not delivery.cancelled():
                    delivery.exception()  # The transaction has the result of all.
        self._batches.mark_sent()
        self._position_s = asyncio.get_running_loop().time()


def _find_mismatch(state: RelayState, position: SentBatch | None) -> str | None:
    """Returns why the position does not fit the database; None if it does."""
    if position is None:
        return "Kafka has no position of this outbox" if state.ids else None
    if position.number > state.batch:
        return f"Kafka has batch {position.number} of this outbox, but the database knows only {state.batch}"
    if position.token not in (state.token, state.sent_token):
        return f"Kafka has batch {position.number} of this outbox from another copy of the database"
    return None


async def _wait(stop: "asyncio.Future[int]", delay_ms: float) -> None:
    await asyncio.wait([stop], timeout=delay_ms / 1000)
