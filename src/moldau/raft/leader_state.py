"""The state of the leader: replica progress, high watermark, check-quorum, and changes of the voters. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from uuid import UUID

from moldau.errors import DuplicateVoterError, InvalidRequestError, RequestTimedOutError, VoterNotFoundError
from moldau.raft.effects import ReplicaOffsetRegressed
from moldau.raft.messages import (
    BeginQuorumEpochRequest,
    QuorumFetchRequest,
    QuorumFetchResponse,
    ReplicaKey,
    ReplicaProgress,
    VoterEndpoint,
    VoterNode,
)
from moldau.raft.quorum_config import QuorumConfig
from moldau.raft.raft_log_state import RaftLogState
from moldau.raft.step_context import StepContext
from moldau.raft.voter_set import find_voter, is_same_replica, majority_size

OBSERVER_EXPIRY_MS = 300_000
NEVER = -1


@dataclass(slots=True)
class ReplicaState:
    """The leader's view of one replica that fetches from it."""

    key: ReplicaKey
    end_offset: int = NEVER
    """All records below this offset are on the replica's disk. It decreases only after a restart with a shorter log."""
    last_fetch_ms: int = NEVER
    leader_sent_ms: int = NEVER
    """The time when the leader sent the latest response that the replica has acknowledged."""
    last_caught_up_ms: int = NEVER
    leader_end_offset: int = NEVER
    """The leader's end offset at `leader_end_ms`, the time of the replica's previous fetch."""
    leader_end_ms: int = NEVER

    def record_fetch(self, offset: int, leader_end_offset: int, now_ms: int) -> None:
        """Records that the replica has the leader's log up to `offset`."""
        if offset >= leader_end_offset:
            self.last_caught_up_ms = now_ms
        elif self.leader_end_ms != NEVER and offset >= self.leader_end_offset:
            self.last_caught_up_ms = max(self.last_caught_up_ms, self.leader_end_ms)
        self.leader_end_offset, self.leader_end_ms = leader_end_offset, now_ms
        # Take the maximum, because an older fetch may arrive after a newer one.
        self.end_offset = max(self.end_offset, offset)

    def to_progress(self, wall_minus_monotonic_ms: int) -> ReplicaProgress:
        def wall_ms(time_ms: int) -> int:
            return NEVER if time_ms == NEVER else time_ms + wall_minus_monotonic_ms

        return ReplicaProgress(self.key, self.end_offset, wall_ms(self.last_fetch_ms), wall_ms(self.last_caught_up_ms))


@dataclass(slots=True)
class LeaderState:
    key: ReplicaKey
    epoch: int
    log: RaftLogState
    config: QuorumConfig
    endpoints: tuple[VoterEndpoint, ...]
    """The endpoints of this node; empty if unknown."""
    elected_since_ms: int
    """The time when the election started. A majority of the voters granted their votes after this time."""
    epoch_start_offset: int
    """The offset of this epoch's first record. Records below this offset are never committed by counting replicas."""
    next_announcement_ms: int
    """The time when the next BeginQuorumEpoch is sent to voters that do not fetch."""
    leader_silence_ms: int = 0
    """For at least this time before the election, all voters that elected this leader had no leader."""
    replicas: dict[ReplicaKey, ReplicaState] = field(default_factory=dict)

    @property
    def voters(self) -> tuple[VoterNode, ...]:
        return self.log.voters.current

    @property
    def has_other_voters(self) -> bool:
        return any(voter.node_id != self.key.node_id for voter in self.voters)

    @property
    def has_committed_in_epoch(self) -> bool:
        """Whether a record of this epoch is committed. Before that, the leader does not know what else is committed."""
        return self.log.high_watermark > self.epoch_start_offset

    @property
    def announced_high_watermark(self) -> int:
        """The high watermark for responses; -1 until a record of this epoch is committed."""
        return self.log.high_watermark if self.has_committed_in_epoch else -1

    @property
    def deadline_ms(self) -> int | None:
        if not self.has_other_voters:
            return None
        confirmed_ms = self.majority_confirmed_ms(self.next_announcement_ms)
        return min(self.next_announcement_ms, confirmed_ms + self.config.check_quorum_ms)

    def has_lost_quorum(self, now_ms: int) -> bool:
        """Returns whether no majority has acknowledged this leader within the check-quorum timeout."""
        return now_ms - self.majority_confirmed_ms(now_ms) >= self.config.check_quorum_ms

    def announce_epoch(self, step: StepContext) -> None:
        """Sends BeginQuorumEpoch to voters that do not fetch. Called repeatedly, because requests can be lost."""
        own = find_voter(self.voters, self.key)
        endpoints = own.endpoints if own is not None else ()
        for voter in self._other_voters():
            replica = self.replica_of(voter)
            if replica is None or step.now_ms - replica.last_fetch_ms >= self.config.fetch_timeout_ms // 2:
                request = BeginQuorumEpochRequest(self.key.node_id, self.epoch, voter.key, endpoints)
                step.send(voter.node_id, request)
        self.next_announcement_ms = step.deadline_in(self.config.fetch_timeout_ms / 3)

    def preferred_candidates(self) -> tuple[ReplicaKey, ...]:
        """Returns the other voters, sorted by the length of their logs, longest first."""
        others = sorted(self._other_voters(), key=self._voter_end_offset, reverse=True)
        return tuple(voter.key for voter in others)

    # Replica progress

    def record_contact(self, key: ReplicaKey, now_ms: int, leader_sent_ms: int) -> ReplicaState:
        """Records a request of a replica. `leader_sent_ms` is the send time of the response that it acknowledges."""
        replica = self.replicas.get(key)
        if replica is None:
            # Remove inactive replicas. A removed voter is added again when it fetches.
            self.replicas = {
                key: replica
                for key, replica in self.replicas.items()
                if now_ms - replica.last_fetch_ms < OBSERVER_EXPIRY_MS
            }
            replica = self.replicas[key] = ReplicaState(key)
        replica.last_fetch_ms = now_ms
        replica.leader_sent_ms = max(replica.leader_sent_ms, min(leader_sent_ms, now_ms))
        return replica

    def handle_fetch(self, step: StepContext, request: QuorumFetchRequest) -> QuorumFetchResponse | None:
        """Returns the response if the replica needs a snapshot or must truncate its log, otherwise None."""
        log, fetch_end = self.log, request.log_end
        replica = self.record_contact(request.replica, step.now_ms, request.leader_sent_ms)
        if request.leader_sent_ms == NEVER and fetch_end.offset < replica.end_offset:
            self._on_offset_regression(step, replica, fetch_end.offset)
        epoch_end = None
        if fetch_end.offset >= log.start_offset:
            epoch_end = log.end_offset_for_epoch(fetch_end.epoch)
        response = QuorumFetchResponse(
            self.epoch,
            self.key.node_id,
            is_leader=True,
            high_watermark=self.announced_high_watermark,
            log_start_offset=log.start_offset,
            sent_ms=step.now_ms,
        )
        if epoch_end is None and log.snapshot is not None:
            return response._replace(snapshot=log.snapshot)
        if epoch_end is None or epoch_end.epoch != fetch_end.epoch or epoch_end.offset < fetch_end.offset:
            if epoch_end is None:
                epoch_end = log.log_end._replace(epoch=log.base_epoch, offset=0)
            return response._replace(diverging_epoch=epoch_end)
        replica.record_fetch(fetch_end.offset, log.end_offset, step.now_ms)
        return None

    def _on_offset_regression(self, step: StepContext, replica: ReplicaState, end_offset: int) -> None:
        """Forgets the end offset of a replica that restarted with a shorter log. The high watermark stays."""
        if replica.key.directory_id is not None and find_voter(self.voters, replica.key) is not None:
            step.emit(ReplicaOffsetRegressed(replica.key, replica.end_offset, end_offset))
        replica.end_offset = NEVER

    def majority_end_offset(self) -> int:
        """Returns the offset below which a majority of the voters has everything on disk."""
        own_offset = self.log.durable_offset
        return _majority_value(
            own_offset if self._is_self(voter) else self._voter_end_offset(voter) for voter in self.voters
        )

    def majority_confirmed_ms(self, now_ms: int) -> int:
        """Returns the latest time at which a majority of the voters certainly accepted this leader.

        It is computed from the send times of acknowledged responses. The arrival times of fetches prove less, because a
        fetch can arrive late.
        """
        return _majority_value(
            now_ms if self._is_self(voter) else self._voter_leader_sent_ms(voter) for voter in self.voters
        )

    def replica_of(self, voter: VoterNode) -> ReplicaState | None:
        """Returns the replica of a voter; if the voter's directory is unknown, the node's replica that fetched last."""
        if voter.directory_id is not None:
            # Every fetch of the metadata log gets here, so do not search through the replicas of all nodes.
            return self.replicas.get(voter.key)
        matching = [replica for replica in self.replicas.values() if _matches_voter(replica.key, voter)]
        return max(matching, key=lambda replica: replica.last_fetch_ms, default=None)

    def observers(self, now_ms: int) -> list[ReplicaState]:
        """Returns the replicas that are not voters, for each node only the directory that fetched last."""
        last_fetch_ms: dict[int, int] = {}
        for key, replica in self.replicas.items():
            last_fetch_ms[key.node_id] = max(replica.last_fetch_ms, last_fetch_ms.get(key.node_id, NEVER))
        return [
            replica
            for replica in self.replicas.values()
            if not any(_matches_voter(replica.key, voter) for voter in self.voters)
            and replica.last_fetch_ms == last_fetch_ms[replica.key.node_id]
            and now_ms - replica.last_fetch_ms < OBSERVER_EXPIRY_MS
        ]

    def _is_self(self, voter: VoterNode) -> bool:
        return is_same_replica(voter.key, self.key)

    def _other_voters(self) -> list[VoterNode]:
        return [voter for voter in self.voters if not self._is_self(voter)]

    def _voter_end_offset(self, voter: VoterNode) -> int:
        replica = self.replica_of(voter)
        return NEVER if replica is None else replica.end_offset

    def _voter_leader_sent_ms(self, voter: VoterNode) -> int:
        replica = self.replica_of(voter)
        return max(self.elected_since_ms, NEVER if replica is None else replica.leader_sent_ms)

    # Changes of the voters

    def learned_voters(self) -> tuple[VoterNode, ...]:
        """Returns the voters, with unknown directory ids taken from their fetches, and this node's current endpoints.

        Once a voter's directory id is in the log, a node that restarts with an empty disk is not taken for that voter.
        """
        return tuple(
            voter._replace(
                directory_id=self._learned_directory(voter),
                endpoints=(voter.node_id == self.key.node_id and self.endpoints) or voter.endpoints,
            )
            for voter in self.voters
        )

    def _learned_directory(self, voter: VoterNode) -> UUID | None:
        if voter.directory_id is not None:
            return voter.directory_id
        if voter.node_id == self.key.node_id:
            return self.key.directory_id
        replica = self.replica_of(voter)
        return None if replica is None else replica.key.directory_id

    def with_voter(self, now_ms: int, new: VoterNode) -> tuple[VoterNode, ...]:
        """Returns the current voters and the new one. Raises RequestTimedOutError if it cannot be added yet."""
        self._check_can_change_voters()
        if any(voter.node_id == new.node_id for voter in self.voters):
            raise DuplicateVoterError(f"node {new.node_id} is a voter already; remove it first")
        if new.directory_id is None:
            raise InvalidRequestError(f"the request to add node {new.node_id} has no directory id")
        if self.key.directory_id is None or self._is_diskless(new.node_id):
            raise InvalidRequestError(
                "a node with store=memory loses its votes on restart: it cannot be one of several voters"
            )
        replica = self.replica_of(new)
        oldest_ms = now_ms - self.config.fetch_timeout_ms
        if replica is None or replica.last_caught_up_ms == NEVER or replica.last_caught_up_ms < oldest_ms:
            raise RequestTimedOutError(
                f"node {new.node_id} with directory {new.directory_id} has not caught up with the metadata log; "
                "check that it is running and can connect to the leader"
            )
        return (*self.voters, new)

    def without_voter(self, key: ReplicaKey) -> tuple[VoterNode, ...]:
        self._check_can_change_voters()
        remaining = tuple(voter for voter in self.voters if not is_same_replica(voter.key, key))
        if len(remaining) == len(self.voters):
            raise VoterNotFoundError(f"node {key.node_id} with directory {key.directory_id} is not a voter")
        if not remaining:
            raise InvalidRequestError(f"node {key.node_id} is the only voter; add another one first")
        return remaining

    def with_updated_voter(self, changed: VoterNode) -> tuple[VoterNode, ...]:
        self._check_can_change_voters()
        if find_voter(self.voters, changed.key) is None:
            raise VoterNotFoundError(f"node {changed.node_id} with directory {changed.directory_id} is not a voter")
        return tuple(changed if is_same_replica(voter.key, changed.key) else voter for voter in self.voters)

    def _check_can_change_voters(self) -> None:
        # Two concurrent changes could create disjoint majorities. So could a change by a leader that has not committed
        # a record in its epoch.
        if not self.has_committed_in_epoch:
            raise RequestTimedOutError("the leader of the metadata quorum was just elected; try again")
        if self.log.voters.last_entry.offset >= self.log.high_watermark:
            raise RequestTimedOutError("another change of the voters is in progress; try again later")

    def _is_diskless(self, node_id: int) -> bool:
        """Returns whether the latest fetch of the node had no directory id, which means that the node has no disk."""
        replica = self.replicas.get(ReplicaKey(node_id))
        return replica is not None and replica.last_fetch_ms == max(
            each.last_fetch_ms for key, each in self.replicas.items() if key.node_id == node_id
        )


def _majority_value(values: Iterable[int]) -> int:
    """Returns the largest value that a majority has reached."""
    descending = sorted(values, reverse=True)
    return descending[majority_size(len(descending)) - 1]


def _matches_voter(key: ReplicaKey, voter: VoterNode) -> bool:
    """Returns whether the replica is the voter. If the voter has a directory id, the replica must have it too."""
    return is_same_replica(key, voter.key) and (voter.directory_id is None or key.directory_id is not None)
