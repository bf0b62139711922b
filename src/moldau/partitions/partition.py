"""A partition as its callers see it: takes appends in order, knows who may read what, and wakes who waits."""

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from moldau.controller.requests import IsrChange, IsrChangeResult
from moldau.errors import (
    MoldauError,
    NotEnoughReplicasAfterAppendError,
    NotEnoughReplicasError,
    NotLeaderOrFollowerError,
    OffsetNotAvailableError,
    OffsetOutOfRangeError,
    StorageError,
)
from moldau.logs.store import NOTHING, RecordSlices, TimestampAndOffset, copy_error
from moldau.partitions.follower_state import FollowerState
from moldau.partitions.leader_state import NO_EPOCH, LeaderState, ReplicaFetch
from moldau.partitions.replica import Replica
from moldau.raft.messages import EpochEndOffset
from moldau.records.batch import NO_TIMESTAMP, Batch


class DivergingEpochError(MoldauError):
    """The caller's last fetched epoch ended earlier here: it has records that this log has not."""

    def __init__(self, epoch: int, end_offset: int) -> None:
        super().__init__(f"epoch {epoch} ended at {end_offset}")
        self.epoch = epoch
        self.end_offset = end_offset


class OutOfLogRangeError(OffsetOutOfRangeError):
    """The offset is not in the log, which begins at `start_offset`: a follower that is before it begins anew there."""

    def __init__(self, message: str, start_offset: int) -> None:
        super().__init__(message)
        self.start_offset = start_offset


class LogAppendInfo(NamedTuple):
    base_offset: int
    next_offset: int
    """What the high watermark has to reach for the records to be committed."""
    append_time_ms: int
    """NO_TIMESTAMP unless the topic's records carry the broker's time."""
    leader_epoch: int
    """In which they are in the log. In a later one the same offsets may be those of other records."""


class LogReadInfo(NamedTuple):
    records: RecordSlices
    high_watermark: int
    last_stable_offset: int
    start_offset: int
    nearest_replica: int = -1
    """Where the consumer should rather read; then there are no records."""


class Partition(Replica):
    """A partition that this node has a replica of."""

    # Leading

    def require_leader(self, current_leader_epoch: int = NO_EPOCH) -> LeaderState:
        """The leader's state, for a caller that knows `current_leader_epoch`; raises where it cannot be asked of
        this node."""
        role = self._require_role(current_leader_epoch)
        if isinstance(role, LeaderState):
            return role
        raise NotLeaderOrFollowerError(
            f"this node does not lead {self.name}", self.leader_id, self.leader_epoch
        )

    def _require_role(self, current_leader_epoch: int) -> LeaderState | FollowerState:
        if self._failure is not None:
            raise copy_error(self._failure)
        role = self._leader or self._follower
        if role is None:
            raise NotLeaderOrFollowerError(f"this node does not lead {self.name}")
        role.check_epoch(current_leader_epoch)
        return role

    @property
    def has_lease(self) -> bool:
        return self._lease is None or self._lease.is_valid()

    def check_lease(self) -> None:
        """Refuses to promise anything once others may lead in this node's place."""
        if not self.has_lease:
            raise NotLeaderOrFollowerError(
                f"this node has not heard of the controller for too long to lead {self.name}"
            )

    def on_lease_lost(self) -> None:
        """Whoever waits for a commit is told now: this node could not promise it, however long they wait. Those who
        read go on."""
        waiting = [
            each
            for each in (self._commit_waiters, self._acks_all_waiters, self._low_watermark_waiters)
            if each
        ]
        if waiting:
            try:
                self.check_lease()
            except NotLeaderOrFollowerError as error:
                for each in waiting:
                    each.fail_all(error)
        self.lease_listeners.notify()

    @property
    def last_stable_offset(self) -> int:
        """What read_committed sees. No transaction is ever open yet, so it is the high watermark."""
        return self.high_watermark

    # Writing

    async def append(
        self,
        batches: Sequence[Batch],
        append_time_ms: int = NO_TIMESTAMP,
        *,
        acks_all: bool = False,
        current_leader_epoch: int = NO_EPOCH,
    ) -> LogAppendInfo:
        """Gives the batches their offsets and appends them; the records are committed once the high
        watermark reaches `next_offset` in the same leader epoch (`commit_future`). A repeated batch of an idempotent
        producer is not appended again: the caller gets the offset it had. `acks_all` asks for min.insync.replicas
        to be there, `current_leader_epoch` for the leader epoch in which the caller has thought the records up."""
        async with self._lock:
            leader = self.require_leader(current_leader_epoch)
            log_ = self.log
            first = batches[0]
            try:
                self.check_lease()
                if acks_all:
                    leader.check_min_isr()
            except (NotLeaderOrFollowerError, NotEnoughReplicasError) as error:
                log_.producers.note_rejected(first, error)
                raise
            if first.producer_id >= 0:
                repeated = log_.producers.check(first)
                if repeated is not None:
                    if append_time_ms != NO_TIMESTAMP:
                        append_time_ms = repeated.timestamp_ms
                    return LogAppendInfo(
                        repeated.base_offset, repeated.last_offset + 1, append_time_ms, leader.leader_epoch
                    )
            base_offset = offset = log_.end_offset
            for batch in batches:
                batch.base_offset = offset
                batch.leader_epoch = leader.leader_epoch
                offset = batch.next_offset
            try:
                await self._append(batches)
            except StorageError as error:
                log_.producers.note_rejected(first, error)
                raise
            leader.on_append(offset, self._clock.monotonic_ms())
        self.append_listeners.notify()
        if self.log.settings.write_caching:
            self._on_durable_offset()
        self._flusher.start()
        return LogAppendInfo(base_offset, offset, append_time_ms, leader.leader_epoch)

    def commit_future(
        self, next_offset: int, leader_epoch: int, *, acks_all: bool = False
    ) -> "asyncio.Future[None] | None":
        """Done when the high watermark reaches `next_offset` in the epoch that the records are of, failed when that can
        no longer be promised; None where it is there already. `acks_all` fails, too, once fewer than
        min.insync.replicas are in sync."""
        leader = self.require_leader()
        self._check_leader_epoch(leader, leader_epoch)
        if acks_all and not leader.has_min_isr:
            raise NotEnoughReplicasAfterAppendError(
                f"only {len(leader.isr)} replicas of {self.name} are in sync since the records were appended"
            )
        if leader.high_watermark >= next_offset:
            return None
        return (self._acks_all_waiters if acks_all else self._commit_waiters).add(next_offset)

    def _check_leader_epoch(self, leader: LeaderState, leader_epoch: int) -> None:
        """Others may have led since, cut the records off and put their own in their place."""
        if leader.leader_epoch != leader_epoch:
            raise NotLeaderOrFollowerError(
                f"{self.name} has had another leader since the records were appended: they may be gone",
                self.leader_id,
                leader.leader_epoch,
            )

    async def wait_for_flush(self) -> None:
        """Lets the sync of what is appended come to its end, for callers who ask where the log ends: a
        producer that did not wait for the sync should find its own records counted all the same."""
        if self._leader is not None and self._flusher.is_running:
            await self._flusher.wait_until_durable(self.log.end_offset)

    # Reading

    async def read(
        self,
        offset: int,
        bytes_max: int,
        *,
        current_leader_epoch: int = NO_EPOCH,
        last_fetched_epoch: int = NO_EPOCH,
        committed_only: bool = False,
        min_one_batch: bool = True,
        from_follower: bool = False,
    ) -> LogReadInfo:
        """What a consumer may see from `offset` on, of a leader or, if it may be `from_follower`, of any replica.
        Raises OffsetOutOfRangeError, Diverged, or as `require_leader` does."""
        role = (
            self._require_role(current_leader_epoch)
            if from_follower
            else self.require_leader(current_leader_epoch)
        )
        if isinstance(role, FollowerState):
            self._check_follower_has(role, offset, last_fetched_epoch)
        try:
            self._check_fetch_offset(offset, last_fetched_epoch)
        except (DivergingEpochError, OffsetOutOfRangeError):
            if isinstance(role, LeaderState):
                # Another may have gone on from here since: records that this one has not are not lost.
                self.check_lease()
            raise
        log_ = self.log
        high_watermark, stable = role.high_watermark, self.last_stable_offset
        below = self.visible_end(committed_only=committed_only)
        records = NOTHING
        if offset < below:
            records = await self._guard_log(log_.read(offset, bytes_max, below, min_one_batch=min_one_batch))
        return LogReadInfo(records, high_watermark, stable, log_.start_offset)

    def _check_follower_has(self, follower: FollowerState, offset: int, last_fetched_epoch: int) -> None:
        """What a follower has not got yet, or has not cut yet, says nothing of what there is: the consumer must neither
        begin anew nor take its records for lost."""
        is_newer = last_fetched_epoch > self.log.epochs.latest and offset > follower.high_watermark
        if offset > self.log.end_offset or is_newer:
            raise OffsetNotAvailableError(f"this follower of {self.name} has not come to offset {offset} yet")

    def visible_end(self, *, committed_only: bool) -> int:
        """Consumers see nothing that could still be lost."""
        return self.last_stable_offset if committed_only else self.high_watermark

    async def read_for_follower(
        self, fetch: ReplicaFetch, bytes_max: int, *, min_one_batch: bool = True, is_new_request: bool = True
    ) -> LogReadInfo:
        """What a follower is to append: all there is from its offset on. That it asks from there says what it has on
        disk; `is_new_request` is False where the same request is looked at again. Raises as `read` does, and
        StaleBrokerEpochError."""
        leader = self.require_leader()
        leader.check_follower_fetch(fetch)
        log_ = self.log
        if fetch.last_fetched_epoch > leader.leader_epoch:
            # There was no such leader: the epoch, which no checksum covers, was damaged on the follower's disk.
            raise DivergingEpochError(log_.epochs.latest, log_.end_offset)
        self._check_fetch_offset(fetch.offset, fetch.last_fetched_epoch)
        if is_new_request:
            self._update_follower(leader, fetch)
        end_offset = log_.end_offset
        records = NOTHING
        if fetch.offset < end_offset:
            records = await self._guard_log(
                log_.read(fetch.offset, bytes_max, end_offset, min_one_batch=min_one_batch)
            )
        return LogReadInfo(records, leader.high_watermark, leader.high_watermark, log_.start_offset)

    def _update_follower(self, leader: LeaderState, fetch: ReplicaFetch) -> None:
        if leader.on_fetch(fetch, self._clock.monotonic_ms()):
            self._on_high_watermark_advanced()
        if self._low_watermark_waiters:
            self._low_watermark_waiters.complete_up_to(leader.low_watermark(self.log.start_offset))

    def on_repeated_fetch(self, replica_id: int, broker_epoch: int) -> bool:
        """Notes that a follower in sync asks on from where it asked last; False where it is none, or has to be looked
        at as a whole."""
        leader = self._leader
        if leader is None or self._failure is not None:
            return False
        return leader.on_repeated_fetch(replica_id, broker_epoch, self._clock.monotonic_ms())

    def _check_fetch_offset(self, offset: int, last_fetched_epoch: int) -> None:
        log_ = self.log
        if last_fetched_epoch >= 0 and offset >= log_.start_offset:
            epoch, end_offset = log_.epochs.end_offset_for(last_fetched_epoch, log_.end_offset)
            if epoch < 0:
                raise OffsetOutOfRangeError(f"nothing is known here of leader epoch {last_fetched_epoch}")
            if epoch < last_fetched_epoch or end_offset < offset:
                raise DivergingEpochError(epoch, end_offset)
        if not log_.start_offset <= offset <= log_.end_offset:
            raise OutOfLogRangeError(
                f"offset {offset} is not within {log_.start_offset} to {log_.end_offset} of {self.name}",
                log_.start_offset,
            )

    def end_offset_for_epoch(self, epoch: int, current_leader_epoch: int = NO_EPOCH) -> EpochEndOffset:
        """The newest epoch up to `epoch` that there are records of (-1: none), and where they end. Raises as
        `require_leader`
        does; as does a leader without a lease of what may have gone on, or ended sooner, elsewhere."""
        leader = self.require_leader(current_leader_epoch)
        found = EpochEndOffset(*self.log.epochs.end_offset_for(epoch, self.log.end_offset))
        if found.epoch < epoch or found.offset > leader.high_watermark:
            self.check_lease()
        return found

    def latest_epoch_and_end_offset(self) -> EpochEndOffset:
        """The newest epoch and the end of this replica's log, whatever its role."""
        if self._failure is not None:
            raise copy_error(self._failure)
        return EpochEndOffset(self.log.epochs.latest, self.log.end_offset)

    def latest_offset(self, current_leader_epoch: int = NO_EPOCH) -> int:
        """The high watermark, for a caller that takes it for the end of the log; raises OffsetNotAvailableError where
        a new leader does not know yet what its predecessor has committed."""
        leader = self.require_leader(current_leader_epoch)
        if leader.high_watermark < leader.epoch_start:
            raise OffsetNotAvailableError(
                f"the leader of {self.name} is new and does not know yet what is committed: ask again"
            )
        return leader.high_watermark

    async def offset_for_timestamp(self, timestamp_ms: int) -> TimestampAndOffset | None:
        return await self.log.offset_for_timestamp(timestamp_ms, self.high_watermark)

    async def max_timestamp(self) -> TimestampAndOffset | None:
        return await self.log.max_timestamp(self.high_watermark)

    # The in-sync set

    def can_join_isr(self, replica_id: int) -> bool:
        """Whether the last fetch of this follower has brought it far enough to be in sync again."""
        return self._leader is not None and self._leader.can_join_isr(replica_id)

    def propose_isr_change(self, lag_ms: int) -> IsrChange | None:
        """What to ask of the controller, where the in-sync set should be another one. Until the answer is given to
        `on_alter_partition_response`, or the metadata shows a later state, `pending_isr_change` gives it again."""
        leader = self._leader
        if leader is None or self._failure is not None:
            return None
        wanted = leader.wanted_isr(self._clock.monotonic_ms(), lag_ms)
        if wanted is not None:
            leader.propose(wanted)
        if leader.advance_high_watermark():
            # Somebody who kept up has stopped, and is no longer waited for.
            self._on_high_watermark_advanced()
        return None if wanted is None else self.pending_isr_change

    @property
    def pending_isr_change(self) -> IsrChange | None:
        """The change that was proposed and of which it is not known what became of it."""
        leader = self._leader
        if leader is None or leader.proposal is None:
            return None
        return IsrChange(
            topic_id=self.topic_id,
            partition=self.name.partition,
            leader_epoch=leader.leader_epoch,
            partition_epoch=leader.proposal.partition_epoch,
            isr=tuple(zip(leader.proposal.isr, leader.proposal.broker_epochs, strict=True)),
        )

    def on_alter_partition_response(self, result: IsrChangeResult) -> None:
        if self._leader is not None and result.topic_id == self.topic_id:
            self._on_isr_changed(self._leader.on_alter_partition_response(result))

    # Keeping

    async def delete_records(self, before_offset: int) -> int:
        """Moves the start up to `before_offset` (-1: the high watermark); gives the new start here."""
        await self.wait_for_flush()
        async with self._lock:
            high_watermark = self.require_leader().high_watermark
            self.check_lease()
            target = high_watermark if before_offset == -1 else before_offset
            if not 0 <= target <= high_watermark:
                raise OffsetOutOfRangeError(
                    f"{target} is beyond the high watermark {high_watermark} of {self.name}"
                )
            if target > self.log.start_offset:
                await self._guard_log(self.log.advance_start_offset(target))
                self.append_listeners.notify()
            return target

    def low_watermark_future(self, before_offset: int) -> "asyncio.Future[None] | None":
        """Done when the log begins at `before_offset` or later on every living replica; None where it does."""
        if self.low_watermark >= before_offset:
            return None
        return self._low_watermark_waiters.add(before_offset)

    @property
    def low_watermark(self) -> int:
        """Where the log begins on every living replica."""
        return self.require_leader().low_watermark(self.log.start_offset)

    async def apply_retention(self, now_ms: int) -> None:
        """Old records go where this node leads; a follower's log begins where its leader's does."""
        async with self._lock:
            below = self.high_watermark if self.is_leader else self.log.start_offset
            start_offset = self.log.start_offset
            await self._guard_log(self.log.apply_retention(now_ms, below))
            if self.log.start_offset > start_offset:
                self.append_listeners.notify()

    async def compact(self, now_ms: int) -> bool:
        """Beside appends, not behind the lock: it works on closed segments, and takes long."""
        return await self._guard_log(self.log.compact(now_ms, self.high_watermark))
