"""A leader's view of the replicas that fetch from it: how far each is, and when it was last heard of. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from moldau.raft.messages import ReplicaKey, ReplicaProgress, VoterNode
from moldau.raft.voter_set import is_same_replica, majority_size

OBSERVER_EXPIRY_MS = 300_000
NEVER = -1


@dataclass(slots=True)
class ReplicaState:
    key: ReplicaKey
    end_offset: int = NEVER
    """Everything below it is on the replica's disk, for it has asked for what comes then. Falls only where it has come
    back with less."""
    last_fetch_ms: int = NEVER
    leader_sent_ms: int = NEVER
    """When the leader sent the newest answer that the replica says to have had."""
    last_caught_up_ms: int = NEVER
    leader_end_offset: int = NEVER
    """Where the leader's log ended at `leader_end_ms`, when the replica fetched before."""
    leader_end_ms: int = NEVER


@dataclass(slots=True)
class Leadership:
    """What a leader keeps in mind, for one epoch."""

    leader: ReplicaKey
    elected_since_ms: int
    """When it stood for election: a majority was heard of after that."""
    epoch_start_offset: int
    """Where its epoch begins. What comes before it is not committed by counting replicas."""
    next_announcement_ms: int
    """When those who do not fetch are told next that the epoch has begun."""
    leader_silence_ms: int = 0
    """For how long those who elected it had heard of no other leader, at least."""
    replicas: dict[ReplicaKey, ReplicaState] = field(default_factory=dict)

    def record_contact(self, key: ReplicaKey, now_ms: int, leader_sent_ms: int) -> ReplicaState:
        """The replica has asked for something, and says what it last heard of this leader."""
        replica = self.replicas.get(key)
        if replica is None:
            self._remove_inactive_replicas(now_ms)
            replica = self.replicas[key] = ReplicaState(key)
        replica.last_fetch_ms = now_ms
        replica.leader_sent_ms = max(replica.leader_sent_ms, min(leader_sent_ms, now_ms))
        return replica

    def record_fetch(self, replica: ReplicaState, offset: int, leader_end_offset: int, now_ms: int) -> None:
        """The replica has everything below `offset`, as this leader has it, and wants what comes then."""
        if offset >= leader_end_offset:
            replica.last_caught_up_ms = now_ms
        elif replica.leader_end_ms != NEVER and offset >= replica.leader_end_offset:
            replica.last_caught_up_ms = max(replica.last_caught_up_ms, replica.leader_end_ms)
        replica.leader_end_offset, replica.leader_end_ms = leader_end_offset, now_ms
        # A request that the network held back tells of less than is known.
        replica.end_offset = max(replica.end_offset, offset)

    def majority_end_offset(self, voters: Sequence[VoterNode], own_durable_offset: int) -> int:
        """The offset below which a majority of the voters has everything on disk."""
        offsets = [
            own_durable_offset if is_same_replica(voter.key, self.leader) else self._voter_end_offset(voter)
            for voter in voters
        ]
        return sorted(offsets, reverse=True)[majority_size(len(offsets)) - 1]

    def majority_confirmed_ms(self, voters: Sequence[VoterNode], now_ms: int) -> int:
        """The newest time at which a majority of the voters is known to have had this leader: when it sent what they
        have heard of it. When their fetches came says nothing: the network may have held them back."""
        record_contact = sorted(
            (
                now_ms if is_same_replica(voter.key, self.leader) else self._voter_leader_sent_ms(voter)
                for voter in voters
            ),
            reverse=True,
        )
        return record_contact[majority_size(len(record_contact)) - 1]

    def voters_not_fetching(self, voters: Sequence[VoterNode], now_ms: int, for_ms: int) -> list[VoterNode]:
        """The other voters that have never fetched, or not for so long."""
        return [
            voter
            for voter in voters
            if not is_same_replica(voter.key, self.leader)
            and ((replica := self.of(voter)) is None or now_ms - replica.last_fetch_ms >= for_ms)
        ]

    def of(self, voter: VoterNode) -> ReplicaState | None:
        """Where the voter's directory is not known, the one of its node that has fetched last."""
        fitting = [replica for replica in self.replicas.values() if _matches_voter(replica.key, voter)]
        return max(fitting, key=lambda replica: replica.last_fetch_ms, default=None)

    def is_diskless(self, node_id: int) -> bool:
        """Whether the node fetches as one that has no directory."""
        replica = self.replicas.get(ReplicaKey(node_id))
        return replica is not None and replica.last_fetch_ms == max(
            each.last_fetch_ms for key, each in self.replicas.items() if key.node_id == node_id
        )

    def preferred_candidates(self, voters: Sequence[VoterNode]) -> tuple[ReplicaKey, ...]:
        """The other voters, the one with the longest log first."""
        others = [voter for voter in voters if not is_same_replica(voter.key, self.leader)]
        return tuple(voter.key for voter in sorted(others, key=self._voter_end_offset, reverse=True))

    def observers(self, voters: Sequence[VoterNode], now_ms: int) -> list[ReplicaState]:
        """Of a node that has come back with another directory, only that one: the former is gone."""
        last_fetch_ms: dict[int, int] = {}
        for key, replica in self.replicas.items():
            last_fetch_ms[key.node_id] = max(replica.last_fetch_ms, last_fetch_ms.get(key.node_id, NEVER))
        return [
            replica
            for replica in self.replicas.values()
            if not any(_matches_voter(replica.key, voter) for voter in voters)
            and replica.last_fetch_ms == last_fetch_ms[replica.key.node_id]
            and now_ms - replica.last_fetch_ms < OBSERVER_EXPIRY_MS
        ]

    def _voter_end_offset(self, voter: VoterNode) -> int:
        replica = self.of(voter)
        return NEVER if replica is None else replica.end_offset

    def _voter_leader_sent_ms(self, voter: VoterNode) -> int:
        replica = self.of(voter)
        return (
            self.elected_since_ms if replica is None else max(self.elected_since_ms, replica.leader_sent_ms)
        )

    def _remove_inactive_replicas(self, now_ms: int) -> None:
        """Those who have not fetched for minutes; a voter among them counts again when it fetches again."""
        self.replicas = {
            key: replica
            for key, replica in self.replicas.items()
            if now_ms - replica.last_fetch_ms < OBSERVER_EXPIRY_MS
        }


def _matches_voter(key: ReplicaKey, voter: VoterNode) -> bool:
    """Whoever does not name its directory is not taken for a voter whose directory is known."""
    return is_same_replica(key, voter.key) and (voter.directory_id is None or key.directory_id is not None)


def to_replica_progress(replica: ReplicaState, wall_minus_monotonic_ms: int) -> ReplicaProgress:
    """For people: times of the clock they read."""

    def wall(time_ms: int) -> int:
        return NEVER if time_ms == NEVER else time_ms + wall_minus_monotonic_ms

    return ReplicaProgress(
        replica.key, replica.end_offset, wall(replica.last_fetch_ms), wall(replica.last_caught_up_ms)
    )
