"""Sends the ISR changes of the partitions that this node leads to the controller (Kafka's AlterPartitionManager).

One AlterPartition request with all pending changes is in flight at a time. If no response arrives, the controller may
have made the changes. They are sent again unchanged until there is a response or newer metadata.
"""

import asyncio
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice

from moldau.concurrency.backoff import exponential_backoff_ms
from moldau.concurrency.notifier import wait_for_event
from moldau.controller.channel import NodeToControllerChannel
from moldau.controller.requests import IsrChange, IsrChangeResult
from moldau.errors import (
    FencedLeaderEpochError,
    IneligibleReplicaError,
    InvalidUpdateVersionError,
    MoldauError,
    NewLeaderElectedError,
    NotControllerError,
    NotLeaderOrFollowerError,
    PeerUnreachableError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
)
from moldau.observe.logging import get_logger
from moldau.partitions.leader_replica import LeaderReplica
from moldau.platform.clock import Clock
from moldau.replication.fetch_session import PartitionKey
from moldau.replication.state import add_jitter
from moldau.settings.effective import EffectiveSettings

log = get_logger(__name__)

CHANGES_PER_REQUEST_MAX = 2_000
PARTITIONS_LOGGED_MAX = 5
RETRY_MS_MIN, RETRY_MS_MAX = 50, 1_000
TRANSIENT_FAILURES_MAX = 10
"""After this many consecutive failures a warning is logged. Fewer are normal while another node becomes controller."""
INELIGIBLE_BACKOFF_MS = 200
"""The delay before a partition is checked again after INELIGIBLE_REPLICA. Meanwhile the controller's newer metadata
arrives at this node."""

_FINAL_ERRORS = (
    FencedLeaderEpochError,
    IneligibleReplicaError,
    InvalidUpdateVersionError,
    NewLeaderElectedError,
    NotLeaderOrFollowerError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
)
"""After these errors a retry of the same change cannot succeed."""


@dataclass(frozen=True, slots=True)
class _PendingChange:
    partition: LeaderReplica
    change: IsrChange

    @property
    def is_current(self) -> bool:
        """Whether the partition still waits for this change. Newer metadata may have ended the wait."""
        now = self.partition.pending_isr_change
        return now is not None and (now.leader_epoch, now.partition_epoch) == (
            self.change.leader_epoch,
            self.change.partition_epoch,
        )


class AlterPartitionManager:
    def __init__(
        self,
        node_id: int,
        leader_partitions: Callable[[], Iterable[LeaderReplica]],
        controller_channel: NodeToControllerChannel,
        broker_epoch: Callable[[], int],
        settings: EffectiveSettings,
        clock: Clock,
        random: random.Random,
    ) -> None:
        self._node_id = node_id
        self._leader_partitions = leader_partitions
        self._controller_channel = controller_channel
        self._broker_epoch = broker_epoch
        self._settings = settings
        self._clock = clock
        self._random = random
        self._pending: dict[PartitionKey, _PendingChange] = {}
        """The changes without a response."""
        self._to_check: dict[PartitionKey, LeaderReplica] = {}
        """Partitions whose followers have progressed since the last check."""
        self._held_until_ms: dict[PartitionKey, int] = {}
        """The time before which a partition is not checked again."""
        self._next_full_check_ms = 0
        self._failures = 0
        self._has_warned = False
        self._wakeup = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(), name=f"node {self._node_id} alters ISRs")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def check_isr(self, partition: LeaderReplica) -> None:
        """Requests a check of a partition whose follower has progressed and may join the ISR."""
        self._to_check[PartitionKey(partition.topic_id, partition.name.partition)] = partition
        self._wakeup.set()

    async def _run(self) -> None:
        while True:
            try:
                await self._send_pending()
            except Exception:
                # Continue after a bug, because without ISR changes writes would stop sooner or later.
                log.exception("the ISR check failed, will retry")
                await wait_for_event(self._wakeup, RETRY_MS_MAX)

    async def _send_pending(self) -> None:
        self._wakeup.clear()
        self._check_isrs()
        self._pending = {key: each for key, each in self._pending.items() if each.is_current}
        if not self._pending:
            await wait_for_event(self._wakeup, self._ms_until_next_check())
            return
        sent = dict(islice(self._pending.items(), CHANGES_PER_REQUEST_MAX))
        try:
            results = await self._controller_channel.alter_partition(
                self._node_id, self._broker_epoch(), [each.change for each in sent.values()]
            )
        except MoldauError as error:
            await self._handle_failure(error)
            return
        retriable = None
        changed = []
        for (key, each), result in zip(sent.items(), results, strict=True):
            if result.error is None or isinstance(result.error, _FINAL_ERRORS):
                self._handle_result(key, each, result)
            else:
                retriable = result.error
            if result.error is None:
                changed.append(f"{each.partition.name} {list(result.isr)}")
        if changed:
            more = ["..."] if len(changed) > PARTITIONS_LOGGED_MAX else []
            log.info("ISRs changed", partitions=len(changed), now=", ".join(changed[:PARTITIONS_LOGGED_MAX] + more))
        if retriable is None:
            self._failures = 0
            if self._has_warned:
                self._has_warned = False
                log.info("the controller changes ISRs again")
        else:
            await self._handle_failure(retriable)

    def _check_isrs(self) -> None:
        now_ms = self._clock.monotonic_ms()
        lag_ms = self._settings.broker.replica_lag_time_max_ms
        progressed, self._to_check = self._to_check, {}
        partitions: Iterable[LeaderReplica] = progressed.values()
        if now_ms >= self._next_full_check_ms:
            self._next_full_check_ms = now_ms + max(1, lag_ms // 2)
            self._held_until_ms = {key: until_ms for key, until_ms in self._held_until_ms.items() if until_ms > now_ms}
            partitions = self._leader_partitions()
        for partition in partitions:
            key = PartitionKey(partition.topic_id, partition.name.partition)
            if self._held_until_ms.get(key, now_ms) > now_ms:
                # Check this partition right after the backoff. The high watermark may wait for the replicas of the
                # rejected ISR change until another change is committed.
                self._to_check[key] = partition
                continue
            change = partition.propose_isr_change(lag_ms)
            if change is not None:
                log.debug(
                    "requesting an ISR change",
                    partition=str(partition.name),
                    isr=[broker_id for broker_id, _ in change.isr],
                )
                self._pending[key] = _PendingChange(partition, change)

    def _handle_result(self, key: PartitionKey, pending: _PendingChange, result: IsrChangeResult) -> None:
        del self._pending[key]
        partition = pending.partition
        if isinstance(result.error, IneligibleReplicaError):
            self._held_until_ms[key] = self._clock.monotonic_ms() + INELIGIBLE_BACKOFF_MS
            self._to_check[key] = partition
        if result.error is None:
            log.debug("the ISR changed", partition=str(partition.name), isr=list(result.isr))
        else:
            log.debug("the ISR change was rejected", partition=str(partition.name), reason=str(result.error))
        if result.error is None or pending.is_current:
            # Forward an error only if its change is still pending. The error does not name the change, and the
            # partition could mistake it for the error of a later change.
            partition.on_alter_partition_response(result)

    async def _handle_failure(self, error: MoldauError) -> None:
        self._failures += 1
        is_transient = isinstance(error, NotControllerError | PeerUnreachableError)
        is_unexpected = not is_transient or self._failures >= TRANSIENT_FAILURES_MAX
        log_event = log.warning if is_unexpected and not self._has_warned else log.debug
        self._has_warned |= is_unexpected
        log_event("the request to change ISRs failed, will retry", reason=str(error), failures=self._failures)
        delay_ms = exponential_backoff_ms(self._failures, RETRY_MS_MIN, RETRY_MS_MAX)
        await asyncio.sleep(add_jitter(delay_ms, self._random.random()) / 1000)

    def _ms_until_next_check(self) -> int:
        next_ms = min(
            (self._held_until_ms[key] for key in self._to_check if key in self._held_until_ms),
            default=self._next_full_check_ms,
        )
        return max(0, min(next_ms, self._next_full_check_ms) - self._clock.monotonic_ms())
