"""The follower side of a partition: applies the leader's fetch responses to the log."""

from collections.abc import Awaitable
from uuid import UUID

from moldau.errors import CorruptRecordError, FencedLeaderEpochError, NotLeaderOrFollowerError, StorageError
from moldau.logs.store import LogName
from moldau.observe.logging import get_logger
from moldau.partitions.delayed_operations import DelayedOperations
from moldau.partitions.follower_state import (
    FollowerFetchPosition,
    PartitionFollowerState,
    parse_batches,
    truncation_offset,
)
from moldau.partitions.guarded_log import GuardedLog
from moldau.partitions.leader_state import NO_EPOCH
from moldau.platform.disk import Buffer
from moldau.raft.messages import EpochEndOffset
from moldau.records.batch import Batch

log = get_logger(__name__)


class FollowerReplica:
    state: PartitionFollowerState | None = None
    """None while this broker leads the partition, or has no role in it."""

    def __init__(
        self, name: LogName, topic_id: UUID, replica_id: int, guarded_log: GuardedLog, delayed: DelayedOperations
    ) -> None:
        self.name = name
        self.topic_id = topic_id
        self.log = guarded_log.log
        self._replica_id = replica_id
        self._guarded_log = guarded_log
        self._flusher = guarded_log.flusher
        self._delayed = delayed

    @property
    def failure(self) -> StorageError | None:
        return self._guarded_log.failure

    @property
    def leader_epoch(self) -> int:
        return NO_EPOCH if self.state is None else self.state.leader_epoch

    @property
    def is_in_sync(self) -> bool:
        """Whether this follower is in the ISR according to the metadata."""
        return self.state is not None and self._replica_id in self.state.image.isr

    @property
    def lag(self) -> int:
        """How many offsets the log is behind the leader's high watermark."""
        return 0 if self.state is None else max(0, self.state.leader_high_watermark - self.log.end_offset)

    def replicated_offset(self) -> int:
        """Returns the offset below which this follower's log is flushed. A fetch acknowledges the records below it."""
        return self._flusher.flushed_offset()

    def fetch_position(self) -> FollowerFetchPosition | None:
        """Returns where to fetch next; None without a leader, after a failure, or before the log is flushed."""
        state, log_ = self.state, self.log
        if state is None or not state.has_leader or self._guarded_log.failure is not None:
            return None
        if self.replicated_offset() < log_.end_offset:
            # A fetch would acknowledge records that are not flushed. This replica may have appended them as leader.
            return None
        return FollowerFetchPosition(log_.end_offset, log_.epochs.latest, state.leader_epoch, log_.start_offset)

    async def append_as_follower(
        self, data: Buffer, leader_epoch: int, high_watermark: int, leader_start_offset: int
    ) -> None:
        """Appends the batches of a fetch response unchanged and returns when they are flushed.

        Raises FencedLeaderEpochError if the response is from another leader epoch, NotLeaderOrFollowerError,
        CorruptRecordError if batches are damaged or do not continue this log, and StorageError.
        """
        async with self._guarded_log.lock:
            state = self._require_state(leader_epoch)
            batches = parse_batches(data, self.name, leader_epoch)
            try:
                if batches:
                    await self._append_from_leader(batches)
                if state.on_leader_high_watermark(high_watermark, self.log.end_offset):
                    self.log.producers.unstable.forget_committed(state.high_watermark)
                    self._delayed.high_watermark_listeners.notify()
                start_offset = min(leader_start_offset, state.high_watermark)
                if start_offset > self.log.start_offset:
                    await self._guarded_log.guard(self.log.advance_start_offset(start_offset))
            finally:
                # Start a flush even after an error, because nothing is fetched until the whole log is flushed.
                self._flusher.start()
            end_offset = self.log.end_offset
        if self.replicated_offset() < end_offset:
            await self._flusher.wait_until_flushed(end_offset)

    async def _append_from_leader(self, batches: list[Batch]) -> None:
        log_ = self.log
        first, start_offset = batches[0], log_.start_offset
        if first.base_offset < log_.end_offset:
            if start_offset != log_.end_offset or first.next_offset <= start_offset:
                raise CorruptRecordError(
                    f"the leader sent offset {first.base_offset} of {self.name}, which ends at {log_.end_offset}"
                )
            # The empty log starts inside this batch. Append the whole batch, then restore the start offset.
            await self._guarded_log.guard(log_.truncate_fully_and_start_at(first.base_offset))
        await self._guarded_log.append(batches)
        if start_offset > log_.start_offset:
            await self._guarded_log.guard(log_.advance_start_offset(start_offset))

    async def truncate_to_divergence(self, diverging: EpochEndOffset, leader_epoch: int) -> None:
        """Truncates the log to the offset where it diverges from the leader's log; see `truncation_offset`."""
        async with self._guarded_log.lock:
            state = self._require_state(leader_epoch)
            log_ = self.log
            previous_end_offset = log_.end_offset
            offset = truncation_offset(log_.epochs, previous_end_offset, diverging)
            self._check_leader_has_committed(state, diverging)
            committed = state.high_watermark
            await self._truncate(state, offset, log_.truncate_to(offset))
            # Also remove an epoch without records at the end of the log. Otherwise the next fetch would send it again.
            log_.epochs.truncate_from_end(log_.end_offset)
            state.on_truncated(log_.end_offset)
            if log_.end_offset < committed:
                log_event = log.warning if state.image.is_recovering else log.error
                log_event(
                    "truncated committed records that the leader does not have",
                    partition=str(self.name),
                    leader=state.leader_id,
                    epoch=leader_epoch,
                    from_offset=log_.end_offset,
                    committed=committed,
                )
        log.info(
            "truncated the log to where it diverges from the leader's",
            partition=str(self.name),
            leader=state.leader_id,
            epoch=leader_epoch,
            previous_end=previous_end_offset,
            end=self.log.end_offset,
        )

    def _check_leader_has_committed(self, state: PartitionFollowerState, diverging: EpochEndOffset) -> None:
        """Takes this replica offline and raises StorageError if the leader lacks committed records.

        A leader elected from the ISR must have all committed records. If its disk has lost some, this replica may have
        the last copy. With write.caching or after an unclean election a leader may lack them, so there is no check.
        """
        committed, log_ = state.high_watermark, self.log
        if diverging.offset >= committed or log_.settings.write_caching:
            return
        if log_.epochs.epoch_for_offset(committed - 1) < state.image.unclean_epoch:
            return
        error = StorageError(
            f"broker {state.leader_id} leads {self.name} but lacks the committed records from offset "
            f"{diverging.offset} to {committed - 1}, and there was no unclean election: its disk has lost them. This "
            "replica keeps them. To continue with them, stop that broker, restart this one, run `moldau cluster "
            "elect-leaders --unclean`, and start that broker with an empty data.dir. To continue without them, stop "
            "this broker, move this partition's directory away, and start it again"
        )
        self._guarded_log.mark_offline(error)
        raise error

    async def reset_to(self, offset: int, leader_epoch: int) -> None:
        """Empties the log and starts it at `offset`, the start of the leader's log. Does nothing if this log has
        records and its end is at or after `offset`."""
        async with self._guarded_log.lock:
            state, log_ = self._require_state(leader_epoch), self.log
            if offset <= log_.end_offset and log_.start_offset < log_.end_offset:
                return
            await self._truncate(state, offset, log_.truncate_fully_and_start_at(offset))
            state.high_watermark = offset
        log.info("reset the log to the start of the leader's", partition=str(self.name), offset=offset)

    async def _truncate(self, state: PartitionFollowerState, offset: int, truncation: Awaitable[None]) -> None:
        """Awaits `truncation`. Lowers the high watermark before, because it may be checkpointed meanwhile."""
        high_watermark = state.high_watermark
        state.on_truncated(offset)
        try:
            await self._guarded_log.guard(truncation)
        except StorageError:
            if self.log.failure is None:
                # The log may be truncated nevertheless, if only its flush has failed.
                state.high_watermark = min(high_watermark, self.log.end_offset)
            raise

    def _require_state(self, leader_epoch: int) -> PartitionFollowerState:
        self._guarded_log.check_online()
        state = self.state
        if state is None or self._guarded_log.is_closed:
            raise NotLeaderOrFollowerError(f"this broker does not follow {self.name}")
        if state.leader_epoch != leader_epoch:
            raise FencedLeaderEpochError(
                f"the response is of epoch {leader_epoch}, and {self.name} is in epoch {state.leader_epoch}"
            )
        return state
