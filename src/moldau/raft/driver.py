"""The metadata quorum as the rest of a node sees it: appends of the leader, what other nodes ask, who leads, who votes.

A disk that fails ends it: `on_fatal` is told once and every later call is refused. Nothing is tried again,
because after a failed sync nobody knows what is on the disk. A disk that is merely full is waited for.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar
from uuid import UUID

from moldau.errors import InvalidRequestError, NotControllerError, RequestTimedOutError, StorageError
from moldau.logs.store import Log, LogName, LogStore
from moldau.platform.clock import Clock
from moldau.raft.batches import CommittedBatch, values_batch
from moldau.raft.effect_executor import EffectExecutor, RandomSource
from moldau.raft.events import (
    AppendFailed,
    AppendVoters,
    NodeStarted,
    RaftRequest,
    RaftResponse,
    RequestReceived,
    ResignRequested,
    ServeFetch,
    SnapshotCreated,
)
from moldau.raft.leader_state import ReplicaState, to_replica_progress
from moldau.raft.log_loader import REPLACE_VOTER_HINT, load_log_state
from moldau.raft.messages import (
    NO_LEADER,
    BeginQuorumEpochRequest,
    EndQuorumEpochRequest,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    QuorumDescription,
    QuorumEpochResponse,
    QuorumFetchRequest,
    QuorumFetchResponse,
    ReplicaKey,
    SnapshotId,
    VoteRequest,
    VoteResponse,
    VoterNode,
)
from moldau.raft.network_channel import NetworkChannel, QuorumConfig
from moldau.raft.quorum_state_store import QuorumStateStore, check_not_older
from moldau.raft.snapshot_format import SnapshotContents
from moldau.raft.snapshot_store import SnapshotStore, load_latest_snapshot
from moldau.raft.state import QuorumState
from moldau.settings.topic import TopicSettings

__all__ = [
    "METADATA_LOG",
    "METADATA_TOPIC_ID",
    "NetworkChannel",
    "QuorumConfig",
    "RaftClient",
    "open_metadata_log",
]

METADATA_LOG = LogName("__cluster_metadata", 0)
METADATA_TOPIC_ID = UUID(int=1)
"""Reserved for this log; no other topic gets it."""

SEGMENT_BYTES = 8 * 1024 * 1024
"""Only whole segments are deleted behind a snapshot."""

VOTER_CHANGE_TIMEOUT_MS = 30_000
NEVER_CONFIRMED = -(2**63)

T = TypeVar("T", bound=RaftResponse)


async def open_metadata_log(store: LogStore) -> Log:
    """The metadata log: shortened by snapshots and never by retention, always synced."""
    settings = TopicSettings(
        cleanup_policy=("delete",),
        retention_ms=-1,
        retention_bytes=-1,
        segment_bytes=SEGMENT_BYTES,
        write_caching=False,
    )
    try:
        return await store.open(METADATA_LOG, METADATA_TOPIC_ID, settings)
    except StorageError as error:
        raise StorageError(f"{error}. {REPLACE_VOTER_HINT}") from error


class RaftClient(EffectExecutor):
    def __init__(
        self,
        node_id: int,
        directory_id: UUID | None,
        log: Log,
        elections: QuorumStateStore,
        clock: Clock,
        random: RandomSource,
        *,
        initial_voters: Sequence[VoterNode],
        peers: NetworkChannel,
        snapshots: SnapshotStore | None = None,
        settings: QuorumConfig | None = None,
        bootstrap: Sequence[int] = (),
        on_commit: Callable[[Sequence[CommittedBatch]], None],
        on_load_snapshot: Callable[
            [Sequence[bytes], SnapshotId, int], None
        ] = lambda values, end, leader_id: None,
        on_leader_change: Callable[[int, int], None] = lambda leader_id, epoch: None,
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        """`on_commit` gets every batch of the log once, in order, when it is committed: those that were there
        at the start too, then all at once, and not before they are known to be all that was agreed on until
        then. Where a snapshot stands for the log's beginning `on_load_snapshot` gets that first: its records, what it
        stands for, and who led then."""
        settings = settings or QuorumConfig()
        endpoints = next((voter.endpoints for voter in initial_voters if voter.node_id == node_id), ())
        key = ReplicaKey(node_id, directory_id)
        state = QuorumState(key, elections.load(), settings, tuple(bootstrap), endpoints)
        super().__init__(
            state,
            log,
            elections,
            clock,
            random,
            peers=peers,
            snapshots=snapshots,
            settings=settings,
            on_commit=on_commit,
            on_load_snapshot=on_load_snapshot,
            on_leader_change=on_leader_change,
            on_fatal=on_fatal,
        )
        self._first_voters = tuple(initial_voters)

    @property
    def is_leader(self) -> bool:
        return self._failure is None and self._state.is_leader

    @property
    def leader_id(self) -> int:
        """NO_LEADER (-1) where none is known."""
        return NO_LEADER if self._failure is not None else self._state.leader_id

    @property
    def epoch(self) -> int:
        return self._state.epoch

    @property
    def high_watermark(self) -> int:
        return self._state.high_watermark

    @property
    def voters(self) -> tuple[VoterNode, ...]:
        return self._state.voters

    @property
    def has_live_leader(self) -> bool:
        """Whether this node leads, or its leader was heard of lately."""
        return self._state.has_live_leader(self._clock.monotonic_ms())

    @property
    def majority_confirmed_ms(self) -> int:
        """The newest (monotonic) time at which a majority of the voters is known to have had no other leader; long ago
        for a node that does not lead."""
        majority_confirmed_ms = (
            self._state.majority_confirmed_ms(self._clock.monotonic_ms()) if self.is_leader else None
        )
        return NEVER_CONFIRMED if majority_confirmed_ms is None else majority_confirmed_ms

    @property
    def leader_silence_ms(self) -> int:
        """For how long the majority that elected this leader had heard of no other one, at least."""
        leader_state = self._state.leader_state
        return 0 if leader_state is None else leader_state.leader_silence_ms

    def leader_endpoint(self) -> tuple[str, int] | None:
        endpoints = self._endpoints.get(self.leader_id)
        return (endpoints[0].host, endpoints[0].port) if endpoints else None

    # Life

    async def start(self) -> None:
        """Takes part in the quorum from now on. What the log holds is handed on when it is committed."""
        await self._executor.submit(self._start)

    async def _start(self) -> None:
        contents = None
        if self._snapshots is not None:
            contents = await load_latest_snapshot(self._log, self._snapshots)
        await self._log.flush()
        view = await load_log_state(self._log, self._snapshots, contents, self._first_voters)
        check_not_older(self._state.election, view.log_end)
        self._delivered_offset = view.start_offset
        if contents is not None:
            self._set_pending_snapshot(contents)
        for voter in self._first_voters:
            self._update_endpoints(voter.node_id, voter.endpoints)
        await self._step(NodeStarted(view, self._delivered_offset))
        self._update_voter_endpoints()
        if self._own_append_error is not None and len(self.voters) == 1:
            raise self._own_append_error
        self._has_started = True

    async def resign(self) -> None:
        """Before a clean stop: a leader hands over, and this node stands for no election any more."""
        if self._failure is not None or not self._has_started:
            return
        self._is_resigning = True
        self._notifier.notify_all()
        try:
            await self._submit(ResignRequested())
        except StorageError:
            # Whoever cannot go on has told so, and has nothing to hand over.
            return
        await self._request_sender.wait_for_resign_requests()

    async def close(self) -> None:
        """Returns when nothing of the quorum's touches the log any more; the log's owner closes it."""
        self._is_closing = True
        self._arm_timer()
        self._notifier.notify_all()
        await self._request_sender.close()
        while self._flush_task is not None:
            await self._flush_task
        if self._checkpoint_timer is not None:
            self._checkpoint_timer.cancel()
        if self._checkpoint_task is not None:
            await self._checkpoint_task
        await self._executor.close()

    # The leader's records

    async def append(self, values: Sequence[bytes]) -> int:
        """Appends the values as one batch, all or none; returns the offset of the last. Leader only.

        It is not committed when this returns, and is lost if the node loses its leadership before it is. A leader
        whose disk is full raises StorageError, and gives way to another voter where there is one.
        """
        self._check_disk_space()
        return await self._executor.submit(lambda: self._append_values(values))

    async def _append_values(self, values: Sequence[bytes]) -> int:
        self._check_is_leader()
        batch = values_batch(
            values,
            base_offset=self._log.end_offset,
            epoch=self.epoch,
            timestamp=self._clock.wall_ms(),
        )
        try:
            await self._append([batch])
        except StorageError:
            if self._failure is None:
                await self._step(AppendFailed())
            raise
        return batch.last_offset

    def _check_is_leader(self) -> None:
        self._check_failure()
        if not self._state.is_leader:
            raise NotControllerError("this node does not lead the metadata quorum")

    # What other nodes ask

    async def vote(self, request: VoteRequest) -> VoteResponse:
        return await self._request(request, VoteResponse)

    async def begin_quorum_epoch(self, request: BeginQuorumEpochRequest) -> QuorumEpochResponse:
        if request.epoch >= self.epoch and not self._state.is_epoch_out_of_range(request.epoch):
            self._update_endpoints(request.leader_id, request.endpoints)
        return await self._request(request, QuorumEpochResponse)

    async def end_quorum_epoch(self, request: EndQuorumEpochRequest) -> QuorumEpochResponse:
        return await self._request(request, QuorumEpochResponse)

    async def fetch(self, request: QuorumFetchRequest) -> QuorumFetchResponse:
        """Waits for news, as long as the request says."""
        answer = await self._handle_request(request)
        if isinstance(answer, QuorumFetchResponse):
            return answer
        deadline_ms = self._clock.monotonic_ms() + request.max_wait_ms
        offset = request.log_end.offset
        while True:
            if not self._is_leader_in(request.epoch):
                return QuorumFetchResponse(self.epoch, self.leader_id, is_leader=False)
            view, high_watermark = self._state.log, self._state.announced_high_watermark
            wait_ms = deadline_ms - self._clock.monotonic_ms()
            if view.end_offset > offset or high_watermark > request.high_watermark or wait_ms <= 0:
                break
            await self._notifier.wait(wait_ms)
        records = b""
        if view.start_offset <= offset < view.end_offset:
            records = (await self._log.read(offset, request.bytes_max, view.end_offset)).read()
            if not self._is_leader_in(request.epoch):
                # What was read may since have been another leader's.
                return QuorumFetchResponse(self.epoch, self.leader_id, is_leader=False)
        return QuorumFetchResponse(
            self.epoch,
            self._state.node_id,
            is_leader=True,
            records=records,
            high_watermark=high_watermark,
            log_start_offset=view.start_offset,
            sent_ms=self._clock.monotonic_ms(),
        )

    def _is_leader_in(self, epoch: int) -> bool:
        return self.is_leader and self.epoch == epoch and not self._is_closing

    async def fetch_snapshot(self, request: FetchSnapshotRequest) -> FetchSnapshotResponse:
        """Raises SnapshotNotFoundError, PositionOutOfRangeError."""
        answer = await self._handle_request(request)
        if isinstance(answer, FetchSnapshotResponse):
            return answer
        if not self._is_leader_in(request.epoch):
            # Another epoch may have begun before this node's turn to answer, and it does not lead in that one.
            return FetchSnapshotResponse(self.epoch, self.leader_id, is_leader=False)
        assert self._snapshots is not None, (
            "whoever was told of a snapshot was told by a node that keeps them"
        )
        read_chunk = self._snapshots.read_chunk(request.snapshot, request.position, request.bytes_max)
        return FetchSnapshotResponse(
            self.epoch,
            self._state.node_id,
            True,
            read_chunk.size,
            request.position,
            read_chunk.data,
            sent_ms=self._clock.monotonic_ms(),
        )

    async def _request(self, request: RaftRequest, kind: type[T]) -> T:
        answer = await self._handle_request(request)
        assert isinstance(answer, kind)
        return answer

    async def _handle_request(self, request: RaftRequest) -> RaftResponse | ServeFetch | None:
        self._check_failure()
        self._check_disk_space()
        return await self._submit(RequestReceived(request))

    def _check_disk_space(self) -> None:
        if self._disk_full_error is not None:
            # There is no telling how long it would wait, and others come behind it.
            raise StorageError("this node waits for room on its disk") from self._disk_full_error

    # Snapshots

    async def snapshot(self, values: Sequence[bytes], end: SnapshotId, leader_id: int = NO_LEADER) -> None:
        """Keeps a snapshot of what is committed below its end. The log then begins at the end of the one before it:
        a node that is a little behind still finds what it needs in the log, and a damaged one costs nothing."""
        snapshots = self._snapshots
        if snapshots is None or end.end_offset > self.high_watermark:
            raise InvalidRequestError(f"a snapshot cannot end at {end.end_offset}, which is not committed")
        latest = snapshots.latest()
        if latest is not None and latest >= end:
            return
        self._check_failure()
        voters = self._state.log.voters.voters_below(end.end_offset)
        await snapshots.store(SnapshotContents(end, voters, values, self._clock.wall_ms(), leader_id))
        await self._executor.submit(lambda: self._trim_log_to_snapshot(end))

    async def _trim_log_to_snapshot(self, end: SnapshotId) -> None:
        self._check_failure()
        assert self._snapshots is not None
        oldest = self._snapshots.oldest()
        if oldest is not None and self._log.start_offset < oldest.end_offset <= self._log.end_offset:
            await self._log.advance_start_offset(oldest.end_offset)
        await self._step(SnapshotCreated(end, self._log.start_offset))

    # Voters

    async def add_voter(self, voter: VoterNode, timeout_ms: int = VOTER_CHANGE_TIMEOUT_MS) -> None:
        """Returns when it is agreed on; waits for the voter to catch up, and for another change to be made."""
        await self._change_voters(
            lambda: self._state.with_voter(self._clock.monotonic_ms(), voter), timeout_ms
        )

    async def remove_voter(self, key: ReplicaKey, timeout_ms: int = VOTER_CHANGE_TIMEOUT_MS) -> None:
        """A leader that removes itself leads until that is agreed on."""
        await self._change_voters(lambda: self._state.without_voter(key), timeout_ms)

    async def update_voter(self, voter: VoterNode, timeout_ms: int = VOTER_CHANGE_TIMEOUT_MS) -> None:
        """Where a voter can be reached from now on, and its directory if that was not known."""
        await self._change_voters(lambda: self._state.with_updated_voter(voter), timeout_ms)

    async def _change_voters(self, change: Callable[[], tuple[VoterNode, ...]], timeout_ms: int) -> None:
        self._check_disk_space()
        deadline_ms = self._clock.monotonic_ms() + timeout_ms
        while True:
            try:
                epoch, end_offset = await self._executor.submit(lambda: self._append_voters(change))
                break
            except RequestTimedOutError as error:
                await self._wait_for_change(deadline_ms, str(error))
        while self.high_watermark < end_offset:
            if not self._is_leader_in(epoch):
                raise RequestTimedOutError(
                    "the leadership was lost before the change was agreed on: it may or may not be made"
                )
            await self._wait_for_change(
                deadline_ms, "a majority has not taken the change in yet; it may come to be"
            )

    async def _wait_for_change(self, deadline_ms: int, why: str) -> None:
        wait_ms = deadline_ms - self._clock.monotonic_ms()
        if wait_ms <= 0 or self._is_closing:
            raise RequestTimedOutError(f"the voters could not be changed in time: {why}")
        await self._notifier.wait(wait_ms)

    async def _append_voters(self, change: Callable[[], tuple[VoterNode, ...]]) -> tuple[int, int]:
        self._check_is_leader()
        voters = change()
        if voters != self.voters:
            await self._append([self._voters_batch(AppendVoters(voters))])
        return self.epoch, self._log.end_offset

    def describe(self) -> QuorumDescription:
        """Of a node that does not lead: what it knows, which is nothing of the others' progress."""
        state, now_ms = self._state, self._clock.monotonic_ms()
        wall_minus_monotonic_ms = self._clock.wall_ms() - now_ms
        leader_state = state.leader_state
        voters: list[ReplicaState] = []
        for voter in state.voters:
            found = None if leader_state is None else leader_state.of(voter)
            if voter.node_id == state.node_id:
                found = ReplicaState(state.key, state.log.end_offset, now_ms, now_ms)
            voters.append(found or ReplicaState(voter.key))
        observers = [] if leader_state is None else leader_state.observers(state.voters, now_ms)
        return QuorumDescription(
            leader_id=self.leader_id,
            epoch=self.epoch,
            high_watermark=self.high_watermark,
            voters=[to_replica_progress(replica, wall_minus_monotonic_ms) for replica in voters],
            observers=[to_replica_progress(replica, wall_minus_monotonic_ms) for replica in observers],
            endpoints=state.voters,
        )
