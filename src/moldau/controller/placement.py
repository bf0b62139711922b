"""Replica placement: spreads replicas over racks and brokers, and validates manual assignments."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from moldau.controller.ids import Randomness
from moldau.controller.partition_index import PartitionIndex
from moldau.errors import InvalidReplicaAssignmentError, InvalidReplicationFactorError
from moldau.metadata.image import BrokerRegistration, PartitionRegistration

Replicas = tuple[int, ...]
"""The broker ids of a partition's replicas. The first broker is the preferred leader."""


class ReplicaLoad:
    """The number of leaders and followers on each broker. `place_replicas` balances these numbers and adds the new
    replicas."""

    def __init__(self) -> None:
        self.leaders: Counter[int] = Counter()
        self.followers: Counter[int] = Counter()

    @classmethod
    def from_topic(cls, partitions: Iterable[PartitionRegistration]) -> "ReplicaLoad":
        """Returns the load of one topic, so that the round robin continues after the topic's existing partitions."""
        load = cls()
        for partition in partitions:
            load.add(partition.replicas)
        return load

    @classmethod
    def from_cluster(cls, index: PartitionIndex, brokers: Iterable[int]) -> "ReplicaLoad":
        load = cls()
        for broker_id in brokers:
            load.leaders[broker_id] = index.preferred_leader_count(broker_id)
            load.followers[broker_id] = index.replica_count(broker_id) - load.leaders[broker_id]
        return load

    def leader_load(self, broker_id: int) -> tuple[int, int]:
        return self.leaders[broker_id], self.followers[broker_id]

    def follower_load(self, broker_id: int) -> tuple[int, int]:
        followers = self.followers[broker_id]
        return self.leaders[broker_id] + followers, followers

    def add(self, replicas: Replicas) -> None:
        self.leaders[replicas[0]] += 1
        self.followers.update(replicas[1:])


def place_replicas(
    brokers: Mapping[int, BrokerRegistration],
    partitions: int,
    replication_factor: int,
    random: Randomness,
    load: ReplicaLoad | None = None,
) -> list[Replicas]:
    """Returns replicas for new partitions.

    Leaders go to the least loaded brokers, in a round robin that starts at a random broker. The followers of a
    partition go to as many other racks as possible.

    Brokers that are not active lead nothing. They get replicas only if there are too few active brokers.
    """
    active = [broker for broker in brokers.values() if broker.is_active]
    if not active:
        raise InvalidReplicationFactorError(
            f"Unable to replicate the partition {replication_factor} time(s): "
            "All brokers are currently fenced or in controlled shutdown."
        )
    if replication_factor > len(brokers):
        raise InvalidReplicationFactorError(
            f"Unable to replicate the partition {replication_factor} time(s): The target replication factor "
            f"of {replication_factor} cannot be reached because only {len(brokers)} broker(s) are registered."
        )
    ring = _interleave_racks(active)
    rest = _interleave_racks([broker for broker in brokers.values() if not broker.is_active])
    start = random.randrange(len(ring))
    ring = ring[start:] + ring[:start]
    load = ReplicaLoad() if load is None else load
    placed = []
    for _ in range(partitions):
        placed.append(_choose_replicas(ring, rest, replication_factor, load))
        load.add(placed[-1])
    return placed


def place_on_all_brokers(
    brokers: Mapping[int, BrokerRegistration], partitions: int, controller_id: int
) -> list[Replicas]:
    """Returns replicas on all brokers for each new partition of a topic with leader.follows.controller. The active
    controller comes first."""
    if not any(broker.is_active for broker in brokers.values()):
        raise InvalidReplicationFactorError(
            "Unable to replicate the partition: All brokers are currently fenced or in controlled shutdown."
        )
    replicas = tuple(sorted(brokers, key=lambda broker_id: (broker_id != controller_id, broker_id)))
    return [replicas] * partitions


def majority_of_brokers(brokers: Collection[int]) -> int:
    """Returns the min.insync.replicas with which a topic on all brokers stays writable while a majority of them is in
    sync."""
    return len(brokers) // 2 + 1


def _interleave_racks(brokers: Iterable[BrokerRegistration]) -> list[BrokerRegistration]:
    """Orders the brokers so that neighbours are in different racks, if possible."""
    racks: dict[str, list[BrokerRegistration]] = {}
    for broker in sorted(brokers, key=lambda each: each.broker_id):
        racks.setdefault(broker.rack or "", []).append(broker)
    members = [racks[rack] for rack in sorted(racks)]
    longest = max(map(len, members), default=0)
    return [rack[row] for row in range(longest) for rack in members if row < len(rack)]


def _choose_replicas(
    ring: Sequence[BrokerRegistration], rest: Sequence[BrokerRegistration], count: int, load: ReplicaLoad
) -> Replicas:
    """Chooses the leader from `ring`. Chooses followers from `rest` only if `ring` has too few brokers. If brokers have
    the same load, their order in `ring` decides."""
    leads = min(range(len(ring)), key=lambda at: load.leader_load(ring[at].broker_id))
    leader = ring[leads]
    others = [*ring[leads + 1 :], *ring[:leads]]
    # Rotate the followers by one for each partition that this leader has, so that all brokers share partitions with it.
    turn = load.leaders[leader.broker_id] % len(others) if others else 0
    others = others[turn:] + others[:turn]
    chosen, racks = [leader], Counter([leader.rack])
    for candidates in (others, list(rest)):
        while candidates and len(chosen) < count:
            best = min(candidates, key=lambda each: (racks[each.rack], load.follower_load(each.broker_id)))
            candidates.remove(best)
            chosen.append(best)
            racks[best.rack] += 1
    return tuple(broker.broker_id for broker in chosen)


def validate_manual_assignment(
    replicas: Sequence[int], brokers: Mapping[int, BrokerRegistration], replication_factor: int | None
) -> None:
    """Raises InvalidReplicaAssignmentError if the replicas of one partition are invalid."""
    prefix = "The manual partition assignment includes"
    if not replicas:
        raise InvalidReplicaAssignmentError(f"{prefix} an empty replica list.")
    previous = None
    for broker_id in sorted(replicas):
        if broker_id not in brokers:
            raise InvalidReplicaAssignmentError(f"{prefix} broker {broker_id}, but no such broker is registered.")
        if broker_id == previous:
            raise InvalidReplicaAssignmentError(f"{prefix} the broker {broker_id} more than once.")
        previous = broker_id
    if replication_factor is not None and len(replicas) != replication_factor:
        raise InvalidReplicaAssignmentError(
            f"{prefix} a partition with {len(replicas)} replica(s), but this is not consistent with previous "
            f"partitions, which have {replication_factor} replica(s)."
        )


def validate_controller_led_assignment(assignment: Iterable[Sequence[int]], brokers: Iterable[int]) -> None:
    """Raises InvalidReplicaAssignmentError unless each partition has a replica on each of these brokers."""
    expected = sorted(brokers)
    for replicas in assignment:
        if sorted(replicas) != expected:
            raise InvalidReplicaAssignmentError(
                f"The manual partition assignment includes the replicas {sorted(replicas)}, but a topic with "
                f"leader.follows.controller needs replicas on all its brokers: {expected}."
            )


def initial_isr(replicas: Sequence[int], brokers: Mapping[int, BrokerRegistration], partition: int) -> Replicas:
    """Returns the ISR of a new partition, which consists of the replicas on active brokers. The first ISR member
    becomes the leader."""
    active = tuple(broker_id for broker_id in replicas if brokers[broker_id].is_active)
    if not active:
        raise InvalidReplicaAssignmentError(
            "All brokers specified in the manual partition assignment for "
            f"partition {partition} are fenced or in controlled shutdown."
        )
    return active
