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

from moldau.client.net.waits import wait_ms
from moldau.controller.requests import InSyncChange, InSyncResult
from moldau.errors import (
    FencedLeaderEpochError,
    IneligibleReplicaError,
    InvalidUpdateVersionError,
    MoldauError,
    NewLeaderElectedError,
    NotControllerError,
    NotLeaderError,
    PeerUnreachableError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
)
from moldau.logs.store import LogName
from moldau.observe.logging import get_logger
from moldau.platform.clock import Clock
from moldau.replication.session import PartitionKey
from moldau.replication.state import jittered
from moldau.settings.effective import EffectiveSettings

log = get_logger(__name__)

CHANGES_MAX = 2_000
"""How many changes go into one request."""
SHOWN_MAX = 5
"""How many changes one log line shows."""
RETRY_MS_MIN, RETRY_MS_MAX = 50, 1_000
EXPECTED_FAILURES_MAX = 10
"""In a row, while the controller moves."""
INELIGIBLE_MS = 200
"""How long a partition waits that proposed a member which the controller does not take: its metadata is newer."""

_METADATA_WILL_TELL = (
    FencedLeaderEpochError,
    IneligibleReplicaError,
    InvalidUpdateVersionError,
    NewLeaderElectedError,
    NotLeaderError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
)
"""After these the same change can never be made."""


class LedPartition(Protocol):
    @property
    def name(self) -> LogName: ...
    @property
    def topic_id(self) -> UUID: ...
    @property
    def proposed_in_sync(self) -> InSyncChange | None: ...

    def propose_in_sync(self, lag_ms: int) -> InSyncChange | None: ...

    def on_in_sync_answer(self, result: InSyncResult) -> None: ...


class Gateway(Protocol):
    async def alter_in_sync(
        self, broker_id: int, broker_epoch: int, changes: list[InSyncChange]
    ) -> list[InSyncResult]: ...


@dataclass(frozen=True, slots=True)
class _Proposed:
    partition: LedPartition
    change: InSyncChange

    @property
    def is_wanted(self) -> bool:
        """Not once the metadata has shown a later state of the partition, or another leader."""
        now = self.partition.proposed_in_sync
        return now is not None and (now.leader_epoch, now.partition_epoch) == (
            self.change.leader_epoch,
            self.change.partition_epoch,
        )


class InSyncSets:
    def __init__(
        self,
        node_id: int,
        led: Callable[[], Iterable[LedPartition]],
        gateway: Gateway,
        broker_epoch: Callable[[], int],
        settings: EffectiveSettings,
        clock: Clock,
        random: random.Random,
    ) -> None:
        self._node_id = node_id
        self._led = led
        self._gateway = gateway
        self._broker_epoch = broker_epoch
        self._settings = settings
        self._clock = clock
        self._random = random
        self._proposed: dict[PartitionKey, _Proposed] = {}
        """Not yet answered."""
        self._looked_at: dict[PartitionKey, LedPartition] = {}
        """Whose followers have progressed since the last look."""
        self._held: dict[PartitionKey, int] = {}
        """Until when a partition is not looked at."""
        self._next_look_ms = 0
        self._failures = 0
        self._has_complained = False
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(
            self._run(), name=f"node {self._node_id} keeps in-sync sets"
        )

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def look_at(self, partition: LedPartition) -> None:
        """A follower has progressed: it may belong in the in-sync set now."""
        self._looked_at[PartitionKey(partition.topic_id, partition.name.partition)] = partition
        self._news.set()

    async def _run(self) -> None:
        while True:
            try:
                await self._round()
            except Exception:
                # A bug: in-sync sets that nobody keeps would stop all writing sooner or later.
                log.exception("keeping in-sync sets failed")
                await self._rest(RETRY_MS_MAX)

    async def _round(self) -> None:
        self._news.clear()
        self._look()
        self._proposed = {key: each for key, each in self._proposed.items() if each.is_wanted}
        if not self._proposed:
            await self._rest(self._until_next_ms())
            return
        sent = dict(islice(self._proposed.items(), CHANGES_MAX))
        try:
            results = await self._gateway.alter_in_sync(
                self._node_id, self._broker_epoch(), [each.change for each in sent.values()]
            )
        except MoldauError as error:
            await self._failed(error)
            return
        refusal = None
        changed = []
        for (key, each), result in zip(sent.items(), results, strict=True):
            if result.error is None or isinstance(result.error, _METADATA_WILL_TELL):
                self._answered(key, each, result)
            else:
                refusal = result.error
            if result.error is None:
                changed.append(f"{each.partition.name} {list(result.in_sync)}")
        if changed:
            some = ", ".join(changed[:SHOWN_MAX]) + (", ..." if len(changed) > SHOWN_MAX else "")
            log.info("in-sync sets have changed", partitions=len(changed), now=some)
        if refusal is None:
            self._failures = 0
            if self._has_complained:
                self._has_complained = False
                log.info("the controller changes in-sync sets again")
        else:
            await self._failed(refusal)

    def _look(self) -> None:
        now_ms = self._clock.monotonic_ms()
        lag_ms = self._settings.broker.replica_lag_time_max_ms
        news, self._looked_at = self._looked_at, {}
        partitions: Iterable[LedPartition] = news.values()
        if now_ms >= self._next_look_ms:
            self._next_look_ms = now_ms + max(1, lag_ms // 2)
            self._held = {key: until_ms for key, until_ms in self._held.items() if until_ms > now_ms}
            partitions = self._led()
        for partition in partitions:
            key = PartitionKey(partition.topic_id, partition.name.partition)
            if self._held.get(key, now_ms) > now_ms:
                # It is looked at when that is over: the high watermark may wait for it.
                self._looked_at[key] = partition
                continue
            change = partition.propose_in_sync(lag_ms)
            if change is not None:
                log.debug(
                    "another in-sync set is wanted",
                    partition=str(partition.name),
                    in_sync=[broker_id for broker_id, _ in change.in_sync],
                )
                self._proposed[key] = _Proposed(partition, change)

    def _answered(self, key: PartitionKey, proposed: _Proposed, result: InSyncResult) -> None:
        del self._proposed[key]
        partition = proposed.partition
        if isinstance(result.error, IneligibleReplicaError):
            self._held[key] = self._clock.monotonic_ms() + INELIGIBLE_MS
            self._looked_at[key] = partition
        if result.error is None:
            log.debug(
                "an in-sync set has changed", partition=str(partition.name), in_sync=list(result.in_sync)
            )
        else:
            log.debug("an in-sync set is not changed", partition=str(partition.name), why=str(result.error))
        if result.error is None or proposed.is_wanted:
            # A refusal does not say of what: it must not be taken for that of a later proposal.
            partition.on_in_sync_answer(result)

    async def _failed(self, error: MoldauError) -> None:
        self._failures += 1
        expected = isinstance(error, NotControllerError | PeerUnreachableError)
        is_worth_a_word = not expected or self._failures >= EXPECTED_FAILURES_MAX
        tell = log.warning if is_worth_a_word and not self._has_complained else log.debug
        self._has_complained |= is_worth_a_word
        tell(
            "the controller could not be asked to change in-sync sets",
            why=str(error),
            failures=self._failures,
        )
        pause_ms = wait_ms(self._failures, RETRY_MS_MIN, RETRY_MS_MAX)
        await asyncio.sleep(jittered(pause_ms, self._random.random()) / 1000)

    def _until_next_ms(self) -> int:
        next_ms = min(
            (self._held[key] for key in self._looked_at if key in self._held), default=self._next_look_ms
        )
        return max(0, min(next_ms, self._next_look_ms) - self._clock.monotonic_ms())

    async def _rest(self, ms: int) -> None:
        """For so long; less where there is news."""
        timer = asyncio.get_running_loop().call_later(ms / 1000, self._news.set)
        try:
            await self._news.wait()
        finally:
            timer.cancel()
