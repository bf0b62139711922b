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
from moldau.client.errors import CommitFailedError, ErrorCode, IllegalStateError, KafkaError, RebalanceInProgressError
from moldau.client.listener.ack_window import AckWindow
from moldau.client.listener.dead_letters import HANDLER_FAILED, DeadLetterTopic, ErrorHeader
from moldau.client.record import ConsumerRecord, TopicPartition
from moldau.concurrency.tasks import wait_until
from moldau.observe.logging import get_logger

DEFAULT_RETRIES = 3
_POLL_MS = 1_000
_KEEP_ALIVE_S = 1.0
"""How often the consumer polls while there are records to handle, so that it takes part in rebalances."""
_DETAIL_CHARACTERS_MAX = 1_000
_CLOSE_TIMEOUT_S = 10.0
_SLICE_S = 0.005
"""How long handlers that never suspend are called before other tasks run, such as heartbeats."""
_DELETED_TOPIC_ERRORS = (ErrorCode.unknown_topic_or_partition, ErrorCode.unknown_topic_id)
"""Errors of a commit for a topic that was deleted. The group's next assignment omits the topic."""

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
    """Acknowledges one record in the mode `manual`. Use it in the event loop, not in other threads."""

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

        Raises CommitFailedError if the partition was revoked, RebalanceInProgressError during a rebalance, and
        KafkaError if the commit failed. The record stays acknowledged, and the listener repeats the commit, so a
        handler can let these errors pass.
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
        `commit="before"`), each after `retry_delay_ms`. The consumer stays in its group during the delay. Then
        `on_failure` applies: "stop" ends `run` with HandlerFailedError, "skip" acknowledges the records, and a
        DeadLetterTopic gets them before they are acknowledged.

        With the mode `manual`, the handler gets no more records while `max_unacked_records` or `max_unacked_bytes` are
        not acknowledged, and fetching pauses.
        """
        self._mode = AckMode(ack_mode)
        if consumer.is_auto_commit:
            raise ValueError("the consumer needs a group_id and enable_auto_commit=False: the listener commits")
        if commit not in ("after", "before"):
            raise ValueError(f"commit must be 'after' or 'before', not {commit!r}")
        if commit == "before" and (retries or self._mode is AckMode.MANUAL):
            raise ValueError("with commit='before' there are no retries and no manual acknowledgements")
        if not isinstance(on_failure, DeadLetterTopic):
            if on_failure not in ("stop", "skip"):
                raise ValueError(f"on_failure must be 'stop', 'skip' or a DeadLetterTopic, not {on_failure!r}")
        elif topics.fullmatch(on_failure.topic) if isinstance(topics, re.Pattern) else on_failure.topic in topics:
            raise ValueError(f"the listener would read its own dead letters: exclude {on_failure.topic!r} from topics")
        if retries is None:
            retries = 0 if commit == "before" else DEFAULT_RETRIES
        limits = (max_batch_records, max_unacked_records, max_unacked_bytes, commit_interval_ms)
        if min(limits) < 1 or min(retry_delay_ms, retries) < 0:
            raise ValueError("limits and the interval must be at least 1, and retries and their delay not negative")
        self._consumer = consumer
        self._topics = topics
        self._handler = handler
        self._commits_before = commit == "before"
        self._commit_interval_s = commit_interval_ms / 1000
        self._commit_timeout_ms = min(consumer.cluster.request_timeout_ms, consumer.max_poll_interval_ms // 3)
        self._commit_backoff = consumer.cluster.backoff()
        self._max_batch_records = max_batch_records
        self._retries = retries
        self._retry_delay_s = retry_delay_ms / 1000
        self._on_failure = on_failure
        self._window = AckWindow(max_unacked_records, max_unacked_bytes)
        """The records that the handler got, unless they were committed before."""
        self._pending: deque[ConsumerRecord] = deque()
        """Records that were polled and that the handler has not got."""
        self._handling: list[ConsumerRecord] = []
        """The records of the handler's current call and its retries, without those of revoked partitions."""
        self._paused: set[TopicPartition] = set()
        """The partitions that this listener has paused."""
        self._wakeup = asyncio.Event()
        """Set by acknowledgements and by `stop`."""
        self._next_commit_s = 0.0
        self._next_poll_s = 0.0
        """The loop time when the consumer must poll to stay in the group, also if it can take no records."""
        self._is_commit_overdue = False
        """Whether the handler gets no records until a commit succeeds, so that a crash repeats only few of them."""
        self._is_running = False
        self._is_stopping = False

    def stop(self) -> None:
        """Lets `run` return after the current call of the handler, or at its next start."""
        self._is_stopping = True
        self._wakeup.set()

    async def run(self) -> None:
        """Handles records until `stop` is called. When it ends, also after an error, it commits what is acknowledged.

        Then it can run again with the same consumer, and starts with the first record that is not acknowledged.
        """
        if self._is_running:
            raise IllegalStateError("the listener is running: start another one with its own consumer")
        subscription: dict[str, Any] = (
            {"pattern": self._topics} if isinstance(self._topics, re.Pattern) else {"topics": self._topics}
        )
        self._consumer.subscribe(**subscription, on_revoked=self._on_revoked, on_lost=self._on_lost)
        self._is_running = True
        loop = asyncio.get_running_loop()
        slice_end = loop.time() + _SLICE_S
        try:
            while not self._is_stopping:
                await self._fill()
                await self._handle_next()
                await self._commit_if_due()
                if loop.time() >= slice_end:
                    await asyncio.sleep(0)
                    slice_end = loop.time() + _SLICE_S
        finally:
            self._is_stopping = False
            try:
                await self._commit_at_end()
            finally:
                self._rewind()
                self._is_running = False

    def _rewind(self) -> None:
        """Lets the consumer return the records again that were polled and not acknowledged."""
        first = {_partition(each): each.offset for each in reversed(self._pending)}
        first |= self._window.first_unacknowledged()
        self._pending.clear()
        self._handling = []
        self._window.clear()
        self._is_commit_overdue = False
        self._resume()
        for partition in set(self._consumer.assignment).intersection(first):
            self._consumer.seek(partition, first[partition])

    # Records

    @property
    def _is_blocked(self) -> bool:
        """Whether the handler must not get records now."""
        return self._window.is_full or self._is_commit_overdue

    async def _fill(self) -> None:
        """Polls if there is nothing to handle, or if the consumer must poll to stay in the group."""
        if self._is_blocked:
            await self._wait(self._next_commit_s)
        if self._is_stopping:
            return
        if self._pending or self._is_blocked:
            await self._poll_if_due()
            return
        self._resume()
        timeout_ms = min(_POLL_MS, round(self._commit_interval_s * 1000))
        await self._poll(timeout_ms, self._max_batch_records)

    async def _poll_if_due(self) -> None:
        """Polls without taking records if it is time, so that the consumer takes part in rebalances."""
        if asyncio.get_running_loop().time() < self._next_poll_s:
            return
        unpaused = set(self._consumer.assignment).difference(self._consumer.paused)
        self._consumer.pause(unpaused)
        self._paused |= unpaused
        # Partitions that this poll assigns are not paused.
        await self._poll(0)

    async def _poll(self, timeout_ms: int, records_max: int | None = None) -> None:
        # A rebalance during the poll replaces `_pending`, so look it up afterwards.
        records = await self._consumer.poll(timeout_ms, records_max)
        self._pending.extend(records)
        interval_s = min(_KEEP_ALIVE_S, self._consumer.max_poll_interval_ms / 3000)
        self._next_poll_s = asyncio.get_running_loop().time() + interval_s

    def _resume(self) -> None:
        if self._paused:
            self._consumer.resume(self._paused.intersection(self._consumer.assignment))
            self._paused.clear()

    async def _wait(self, until_s: float) -> None:
        """Waits for an acknowledgement, `stop`, the next poll that is due, or the loop time `until_s`."""
        self._wakeup.clear()
        await wait_until(self._wakeup, min(until_s, self._next_poll_s))

    async def _handle_next(self) -> None:
        """Handles the next record, or in the mode `batch` the next batch."""
        if self._is_blocked:
            return
        count = self._max_batch_records if self._mode is AckMode.BATCH else 1
        self._handling = [self._pending.popleft() for _ in range(min(count, len(self._pending)))]
        if not self._handling:
            return
        if self._commits_before:
            if not await self._commit_before_handling():
                return
        else:
            for record in self._handling:
                self._window.add(record)
        await self._handle()
        self._handling = []
        if self._mode is AckMode.BATCH:
            self._next_commit_s = 0.0

    async def _handle(self) -> None:
        """Calls the handler until it succeeds or has used up its retries."""
        for attempt in range(self._retries + 1):
            error = await self._call_handler()
            if error is None:
                if self._mode is not AckMode.MANUAL:
                    self._acknowledge_handling()
                return
            if not self._handling:
                _log.warning("a handler failed after its partitions were revoked", error=repr(error))
                return
            if self._is_acknowledged():
                self._handle_late_failure(error)
                return
            if attempt == self._retries:
                await self._handle_failure(error)
                return
            _log.warning("a handler failed and is called again", record=_place(self._handling[0]), error=repr(error))
            await self._wait_to_retry()
            if self._is_stopping or not self._handling or self._is_acknowledged():
                return

    async def _call_handler(self) -> BaseException | None:
        """Returns the handler's error."""
        try:
            result = self._handler(*self._arguments())
            if inspect.isawaitable(result):
                await result
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            # The handler awaited something that was cancelled. Its listener was not.
            return error
        except Exception as error:
            return error
        return None

    def _arguments(self) -> tuple[Any, ...]:
        if self._mode is AckMode.BATCH:
            return (list(self._handling),)
        record = self._handling[0]
        if self._mode is AckMode.MANUAL:
            return (record, Acknowledgement(self, record, self._window.assignment_of(_partition(record))))
        return (record,)

    async def _wait_to_retry(self) -> None:
        """Waits for the retry delay, until `stop`, or until the records need no retry. Polls and commits meanwhile."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._retry_delay_s
        while True:
            await self._poll_if_due()
            await self._commit_if_due()
            if loop.time() >= deadline or self._is_stopping or not self._handling or self._is_acknowledged():
                return
            await self._wait(min(deadline, self._next_commit_s))

    def _is_acknowledged(self) -> bool:
        """Returns whether the record in the handler was acknowledged through its Acknowledgement."""
        if self._mode is not AckMode.MANUAL:
            return False
        record = self._handling[0]
        return not self._window.contains(_partition(record), record.offset)

    def _handle_late_failure(self, error: BaseException) -> None:
        """Handles an error that the handler has raised after it has acknowledged its record. There are no retries."""
        is_of_commit = isinstance(error, KafkaError) and (error.is_retriable or _is_of_rebalance(error))
        if self._on_failure == "stop" and not is_of_commit:
            raise HandlerFailedError(self._handling) from error
        _log.warning(
            "a handler failed after it had acknowledged its record", record=_place(self._handling[0]), error=repr(error)
        )

    async def _handle_failure(self, error: BaseException) -> None:
        if self._on_failure == "stop":
            raise HandlerFailedError(self._handling) from error
        if isinstance(self._on_failure, DeadLetterTopic):
            texts = {
                ErrorHeader.REASON: HANDLER_FAILED,
                ErrorHeader.DETAIL: f"{type(error).__name__}: {error}"[:_DETAIL_CHARACTERS_MAX],
                ErrorHeader.PIPELINE: self._consumer.group_metadata().group_id,
                ErrorHeader.SOURCE: getattr(self._handler, "__qualname__", type(self._handler).__qualname__),
                ErrorHeader.TIME: str(self._consumer.cluster.clock.wall_ms()),
            }
            await self._on_failure.send(self._handling, texts)
        else:
            place = _place(self._handling[0])
            _log.error("a handler failed and its records are skipped", record=place, error=repr(error))
        self._acknowledge_handling()

    # Acknowledgements and commits

    def acknowledge(self, partition: TopicPartition, offset: int, assignment: object) -> bool:
        """Returns False if the assignment with which the record was received has ended."""
        if self._window.assignment_of(partition) is not assignment:
            return False
        self._window.acknowledge(partition, offset)
        self._wakeup.set()
        return True

    def _acknowledge_handling(self) -> None:
        for record in self._handling:
            self._window.acknowledge(_partition(record), record.offset)

    async def commit(self) -> None:
        """Commits everything that is acknowledged. Raises KafkaError."""
        offsets = self._window.offsets_to_commit()
        if offsets:
            await self._consumer.commit(offsets, timeout_ms=self._commit_timeout_ms)
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
        except KafkaError as error:
            if _is_of_rebalance(error):
                _log.debug("offsets are not committed during a rebalance", error=error)
                self._next_poll_s = 0.0
                # Without partitions that move, records can be handled during a rebalance. But a batch needs a commit.
                self._is_commit_overdue = self._mode is AckMode.BATCH
            elif error.is_retriable:
                _log.warning("a commit failed and is repeated", error=error)
                self._is_commit_overdue = error.code not in _DELETED_TOPIC_ERRORS
            else:
                raise
            if self._is_commit_overdue:
                delay_s = self._commit_backoff.next_delay_ms() / 1000
                self._next_commit_s = asyncio.get_running_loop().time() + delay_s
        else:
            self._is_commit_overdue = False
            self._commit_backoff.reset()

    async def _commit_before_handling(self) -> bool:
        """Commits the offsets after the next records. Returns False if that fails; they are then pending again."""
        offsets = {
            _partition(each): OffsetAndMetadata(each.offset + 1, leader_epoch=each.leader_epoch)
            for each in self._handling
        }
        try:
            await self._consumer.commit(offsets, timeout_ms=self._commit_timeout_ms)
        except BaseException as error:
            self._pending.extendleft(reversed(self._handling))
            self._handling = []
            if not isinstance(error, KafkaError) or not (error.is_retriable or _is_of_rebalance(error)):
                raise
            _log.warning("records are not handled yet, because their offsets could not be committed", error=error)
            self._next_poll_s = 0.0
            await asyncio.sleep(self._commit_backoff.next_delay_ms() / 1000)
            return False
        self._commit_backoff.reset()
        return bool(self._handling)

    async def _on_revoked(self, partitions: list[TopicPartition]) -> None:
        try:
            await self._commit_or_log()
        finally:
            self._on_lost(partitions)

    def _on_lost(self, partitions: list[TopicPartition]) -> None:
        revoked = set(partitions)
        self._window.remove(revoked)
        self._pending = deque(each for each in self._pending if _partition(each) not in revoked)
        self._handling = [each for each in self._handling if _partition(each) not in revoked]
        self._paused -= revoked

    async def _commit_at_end(self) -> None:
        try:
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                await self.commit()
        except (KafkaError, TimeoutError) as error:
            _log.warning("the last offsets are not committed, so their records are handled again", error=repr(error))


def _is_of_rebalance(error: KafkaError) -> bool:
    return isinstance(error, CommitFailedError | RebalanceInProgressError)


def _partition(record: ConsumerRecord) -> TopicPartition:
    return TopicPartition(record.topic, record.partition)


def _place(record: ConsumerRecord) -> str:
    return f"{record.topic}-{record.partition} offset {record.offset}"
