"""Execution of the Raft state machine's effects: disk writes, requests, a timer, and delivery of committed records."""

import asyncio
import random
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from moldau.concurrency.notifier import Notifier
from moldau.concurrency.serial_executor import Job, SerialExecutor
from moldau.errors import CorruptRecordError, MoldauError, NotControllerError, StorageError
from moldau.logs.store import Log, is_transient
from moldau.metrics.component_metrics import QuorumMetrics
from moldau.observe.logging import get_logger
from moldau.platform.clock import Clock
from moldau.raft import effects, events
from moldau.raft.batches import batches_from_leader, leader_change_batch, summarize_batch, voters_batch
from moldau.raft.leader_state import NEVER
from moldau.raft.log_reader import CommitDelivery
from moldau.raft.messages import (
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    RaftResponse,
    SnapshotId,
    VoterEndpoint,
    VoterNode,
)
from moldau.raft.quorum_state_store import QuorumStateStore
from moldau.raft.raft_log_flusher import RETRY_MS, RaftLogFlusher
from moldau.raft.raft_log_state import RaftLogState
from moldau.raft.request_sender import NetworkChannel, RequestSender
from moldau.raft.snapshot_format import SnapshotContents
from moldau.raft.snapshot_store import SnapshotStore
from moldau.raft.state_machine import RaftStateMachine
from moldau.records.batch import Batch

log = get_logger("quorum")

SNAPSHOT_BYTES_MAX = 1024 * 1024 * 1024

T = TypeVar("T")


class EffectExecutor:
    """Passes events to the state machine one at a time, and executes all effects of an event before the next event.

    A failed effect is fatal, because the state machine assumes that all of its effects have happened. But a failed
    append to an intact log becomes an AppendFailed event, and other writes to a full disk are retried.
    """

    def __init__(
        self,
        state: RaftStateMachine,
        log: Log,
        state_store: QuorumStateStore,
        clock: Clock,
        random: random.Random,
        *,
        channel: NetworkChannel,
        snapshots: SnapshotStore,
        delivery: CommitDelivery,
        on_leader_change: Callable[[int, int], None],
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        self._state = state
        self._log = log
        self._state_store = state_store
        self._clock = clock
        self._random = random
        self._channel = channel
        self._snapshots = snapshots
        self._delivery = delivery
        self._on_leader_change = on_leader_change
        self._on_fatal = on_fatal
        self._jobs = SerialExecutor(lambda: NotControllerError("this node is stopping"), self._after_job)
        self.progress = Notifier()
        """Notified after every event."""
        self._request_sender = RequestSender(channel, state.quorum.config.request_timeout_ms, self.submit)
        self._flusher = RaftLogFlusher(
            log,
            is_behind=lambda: state.log.durable_offset < log.end_offset,
            on_flushed=lambda: self._jobs.submit(self._handle_flushed),
            is_stopping=lambda: self.is_closing,
            has_failed=lambda: self.failure is not None,
            on_failure=self._fail,
        )
        self._timer: asyncio.TimerHandle | None = None
        self._has_started = False
        self._is_resigning = False
        self._disk_full_error: StorageError | None = None
        """The error of the write that waits for disk space. No other effect is executed until the write succeeds."""
        self.on_stalled: Callable[[], None] | None = None
        """Called when this node could not store what it needs to follow the leader."""
        self._last_append_error = ""
        """The last logged error of an append of fetched records. It is not logged again."""
        self._own_append_error: StorageError | None = None
        """The last non-fatal error of an append of a batch that this node created as leader."""
        self.endpoints: dict[int, tuple[VoterEndpoint, ...]] = {}
        self.metrics = QuorumMetrics()
        self._uncommitted: deque[tuple[int, int]] = deque()
        """End offset and time in microseconds of each append by this node, as the leader, that is not committed."""
        self.failure: BaseException | None = None
        self.is_closing = False

    async def start(
        self, log_state: RaftLogState, snapshot: SnapshotContents | None, initial_voters: Sequence[VoterNode]
    ) -> None:
        """Starts the state machine. Call it inside a job. Raises StorageError if the only voter cannot append."""
        offset = log_state.start_offset if snapshot is None else snapshot.id.end_offset
        self._delivery.start_at(offset, snapshot)
        for voter in initial_voters:
            self.update_endpoints(voter.node_id, voter.endpoints)
        await self.step(events.NodeStarted(log_state, offset))
        self._update_voter_endpoints()
        if self._own_append_error is not None and len(self._state.quorum.voters) == 1:
            raise self._own_append_error
        self._has_started = True

    async def resign(self) -> None:
        if self.failure is not None or not self._has_started:
            return
        self._is_resigning = True
        self.progress.notify_all()
        try:
            await self.submit(events.ResignRequested())
        except StorageError:
            # A failed node cannot resign. The other voters elect a new leader after a timeout.
            return
        await self._request_sender.wait_for_resign_requests()

    async def close(self) -> None:
        self.is_closing = True
        self._arm_timer()
        self.progress.notify_all()
        await self._request_sender.close()
        await self._flusher.close()
        await self._jobs.close()

    def run(self, job: Job[T]) -> "asyncio.Future[T]":
        """Queues a job, which may call `start`, `step` and `append`. No event is handled while the job runs."""
        return self._jobs.submit(job)

    def submit(self, event: events.Event) -> "asyncio.Future[RaftResponse | effects.ServeFetch | None]":
        return self._jobs.submit(lambda: self._process(event))

    def check_failure(self) -> None:
        if self.failure is not None:
            raise StorageError("the metadata log has failed") from self.failure

    def check_disk_space(self) -> None:
        """Raises StorageError while a write waits for disk space, so that requests do not wait behind it."""
        if self._disk_full_error is not None:
            raise StorageError("this node waits for space on its disk") from self._disk_full_error

    async def _process(self, event: events.Event) -> RaftResponse | effects.ServeFetch | None:
        self.check_failure()
        if not self._has_started:
            # Reject the event, because without a loaded log the node would vote for any candidate.
            raise NotControllerError("this node is starting")
        response = await self.step(event)
        if isinstance(response, MoldauError):
            raise response
        return response

    async def step(self, event: events.Event) -> RaftResponse | effects.ServeFetch | MoldauError | None:
        """Handles one event and executes its effects. Call it inside a job. Returns the response to a request event."""
        response: RaftResponse | effects.ServeFetch | MoldauError | None = None
        try:
            for effect in self._state.step(self._clock.monotonic_ms(), event, self._random.random()):
                if isinstance(effect, effects.SendResponse):
                    response = effect.response
                elif isinstance(effect, effects.ServeFetch):
                    response = effect
                else:
                    await self._execute(effect)
            # Deliver nothing until this node has caught up, because a restarted node would act on old metadata.
            is_caught_up = self._state.quorum.is_caught_up
            self._measure_commits()
            await self._delivery.deliver(self._state.log.high_watermark if is_caught_up else -1)
        except Exception as error:
            self._fail(error)
            raise
        finally:
            self.progress.notify_all()
        return response

    async def _execute(self, effect: effects.Effect) -> None:
        match effect:
            case effects.PersistElection():
                election = effect.election
                await self._retry_while_disk_full(lambda: self._state_store.save(election))
            case effects.SendRequest():
                self._request_sender.send(effect.node_id, effect.request)
            case effects.AppendLeaderChange():
                now_ms, base_offset = self._clock.wall_ms(), self._log.end_offset
                await self._append_own(leader_change_batch(effect, base_offset=base_offset, timestamp=now_ms))
            case effects.AppendVoters():
                await self._append_own(self._voters_batch(effect.voters))
            case effects.AppendFetchedRecords():
                await self._append_fetched(effect.records)
            case effects.TruncateLog():
                await self._truncate(effect.end_offset)
            case effects.FetchSnapshot():
                self._request_sender.start_task(self._fetch_snapshot(effect))
            case effects.LeaderChanged():
                log.info("quorum leader changed", leader=effect.leader_id, epoch=effect.epoch)
                self._uncommitted.clear()
                self.metrics.elections_won += effect.leader_id == self._state.key.node_id
                self._on_leader_change(effect.leader_id, effect.epoch)
            case effects.VotersChanged():
                self._update_voter_endpoints()
            case effects.ReplicaOffsetRegressed():
                node_id = effect.replica.node_id
                log.error(
                    "a voter has fewer metadata records on disk than it had confirmed",
                    node=node_id,
                    confirmed_offset=effect.confirmed_offset,
                    end_offset=effect.end_offset,
                    todo="if an older copy of its data directory was restored, it may have lost a vote too: run "
                    f"`moldau cluster remove-voter {node_id}`, start it with an empty data directory, run "
                    f"`moldau cluster add-voter {node_id}`",
                )
            case effects.FatalError():
                raise StorageError(effect.reason)

    async def _retry_while_disk_full(self, write: Callable[[], Awaitable[None]]) -> None:
        """Repeats a write while the disk is full. Otherwise all voters that share a full disk would stop."""
        while True:
            try:
                await write()
                break
            except StorageError as error:
                if not is_transient(error) or not self._has_started or self._log.failure is not None:
                    raise
                if self._is_resigning or self.is_closing:
                    # Stop retrying, because the node is stopping and no other node relies on the missing write yet.
                    self.failure = self.failure or error
                    raise
                if self._disk_full_error is None:
                    log.error("disk full, suspended from the metadata quorum", reason=str(error))
                self._disk_full_error = error
            self._notify_stalled()
            await self.progress.wait(RETRY_MS)
        if self._disk_full_error is not None:
            log.info("disk space available, active in the metadata quorum again")
            self._disk_full_error = None

    def _notify_stalled(self) -> None:
        if self.on_stalled is not None:
            self.on_stalled()

    def _update_voter_endpoints(self) -> None:
        for voter in self._state.quorum.voters:
            self.update_endpoints(voter.node_id, voter.endpoints)

    def update_endpoints(self, node_id: int, endpoints: Sequence[VoterEndpoint]) -> None:
        if endpoints:
            self.endpoints[node_id] = tuple(endpoints)
            if node_id != self._state.key.node_id:
                self._channel.update_endpoint(node_id, endpoints)

    def _after_job(self) -> None:
        self._arm_timer()
        if self._state.log.durable_offset < self._log.end_offset and not self._jobs.is_closed:
            self._flusher.schedule()

    def _fail(self, error: BaseException) -> None:
        if self.failure is None:
            self.failure = error
            if self._has_started:
                self._on_fatal(error)

    # The timer

    def _arm_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        deadline_ms = self._state.deadline_ms
        if deadline_ms is not None and self._has_started and self.failure is None and not self.is_closing:
            delay_ms = max(0, deadline_ms - self._clock.monotonic_ms())
            self._timer = asyncio.get_running_loop().call_later(delay_ms / 1000, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        deadline_ms = self._state.deadline_ms
        if deadline_ms is not None and self._clock.monotonic_ms() < deadline_ms:
            # The timer fired early, because the node's clock is slower than the event loop's clock. Wait again.
            self._arm_timer()
        else:
            self.submit(events.TimerExpired())

    # Metrics

    def on_appended(self, end_offset: int, appended_us: int) -> None:
        """Measures how long it takes until the log is committed up to `end_offset`."""
        if self._state.log.high_watermark < end_offset:
            self._uncommitted.append((end_offset, appended_us))
        else:
            self.metrics.commit_durations.record((self._clock.monotonic_us() - appended_us) / 1000)

    def _measure_commits(self) -> None:
        high_watermark = self._state.log.high_watermark
        while self._uncommitted and self._uncommitted[0][0] <= high_watermark:
            _, appended_us = self._uncommitted.popleft()
            self.metrics.commit_durations.record((self._clock.monotonic_us() - appended_us) / 1000)

    # The log

    async def append(self, batches: Sequence[Batch]) -> None:
        """Appends batches to the log. Call it inside a job.

        If StorageError is raised and `failure` is not set, nothing was appended and the log is intact.
        """
        summaries = tuple(map(summarize_batch, batches))
        try:
            await self._log.append(batches)
        except StorageError as error:
            if self._log.failure is not None:
                self._fail(error)
            raise
        await self.step(events.BatchesAppended(summaries))

    async def append_voters(self, voters: tuple[VoterNode, ...]) -> None:
        """Appends a voters record. Call it inside a job."""
        await self.append([self._voters_batch(voters)])

    def _voters_batch(self, voters: tuple[VoterNode, ...]) -> Batch:
        return voters_batch(
            voters, base_offset=self._log.end_offset, epoch=self._state.epoch, timestamp=self._clock.wall_ms()
        )

    async def _append_own(self, batch: Batch) -> None:
        try:
            await self.append([batch])
        except StorageError as error:
            if self.failure is not None:
                raise
            log.warning("cannot append to the metadata log", reason=str(error))
            self._own_append_error = error
            await self.step(events.AppendFailed())

    async def _append_fetched(self, records: bytes) -> None:
        try:
            await self.append(batches_from_leader(records, self._state.log.log_end, self._state.epoch))
            self._last_append_error = ""
        except (CorruptRecordError, StorageError) as error:
            if self.failure is not None:
                raise
            if self._last_append_error != str(error):
                self._last_append_error = str(error)
                log.warning("cannot append fetched metadata records", reason=self._last_append_error)
            self._notify_stalled()
            await self.step(events.AppendFailed())

    async def _truncate(self, end_offset: int) -> None:
        log.info(
            "truncating the metadata log, which diverges from the leader's",
            end_offset=end_offset,
            previous_end_offset=self._log.end_offset,
        )
        await self._retry_while_disk_full(lambda: self._log.truncate_to(end_offset))
        await self.step(events.LogTruncated(self._log.end_offset))

    async def _handle_flushed(self) -> None:
        self.check_failure()
        await self.step(events.LogFlushed(self._log.durable_offset))

    # Snapshots from the leader

    async def _fetch_snapshot(self, effect: effects.FetchSnapshot) -> None:
        log.info("fetching a metadata snapshot", leader=effect.leader_id, end_offset=effect.snapshot.end_offset)
        try:
            data = await self._download_snapshot(effect)
            await self._jobs.submit(lambda: self._install_snapshot(effect.snapshot, data))
        except MoldauError as error:
            if not self.is_closing:
                log.warning("cannot fetch the metadata snapshot, retrying", reason=str(error))
                self.submit(events.SnapshotFetchFailed())
        except Exception:
            # An unexpected response from a peer must not stop this node.
            log.exception("cannot fetch the metadata snapshot, retrying")
            self.submit(events.SnapshotFetchFailed())

    async def _download_snapshot(self, effect: effects.FetchSnapshot) -> bytes:
        node_id, data, size = effect.leader_id, bytearray(), 1
        while len(data) < size:
            is_same_epoch = self._state.epoch == effect.epoch
            request = FetchSnapshotRequest(
                self._state.key,
                effect.epoch,
                effect.snapshot,
                len(data),
                leader_sent_ms=self._state.quorum.leader_sent_ms if is_same_epoch else NEVER,
            )
            response = await self._request_sender.call(node_id, request)
            assert isinstance(response, FetchSnapshotResponse)
            await self.submit(events.ResponseReceived(node_id, request, response))
            if not response.is_leader:
                raise CorruptRecordError(f"node {node_id} is no longer the leader")
            is_in_range = 0 < response.size <= SNAPSHOT_BYTES_MAX
            if response.position != len(data) or not response.data or not is_in_range:
                raise CorruptRecordError(f"node {node_id} sent an invalid part of the snapshot")
            data += response.data
            size = response.size
        return bytes(data)

    async def _install_snapshot(self, snapshot: SnapshotId, data: bytes) -> None:
        """Stores the snapshot, then resets the log. After a crash in between, the next startup resets the log."""
        self.check_failure()
        if snapshot.end_offset <= self._state.log.high_watermark:
            await self.step(events.SnapshotFetchFailed())
            return
        try:
            contents = await self._snapshots.store_fetched(snapshot, data)
        except StorageError:
            self._notify_stalled()
            raise
        try:
            await self._log.truncate_fully_and_start_at(snapshot.end_offset)
        except StorageError as error:
            self._notify_stalled()
            if not is_transient(error) or self._log.failure is not None:
                self._fail(error)
            raise
        self._delivery.start_at(snapshot.end_offset, contents)
        await self.step(events.SnapshotInstalled(snapshot, contents.voters))
