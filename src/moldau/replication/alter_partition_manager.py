"""Keeps the in-sync sets of what this node leads true: looks who belongs in them, and asks the controller for each
change (AlterPartition).

One request is under way at a time, with all changes that are wanted then. A change that was not answered may have been
made: it is sent again as it was, until there is an answer or the metadata shows a later state.
"""

import asyncio
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Protocol
from uuid import UUID

from moldau.concurrency.backoff import exponential_backoff_ms
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
from moldau.logs.store import LogName
from moldau.observe.logging import get_logger
from moldau.platform.clock import Clock
from moldau.replication.fetch_session import PartitionKey
from moldau.replication.state import add_jitter
from moldau.settings.effective import EffectiveSettings

log = get_logger(__name__)

CHANGES_MAX = 2_000
"""How many changes go into one request."""
LOGGED_MAX = 5
"""How many changes one log line shows."""
RETRY_MS_MIN, RETRY_MS_MAX = 50, 1_000
TRANSIENT_FAILURES_MAX = 10
"""In a row, while the controller moves."""
INELIGIBLE_BACKOFF_MS = 200
"""How long a partition waits that proposed a member which the controller does not take: its metadata is newer."""

_FINAL_ERRORS = (
    FencedLeaderEpochError,
    IneligibleReplicaError,
    InvalidUpdateVersionError,
    NewLeaderElectedError,
    NotLeaderOrFollowerError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
)
"""After these the same change can never be made."""


class LeaderPartition(Protocol):
    @property
    def name(self) -> LogName: ...
    @property
    def topic_id(self) -> UUID: ...
    @property
    def pending_isr_change(self) -> IsrChange | None: ...

    def propose_isr_change(self, lag_ms: int) -> IsrChange | None: ...

    def on_alter_partition_response(self, result: IsrChangeResult) -> None: ...


class ControllerChannel(Protocol):
    async def alter_partition(
        self, broker_id: int, broker_epoch: int, changes: list[IsrChange]
    ) -> list[IsrChangeResult]: ...


@dataclass(frozen=True, slots=True)
class _PendingChange:
    partition: LeaderPartition
    change: IsrChange

    @property
    def is_current(self) -> bool:
        """Not once the metadata has shown a later state of the partition, or another leader."""
        now = self.partition.pending_isr_change
        return now is not None and (now.leader_epoch, now.partition_epoch) == (
            self.change.leader_epoch,
            self.change.partition_epoch,
        )


class AlterPartitionManager:
    def __init__(
        self,
        node_id: int,
        led: Callable[[], Iterable[LeaderPartition]],
        controller_channel: ControllerChannel,
        broker_epoch: Callable[[], int],
        settings: EffectiveSettings,
        clock: Clock,
        random: random.Random,
    ) -> None:
        self._node_id = node_id
        self._led_partitions = led
        self._gateway = controller_channel
        self._broker_epoch = broker_epoch
        self._settings = settings
        self._clock = clock
        self._random = random
        self._pending: dict[PartitionKey, _PendingChange] = {}
        """Not yet answered."""
        self._to_check: dict[PartitionKey, LeaderPartition] = {}
        """Whose followers have progressed since the last look."""
        self._held_until_ms: dict[PartitionKey, int] = {}
        """Until when a partition is not looked at."""
        self._next_full_check_ms = 0
        self._failures = 0
        self._has_warned = False
        self._wakeup = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(
            self._run(), name=f"node {self._node_id} keeps in-sync sets"
        )

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def check_isr(self, partition: LeaderPartition) -> None:
        """A follower has progressed: it may belong in the in-sync set now."""
        self._to_check[PartitionKey(partition.topic_id, partition.name.partition)] = partition
        self._wakeup.set()

    async def _run(self) -> None:
        while True:
            try:
                await self._send_pending()
            except Exception:
                # A bug: in-sync sets that nobody keeps would stop all writing sooner or later.
                log.exception("keeping in-sync sets failed")
                await self._wait(RETRY_MS_MAX)

    async def _send_pending(self) -> None:
        self._wakeup.clear()
        self._check_isrs()
        self._pending = {key: each for key, each in self._pending.items() if each.is_current}
        if not self._pending:
            await self._wait(self._ms_until_next_check())
            return
        sent = dict(islice(self._pending.items(), CHANGES_MAX))
        try:
            results = await self._gateway.alter_partition(
                self._node_id, self._broker_epoch(), [each.change for each in sent.values()]
            )
        except MoldauError as error:
            await self._handle_failure(error)
            return
        refusal = None
        changed = []
        for (key, each), result in zip(sent.items(), results, strict=True):
            if result.error is None or isinstance(result.error, _FINAL_ERRORS):
                self._handle_result(key, each, result)
            else:
                refusal = result.error
            if result.error is None:
                changed.append(f"{each.partition.name} {list(result.isr)}")
        if changed:
            some = ", ".join(changed[:LOGGED_MAX]) + (", ..." if len(changed) > LOGGED_MAX else "")
            log.info("in-sync sets have changed", partitions=len(changed), now=some)
        if refusal is None:
            self._failures = 0
            if self._has_warned:
                self._has_warned = False
                log.info("the controller changes in-sync sets again")
        else:
            await self._handle_failure(refusal)

    def _check_isrs(self) -> None:
        now_ms = self._clock.monotonic_ms()
        lag_ms = self._settings.broker.replica_lag_time_max_ms
        news, self._to_check = self._to_check, {}
        partitions: Iterable[LeaderPartition] = news.values()
        if now_ms >= self._next_full_check_ms:
            self._next_full_check_ms = now_ms + max(1, lag_ms // 2)
            self._held_until_ms = {
                key: until_ms for key, until_ms in self._held_until_ms.items() if until_ms > now_ms
            }
            partitions = self._led_partitions()
        for partition in partitions:
            key = PartitionKey(partition.topic_id, partition.name.partition)
            if self._held_until_ms.get(key, now_ms) > now_ms:
                # It is looked at when that is over: the high watermark may wait for it.
                self._to_check[key] = partition
                continue
            change = partition.propose_isr_change(lag_ms)
            if change is not None:
                log.debug(
                    "another in-sync set is wanted",
                    partition=str(partition.name),
                    isr=[broker_id for broker_id, _ in change.isr],
                )
                self._pending[key] = _PendingChange(partition, change)

    def _handle_result(self, key: PartitionKey, proposed: _PendingChange, result: IsrChangeResult) -> None:
        del self._pending[key]
        partition = proposed.partition
        if isinstance(result.error, IneligibleReplicaError):
            self._held_until_ms[key] = self._clock.monotonic_ms() + INELIGIBLE_BACKOFF_MS
            self._to_check[key] = partition
        if result.error is None:
            log.debug("an in-sync set has changed", partition=str(partition.name), isr=list(result.isr))
        else:
            log.debug("an in-sync set is not changed", partition=str(partition.name), why=str(result.error))
        if result.error is None or proposed.is_current:
            # A refusal does not say of what: it must not be taken for that of a later proposal.
            partition.on_alter_partition_response(result)

    async def _handle_failure(self, error: MoldauError) -> None:
        self._failures += 1
        expected = isinstance(error, NotControllerError | PeerUnreachableError)
        is_worth_a_word = not expected or self._failures >= TRANSIENT_FAILURES_MAX
        tell = log.warning if is_worth_a_word and not self._has_warned else log.debug
        self._has_warned |= is_worth_a_word
        tell(
            "the controller could not be asked to change in-sync sets",
            why=str(error),
            failures=self._failures,
        )
        pause_ms = exponential_backoff_ms(self._failures, RETRY_MS_MIN, RETRY_MS_MAX)
        await asyncio.sleep(add_jitter(pause_ms, self._random.random()) / 1000)

    def _ms_until_next_check(self) -> int:
        next_ms = min(
            (self._held_until_ms[key] for key in self._to_check if key in self._held_until_ms),
            default=self._next_full_check_ms,
        )
        return max(0, min(next_ms, self._next_full_check_ms) - self._clock.monotonic_ms())

    async def _wait(self, ms: int) -> None:
        """For so long; less where there is news."""
        timer = asyncio.get_running_loop().call_later(ms / 1000, self._wakeup.set)
        try:
            await self._wakeup.wait()
        finally:
            timer.cancel()
