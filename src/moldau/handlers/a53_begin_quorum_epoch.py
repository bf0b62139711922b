"""BeginQuorumEpoch: the new leader of the metadata quorum announces itself and its endpoints.

Only nodes send this request. Only v1 is served, because it is the first version with endpoints. The leader repeats the
request until it gets a response. Errors:

- FENCED_LEADER_EPOCH, with the current leader, if the epoch of the request is older than the epoch of this node.
- INCONSISTENT_VOTER_SET if the sender is not a known voter while this node has another live leader.
"""

from moldau.errors import InvalidRequestError, MoldauError
from moldau.raft import messages as raft
from moldau.server.broker import Broker
from moldau.server.error_codes import error_code
from moldau.server.raft_requests import (
    check_cluster_id,
    check_known_voter,
    epoch_error,
    metadata_partition,
    quorum_epoch_response,
)
from moldau.server.registry import handles
from moldau.server.request_context import RequestContext
from moldau.wire.api_keys import ApiKey
from moldau.wire.messages import BeginQuorumEpochRequest, BeginQuorumEpochResponse


@handles(ApiKey.BEGIN_QUORUM_EPOCH, versions=(1, 1), inter_broker=True)
async def begin_quorum_epoch(
    request: BeginQuorumEpochRequest, session: RequestContext, broker: Broker
) -> BeginQuorumEpochResponse:
    try:
        check_cluster_id(broker, request.cluster_id)
        partition = metadata_partition(request.topics)
    except MoldauError as error:
        return {"error_code": error_code(error)}
    try:
        if partition.leader_id < 0 or partition.leader_epoch < 0:
            raise InvalidRequestError(f"node {partition.leader_id} cannot lead in epoch {partition.leader_epoch}")
        check_known_voter(partition.leader_id, session, broker)
        reply = await broker.quorum.begin_quorum_epoch(
            raft.BeginQuorumEpochRequest(
                leader_id=partition.leader_id,
                epoch=partition.leader_epoch,
                voter=raft.ReplicaKey(request.voter_id, partition.voter_directory_id),
                endpoints=tuple(
                    raft.VoterEndpoint(each.name, each.host, each.port) for each in request.leader_endpoints
                ),
            )
        )
        code = int(epoch_error(partition.leader_epoch, reply.epoch))
    except MoldauError as error:
        code = error_code(error)
        reply = raft.QuorumEpochResponse(broker.quorum.epoch, broker.quorum.leader_id)
    return quorum_epoch_response(code, reply, broker)
