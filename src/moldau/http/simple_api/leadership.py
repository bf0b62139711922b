"""Checks that this node is the one to send a request to. The other nodes respond with status 421 and the leader."""

from moldau.errors import NotControllerError, NotLeaderOrFollowerError, UnknownTopicOrPartitionError
from moldau.http.body import Context
from moldau.http.context import HttpContext
from moldau.http.errors import HttpError
from moldau.http.health import unready_reasons


async def require_ready(context: Context) -> None:
    """Raises HttpError with status 503 while the node starts or stops."""
    if context.stopping.is_set() or not context.broker.ready.is_set():
        raise HttpError(503, ", ".join(unready_reasons(context.broker)) or "the node is shutting down")


async def require_controller(context: Context) -> None:
    """Raises NotLeaderOrFollowerError if this node is not the active controller."""
    quorum = context.broker.quorum
    leader_id = quorum.leader_id
    if leader_id < 0 or not quorum.has_live_leader:
        raise NotControllerError("there is no leader at the moment")
    if leader_id != context.broker.broker_id:
        raise NotLeaderOrFollowerError("this node is not the active controller", leader_id)


def require_partition_leader(context: HttpContext, topic: str, index: int) -> None:
    """Raises UnknownTopicOrPartitionError, or NotLeaderOrFollowerError if this broker does not lead the partition.

    A leader that is suspected to be dead is not named.
    """
    broker = context.broker
    registration = broker.metadata.image.partition(topic, index)
    if registration is None:
        raise UnknownTopicOrPartitionError(f"there is no partition {topic}-{index + 1}")
    partition = broker.replica_manager.get(topic, index)
    if partition is None or not partition.is_leader:
        leader_id = -1 if registration.leader in broker.availability.suspected else registration.leader
        raise NotLeaderOrFollowerError(f"the partition {topic}-{index + 1} has no leader at the moment", leader_id)
