"""The role of a node in the current epoch, one class per role, and the persisted election state. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from uuid import UUID

from moldau.raft.messages import NO_LEADER, NO_VOTE, ReplicaKey, VoterNode
from moldau.raft.voter_set import is_same_replica, majority_size


@dataclass(frozen=True, slots=True)
class ElectionState:
    """The epoch, vote and leader that a node persists, so that a restarted voter cannot vote twice in one epoch."""

    epoch: int = 0
    leader_id: int = NO_LEADER
    voted_for: int = NO_VOTE
    voted_directory_id: UUID | None = None

    def has_voted_for(self, candidate: ReplicaKey) -> bool:
        return is_same_replica(ReplicaKey(self.voted_for, self.voted_directory_id), candidate)


@dataclass(slots=True)
class EpochElection:
    """The votes of one round of an election: the pre-votes or the votes. Only current voters count."""

    start_ms: int
    granting: dict[int, None]
    rejecting: dict[int, None] = field(default_factory=dict)
    """Voters that rejected the request or did not respond."""

    def record_grant(self, node_id: int) -> None:
        self.granting[node_id] = None
        self.rejecting.pop(node_id, None)

    def record_rejection(self, node_id: int) -> bool:
        """Records a rejection. Returns False, and changes nothing, if the voter has already granted its vote."""
        if node_id in self.granting:
            return False
        self.rejecting[node_id] = None
        return True

    def is_won(self, voters: Sequence[VoterNode]) -> bool:
        return sum(voter.node_id in self.granting for voter in voters) >= majority_size(len(voters))

    def is_lost(self, voters: Sequence[VoterNode]) -> bool:
        return sum(voter.node_id not in self.rejecting for voter in voters) < majority_size(len(voters))


class UnattachedState:
    """The node knows no leader of its epoch and looks for one. An observer is always unattached or a follower."""


@dataclass(slots=True)
class FollowerState:
    leader_contact_ms: int | None = None
    """The time of the last message from the leader; None if only other nodes have named this leader so far."""
    is_leader_unreachable: bool = False
    """Whether the last fetch failed and this leader was never reached. The next fetch looks up the leader's address."""


@dataclass(slots=True)
class ProspectiveState:
    """The node requests pre-votes before it becomes candidate, because a new epoch could depose a leader."""

    election: EpochElection


@dataclass(slots=True)
class CandidateState:
    election: EpochElection
    leader_silence_ms: int
    """For at least this time, this node and all voters that granted their votes have had no leader."""


class ResignedState:
    """The node was the leader of this epoch. It must not become leader of the same epoch again."""
