"""Runs the quorum's state machine: keeps its votes on disk, its records in the metadata log, and hands on
what is committed.

A disk that fails ends it: `on_fatal` is told once and every later call is refused. Nothing is tried again,
because after a failed sync nobody knows what is on the disk.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from uuid import UUID

from moldau.errors import CorruptRecordError, NotControllerError, StorageError
from moldau.logs.store import Log, LogName, LogStore
from moldau.observe.logging import get_logger
from moldau.quorum.batches import CommittedBatch, committed_batch
from moldau.quorum.elections import Elections
from moldau.quorum.state import (
    Appended,
    AppendLeaderChange,
    BecameLeader,
    Committed,
    Durable,
    Effect,
    Event,
    Persist,
    QuorumState,
    Started,
)
from moldau.records import control
from moldau.records.batch import HEADER_SIZE, LOG_OVERHEAD, Batch
from moldau.records.build import build_batch
from moldau.records.record import Record
from moldau.settings.topic import TopicSettings
from moldau.world.clock import Clock

log = get_logger("quorum")

METADATA_LOG = LogName("__cluster_metadata", 0)
METADATA_TOPIC_ID = UUID(int=1)
"""Reserved for this log; no other topic gets it."""

READ_BYTES_MAX = 8 * 1024 * 1024


async def open_metadata_log(store: LogStore) -> Log:
    """The metadata log: never shortened by retention, always synced."""
    settings = TopicSettings(
        cleanup_policy=("delete",), retention_ms=-1, retention_bytes=-1, write_caching=False
    )
    return await store.open(METADATA_LOG, METADATA_TOPIC_ID, settings)


class Quorum:
    def __init__(
        self,
        node_id: int,
        voters: Sequence[int],
        log: Log,
        elections: Elections,
        clock: Clock,
        *,
        on_commit: Callable[[Sequence[CommittedBatch]], None],
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        """`on_commit` gets every batch of the log once, in order, when it is committed: those that were there
        at the start too, then all at once."""
        self._log = log
        self._elections = elections
        self._clock = clock
        self._on_commit = on_commit
        self._on_fatal = on_fatal
        self._state = QuorumState(node_id, tuple(sorted(set(voters))), elections.load())
        self._turn = asyncio.Lock()
        """Held from an event to the end of its last effect, so that effects happen in the order decided."""
        self._handed_on = log.start_offset
        self._synced = log.start_offset
        self._sync_task: asyncio.Task[None] | None = None
        self._failure: BaseException | None = None

    @property
    def is_leader(self) -> bool:
        return self._failure is None and self._state.is_leader

    @property
    def epoch(self) -> int:
        return self._state.epoch

    @property
    def high_watermark(self) -> int:
        return self._state.high_watermark

    async def start(self) -> None:
        """Takes part in the quorum from now on. What the log holds is handed on when it is committed."""
        await self._log.make_durable()
        async with self._turn:
            await self._take(Started(self._log.end_offset))
        self._sync_soon()

    async def append(self, values: Sequence[bytes]) -> int:
        """Appends the values as one batch, all or none; returns the offset of the last. Leader only.

        It is not committed when this returns, and is lost if the node loses its leadership before it is.
        """
        async with self._turn:
            if self._failure is not None:
                raise StorageError("the metadata log has failed") from self._failure
            if not self._state.is_leader:
                raise NotControllerError("this node does not lead the metadata quorum")
            now_ms = self._clock.wall_ms()
            last_offset = await self._append(
                build_batch(
                    [Record(timestamp=now_ms, value=value) for value in values],
                    base_offset=self._log.end_offset,
                    leader_epoch=self._state.epoch,
                )
            )
        self._sync_soon()
        return last_offset

    async def close(self) -> None:
        """Returns when nothing of the quorum's touches the log any more; the log's owner closes it."""
        if self._sync_task is not None:
            await self._sync_task

    async def _take(self, event: Event) -> None:
        for effect in self._state.step(self._clock.monotonic_ms(), event):
            await self._perform(effect)

    async def _perform(self, effect: Effect) -> None:
        match effect:
            case Persist():
                await self._elections.save(effect.election)
            case AppendLeaderChange():
                await self._append(self._leader_change_batch(effect))
            case Committed():
                await self._hand_on(effect.offset)
            case BecameLeader():
                log.info("leads the metadata quorum", epoch=effect.epoch, voters=self._state.voters)

    async def _append(self, data: bytes) -> int:
        batch = Batch(data)
        try:
            await self._log.append([batch])
        except StorageError as error:
            # An error that may pass (a full disk) has changed nothing and is the caller's alone.
            if self._log.failure is not None:
                self._fail(error)
            raise
        await self._take(Appended(batch.next_offset))
        return batch.last_offset

    def _leader_change_batch(self, effect: AppendLeaderChange) -> bytes:
        change = control.LeaderChange(
            effect.leader_id,
            tuple(control.Voter(voter) for voter in effect.voters),
            tuple(control.Voter(voter) for voter in effect.granting),
        )
        return control.control_batch(
            change,
            timestamp=self._clock.wall_ms(),
            base_offset=self._log.end_offset,
            leader_epoch=effect.epoch,
        )

    def _sync_soon(self) -> None:
        if self._sync_task is None and self._failure is None:
            self._sync_task = asyncio.get_running_loop().create_task(self._sync())

    async def _sync(self) -> None:
        """One sync for all that was appended before it; again while more was appended meanwhile."""
        try:
            while self._synced < self._log.end_offset:
                await self._log.make_durable()
                async with self._turn:
                    self._synced = self._log.durable_offset
                    await self._take(Durable(self._state.node_id, self._synced))
                if self._log.needs_settling:
                    await self._log.settle()
        except Exception as error:
            self._fail(error)
        finally:
            self._sync_task = None

    async def _hand_on(self, below: int) -> None:
        committed: list[CommittedBatch] = []
        while self._handed_on < below:
            from_offset = self._handed_on
            slices = await self._log.read(from_offset, READ_BYTES_MAX, below)
            for batch in _whole_batches(slices.read()):
                committed.append(committed_batch(batch))
                self._handed_on = batch.next_offset
            if self._handed_on == from_offset:
                raise CorruptRecordError(f"the metadata log has no batch at {from_offset}, below {below}")
        self._on_commit(committed)

    def _fail(self, error: BaseException) -> None:
        if self._failure is None:
            self._failure = error
            self._on_fatal(error)


def _whole_batches(data: bytes) -> Iterator[Batch]:
    """The batches in what a read gave; the last may be cut off, and is left for the next read."""
    view = memoryview(data)
    position = 0
    while position + HEADER_SIZE <= len(view):
        size = int.from_bytes(view[position + 8 : position + LOG_OVERHEAD], "big") + LOG_OVERHEAD
        if position + size > len(view):
            return
        yield Batch(view[position : position + size])
        position += size
