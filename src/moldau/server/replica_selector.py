"""Selection of the replica from which a consumer reads (KIP-392).

If replica.selector.class is the rack-aware selector, this is a replica in the consumer's rack.
"""

from moldau.metadata.image import BrokerRegistration, MetadataImage
from moldau.partitions.partition import Partition

RACK_AWARE = "RackAwareReplicaSelector"


def select_replica(
    partition: Partition, offset: int, rack: str, image: MetadataImage, listener: str, selector: str
) -> int | None:
    """Returns an in-sync follower in the consumer's rack that has the offset; None to read from the leader."""
    if not rack or not partition.is_leader or not selector.endswith(RACK_AWARE):
        return None
    leader = partition.require_leader()
    own = image.brokers.get(leader.replica_id)
    if own is not None and own.rack == rack:
        return None
    best: tuple[int, int] | None = None
    for replica, progress in leader.followers.items():
        broker = image.brokers.get(replica)
        if (
            broker is not None
            and broker.rack == rack
            and not broker.fenced
            and _has_endpoint(broker, listener)
            and replica in leader.isr
            and progress.start_offset <= offset <= progress.durable_offset
        ):
            candidate = (-progress.durable_offset, replica)
            best = candidate if best is None else min(best, candidate)
    return None if best is None else best[1]


def _has_endpoint(broker: BrokerRegistration, listener: str) -> bool:
    return any(endpoint.listener == listener for endpoint in broker.endpoints)
