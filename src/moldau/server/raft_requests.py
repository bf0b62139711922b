"""Checks and responses that the handlers of quorum requests share."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeVar
from uuid import UUID

from moldau.error_codes import ErrorCode, error_code
from moldau.errors import InconsistentClusterIdError, InconsistentVoterSetError, InvalidRequestError, MoldauError
from moldau.observe.logging import get_logger
from moldau.raft.messages import (
    BeginQuorumEpochRequest,
    EndQuorumEpochRequest,
    QuorumEpochResponse,
    VoterEndpoint,
    VoterNode,
)
from moldau.raft.raft_client import METADATA_LOG
from moldau.server.api import Broker, RequestContext
from moldau.wire.messages import (
    AddRaftVoterRequest,
    BeginQuorumEpochResponse,
    FetchResponseNodeEndpoint,
    UpdateRaftVoterRequest,
)

log = get_logger("quorum.requests")


class _PartitionData(Protocol):
    partition_index: int


LeaderRequestT = TypeVar("LeaderRequestT", BeginQuorumEpochRequest, EndQuorumEpochRequest)
PartitionT_co = TypeVar("PartitionT_co", bound=_PartitionData, covariant=True)


class _TopicData(Protocol[PartitionT_co]):
    topic_name: str

    @property
    def partitions(self) -> Sequence[PartitionT_co]: ...


def check_cluster_id(broker: Broker, cluster_id: str | None) -> None:
    """Raises InconsistentClusterIdError for another cluster. A node that knows no cluster id sends None."""
    own = broker.metadata.image.cluster_id
    if cluster_id is not None and cluster_id != own:
        raise InconsistentClusterIdError(f"this is cluster {own}, not {cluster_id}")


def check_known_voter(node_id: int, session: RequestContext, broker: Broker) -> None:
    """Raises InconsistentVoterSetError if a candidate or leader is neither a voter nor a registered broker.

    Without this check, any node could depose the leader with an invented epoch. Registered brokers are accepted because
    this node may not know yet that the broker became a voter. If there is no live leader, every node is accepted. The
    voters may have changed while this node was down, and they may need the vote of this node to elect a leader.
    """
    quorum = broker.quorum
    is_known = node_id == quorum.leader_id or any(voter.node_id == node_id for voter in quorum.voters)
    if quorum.has_live_leader and not is_known and node_id not in broker.metadata.image.brokers:
        reason = f"node {node_id} is not a voter of this cluster"
        log.warning("rejected a quorum request", reason=reason, peer=session.connection.peer)
        raise InconsistentVoterSetError(reason)


def check_directory_id(node_id: int, directory_id: UUID | None) -> None:
    """Raises InvalidRequestError if the directory id is missing, because it is part of a replica's key."""
    if directory_id is None:
        raise InvalidRequestError(f"node {node_id} must send the directory id of its metadata log")


def metadata_partition(topics: Sequence[_TopicData[PartitionT_co]]) -> PartitionT_co:
    """Returns the only partition of a request. Raises InvalidRequestError if this is not the metadata log."""
    if len(topics) == 1 and topics[0].topic_name == METADATA_LOG.topic and len(topics[0].partitions) == 1:
        partition = topics[0].partitions[0]
        if partition.partition_index == METADATA_LOG.partition:
            return partition
    raise InvalidRequestError(f"the quorum has only the log {METADATA_LOG}")


async def quorum_epoch_response(
    handle: Callable[[LeaderRequestT], Awaitable[QuorumEpochResponse]],
    request: LeaderRequestT,
    session: RequestContext,
    broker: Broker,
) -> BeginQuorumEpochResponse:
    """Checks a BeginQuorumEpoch or EndQuorumEpoch request, calls `handle` and builds the response."""
    try:
        if request.leader_id < 0 or request.epoch < 0:
            raise InvalidRequestError(f"node {request.leader_id} cannot be the leader of epoch {request.epoch}")
        check_known_voter(request.leader_id, session, broker)
        reply = await handle(request)
        code = int(epoch_error(request.epoch, reply.epoch))
    except MoldauError as error:
        code = error_code(error)
        reply = QuorumEpochResponse(broker.quorum.epoch, broker.quorum.leader_id)
    return {
        "topics": [
            {
                "topic_name": METADATA_LOG.topic,
                "partitions": [
                    {
                        "partition_index": METADATA_LOG.partition,
                        "error_code": code,
                        "leader_id": reply.leader_id,
                        "leader_epoch": reply.epoch,
                    }
                ],
            }
        ],
        "node_endpoints": leader_endpoints(broker, reply.leader_id),
    }


def leader_endpoints(broker: Broker, leader_id: int) -> list[FetchResponseNodeEndpoint]:
    """Returns the endpoint of the quorum's leader, or an empty list if the endpoint is unknown."""
    endpoint = broker.quorum.leader_endpoint() if leader_id == broker.quorum.leader_id else None
    if endpoint is None or leader_id < 0:
        return []
    return [{"node_id": leader_id, "host": endpoint[0], "port": endpoint[1]}]


def leadership_error(known_epoch: int, epoch: int, *, is_leader: bool) -> ErrorCode:
    """Returns the error code for a request with the epoch `known_epoch` to a node whose current epoch is `epoch`."""
    if known_epoch < epoch:
        return ErrorCode.fenced_leader_epoch
    if known_epoch > epoch:
        return ErrorCode.unknown_leader_epoch
    return ErrorCode.none if is_leader else ErrorCode.not_leader_or_follower


def epoch_error(known_epoch: int, epoch: int) -> ErrorCode:
    """Returns FENCED_LEADER_EPOCH if the epoch of the request is older than the epoch of this node."""
    return ErrorCode.fenced_leader_epoch if known_epoch < epoch else ErrorCode.none


def voter_from_request(request: AddRaftVoterRequest | UpdateRaftVoterRequest, broker: Broker) -> VoterNode:
    """Returns the voter. The first of its endpoints is the inter-broker endpoint. Raises InvalidRequestError."""
    listener = broker.settings.broker.inter_broker_listener
    endpoints = sorted(
        (VoterEndpoint(each.name, each.host, each.port) for each in request.listeners),
        key=lambda each: each.listener.upper() != listener,
    )
    voter = VoterNode(request.voter_id, request.voter_directory_id, tuple(endpoints))
    if voter.node_id < 0:
        raise InvalidRequestError(f"{voter.node_id} is not a node id")
    if voter.directory_id is None:
        raise InvalidRequestError(
            "the voter's directory id is missing: it is directory.id in the meta.properties of its data directory"
        )
    if not endpoints or endpoints[0].listener.upper() != listener:
        raise InvalidRequestError(f"the voter has no endpoint for the inter-broker listener {listener}")
    return voter
