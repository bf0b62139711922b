"""A listener that passes the records of topics to a handler and acknowledges them.

    async def handle(record: ConsumerRecord) -> None:
        ...

    async with Consumer(BOOTSTRAP, group_id="billing", enable_auto_commit=False) as consumer:
        await RecordListener(consumer, ["orders"], handle).run()

An acknowledged record is never passed to a handler of the group again, once its offset is committed. Offsets are
committed after the handler has returned, so a record may be handled twice after a crash (at least once), or before it
is called, so a record may not be handled at all (at most once).
"""

import asyncio
import inspect
import re
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from enum import StrEnum
from typing import Any, Literal

from moldau.client.consumer.consumer import Consumer
from moldau.client.consumer.subscription_state import OffsetAndMetadata
from moldau.client.errors import CommitFailedError, ErrorCode, KafkaError, RebalanceInProgressError
from moldau.client.listener.ack_window import AckWindow
from moldau.client.listener.dead_letters import HANDLER_FAILED, DeadLetterTopic, ErrorHeader
from moldau.client.record import ConsumerRecord, TopicPartition
from moldau.observe.logging import get_logger

DEFAULT_RETRIES = 3
_POLL_MS = 1_000
_KEEP_ALIVE_S = 1.0
"""How often the consumer polls while there are records to handle, so that it takes part in rebalances."""
_DETAIL_CHARACTERS_MAX = 1_000
_CLOSE_TIMEOUT_S = 10.0

_log = get_logger("client.listener")


class AckMode(StrEnum):
    AUTO = "auto"
    """`handler(record)`: a record is acknowledged when the handler returns. Commits every `commit_interval_ms`."""
    BATCH = "batch"
    """`handler(records)`: all records are acknowledged, and their offsets committed, when the handler returns."""
    MANUAL = "manual"
    """`handler(record, acknowledgement)`: a record is acknowledged when `acknowledgement` says so, at any time and in
    any order. Commits every `commit_interval_ms` and on request."""


class HandlerFailedError(Exception):
    """A handler failed and `on_failure` is "stop". The records were not acknowledged. The cause is the handler's
    error."""

    def __init__(self, records: Sequence[ConsumerRecord]) -> None:
        first = records[0]
        super().__init__(f"the handler failed at {first.topic}-{first.partition} offset {first.offset}")
        self.records = records


class Acknowledgement:
    """Acknowledges one record in the mode `manual`."""

    def __init__(self, listener: "RecordListener", record: ConsumerRecord, assignment: object) -> None:
        self._listener = listener
        self._partition = TopicPartition(record.topic, record.partition)
        self._offset = record.offset
        self._assignment = assignment

    def acknowledge(self) -> None:
        """Acknowledges the record. Does nothing if the partition was revoked, even if it was assigned again: its owner
        gets the record again. Does nothing either after `RecordListener.run` has returned."""
        self._listener.acknowledge(self._partition, self._offset, self._assignment)

    async def commit(self) -> None:
        """Acknowledges the record and commits. The committed offset stays at the first record that is not acknowledged.

        Raises CommitFailedError if the partition was revoked, and KafkaError if the commit failed; the listener then
        repeats it.
        """
        if not self._listener.acknowledge(self._partition, self._offset, self._assignment):
            raise CommitFailedError(ErrorCode.illegal_generation, f"{self._partition} is no longer assigned")
        await self._listener.commit()


Handler = Callable[..., Awaitable[None] | None]
"""A plain or async function. `AckMode` describes its arguments."""


class RecordListener:
    """Runs a handler for each record, or for each batch of records, of a consumer's topics."""

    def __init__(
        self,
        consumer: Consumer,
        topics: "Sequence[str] | re.Pattern[str]",
        handler: Handler,
        *,
        ack_mode: Literal["auto", "batch", "manual"] = "auto",
        commit: Literal["after", "before"] = "after",
        commit_interval_ms: int = 1_000,
        max_batch_records: int = 500,
        retries: int | None = None,
        retry_delay_ms: int = 1_000,
        on_failure: Literal["stop", "skip"] | DeadLetterTopic = "stop",
        max_unacked_records: int = 10_000,
        max_unacked_bytes: int = 64 * 1024 * 1024,
    ) -> None:
        """`commit` says whether offsets are committed after the handler has returned, or before it is called.

        A handler that raises an exception is called again up to `retries` times (default: 3, or none with
        `commit="before"`), each after `retry_delay_ms`. Then `on_failure` applies: "stop" ends `run` with
        HandlerFailedError, "skip" acknowledges the records, and a DeadLetterTopic gets them before they are
        acknowledged.

        With the mode `manual`, fetching pauses while `max_unacked_records` or `max_unacked_bytes` are not acknowledged.
        """
        self._mode = AckMode(ack_mode)
        if consumer.is_auto_commit:
            raise ValueError("the consumer needs a group_id and enable_auto_commit=False: the listener commits")
        if commit not in ("after", "before"):
            raise ValueError(f"commit must be 'after' or 'before', not {commit!r}")
        if commit == "before" and (retries or self._mode is AckMode.MANUAL):
            raise ValueError("with commit='before' there are no retries and no manual acknowledgements")
        if not isinstance(on_failure, DeadLetterTopic) and on_failure not in ("stop", "skip"):
            raise ValueError(f"on_failure must be 'stop', 'skip' or a DeadLetterTopic, not {on_failure!r}")
        if retries is None:
            retries = 0 if commit == "before" else DEFAULT_RETRIES
        limits = (max_batch_records, max_unacked_records, max_unacked_bytes, commit_interval_ms)
        if min(limits) < 1 or min(retry_delay_ms, retries) < 0:
            raise ValueError("limits and the interval must be at least 1, and retries and their delay not negative")
        if retries * retry_delay_ms >= consumer.max_poll_interval_ms:
            raise ValueError("the retries take longer than max_poll_interval_ms: the consumer would leave its group")
        self._consumer = consumer
        self._topics = topics
        self._handler = handler
        self._commits_before = commit == "before"
        self._commit_interval_s = commit_interval_ms / 1000
        self._max_batch_records = max_batch_records
        self._retries = retries
        self._retry_delay_s = retry_delay_ms / 1000
        self._on_failure = on_failure
        self._window = AckWindow(max_unacked_records, max_unacked_bytes)
        self._pending: deque[ConsumerRecord] = deque()
        """Records that were polled and not handled."""
        self._acknowledged = asyncio.Event()
        self._next_commit_s = 0.0
        self._next_poll_s = 0.0
        """The loop time when the consumer must poll to stay in the group, also if it can take no records."""
        self._is_stopping = False

    def stop(self) -> None:
        """Lets `run` return after the current call of the handler, or at its next start."""
        self._is_stopping = True
        self._acknowledged.set()

    async def run(self) -> None:
        """Handles records until `stop` is called. When it ends, also after an error, it commits what is acknowledged.

        Then it can run again with the same consumer, and starts with the first record that is not acknowledged.
        """
        subscription: dict[str, Any] = (
            {"pattern": self._topics} if isinstance(self._topics, re.Pattern) else {"topics": self._topics}
        )
        self._consumer.subscribe(**subscription, on_revoked=self._on_revoked, on_lost=self._on_lost)
        try:
            while not self._is_stopping:
                await self._fill()
                await self._handle_next()
                await self._commit_if_due()
        finally:
            self._is_stopping = False
            await self._commit_at_end()
            self._rewind()

    def _rewind(self) -> None:
        """Lets the consumer return the records again that were polled and not acknowledged."""
        first = self._window.first_unacknowledged()
        self._pending.clear()
        self._window.clear()
        for partition in set(self._consumer.assignment).intersection(first):
            self._consumer.seek(partition, first[partition])

    # Records

    async def _fill(self) -> None:
        """Polls if there is nothing to handle, or if the consumer must poll to stay in the group."""
        loop = asyncio.get_running_loop()
        if self._window.is_full and not self._pending:
            await self._wait_for_acknowledgement()
        must_poll = loop.time() >= self._next_poll_s
        if self._is_stopping or (self._pending and not must_poll):
            return
        assigned = self._consumer.assignment
        if self._window.is_full or self._pending:
            self._consumer.pause(assigned)
            records = await self._consumer.poll(0)
        else:
            self._consumer.resume(assigned)
            limit = min(self._max_batch_records, self._window.free_records)
            records = await self._consumer.poll(min(_POLL_MS, round(self._commit_interval_s * 1000)), limit)
        self._next_poll_s = loop.time() + min(_KEEP_ALIVE_S, self._consumer.max_poll_interval_ms / 3000)
        for record in records:
            self._window.add(record)
        self._pending.extend(records)

    async def _wait_for_acknowledgement(self) -> None:
        self._acknowledged.clear()
        timeout_s = max(0.0, min(self._next_poll_s, self._next_commit_s) - asyncio.get_running_loop().time())
        try:
            async with asyncio.timeout(timeout_s):
                await self._acknowledged.wait()
        except TimeoutError:
            return

    async def _handle_next(self) -> None:
        """Handles the next record, or in the mode `batch` all pending ones, without those of revoked partitions."""
        count = len(self._pending) if self._mode is AckMode.BATCH else min(1, len(self._pending))
        taken = [self._pending.popleft() for _ in range(count)]
        records = [each for each in taken if self._window.contains(_partition(each), each.offset)]
        if not records or (self._commits_before and not await self._commit_before_handling(records)):
            return
        try:
            is_handled = await self._call_with_retries(records)
        except Exception as error:
            await self._handle_failure(records, error)
        else:
            if is_handled and self._mode is not AckMode.MANUAL:
                self._acknowledge_all(records)
        if self._mode is AckMode.BATCH:
            self._next_commit_s = 0.0

    async def _call_with_retries(self, records: list[ConsumerRecord]) -> bool:
        """Returns False if the listener stops before the handler has succeeded or used up its retries."""
        for attempt in range(self._retries + 1):
            try:
                result = self._handler(*self._arguments(records))
                if inspect.isawaitable(result):
                    await result
                return True
            except Exception as error:
                if attempt == self._retries:
                    raise
                if self._is_stopping:
                    break
                _log.warning("a handler failed and is called again", record=_place(records[0]), error=repr(error))
                await asyncio.sleep(self._retry_delay_s)
        return False

    def _arguments(self, records: list[ConsumerRecord]) -> tuple[Any, ...]:
        match self._mode:
            case AckMode.BATCH:
                return (records,)
            case AckMode.MANUAL:
                assignment = self._window.assignment_of(_partition(records[0]))
                return (records[0], Acknowledgement(self, records[0], assignment))
            case _:
                return (records[0],)

    async def _handle_failure(self, records: list[ConsumerRecord], error: Exception) -> None:
        if self._on_failure == "stop":
            raise HandlerFailedError(records) from error
        if isinstance(self._on_failure, DeadLetterTopic):
            texts = {
                ErrorHeader.REASON: HANDLER_FAILED,
                ErrorHeader.DETAIL: f"{type(error).__name__}: {error}"[:_DETAIL_CHARACTERS_MAX],
                ErrorHeader.PIPELINE: self._consumer.group_metadata().group_id,
                ErrorHeader.SOURCE: getattr(self._handler, "__qualname__", type(self._handler).__qualname__),
                ErrorHeader.TIME: str(self._consumer.cluster.clock.wall_ms()),
            }
            for record in records:
                await self._on_failure.send(record, texts)
        else:
            _log.error("a handler failed and its records are skipped", record=_place(records[0]), error=repr(error))
        self._acknowledge_all(records)

    # Acknowledgements and commits

    def acknowledge(self, partition: TopicPartition, offset: int, assignment: object) -> bool:
        """Returns False if the assignment with which the record was received has ended."""
        if self._window.assignment_of(partition) is not assignment:
            return False
        self._window.acknowledge(partition, offset)
        self._acknowledged.set()
        return True

    def _acknowledge_all(self, records: Sequence[ConsumerRecord]) -> None:
        for record in records:
            self._window.acknowledge(_partition(record), record.offset)

    async def commit(self) -> None:
        """Commits everything that is acknowledged. Raises KafkaError."""
        offsets = self._window.offsets_to_commit()
        if offsets:
            await self._consumer.commit(offsets)
            self._window.on_committed(offsets)

    async def _commit_if_due(self) -> None:
        now_s = asyncio.get_running_loop().time()
        if now_s < self._next_commit_s:
            return
        self._next_commit_s = now_s + self._commit_interval_s
        await self._commit_or_log()

    async def _commit_or_log(self) -> None:
        """Commits. What cannot be committed now is committed later, or read again by the next owner of the partition.

        Raises KafkaError if repetition cannot help.
        """
        try:
            await self.commit()
        except (CommitFailedError, RebalanceInProgressError) as error:
            _log.debug("offsets are not committed during a rebalance", error=error)
            self._next_poll_s = 0.0
        except KafkaError as error:
            if not error.is_retriable:
                raise
            _log.warning("a commit failed and is repeated", error=error)

    async def _commit_before_handling(self, records: Sequence[ConsumerRecord]) -> bool:
        """Commits the offsets after these records. Returns False if that fails; the records are then pending again."""
        offsets = {
            _partition(each): OffsetAndMetadata(each.offset + 1, leader_epoch=each.leader_epoch) for each in records
        }
        try:
            await self._consumer.commit(offsets)
        except KafkaError as error:
            if not isinstance(error, CommitFailedError | RebalanceInProgressError) and not error.is_retriable:
                raise
            _log.warning("records are not handled yet, because their offsets could not be committed", error=error)
            self._pending.extendleft(reversed(records))
            self._next_poll_s = 0.0
            await asyncio.sleep(self._consumer.cluster.retry_backoff_ms / 1000)
            return False
        self._acknowledge_all(records)
        self._window.on_committed(offsets)
        return True

    async def _on_revoked(self, partitions: list[TopicPartition]) -> None:
        try:
            await self._commit_or_log()
        finally:
            self._on_lost(partitions)

    def _on_lost(self, partitions: list[TopicPartition]) -> None:
        self._window.remove(partitions)
        revoked = set(partitions)
        self._pending = deque(each for each in self._pending if _partition(each) not in revoked)

    async def _commit_at_end(self) -> None:
        try:
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                await self.commit()
        except (KafkaError, TimeoutError) as error:
            _log.warning("the last offsets are not committed, so their records are handled again", error=repr(error))


def _partition(record: ConsumerRecord) -> TopicPartition:
    return TopicPartition(record.topic, record.partition)


def _place(record: ConsumerRecord) -> str:
    return f"{record.topic}-{record.partition} offset {record.offset}"
