"""A replica fetcher: fetches all partitions that have the same leader (Kafka's ReplicaFetcherThread).

It sends one fetch at a time. The records of all partitions in a response are appended and synced concurrently, before
the next fetch, whose offsets tell the leader which records are durable on this follower.
"""

import asyncio
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from moldau.client.errors import ErrorCode, to_error_code
from moldau.concurrency.eager import start_eagerly
from moldau.concurrency.notifier import wait_for_event
from moldau.errors import (
    FencedLeaderEpochError,
    MoldauError,
    NotLeaderOrFollowerError,
    PeerUnreachableError,
    StorageError,
    UnknownLeaderEpochError,
)
from moldau.observe.logging import get_logger
from moldau.partitions.follower_replica import FollowerReplica
from moldau.partitions.follower_state import FollowerFetchPosition
from moldau.peers.client import PeerClient
from moldau.platform.clock import Clock
from moldau.raft.messages import EpochEndOffset
from moldau.replication.fetch_session import FetchSessionHandler, PartitionKey, build_fetch_request
from moldau.replication.quota import ReplicationQuotaManager
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
"""How long a response may take in addition to the max_wait of the fetch."""
RESPONSE_BYTES_MIN = 65_536
"""The lower limit of max_bytes, which is reduced after responses have timed out."""
INTERRUPT_DELAY_MS = 10
"""How long a new partition waits for the response of a long-polling fetch before the fetch is interrupted."""
INTERRUPT_INTERVAL_MS = 50
"""The minimum time between two interrupts. One millisecond per partition is added, because a full fetch follows each
interrupt."""
YIELD_AFTER_BYTES, YIELD_AFTER_PARTITIONS = 1_048_576, 100
"""How many bytes or partitions are processed before the task yields to the event loop."""

_SESSION_ERRORS = (
    ErrorCode.fetch_session_id_not_found,
    ErrorCode.invalid_fetch_session_epoch,
    ErrorCode.fetch_session_topic_id_error,
)
_STALE_ROLE_ERRORS = (NotLeaderOrFollowerError, FencedLeaderEpochError, UnknownLeaderEpochError)


@dataclass(frozen=True, slots=True)
class FetcherContext:
    """The objects that all fetchers of a node share."""

    node_id: int
    cluster_id: str
    broker_epoch: Callable[[], int]
    peers: PeerClient
    quota: ReplicationQuotaManager
    settings: EffectiveSettings
    clock: Clock
    random: random.Random


class ReplicaFetcher:
    def __init__(self, leader_id: int, context: FetcherContext) -> None:
        self.leader_id = leader_id
        self._context = context
        self._partitions: dict[PartitionKey, FollowerReplica] = {}
        self._fetch_states = PartitionFetchStates()
        self._fetch_session = FetchSessionHandler()
        self._wakeup = asyncio.Event()
        """Set to end the current wait."""
        self._task: asyncio.Task[None] | None = None
        self._is_closing = False
        self._is_appending = False
        self._is_fetch_pending = False
        self._interrupt_timer: asyncio.TimerHandle | None = None
        self._was_interrupted = False
        self._interrupted_ms: int | None = None
        self._is_unreachable = False
        self._response_bytes_max: int | None = None
        """A reduced max_bytes after responses have timed out; None means replica.fetch.response.max.bytes."""

    def follow(self, partitions: Iterable[FollowerReplica], removed: Iterable[PartitionKey] = ()) -> None:
        """Adds partitions, or new leader epochs of known partitions, and drops the `removed` partitions."""
        for key in removed:
            if self._partitions.pop(key, None) is not None:
                self._fetch_states.remove(key)
                self._fetch_session.remove(key)
        started = []
        for each in partitions:
            key = PartitionKey(each.topic_id, each.name.partition)
            self._partitions[key] = each
            if self._fetch_states.add(key, each.leader_epoch, is_in_sync=each.is_in_sync):
                started.append(key)
        for key in started:
            self._add_to_session(key)
        if self._task is None and self._partitions and not self._is_closing:
            self._task = asyncio.get_running_loop().create_task(
                self._run(), name=f"node {self._context.node_id} follows node {self.leader_id}"
            )
        if started or not self._partitions:
            self._wakeup.set()
            self._schedule_interrupt()

    async def close(self) -> None:
        """Stops the fetcher after the append in progress has ended."""
        self._is_closing = True
        self._cancel_interrupt()
        if self._task is not None:
            if not self._is_appending:
                self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    # Fetch loop

    async def _run(self) -> None:
        while not self._is_closing:
            try:
                await self._fetch_once()
            except PeerUnreachableError as error:
                await self._handle_disconnect(error)
            except Exception:
                # A bug must not stop the replication of all partitions of this leader.
                log.exception("the fetch from the leader failed, will retry", leader=self.leader_id)
                self._fetch_session.reset()
                await self._back_off()

    async def _fetch_once(self) -> None:
        self._wakeup.clear()
        now_ms = self._now_ms()
        for key in self._fetch_states.resume_due(now_ms):
            self._add_to_session(key)
        resume_ms = self._fetch_states.next_resume_ms()
        until_resume_ms = None if resume_ms is None else max(0, resume_ms - now_ms)
        if not len(self._fetch_session):
            self._fetch_session.reset()
            if not len(self._fetch_states):
                self._context.peers.disconnect(self.leader_id, LANE)
            await wait_for_event(self._wakeup, until_resume_ms)
            return
        response = await self._fetch(until_resume_ms)
        if response.error_code != ErrorCode.none:
            await self._handle_fetch_error(to_error_code(response.error_code))
            return
        self._fetch_session.handle_response(response.session_id)
        self._on_fetch_succeeded()
        self._is_appending = True
        try:
            await self._process_response(response)
        finally:
            self._is_appending = False

    async def _fetch(self, wait_max_ms: int | None) -> Any:
        settings = self._context.settings.broker
        # Limit the wait, because a replica that fetches too rarely leaves the ISR even if there is nothing to fetch.
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
            bytes_max=bytes_max if self._response_bytes_max is None else min(bytes_max, self._response_bytes_max),
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
        """Handles an error of the whole fetch. The leader's session is then in an unknown state."""
        was_established = self._fetch_session.is_established
        self._fetch_session.reset()
        if code in _SESSION_ERRORS and was_established:
            log.debug("the leader closed the fetch session", leader=self.leader_id, reason=code.name)
            return
        self._warn_once(code.name.upper())
        await self._back_off()

    async def _handle_disconnect(self, error: PeerUnreachableError) -> None:
        self._fetch_session.reset()
        if self._was_interrupted:
            self._was_interrupted = False
            return
        self._warn_once(str(error))
        if not error.is_connection_refused:
            # Request fewer bytes, because the responses may be too large for the timeout.
            bytes_max = self._response_bytes_max or self._context.settings.broker.replica_fetch_response_max_bytes
            self._response_bytes_max = max(RESPONSE_BYTES_MIN, bytes_max // 2)
        await self._back_off()

    def _warn_once(self, reason: str) -> None:
        """Logs a warning, but only once until a fetch succeeds."""
        if not self._is_unreachable:
            self._is_unreachable = True
            log.warning("fetches from the leader fail", leader=self.leader_id, reason=reason)

    def _on_fetch_succeeded(self) -> None:
        self._was_interrupted = False
        if self._is_unreachable:
            self._is_unreachable = False
            log.info("fetches from the leader succeed again", leader=self.leader_id)
        if self._response_bytes_max is not None:
            self._response_bytes_max *= 2
            if self._response_bytes_max >= self._context.settings.broker.replica_fetch_response_max_bytes:
                self._response_bytes_max = None

    async def _back_off(self) -> None:
        context = self._context
        delay_ms = add_jitter(context.settings.broker.replica_fetch_backoff_ms, context.random.random())
        await wait_for_event(self._wakeup, delay_ms)

    # Responses

    async def _process_response(self, response: Any) -> None:
        tasks: list[asyncio.Task[None]] = []
        failures: list[BaseException] = []

        def on_done(_: None, error: BaseException | None) -> None:
            if error is not None:
                failures.append(error)

        byte_count = count = 0
        for topic in response.responses:
            for each in topic.partitions:
                key = PartitionKey(topic.topic_id, each.partition_index)
                requested = self._fetch_session.requested_position(key)
                partition = self._partitions.get(key)
                if requested is None or partition is None:
                    continue
                # Do not create a task for each partition. Most coroutines do not suspend, and a task costs more than
                # the append.
                task = start_eagerly(self._process_partition(key, partition, requested, each), on_done)
                if task is not None:
                    tasks.append(task)
                byte_count += len(each.records or b"")
                count += 1
                if byte_count >= YIELD_AFTER_BYTES or count >= YIELD_AFTER_PARTITIONS:
                    byte_count = count = 0
                    await asyncio.sleep(0)
        if tasks:
            await asyncio.gather(*tasks, return_exceptions=True)
        if failures:
            raise failures[0]

    async def _process_partition(
        self, key: PartitionKey, partition: FollowerReplica, requested: FollowerFetchPosition, response: Any
    ) -> None:
        try:
            await self._apply_partition_data(key, partition, requested, response)
        except _STALE_ROLE_ERRORS:
            # The partition's role changed while the fetch was in flight.
            pass
        except Exception as error:
            if not isinstance(error, MoldauError):
                log.exception("the replication of the partition failed", partition=str(partition.name))
            self._handle_append_error(key, partition, error)
            return
        self._add_to_session(key)

    async def _apply_partition_data(
        self, key: PartitionKey, partition: FollowerReplica, requested: FollowerFetchPosition, response: Any
    ) -> None:
        diverging = response.diverging_epoch
        action = action_for_error(response.error_code, has_diverged=diverging is not None and diverging.end_offset >= 0)
        if action is FetchAction.APPEND:
            await self._append(key, partition, requested, response)
            must_advance = bool(response.records)
        elif action is FetchAction.TRUNCATE:
            await partition.truncate_to_divergence(
                EpochEndOffset(diverging.epoch, diverging.end_offset), requested.leader_epoch
            )
            must_advance = True
        elif action is FetchAction.RESET_LOG:
            if should_reset_log(requested.offset, requested.last_epoch, response.log_start_offset):
                await partition.reset_to(response.log_start_offset, requested.leader_epoch)
            must_advance = True
        elif action is FetchAction.AWAIT_METADATA:
            self._delay_partition(key, BackoffPolicy.FAST)
            return
        else:
            code = to_error_code(response.error_code)
            self._delay_with_warning(key, partition, f"the leader returned {code.name.upper()}")
            return
        if must_advance and partition.fetch_position() == requested:
            # Delay the partition, because the same request would get the same response.
            reason = f"it is at offset {requested.offset} and cannot continue after the response ({action.value})"
            self._delay_with_warning(key, partition, reason)

    async def _append(
        self, key: PartitionKey, partition: FollowerReplica, requested: FollowerFetchPosition, response: Any
    ) -> None:
        records = memoryview(response.records or b"")
        was_in_sync = self._fetch_states.is_in_sync(key)
        await partition.append_as_follower(
            records, requested.leader_epoch, response.high_watermark, response.log_start_offset
        )
        self._context.quota.record_fetched(partition.name, len(records), self._now_ms(), is_in_sync=was_in_sync)
        position = partition.fetch_position()
        is_in_sync = position is not None and position.offset >= response.high_watermark
        self._fetch_states.record_success(key, is_in_sync=is_in_sync)

    def _handle_append_error(self, key: PartitionKey, partition: FollowerReplica, error: Exception) -> None:
        if partition.failure is not None:
            self._mark_failed(key, partition, error)
        else:
            # Retry storage errors and bugs slowly. They tend to last, and each retry transfers the same records.
            is_local = isinstance(error, StorageError) or not isinstance(error, MoldauError)
            policy = BackoffPolicy.SLOW if is_local else BackoffPolicy.CONSTANT
            self._delay_with_warning(key, partition, str(error), policy)

    def _delay_with_warning(
        self, key: PartitionKey, partition: FollowerReplica, reason: str, policy: BackoffPolicy = BackoffPolicy.CONSTANT
    ) -> None:
        log_event = log.debug if self._fetch_states.is_retrying(key) else log.warning
        log_event(
            "the partition was not replicated, will retry",
            partition=str(partition.name),
            leader=self.leader_id,
            reason=reason,
        )
        self._delay_partition(key, policy)

    def _mark_failed(self, key: PartitionKey, partition: FollowerReplica, error: Exception) -> None:
        log.error("stopped replicating the partition: its log failed", partition=str(partition.name), reason=str(error))
        self._fetch_states.mark_failed(key)
        self._fetch_session.remove(key)

    # Session contents

    def _add_to_session(self, key: PartitionKey) -> None:
        """Adds a partition at its current position to the next fetch, unless it is delayed or throttled."""
        partition = self._partitions.get(key)
        if partition is None or not self._fetch_states.is_fetching(key):
            return
        if partition.failure is not None:
            self._mark_failed(key, partition, partition.failure)
            return
        now_ms, quota = self._now_ms(), self._context.quota
        if quota.should_throttle_follower(partition.name, now_ms, is_in_sync=self._fetch_states.is_in_sync(key)):
            self._fetch_states.delay(key, now_ms, quota.throttle_time_ms(now_ms))
            self._fetch_session.remove(key)
            return
        position = partition.fetch_position()
        if position is None:
            # Retry soon. Usually the log has records that are not flushed yet, from a previous leader or from this
            # replica's own time as leader.
            self._delay_partition(key, BackoffPolicy.FAST)
        else:
            self._fetch_session.set_position(key, position)

    def _delay_partition(self, key: PartitionKey, policy: BackoffPolicy) -> None:
        backoff_ms = self._context.settings.broker.replica_fetch_backoff_ms
        self._fetch_states.delay_after_failure(key, self._now_ms(), backoff_ms, self._context.random.random(), policy)
        self._fetch_session.remove(key)

    # Interrupts of a long-polling fetch

    def _schedule_interrupt(self) -> None:
        """Schedules an interrupt, which closes the connection, so that new partitions need not wait for the response.

        Interrupts are limited in frequency, because partitions may be added one by one.
        """
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

    def _now_ms(self) -> int:
        return self._context.clock.monotonic_ms()
