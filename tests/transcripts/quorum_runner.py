"""Runs the commands of a transcript on the nodes of a simulated metadata quorum.

It prints requests, responses, persisted election states and log changes, except fetches without effect.
"""

import json
from collections.abc import Callable

from moldau.errors import MoldauError
from moldau.raft.effects import (
    AppendFetchedRecords,
    Effect,
    FetchSnapshot,
    HighWatermarkAdvanced,
    LeaderChanged,
    PersistElection,
    SendRequest,
    TruncateLog,
    VotersChanged,
)
from moldau.raft.events import Event, RequestReceived, ResponseReceived, SnapshotInstalled
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
from moldau.raft.state_machine import RaftStateMachine
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
        """Starts voters and prints only the leader that they elect."""
        self._voters(count, *options)
        self._start(*map(str, range(1, int(count) + 1)))
        self._until_stable()
        self._lines = []
        leader = self._simulation.leader()
        assert leader is not None
        self._emit(leader, f"is leader of epoch {self._simulation.states[leader].epoch}")

    def _start(self, *node_ids: str) -> None:
        for node_id in map(int, node_ids):
            self._simulation.start(node_id)

    def _run(self, ms: str) -> None:
        self._simulation.run(int(ms))

    def _until_stable(self) -> None:
        """Runs until all connected nodes follow one leader and have its committed log."""
        is_stable = self._simulation.run(30_000, until=self._is_stable)
        self._lines.append("stable" if is_stable else "not stable")

    def _is_stable(self) -> bool:
        simulation = self._simulation
        leader_id = simulation.leader()
        if leader_id is None:
            return False
        leader = simulation.states[leader_id]
        connected = [
            state for node_id, state in simulation.states.items() if (leader_id, node_id) not in simulation.disconnected
        ]
        return all(
            state.leader_id == leader_id and state.log.high_watermark == leader.log.end_offset for state in connected
        )

    def _append(self, node_id: str, *values: str) -> None:
        assert self._simulation.states[int(node_id)].is_leader, "only a leader appends"
        for value in values:
            self._simulation.append_value(int(node_id), value)

    def _kill(self, *node_ids: str) -> None:
        for node_id in map(int, node_ids):
            self._simulation.crash(node_id)

    def _disconnect(self, *node_ids: str) -> None:
        """Disconnects these nodes from all others, but not from each other."""
        isolated, nodes = set(map(int, node_ids)), self._simulation.disks
        self._simulation.disconnected |= {
            (one, other) for one in nodes for other in nodes if (one in isolated) != (other in isolated)
        }

    def _reconnect(self) -> None:
        self._simulation.disconnected = set()

    def _resign(self, node_id: str) -> None:
        self._simulation.resign(int(node_id))

    def _snapshot(self, node_id: str) -> None:
        self._simulation.create_snapshot(int(node_id))
        disk = self._simulation.disks[int(node_id)]
        self._emit(int(node_id), f"creates a snapshot, log starts at {disk.start_offset}")

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
            self._emit(leader, f"rejects the change: {error}")
        else:
            self._simulation.append_voters(leader, voters)

    def _logs(self) -> None:
        for node_id, disk in self._simulation.disks.items():
            records = enumerate(disk.entries, disk.start_offset)
            entries = [f"{offset}:{entry.payload} (epoch {entry.epoch})" for offset, entry in records]
            state = self._simulation.states.get(node_id)
            committed = f"; high watermark {state.log.high_watermark}" if state else "; down"
            self._lines.append(f"node {node_id}: {', '.join(entries) or 'empty'}{committed}")

    # Output

    def _format_event(self, node_id: int, what: Event | Effect) -> None:
        match what:
            case PersistElection():
                election = what.election
                leader = "no leader" if election.leader_id == NO_LEADER else f"leader {election.leader_id}"
                vote = "no vote" if election.voted_for == NO_VOTE else f"vote for {election.voted_for}"
                self._emit(node_id, f"persists epoch {election.epoch}, {vote}, {leader}")
            case SendRequest():
                self._format_request(node_id, what)
            case ResponseReceived():
                self._format_response(node_id, what)
            case AppendFetchedRecords():
                entries = [payload for _, payload, _ in json.loads(what.records)]
                self._emit(node_id, f"appends {', '.join(entries)}")
            case TruncateLog():
                self._emit(node_id, f"truncates its log to {what.end_offset}")
            case HighWatermarkAdvanced():
                self._emit(node_id, f"advances its high watermark to {what.offset}")
            case LeaderChanged():
                if what.leader_id == node_id:
                    change = "becomes leader"
                elif what.leader_id == NO_LEADER:
                    change = "has no leader"
                else:
                    change = f"follows leader {what.leader_id}"
                self._emit(node_id, f"{change} in epoch {what.epoch}")
            case VotersChanged():
                self._emit(node_id, f"has voters {', '.join(str(each.node_id) for each in what.voters)}")
            case FetchSnapshot():
                self._emit(node_id, f"fetches the snapshot with end offset {what.snapshot.end_offset}")
            case SnapshotInstalled():
                self._emit(node_id, f"installs the snapshot, log is reset to {what.snapshot.end_offset}")
            case RequestReceived(request=EndQuorumEpochRequest() as request):
                self._emit(node_id, f"receives EndQuorumEpoch from node {request.leader_id}")

    def _format_request(self, node_id: int, what: SendRequest) -> None:
        match what.request:
            case VoteRequest() as request:
                log = f"log end {request.log_end.offset}"
                log += f" in epoch {request.log_end.epoch}" if request.log_end.epoch >= 0 else ""
                if request.is_pre_vote:
                    self._emit(node_id, f"requests a pre-vote from node {what.node_id}; {log}")
                else:
                    self._emit(node_id, f"requests the vote of node {what.node_id} in epoch {request.epoch}; {log}")
            case BeginQuorumEpochRequest() as request:
                self._emit(node_id, f"sends BeginQuorumEpoch {request.epoch} to node {what.node_id}")
            case EndQuorumEpochRequest() as request:
                self._emit(node_id, f"sends EndQuorumEpoch {request.epoch} to node {what.node_id}")

    def _format_response(self, node_id: int, what: ResponseReceived) -> None:
        match what.request, what.response:
            case VoteRequest() as request, VoteResponse() as response:
                kind = "pre-vote" if request.is_pre_vote else "vote"
                if response.is_granted:
                    self._emit(node_id, f"gets the {kind} of node {what.node_id}")
                else:
                    leader = "" if response.leader_id == NO_LEADER else f": node {response.leader_id} is leader"
                    self._emit(node_id, f"does not get the {kind} of node {what.node_id}{leader}")
            case QuorumFetchRequest() as request, QuorumFetchResponse(diverging_epoch=None) as response if (
                response.snapshot is not None
            ):
                self._emit(node_id, f"is behind the leader's log, which starts at {response.log_start_offset}")
            case QuorumFetchRequest() as request, QuorumFetchResponse(diverging_epoch=EpochEndOffset() as end):
                self._emit(
                    node_id,
                    f"diverges: log end {request.log_end.offset} in epoch {request.log_end.epoch}, "
                    f"the leader's epoch {end.epoch} ends at {end.offset}",
                )
