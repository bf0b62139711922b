"""One partition replica of this broker: its log, its role and its delayed operations."""

import asyncio
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, Protocol
from uuid import UUID

from moldau.errors import (
    InvalidTransactionStateError,
    MoldauError,
    NotEnoughReplicasAfterAppendError,
    NotEnoughReplicasError,
    NotLeaderOrFollowerError,
    OffsetNotAvailableError,
    OffsetOutOfRangeError,
    StorageError,
)
from moldau.logs.producer_state import UNKNOWN_OWNER, TransactionOwner, VerificationGuard
from moldau.logs.store import EMPTY_SLICES, Log, LogName, RecordSlices, TimestampAndOffset, copy_error
from moldau.logs.transaction_index import AbortedTransaction
from moldau.metadata.image import NO_LEADER, BrokerRegistration, PartitionRegistration
from moldau.metrics.component_metrics import IsrMetrics
from moldau.observe.logging import get_logger
from moldau.partitions.append_times import NOTE_INTERVAL_MS
from moldau.partitions.delayed_operations import DelayedOperations
from moldau.partitions.follower_replica import FollowerReplica
from moldau.partitions.follower_state import PartitionFollowerState
from moldau.partitions.guarded_log import GuardedLog
from moldau.partitions.leader_replica import LeaderReplica
from moldau.partitions.leader_state import NO_EPOCH, FollowerFetch, PartitionLeaderState, check_epoch
from moldau.platform.clock import Clock
from moldau.raft.messages import EpochEndOffset
from moldau.records.batch import CONTROL_MASK, NO_TIMESTAMP, Batch
from moldau.records.batch_builder import build_batch
from moldau.records.control_records import EndTransaction, encode_key, encode_value, end_of_transaction
from moldau.records.record import Record
from moldau.settings.topic import TopicSettings

log = get_logger(__name__)

NO_BROKERS: Mapping[int, BrokerRegistration] = MappingProxyType({})


class Lease(Protocol):
    """While the lease is valid, the controller elects no other leader for the partitions that this broker leads."""

    def is_valid(self) -> bool: ...


class DivergingEpochError(MoldauError):
    """The caller has records that this log lacks. `epoch` is the latest epoch that both logs can have in common;
    it ends at `end_offset` in this log."""

    def __init__(self, epoch: int, end_offset: int) -> None:
        super().__init__(f"epoch {epoch} ended at {end_offset}")
        self.epoch = epoch
        self.end_offset = end_offset


class OutOfLogRangeError(OffsetOutOfRangeError):
    """The offset is outside the log, which starts at `start_offset`."""

    def __init__(self, message: str, start_offset: int) -> None:
        super().__init__(message)
        self.start_offset = start_offset


class LogAppendInfo(NamedTuple):
    base_offset: int
    next_offset: int
    """The records are committed when the high watermark reaches this offset."""
    append_time_ms: int
    """NO_TIMESTAMP unless the topic uses LogAppendTime. As in Kafka, a duplicate has the maximum timestamp of the batch
    that was appended first."""
    leader_epoch: int
    """The leader epoch of the append. In a later epoch the offsets may belong to other records."""


class LogReadInfo(NamedTuple):
    records: RecordSlices
    high_watermark: int
    last_stable_offset: int
    start_offset: int
    preferred_read_replica: int = -1
    """The replica that the consumer should fetch from instead, or -1. If it is set, `records` is empty."""
    aborted_transactions: Sequence[AbortedTransaction] | None = None
    """The aborted transactions with records in `records`; None unless only committed records were requested."""


class UnreadRecord(NamedTuple):
    """The first record that a consumer has not read."""

    offset: int
    time_ms: int
    """When the record was appended; NO_TIMESTAMP if that is unknown."""
    is_append_time: bool
    """Whether `time_ms` is right to within a second. If not, it is the timestamp that the producer set, limited to the
    time in which the leader may have appended the record."""


class Partition:
    """A replica with at most one role: either `leader.state` or `follower.state` is set."""

    def __init__(
        self,
        name: LogName,
        topic_id: UUID,
        replica_id: int,
        log_: Log,
        clock: Clock,
        lease: Lease | None = None,
        isr_metrics: IsrMetrics | None = None,
    ) -> None:
        """If `lease` is None, the broker leads as the metadata says and never checks a lease."""
        self.name = name
        self.topic_id = topic_id
        self.log = log_
        self.delayed = DelayedOperations()
        self.guarded_log = GuardedLog(log_, self.delayed, on_flushed=self._on_flushed)
        self._isr_metrics = IsrMetrics() if isr_metrics is None else isr_metrics
        self.leader = LeaderReplica(name, topic_id, self.guarded_log, self.delayed, clock, self._isr_metrics)
        self.follower = FollowerReplica(name, topic_id, replica_id, self.guarded_log, self.delayed)
        self._replica_id = replica_id
        self._clock = clock
        self._lease = lease
        self._lock = self.guarded_log.lock
        self._flusher = self.guarded_log.flusher

    # The role

    async def apply_image(
        self, image: PartitionRegistration, *, brokers: Mapping[int, BrokerRegistration] = NO_BROKERS
    ) -> None:
        """Becomes leader or follower as the metadata says. Ignores an image older than the current one.

        Takes the lock, so that a running append completes in the leader epoch in which it started.
        """
        async with self._lock:
            if self.guarded_log.is_closed or self._is_stale(image):
                return
            if image.leader != self._replica_id:
                self._become_follower(image)
            elif image.leader_epoch >= self.log.epochs.latest:
                self._become_leader(image, brokers)
            else:
                # Replicas are opened only with current metadata, so a healthy log has no later epoch than the metadata.
                error = StorageError(
                    f"{self.name} is led in epoch {image.leader_epoch}, but its log has records of epoch "
                    f"{self.log.epochs.latest}: they are damaged, or belong to another cluster"
                )
                self.guarded_log.mark_offline(error)
                return
            self._flusher.start()

    def _is_stale(self, image: PartitionRegistration) -> bool:
        role = self.leader.state or self.follower.state
        return role is not None and (
            image.leader_epoch < role.image.leader_epoch or image.partition_epoch < role.image.partition_epoch
        )

    def _become_leader(self, image: PartitionRegistration, brokers: Mapping[int, BrokerRegistration]) -> None:
        min_isr = image.min_isr(self.log.settings.min_insync_replicas)
        if self.leader.state is not None and self.leader.state.leader_epoch == image.leader_epoch:
            self.leader.on_image(image, brokers, min_isr)
            return
        previous_role = self.leader.state or self.follower.state
        if previous_role is not None:
            self._isr_metrics.record(previous_role.image.isr, image.isr)
        high_watermark, end_offset = self.high_watermark, self.log.end_offset
        self.log.epochs.assign(image.leader_epoch, end_offset)
        previous = self.leader.state
        self.follower.state = None
        self.leader.state = PartitionLeaderState(
            self._replica_id, image, brokers, min_isr, high_watermark, end_offset, self._clock.monotonic_ms()
        )
        if previous is not None and previous.leader_epoch + 1 == image.leader_epoch:
            # No other broker has led the partition in between, so it has the same records.
            self.leader.state.append_times = previous.append_times
        log.debug(
            "became leader",
            partition=str(self.name),
            epoch=image.leader_epoch,
            end=end_offset,
            committed=high_watermark,
        )
        self._on_flushed()
        self.delayed.notify_all()

    def _become_follower(self, image: PartitionRegistration) -> None:
        if self.follower.state is not None and self.follower.state.leader_epoch == image.leader_epoch:
            self.follower.state.image = image
            return
        self.follower.state = PartitionFollowerState(image, self.high_watermark)
        self.leader.state = None
        self.log.producers.invalidate_all_guards()
        self.delayed.fail_all(
            NotLeaderOrFollowerError(f"{self.name} has a new leader", image.leader, image.leader_epoch)
        )
        self.delayed.notify_all()

    @property
    def leader_epoch(self) -> int:
        role = self.leader.state or self.follower.state
        return NO_EPOCH if role is None else role.leader_epoch

    @property
    def leader_id(self) -> int:
        if self.leader.state is not None:
            return self._replica_id
        return NO_LEADER if self.follower.state is None else self.follower.state.leader_id

    @property
    def is_leader(self) -> bool:
        return self.leader.state is not None

    @property
    def is_follower(self) -> bool:
        """Whether this broker is a follower and the partition has a leader."""
        return self.follower.state is not None and self.follower.state.has_leader

    @property
    def failure(self) -> StorageError | None:
        return self.guarded_log.failure

    @property
    def high_watermark(self) -> int:
        """The offset below which all records are committed and in this log. Later records may be committed too."""
        role = self.leader.state or self.follower.state
        if role is not None:
            return role.high_watermark
        return max(self.log.start_offset, min(self.log.checkpointed_high_watermark, self.log.end_offset))

    @property
    def last_stable_offset(self) -> int:
        """The offset below which all transactions have ended. Consumers of committed records read up to it."""
        return self.log.last_stable_offset(self.high_watermark)

    def configure(self, settings: TopicSettings) -> None:
        self.log.configure(settings)
        self.leader.on_min_insync_replicas(settings.min_insync_replicas)
        self._on_flushed()
        self._flusher.complete_waiters()
        self._flusher.start()

    def _on_flushed(self) -> None:
        self.leader.on_flushed(self._flusher.flushed_offset())

    async def close(self) -> None:
        """Fails all delayed operations and waits for the running flush. The log stays open."""
        self.guarded_log.is_closed = True
        self.log.checkpointed_high_watermark = self.high_watermark
        self.leader.state = self.follower.state = None
        self.guarded_log.fail_waiters(NotLeaderOrFollowerError(f"{self.name} is closing on this broker"))
        async with self._lock:
            await self._flusher.stop()

    # Leadership checks

    def require_leader(self, current_leader_epoch: int = NO_EPOCH) -> PartitionLeaderState:
        """Returns the leader's state for a caller that knows the leader epoch `current_leader_epoch`.

        Raises NotLeaderOrFollowerError, FencedLeaderEpochError, UnknownLeaderEpochError or StorageError.
        """
        role = self._require_role(current_leader_epoch)
        if isinstance(role, PartitionLeaderState):
            return role
        raise NotLeaderOrFollowerError(f"this broker does not lead {self.name}", self.leader_id, self.leader_epoch)

    def _require_role(self, current_leader_epoch: int) -> PartitionLeaderState | PartitionFollowerState:
        if self.guarded_log.failure is not None:
            raise copy_error(self.guarded_log.failure)
        role = self.leader.state or self.follower.state
        if role is None:
            raise NotLeaderOrFollowerError(f"this broker does not lead {self.name}")
        if current_leader_epoch != NO_EPOCH:
            check_epoch(current_leader_epoch, role.image)
        return role

    @property
    def has_lease(self) -> bool:
        return self._lease is None or self._lease.is_valid()

    def check_lease(self) -> None:
        """Raises NotLeaderOrFollowerError if the lease has expired, because another broker may be the leader."""
        if not self.has_lease:
            raise NotLeaderOrFollowerError(
                f"this broker has lost contact with the controller and may no longer lead {self.name}"
            )

    def on_lease_lost(self) -> None:
        """Fails all pending acks, because this broker cannot commit records without a lease. Reads are not affected."""
        try:
            self.check_lease()
        except NotLeaderOrFollowerError as error:
            self.delayed.fail_all(error)
        self.delayed.lease_listeners.notify()

    # Appending

    async def append(
        self,
        batches: Sequence[Batch],
        append_time_ms: int = NO_TIMESTAMP,
        *,
        acks_all: bool = False,
        current_leader_epoch: int = NO_EPOCH,
        verification: VerificationGuard | None = None,
        transaction_version: int = 0,
    ) -> LogAppendInfo:
        """Assigns offsets to the batches and appends them. Use `commit_future` to wait until they are committed.

        A duplicate batch of an idempotent producer is not appended again. The result then has the offsets of the first
        append. With `acks_all` the ISR must have at least min.insync.replicas members. Callers pass
        `current_leader_epoch` if their records are valid only in that epoch. The first batch of a transaction needs the
        guard of `begin_verification`. `transaction_version` is that of a marker; see `append_marker`.
        """
        async with self._lock:
            log_ = self.log
            first = batches[0]
            try:
                leader = self.require_leader(current_leader_epoch)
                self.check_lease()
                if acks_all:
                    leader.check_min_isr()
            except (NotLeaderOrFollowerError, NotEnoughReplicasError) as error:
                log_.producers.note_rejected(first, error)
                raise
            leader_epoch = leader.image.leader_epoch
            if first.producer_id >= 0:
                if first.attributes & CONTROL_MASK:
                    self._check_marker(leader, first, transaction_version)
                    repeated = None
                else:
                    try:
                        repeated = log_.producers.check(first, verification)
                    except InvalidTransactionStateError as error:
                        log_.producers.note_rejected(first, error)
                        raise
                if repeated is not None:
                    return LogAppendInfo(
                        repeated.base_offset, repeated.last_offset + 1, repeated.timestamp_ms, leader_epoch
                    )
            base_offset = offset = log_.end_offset
            for batch in batches:
                batch.base_offset = offset
                batch.leader_epoch = leader_epoch
                offset += batch.last_offset_delta + 1
            try:
                await self.guarded_log.append(batches)
            except StorageError as error:
                log_.producers.note_rejected(first, error)
                raise
            now_ms = self._clock.monotonic_ms()
            leader.on_append(offset, now_ms)
            if now_ms >= leader.next_note_ms:
                leader.note_append(base_offset, now_ms, self._clock.wall_ms())
        self.delayed.append_listeners.notify()
        if log_.settings.write_caching:
            self.leader.on_flushed(log_.end_offset)
        self._flusher.start()
        return LogAppendInfo(base_offset, offset, append_time_ms, leader_epoch)

    def note_rejected(self, batch: Batch, error: NotLeaderOrFollowerError) -> None:
        """Records that a batch came before this broker was the leader. If it is the leader when the next batch of the
        producer comes, that one is rejected with the same error, and the producer resends both in order."""
        if batch.has_valid_checksum():
            self.log.producers.note_rejected(batch, error)

    # Transactions

    def begin_verification(
        self,
        producer_id: int,
        producer_epoch: int,
        sequence: int,
        *,
        supports_epoch_bump: bool,
        owner: TransactionOwner = UNKNOWN_OWNER,
    ) -> VerificationGuard | None:
        """Returns the guard for `append` of a transaction's first batch; None if this transaction is open here already.

        With the guard the caller asks the transaction coordinator, appends if it agrees, and calls `end_verification`
        in any case. See `ProducerStateManager.begin_verification`. Raises InvalidProducerEpochError, or an error of
        `require_leader`.
        """
        self.require_leader()
        return self.log.producers.begin_verification(
            producer_id, producer_epoch, sequence, supports_epoch_bump=supports_epoch_bump, owner=owner
        )

    def end_verification(self, guard: VerificationGuard, rejected: Batch, error: MoldauError | None) -> None:
        """Ends a verification. With an error, `rejected` was not appended, and later batches must not overtake it."""
        if error is not None:
            self.log.producers.note_rejected(rejected, error)
        self.log.producers.end_verification(guard)

    async def append_marker(
        self,
        producer_id: int,
        producer_epoch: int,
        marker: EndTransaction,
        transaction_version: int,
        *,
        current_leader_epoch: int = NO_EPOCH,
    ) -> LogAppendInfo:
        """Appends the end of a transaction as a control batch. Use `commit_future` to wait until it is committed.

        Raises InvalidProducerEpochError and TransactionCoordinatorFencedError for a marker that must not end the open
        transaction, and errors as `append`.
        """
        record = Record(timestamp=self._clock.wall_ms(), key=encode_key(marker), value=encode_value(marker))
        batch = build_batch(
            [record], producer_id=producer_id, producer_epoch=producer_epoch, transactional=True, control=True
        )
        return await self.append(
            [Batch(batch)],
            acks_all=True,
            current_leader_epoch=current_leader_epoch,
            transaction_version=transaction_version,
        )

    def _check_marker(self, leader: PartitionLeaderState, batch: Batch, transaction_version: int) -> None:
        producers = self.log.producers
        marker = end_of_transaction(batch)
        assert marker is not None
        producers.check_marker(batch.producer_id, batch.producer_epoch, marker.coordinator_epoch, transaction_version)
        producers.unstable.forget_committed(leader.high_watermark)

    def commit_future(
        self, next_offset: int, leader_epoch: int, *, acks_all: bool = False
    ) -> "asyncio.Future[None] | None":
        """Returns a future that completes when the high watermark reaches `next_offset`; None if it has reached it.

        The future fails when the leader epoch of the records ends. With `acks_all` the future also fails when the ISR
        shrinks below min.insync.replicas.
        """
        leader = self.require_leader()
        if leader.image.leader_epoch != leader_epoch:
            # After the append, another leader may have truncated these records and appended others at their offsets.
            raise NotLeaderOrFollowerError(
                f"{self.name} had another leader after the records were appended: they may be lost",
                self.leader_id,
                leader.leader_epoch,
            )
        if acks_all and not leader.has_min_isr:
            raise NotEnoughReplicasAfterAppendError(
                f"the ISR of {self.name} shrank to {len(leader.isr)} replicas after the records were appended"
            )
        if leader.high_watermark >= next_offset:
            return None
        return (self.delayed.acks_all if acks_all else self.delayed.commits).add(next_offset)

    async def wait_for_flush(self) -> None:
        """Waits for a running flush, so that a producer with acks=1 finds its records below the high watermark."""
        if self.is_leader and self._flusher.is_running:
            await self._flusher.wait_until_flushed(self.log.end_offset)

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
        """Returns the records from `offset` on that a consumer may read.

        `from_follower` allows the read if this broker is a follower. Raises OffsetOutOfRangeError, DivergingEpochError,
        OffsetNotAvailableError, or an error of `require_leader`.
        """
        role = self._require_role(current_leader_epoch) if from_follower else self.require_leader(current_leader_epoch)
        if isinstance(role, PartitionFollowerState):
            self._check_follower_has(role, offset, last_fetched_epoch)
        try:
            self._check_fetch_offset(offset, last_fetched_epoch)
        except (DivergingEpochError, OffsetOutOfRangeError):
            if isinstance(role, PartitionLeaderState):
                # Without a lease this raises NotLeaderOrFollowerError, because a newer leader may have this offset.
                self.check_lease()
            raise
        log_, high_watermark = self.log, role.high_watermark
        last_stable_offset = log_.last_stable_offset(high_watermark)
        below = self.visible_end(committed_only=committed_only)
        records = EMPTY_SLICES
        aborted: Sequence[AbortedTransaction] | None = () if committed_only else None
        if offset < below and committed_only:
            records, aborted = await self.guarded_log.guard(
                log_.read_committed(offset, bytes_max, below, min_one_batch=min_one_batch)
            )
        elif offset < below:
            records = await self.guarded_log.guard(
                log_.read(offset, bytes_max, below, min_one_batch=min_one_batch, skip_empty=True)
            )
        return LogReadInfo(records, high_watermark, last_stable_offset, log_.start_offset, aborted_transactions=aborted)

    def _check_follower_has(self, follower: PartitionFollowerState, offset: int, last_fetched_epoch: int) -> None:
        """Raises OffsetNotAvailableError if this follower may not have replicated the records yet.

        OFFSET_OUT_OF_RANGE or a diverging epoch would make the consumer reset its position or report lost records.
        """
        is_newer = last_fetched_epoch > self.log.epochs.latest and offset > follower.high_watermark
        if offset > self.log.end_offset or is_newer:
            raise OffsetNotAvailableError(f"this follower of {self.name} does not have offset {offset} yet")

    def visible_end(self, *, committed_only: bool) -> int:
        """Returns the offset up to which consumers may read."""
        return self.last_stable_offset if committed_only else self.high_watermark

    async def read_for_follower(
        self, fetch: FollowerFetch, bytes_max: int, *, min_one_batch: bool = True, is_new_request: bool = True
    ) -> LogReadInfo:
        """Returns the records from the follower's fetch offset on, and marks earlier records as replicated.

        `is_new_request` is False when a delayed fetch reads again. Raises errors as `read`, and StaleBrokerEpochError.
        """
        leader = self.require_leader()
        leader.check_follower_fetch(fetch)
        log_ = self.log
        if fetch.last_fetched_epoch > leader.leader_epoch:
            # The epoch of the follower's last batch does not exist yet, so it is damaged. No checksum covers epochs.
            raise DivergingEpochError(log_.epochs.latest, log_.end_offset)
        self._check_fetch_offset(fetch.offset, fetch.last_fetched_epoch)
        if is_new_request:
            self.leader.on_follower_fetch(leader, fetch)
        end_offset = log_.end_offset
        records = EMPTY_SLICES
        if fetch.offset < end_offset:
            records = await self.guarded_log.guard(
                log_.read(fetch.offset, bytes_max, end_offset, min_one_batch=min_one_batch)
            )
        high_watermark = leader.high_watermark
        return LogReadInfo(records, high_watermark, log_.last_stable_offset(high_watermark), log_.start_offset)

    def _check_fetch_offset(self, offset: int, last_fetched_epoch: int) -> None:
        log_ = self.log
        if last_fetched_epoch >= 0 and offset >= log_.start_offset:
            epoch, end_offset = log_.epochs.end_offset_for(last_fetched_epoch, log_.end_offset)
            if epoch < 0:
                raise OffsetOutOfRangeError(f"leader epoch {last_fetched_epoch} is unknown")
            if epoch < last_fetched_epoch or end_offset < offset:
                raise DivergingEpochError(epoch, end_offset)
        if not log_.start_offset <= offset <= log_.end_offset:
            raise OutOfLogRangeError(
                f"offset {offset} is not within {log_.start_offset} to {log_.end_offset} of {self.name}",
                log_.start_offset,
            )

    # Offsets

    def end_offset_for_epoch(self, epoch: int, current_leader_epoch: int = NO_EPOCH) -> EpochEndOffset:
        """Returns the latest epoch up to `epoch` in this log (-1 if there is none), and the end offset of this epoch.

        Raises errors as `require_leader`, and NotLeaderOrFollowerError if the lease has expired and a newer leader
        could return another result.
        """
        leader = self.require_leader(current_leader_epoch)
        found = EpochEndOffset(*self.log.epochs.end_offset_for(epoch, self.log.end_offset))
        if found.epoch < epoch or found.offset > leader.high_watermark:
            self.check_lease()
        return found

    def latest_epoch_and_end_offset(self) -> EpochEndOffset:
        """Returns the latest epoch and the end offset of this replica's log, in any role."""
        self.guarded_log.check_online()
        return EpochEndOffset(self.log.epochs.latest, self.log.end_offset)

    def latest_offset(self, current_leader_epoch: int = NO_EPOCH, *, committed_only: bool = False) -> int:
        """Returns the high watermark, or the last stable offset with `committed_only`.

        Raises OffsetNotAvailableError while a new leader does not know yet which records the previous leader committed.
        """
        leader = self.require_leader(current_leader_epoch)
        if leader.high_watermark < leader.epoch_start:
            raise OffsetNotAvailableError(
                f"the leader of {self.name} is new and does not know the high watermark yet: retry"
            )
        return self.visible_end(committed_only=committed_only)

    async def offset_for_timestamp(
        self, timestamp_ms: int, *, committed_only: bool = False
    ) -> TimestampAndOffset | None:
        return await self.log.offset_for_timestamp(timestamp_ms, self.visible_end(committed_only=committed_only))

    async def find_unread_record(self, offset: int) -> UnreadRecord | None:
        """Returns the first record of a client from `offset` on and below the high watermark; None if there is none.

        Raises errors as `require_leader`.
        """
        leader = self.require_leader()
        found = await self.guarded_log.guard(self.log.find_batch_time(offset, leader.high_watermark))
        if found is None:
            return None
        if found.is_append_time or leader.append_times is None:
            return UnreadRecord(found.offset, found.timestamp_ms, is_append_time=found.is_append_time)
        noted = leader.append_times.find(found.offset, self._clock.wall_ms())
        if not noted.earliest_ms and found.timestamp_ms == NO_TIMESTAMP:
            return UnreadRecord(found.offset, NO_TIMESTAMP, is_append_time=False)
        time_ms = min(max(found.timestamp_ms, noted.earliest_ms), noted.latest_ms)
        is_exact = noted.latest_ms - noted.earliest_ms <= NOTE_INTERVAL_MS
        return UnreadRecord(found.offset, time_ms, is_append_time=is_exact)

    async def max_timestamp(self, *, committed_only: bool = False) -> TimestampAndOffset | None:
        """Returns the record with the largest timestamp. As in Kafka, there is no result with `committed_only` if this
        record is not stable yet."""
        found = await self.log.max_timestamp(self.high_watermark)
        is_visible = found is not None and found.offset < self.visible_end(committed_only=committed_only)
        return found if is_visible else None

    # Deletion and compaction

    async def delete_records(self, before_offset: int) -> int:
        """Advances the start offset to `before_offset`, where -1 means the high watermark.

        Does nothing if the log already starts there or later. Returns the offset to pass to `low_watermark_future`.
        """
        await self.wait_for_flush()
        async with self._lock:
            high_watermark = self.require_leader().high_watermark
            self.check_lease()
            target = high_watermark if before_offset == -1 else before_offset
            if not 0 <= target <= high_watermark:
                raise OffsetOutOfRangeError(
                    f"offset {target} is beyond the high watermark {high_watermark} of {self.name}"
                )
            if target > self.log.start_offset:
                await self.guarded_log.guard(self.log.advance_start_offset(target))
                self.delayed.append_listeners.notify()
            return target

    def low_watermark_future(self, offset: int) -> "asyncio.Future[None] | None":
        """Returns a future that completes when the low watermark reaches `offset`; None if it has reached it."""
        if self.low_watermark >= offset:
            return None
        return self.delayed.deletions.add(offset)

    @property
    def low_watermark(self) -> int:
        """The lowest start offset of all live replicas."""
        return self.require_leader().low_watermark(self.log.start_offset)

    async def apply_retention(self, now_ms: int) -> None:
        """Deletes old records as leader. A follower deletes only records below the start offset of the leader."""
        async with self._lock:
            below = self.high_watermark if self.is_leader else self.log.start_offset
            start_offset = self.log.start_offset
            await self.guarded_log.guard(self.log.apply_retention(now_ms, below))
            if self.log.start_offset > start_offset:
                self.delayed.append_listeners.notify()

    async def compact(self, now_ms: int) -> bool:
        """Runs one round of compaction. Returns whether anything was cleaned.

        Does not take the lock, because compaction takes long and changes only closed segments.
        """
        return await self.guarded_log.guard(self.log.compact(now_ms, self.last_stable_offset))
