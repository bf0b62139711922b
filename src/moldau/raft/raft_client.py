"""The Raft client, the node's interface to the metadata quorum (Kafka's KafkaRaftClient).

After a disk failure `on_fatal` is called once, and every later call raises an error, because the contents of the disk
are unknown. A full disk is not a failure: the client waits for space.
"""

import random
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TypeVar
from uuid import UUID

from moldau.errors import InvalidRequestError, RequestTimedOutError, StorageError
from moldau.logs.store import Log, LogName, LogStore
from moldau.metrics.component_metrics import QuorumMetrics
from moldau.platform.clock import Clock
from moldau.raft import messages as raft
from moldau.raft.batches import CommittedBatch, read_committed_batch, values_batch
from moldau.raft.effect_executor import EffectExecutor
from moldau.raft.effects import ServeFetch
from moldau.raft.events import AppendFailed, RequestReceived, SnapshotCreated
from moldau.raft.leader_state import LeaderState, ReplicaState
from moldau.raft.log_reader import REPLACE_VOTER_HINT, CommitDelivery, SnapshotListener, load_log_state, read_batches
from moldau.raft.quorum_config import QuorumConfig
from moldau.raft.quorum_state import QuorumState
from moldau.raft.quorum_state_store import QuorumStateStore, check_not_older
from moldau.raft.request_sender import NetworkChannel
from moldau.raft.snapshot_format import SnapshotContents
from moldau.raft.snapshot_store import SnapshotStore, load_latest_snapshot
from moldau.raft.state_machine import RaftStateMachine
from moldau.settings.topic import TopicSettings

METADATA_LOG = LogName("__cluster_metadata", 0)
METADATA_TOPIC_ID = UUID(int=1)
"""The reserved topic id of the metadata log. No other topic has this id."""

SEGMENT_BYTES = 8 * 1024 * 1024
"""The segment size of the metadata log. It is small, because only whole segments are deleted after a snapshot."""

VOTER_CHANGE_TIMEOUT_MS = 30_000
NEVER_CONFIRMED = -(2**63)

T = TypeVar("T", bound=raft.RaftResponse)
VoterChange = Callable[[LeaderState], tuple[raft.VoterNode, ...]]


async def open_metadata_log(store: LogStore) -> Log:
    """Opens the metadata log, without write caching. It has no retention, because snapshots replace old records."""
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


class RaftClient:
    def __init__(
        self,
        node_id: int,
        directory_id: UUID | None,
        log: Log,
        state_store: QuorumStateStore,
        clock: Clock,
        random: random.Random,
        *,
        initial_voters: Sequence[raft.VoterNode],
        channel: NetworkChannel,
        snapshots: SnapshotStore,
        config: QuorumConfig | None = None,
        bootstrap_ids: Sequence[int] = (),
        on_commit: Callable[[Sequence[CommittedBatch]], None],
        on_load_snapshot: SnapshotListener = lambda values, snapshot, leader_id: None,
        on_leader_change: Callable[[int, int], None] = lambda leader_id, epoch: None,
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        """`on_commit` receives every committed batch once, in order.

        Nothing is delivered until this node has all records that were committed before it started. `on_load_snapshot`
        receives a snapshot (records, id, leader of its epoch) before `on_commit` receives the batches after it.
        """
        config = config or QuorumConfig()
        endpoints = next((voter.endpoints for voter in initial_voters if voter.node_id == node_id), ())
        quorum = QuorumState(raft.ReplicaKey(node_id, directory_id), state_store.load(), config, endpoints)
        self._state = RaftStateMachine(quorum, tuple(bootstrap_ids))
        self._log = log
        self._clock = clock
        self._snapshots = snapshots
        self._initial_voters = tuple(initial_voters)
        self._executor = EffectExecutor(
            self._state,
            log,
            state_store,
            clock,
            random,
            channel=channel,
            snapshots=snapshots,
            delivery=CommitDelivery(log, on_commit, on_load_snapshot),
            on_leader_change=on_leader_change,
            on_fatal=on_fatal,
        )

    def set_stalled_callback(self, on_stalled: Callable[[], None]) -> None:
        """Sets a callback for when this node could not store records of the leader."""
        self._executor.on_stalled = on_stalled

    @property
    def is_leader(self) -> bool:
        return self._executor.failure is None and self._state.is_leader

    @property
    def role(self) -> str:
        """The role of this node as in Kafka's metrics: `leader`, `candidate`, …; `observer` if it is no voter."""
        is_voter = any(each.node_id == self._state.quorum.node_id for each in self.voters)
        return type(self._state.quorum.epoch_state).__name__.removesuffix("State").lower() if is_voter else "observer"

    @property
    def leader_id(self) -> int:
        """The leader of the quorum; NO_LEADER (-1) if unknown."""
        return raft.NO_LEADER if self._executor.failure is not None else self._state.leader_id

    @property
    def epoch(self) -> int:
        return self._state.epoch

    @property
    def high_watermark(self) -> int:
        return self._state.log.high_watermark

    @property
    def metrics(self) -> QuorumMetrics:
        return self._executor.metrics

    @property
    def elections_started(self) -> int:
        """How often this node has become a candidate."""
        return self._state.quorum.elections_started

    @property
    def voted_id(self) -> int:
        """The node that this node has voted for in this epoch; NO_VOTE (-1) if none."""
        return self._state.quorum.election.voted_for

    @property
    def observer_count(self) -> int:
        """The number of observers that fetch from this node; 0 if it is not the leader."""
        leader = self._state.quorum.leader_state
        return 0 if leader is None else len(leader.observers(self._clock.monotonic_ms()))

    @property
    def voters(self) -> tuple[raft.VoterNode, ...]:
        return self._state.quorum.voters

    @property
    def has_live_leader(self) -> bool:
        """Whether this node is the leader, or had contact with the leader within the fetch timeout."""
        return self._state.quorum.has_live_leader(self._clock.monotonic_ms())

    @property
    def majority_confirmed_ms(self) -> int:
        """The latest monotonic time at which a majority of the voters certainly accepted this node as the leader.

        NEVER_CONFIRMED if this node is not the leader.
        """
        leader = self._state.quorum.leader_state if self.is_leader else None
        return NEVER_CONFIRMED if leader is None else leader.majority_confirmed_ms(self._clock.monotonic_ms())

    @property
    def leader_silence_ms(self) -> int:
        """For at least this time before the election, the voters of this leader had no leader; 0 if not the leader."""
        leader = self._state.quorum.leader_state
        return 0 if leader is None else leader.leader_silence_ms

    def leader_endpoint(self) -> tuple[str, int] | None:
        endpoints = self._executor.endpoints.get(self.leader_id)
        return (endpoints[0].host, endpoints[0].port) if endpoints else None

    async def start(self) -> None:
        """Loads the log and joins the quorum."""
        await self._executor.run(self._start)

    async def _start(self) -> None:
        contents = await load_latest_snapshot(self._log, self._snapshots)
        await self._log.flush()
        log_state = await load_log_state(self._log, self._snapshots, contents, self._initial_voters)
        check_not_older(self._state.quorum.election, log_state.log_end)
        await self._executor.start(log_state, contents, self._initial_voters)

    async def resign(self) -> None:
        """Gives up leadership and starts no more elections, to prepare a clean stop."""
        await self._executor.resign()

    async def close(self) -> None:
        """Stops the client. The caller closes the log afterwards."""
        await self._executor.close()

    # Appends by the leader

    async def append(self, values: Sequence[bytes]) -> int:
        """Appends the values as one batch, which is not committed yet, and returns the offset of the last value.

        Raises NotControllerError if this node is not the leader, and StorageError if the disk is full.
        """
        self._executor.check_disk_space()
        return await self._executor.run(lambda: self._append_values(values))

    async def _append_values(self, values: Sequence[bytes]) -> int:
        self._require_leader()
        appended_us = self._clock.monotonic_us()
        batch = values_batch(
            values, base_offset=self._log.end_offset, epoch=self.epoch, timestamp=self._clock.wall_ms()
        )
        try:
            await self._executor.append([batch])
        except StorageError:
            if self._executor.failure is None:
                await self._executor.step(AppendFailed())
            raise
        if self.is_leader:
            self._executor.on_appended(batch.last_offset + 1, appended_us)
        return batch.last_offset

    def _require_leader(self) -> LeaderState:
        self._executor.check_failure()
        return self._state.quorum.require_leader()

    # Requests from other nodes

    async def vote(self, request: raft.VoteRequest) -> raft.VoteResponse:
        return await self._respond(request, raft.VoteResponse)

    async def begin_quorum_epoch(self, request: raft.BeginQuorumEpochRequest) -> raft.QuorumEpochResponse:
        if request.epoch >= self.epoch and not self._state.quorum.is_epoch_out_of_range(request.epoch):
            self._executor.update_endpoints(request.leader_id, request.endpoints)
        return await self._respond(request, raft.QuorumEpochResponse)

    async def end_quorum_epoch(self, request: raft.EndQuorumEpochRequest) -> raft.QuorumEpochResponse:
        return await self._respond(request, raft.QuorumEpochResponse)

    async def fetch(self, request: raft.QuorumFetchRequest) -> raft.QuorumFetchResponse:
        """Returns the response to a fetch. Waits up to `max_wait_ms` for new records or a new high watermark."""
        response = await self._handle(request)
        if isinstance(response, raft.QuorumFetchResponse):
            return response
        deadline_ms = self._clock.monotonic_ms() + request.max_wait_ms
        offset, log_state = request.log_end.offset, self._state.log
        while True:
            leader = self._leader_of(request.epoch)
            if leader is None:
                return raft.QuorumFetchResponse(self.epoch, self.leader_id, is_leader=False)
            high_watermark = leader.announced_high_watermark
            wait_ms = deadline_ms - self._clock.monotonic_ms()
            if log_state.end_offset > offset or high_watermark > request.high_watermark or wait_ms <= 0:
                break
            await self._executor.progress.wait(wait_ms)
        records = b""
        if log_state.start_offset <= offset < log_state.end_offset:
            records = (await self._log.read(offset, request.bytes_max, log_state.end_offset)).read()
            if self._leader_of(request.epoch) is None:
                # Discard the records, because a new leader may have changed this node's log during the read.
                return raft.QuorumFetchResponse(self.epoch, self.leader_id, is_leader=False)
        return raft.QuorumFetchResponse(
            self.epoch,
            self._state.key.node_id,
            is_leader=True,
            records=records,
            high_watermark=high_watermark,
            log_start_offset=log_state.start_offset,
            sent_ms=self._clock.monotonic_ms(),
        )

    async def fetch_snapshot(self, request: raft.FetchSnapshotRequest) -> raft.FetchSnapshotResponse:
        """Returns a part of a snapshot. Raises SnapshotNotFoundError or PositionOutOfRangeError."""
        response = await self._handle(request)
        if isinstance(response, raft.FetchSnapshotResponse):
            return response
        if self._leader_of(request.epoch) is None:
            # This node has lost the leadership since `_handle` checked it.
            return raft.FetchSnapshotResponse(self.epoch, self.leader_id, is_leader=False)
        chunk = self._snapshots.read_chunk(request.snapshot, request.position, request.bytes_max)
        return raft.FetchSnapshotResponse(
            self.epoch,
            self._state.key.node_id,
            True,
            chunk.size,
            request.position,
            chunk.data,
            sent_ms=self._clock.monotonic_ms(),
        )

    def _leader_of(self, epoch: int) -> LeaderState | None:
        """Returns the leader state if this node is the leader of the epoch and is not closing."""
        is_leader = self.is_leader and self.epoch == epoch and not self._executor.is_closing
        return self._state.quorum.leader_state if is_leader else None

    async def _respond(self, request: raft.RaftRequest, kind: type[T]) -> T:
        response = await self._handle(request)
        assert isinstance(response, kind)
        return response

    async def _handle(self, request: raft.RaftRequest) -> raft.RaftResponse | ServeFetch | None:
        self._executor.check_failure()
        self._executor.check_disk_space()
        return await self._executor.submit(RequestReceived(request))

    # Reading of the committed log

    @property
    def log_start_offset(self) -> int:
        return self._state.log.start_offset

    @property
    def log_end_offset(self) -> int:
        return self._state.log.log_end.offset

    @property
    def last_leader_epoch(self) -> int:
        """The epoch of the latest leader that this node knows; 0 if it never knew one."""
        return self.epoch if self.leader_id != raft.NO_LEADER else max(0, self._state.log.log_end.epoch)

    async def read_base_snapshot(self) -> SnapshotContents | None:
        """Returns the snapshot that ends where the log starts; None if the log starts at offset 0. Lets other tasks
        run in between. Raises SnapshotNotFoundError if a newer snapshot has replaced it."""
        oldest = self._snapshots.oldest()
        return None if oldest is None or not self.log_start_offset else await self._snapshots.read_in_steps(oldest)

    async def committed_batches(self) -> AsyncIterator[CommittedBatch]:
        """Yields the committed batches from the start of the log on."""
        async for batch in read_batches(self._log, self.log_start_offset, self.high_watermark):
            yield read_committed_batch(batch)

    def find_divergence(self, log_end: raft.EpochEndOffset) -> raft.EpochEndOffset | None:
        """Returns where a log with this end diverges from the log of this node: the end of the largest epoch that is
        not above its epoch. Returns None if the log does not diverge, or ends before the start of the log."""
        log = self._state.log
        if log_end.offset < log.start_offset:
            return None
        epoch_end = log.end_offset_for_epoch(log_end.epoch)
        if epoch_end is None or (epoch_end.epoch == log_end.epoch and epoch_end.offset >= log_end.offset):
            return None
        return epoch_end

    # Snapshots

    async def write_snapshot(
        self, values: Sequence[bytes], snapshot: raft.SnapshotId, leader_id: int = raft.NO_LEADER
    ) -> None:
        """Stores a snapshot of committed records, and deletes the log up to the end of the oldest retained snapshot.

        The rest of the log is kept for replicas that are slightly behind, and in case the latest snapshot is damaged.
        """
        if snapshot.end_offset > self.high_watermark:
            raise InvalidRequestError(f"a snapshot cannot end at uncommitted offset {snapshot.end_offset}")
        latest = self._snapshots.latest()
        if latest is not None and latest >= snapshot:
            return
        self._executor.check_failure()
        voters = self._state.log.voters.voters_below(snapshot.end_offset)
        await self._snapshots.store(SnapshotContents(snapshot, voters, values, self._clock.wall_ms(), leader_id))
        await self._executor.run(lambda: self._delete_log_prefix(snapshot))

    async def _delete_log_prefix(self, snapshot: raft.SnapshotId) -> None:
        self._executor.check_failure()
        oldest = self._snapshots.oldest()
        if oldest is not None and self._log.start_offset < oldest.end_offset <= self._log.end_offset:
            await self._log.advance_start_offset(oldest.end_offset)
        await self._executor.step(SnapshotCreated(snapshot, self._log.start_offset))

    # Changes of the voters

    async def add_voter(self, voter: raft.VoterNode, timeout_ms: int = VOTER_CHANGE_TIMEOUT_MS) -> None:
        """Adds a voter, after it has caught up and other changes have ended. Waits until the change is committed."""
        await self._change_voters(lambda leader: leader.with_voter(self._clock.monotonic_ms(), voter), timeout_ms)

    async def remove_voter(self, key: raft.ReplicaKey, timeout_ms: int = VOTER_CHANGE_TIMEOUT_MS) -> None:
        """Removes a voter and waits until the change is committed. A leader that removes itself then resigns."""
        await self._change_voters(lambda leader: leader.without_voter(key), timeout_ms)

    async def update_voter(self, voter: raft.VoterNode, timeout_ms: int = VOTER_CHANGE_TIMEOUT_MS) -> None:
        """Changes the endpoints of a voter, and the voter's directory if it was unknown."""
        await self._change_voters(lambda leader: leader.with_updated_voter(voter), timeout_ms)

    async def _change_voters(self, change: VoterChange, timeout_ms: int) -> None:
        self._executor.check_disk_space()
        deadline_ms = self._clock.monotonic_ms() + timeout_ms
        while True:
            try:
                epoch, end_offset = await self._executor.run(lambda: self._append_voters(change))
                break
            except RequestTimedOutError as error:
                await self._wait_until(deadline_ms, str(error))
        while self.high_watermark < end_offset:
            if self._leader_of(epoch) is None:
                raise RequestTimedOutError(
                    "this node lost its leadership before the change was committed; check the voters"
                )
            await self._wait_until(deadline_ms, "a majority does not have the change yet; it may still be committed")

    async def _wait_until(self, deadline_ms: int, reason: str) -> None:
        wait_ms = deadline_ms - self._clock.monotonic_ms()
        if wait_ms <= 0 or self._executor.is_closing:
            raise RequestTimedOutError(f"the voters could not be changed in time: {reason}")
        await self._executor.progress.wait(wait_ms)

    async def _append_voters(self, change: VoterChange) -> tuple[int, int]:
        voters = change(self._require_leader())
        if voters != self.voters:
            await self._executor.append_voters(voters)
        return self.epoch, self._log.end_offset

    def describe(self) -> raft.QuorumDescription:
        """Returns a description of the quorum. Only the leader knows the progress of other replicas."""
        quorum, now_ms = self._state.quorum, self._clock.monotonic_ms()
        wall_minus_monotonic_ms = self._clock.wall_ms() - now_ms
        leader = quorum.leader_state
        voters: list[ReplicaState] = []
        for voter in quorum.voters:
            replica = None if leader is None else leader.replica_of(voter)
            if voter.node_id == quorum.node_id:
                replica = ReplicaState(quorum.key, quorum.log.end_offset, now_ms, last_caught_up_ms=now_ms)
            voters.append(replica or ReplicaState(voter.key))
        observers = [] if leader is None else leader.observers(now_ms)
        return raft.QuorumDescription(
            leader_id=self.leader_id,
            epoch=self.epoch,
            high_watermark=self.high_watermark,
            voters=[replica.to_progress(wall_minus_monotonic_ms) for replica in voters],
            observers=[replica.to_progress(wall_minus_monotonic_ms) for replica in observers],
            endpoints=quorum.voters,
        )
