"""Which replica a consumer should read from: one in its own rack, where the cluster is set up for that (KIP-392)."""

from moldau.metadata.image import BrokerRegistration, MetadataImage
from moldau.partitions.partition import Partition

RACK_AWARE = "RackAwareReplicaSelector"


def select_replica(
    partition: Partition, offset: int, rack: str, image: MetadataImage, listener: str, selector: str
) -> int | None:
    """Another replica that has the offset, is in sync and stands in the consumer's rack; None where it should stay."""
    if not rack or not partition.is_leader or not selector.endswith(RACK_AWARE):
        return None
    leader = partition.require_leader()
    own = image.brokers.get(leader.replica_id)
    if own is not None and own.rack == rack:
        return None
    nearest: tuple[int, int] | None = None
    for replica, progress in leader.followers.items():
        broker = image.brokers.get(replica)
        if (
            broker is not None
            and broker.rack == rack
            and not broker.fenced
            and _listens(broker, listener)
            and replica in leader.isr
            and progress.start_offset <= offset <= progress.durable_offset
        ):
            better = (-progress.durable_offset, replica)
            nearest = better if nearest is None else min(nearest, better)
    return None if nearest is None else nearest[1]


def _listens(broker: BrokerRegistration, listener: str) -> bool:
    return any(endpoint.listener == listener for endpoint in broker.endpoints)
