"""One replica of a partition: takes appends in order, makes them durable, knows what may be read, wakes who
waits."""

import asyncio
from collections.abc import Awaitable, Sequence
from typing import NamedTuple, TypeVar
from uuid import UUID

from moldau.eager import start_now
from moldau.errors import (
    MoldauError,
    NotLeaderError,
    OffsetOutOfRangeError,
    StorageError,
)
from moldau.logs.store import NOTHING, Log, LogName, Slices, TimeAndOffset
from moldau.metadata.image import PartitionImage
from moldau.observe.logging import get_logger
from moldau.partitions.state import NO_EPOCH, LeaderState
from moldau.partitions.waiting import Listeners, OffsetWaiters
from moldau.records.batch import NO_TIMESTAMP, Batch
from moldau.settings.topic import TopicSettings

log = get_logger(__name__)

T = TypeVar("T")

SYNC_AGAIN_S_MIN, SYNC_AGAIN_S_MAX = 0.1, 5.0
"""How long a sync that failed for the moment is put off: twice as long after each failure, up to the second."""


class Appended(NamedTuple):
    base_offset: int
    next_offset: int
    """What the high watermark has to reach for the records to be committed."""
    append_time_ms: int
    """NO_TIMESTAMP unless the topic's records carry the broker's time."""


class Fetched(NamedTuple):
    records: Slices
    high_watermark: int
    last_stable_offset: int
    start_offset: int


class Partition:
    """A partition that this node has a replica of.

    Appends, truncations and moves of the start go one after the other behind `_lock`, because a store may
    take its time; what the log knows (end, durable and start offset) is only trusted inside it or for
    answers that may be a moment old.
    """

    def __init__(self, name: LogName, topic_id: UUID, replica_id: int, log_: Log) -> None:
        self.name = name
        self.topic_id = topic_id
        self.log = log_
        self.committed = OffsetWaiters()
        self.progress = Listeners()
        self._synced = OffsetWaiters()
        self._replica_id = replica_id
        self._leader: LeaderState | None = None
        self._failure: StorageError | None = None
        self._closed = False
        self._lock = asyncio.Lock()
        self._sync: asyncio.Task[None] | None = None
        self._settling: asyncio.Task[None] | None = None
        self._syncing = False
        self._sync_again: asyncio.TimerHandle | None = None
        self._sync_again_s = SYNC_AGAIN_S_MIN

    # The role

    async def take_role(self, image: PartitionImage) -> None:
        """Becomes what the metadata says: leader in a new epoch, leader as before, or not leader.

        Behind the lock, so that an append under way ends in the epoch it began in.
        """
        async with self._lock:
            self._take_role(image)

    def _take_role(self, image: PartitionImage) -> None:
        if image.leader != self._replica_id:
            self._leader = None
            self._refuse_waiting(NotLeaderError(f"{self.name} has a new leader"))
            return
        if self._leader is not None and self._leader.leader_epoch == image.leader_epoch:
            if self._leader.on_in_sync(image.in_sync):
                self._high_watermark_moved()
            return
        before = self._leader.high_watermark if self._leader is not None else self.log.start_offset
        self.log.epochs.assign(image.leader_epoch, self.log.end_offset)
        self._leader = LeaderState(
            leader_epoch=image.leader_epoch,
            in_sync=image.in_sync,
            replicas=len(image.replicas),
            high_watermark=before,
        )
        self._note_durable()
        self._start_sync()

    @property
    def leader_epoch(self) -> int:
        return NO_EPOCH if self._leader is None else self._leader.leader_epoch

    @property
    def is_leader(self) -> bool:
        return self._leader is not None

    @property
    def failure(self) -> StorageError | None:
        return self._failure

    @property
    def high_watermark(self) -> int:
        return self.leader().high_watermark

    @property
    def last_stable_offset(self) -> int:
        """What read_committed sees. No transaction is ever open yet, so it is the high watermark."""
        return self.high_watermark

    def leader(self, known_epoch: int = NO_EPOCH) -> LeaderState:
        """The leader's state, for a caller that knows `known_epoch`; raises where it cannot be asked of
        this node."""
        if self._failure is not None:
            raise self._failure
        if self._leader is None:
            raise NotLeaderError(f"this node does not lead {self.name}")
        self._leader.check_epoch(known_epoch)
        return self._leader

    # Writing

    async def append(
        self, batches: Sequence[Batch], append_time_ms: int = NO_TIMESTAMP, *, all_in_sync: bool = False
    ) -> Appended:
        """Gives the batches their offsets and appends them; the records are committed once the high
        watermark reaches `next_offset` (`committing`). A repeated batch of an idempotent producer is not
        appended again: the caller gets the offset it had. `all_in_sync` asks for min.insync.replicas to be
        there."""
        async with self._lock:
            leader = self.leader()
            if all_in_sync:
                leader.check_in_sync(self.log.settings.min_insync_replicas)
            log_ = self.log
            first = batches[0]
            if first.producer_id >= 0:
                repeated = log_.producers.check(first)
                if repeated is not None:
                    if append_time_ms != NO_TIMESTAMP:
                        append_time_ms = repeated.timestamp_ms
                    return Appended(repeated.base_offset, repeated.last_offset + 1, append_time_ms)
            base_offset = offset = log_.end_offset
            for batch in batches:
                batch.base_offset = offset
                batch.leader_epoch = leader.leader_epoch
                offset = batch.next_offset
            try:
                await log_.append(batches)
            except StorageError:
                log_.producers.not_written(first)
                raise
        if self.log.settings.write_caching:
            self._note_durable()
        self._start_sync()
        return Appended(base_offset, offset, append_time_ms)

    def committing(self, next_offset: int) -> "asyncio.Future[None] | None":
        """Done when the high watermark reaches `next_offset`, failed when that can no longer be promised;
        None where it is there already."""
        if self.leader().high_watermark >= next_offset:
            return None
        return self.committed.add(next_offset)

    async def settle(self) -> None:
        """Lets the sync of what is appended come to its end, for callers who ask where the log ends: a
        producer that did not wait for the sync should find its own records counted all the same."""
        log_ = self.log
        if self._leader is not None and self._syncing and log_.durable_offset < log_.end_offset:
            await self._synced.add(log_.end_offset)

    def _note_durable(self) -> None:
        if self._leader is None:
            return
        safe = self.log.end_offset if self.log.settings.write_caching else self.log.durable_offset
        if self._leader.on_durable(self._replica_id, safe):
            self._high_watermark_moved()
        self._synced.reached(safe)

    def _high_watermark_moved(self) -> None:
        assert self._leader is not None
        self.committed.reached(self._leader.high_watermark)
        self.progress.tell()

    def _start_sync(self) -> None:
        """One sync runs at a time; whatever is appended meanwhile shares the next."""
        log_ = self.log
        if self._syncing or log_.durable_offset >= log_.end_offset or log_.settings.write_caching:
            return
        self._stop_waiting_to_sync()
        self._syncing = True
        self._sync = start_now(self._sync_until_durable(), self._sync_ended)

    async def _sync_until_durable(self) -> None:
        while self.log.durable_offset < self.log.end_offset:
            await self.log.make_durable()
            self._sync_again_s = SYNC_AGAIN_S_MIN
            self._note_durable()
            self._start_settling()

    def _sync_ended(self, _: None, error: BaseException | None) -> None:
        self._syncing = False
        self._sync = None
        if error is None:
            self._start_sync()
        elif isinstance(error, Exception):
            # Whatever went wrong, nobody may wait for a sync that will not come.
            known = error if isinstance(error, StorageError) else StorageError(f"syncing failed: {error!r}")
            if known is error and self.log.failure is None:
                # It may pass, and is tried again; but who waits now gets no promise.
                self._refuse_waiting(known)
                self._sync_later(known)
            else:
                self.fail(known)

    def _sync_later(self, error: StorageError) -> None:
        """What is appended is not left as it is until somebody appends again: others may wait for it."""
        if self._closed or self._syncing:
            return
        delay_s, self._sync_again_s = self._sync_again_s, min(2 * self._sync_again_s, SYNC_AGAIN_S_MAX)
        log.warning("records are not synced yet", partition=str(self.name), why=str(error), again_s=delay_s)
        self._sync_again = asyncio.get_running_loop().call_later(delay_s, self._start_sync)

    def _stop_waiting_to_sync(self) -> None:
        if self._sync_again is not None:
            self._sync_again.cancel()
            self._sync_again = None

    def _start_settling(self) -> None:
        """Beside the syncs, so that nobody who waits for records waits for indexes."""
        if self._settling is None and self.log.needs_settling and not self._closed:
            loop = asyncio.get_running_loop()
            self._settling = loop.create_task(self._settle())

    async def _settle(self) -> None:
        try:
            await self._watched(self.log.settle())
        except StorageError as error:
            log.warning("closed segments are not settled", partition=str(self.name), why=str(error))
        finally:
            self._settling = None

    # Reading

    async def read(
        self,
        offset: int,
        bytes_max: int,
        *,
        known_epoch: int = NO_EPOCH,
        committed_only: bool = False,
        whole_first: bool = True,
    ) -> Fetched:
        """What a consumer may see from `offset` on; raises OffsetOutOfRangeError, or as `leader` does."""
        leader = self.leader(known_epoch)
        log_ = self.log
        if not log_.start_offset <= offset <= log_.end_offset:
            raise OffsetOutOfRangeError(
                f"offset {offset} is not within {log_.start_offset} to {log_.end_offset} of {self.name}"
            )
        high_watermark, stable = leader.high_watermark, self.last_stable_offset
        below = stable if committed_only else high_watermark
        records = NOTHING
        if offset < below:
            records = await self._watched(log_.read(offset, bytes_max, below, whole_first=whole_first))
        return Fetched(records, high_watermark, stable, log_.start_offset)

    async def offset_for_time(self, timestamp_ms: int) -> TimeAndOffset | None:
        return await self.log.offset_for_time(timestamp_ms, self.high_watermark)

    async def max_timestamp(self) -> TimeAndOffset | None:
        return await self.log.max_timestamp(self.high_watermark)

    # Keeping

    async def delete_records(self, before_offset: int) -> int:
        """Moves the start up to `before_offset` (-1: the high watermark); gives the new start."""
        await self.settle()
        async with self._lock:
            high_watermark = self.leader().high_watermark
            target = high_watermark if before_offset == -1 else before_offset
            if not 0 <= target <= high_watermark:
                raise OffsetOutOfRangeError(
                    f"{target} is beyond the high watermark {high_watermark} of {self.name}"
                )
            if target > self.log.start_offset:
                await self._watched(self.log.advance_start(target))
            return self.log.start_offset

    async def apply_retention(self, now_ms: int) -> None:
        async with self._lock:
            await self._watched(self.log.apply_retention(now_ms, self.high_watermark))

    async def compact(self, now_ms: int) -> bool:
        """Beside appends, not behind the lock: it works on closed segments, and takes long."""
        return await self._watched(self.log.compact(now_ms, self.high_watermark))

    async def _watched(self, work: Awaitable[T]) -> T:
        """Takes the partition offline with its log; an error that may pass is the caller's alone."""
        try:
            return await work
        except StorageError as error:
            if self.log.failure is not None:
                self.fail(error)
            raise

    def configure(self, settings: TopicSettings) -> None:
        self.log.configure(settings)
        self._note_durable()
        self._start_sync()

    # Ending

    def fail(self, error: StorageError) -> None:
        """The disk cannot be trusted with this partition any more: everybody is told so from now on."""
        if self._failure is None and not self._closed:
            log.error("partition is offline", partition=str(self.name), why=str(error))
            self._failure = error
            self._refuse_waiting(error)

    def _refuse_waiting(self, error: MoldauError) -> None:
        self.committed.fail(error)
        self._synced.fail(error)
        self.progress.tell()

    async def close(self) -> None:
        """Lets go: who waits is told that this node no longer leads the partition."""
        self._closed = True
        self._stop_waiting_to_sync()
        self._leader = None
        self._refuse_waiting(NotLeaderError(f"{self.name} is closing on this node"))
        async with self._lock:
            running = [task for task in (self._sync, self._settling) if task is not None]
            await asyncio.gather(*running, return_exceptions=True)
