"""Does what the quorum's state machine wants: votes on disk, records in the log, calls to peers, one timer; and hands
on what is committed."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from moldau.errors import CorruptRecordError, MoldauError, NotControllerError, StorageError
from moldau.logs.store import Log, is_transient
from moldau.observe.logging import get_logger
from moldau.platform.clock import Clock
from moldau.raft.batches import (
    CommittedBatch,
    committed_batch,
    first_batch,
    from_leader,
    span_of,
    voters_batch,
    whole_batches,
)
from moldau.raft.calls import Calls
from moldau.raft.elections import Elections
from moldau.raft.events import (
    Answer,
    Answered,
    Appended,
    AppendFailed,
    AppendRecords,
    AppendVoters,
    BeginEpoch,
    Durable,
    Effect,
    Election,
    Event,
    Fatal,
    FellBack,
    FetchSnapshot,
    LeaderIs,
    Persist,
    Send,
    Serve,
    SnapshotFailed,
    SnapshotTaken,
    Tick,
    Told,
    Truncate,
    Truncated,
    VotersAre,
)
from moldau.raft.messages import SnapshotFetch, SnapshotFetched, SnapshotId, VoterEndpoint
from moldau.raft.ports import QuorumPeers, QuorumSettings
from moldau.raft.replicas import NEVER
from moldau.raft.snapshot_format import SnapshotContents
from moldau.raft.snapshots import Snapshots
from moldau.raft.state import QuorumState
from moldau.raft.turns import Bell, Turns
from moldau.records.batch import Batch

log = get_logger("quorum")

READ_BYTES_MAX = 8 * 1024 * 1024
SNAPSHOT_BYTES_MAX = 1024 * 1024 * 1024
ROOM_AGAIN_MS = 100
"""How soon it is tried again to write what there was no room for."""
NOTE_AFTER_S = 0.2
"""How soon it is noted beside the log how far it is synced."""


class Randomness(Protocol):
    def random(self) -> float: ...


class Performing:
    def __init__(
        self,
        state: QuorumState,
        log: Log,
        elections: Elections,
        clock: Clock,
        random: Randomness,
        *,
        peers: QuorumPeers,
        snapshots: Snapshots | None,
        settings: QuorumSettings,
        on_commit: Callable[[Sequence[CommittedBatch]], None],
        on_snapshot: Callable[[Sequence[bytes], SnapshotId, int], None],
        on_leader_change: Callable[[int, int], None],
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        self._state = state
        self._log = log
        self._elections = elections
        self._clock = clock
        self._random = random
        self._peers = peers
        self._snapshots = snapshots
        self._on_commit = on_commit
        self._on_snapshot = on_snapshot
        self._on_leader_change = on_leader_change
        self._on_fatal = on_fatal
        self._turns = Turns(self._after_turn)
        """An event and all its effects are one turn, so that effects happen in the order decided."""
        self._bell = Bell()
        """Rings whenever the state machine has taken an event."""
        self._calls = Calls(peers, settings, self._give)
        self._endpoints: dict[int, tuple[VoterEndpoint, ...]] = {}
        self._handed_on = log.start_offset
        self._beginning: SnapshotContents | None = None
        """What is to be handed on before anything else."""
        self._sync_task: asyncio.Task[None] | None = None
        self._noted = log.durable_offset
        self._note_timer: asyncio.TimerHandle | None = None
        self._note_task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._failure: BaseException | None = None
        self._has_started = False
        self._is_leaving = False
        self._is_closing = False
        self._without_room: StorageError | None = None
        """Why what must be remembered of elections is not on disk yet; until it is, nothing else is done."""
        self._untaken = ""
        """Why the leader's records could not be appended, so that what is tried again is not told each time."""
        self._refused_append: StorageError | None = None
        """Why the last append of the quorum's own could not be made, though the log is sound."""

    # Turns

    def _give(self, event: Event) -> "asyncio.Future[Told | Serve | None]":
        return self._turns.give(lambda: self._take_turn(event))

    async def _take_turn(self, event: Event) -> Told | Serve | None:
        self._check_failure()
        if not self._has_started:
            # It has not looked at its log yet: it would vote for anybody.
            raise NotControllerError("this node is starting")
        answer = await self._take(event)
        if isinstance(answer, MoldauError):
            raise answer
        return answer

    async def _take(self, event: Event) -> Told | Serve | MoldauError | None:
        """Lets the state machine decide, and does it all. What goes wrong in between is fatal: the state machine
        believes what then is not so."""
        answer: Told | Serve | MoldauError | None = None
        try:
            for effect in self._state.step(self._clock.monotonic_ms(), event, self._random.random()):
                if isinstance(effect, Answer):
                    answer = effect.reply
                elif isinstance(effect, Serve):
                    answer = effect
                else:
                    await self._perform(effect)
            await self._hand_on()
        except Exception as error:
            self._fail(error)
            raise
        finally:
            self._bell.ring()
        return answer

    async def _perform(self, effect: Effect) -> None:
        match effect:
            case Persist():
                await self._keep(effect.election)
            case Send():
                self._calls.send(effect.to, effect.request)
            case BeginEpoch():
                await self._begin_epoch(effect)
            case AppendVoters():
                await self._append_or_tell(self._voters_batch(effect))
            case AppendRecords():
                await self._append_from_leader(effect.records)
            case Truncate():
                await self._truncate(effect.end_offset)
            case FetchSnapshot():
                self._calls.run(self._fetch_snapshot(effect))
            case LeaderIs():
                log.info("quorum leader", leader=effect.leader_id, epoch=effect.epoch)
                self._on_leader_change(effect.leader_id, effect.epoch)
            case VotersAre():
                self._know_voters()
            case FellBack():
                _tell_of_fall(effect)
            case Fatal():
                raise StorageError(effect.reason)

    async def _keep(self, election: Election) -> None:
        """Before anybody is told of it: a vote that a crash takes back could be given twice."""
        await self._when_there_is_room(lambda: self._elections.save(election))

    async def _when_there_is_room(self, write: Callable[[], Awaitable[None]]) -> None:
        """A full disk is waited for: where several voters share one, they would all be gone for good."""
        while True:
            try:
                await write()
                break
            except StorageError as error:
                if not is_transient(error) or not self._has_started or self._log.failure is not None:
                    raise
                if self._is_leaving or self._is_closing:
                    # The node stops in any case, and nobody has been told of what it forgets.
                    self._failure = self._failure or error
                    raise
                if self._without_room is None:
                    log.error("waits for room on the disk, and takes no part in the quorum", why=str(error))
                self._without_room = error
            await self._bell.wait(ROOM_AGAIN_MS)
        if self._without_room is not None:
            log.info("takes part in the quorum again")
            self._without_room = None

    def _know_voters(self) -> None:
        for voter in self._state.voters:
            self._know(voter.node_id, voter.endpoints)

    def _know(self, node_id: int, endpoints: Sequence[VoterEndpoint]) -> None:
        if endpoints:
            self._endpoints[node_id] = tuple(endpoints)
            if node_id != self._state.node_id:
                self._peers.know(node_id, endpoints)

    def _after_turn(self) -> None:
        self._arm()
        if self._state.log.durable_offset < self._log.end_offset:
            self._sync_soon()

    def _check_failure(self) -> None:
        if self._failure is not None:
            raise StorageError("the metadata log has failed") from self._failure

    def _fail(self, error: BaseException) -> None:
        if self._failure is None:
            self._failure = error
            if self._has_started:
                self._on_fatal(error)

    # The timer

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        deadline_ms = self._state.deadline_ms
        if deadline_ms is not None and self._has_started and self._failure is None and not self._is_closing:
            delay_ms = max(0, deadline_ms - self._clock.monotonic_ms())
            self._timer = asyncio.get_running_loop().call_later(delay_ms / 1000, self._wake)

    def _wake(self) -> None:
        self._timer = None
        deadline_ms = self._state.deadline_ms
        if deadline_ms is not None and self._clock.monotonic_ms() < deadline_ms:
            # The node's clock runs slower than the loop's.
            self._arm()
        else:
            self._give(Tick())

    # The log

    async def _append(self, batches: Sequence[Batch]) -> None:
        """A StorageError that leaves the log sound (a full disk) has changed nothing."""
        spans = tuple(map(span_of, batches))
        try:
            await self._log.append(batches)
        except StorageError as error:
            if self._log.failure is not None:
                self._fail(error)
            raise
        await self._take(Appended(spans))

    async def _append_or_tell(self, batch: Batch) -> None:
        try:
            await self._append([batch])
        except StorageError as error:
            if self._failure is not None:
                raise
            log.warning("the metadata log takes no records", why=str(error))
            self._refused_append = error
            await self._take(AppendFailed())

    async def _begin_epoch(self, effect: BeginEpoch) -> None:
        now_ms = self._clock.wall_ms()
        await self._append_or_tell(first_batch(effect, base_offset=self._log.end_offset, timestamp=now_ms))

    def _voters_batch(self, effect: AppendVoters) -> Batch:
        return voters_batch(
            effect,
            base_offset=self._log.end_offset,
            epoch=self._state.epoch,
            timestamp=self._clock.wall_ms(),
        )

    async def _append_from_leader(self, records: bytes) -> None:
        try:
            await self._append(from_leader(records, self._state.log.last, self._state.epoch))
            self._untaken = ""
        except (CorruptRecordError, StorageError) as error:
            if self._failure is not None:
                raise
            if self._untaken != str(error):
                self._untaken = str(error)
                log.warning("records of the leader cannot be appended", why=self._untaken)
            await self._take(AppendFailed())

    async def _truncate(self, end_offset: int) -> None:
        log.info("truncates the metadata log to the leader's", end=end_offset, was=self._log.end_offset)
        await self._when_there_is_room(lambda: self._log.truncate_to(end_offset))
        await self._take(Truncated(self._log.end_offset))

    def _sync_soon(self) -> None:
        if self._sync_task is None and self._failure is None and not self._turns.is_closed:
            self._sync_task = asyncio.get_running_loop().create_task(self._sync())

    async def _sync(self) -> None:
        """One sync for all that was appended before it; again while more was appended meanwhile."""
        try:
            while self._state.log.durable_offset < self._log.end_offset and self._failure is None:
                if not await self._make_durable():
                    break
                await self._turns.give(self._made_durable)
                if self._log.needs_settling:
                    await self._log.settle()
        except Exception as error:
            self._fail(error)
        finally:
            self._sync_task = None
            self._note_soon()

    async def _make_durable(self) -> bool:
        """Waits for what stands in its way to pass, if it may; False where the node stops first."""
        told = ""
        while True:
            try:
                await self._log.make_durable()
                return True
            except StorageError as error:
                if not is_transient(error) or self._log.failure is not None:
                    raise
                if self._is_closing:
                    return False
                if told != str(error):
                    told = str(error)
                    log.warning("metadata records are not synced yet", why=told)
            await asyncio.sleep(ROOM_AGAIN_MS / 1000)

    def _note_soon(self) -> None:
        """Damage to what a voter has confirmed must not pass for the torn end of a crash: cut off, it would be a vote
        for less than was agreed on. The note lets the log be refused instead."""
        if self._note_timer is not None or self._note_task is not None or self._is_closing:
            return
        if self._noted != self._log.durable_offset and self._failure is None:
            self._note_timer = asyncio.get_running_loop().call_later(NOTE_AFTER_S, self._begin_note)

    def _begin_note(self) -> None:
        self._note_timer = None
        self._note_task = asyncio.get_running_loop().create_task(self._note())

    async def _note(self) -> None:
        try:
            self._noted = self._log.durable_offset
            await self._log.settle()
        except Exception as error:
            self._fail(error)
        finally:
            self._note_task = None
            self._note_soon()

    async def _made_durable(self) -> None:
        self._check_failure()
        await self._take(Durable(self._log.durable_offset))

    # Handing on

    def _agreed_below(self) -> int:
        """Nothing at or after it may be acted on: it could still be lost to another leader. Nor may anything before
        this node is current: it would act on what it knows to be outdated."""
        return self._state.high_watermark if self._state.is_current else -1

    async def _hand_on(self) -> None:
        below = self._agreed_below()
        if below < self._handed_on:
            return
        if self._beginning is not None:
            contents, self._beginning = self._beginning, None
            self._on_snapshot(contents.values, contents.id, contents.leader_id)
        committed: list[CommittedBatch] = []
        while self._handed_on < below:
            from_offset = self._handed_on
            slices = await self._log.read(from_offset, READ_BYTES_MAX, below)
            for batch in whole_batches(slices.read()):
                committed.append(committed_batch(batch))
                self._handed_on = batch.next_offset
            if self._handed_on == from_offset:
                raise CorruptRecordError(f"the metadata log has no batch at {from_offset}, below {below}")
        if committed:
            self._on_commit(committed)

    # Snapshots

    async def _fetch_snapshot(self, effect: FetchSnapshot) -> None:
        log.info(
            "fetches a snapshot of the metadata", leader=effect.leader_id, end=effect.snapshot.end_offset
        )
        try:
            data = await self._snapshot_pieces(effect)
            await self._turns.give(lambda: self._begin_anew(effect.snapshot, data))
        except MoldauError as error:
            if not self._is_closing:
                log.warning("a snapshot of the metadata could not be had", why=str(error))
                self._give(SnapshotFailed())
        except Exception:
            # A peer must not be able to stop this node, whatever it answers.
            log.exception("fetching a snapshot of the metadata failed")
            self._give(SnapshotFailed())

    async def _snapshot_pieces(self, effect: FetchSnapshot) -> bytes:
        data = bytearray()
        size = 1
        while len(data) < size:
            heard_ms = self._state.leader_sent_ms if self._state.epoch == effect.epoch else NEVER
            request = SnapshotFetch(
                self._state.key, effect.epoch, effect.snapshot, len(data), heard_ms=heard_ms
            )
            reply = await self._calls.ask(effect.leader_id, request)
            assert isinstance(reply, SnapshotFetched)
            await self._give(Answered(effect.leader_id, request, reply))
            if not reply.is_leader:
                raise CorruptRecordError(f"node {effect.leader_id} does not lead any more")
            if reply.position != len(data) or not reply.data or not 0 < reply.size <= SNAPSHOT_BYTES_MAX:
                raise CorruptRecordError(f"node {effect.leader_id} sent a piece that does not fit")
            data += reply.data
            size = reply.size
        return bytes(data)

    async def _begin_anew(self, snapshot: SnapshotId, data: bytes) -> None:
        """First the snapshot is safe, then the log is dropped: a crash in between leaves a log that is behind its
        snapshot, which the next start drops."""
        self._check_failure()
        assert self._snapshots is not None, "a node without snapshots has no leader with any"
        if snapshot.end_offset <= self._state.high_watermark:
            await self._take(SnapshotFailed())
            return
        contents = await self._snapshots.take(snapshot, data)
        try:
            await self._log.truncate_fully_and_start_at(snapshot.end_offset)
        except StorageError as error:
            if not is_transient(error) or self._log.failure is not None:
                self._fail(error)
            raise
        self._begin_with(contents)
        await self._take(SnapshotTaken(snapshot, contents.voters))

    def _begin_with(self, contents: SnapshotContents) -> None:
        self._handed_on = contents.id.end_offset
        self._beginning = contents


def _tell_of_fall(effect: FellBack) -> None:
    node_id = effect.replica.node_id
    log.error(
        "a voter has less of the metadata log on disk than it had confirmed",
        node=node_id,
        confirmed=effect.confirmed_offset,
        end=effect.end_offset,
        todo=f"if an older copy of its data directory was put back: `moldau cluster remove-voter {node_id}`, start it "
        f"with an empty data directory, `moldau cluster add-voter {node_id}`; it may have forgotten a vote too",
    )
