"""Commits a consumer's offsets in the name of its membership, on demand and every so often."""

import asyncio
from collections.abc import Mapping

from moldau.client.consumer.subscription_state import OffsetAndMetadata, SubscriptionState
from moldau.client.errors import CommitFailedError, ErrorCode, KafkaError, RebalanceInProgressError
from moldau.client.group.driver import MembershipDriver
from moldau.client.group.events import CommitFailed
from moldau.client.group.member_state import NO_GENERATION, Generation
from moldau.client.group.offsets import GroupOffsets
from moldau.client.net.connection_pool import await_shared
from moldau.client.record import TopicPartition
from moldau.observe.logging import get_logger

_MEMBERSHIP_ERRORS = (ErrorCode.unknown_member_id, ErrorCode.illegal_generation, ErrorCode.fenced_instance_id)

_log = get_logger("client.consumer")


class CommitManager:
    def __init__(
        self,
        offsets: GroupOffsets,
        coordinator: MembershipDriver,
        subscriptions: SubscriptionState,
        *,
        interval_ms: int | None,
    ) -> None:
        """`interval_ms` is None where the user commits all by themselves."""
        self._group_offsets = offsets
        self._coordinator = coordinator
        self._subscriptions = subscriptions
        self._interval_s = None if interval_ms is None else interval_ms / 1000
        self._next_auto_commit_at: float | None = None
        """None until there was something to commit."""
        self._auto_commit_task: asyncio.Task[None] | None = None
        self._revocation_commit_task: asyncio.Task[None] | None = None
        """The commit before partitions go, until somebody has seen it done."""
        # An older commit that came after a newer one would set the group back.
        self._commit_lock = asyncio.Lock()

    async def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Raises CommitFailedError when the group has gone on without this consumer, RebalanceInProgressError
        while it is changing, and what else the coordinator says."""
        await self._commit(offsets, self._current_generation())

    async def _commit(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], generation: Generation
    ) -> None:
        """Offsets and generation are of the same moment: later ones may be those of a time when others have the
        partitions."""
        if not offsets:
            return
        async with self._commit_lock:
            self._check_generation(generation)
            try:
                await self._group_offsets.commit(offsets, generation)
            except KafkaError as error:
                if error.code not in (*_MEMBERSHIP_ERRORS, ErrorCode.rebalance_in_progress):
                    raise
                self._coordinator.step(CommitFailed(generation, error.code))
                raise self._commit_error(error) from None

    async def commit_before_revocation(self) -> None:
        """All there is, before partitions go; what cannot be committed will be read again by others. It goes on when
        the one who waits is cancelled, and who comes next waits for the same."""
        if self._revocation_commit_task is None:
            self._revocation_commit_task = asyncio.get_running_loop().create_task(
                self._commit_or_log(self._subscriptions.all_consumed(), self._current_generation()),
                name="consumer commits before partitions go",
            )
        await await_shared(self._revocation_commit_task)
        self._revocation_commit_task = None

    def maybe_auto_commit(self) -> None:
        """Begins a commit in the background if it is time for one."""
        if self._interval_s is None or self._auto_commit_task is not None:
            return
        now = asyncio.get_running_loop().time()
        if self._next_auto_commit_at is not None and now < self._next_auto_commit_at:
            return
        offsets = self._subscriptions.all_consumed()
        is_first = self._next_auto_commit_at is None
        self._next_auto_commit_at = now + self._interval_s if offsets else None
        if offsets and not is_first and not self._coordinator.membership.is_rebalancing:
            self._auto_commit_task = asyncio.get_running_loop().create_task(
                self._auto_commit(offsets, self._current_generation()), name="consumer commits by itself"
            )

    def next_auto_commit_at(self) -> float | None:
        """The loop time of the next commit that nobody asks for."""
        return None if self._auto_commit_task is not None else self._next_auto_commit_at

    async def close(self) -> None:
        tasks = [task for task in (self._auto_commit_task, self._revocation_commit_task) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _auto_commit(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], generation: Generation
    ) -> None:
        try:
            await self._commit_or_log(offsets, generation)
        finally:
            self._auto_commit_task = None

    async def _commit_or_log(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], generation: Generation
    ) -> None:
        try:
            await self._commit(offsets, generation)
        except KafkaError as error:
            _log.warning("offsets were not committed", error=error)

    def _current_generation(self) -> Generation:
        is_member = self._subscriptions.is_auto_assigned
        return self._coordinator.membership.generation if is_member else NO_GENERATION

    def _check_generation(self, generation: Generation) -> None:
        if not self._subscriptions.is_auto_assigned:
            return
        membership = self._coordinator.membership
        if membership.is_rebalancing:
            raise RebalanceInProgressError("the group is rebalancing: poll until it is done, then commit")
        if not membership.generation.is_member:
            raise CommitFailedError(
                ErrorCode.unknown_member_id,
                membership.leave_reason or "this consumer is not in the group: poll to join it",
            )
        if generation != membership.generation:
            raise CommitFailedError(
                ErrorCode.illegal_generation, "the group has gone on since these offsets were read"
            )

    def _commit_error(self, error: KafkaError) -> KafkaError:
        if error.code == ErrorCode.rebalance_in_progress:
            return RebalanceInProgressError("the group is rebalancing: poll until it is done, then commit")
        if not self._subscriptions.is_auto_assigned:
            return CommitFailedError(
                error.code, "the group has members, and only they can commit its offsets"
            )
        return CommitFailedError(
            error.code,
            "the group has gone on without this consumer, which was not heard of for too long or took too long "
            "between polls; its partitions are read by others from what was last committed",
        )
