"""Committer of a query's offsets to the query's consumer group, so that tools can show the lag.

A failed commit is only a warning, because a query resumes from its checkpoint and not from the group.
"""

import asyncio
from collections.abc import Mapping

from moldau.client.consumer.subscription_state import OffsetAndMetadata
from moldau.client.errors import ErrorCode, KafkaError
from moldau.client.group.offsets import GroupOffsets
from moldau.client.net.cluster import Cluster
from moldau.client.record import TopicPartition
from moldau.observe.logging import get_logger
from moldau.spark.source.offsets import Offsets

TIMEOUT_MS = 10_000

RECOMMIT_INTERVAL_S = 3600.0
"""Unchanged offsets are committed again after this time, because brokers expire the offsets of inactive groups."""

_log = get_logger("spark.source")


class OffsetCommitter:
    """Runs in the event loop thread. Sends one commit at a time. Newer offsets replace pending ones."""

    def __init__(self, cluster: Cluster, group_id: str) -> None:
        self._group_id = group_id
        self._offsets = GroupOffsets(cluster, group_id)
        self._committed: Offsets = {}
        self._committed_at_s = -RECOMMIT_INTERVAL_S
        self._pending: Offsets = {}
        self._commit_task: asyncio.Task[None] | None = None
        self._has_warned = False

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Commits in the background, so that no micro-batch waits for the commit."""
        now_s = asyncio.get_running_loop().time()
        if now_s - self._committed_at_s >= RECOMMIT_INTERVAL_S:
            self._committed, self._committed_at_s = {}, now_s
        self._pending = {
            partition: offset for partition, offset in offsets.items() if self._committed.get(partition) != offset
        }
        if self._pending and self._commit_task is None:
            self._commit_task = asyncio.get_running_loop().create_task(self._commit_pending())

    async def drain(self) -> None:
        """Waits until all offsets are committed or have failed."""
        if self._commit_task is not None:
            await asyncio.gather(self._commit_task, return_exceptions=True)

    async def _commit_pending(self) -> None:
        try:
            while self._pending:
                offsets, self._pending = self._pending, {}
                await self._commit(offsets)
                # Add offsets whose commit failed too, so that not every micro-batch commits the same offsets again.
                self._committed |= offsets
        finally:
            self._commit_task = None

    async def _commit(self, offsets: Offsets) -> None:
        commits = {partition: OffsetAndMetadata(offset) for partition, offset in offsets.items()}
        try:
            outcomes = await self._offsets.commit_each(commits, timeout_ms=TIMEOUT_MS)
            failure = next((each for each in outcomes.values() if each is not None), None)
        except KafkaError as error:
            failure = error
        if failure is not None and not self._has_warned:
            members = (ErrorCode.unknown_member_id, ErrorCode.illegal_generation, ErrorCode.rebalance_in_progress)
            cause = str(failure)
            if failure.code in members:
                cause = "the group has active members: set kafka.group.id to a group that no consumer uses"
            _log.warning(
                f"the query's offsets could not be committed to the group {self._group_id!r}, so its "
                f"lag is not visible there: {cause}"
            )
        self._has_warned = failure is not None
