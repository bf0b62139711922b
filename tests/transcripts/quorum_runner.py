"""Runs the commands of a transcript on several nodes of a metadata quorum in virtual time, and prints their messages,
persisted state and logs. Fetches without a result are omitted."""

import json
from collections.abc import Callable

from moldau.errors import MoldauError
from moldau.raft.events import (
    AppendFetchedRecords,
    Effect,
    Event,
    FetchSnapshot,
    HighWatermarkAdvanced,
    LeaderChanged,
    PersistElection,
    RequestReceived,
    ResponseReceived,
    SendRequest,
    SnapshotInstalled,
    TruncateLog,
    VotersChanged,
)
from moldau.raft.messages import (
    NO_LEADER,
    NO_VOTE,
    BeginQuorumEpochRequest,
    EndQuorumEpochRequest,
    EpochEndOffset,
    QuorumFetchRequest,
    QuorumFetchResponse,
    VoteRequest,
    VoteResponse,
    VoterNode,
)
from moldau.raft.state import RaftStateMachine
from support.quorum_simulation import Faults, QuorumSimulation, voter


class QuorumTranscriptRunner:
    def __init__(self) -> None:
        self._lines: list[str] = []
        self._simulation = QuorumSimulation(1, 3)

    async def execute(self, command: str) -> list[str]:
        self._lines = []
        verb, *words = command.split()
        getattr(self, f"_{verb.replace('-', '_')}")(*words)
        return self._lines

    def _emit(self, node_id: int, what: str) -> None:
        self._lines.append(f"{self._simulation.now_ms:>6} ms  node {node_id}  {what}")

    # Commands

    def _voters(self, count: str, *options: str) -> None:
        """`voters 3 nodes=4 seed=2`"""
        given = dict(option.split("=") for option in options)
        self._simulation = QuorumSimulation(
            int(given.get("seed", "1")), int(count), int(given.get("nodes", count)), Faults()
        )
        self._simulation.on_event = self._format_event

    def _quorum(self, count: str, *options: str) -> None:
        """Creates voters that have already elected a leader."""
        self._voters(count, *options)
        self._start(*map(str, range(1, int(count) + 1)))
        self._until_quiet()
        self._lines = []
        leader = self._simulation.leader()
        assert leader is not None
        self._emit(leader, f"leads in epoch {self._simulation.states[leader].epoch}")

    def _start(self, *node_ids: str) -> None:
        for node_id in map(int, node_ids):
            self._simulation.start(node_id)

    def _run(self, ms: str) -> None:
        self._simulation.run(int(ms))

    def _until_quiet(self) -> None:
        """Runs until all connected nodes follow one leader and have its log."""
        found = self._simulation.run(30_000, until=self._is_quiet)
        self._lines.append("all quiet" if found else "they do not agree")

    def _is_quiet(self) -> bool:
        simulation = self._simulation
        leader_id = simulation.leader()
        if leader_id is None:
            return False
        leader = simulation.states[leader_id]
        reached = [
            state
            for node_id, state in simulation.states.items()
            if (leader_id, node_id) not in simulation.disconnected
        ]
        return all(
            state.leader_id == leader_id and state.high_watermark == leader.log.end_offset
            for state in reached
        )

    def _append(self, node_id: str, *values: str) -> None:
        assert self._simulation.states[int(node_id)].is_leader, "only a leader appends"
        for value in values:
            self._simulation.append_value(int(node_id), value)

    def _kill(self, *node_ids: str) -> None:
        for node_id in map(int, node_ids):
            self._simulation.crash(node_id)

    def _cut_off(self, *node_ids: str) -> None:
        """Partitions these nodes from all others; they stay connected to each other."""
        away, nodes = set(map(int, node_ids)), self._simulation.disks
        self._simulation.disconnected |= {
            (one, other) for one in nodes for other in nodes if (one in away) != (other in away)
        }

    def _heal(self) -> None:
        self._simulation.disconnected = set()

    def _leave(self, node_id: str) -> None:
        self._simulation.resign(int(node_id))

    def _snapshot(self, node_id: str) -> None:
        self._simulation.create_snapshot(int(node_id))
        disk = self._simulation.disks[int(node_id)]
        self._emit(int(node_id), f"has a snapshot, and its log begins at {disk.start_offset}")

    def _add(self, node_id: str, at: str) -> None:
        new, now_ms = voter(int(node_id)), self._simulation.now_ms
        self._change(int(at), lambda state: state.quorum.require_leader().with_voter(now_ms, new))

    def _remove(self, node_id: str, at: str) -> None:
        old = voter(int(node_id)).key
        self._change(int(at), lambda state: state.quorum.require_leader().without_voter(old))

    def _change(self, leader: int, change: Callable[[RaftStateMachine], tuple[VoterNode, ...]]) -> None:
        try:
            voters = change(self._simulation.states[leader])
        except MoldauError as error:
            self._emit(leader, f"refuses: {error}")
        else:
            self._simulation.append_voters(leader, voters)

    def _logs(self) -> None:
        for node_id, disk in self._simulation.disks.items():
            records = enumerate(disk.entries, disk.start_offset)
            entries = [f"{offset}:{entry.payload} (epoch {entry.epoch})" for offset, entry in records]
            state = self._simulation.states.get(node_id)
            committed = f", committed below {state.high_watermark}" if state else ", down"
            self._lines.append(f"node {node_id}: {', '.join(entries) or 'nothing'}{committed}")

    # Output

    def _format_event(self, node_id: int, what: Event | Effect) -> None:
        match what:
            case PersistElection():
                election = what.election
                leader = "no leader" if election.leader_id == NO_LEADER else f"leader {election.leader_id}"
                vote = "no vote" if election.voted_for == NO_VOTE else f"a vote for {election.voted_for}"
                self._emit(node_id, f"remembers epoch {election.epoch}, {vote}, {leader}")
            case SendRequest():
                self._sent(node_id, what)
            case ResponseReceived():
                self._answered(node_id, what)
            case AppendFetchedRecords():
                entries = [payload for _, payload, _ in json.loads(what.records)]
                self._emit(node_id, f"appends {', '.join(entries)}")
            case TruncateLog():
                self._emit(node_id, f"cuts its log back to {what.end_offset}")
            case HighWatermarkAdvanced():
                self._emit(node_id, f"knows that all below {what.offset} is agreed on")
            case LeaderChanged():
                whom = "nobody" if what.leader_id == NO_LEADER else f"node {what.leader_id}"
                whom = "itself" if what.leader_id == node_id else whom
                self._emit(node_id, f"takes {whom} for the leader of epoch {what.epoch}")
            case VotersChanged():
                self._emit(
                    node_id, f"counts {', '.join(str(each.node_id) for each in what.voters)} as voters"
                )
            case FetchSnapshot():
                self._emit(node_id, f"fetches the snapshot of all below {what.snapshot.end_offset}")
            case SnapshotInstalled():
                self._emit(node_id, f"has the snapshot; its log begins anew at {what.snapshot.end_offset}")
            case RequestReceived(request=EndQuorumEpochRequest() as request):
                self._emit(node_id, f"hears that node {request.leader_id} has resigned")

    def _sent(self, node_id: int, what: SendRequest) -> None:
        match what.request:
            case VoteRequest() as request:
                log = f"its log ends at {request.log_end.offset}"
                log += f" in epoch {request.log_end.epoch}" if request.log_end.epoch >= 0 else ""
                if request.is_pre_vote:
                    self._emit(node_id, f"asks node {what.node_id} whether it would vote for it; {log}")
                else:
                    self._emit(
                        node_id, f"asks node {what.node_id} for its vote in epoch {request.epoch}; {log}"
                    )
            case BeginQuorumEpochRequest() as request:
                self._emit(node_id, f"tells node {what.node_id} that it leads in epoch {request.epoch}")
            case EndQuorumEpochRequest() as request:
                self._emit(node_id, f"tells node {what.node_id} that it resigns in epoch {request.epoch}")

    def _answered(self, node_id: int, what: ResponseReceived) -> None:
        match what.request, what.response:
            case VoteRequest() as request, VoteResponse() as reply:
                kind = "would vote for it" if request.is_pre_vote else "votes for it"
                if reply.is_granted:
                    self._emit(node_id, f"hears that node {what.node_id} {kind}")
                else:
                    led = "" if reply.leader_id == NO_LEADER else f": node {reply.leader_id} leads"
                    refusal = "would not" if request.is_pre_vote else "does not"
                    self._emit(node_id, f"hears that node {what.node_id} {refusal}{led}")
            case QuorumFetchRequest() as request, QuorumFetchResponse(diverging_epoch=None) as reply if (
                reply.snapshot is not None
            ):
                self._emit(node_id, f"is behind the leader's log, which begins at {reply.log_start_offset}")
            case QuorumFetchRequest() as request, QuorumFetchResponse(
                diverging_epoch=EpochEndOffset() as end
            ):
                self._emit(
                    node_id,
                    f"had {request.log_end.offset} records up to epoch {request.log_end.epoch}; "
                    f"the leader's epoch {end.epoch} ends at {end.offset}",
                )
