"""One replica of a partition: its log, the role that the metadata gives it, and its life as a follower."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, Protocol, TypeVar
from uuid import UUID

from moldau.errors import (
    CorruptRecordError,
    FencedLeaderEpochError,
    MoldauError,
    NotEnoughReplicasAfterAppendError,
    NotLeaderOrFollowerError,
    StorageError,
)
from moldau.logs.store import Log, LogName, copy_error
from moldau.metadata.image import NO_LEADER, BrokerRegistration, PartitionRegistration
from moldau.observe.logging import get_logger
from moldau.partitions.follower_state import FollowerState, parse_batches, truncation_offset
from moldau.partitions.leader_state import NO_EPOCH, LeaderState
from moldau.partitions.log_flusher import LogFlusher
from moldau.partitions.waiters import CallbackList, OffsetWaiters
from moldau.platform.clock import Clock
from moldau.platform.disk import Buffer
from moldau.raft.messages import EpochEndOffset
from moldau.records.batch import Batch
from moldau.settings.topic import TopicSettings

log = get_logger(__name__)

T = TypeVar("T")

NO_BROKERS: Mapping[int, BrokerRegistration] = MappingProxyType({})


class Lease(Protocol):
    """The controller's promise that nobody else leads in this node's place."""

    def is_valid(self) -> bool: ...


class FollowerFetchState(NamedTuple):
    """What a follower says of its log when it fetches."""

    offset: int
    last_epoch: int
    leader_epoch: int
    start_offset: int


class Replica:
    """Appends, truncations and moves of the start go one after the other behind `_lock`, because a store may
    take its time; what the log knows (end, durable and start offset) is only trusted inside it or for
    answers that may be a moment old.
    """

    on_error_changed: Callable[[], None] | None = None
    """Called when `failure` or `transient_error` is another one."""

    def __init__(
        self,
        name: LogName,
        topic_id: UUID,
        replica_id: int,
        log_: Log,
        clock: Clock,
        lease: Lease | None = None,
    ) -> None:
        """Without a lease the node leads whatever the metadata says it leads."""
        self.name = name
        self.topic_id = topic_id
        self.log = log_
        self.high_watermark_listeners = CallbackList()
        """Told when consumers may see more, or when there is an error to tell them."""
        self.append_listeners = CallbackList()
        """Told when the log has grown, for followers, who may read all of it; and of errors."""
        self.lease_listeners = CallbackList()
        """Told when this node may not promise anything any more."""
        self._commit_waiters = OffsetWaiters()
        self._acks_all_waiters = OffsetWaiters()
        """As `_commit_waiters`, for those who were promised min.insync.replicas."""
        self._low_watermark_waiters = OffsetWaiters()
        """Who waits for the log to begin somewhere on every replica."""
        self._replica_id = replica_id
        self._clock = clock
        self._lease = lease
        self._leader: LeaderState | None = None
        self._follower: FollowerState | None = None
        self._failure: StorageError | None = None
        self._transient_error: StorageError | None = None
        self._closed = False
        self._lock = asyncio.Lock()
        self._flusher = LogFlusher(log_, on_durable=self._on_durable_offset, on_failure=self._on_flush_error)

    # The role

    async def apply_image(
        self, image: PartitionRegistration, *, brokers: Mapping[int, BrokerRegistration] = NO_BROKERS
    ) -> None:
        """Becomes what the metadata says: leader in a new epoch, leader as before, or follower. What is older than
        what is known is ignored.

        Behind the lock, so that an append under way ends in the epoch it began in.
        """
        async with self._lock:
            if self._closed or self._is_stale_image(image):
                return
            if image.leader == self._replica_id and image.leader_epoch < self.log.epochs.latest:
                # Metadata that this replica is opened with knows of every leader whose records are in its log.
                self.mark_offline(
                    StorageError(
                        f"{self.name} is led in epoch {image.leader_epoch}, and its log has records of epoch "
                        f"{self.log.epochs.latest}, which there was none of: they are damaged, or of another cluster"
                    )
                )
                return
            if image.leader == self._replica_id:
                self._become_leader(image, brokers)
            else:
                self._become_follower(image)
            self._flusher.start()

    def _is_stale_image(self, image: PartitionRegistration) -> bool:
        known = self._leader.image if self._leader is not None else None
        if self._follower is not None:
            known = self._follower.image
        if known is None:
            return False
        return image.leader_epoch < known.leader_epoch or image.partition_epoch < known.partition_epoch

    def _become_leader(self, image: PartitionRegistration, brokers: Mapping[int, BrokerRegistration]) -> None:
        min_isr = image.min_isr(self.log.settings.min_insync_replicas)
        if self._leader is not None and self._leader.leader_epoch == image.leader_epoch:
            self._on_isr_changed(self._leader.on_image(image, brokers, min_isr))
            return
        high_watermark, end_offset = self.high_watermark, self.log.end_offset
        self.log.epochs.assign(image.leader_epoch, end_offset)
        self._follower = None
        self._leader = LeaderState.begin(
            self._replica_id,
            image,
            brokers,
            min_isr=min_isr,
            high_watermark=high_watermark,
            end_offset=end_offset,
            now_ms=self._clock.monotonic_ms(),
        )
        log.debug(
            "leads",
            partition=str(self.name),
            epoch=image.leader_epoch,
            end=end_offset,
            committed=high_watermark,
        )
        self._on_durable_offset()
        self._notify_listeners()

    def _become_follower(self, image: PartitionRegistration) -> None:
        if self._follower is not None and self._follower.leader_epoch == image.leader_epoch:
            self._follower.image = image
            return
        self._follower = FollowerState(image, self.high_watermark)
        self._leader = None
        self._fail_waiters(
            NotLeaderOrFollowerError(f"{self.name} has a new leader", image.leader, image.leader_epoch),
            include_flushes=False,
        )

    def on_brokers(self, brokers: Mapping[int, BrokerRegistration]) -> None:
        """Other brokers live or have died; the partition is as it was."""
        if self._leader is not None:
            if self._leader.on_brokers(brokers):
                self._on_high_watermark_advanced()
            self._low_watermark_waiters.complete_up_to(self._leader.low_watermark(self.log.start_offset))

    @property
    def leader_epoch(self) -> int:
        role = self._leader or self._follower
        return NO_EPOCH if role is None else role.leader_epoch

    @property
    def leader_id(self) -> int:
        if self._leader is not None:
            return self._replica_id
        return NO_LEADER if self._follower is None else self._follower.leader_id

    @property
    def is_leader(self) -> bool:
        return self._leader is not None

    @property
    def is_follower(self) -> bool:
        """Whether there is somebody to follow."""
        return self._follower is not None and self._follower.has_leader

    @property
    def is_in_sync(self) -> bool:
        """Whether the metadata counts this follower among those that have everything."""
        return self._follower is not None and self._replica_id in self._follower.image.isr

    @property
    def failure(self) -> StorageError | None:
        return self._failure

    @property
    def transient_error(self) -> StorageError | None:
        """Why the last append was refused, for a reason that may pass: the disk is full, say. The log is whole, and all
        in it can be read."""
        return self._transient_error

    @property
    def high_watermark(self) -> int:
        """Everything below it is committed, and in this log; more may be."""
        role = self._leader or self._follower
        if role is not None:
            return role.high_watermark
        return max(self.log.start_offset, min(self.log.checkpointed_high_watermark, self.log.end_offset))

    @property
    def lag(self) -> int:
        """How many offsets a follower is behind what its leader has said is committed; a leader is behind nobody."""
        if self._follower is None:
            return 0
        return max(0, self._follower.leader_high_watermark - self.log.end_offset)

    # Following

    def replicated_offset(self) -> int:
        """How far this follower vouches for its log. The leader takes the offset of a fetch for just that."""
        return self._flusher.durable_offset()

    def fetch_position(self) -> FollowerFetchState | None:
        """Where to fetch on from; None while there is nobody to fetch from, or something here is not safe yet."""
        follower, log_ = self._follower, self.log
        if follower is None or not follower.has_leader or self._failure is not None:
            return None
        if self.replicated_offset() < log_.end_offset:
            # A former leader may not ask past its last records before they are safe.
            return None
        return FollowerFetchState(
            log_.end_offset, log_.epochs.latest, follower.leader_epoch, log_.start_offset
        )

    async def append_as_follower(
        self, data: Buffer, leader_epoch: int, high_watermark: int, leader_start_offset: int
    ) -> None:
        """Takes what the leader of this epoch has answered: batches that go on from this log's end, as they are.
        Returns when they are safe here.

        Raises FencedLeaderEpochError or NotLeaderError where the answer is of another epoch, CorruptRecordError
        where the batches are not whole or do not go on from here, StorageError.
        """
        async with self._lock:
            follower = self._require_follower(leader_epoch)
            batches = parse_batches(data, self.name, leader_epoch)
            try:
                if batches:
                    await self._append_from_leader(batches)
                if follower.on_leader_high_watermark(high_watermark, self.log.end_offset):
                    self.high_watermark_listeners.notify()
                start_offset = min(leader_start_offset, follower.high_watermark)
                if start_offset > self.log.start_offset:
                    await self._guard_log(self.log.advance_start_offset(start_offset))
            finally:
                # Whatever failed, what is appended has to become safe: nothing is fetched before.
                self._flusher.start()
            end_offset = self.log.end_offset
        if self.replicated_offset() < end_offset:
            await self._flusher.wait_until_durable(end_offset)

    async def _append_from_leader(self, batches: list[Batch]) -> None:
        log_ = self.log
        first, start_offset = batches[0], log_.start_offset
        if first.base_offset < log_.end_offset:
            if start_offset != log_.end_offset or first.next_offset <= start_offset:
                raise CorruptRecordError(
                    f"the leader sent offset {first.base_offset} of {self.name}, which ends at {log_.end_offset}"
                )
            # An empty log that begins inside a batch: the batch comes whole, and what is before stays hidden.
            await self._guard_log(log_.truncate_fully_and_start_at(first.base_offset))
        await self._append(batches)
        if start_offset > log_.start_offset:
            await self._guard_log(log_.advance_start_offset(start_offset))

    async def truncate_to_divergence(self, diverging: EpochEndOffset, leader_epoch: int) -> None:
        """Cuts what the leader's log has not: it says which of the epochs here it knows, and where that ended."""
        async with self._lock:
            follower = self._require_follower(leader_epoch)
            log_ = self.log
            previous_end_offset = log_.end_offset
            offset = truncation_offset(log_.epochs, previous_end_offset, diverging)
            self._check_leader_has_committed(follower, diverging)
            committed = follower.high_watermark
            await self._truncate(follower, offset, log_.truncate_to(offset))
            # An epoch that began at the very end and has no records goes as well, or it would be asked for again.
            log_.epochs.truncate_from_end(log_.end_offset)
            follower.on_truncated(log_.end_offset)
            if log_.end_offset < committed:
                tell = log.warning if follower.image.is_recovering else log.error
                tell(
                    "records that were committed are cut off: the leader does not have them",
                    partition=str(self.name),
                    leader=follower.leader_id,
                    epoch=leader_epoch,
                    from_offset=log_.end_offset,
                    committed=committed,
                )
        log.info(
            "log is cut where its leader's parts from it",
            partition=str(self.name),
            leader=self.leader_id,
            epoch=leader_epoch,
            previous_end_offset=previous_end_offset,
            end=self.log.end_offset,
        )

    def _check_leader_has_committed(self, follower: FollowerState, diverging: EpochEndOffset) -> None:
        """A leader that came to it cleanly has all that is known here to be committed, however it was compacted. One
        that has not has lost it, and these records may be the last copy: they are kept, and this replica is out."""
        committed, log_ = follower.high_watermark, self.log
        if diverging.offset >= committed or log_.settings.write_caching:
            return
        if log_.epochs.epoch_for_offset(committed - 1) < follower.image.unclean_epoch:
            return
        error = StorageError(
            f"broker {follower.leader_id} leads {self.name} and lacks records from offset {diverging.offset} to "
            f"{committed - 1} that were committed, though there was no unclean election: its disk has lost them. They "
            "are kept here. To go on with them, stop that broker, restart this one, run `moldau cluster elect-leaders "
            "--unclean`, and start that broker with an empty data.dir; to go on without them, stop this broker, move "
            "this partition's directory away, and start it again"
        )
        self.mark_offline(error)
        raise error

    async def reset_to(self, offset: int, leader_epoch: int) -> None:
        """The leader's log begins only at `offset`, behind the end of this one, so that nothing of this one is left
        in it; or this one has no records and ends where the leader's has not come to yet."""
        async with self._lock:
            follower, log_ = self._require_follower(leader_epoch), self.log
            if offset <= log_.end_offset and log_.start_offset < log_.end_offset:
                return
            await self._truncate(follower, offset, log_.truncate_fully_and_start_at(offset))
            follower.high_watermark = offset
        log.info("log begins anew where its leader's begins", partition=str(self.name), offset=offset)

    async def _truncate(self, follower: FollowerState, offset: int, cutting: Awaitable[None]) -> None:
        """The high watermark goes first: it may be saved while the log is cut."""
        high_watermark = follower.high_watermark
        follower.on_truncated(offset)
        try:
            await self._guard_log(cutting)
        except StorageError:
            if self.log.failure is None:
                # The log is as it was.
                follower.high_watermark = high_watermark
            raise

    def _require_follower(self, leader_epoch: int) -> FollowerState:
        if self._failure is not None:
            raise copy_error(self._failure)
        if self._follower is None or self._closed:
            raise NotLeaderOrFollowerError(f"{self.name} follows nobody", self.leader_id, self.leader_epoch)
        if self._follower.leader_epoch != leader_epoch:
            raise FencedLeaderEpochError(
                f"an answer of epoch {leader_epoch} comes to {self.name} in epoch {self._follower.leader_epoch}"
            )
        return self._follower

    # What is safe, and who waits for it

    def _on_durable_offset(self) -> None:
        if self._leader is not None and self._leader.on_durable(self._flusher.durable_offset()):
            self._on_high_watermark_advanced()

    def _on_high_watermark_advanced(self) -> None:
        assert self._leader is not None
        self._commit_waiters.complete_up_to(self._leader.high_watermark)
        self._acks_all_waiters.complete_up_to(self._leader.high_watermark)
        self.high_watermark_listeners.notify()

    def _on_isr_changed(self, has_high_watermark_advanced: bool) -> None:
        assert self._leader is not None
        if not self._leader.has_min_isr:
            self._acks_all_waiters.fail_all(
                NotEnoughReplicasAfterAppendError(
                    f"only {len(self._leader.isr)} replicas of {self.name} are in sync since the records were "
                    "appended: they may or may not stay"
                )
            )
        if has_high_watermark_advanced:
            self._on_high_watermark_advanced()

    def configure(self, settings: TopicSettings) -> None:
        self.log.configure(settings)
        if self._leader is not None:
            min_isr = self._leader.image.min_isr(settings.min_insync_replicas)
            self._on_isr_changed(self._leader.on_min_isr(min_isr))
        self._on_durable_offset()
        self._flusher.complete_waiters()
        self._flusher.start()

    # Ending

    async def _append(self, batches: Sequence[Batch]) -> None:
        try:
            await self.log.append(batches)
        except StorageError as error:
            if self.log.failure is None:
                self._set_transient_error(copy_error(error))
            else:
                self.mark_offline(error)
            raise
        if self._transient_error is not None:
            self._set_transient_error(None)

    def clear_transient_error(self) -> None:
        """What appends were refused for has passed, as it seems: others may count on this replica again."""
        if self._transient_error is not None:
            self._set_transient_error(None)

    def _set_transient_error(self, transient_error: StorageError | None) -> None:
        if (self._transient_error is None) == (transient_error is None):
            # Each attempt may have words of its own for the same; nobody has to hear all of them.
            return
        self._transient_error = transient_error
        if transient_error is not None:
            log.warning(
                "partition cannot be written for now", partition=str(self.name), why=str(transient_error)
            )
        else:
            log.info("partition can be written again", partition=str(self.name))
        if self.on_error_changed is not None:
            self.on_error_changed()

    async def _guard_log(self, work: Awaitable[T]) -> T:
        """Takes the partition offline with its log; an error that may pass is the caller's alone."""
        try:
            return await work
        except StorageError as error:
            if self.log.failure is not None:
                self.mark_offline(error)
            raise

    def _on_flush_error(self, error: StorageError, is_permanent: bool) -> None:
        if is_permanent:
            self.mark_offline(error)
            # Also where that is nothing new, or the partition is closing: no other sync comes.
            self._flusher.fail_waiters(error)
        else:
            # It is tried again; but who waits now gets no promise.
            self._fail_waiters(error)

    def mark_offline(self, error: StorageError) -> None:
        """The disk cannot be trusted with this partition any more: everybody is told so from now on."""
        if self._failure is None and not self._closed:
            log.error("partition is offline", partition=str(self.name), why=str(error))
            self._failure = copy_error(error)
            self._fail_waiters(error)
            if self.on_error_changed is not None:
                self.on_error_changed()

    def _fail_waiters(self, error: MoldauError, *, include_flushes: bool = True) -> None:
        for waiting in (self._commit_waiters, self._acks_all_waiters, self._low_watermark_waiters):
            waiting.fail_all(error)
        if include_flushes:
            self._flusher.fail_waiters(error)
        self._notify_listeners()

    def _notify_listeners(self) -> None:
        self.high_watermark_listeners.notify()
        self.append_listeners.notify()

    async def close(self) -> None:
        """Lets go: who waits is told that this node no longer has the partition."""
        self._closed = True
        self.log.checkpointed_high_watermark = self.high_watermark
        self._leader = self._follower = None
        self._fail_waiters(NotLeaderOrFollowerError(f"{self.name} is closing on this node"))
        async with self._lock:
            await self._flusher.stop()
