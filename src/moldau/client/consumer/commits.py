"""Commits a consumer's offsets in the name of its membership, on demand and every so often."""

import asyncio
from collections.abc import Mapping

from moldau.client.consumer.errors import CommitFailedError, RebalanceInProgressError
from moldau.client.consumer.positions import OffsetAndMetadata, Positions
from moldau.client.errors import ErrorCode, KafkaError
from moldau.client.group.driver import GroupMember
from moldau.client.group.events import CommitRefused
from moldau.client.group.offsets import GroupOffsets
from moldau.client.group.terms import NO_GENERATION, Generation
from moldau.client.net.nodes import shared
from moldau.client.record import TopicPartition
from moldau.observe.logging import get_logger

_MOVED_ON = (ErrorCode.unknown_member_id, ErrorCode.illegal_generation, ErrorCode.fenced_instance_id)

_log = get_logger("client.consumer")


class Commits:
    def __init__(
        self,
        offsets: GroupOffsets,
        member: GroupMember,
        positions: Positions,
        *,
        interval_ms: int | None,
    ) -> None:
        """`interval_ms` is None where the user commits all by themselves."""
        self._offsets = offsets
        self._member = member
        self._positions = positions
        self._interval_s = None if interval_ms is None else interval_ms / 1000
        self._due_at: float | None = None
        """None until there was something to commit."""
        self._under_way: asyncio.Task[None] | None = None
        self._last: asyncio.Task[None] | None = None
        """The commit before partitions go, until somebody has seen it done."""
        # An older commit that came after a newer one would set the group back.
        self._one_at_a_time = asyncio.Lock()

    async def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Raises CommitFailedError when the group has gone on without this consumer, RebalanceInProgressError
        while it is changing, and what else the coordinator says."""
        await self._commit(offsets, self._generation())

    async def _commit(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], generation: Generation
    ) -> None:
        """Offsets and generation are of the same moment: later ones may be those of a time when others have the
        partitions."""
        if not offsets:
            return
        async with self._one_at_a_time:
            self._check(generation)
            try:
                await self._offsets.commit(offsets, generation)
            except KafkaError as error:
                if error.code not in (*_MOVED_ON, ErrorCode.rebalance_in_progress):
                    raise
                self._member.step(CommitRefused(generation, error.code))
                raise self._refused(error) from None

    async def commit_consumed(self) -> None:
        """All there is, before partitions go; what cannot be committed will be read again by others. It goes on when
        the one who waits is cancelled, and who comes next waits for the same."""
        if self._last is None:
            self._last = asyncio.get_running_loop().create_task(
                self._tolerantly(self._positions.consumed(), self._generation()),
                name="consumer commits before partitions go",
            )
        await shared(self._last)
        self._last = None

    def commit_when_due(self) -> None:
        """Begins a commit in the background if it is time for one."""
        if self._interval_s is None or self._under_way is not None:
            return
        now = asyncio.get_running_loop().time()
        if self._due_at is not None and now < self._due_at:
            return
        offsets = self._positions.consumed()
        is_first = self._due_at is None
        self._due_at = now + self._interval_s if offsets else None
        if offsets and not is_first and not self._member.membership.is_rebalancing:
            self._under_way = asyncio.get_running_loop().create_task(
                self._auto_commit(offsets, self._generation()), name="consumer commits by itself"
            )

    def due_at(self) -> float | None:
        """The loop time of the next commit that nobody asks for."""
        return None if self._under_way is not None else self._due_at

    async def close(self) -> None:
        tasks = [task for task in (self._under_way, self._last) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _auto_commit(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], generation: Generation
    ) -> None:
        try:
            await self._tolerantly(offsets, generation)
        finally:
            self._under_way = None

    async def _tolerantly(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], generation: Generation
    ) -> None:
        try:
            await self._commit(offsets, generation)
        except KafkaError as error:
            _log.warning("offsets were not committed", error=error)

    def _generation(self) -> Generation:
        is_member = self._positions.is_group_managed
        return self._member.membership.generation if is_member else NO_GENERATION

    def _check(self, generation: Generation) -> None:
        if not self._positions.is_group_managed:
            return
        membership = self._member.membership
        if membership.is_rebalancing:
            raise RebalanceInProgressError("the group is rebalancing: poll until it is done, then commit")
        if not membership.generation.is_member:
            raise CommitFailedError(
                ErrorCode.unknown_member_id,
                membership.left_because or "this consumer is not in the group: poll to join it",
            )
        if generation != membership.generation:
            raise CommitFailedError(
                ErrorCode.illegal_generation, "the group has gone on since these offsets were read"
            )

    def _refused(self, error: KafkaError) -> KafkaError:
        if error.code == ErrorCode.rebalance_in_progress:
            return RebalanceInProgressError("the group is rebalancing: poll until it is done, then commit")
        if not self._positions.is_group_managed:
            return CommitFailedError(
                error.code, "the group has members, and only they can commit its offsets"
            )
        return CommitFailedError(
            error.code,
            "the group has gone on without this consumer, which was not heard of for too long or took too long "
            "between polls; its partitions are read by others from what was last committed",
        )
