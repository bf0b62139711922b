"""Copies from one leader all that this node follows of it: one task, one connection, one fetch at a time.

What an answer brings is appended and synced, partition by partition side by side, before the next fetch asks past it:
by asking, a follower says what it has on disk. One partition's trouble is its own; the others go on.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol
from uuid import UUID

from moldau.client.errors import ErrorCode, to_error_code
from moldau.concurrency.eager import start_eagerly
from moldau.errors import (
    FencedLeaderEpochError,
    MoldauError,
    NotLeaderOrFollowerError,
    PeerUnreachableError,
    StorageError,
    UnknownLeaderEpochError,
)
from moldau.logs.store import LogName
from moldau.observe.logging import get_logger
from moldau.peers.client import PeerClient
from moldau.platform.clock import Clock
from moldau.raft.messages import EpochEndOffset
from moldau.replication.fetch_session import FetchSessionHandler, FollowerFetchPosition, PartitionKey
from moldau.replication.quota import ReplicationQuotaManager
from moldau.replication.requests import build_fetch_request
from moldau.replication.state import (
    BackoffPolicy,
    FetchAction,
    PartitionFetchStates,
    action_for_error,
    add_jitter,
    should_reset_log,
)
from moldau.settings.effective import EffectiveSettings
from moldau.wire.api_keys import ApiKey

log = get_logger(__name__)

LANE = "replication"
FETCH_VERSION = 17
RESPONSE_GRACE_MS = 5_000
"""How long an answer may take beyond the wait that was asked for."""
RESPONSE_BYTES_MIN = 65_536
"""What is asked for at least of a leader whose answers do not come through in time."""
INTERRUPT_DELAY_MS = 10
"""How long an answer that may be on its way is waited for before a waiting fetch is given up for a new partition."""
INTERRUPT_INTERVAL_MS = 50
"""How far apart such give-ups are at least, and a millisecond more for each partition: all are asked for anew."""
YIELD_AFTER_BYTES, YIELD_AFTER_PARTITIONS = 1_048_576, 100
"""How much is appended, or of how many partitions, before others have a turn on the event loop."""

_SESSION_ERRORS = (
    ErrorCode.fetch_session_id_not_found,
    ErrorCode.invalid_fetch_session_epoch,
    ErrorCode.fetch_session_topic_id_error,
)
_STALE_ROLE_ERRORS = (NotLeaderOrFollowerError, FencedLeaderEpochError, UnknownLeaderEpochError)


class FollowerPartition(Protocol):
    """What a fetcher asks of a partition. Each call names the leader epoch of the fetch it comes from, and is refused
    where the partition is in another one by now."""

    @property
    def name(self) -> LogName: ...
    @property
    def topic_id(self) -> UUID: ...
    @property
    def failure(self) -> MoldauError | None: ...

    @property
    def leader_epoch(self) -> int: ...
    @property
    def is_in_sync(self) -> bool: ...

    def fetch_position(self) -> tuple[int, int, int, int] | None:
        """(offset, last epoch, leader epoch, start offset), where everything below the offset is durable; None while
        something beyond that is being made so."""

    async def append_as_follower(
        self, data: memoryview, leader_epoch: int, high_watermark: int, leader_start_offset: int
    ) -> None: ...

    async def truncate_to_divergence(self, diverging: EpochEndOffset, leader_epoch: int) -> None: ...

    async def reset_to(self, offset: int, leader_epoch: int) -> None: ...


@dataclass(frozen=True, slots=True)
class FetcherContext:
    """What the fetchers of a node share."""

    node_id: int
    cluster_id: str
    broker_epoch: Callable[[], int]
    peers: PeerClient
    quota: ReplicationQuotaManager
    settings: EffectiveSettings
    clock: Clock
    random: random.Random


class ReplicaFetcher:
    def __init__(self, leader_id: int, fetching: FetcherContext) -> None:
        self.leader_id = leader_id
        self._context = fetching
        self._partitions: dict[PartitionKey, FollowerPartition] = {}
        self._fetch_states = PartitionFetchStates()
        self._fetch_session = FetchSessionHandler()
        self._wakeup = asyncio.Event()
        """There is a reason not to rest any longer."""
        self._task: asyncio.Task[None] | None = None
        self._is_closing = False
        self._is_appending = False
        self._is_fetch_pending = False
        self._interrupt_timer: asyncio.TimerHandle | None = None
        self._was_interrupted = False
        self._interrupted_ms: int | None = None
        self._is_unreachable = False
        self._response_bytes_max: int | None = None
        """Less than the settings allow while the leader's answers do not come through."""

    def follow(self, partitions: Iterable[FollowerPartition], removed: Iterable[PartitionKey] = ()) -> None:
        """Follows these too from now on, or in the epoch they are in by now, and those that are `removed` no more."""
        for key in removed:
            if self._partitions.pop(key, None) is not None:
                self._fetch_states.remove(key)
                self._fetch_session.remove(key)
        begun = []
        for each in partitions:
            key = PartitionKey(each.topic_id, each.name.partition)
            self._partitions[key] = each
            if self._fetch_states.add(key, each.leader_epoch, is_in_sync=each.is_in_sync):
                begun.append(key)
        for key in begun:
            self._add_to_session(key)
        if self._task is None and self._partitions and not self._is_closing:
            self._task = asyncio.get_running_loop().create_task(
                self._run(), name=f"node {self._context.node_id} follows node {self.leader_id}"
            )
        if begun or not self._partitions:
            self._wakeup.set()
            self._schedule_interrupt()

    async def close(self) -> None:
        """Ends it, after what is being appended: that is not left half done."""
        self._is_closing = True
        self._cancel_interrupt()
        if self._task is not None:
            if not self._is_appending:
                self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    # The loop

    async def _run(self) -> None:
        while not self._is_closing:
            try:
                await self._fetch_once()
            except PeerUnreachableError as error:
                await self._handle_disconnect(error)
            except Exception:
                # A bug, and no reason to leave all partitions of this leader behind for good.
                log.exception("fetching from a leader failed", leader=self.leader_id)
                self._fetch_session.reset()
                await self._wait(self._backoff_ms())

    async def _fetch_once(self) -> None:
        self._wakeup.clear()
        now_ms = self._now_ms()
        for key in self._fetch_states.resume_due(now_ms):
            self._add_to_session(key)
        wake_ms = self._fetch_states.next_resume_ms()
        until_wake_ms = None if wake_ms is None else max(0, wake_ms - now_ms)
        if not len(self._fetch_session):
            self._release_leader()
            await self._wait(until_wake_ms)
            return
        answer = await self._fetch(until_wake_ms)
        if answer.error_code != ErrorCode.none:
            await self._handle_fetch_error(to_error_code(answer.error_code))
            return
        self._fetch_session.handle_response(answer.session_id)
        self._on_fetch_succeeded()
        await self._append_uninterrupted(self._process_response(answer))

    async def _fetch(self, wait_max_ms: int | None) -> Any:
        settings = self._context.settings.broker
        # Whoever asks too rarely is taken for dead, also where there is nothing to fetch.
        wait_ms = min(settings.replica_fetch_wait_max_ms, settings.replica_lag_time_max_ms // 4)
        if wait_max_ms is not None:
            wait_ms = min(wait_ms, wait_max_ms)
        bytes_max = settings.replica_fetch_response_max_bytes
        tree = build_fetch_request(
            self._fetch_session.build(),
            cluster_id=self._context.cluster_id,
            replica_id=self._context.node_id,
            broker_epoch=self._context.broker_epoch(),
            wait_ms=wait_ms,
            bytes_max=bytes_max
            if self._response_bytes_max is None
            else min(bytes_max, self._response_bytes_max),
            partition_bytes_max=settings.replica_fetch_max_bytes,
        )
        self._is_fetch_pending = True
        try:
            return await self._context.peers.call(
                self.leader_id,
                ApiKey.FETCH,
                tree,
                lane=LANE,
                timeout_ms=wait_ms + RESPONSE_GRACE_MS,
                version=FETCH_VERSION,
            )
        finally:
            self._is_fetch_pending = False
            self._cancel_interrupt()

    async def _handle_fetch_error(self, code: ErrorCode) -> None:
        """The fetch as a whole was: nothing in it says which partitions the leader has taken note of."""
        was_begun = self._fetch_session.is_established
        self._fetch_session.reset()
        if code in _SESSION_ERRORS and was_begun:
            log.debug("the leader has no such fetch session", leader=self.leader_id, why=code.name)
            return
        self._warn_once(f"it refuses: {code.name.upper()}")
        await self._wait(self._backoff_ms())

    async def _handle_disconnect(self, error: PeerUnreachableError) -> None:
        self._fetch_session.reset()
        if self._was_interrupted:
            self._was_interrupted = False
            return
        self._warn_once(str(error))
        if not error.is_connection_refused:
            # Its answers may be too large for the time they have.
            bytes_max = (
                self._response_bytes_max or self._context.settings.broker.replica_fetch_response_max_bytes
            )
            self._response_bytes_max = max(RESPONSE_BYTES_MIN, bytes_max // 2)
        await self._wait(self._backoff_ms())

    def _warn_once(self, why: str) -> None:
        """Once, until it goes well again."""
        if not self._is_unreachable:
            self._is_unreachable = True
            log.warning("the leader cannot be fetched from", leader=self.leader_id, why=why)

    def _on_fetch_succeeded(self) -> None:
        self._was_interrupted = False
        if self._is_unreachable:
            self._is_unreachable = False
            log.info("the leader is fetched from again", leader=self.leader_id)
        if self._response_bytes_max is not None:
            self._response_bytes_max *= 2
            if self._response_bytes_max >= self._context.settings.broker.replica_fetch_response_max_bytes:
                self._response_bytes_max = None

    def _release_leader(self) -> None:
        """Nothing is wanted of it: its session and the connection go."""
        self._fetch_session.reset()
        if not len(self._fetch_states):
            self._context.peers.disconnect(self.leader_id, LANE)

    # Answers

    async def _process_response(self, answer: Any) -> None:
        taking: list[asyncio.Task[None]] = []
        failures: list[BaseException] = []

        def taken(_: None, error: BaseException | None) -> None:
            if error is not None:
                failures.append(error)

        size = number = 0
        for topic in answer.responses:
            for each in topic.partitions:
                key = PartitionKey(topic.topic_id, each.partition_index)
                asked = self._fetch_session.requested_position(key)
                partition = self._partitions.get(key)
                if asked is None or partition is None:
                    continue
                # Most have nothing to wait for, or nothing at all: a task for each would cost more than the append.
                task = start_eagerly(self._process_partition(key, partition, asked, each), taken)
                if task is not None:
                    taking.append(task)
                size += len(each.records or b"")
                number += 1
                if size >= YIELD_AFTER_BYTES or number >= YIELD_AFTER_PARTITIONS:
                    size = number = 0
                    await asyncio.sleep(0)
        if taking:
            await asyncio.gather(*taking, return_exceptions=True)
        if failures:
            raise failures[0]

    async def _process_partition(
        self, key: PartitionKey, partition: FollowerPartition, asked: FollowerFetchPosition, answer: Any
    ) -> None:
        try:
            await self._apply_partition_data(key, partition, asked, answer)
        except _STALE_ROLE_ERRORS:
            # Metadata was quicker than the answer: whatever the partition is now, this is not for it.
            pass
        except MoldauError as error:
            self._handle_append_error(key, partition, error)
            return
        except Exception as error:
            log.exception("replicating a partition failed", partition=str(partition.name))
            self._handle_append_error(key, partition, error)
            return
        self._add_to_session(key)

    async def _apply_partition_data(
        self, key: PartitionKey, partition: FollowerPartition, asked: FollowerFetchPosition, answer: Any
    ) -> None:
        diverging = answer.diverging_epoch
        verdict = action_for_error(
            answer.error_code, has_diverged=diverging is not None and diverging.end_offset >= 0
        )
        if verdict is FetchAction.APPEND:
            await self._append(key, partition, asked, answer)
            must_move = bool(answer.records)
        elif verdict is FetchAction.TRUNCATE:
            await partition.truncate_to_divergence(
                EpochEndOffset(diverging.epoch, diverging.end_offset), asked.leader_epoch
            )
            must_move = True
        elif verdict is FetchAction.RESET_LOG:
            if should_reset_log(asked.offset, asked.last_epoch, answer.log_start_offset):
                await partition.reset_to(answer.log_start_offset, asked.leader_epoch)
            must_move = True
        elif verdict is FetchAction.AWAIT_METADATA:
            self._delay_partition(key, BackoffPolicy.FAST)
            return
        else:
            self._delay_with_warning(
                key, partition, f"the leader answers {to_error_code(answer.error_code).name.upper()}"
            )
            return
        if must_move and partition.fetch_position() == asked:
            # To ask the same again at once would get the same answer.
            self._delay_with_warning(
                key,
                partition,
                f"it is at offset {asked.offset} and cannot go on with what the leader answers ({verdict.value})",
            )

    async def _append(
        self, key: PartitionKey, partition: FollowerPartition, asked: FollowerFetchPosition, answer: Any
    ) -> None:
        records = memoryview(answer.records or b"")
        was_in_sync = self._fetch_states.is_in_sync(key)
        await partition.append_as_follower(
            records, asked.leader_epoch, answer.high_watermark, answer.log_start_offset
        )
        self._context.quota.record_fetched(
            partition.name, len(records), self._now_ms(), is_in_sync=was_in_sync
        )
        position = partition.fetch_position()
        self._fetch_states.record_success(
            key, is_in_sync=position is not None and position[0] >= answer.high_watermark
        )

    def _handle_append_error(self, key: PartitionKey, partition: FollowerPartition, error: Exception) -> None:
        if partition.failure is not None:
            self._mark_failed(key, partition, error)
        else:
            # What cannot be stored, or goes wrong by a bug, does so for longer: the same records come over the network
            # each time.
            is_here = isinstance(error, StorageError) or not isinstance(error, MoldauError)
            self._delay_with_warning(
                key, partition, str(error), BackoffPolicy.SLOW if is_here else BackoffPolicy.CONSTANT
            )

    def _delay_with_warning(
        self,
        key: PartitionKey,
        partition: FollowerPartition,
        why: str,
        rest: BackoffPolicy = BackoffPolicy.CONSTANT,
    ) -> None:
        tell = log.debug if self._fetch_states.is_retrying(key) else log.warning
        tell("a partition was not replicated", partition=str(partition.name), leader=self.leader_id, why=why)
        self._delay_partition(key, rest)

    def _mark_failed(self, key: PartitionKey, partition: FollowerPartition, error: Exception) -> None:
        log.error("a partition is no longer replicated", partition=str(partition.name), why=str(error))
        self._fetch_states.mark_failed(key)
        self._fetch_session.remove(key)

    # What is asked for

    def _add_to_session(self, key: PartitionKey) -> None:
        """Asks for a partition from where it is now, unless it rests."""
        partition = self._partitions.get(key)
        if partition is None or not self._fetch_states.is_fetching(key):
            return
        if partition.failure is not None:
            self._mark_failed(key, partition, partition.failure)
            return
        now_ms, quota = self._now_ms(), self._context.quota
        if quota.should_throttle_follower(
            partition.name, now_ms, is_in_sync=self._fetch_states.is_in_sync(key)
        ):
            self._fetch_states.delay(key, now_ms, quota.throttle_time_ms(now_ms))
            self._fetch_session.remove(key)
            return
        position = partition.fetch_position()
        if position is None:
            # What a former leader sent, or this node wrote as leader, is still on its way to the disk.
            self._delay_partition(key, BackoffPolicy.FAST)
        else:
            self._fetch_session.set_position(key, FollowerFetchPosition(*position))

    def _delay_partition(self, key: PartitionKey, rest: BackoffPolicy) -> None:
        self._fetch_states.delay_after_failure(
            key,
            self._now_ms(),
            self._context.settings.broker.replica_fetch_backoff_ms,
            self._context.random.random(),
            rest,
        )
        self._fetch_session.remove(key)

    # Waiting

    async def _wait(self, ms: int | None) -> None:
        """Until there is news, or for so long."""
        timer = None
        if ms is not None:
            timer = asyncio.get_running_loop().call_later(ms / 1000, self._wakeup.set)
        try:
            await self._wakeup.wait()
        finally:
            if timer is not None:
                timer.cancel()

    def _schedule_interrupt(self) -> None:
        """A fetch that waits for news of other partitions would keep new ones waiting too: it is ended with its
        connection, unless it is answered anyway; and not again and again, where partitions come one by one."""
        if not self._is_fetch_pending or self._interrupt_timer is not None:
            return
        now_ms, delay_ms = self._now_ms(), INTERRUPT_DELAY_MS
        if self._interrupted_ms is not None:
            again_ms = self._interrupted_ms + INTERRUPT_INTERVAL_MS + len(self._partitions)
            delay_ms = max(delay_ms, again_ms - now_ms)
        self._interrupt_timer = asyncio.get_running_loop().call_later(delay_ms / 1000, self._interrupt_fetch)

    def _interrupt_fetch(self) -> None:
        self._interrupt_timer = None
        if self._is_fetch_pending:
            self._was_interrupted = True
            self._interrupted_ms = self._now_ms()
            self._context.peers.disconnect(self.leader_id, LANE)

    def _cancel_interrupt(self) -> None:
        if self._interrupt_timer is not None:
            self._interrupt_timer.cancel()
            self._interrupt_timer = None

    async def _append_uninterrupted(self, work: Awaitable[None]) -> None:
        self._is_appending = True
        try:
            await work
        finally:
            self._is_appending = False

    def _backoff_ms(self) -> int:
        return add_jitter(
            self._context.settings.broker.replica_fetch_backoff_ms, self._context.random.random()
        )

    def _now_ms(self) -> int:
        return self._context.clock.monotonic_ms()
