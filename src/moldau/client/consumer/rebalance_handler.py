"""Does, inside the user's poll, what a rebalance asks of them: commit, take partitions away, give them some, and call
their callbacks about it."""

import inspect
from collections.abc import Awaitable, Callable, Iterable
from typing import NamedTuple

from moldau.client.consumer.commit_manager import CommitManager
from moldau.client.consumer.fetch_manager import FetchManager
from moldau.client.group.driver import MembershipDriver
from moldau.client.group.events import (
    AssignPartitions,
    CommitOffsets,
    Effect,
    LosePartitions,
    RaiseError,
    RevokePartitions,
)
from moldau.client.record import TopicPartition
from moldau.wire.consumer_protocol import Partition

RebalanceCallback = Callable[[list[TopicPartition]], Awaitable[None] | None]


class ConsumerRebalanceListener(NamedTuple):
    on_assigned: RebalanceCallback | None = None
    on_revoked: RebalanceCallback | None = None
    on_lost: RebalanceCallback | None = None


class RebalanceHandler:
    def __init__(
        self, coordinator: MembershipDriver, commit_manager: CommitManager, fetch_manager: FetchManager
    ) -> None:
        self.listener = ConsumerRebalanceListener()
        self._coordinator = coordinator
        self._commit_manager = commit_manager
        self._fetch_manager = fetch_manager

    async def advance(self) -> None:
        """Brings the membership as far as it goes without another answer; raises what it cannot get over."""
        self._coordinator.poll()
        while self._coordinator.pending_effects:
            await self.run_pending()
            self._coordinator.poll()

    async def run_pending(self) -> None:
        """Does what has been put aside."""
        pending_effects = self._coordinator.pending_effects
        while pending_effects:
            effect = pending_effects[0]
            if not isinstance(effect, CommitOffsets):
                await self._apply(pending_effects.popleft())
                continue
            # It stays until it is done: a poll that is cancelled meanwhile leaves it to the next one.
            await self._commit_manager.commit_before_revocation()
            if pending_effects and pending_effects[0] is effect:
                pending_effects.popleft()

    async def _apply(self, effect: Effect) -> None:
        match effect:
            case RevokePartitions(partitions):
                await self._revoke_partitions(partitions, self.listener.on_revoked)
            case LosePartitions(partitions):
                await self._revoke_partitions(partitions, self.listener.on_lost)
            case AssignPartitions(partitions, added):
                self._fetch_manager.assign(_topic_partitions(partitions))
                await _invoke_callback(self.listener.on_assigned, _topic_partitions(added))
            case RaiseError(error):
                raise error
            case _:
                raise AssertionError(f"{effect} is not the user's affair")

    async def _revoke_partitions(
        self, partitions: Iterable[Partition], callback: RebalanceCallback | None
    ) -> None:
        gone = _topic_partitions(partitions)
        try:
            await _invoke_callback(callback, gone)
        finally:
            self._fetch_manager.revoke(gone)


def _topic_partitions(partitions: Iterable[Partition]) -> list[TopicPartition]:
    return [TopicPartition(*each) for each in partitions]


async def _invoke_callback(callback: RebalanceCallback | None, partitions: list[TopicPartition]) -> None:
    if callback is not None:
        told = callback(partitions)
        if inspect.isawaitable(told):
            await told
