"""The consumer's coordinator: commits offsets for the current generation and applies rebalances inside the poll."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from moldau.client.consumer.fetch_manager import FetchManager
from moldau.client.consumer.subscription_state import OffsetAndMetadata, SubscriptionState
from moldau.client.errors import CommitFailedError, ErrorCode, KafkaError, RebalanceInProgressError
from moldau.client.group import events
from moldau.client.group.driver import MembershipDriver
from moldau.client.group.events import Effect
from moldau.client.group.member_state import NO_GENERATION, Generation
from moldau.client.group.offsets import GroupOffsets
from moldau.client.net.connection_pool import await_shared
from moldau.client.record import TopicPartition
from moldau.concurrency.tasks import cancel_and_wait
from moldau.observe.logging import get_logger
from moldau.wire.consumer_protocol import Partition

RebalanceCallback = Callable[[list[TopicPartition]], Awaitable[None] | None]

_MEMBERSHIP_ERRORS = (ErrorCode.unknown_member_id, ErrorCode.illegal_generation, ErrorCode.fenced_instance_id)

_log = get_logger("client.consumer")


class ConsumerRebalanceListener(NamedTuple):
    on_assigned: RebalanceCallback | None = None
    on_revoked: RebalanceCallback | None = None
    on_lost: RebalanceCallback | None = None


class ConsumerCoordinator:
    """Connects a consumer with its group: the membership, the committed offsets and the user's callbacks."""

    def __init__(
        self,
        offsets: GroupOffsets,
        member: MembershipDriver,
        subscriptions: SubscriptionState,
        fetch_manager: FetchManager,
        *,
        auto_commit_interval_ms: int | None,
    ) -> None:
        """`auto_commit_interval_ms` is None if auto commit is disabled."""
        self.offsets = offsets
        self.member = member
        self.listener = ConsumerRebalanceListener()
        self._subscriptions = subscriptions
        self._fetch_manager = fetch_manager
        self._interval_s = None if auto_commit_interval_ms is None else auto_commit_interval_ms / 1000
        self._next_auto_commit_at: float | None = None
        """The loop time of the next auto commit; None if there was nothing to commit."""
        self._auto_commit_task: asyncio.Task[None] | None = None
        self._revocation_commit_task: asyncio.Task[None] | None = None
        """The task that commits before a revocation; None after a caller has awaited its end."""
        # Commits run one at a time, because an older commit that arrives last would reset the offsets.
        self._commit_lock = asyncio.Lock()

    # Rebalances

    async def advance(self) -> None:
        """Advances the membership until it needs another response. Raises fatal errors of the membership."""
        self.member.poll()
        while self.member.pending_effects:
            await self.run_pending()
            self.member.poll()

    async def run_pending(self) -> None:
        pending_effects = self.member.pending_effects
        while pending_effects:
            effect = pending_effects[0]
            if not isinstance(effect, events.CommitOffsets):
                await self._apply(pending_effects.popleft())
                continue
            # Keep the effect queued until the commit is done. After a cancellation, the next poll awaits the commit.
            await self.commit_before_revocation()
            if pending_effects and pending_effects[0] is effect:
                pending_effects.popleft()

    async def _apply(self, effect: Effect) -> None:
        match effect:
            case events.RevokePartitions(partitions):
                await self._revoke_partitions(partitions, self.listener.on_revoked)
            case events.LosePartitions(partitions):
                await self._revoke_partitions(partitions, self.listener.on_lost)
            case events.AssignPartitions(partitions, added):
                self._fetch_manager.assign(_topic_partitions(partitions))
                try:
                    self._notify_assignor(partitions)
                finally:
                    await _invoke_callback(self.listener.on_assigned, _topic_partitions(added))
            case events.RaiseError(error):
                raise error
            case _:
                raise AssertionError(f"{effect} is not an effect for the consumer")

    def _notify_assignor(self, partitions: Sequence[Partition]) -> None:
        membership = self.member.membership
        for each in membership.config.assignors:
            if each.name == membership.generation.protocol:
                each.on_assignment(partitions, membership.generation.generation_id)

    async def _revoke_partitions(self, partitions: Iterable[Partition], callback: RebalanceCallback | None) -> None:
        revoked = _topic_partitions(partitions)
        try:
            await _invoke_callback(callback, revoked)
        finally:
            self._fetch_manager.revoke(revoked)

    # Commits

    async def commit(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        generation: Generation | None = None,
        *,
        timeout_ms: int | None = None,
    ) -> None:
        """Commits offsets consumed in `generation` (default: the current one). Raises KafkaError if that has ended."""
        if not offsets:
            return
        if generation is None:
            generation = self._current_generation()
        async with self._commit_lock:
            self._check_generation(generation)
            try:
                await self.offsets.commit(offsets, generation, timeout_ms=timeout_ms)
            except KafkaError as error:
                if error.code not in (*_MEMBERSHIP_ERRORS, ErrorCode.rebalance_in_progress):
                    raise
                self.member.step(events.CommitFailed(generation, error.code))
                raise self._commit_error(error) from None

    async def commit_before_revocation(self) -> None:
        """Commits all consumed offsets. A failure is only logged; the new owners then read the records again.

        The commit continues if the caller is cancelled. The next caller then awaits the same commit.
        """
        if self._revocation_commit_task is None:
            self._revocation_commit_task = asyncio.get_running_loop().create_task(
                self._commit_or_log(self._subscriptions.all_consumed(), self._current_generation()),
                name="consumer commits before a revocation",
            )
        await await_shared(self._revocation_commit_task)
        self._revocation_commit_task = None

    def maybe_auto_commit(self) -> None:
        """Starts a commit in the background if the auto commit interval has passed."""
        if self._interval_s is None or self._auto_commit_task is not None:
            return
        now = asyncio.get_running_loop().time()
        if self._next_auto_commit_at is not None and now < self._next_auto_commit_at:
            return
        offsets = self._subscriptions.all_consumed()
        is_first = self._next_auto_commit_at is None
        self._next_auto_commit_at = now + self._interval_s if offsets else None
        if offsets and not is_first and not self.member.membership.is_rebalancing:
            self._auto_commit_task = asyncio.get_running_loop().create_task(
                self._auto_commit(offsets, self._current_generation()), name="consumer auto commits"
            )

    def next_auto_commit_at(self) -> float | None:
        """Returns the loop time of the next auto commit; None if a commit is running or there was nothing to commit."""
        return None if self._auto_commit_task is not None else self._next_auto_commit_at

    async def close(self) -> None:
        await self.member.close()
        await cancel_and_wait(self._auto_commit_task, self._revocation_commit_task)

    async def _auto_commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], generation: Generation) -> None:
        try:
            await self._commit_or_log(offsets, generation)
        finally:
            self._auto_commit_task = None

    async def _commit_or_log(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], generation: Generation) -> None:
        try:
            await self.commit(offsets, generation)
        except KafkaError as error:
            _log.warning("offset commit failed", error=error)

    def _current_generation(self) -> Generation:
        is_member = self._subscriptions.is_auto_assigned
        return self.member.membership.generation if is_member else NO_GENERATION

    def _check_generation(self, generation: Generation) -> None:
        if not self._subscriptions.is_auto_assigned:
            return
        membership = self.member.membership
        if membership.is_rebalancing:
            raise RebalanceInProgressError("the group is rebalancing: poll until it is done, then commit")
        self._check_member()
        if generation != membership.generation:
            raise CommitFailedError(
                ErrorCode.illegal_generation, "the group has rebalanced since these offsets were consumed"
            )

    def check_ownership(self, partitions: Iterable[TopicPartition]) -> None:
        """Raises CommitFailedError unless this consumer is a member of the group and owns these partitions."""
        self._check_member()
        for partition in partitions:
            if not self._subscriptions.is_assigned(partition):
                raise CommitFailedError(ErrorCode.illegal_generation, f"{partition} is no longer assigned")

    def _check_member(self) -> None:
        membership = self.member.membership
        if not membership.generation.is_member:
            raise CommitFailedError(
                ErrorCode.unknown_member_id,
                membership.leave_reason or "this consumer is not in the group: poll to join it",
            )

    def _commit_error(self, error: KafkaError) -> KafkaError:
        if error.code == ErrorCode.rebalance_in_progress:
            return RebalanceInProgressError("the group is rebalancing: poll until it is done, then commit")
        if not self._subscriptions.is_auto_assigned:
            return CommitFailedError(error.code, "the group has members, and only they can commit its offsets")
        return CommitFailedError(
            error.code,
            "the group has rebalanced without this consumer, because its session expired or the time between polls was "
            "too long; other members continue from the last committed offsets",
        )


def _topic_partitions(partitions: Iterable[Partition]) -> list[TopicPartition]:
    return [TopicPartition(*each) for each in partitions]


async def _invoke_callback(callback: RebalanceCallback | None, partitions: list[TopicPartition]) -> None:
    if callback is not None:
        result = callback(partitions)
        if inspect.isawaitable(result):
            await result
