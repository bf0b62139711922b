"""EndQuorumEpoch: the leader of the metadata quorum resigns, and says who should stand next. Between nodes only.

Only v1 is served, the first that names successors with their disks. An older epoch than this node's gets
FENCED_LEADER_EPOCH, with the leader of today; a leader that is no voter, as long as this node hears another one,
INCONSISTENT_VOTER_SET.
"""

from typing import Any

from moldau.errors import InvalidRequestError, MoldauError
from moldau.raft.messages import EndQuorumEpochRequest, QuorumEpochResponse, ReplicaKey
from moldau.server.broker import Broker
from moldau.server.errors import ErrorCode, error_code
from moldau.server.raft_requests import (
    check_cluster_id,
    check_known_voter,
    metadata_partition,
    raft_error_response,
    raft_response,
)
from moldau.server.registry import handles
from moldau.server.session import Session
from moldau.wire.api_keys import ApiKey
from moldau.wire.codec import Message


@handles(ApiKey.END_QUORUM_EPOCH, versions=(1, 1), inter_broker=True)
async def end_quorum_epoch(request: Message, session: Session, broker: Broker) -> dict[str, Any]:
    try:
        check_cluster_id(broker, request.cluster_id)
        partition = metadata_partition(request.topics)
    except MoldauError as error:
        return raft_error_response(error_code(error))
    try:
        if partition.leader_id < 0 or partition.leader_epoch < 0:
            raise InvalidRequestError(
                f"node {partition.leader_id} cannot have led in epoch {partition.leader_epoch}"
            )
        check_known_voter(partition.leader_id, session, broker)
        preferred_candidates = tuple(
            ReplicaKey(each.candidate_id, each.candidate_directory_id)
            for each in partition.preferred_candidates
        )
        reply = await broker.quorum.end_quorum_epoch(
            EndQuorumEpochRequest(
                leader_id=partition.leader_id,
                epoch=partition.leader_epoch,
                preferred_candidates=preferred_candidates,
            )
        )
        is_fenced = partition.leader_epoch < reply.epoch
        code = int(ErrorCode.fenced_leader_epoch if is_fenced else ErrorCode.none)
    except MoldauError as error:
        code = error_code(error)
        reply = QuorumEpochResponse(broker.quorum.epoch, broker.quorum.leader_id)
    return raft_response(code, {"leader_id": reply.leader_id, "leader_epoch": reply.epoch}, broker)
