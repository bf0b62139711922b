"""Does what the quorum's state machine wants: votes on disk, records in the log, calls to peers, one timer; and hands
on what is committed."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from moldau.concurrency.notifier import Notifier
from moldau.concurrency.serial_executor import SerialExecutor
from moldau.errors import CorruptRecordError, MoldauError, NotControllerError, StorageError
from moldau.logs.store import Log, is_transient
from moldau.observe.logging import get_logger
from moldau.platform.clock import Clock
from moldau.raft.batches import (
    CommittedBatch,
    batches_from_leader,
    iterate_batches,
    leader_change_batch,
    read_committed_batch,
    summarize_batch,
    voters_batch,
)
from moldau.raft.events import (
    AppendFailed,
    AppendFetchedRecords,
    AppendLeaderChange,
    AppendVoters,
    BatchesAppended,
    Effect,
    ElectionState,
    Event,
    FatalError,
    FetchSnapshot,
    LeaderChanged,
    LogFlushed,
    LogTruncated,
    PersistElection,
    RaftResponse,
    ReplicaOffsetRegressed,
    ResponseReceived,
    SendRequest,
    SendResponse,
    ServeFetch,
    SnapshotFetchFailed,
    SnapshotInstalled,
    TimerExpired,
    TruncateLog,
    VotersChanged,
)
from moldau.raft.leader_state import NEVER
from moldau.raft.messages import FetchSnapshotRequest, FetchSnapshotResponse, SnapshotId, VoterEndpoint
from moldau.raft.network_channel import NetworkChannel, QuorumConfig
from moldau.raft.quorum_state_store import QuorumStateStore
from moldau.raft.request_sender import RequestSender
from moldau.raft.snapshot_format import SnapshotContents
from moldau.raft.snapshot_store import SnapshotStore
from moldau.raft.state import QuorumState
from moldau.records.batch import Batch

log = get_logger("quorum")

READ_BYTES_MAX = 8 * 1024 * 1024
SNAPSHOT_BYTES_MAX = 1024 * 1024 * 1024
DISK_FULL_RETRY_MS = 100
"""How soon it is tried again to write what there was no room for."""
CHECKPOINT_DELAY_S = 0.2
"""How soon it is noted beside the log how far it is synced."""


class RandomSource(Protocol):
    def random(self) -> float: ...


class EffectExecutor:
    def __init__(
        self,
        state: QuorumState,
        log: Log,
        elections: QuorumStateStore,
        clock: Clock,
        random: RandomSource,
        *,
        peers: NetworkChannel,
        snapshots: SnapshotStore | None,
        settings: QuorumConfig,
        on_commit: Callable[[Sequence[CommittedBatch]], None],
        on_load_snapshot: Callable[[Sequence[bytes], SnapshotId, int], None],
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
        self._on_snapshot = on_load_snapshot
        self._on_leader_change = on_leader_change
        self._on_fatal = on_fatal
        self._executor = SerialExecutor(
            lambda: NotControllerError("this node is stopping"), self._after_event
        )
        """An event and all its effects are one turn, so that effects happen in the order decided."""
        self._notifier = Notifier()
        """Rings whenever the state machine has taken an event."""
        self._request_sender = RequestSender(peers, settings, self._submit)
        self._endpoints: dict[int, tuple[VoterEndpoint, ...]] = {}
        self._delivered_offset = log.start_offset
        self._pending_snapshot: SnapshotContents | None = None
        """What is to be handed on before anything else."""
        self._flush_task: asyncio.Task[None] | None = None
        self._checkpointed_offset = log.durable_offset
        self._checkpoint_timer: asyncio.TimerHandle | None = None
        self._checkpoint_task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._failure: BaseException | None = None
        self._has_started = False
        self._is_resigning = False
        self._is_closing = False
        self._disk_full_error: StorageError | None = None
        """Why what must be remembered of elections is not on disk yet; until it is, nothing else is done."""
        self._last_append_error = ""
        """Why the leader's records could not be appended, so that what is tried again is not told each time."""
        self._own_append_error: StorageError | None = None
        """Why the last append of the quorum's own could not be made, though the log is sound."""

    # Turns

    def _submit(self, event: Event) -> "asyncio.Future[RaftResponse | ServeFetch | None]":
        return self._executor.submit(lambda: self._process_event(event))

    async def _process_event(self, event: Event) -> RaftResponse | ServeFetch | None:
        self._check_failure()
        if not self._has_started:
            # It has not looked at its log yet: it would vote for anybody.
            raise NotControllerError("this node is starting")
        answer = await self._step(event)
        if isinstance(answer, MoldauError):
            raise answer
        return answer

    async def _step(self, event: Event) -> RaftResponse | ServeFetch | MoldauError | None:
        """Lets the state machine decide, and does it all. What goes wrong in between is fatal: the state machine
        believes what then is not so."""
        answer: RaftResponse | ServeFetch | MoldauError | None = None
        try:
            for effect in self._state.step(self._clock.monotonic_ms(), event, self._random.random()):
                if isinstance(effect, SendResponse):
                    answer = effect.reply
                elif isinstance(effect, ServeFetch):
                    answer = effect
                else:
                    await self._execute(effect)
            await self._deliver_committed()
        except Exception as error:
            self._fail(error)
            raise
        finally:
            self._notifier.notify_all()
        return answer

    async def _execute(self, effect: Effect) -> None:
        match effect:
            case PersistElection():
                await self._save_election(effect.election)
            case SendRequest():
                self._request_sender.send(effect.to, effect.request)
            case AppendLeaderChange():
                await self._append_leader_change(effect)
            case AppendVoters():
                await self._append_own_batch(self._voters_batch(effect))
            case AppendFetchedRecords():
                await self._append_from_leader(effect.records)
            case TruncateLog():
                await self._truncate(effect.end_offset)
            case FetchSnapshot():
                self._request_sender.run(self._fetch_snapshot(effect))
            case LeaderChanged():
                log.info("quorum leader", leader=effect.leader_id, epoch=effect.epoch)
                self._on_leader_change(effect.leader_id, effect.epoch)
            case VotersChanged():
                self._update_voter_endpoints()
            case ReplicaOffsetRegressed():
                _log_offset_regression(effect)
            case FatalError():
                raise StorageError(effect.reason)

    async def _save_election(self, election: ElectionState) -> None:
        """Before anybody is told of it: a vote that a crash takes back could be given twice."""
        await self._retry_while_disk_full(lambda: self._elections.save(election))

    async def _retry_while_disk_full(self, write: Callable[[], Awaitable[None]]) -> None:
        """A full disk is waited for: where several voters share one, they would all be gone for good."""
        while True:
            try:
                await write()
                break
            except StorageError as error:
                if not is_transient(error) or not self._has_started or self._log.failure is not None:
                    raise
                if self._is_resigning or self._is_closing:
                    # The node stops in any case, and nobody has been told of what it forgets.
                    self._failure = self._failure or error
                    raise
                if self._disk_full_error is None:
                    log.error("waits for room on the disk, and takes no part in the quorum", why=str(error))
                self._disk_full_error = error
            await self._notifier.wait(DISK_FULL_RETRY_MS)
        if self._disk_full_error is not None:
            log.info("takes part in the quorum again")
            self._disk_full_error = None

    def _update_voter_endpoints(self) -> None:
        for voter in self._state.voters:
            self._update_endpoints(voter.node_id, voter.endpoints)

    def _update_endpoints(self, node_id: int, endpoints: Sequence[VoterEndpoint]) -> None:
        if endpoints:
            self._endpoints[node_id] = tuple(endpoints)
            if node_id != self._state.node_id:
                self._peers.update_endpoint(node_id, endpoints)

    def _after_event(self) -> None:
        self._arm_timer()
        if self._state.log.durable_offset < self._log.end_offset:
            self._schedule_flush()

    def _check_failure(self) -> None:
        if self._failure is not None:
            raise StorageError("the metadata log has failed") from self._failure

    def _fail(self, error: BaseException) -> None:
        if self._failure is None:
            self._failure = error
            if self._has_started:
                self._on_fatal(error)

    # The timer

    def _arm_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        deadline_ms = self._state.deadline_ms
        if deadline_ms is not None and self._has_started and self._failure is None and not self._is_closing:
            delay_ms = max(0, deadline_ms - self._clock.monotonic_ms())
            self._timer = asyncio.get_running_loop().call_later(delay_ms / 1000, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        deadline_ms = self._state.deadline_ms
        if deadline_ms is not None and self._clock.monotonic_ms() < deadline_ms:
            # The node's clock runs slower than the loop's.
            self._arm_timer()
        else:
            self._submit(TimerExpired())

    # The log

    async def _append(self, batches: Sequence[Batch]) -> None:
        """A StorageError that leaves the log sound (a full disk) has changed nothing."""
        summaries = tuple(map(summarize_batch, batches))
        try:
            await self._log.append(batches)
        except StorageError as error:
            if self._log.failure is not None:
                self._fail(error)
            raise
        await self._step(BatchesAppended(summaries))

    async def _append_own_batch(self, batch: Batch) -> None:
        try:
            await self._append([batch])
        except StorageError as error:
            if self._failure is not None:
                raise
            log.warning("the metadata log takes no records", why=str(error))
            self._own_append_error = error
            await self._step(AppendFailed())

    async def _append_leader_change(self, effect: AppendLeaderChange) -> None:
        now_ms = self._clock.wall_ms()
        await self._append_own_batch(
            leader_change_batch(effect, base_offset=self._log.end_offset, timestamp=now_ms)
        )

    def _voters_batch(self, effect: AppendVoters) -> Batch:
        return voters_batch(
            effect,
            base_offset=self._log.end_offset,
            epoch=self._state.epoch,
            timestamp=self._clock.wall_ms(),
        )

    async def _append_from_leader(self, records: bytes) -> None:
        try:
            await self._append(batches_from_leader(records, self._state.log.log_end, self._state.epoch))
            self._last_append_error = ""
        except (CorruptRecordError, StorageError) as error:
            if self._failure is not None:
                raise
            if self._last_append_error != str(error):
                self._last_append_error = str(error)
                log.warning("records of the leader cannot be appended", why=self._last_append_error)
            await self._step(AppendFailed())

    async def _truncate(self, end_offset: int) -> None:
        log.info("truncates the metadata log to the leader's", end=end_offset, was=self._log.end_offset)
        await self._retry_while_disk_full(lambda: self._log.truncate_to(end_offset))
        await self._step(LogTruncated(self._log.end_offset))

    def _schedule_flush(self) -> None:
        if self._flush_task is None and self._failure is None and not self._executor.is_closed:
            self._flush_task = asyncio.get_running_loop().create_task(self._flush())

    async def _flush(self) -> None:
        """One sync for all that was appended before it; again while more was appended meanwhile."""
        try:
            while self._state.log.durable_offset < self._log.end_offset and self._failure is None:
                if not await self._make_durable():
                    break
                await self._executor.submit(self._on_log_flushed)
                if self._log.has_unfinalized_segments:
                    await self._log.finalize_segments()
        except Exception as error:
            self._fail(error)
        finally:
            self._flush_task = None
            self._schedule_checkpoint()

    async def _make_durable(self) -> bool:
        """Waits for what stands in its way to pass, if it may; False where the node stops first."""
        told = ""
        while True:
            try:
                await self._log.flush()
                return True
            except StorageError as error:
                if not is_transient(error) or self._log.failure is not None:
                    raise
                if self._is_closing:
                    return False
                if told != str(error):
                    told = str(error)
                    log.warning("metadata records are not synced yet", why=told)
            await asyncio.sleep(DISK_FULL_RETRY_MS / 1000)

    def _schedule_checkpoint(self) -> None:
        """Damage to what a voter has confirmed must not pass for the torn end of a crash: cut off, it would be a vote
        for less than was agreed on. The note lets the log be refused instead."""
        if self._checkpoint_timer is not None or self._checkpoint_task is not None or self._is_closing:
            return
        if self._checkpointed_offset != self._log.durable_offset and self._failure is None:
            self._checkpoint_timer = asyncio.get_running_loop().call_later(
                CHECKPOINT_DELAY_S, self._start_checkpoint
            )

    def _start_checkpoint(self) -> None:
        self._checkpoint_timer = None
        self._checkpoint_task = asyncio.get_running_loop().create_task(self._checkpoint_recovery_point())

    async def _checkpoint_recovery_point(self) -> None:
        try:
            self._checkpointed_offset = self._log.durable_offset
            await self._log.finalize_segments()
        except Exception as error:
            self._fail(error)
        finally:
            self._checkpoint_task = None
            self._schedule_checkpoint()

    async def _on_log_flushed(self) -> None:
        self._check_failure()
        await self._step(LogFlushed(self._log.durable_offset))

    # Handing on

    def _deliverable_offset(self) -> int:
        """Nothing at or after it may be acted on: it could still be lost to another leader. Nor may anything before
        this node is current: it would act on what it knows to be outdated."""
        return self._state.high_watermark if self._state.is_caught_up else -1

    async def _deliver_committed(self) -> None:
        below = self._deliverable_offset()
        if below < self._delivered_offset:
            return
        if self._pending_snapshot is not None:
            contents, self._pending_snapshot = self._pending_snapshot, None
            self._on_snapshot(contents.values, contents.id, contents.leader_id)
        committed: list[CommittedBatch] = []
        while self._delivered_offset < below:
            from_offset = self._delivered_offset
            slices = await self._log.read(from_offset, READ_BYTES_MAX, below)
            for batch in iterate_batches(slices.read()):
                committed.append(read_committed_batch(batch))
                self._delivered_offset = batch.next_offset
            if self._delivered_offset == from_offset:
                raise CorruptRecordError(f"the metadata log has no batch at {from_offset}, below {below}")
        if committed:
            self._on_commit(committed)

    # Snapshots

    async def _fetch_snapshot(self, effect: FetchSnapshot) -> None:
        log.info(
            "fetches a snapshot of the metadata", leader=effect.leader_id, end=effect.snapshot.end_offset
        )
        try:
            data = await self._download_snapshot(effect)
            await self._executor.submit(lambda: self._install_snapshot(effect.snapshot, data))
        except MoldauError as error:
            if not self._is_closing:
                log.warning("a snapshot of the metadata could not be had", why=str(error))
                self._submit(SnapshotFetchFailed())
        except Exception:
            # A peer must not be able to stop this node, whatever it answers.
            log.exception("fetching a snapshot of the metadata failed")
            self._submit(SnapshotFetchFailed())

    async def _download_snapshot(self, effect: FetchSnapshot) -> bytes:
        data = bytearray()
        size = 1
        while len(data) < size:
            heard_ms = self._state.leader_sent_ms if self._state.epoch == effect.epoch else NEVER
            request = FetchSnapshotRequest(
                self._state.key, effect.epoch, effect.snapshot, len(data), heard_ms=heard_ms
            )
            reply = await self._request_sender.call(effect.leader_id, request)
            assert isinstance(reply, FetchSnapshotResponse)
            await self._submit(ResponseReceived(effect.leader_id, request, reply))
            if not reply.is_leader:
                raise CorruptRecordError(f"node {effect.leader_id} does not lead any more")
            if reply.position != len(data) or not reply.data or not 0 < reply.size <= SNAPSHOT_BYTES_MAX:
                raise CorruptRecordError(f"node {effect.leader_id} sent a piece that does not fit")
            data += reply.data
            size = reply.size
        return bytes(data)

    async def _install_snapshot(self, snapshot: SnapshotId, data: bytes) -> None:
        """First the snapshot is safe, then the log is dropped: a crash in between leaves a log that is behind its
        snapshot, which the next start drops."""
        self._check_failure()
        assert self._snapshots is not None, "a node without snapshots has no leader with any"
        if snapshot.end_offset <= self._state.high_watermark:
            await self._step(SnapshotFetchFailed())
            return
        contents = await self._snapshots.take(snapshot, data)
        try:
            await self._log.truncate_fully_and_start_at(snapshot.end_offset)
        except StorageError as error:
            if not is_transient(error) or self._log.failure is not None:
                self._fail(error)
            raise
        self._set_pending_snapshot(contents)
        await self._step(SnapshotInstalled(snapshot, contents.voters))

    def _set_pending_snapshot(self, contents: SnapshotContents) -> None:
        self._delivered_offset = contents.id.end_offset
        self._pending_snapshot = contents


def _log_offset_regression(effect: ReplicaOffsetRegressed) -> None:
    node_id = effect.replica.node_id
    log.error(
        "a voter has less of the metadata log on disk than it had confirmed",
        node=node_id,
        confirmed=effect.confirmed_offset,
        end=effect.end_offset,
        todo=f"if an older copy of its data directory was put back: `moldau cluster remove-voter {node_id}`, start it "
        f"with an empty data directory, `moldau cluster add-voter {node_id}`; it may have forgotten a vote too",
    )
