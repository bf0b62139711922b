"""What the requests of the metadata quorum have in common: they name one partition, that of the metadata log, and are
from a node of this cluster."""

from typing import Any
from uuid import UUID

from moldau.errors import InconsistentClusterIdError, InconsistentVoterSetError, InvalidRequestError
from moldau.observe.logging import get_logger
from moldau.raft.driver import METADATA_LOG
from moldau.server.broker import Broker
from moldau.server.errors import ErrorCode
from moldau.server.session import Session
from moldau.wire.codec import Message

log = get_logger("quorum.requests")


def check_cluster_id(broker: Broker, cluster_id: str | None) -> None:
    """A node that does not know its cluster yet says nothing of it."""
    own = broker.metadata.image.cluster_id
    if cluster_id is not None and cluster_id != own:
        raise InconsistentClusterIdError(f"this is the cluster {own}, not {cluster_id}")


def check_known_voter(node_id: int, session: Session, broker: Broker) -> None:
    """Who would lead is a voter; or a broker, of which this node may not have heard yet that it votes. An epoch that
    anybody could make up would depose the leader.

    A node that hears no leader has none to lose, and those who vote today may all be new to it: it was away when they
    were added, and they may need its vote to have a leader at all."""
    quorum = broker.quorum
    is_known = node_id == quorum.leader_id or any(voter.node_id == node_id for voter in quorum.voters)
    if quorum.has_live_leader and not is_known and node_id not in broker.metadata.image.brokers:
        why = f"node {node_id} is no voter of this cluster"
        log.warning("a request of the quorum is refused", why=why, peer=session.connection.peer)
        raise InconsistentVoterSetError(why)


def check_directory_id(node_id: int, directory_id: UUID | None) -> None:
    """What a replica has counts for the voter with that directory, and for nobody where it does not say which."""
    if directory_id is None:
        raise InvalidRequestError(f"node {node_id} must say in which directory its metadata log is")


def metadata_partition(topics: Any) -> Message:
    """The one partition in a request; InvalidRequestError unless it is the metadata log's."""
    if len(topics) == 1 and topics[0].topic_name == METADATA_LOG.topic and len(topics[0].partitions) == 1:
        found: Message = topics[0].partitions[0]
        if found.partition_index == METADATA_LOG.partition:
            return found
    raise InvalidRequestError(f"the quorum has one log, {METADATA_LOG}, and the request is for others")


def raft_response(code: int, partition: dict[str, Any], broker: Broker) -> dict[str, Any]:
    """An answer about the metadata log, in the form that Vote and its like have."""
    of_log = {"partition_index": METADATA_LOG.partition, "error_code": code, **partition}
    return {
        "error_code": int(ErrorCode.none),
        "topics": [{"topic_name": METADATA_LOG.topic, "partitions": [of_log]}],
        "node_endpoints": leader_endpoints(broker, partition["leader_id"]),
    }


def raft_error_response(code: int) -> dict[str, Any]:
    return {"error_code": code, "topics": []}


def leader_endpoints(broker: Broker, leader_id: int) -> list[dict[str, Any]]:
    """Where the leader is, if it is known."""
    endpoint = broker.quorum.leader_endpoint() if leader_id == broker.quorum.leader_id else None
    if endpoint is None or leader_id < 0:
        return []
    return [{"node_id": leader_id, "host": endpoint[0], "port": endpoint[1]}]


def leadership_error(known_epoch: int, epoch: int, *, is_leader: bool) -> ErrorCode:
    """What a replica that knows `known_epoch` is told by a node in `epoch`."""
    if known_epoch < epoch:
        return ErrorCode.fenced_leader_epoch
    if known_epoch > epoch:
        return ErrorCode.unknown_leader_epoch
    return ErrorCode.none if is_leader else ErrorCode.not_leader_or_follower
