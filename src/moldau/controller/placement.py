"""Which brokers hold the replicas of a partition: spread over racks and brokers, or as the caller says."""

from collections.abc import Mapping, Sequence

from moldau.controller.ids import Randomness
from moldau.errors import InvalidReplicaAssignmentError, InvalidReplicationFactorError
from moldau.metadata.image import BrokerImage

Replicas = tuple[int, ...]
"""The first is the preferred leader."""


def place(
    brokers: Mapping[int, BrokerImage], partitions: int, replication_factor: int, random: Randomness
) -> list[Replicas]:
    """Replicas for new partitions. Leaders go round the brokers from a random one on; each partition's other
    replicas go to as many other racks as there are. Only an active broker is made a leader."""
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
    ring = _ring(brokers)
    start = random.randrange(len(ring))
    return [_pick(ring, start + index, index // len(ring), replication_factor) for index in range(partitions)]


def _ring(brokers: Mapping[int, BrokerImage]) -> list[BrokerImage]:
    """All brokers in an order in which neighbours are in different racks, as far as that can be."""
    racks: dict[str, list[BrokerImage]] = {}
    for broker_id in sorted(brokers):
        racks.setdefault(brokers[broker_id].rack or "", []).append(brokers[broker_id])
    members = [racks[rack] for rack in sorted(racks)]
    longest = max(map(len, members))
    return [rack[row] for row in range(longest) for rack in members if row < len(rack)]


def _pick(ring: Sequence[BrokerImage], start: int, lap: int, count: int) -> Replicas:
    turned = [ring[(start + step) % len(ring)] for step in range(len(ring))]
    leader = next(broker for broker in turned if broker.is_active)
    others = [broker for broker in turned if broker is not leader]
    # With each lap the followers move on by one, so that a broker shares partitions with all others.
    turn = lap % len(others) if others else 0
    others = others[turn:] + others[:turn]
    chosen, racks = [leader], {leader.rack}
    # A rack that has no replica yet comes first, then a broker that could be in sync at once.
    while len(chosen) < count:
        best = min(others, key=lambda broker: (broker.rack in racks, not broker.is_active))
        others.remove(best)
        chosen.append(best)
        racks.add(best.rack)
    return tuple(broker.broker_id for broker in chosen)


def check_manual(
    replicas: Sequence[int], brokers: Mapping[int, BrokerImage], replication_factor: int | None
) -> None:
    """Raises InvalidReplicaAssignmentError for a partition's replicas that cannot be."""
    prefix = "The manual partition assignment includes"
    if not replicas:
        raise InvalidReplicaAssignmentError(f"{prefix} an empty replica list.")
    previous = None
    for broker_id in sorted(replicas):
        if broker_id not in brokers:
            raise InvalidReplicaAssignmentError(
                f"{prefix} broker {broker_id}, but no such broker is registered."
            )
        if broker_id == previous:
            raise InvalidReplicaAssignmentError(f"{prefix} the broker {broker_id} more than once.")
        previous = broker_id
    if replication_factor is not None and len(replicas) != replication_factor:
        raise InvalidReplicaAssignmentError(
            f"{prefix} a partition with {len(replicas)} replica(s), but this is not consistent with previous "
            f"partitions, which have {replication_factor} replica(s)."
        )


def in_sync_at_first(replicas: Sequence[int], brokers: Mapping[int, BrokerImage], partition: int) -> Replicas:
    """The replicas of a new, empty partition that are in sync: those on active brokers. The first leads."""
    active = tuple(broker_id for broker_id in replicas if brokers[broker_id].is_active)
    if not active:
        raise InvalidReplicaAssignmentError(
            "All brokers specified in the manual partition assignment for "
            f"partition {partition} are fenced or in controlled shutdown."
        )
    return active
