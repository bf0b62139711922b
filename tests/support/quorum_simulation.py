"""Raft state machines against each other in virtual time, with a network and disks that fail according to a seed.

There is no asyncio and there are no files: logs are lists, which lose unflushed entries in a crash. The safety
properties of Raft are checked after every step.
"""

import heapq
import json
import random
from collections.abc import Callable
from typing import Any, NamedTuple
from uuid import UUID

from moldau.errors import MoldauError
from moldau.logs.leader_epochs import LeaderEpochCache
from moldau.raft.effects import (
    AppendFetchedRecords,
    AppendLeaderChange,
    AppendVoters,
    Effect,
    FatalError,
    FetchSnapshot,
    HighWatermarkAdvanced,
    LeaderChanged,
    PersistElection,
    SendRequest,
    SendResponse,
    ServeFetch,
    TruncateLog,
)
from moldau.raft.epoch_roles import ElectionState
from moldau.raft.events import (
    BatchesAppended,
    Event,
    LogFlushed,
    LogTruncated,
    NodeStarted,
    RequestFailed,
    RequestReceived,
    ResignRequested,
    ResponseReceived,
    SnapshotCreated,
    SnapshotFetchFailed,
    SnapshotInstalled,
    TimerExpired,
)
from moldau.raft.messages import (
    NO_EPOCH,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    QuorumFetchRequest,
    QuorumFetchResponse,
    RaftRequest,
    RaftResponse,
    ReplicaKey,
    SnapshotId,
    VoterNode,
)
from moldau.raft.quorum_config import QuorumConfig
from moldau.raft.quorum_state import QuorumState
from moldau.raft.raft_log_state import BatchSummary, RaftLogState
from moldau.raft.state_machine import RaftStateMachine
from moldau.raft.voter_set import VoterSetHistory

CONFIG = QuorumConfig(fetch_timeout_ms=1_500, election_timeout_ms=500, request_timeout_ms=1_000)


class Entry(NamedTuple):
    epoch: int
    payload: str
    voters: tuple[int, ...] | None = None


def directory_of(node_id: int) -> UUID:
    return UUID(int=0xD0 + node_id)


def voter(node_id: int) -> VoterNode:
    return VoterNode(node_id, directory_of(node_id))


class Disk:
    """The part of a node that survives a crash."""

    def __init__(self) -> None:
        self.election = ElectionState()
        self.start_offset = 0
        """The offset of the first entry."""
        self.start_epoch = NO_EPOCH
        self.start_voters: tuple[int, ...] | None = None
        self.entries: list[Entry] = []
        self.durable = 0
        self.snapshot: SnapshotId | None = None
        self.snapshot_entries: list[Entry] = []
        """The entries in the snapshot."""

    @property
    def end(self) -> int:
        return self.start_offset + len(self.entries)

    def at(self, offset: int) -> Entry:
        return self.snapshot_entries[offset] if offset < self.start_offset else self.entries[offset - self.start_offset]

    def log_state(self, initial_voters: tuple[VoterNode, ...]) -> RaftLogState:
        voters = VoterSetHistory(initial_voters)
        if self.start_offset:
            voters.reset_to_snapshot(self.start_offset, tuple(map(voter, self.start_voters or ())))
        epochs = LeaderEpochCache()
        for offset, entry in enumerate(self.entries, self.start_offset):
            epochs.assign(entry.epoch, offset)
            if entry.voters is not None:
                voters.add(offset, map(voter, entry.voters))
        return RaftLogState(voters, self.start_offset, self.end, self.end, self.start_epoch, epochs, self.snapshot)


class Faults(NamedTuple):
    loss: float = 0.0
    duplication: float = 0.0
    delay: float = 0.0
    """The share of messages and flushes that are slow."""


class QuorumSimulation:
    def __init__(self, seed: int, voters: int, nodes: int | None = None, faults: Faults | None = None) -> None:
        self.random = random.Random(seed)
        self.faults = faults or Faults()
        self.now_ms = 0
        self.initial_voters = tuple(voter(node_id) for node_id in range(1, voters + 1))
        self.disks = {node_id: Disk() for node_id in range(1, (nodes or voters) + 1)}
        self.states: dict[int, RaftStateMachine] = {}
        """The state machines of running nodes."""
        self.incarnations = dict.fromkeys(self.disks, 0)
        self.disconnected: set[tuple[int, int]] = set()
        """Pairs of sender and receiver between which messages are lost."""
        self.skew = dict.fromkeys(self.disks, 0)
        self.on_event: Callable[[int, Event | Effect], None] = lambda node_id, what: None
        self.is_flushing = True
        self._queue: list[tuple[int, int, Callable[[], None]]] = []
        self._count = 0
        self._timers: dict[int, int] = {}
        self._requests: dict[int, list[tuple[int, Callable[[], None]]]] = {node_id: [] for node_id in self.disks}
        """Requests in flight to each node: the sender, and its callback if the connection breaks."""
        self._pending_fetches: dict[int, list[tuple[QuorumFetchRequest, Callable[[RaftResponse], None], int]]] = {}

        self.leaders: dict[int, int] = {}
        self.elected_ms: dict[int, int] = {}
        """By epoch: when its leader was elected, minus the time for which its voters had no leader."""
        self.leader_logs: dict[int, list[Entry]] = {}
        self.committed: list[Entry] = []
        self.commit_epochs: list[int] = []
        """By offset: the epoch of the node that committed it first."""
        self.payloads: dict[tuple[int, int], str] = {}
        self.votes: dict[tuple[int, int], int] = {}
        self.epochs: dict[int, int] = {}
        self.high_watermarks: dict[int, int] = {}
        self.committed_before_restart = dict.fromkeys(self.disks, 0)
        """By node: the high watermark before its last crash."""
        self.counts = dict.fromkeys(
            ("elections", "truncations", "snapshots", "crashes", "commits", "voters", "unflushed"), 0
        )

    # Time

    def at(self, at_ms: int, action: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._queue, (at_ms, self._count, action))

    def after(self, ms: int, action: Callable[[], None]) -> None:
        self.at(self.now_ms + ms, action)

    def run(self, ms: int, until: Callable[[], bool] = lambda: False) -> bool:
        """Runs for this much virtual time, or until the condition holds; returns whether it does."""
        end_ms = self.now_ms + ms
        while not until():
            if not self._queue or self._queue[0][0] > end_ms:
                self.now_ms = end_ms
                return False
            self.now_ms, _, action = heapq.heappop(self._queue)
            action()
        return True

    # Nodes

    def start(self, node_id: int) -> None:
        assert node_id not in self.states
        disk = self.disks[node_id]
        self.incarnations[node_id] += 1
        self._timers.pop(node_id, None)
        self._pending_fetches[node_id] = []
        self.high_watermarks[node_id] = disk.start_offset
        state = RaftStateMachine(QuorumState(ReplicaKey(node_id, directory_of(node_id)), disk.election, CONFIG))
        self.states[node_id] = state
        self.step(node_id, NodeStarted(disk.log_state(self.initial_voters), disk.start_offset))

    def crash(self, node_id: int) -> None:
        """Loses a random part of the unflushed entries."""
        self.counts["crashes"] += 1
        del self.states[node_id]
        disk = self.disks[node_id]
        if disk.durable < disk.end:
            self.counts["unflushed"] += 1
            del disk.entries[self.random.randint(disk.durable, disk.end) - disk.start_offset :]
        disk.durable = disk.end
        self.committed_before_restart[node_id] = max(
            self.committed_before_restart[node_id], self.high_watermarks[node_id]
        )
        calls, self._requests[node_id] = self._requests[node_id], []
        for sender, on_disconnect in calls:
            self._transmit(node_id, sender, on_disconnect)

    def step(self, node_id: int, event: Event) -> RaftResponse | ServeFetch | MoldauError | None:
        state = self.states[node_id]
        was_leader = state.is_leader
        self.on_event(node_id, event)
        response: RaftResponse | ServeFetch | MoldauError | None = None
        now_ms = self.now_ms + self.skew[node_id]
        for effect in state.step(now_ms, event, self.random.random()):
            if not isinstance(effect, SendResponse | ServeFetch):
                self.on_event(node_id, effect)
            match effect:
                case SendResponse():
                    response = effect.response
                case ServeFetch():
                    response = effect
                case _:
                    self.execute(node_id, effect)
        if state.is_leader and not was_leader:
            self._elected(node_id)
        self._check(node_id)
        self._serve_pending_fetches(node_id)
        self._arm_timer(node_id)
        return response

    def _arm_timer(self, node_id: int) -> None:
        deadline_ms = self.states[node_id].deadline_ms
        if deadline_ms is None or self._timers.get(node_id) == deadline_ms:
            return
        self._timers[node_id] = deadline_ms
        incarnation = self.incarnations[node_id]

        def tick() -> None:
            if self._is_running(node_id, incarnation) and self._timers.get(node_id) == deadline_ms:
                del self._timers[node_id]
                self.step(node_id, TimerExpired())

        self.at(max(self.now_ms, deadline_ms - self.skew[node_id]), tick)

    def _is_running(self, node_id: int, incarnation: int) -> bool:
        return node_id in self.states and self.incarnations[node_id] == incarnation

    # Effects

    def execute(self, node_id: int, effect: Effect) -> None:
        disk, state = self.disks[node_id], self.states[node_id]
        match effect:
            case PersistElection():
                self._persist(node_id, effect.election)
            case SendRequest():
                self.send(node_id, effect.node_id, effect.request)
            case AppendLeaderChange():
                named = tuple(each.node_id for each in effect.voters) if effect.includes_voters else None
                self.append(node_id, [Entry(effect.epoch, f"leader {effect.leader_id}", named)])
            case AppendVoters():
                self.append_voters(node_id, effect.voters)
            case AppendFetchedRecords():
                entries = json.loads(effect.records)
                self.append(node_id, [Entry(epoch, what, voters and tuple(voters)) for epoch, what, voters in entries])
            case TruncateLog():
                self.counts["truncations"] += 1
                del disk.entries[effect.end_offset - disk.start_offset :]
                disk.durable = min(disk.durable, effect.end_offset)
                self.step(node_id, LogTruncated(effect.end_offset))
                self._flush(node_id)
            case FetchSnapshot():
                request = FetchSnapshotRequest(state.key, effect.epoch, effect.snapshot, 0)
                self.send(node_id, effect.leader_id, request)
            case HighWatermarkAdvanced():
                self._committed(node_id, effect.offset)
            case LeaderChanged():
                pass
            case FatalError():
                raise AssertionError(effect.reason)

    def _persist(self, node_id: int, election: ElectionState) -> None:
        self.disks[node_id].election = election
        if election.voted_for >= 0:
            voted = self.votes.setdefault((node_id, election.epoch), election.voted_for)
            assert voted == election.voted_for, f"node {node_id} votes twice in epoch {election.epoch}"

    def append(self, node_id: int, entries: list[Entry]) -> None:
        disk = self.disks[node_id]
        batches = []
        for entry in entries:
            offset = disk.end
            disk.entries.append(entry)
            payloads = self.payloads.setdefault((offset, entry.epoch), entry.payload)
            assert payloads == entry.payload, f"two records at {offset} in epoch {entry.epoch}"
            voters = None if entry.voters is None else tuple(map(voter, entry.voters))
            batches.append(BatchSummary(offset, offset + 1, entry.epoch, voters))
        self.step(node_id, BatchesAppended(tuple(batches)))
        self._flush(node_id)

    def append_voters(self, node_id: int, voters: tuple[VoterNode, ...]) -> None:
        self.counts["voters"] += 1
        ids = tuple(each.node_id for each in voters)
        self.append(node_id, [Entry(self.states[node_id].epoch, f"voters {ids}", ids)])

    def _flush(self, node_id: int) -> None:
        disk, incarnation = self.disks[node_id], self.incarnations[node_id]
        slow = self.random.random() < self.faults.delay
        delay_ms = self.random.randint(100, 1_000) if slow else self.random.randint(1, 5)
        end = disk.end

        def synced() -> None:
            if self._is_running(node_id, incarnation):
                # A truncation may have shortened the log since the flush started.
                reached = min(end, disk.end)
                if reached > disk.durable:
                    disk.durable = reached
                self.step(node_id, LogFlushed(disk.durable))

        if self.is_flushing:
            self.after(delay_ms, synced)

    # Network

    def send(self, sender: int, to: int, request: RaftRequest) -> None:
        incarnation = self.incarnations[sender]
        completed: list[bool] = []

        def complete(event: ResponseReceived | RequestFailed) -> None:
            if not completed and self._is_running(sender, incarnation):
                completed.append(True)
                self._requests[to] = [call for call in self._requests[to] if call[1] is not on_disconnect]
                self._complete(sender, event)

        def on_arrival() -> None:
            if to in self.states:
                self._receive(to, request, lambda response: self._transmit(to, sender, lambda: on_response(response)))
            else:
                # The connection is refused at once.
                is_connection_refused = (to, sender) not in self.disconnected
                self._transmit(to, sender, lambda: complete(RequestFailed(to, request, is_connection_refused)))

        def on_response(response: RaftResponse) -> None:
            complete(ResponseReceived(to, request, response))

        def on_disconnect() -> None:
            complete(RequestFailed(to, request))

        self._requests[to].append((sender, on_disconnect))
        self._transmit(sender, to, on_arrival)
        max_wait_ms = request.max_wait_ms if isinstance(request, QuorumFetchRequest) else 0
        self.after(CONFIG.request_timeout_ms + max_wait_ms, lambda: complete(RequestFailed(to, request)))

    def _transmit(self, sender: int, to: int, on_arrival: Callable[[], None]) -> None:
        copies = 1 + (self.random.random() < self.faults.duplication)
        for _ in range(copies):
            if self.random.random() < self.faults.loss:
                continue
            late = self.random.random() < self.faults.delay
            delay_ms = self.random.randint(100, 3_000) if late else self.random.randint(1, 10)

            def deliver() -> None:
                if (sender, to) not in self.disconnected:
                    on_arrival()

            self.after(delay_ms, deliver)

    def _complete(self, node_id: int, event: ResponseReceived | RequestFailed) -> None:
        self.step(node_id, event)
        if isinstance(event.request, FetchSnapshotRequest):
            state = self.states[node_id]
            snapshot = event.request.snapshot
            if state.fetcher.fetching_snapshot != snapshot:
                return
            response = event.response if isinstance(event, ResponseReceived) else None
            data = response.data if isinstance(response, FetchSnapshotResponse) and response.is_leader else b""
            if data and snapshot.end_offset > state.log.high_watermark:
                self._install_snapshot(node_id, snapshot, json.loads(data))
            else:
                self.step(node_id, SnapshotFetchFailed())

    def _install_snapshot(self, node_id: int, snapshot: SnapshotId, data: Any) -> None:
        disk = self.disks[node_id]
        entries, voters = data
        disk.snapshot_entries = [Entry(epoch, what, named and tuple(named)) for epoch, what, named in entries]
        disk.entries = []
        disk.start_offset = disk.durable = snapshot.end_offset
        disk.start_epoch = snapshot.epoch
        disk.start_voters = voters and tuple(voters)
        disk.snapshot = snapshot
        assert disk.snapshot_entries == self.committed[: disk.start_offset], "a snapshot has uncommitted records"
        self.high_watermarks[node_id] = max(self.high_watermarks[node_id], disk.start_offset)
        self.counts["snapshots"] += 1
        self.step(node_id, SnapshotInstalled(snapshot, tuple(map(voter, voters or ()))))

    def _receive(self, node_id: int, request: RaftRequest, respond: Callable[[RaftResponse], None]) -> None:
        response = self.step(node_id, RequestReceived(request))
        if isinstance(response, ServeFetch):
            if isinstance(request, QuorumFetchRequest):
                deadline_ms = self.now_ms + request.max_wait_ms
                self._pending_fetches[node_id].append((request, respond, deadline_ms))
                incarnation = self.incarnations[node_id]
                self.after(
                    request.max_wait_ms,
                    lambda: self._serve_pending_fetches(node_id) if self._is_running(node_id, incarnation) else None,
                )
                self._serve_pending_fetches(node_id)
            else:
                assert isinstance(request, FetchSnapshotRequest)
                respond(self._serve_snapshot(node_id, request))
        elif not isinstance(response, MoldauError):
            assert response is not None
            respond(response)

    def _serve_pending_fetches(self, node_id: int) -> None:
        state, disk = self.states[node_id], self.disks[node_id]
        waiting, self._pending_fetches[node_id] = self._pending_fetches[node_id], []
        for request, respond, deadline_ms in waiting:
            offset = request.log_end.offset
            if not state.is_leader or state.epoch != request.epoch:
                respond(QuorumFetchResponse(state.epoch, state.leader_id, is_leader=False))
            elif (
                disk.end > offset
                or state.quorum.require_leader().announced_high_watermark > request.high_watermark
                or self.now_ms >= deadline_ms
            ):
                records = b""
                if disk.start_offset <= offset < disk.end:
                    some = disk.entries[offset - disk.start_offset :][: self.random.randint(1, 4)]
                    records = json.dumps(some).encode()
                respond(
                    QuorumFetchResponse(
                        state.epoch,
                        node_id,
                        True,
                        records,
                        state.quorum.require_leader().announced_high_watermark,
                        disk.start_offset,
                        sent_ms=self.now_ms + self.skew[node_id],
                    )
                )
            else:
                self._pending_fetches[node_id].append((request, respond, deadline_ms))

    def _serve_snapshot(self, node_id: int, request: FetchSnapshotRequest) -> FetchSnapshotResponse:
        disk, state = self.disks[node_id], self.states[node_id]
        data = b""
        if disk.snapshot == request.snapshot:
            entries = [disk.at(offset) for offset in range(request.snapshot.end_offset)]
            voters = state.log.voters.voters_below(request.snapshot.end_offset)
            data = json.dumps([entries, [each.node_id for each in voters] or None]).encode()
        sent_ms = self.now_ms + self.skew[node_id]
        return FetchSnapshotResponse(state.epoch, node_id, True, len(data), 0, data, sent_ms)

    # Operations

    def leader(self) -> int | None:
        """Returns the leader with the highest epoch."""
        leading = [(state.epoch, node_id) for node_id, state in self.states.items() if state.is_leader]
        return max(leading)[1] if leading else None

    def append_value(self, node_id: int, payload: str) -> None:
        self.append(node_id, [Entry(self.states[node_id].epoch, payload)])

    def create_snapshot(self, node_id: int) -> None:
        disk, state = self.disks[node_id], self.states[node_id]
        end = state.log.high_watermark
        if end <= disk.start_offset or disk.durable < end:
            return
        snapshot = SnapshotId(end, disk.at(end - 1).epoch)
        voters = state.log.voters.voters_below(end)
        disk.snapshot_entries = [disk.at(offset) for offset in range(end)]
        disk.start_epoch = snapshot.epoch
        disk.start_voters = tuple(each.node_id for each in voters) or None
        del disk.entries[: end - disk.start_offset]
        disk.start_offset = end
        disk.snapshot = snapshot
        self.step(node_id, SnapshotCreated(snapshot, end))

    def change_voters(self, node_id: int, change: Callable[[RaftStateMachine], tuple[VoterNode, ...]]) -> bool:
        state = self.states[node_id]
        try:
            voters = change(state)
        except MoldauError:
            return False
        self.append_voters(node_id, voters)
        return True

    def resign(self, node_id: int) -> None:
        self.step(node_id, ResignRequested())

    # Safety properties

    def _elected(self, node_id: int) -> None:
        state = self.states[node_id]
        self.counts["elections"] += 1
        other = self.leaders.setdefault(state.epoch, node_id)
        assert other == node_id, f"nodes {other} and {node_id} lead in epoch {state.epoch}"
        self.elected_ms[state.epoch] = self.now_ms - state.quorum.require_leader().leader_silence_ms
        disk = self.disks[node_id]
        has = [disk.at(offset) for offset in range(disk.end)]
        self.leader_logs[state.epoch] = has
        for offset, entry in enumerate(self.committed):
            if self.commit_epochs[offset] < state.epoch:
                assert has[offset : offset + 1] == [entry], (
                    f"leader {node_id} of epoch {state.epoch} lacks the committed record at {offset}"
                )

    def _committed(self, node_id: int, end_offset: int) -> None:
        disk, epoch = self.disks[node_id], self.states[node_id].epoch
        self.counts["commits"] += 1
        for offset in range(self.high_watermarks[node_id], end_offset):
            entry = disk.at(offset)
            if offset < len(self.committed):
                assert self.committed[offset] == entry, f"node {node_id} delivers another record at {offset}"
                continue
            self.committed.append(entry)
            self.commit_epochs.append(epoch)
            for other, has in self.leader_logs.items():
                if other > epoch:
                    assert has[offset : offset + 1] == [entry], (
                        f"the leader of epoch {other} lacks the record that epoch {epoch} committed at {offset}"
                    )

    def _check(self, node_id: int) -> None:
        state = self.states[node_id]
        assert state.epoch >= self.epochs.get(node_id, 0), f"the epoch of node {node_id} decreased"
        self.epochs[node_id] = state.epoch
        assert state.log.high_watermark >= self.high_watermarks[node_id], f"the watermark of {node_id} decreased"
        self.high_watermarks[node_id] = state.log.high_watermark
        if state.quorum.is_caught_up:
            assert state.log.high_watermark >= self.committed_before_restart[node_id], (
                f"node {node_id} acts on outdated metadata"
            )
        self._check_confirmed(node_id, state)
        disk = self.disks[node_id]
        assert state.log.end_offset == disk.end
        assert state.log.start_offset == disk.start_offset

    def _check_confirmed(self, node_id: int, state: RaftStateMachine) -> None:
        """Broker leases start at the confirmation, and the next leader relies on their end."""
        leader = state.quorum.leader_state
        if leader is None:
            return
        confirmed_ms = leader.majority_confirmed_ms(self.now_ms + self.skew[node_id]) - self.skew[node_id]
        for epoch, leaderless_since_ms in self.elected_ms.items():
            assert epoch <= state.epoch or confirmed_ms <= leaderless_since_ms, (
                f"node {node_id} is confirmed as leader, though another one was elected"
            )

    def check_logs_match(self) -> None:
        """Checks that logs with the same epoch at an offset are equal up to it."""
        logs = [[disk.at(offset) for offset in range(disk.end)] for disk in self.disks.values()]
        for number, one in enumerate(logs):
            for other in logs[number + 1 :]:
                shared = min(len(one), len(other))
                same = [at for at in range(shared) if one[at].epoch == other[at].epoch]
                if same:
                    assert one[: same[-1] + 1] == other[: same[-1] + 1], "logs with the same epoch differ before it"
