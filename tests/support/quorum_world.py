"""Several quorum state machines against each other in virtual time, with a network and disks that fail by one seed.

No asyncio and no files: logs are lists, of which a crash takes what was not synced. What must hold after every step
is checked after every step.
"""

import heapq
import json
import random
from collections.abc import Callable
from typing import Any, NamedTuple
from uuid import UUID

from moldau.errors import MoldauError
from moldau.logs.leader_epochs import LeaderEpochCache
from moldau.raft.events import (
    AppendFetchedRecords,
    AppendLeaderChange,
    AppendVoters,
    BatchesAppended,
    Effect,
    ElectionState,
    Event,
    FatalError,
    FetchSnapshot,
    HighWatermarkAdvanced,
    LeaderChanged,
    LogFlushed,
    LogTruncated,
    NodeStarted,
    PersistElection,
    RaftRequest,
    RaftResponse,
    RequestFailed,
    RequestReceived,
    ResignRequested,
    ResponseReceived,
    SendRequest,
    SendResponse,
    ServeFetch,
    SnapshotCreated,
    SnapshotFetchFailed,
    SnapshotInstalled,
    TimerExpired,
    TruncateLog,
)
from moldau.raft.messages import (
    NO_EPOCH,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    QuorumFetchRequest,
    QuorumFetchResponse,
    ReplicaKey,
    SnapshotId,
    VoterNode,
)
from moldau.raft.network_channel import QuorumConfig
from moldau.raft.raft_log_state import BatchSummary, RaftLogState
from moldau.raft.state import QuorumState
from moldau.raft.voter_set import VoterSetHistory

SETTINGS = QuorumConfig(fetch_timeout_ms=1_500, election_timeout_ms=500, request_timeout_ms=1_000)


class Entry(NamedTuple):
    epoch: int
    payload: str
    voters: tuple[int, ...] | None = None


def directory_of(node_id: int) -> UUID:
    return UUID(int=0xD0 + node_id)


def voter(node_id: int) -> VoterNode:
    return VoterNode(node_id, directory_of(node_id))


class Disk:
    """What a node finds again when it starts."""

    def __init__(self) -> None:
        self.election = ElectionState()
        self.base = 0
        """The offset of the first entry."""
        self.base_epoch = NO_EPOCH
        self.base_voters: tuple[int, ...] | None = None
        self.entries: list[Entry] = []
        self.durable = 0
        self.snapshot: SnapshotId | None = None
        self.voters_below: list[Entry] = []
        """What the snapshot stands for."""

    @property
    def end(self) -> int:
        return self.base + len(self.entries)

    def at(self, offset: int) -> Entry:
        return self.voters_below[offset] if offset < self.base else self.entries[offset - self.base]

    def view(self, first: tuple[VoterNode, ...]) -> RaftLogState:
        voters = VoterSetHistory(first)
        if self.base:
            voters.reset_to_snapshot(self.base, tuple(map(voter, self.base_voters or ())))
        epochs = LeaderEpochCache()
        for offset, entry in enumerate(self.entries, self.base):
            epochs.assign(entry.epoch, offset)
            if entry.voters is not None:
                voters.add(offset, map(voter, entry.voters))
        return RaftLogState(voters, self.base, self.end, self.end, self.base_epoch, epochs, self.snapshot)


class Faults(NamedTuple):
    loss: float = 0.0
    doubling: float = 0.0
    lateness: float = 0.0
    """How many messages are held back for long."""


class World:
    def __init__(
        self, seed: int, voters: int, nodes: int | None = None, faults: Faults | None = None
    ) -> None:
        self.random = random.Random(seed)
        self.faults = faults or Faults()
        self.now_ms = 0
        self.first = tuple(voter(node_id) for node_id in range(1, voters + 1))
        self.disks = {node_id: Disk() for node_id in range(1, (nodes or voters) + 1)}
        self.states: dict[int, QuorumState] = {}
        """Of the nodes that are up."""
        self.lives = dict.fromkeys(self.disks, 0)
        self.cut: set[tuple[int, int]] = set()
        """Directions in which nothing gets through."""
        self.skew = dict.fromkeys(self.disks, 0)
        self.tell: Callable[[int, Event | Effect], None] = lambda node_id, what: None
        self.syncs = True
        self._queue: list[tuple[int, int, Callable[[], None]]] = []
        self._count = 0
        self._ticks: dict[int, int] = {}
        self._calls: dict[int, list[tuple[int, Callable[[], None]]]] = {node_id: [] for node_id in self.disks}
        """Under way to each node: who is told when the connection breaks, and how."""
        self._waiting: dict[int, list[tuple[QuorumFetchRequest, Callable[[RaftResponse], None], int]]] = {}

        self.leaders: dict[int, int] = {}
        self.elected_ms: dict[int, int] = {}
        """By epoch, when its leader was elected, less the time for which its voters had heard of no other."""
        self.logs_of_leaders: dict[int, list[Entry]] = {}
        self.committed: list[Entry] = []
        self.committed_in: list[int] = []
        """The epoch of the node that first said so."""
        self.known: dict[tuple[int, int], str] = {}
        self.votes: dict[tuple[int, int], int] = {}
        self.epochs: dict[int, int] = {}
        self.high_watermarks: dict[int, int] = {}
        self.former = dict.fromkeys(self.disks, 0)
        """What each node had handed on in its former lives."""
        self.counts = dict.fromkeys(
            ("elections", "truncations", "snapshots", "crashes", "commits", "voters", "unsynced"), 0
        )

    # Time

    def at(self, at_ms: int, action: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._queue, (at_ms, self._count, action))

    def after(self, ms: int, action: Callable[[], None]) -> None:
        self.at(self.now_ms + ms, action)

    def run(self, ms: int, until: Callable[[], bool] = lambda: False) -> bool:
        """For so long in virtual time; True as soon as `until` is."""
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
        self.lives[node_id] += 1
        self._ticks.pop(node_id, None)
        self._waiting[node_id] = []
        self.high_watermarks[node_id] = disk.base
        state = QuorumState(ReplicaKey(node_id, directory_of(node_id)), disk.election, SETTINGS)
        self.states[node_id] = state
        self.step(node_id, NodeStarted(disk.view(self.first), disk.base))

    def crash(self, node_id: int) -> None:
        """What was not synced is lost, perhaps not all of it."""
        self.counts["crashes"] += 1
        del self.states[node_id]
        disk = self.disks[node_id]
        if disk.durable < disk.end:
            self.counts["unsynced"] += 1
            del disk.entries[self.random.randint(disk.durable, disk.end) - disk.base :]
        disk.durable = disk.end
        self.former[node_id] = max(self.former[node_id], self.high_watermarks[node_id])
        calls, self._calls[node_id] = self._calls[node_id], []
        for sender, broken in calls:
            self._travel(node_id, sender, broken)

    def step(self, node_id: int, event: Event) -> RaftResponse | ServeFetch | MoldauError | None:
        state = self.states[node_id]
        was_leader = state.is_leader
        self.tell(node_id, event)
        answer: RaftResponse | ServeFetch | MoldauError | None = None
        now_ms = self.now_ms + self.skew[node_id]
        for effect in state.step(now_ms, event, self.random.random()):
            if not isinstance(effect, SendResponse | ServeFetch):
                self.tell(node_id, effect)
            match effect:
                case SendResponse():
                    answer = effect.reply
                case ServeFetch():
                    answer = effect
                case _:
                    self.perform(node_id, effect)
        if state.is_leader and not was_leader:
            self._elected(node_id)
        self._check(node_id)
        self._wake_waiting(node_id)
        self._arm(node_id)
        return answer

    def _arm(self, node_id: int) -> None:
        deadline_ms = self.states[node_id].deadline_ms
        if deadline_ms is None or self._ticks.get(node_id) == deadline_ms:
            return
        self._ticks[node_id] = deadline_ms
        life = self.lives[node_id]

        def tick() -> None:
            if self._is_life(node_id, life) and self._ticks.get(node_id) == deadline_ms:
                del self._ticks[node_id]
                self.step(node_id, TimerExpired())

        self.at(max(self.now_ms, deadline_ms - self.skew[node_id]), tick)

    def _is_life(self, node_id: int, life: int) -> bool:
        return node_id in self.states and self.lives[node_id] == life

    # Effects

    def perform(self, node_id: int, effect: Effect) -> None:
        disk, state = self.disks[node_id], self.states[node_id]
        match effect:
            case PersistElection():
                self._persist(node_id, effect.election)
            case SendRequest():
                self.send(node_id, effect.to, effect.request)
            case AppendLeaderChange():
                named = tuple(each.node_id for each in effect.voters) if effect.includes_voters else None
                self.append(node_id, [Entry(effect.epoch, f"leader {effect.leader_id}", named)])
            case AppendVoters():
                self.append_voters(node_id, effect.voters)
            case AppendFetchedRecords():
                entries = json.loads(effect.records)
                self.append(
                    node_id, [Entry(epoch, what, voters and tuple(voters)) for epoch, what, voters in entries]
                )
            case TruncateLog():
                self.counts["truncations"] += 1
                del disk.entries[effect.end_offset - disk.base :]
                disk.durable = min(disk.durable, effect.end_offset)
                self.step(node_id, LogTruncated(effect.end_offset))
                self._sync(node_id)
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
            known = self.known.setdefault((offset, entry.epoch), entry.payload)
            assert known == entry.payload, f"two records at {offset} in epoch {entry.epoch}"
            voters = None if entry.voters is None else tuple(map(voter, entry.voters))
            batches.append(BatchSummary(offset, offset + 1, entry.epoch, voters))
        self.step(node_id, BatchesAppended(tuple(batches)))
        self._sync(node_id)

    def append_voters(self, node_id: int, voters: tuple[VoterNode, ...]) -> None:
        self.counts["voters"] += 1
        ids = tuple(each.node_id for each in voters)
        self.append(node_id, [Entry(self.states[node_id].epoch, f"voters {ids}", ids)])

    def _sync(self, node_id: int) -> None:
        disk, life = self.disks[node_id], self.lives[node_id]
        slow = self.random.random() < self.faults.lateness
        delay_ms = self.random.randint(100, 1_000) if slow else self.random.randint(1, 5)
        end = disk.end

        def synced() -> None:
            if self._is_life(node_id, life):
                # Of what was there when the sync began, a truncation may have taken some.
                reached = min(end, disk.end)
                if reached > disk.durable:
                    disk.durable = reached
                self.step(node_id, LogFlushed(disk.durable))

        if self.syncs:
            self.after(delay_ms, synced)

    # The network

    def send(self, sender: int, to: int, request: RaftRequest) -> None:
        life = self.lives[sender]
        settled: list[bool] = []

        def outcome(event: ResponseReceived | RequestFailed) -> None:
            if not settled and self._is_life(sender, life):
                settled.append(True)
                self._calls[to] = [call for call in self._calls[to] if call[1] is not broken]
                self._outcome(sender, event)

        def arrive() -> None:
            if to in self.states:
                self._receive(to, request, lambda reply: self._travel(to, sender, lambda: back(reply)))
            else:
                # Nobody listens there: that is news at once.
                is_connection_refused = (to, sender) not in self.cut
                self._travel(to, sender, lambda: outcome(RequestFailed(to, request, is_connection_refused)))

        def back(reply: RaftResponse) -> None:
            outcome(ResponseReceived(to, request, reply))

        def broken() -> None:
            outcome(RequestFailed(to, request))

        self._calls[to].append((sender, broken))
        self._travel(sender, to, arrive)
        max_wait_ms = request.max_wait_ms if isinstance(request, QuorumFetchRequest) else 0
        self.after(SETTINGS.request_timeout_ms + max_wait_ms, lambda: outcome(RequestFailed(to, request)))

    def _travel(self, sender: int, to: int, arrive: Callable[[], None]) -> None:
        copies = 1 + (self.random.random() < self.faults.doubling)
        for _ in range(copies):
            if self.random.random() < self.faults.loss:
                continue
            late = self.random.random() < self.faults.lateness
            delay_ms = self.random.randint(100, 3_000) if late else self.random.randint(1, 10)

            def land() -> None:
                if (sender, to) not in self.cut:
                    arrive()

            self.after(delay_ms, land)

    def _outcome(self, node_id: int, event: ResponseReceived | RequestFailed) -> None:
        self.step(node_id, event)
        if isinstance(event.request, FetchSnapshotRequest):
            state = self.states[node_id]
            snapshot = event.request.snapshot
            if state.fetching_snapshot != snapshot:
                return
            reply = event.reply if isinstance(event, ResponseReceived) else None
            data = reply.data if isinstance(reply, FetchSnapshotResponse) and reply.is_leader else b""
            if data and snapshot.end_offset > state.high_watermark:
                self._take_snapshot(node_id, snapshot, json.loads(data))
            else:
                self.step(node_id, SnapshotFetchFailed())

    def _take_snapshot(self, node_id: int, snapshot: SnapshotId, data: Any) -> None:
        disk = self.disks[node_id]
        entries, voters = data
        disk.voters_below = [Entry(epoch, what, named and tuple(named)) for epoch, what, named in entries]
        disk.entries = []
        disk.base = disk.durable = snapshot.end_offset
        disk.base_epoch = snapshot.epoch
        disk.base_voters = voters and tuple(voters)
        disk.snapshot = snapshot
        assert disk.voters_below == self.committed[: disk.base], "a snapshot of what was not committed"
        self.high_watermarks[node_id] = max(self.high_watermarks[node_id], disk.base)
        self.counts["snapshots"] += 1
        self.step(node_id, SnapshotInstalled(snapshot, tuple(map(voter, voters or ()))))

    def _receive(self, node_id: int, request: RaftRequest, reply: Callable[[RaftResponse], None]) -> None:
        answer = self.step(node_id, RequestReceived(request))
        if isinstance(answer, ServeFetch):
            if isinstance(request, QuorumFetchRequest):
                deadline_ms = self.now_ms + request.max_wait_ms
                self._waiting[node_id].append((request, reply, deadline_ms))
                life = self.lives[node_id]
                self.after(
                    request.max_wait_ms,
                    lambda: self._wake_waiting(node_id) if self._is_life(node_id, life) else None,
                )
                self._wake_waiting(node_id)
            else:
                assert isinstance(request, FetchSnapshotRequest)
                reply(self._snapshot_of(node_id, request))
        elif not isinstance(answer, MoldauError):
            assert answer is not None
            reply(answer)

    def _wake_waiting(self, node_id: int) -> None:
        state, disk = self.states[node_id], self.disks[node_id]
        waiting, self._waiting[node_id] = self._waiting[node_id], []
        for request, reply, deadline_ms in waiting:
            offset = request.log_end.offset
            if not state.is_leader or state.epoch != request.epoch:
                reply(QuorumFetchResponse(state.epoch, state.leader_id, is_leader=False))
            elif (
                disk.end > offset
                or state.announced_high_watermark > request.high_watermark
                or self.now_ms >= deadline_ms
            ):
                records = b""
                if disk.base <= offset < disk.end:
                    some = disk.entries[offset - disk.base :][: self.random.randint(1, 4)]
                    records = json.dumps(some).encode()
                reply(
                    QuorumFetchResponse(
                        state.epoch,
                        node_id,
                        True,
                        records,
                        state.announced_high_watermark,
                        disk.base,
                        sent_ms=self.now_ms + self.skew[node_id],
                    )
                )
            else:
                self._waiting[node_id].append((request, reply, deadline_ms))

    def _snapshot_of(self, node_id: int, request: FetchSnapshotRequest) -> FetchSnapshotResponse:
        disk, state = self.disks[node_id], self.states[node_id]
        data = b""
        if disk.snapshot == request.snapshot:
            voters_below = [disk.at(offset) for offset in range(request.snapshot.end_offset)]
            voters = state.log.voters.voters_below(request.snapshot.end_offset)
            data = json.dumps([voters_below, [each.node_id for each in voters] or None]).encode()
        sent_ms = self.now_ms + self.skew[node_id]
        return FetchSnapshotResponse(state.epoch, node_id, True, len(data), 0, data, sent_ms)

    # What may be asked of nodes

    def leader(self) -> int | None:
        """The one with the newest epoch."""
        leading = [(state.epoch, node_id) for node_id, state in self.states.items() if state.is_leader]
        return max(leading)[1] if leading else None

    def append_value(self, node_id: int, payload: str) -> None:
        self.append(node_id, [Entry(self.states[node_id].epoch, payload)])

    def make_snapshot(self, node_id: int) -> None:
        disk, state = self.disks[node_id], self.states[node_id]
        end = state.high_watermark
        if end <= disk.base or disk.durable < end:
            return
        snapshot = SnapshotId(end, disk.at(end - 1).epoch)
        voters = state.log.voters.voters_below(end)
        disk.voters_below = [disk.at(offset) for offset in range(end)]
        disk.base_epoch = snapshot.epoch
        disk.base_voters = tuple(each.node_id for each in voters) or None
        del disk.entries[: end - disk.base]
        disk.base = end
        disk.snapshot = snapshot
        self.step(node_id, SnapshotCreated(snapshot, end))

    def change_voters(self, node_id: int, change: Callable[[QuorumState], tuple[VoterNode, ...]]) -> bool:
        state = self.states[node_id]
        try:
            voters = change(state)
        except MoldauError:
            return False
        self.append_voters(node_id, voters)
        return True

    def leave(self, node_id: int) -> None:
        self.step(node_id, ResignRequested())

    # What must hold

    def _elected(self, node_id: int) -> None:
        state = self.states[node_id]
        self.counts["elections"] += 1
        other = self.leaders.setdefault(state.epoch, node_id)
        assert other == node_id, f"nodes {other} and {node_id} lead in epoch {state.epoch}"
        self.elected_ms[state.epoch] = self.now_ms - state.leader_silence_ms
        disk = self.disks[node_id]
        has = [disk.at(offset) for offset in range(disk.end)]
        self.logs_of_leaders[state.epoch] = has
        for offset, entry in enumerate(self.committed):
            if self.committed_in[offset] < state.epoch:
                assert has[offset : offset + 1] == [entry], (
                    f"leader {node_id} of epoch {state.epoch} lacks what is committed at {offset}"
                )

    def _committed(self, node_id: int, voters_below: int) -> None:
        disk, epoch = self.disks[node_id], self.states[node_id].epoch
        self.counts["commits"] += 1
        for offset in range(self.high_watermarks[node_id], voters_below):
            entry = disk.at(offset)
            if offset < len(self.committed):
                assert self.committed[offset] == entry, f"node {node_id} hands on another record at {offset}"
                continue
            self.committed.append(entry)
            self.committed_in.append(epoch)
            for other, has in self.logs_of_leaders.items():
                if other > epoch:
                    assert has[offset : offset + 1] == [entry], (
                        f"the leader of epoch {other} lacks what epoch {epoch} committed at {offset}"
                    )

    def _check(self, node_id: int) -> None:
        state = self.states[node_id]
        assert state.epoch >= self.epochs.get(node_id, 0), f"the epoch of node {node_id} falls"
        self.epochs[node_id] = state.epoch
        assert state.high_watermark >= self.high_watermarks[node_id], f"the watermark of {node_id} falls"
        self.high_watermarks[node_id] = state.high_watermark
        if state.is_caught_up:
            assert state.high_watermark >= self.former[node_id], f"node {node_id} acts on outdated metadata"
        self._check_confirmed(node_id, state)
        disk = self.disks[node_id]
        assert state.log.end_offset == disk.end
        assert state.log.start_offset == disk.base

    def _check_confirmed(self, node_id: int, state: QuorumState) -> None:
        """Leases count from when a majority had a leader, and what another one does rests on their end."""
        majority_confirmed_ms = state.majority_confirmed_ms(self.now_ms + self.skew[node_id])
        for epoch, silent_since_ms in self.elected_ms.items():
            if majority_confirmed_ms is not None and epoch > state.epoch:
                assert majority_confirmed_ms - self.skew[node_id] <= silent_since_ms, (
                    f"node {node_id} takes itself for confirmed, though another one was elected"
                )

    def logs_match(self) -> None:
        """Where two logs agree on the epoch of a record, they agree on all before it."""
        logs = [[disk.at(offset) for offset in range(disk.end)] for disk in self.disks.values()]
        for number, one in enumerate(logs):
            for other in logs[number + 1 :]:
                shared = min(len(one), len(other))
                same = [at for at in range(shared) if one[at].epoch == other[at].epoch]
                if same:
                    assert one[: same[-1] + 1] == other[: same[-1] + 1], "logs agree and differ before"
