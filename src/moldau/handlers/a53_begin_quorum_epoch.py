"""BeginQuorumEpoch: a node that was elected leader of the metadata quorum says so, and where it is. Between nodes only.

Only v1 is served, the first that says where the leader is. It is repeated until it is answered. An older epoch than
this node's gets FENCED_LEADER_EPOCH, with the leader of today; a leader that is no voter, as long as this node hears
another one, INCONSISTENT_VOTER_SET.
"""

from typing import Any

from moldau.errors import InvalidRequestError, MoldauError
from moldau.raft.kafka_network_channel import endpoints_from_message
from moldau.raft.messages import BeginQuorumEpochRequest, QuorumEpochResponse, ReplicaKey
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


@handles(ApiKey.BEGIN_QUORUM_EPOCH, versions=(1, 1), inter_broker=True)
async def begin_quorum_epoch(request: Message, session: Session, broker: Broker) -> dict[str, Any]:
    try:
        check_cluster_id(broker, request.cluster_id)
        partition = metadata_partition(request.topics)
    except MoldauError as error:
        return raft_error_response(error_code(error))
    try:
        if partition.leader_id < 0 or partition.leader_epoch < 0:
            raise InvalidRequestError(
                f"node {partition.leader_id} cannot lead in epoch {partition.leader_epoch}"
            )
        check_known_voter(partition.leader_id, session, broker)
        reply = await broker.quorum.begin_quorum_epoch(
            BeginQuorumEpochRequest(
                leader_id=partition.leader_id,
                epoch=partition.leader_epoch,
                voter=ReplicaKey(request.voter_id, partition.voter_directory_id),
                endpoints=endpoints_from_message(request.leader_endpoints),
            )
        )
        is_fenced = partition.leader_epoch < reply.epoch
        code = int(ErrorCode.fenced_leader_epoch if is_fenced else ErrorCode.none)
    except MoldauError as error:
        code = error_code(error)
        reply = QuorumEpochResponse(broker.quorum.epoch, broker.quorum.leader_id)
    return raft_response(code, {"leader_id": reply.leader_id, "leader_epoch": reply.epoch}, broker)
