"""EndQuorumEpoch: the leader of the metadata quorum resigns and names its preferred successors.

Only nodes send this request. Only v1 is served, because it is the first version with the directory ids of successors.
Errors:

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
from moldau.wire.messages import EndQuorumEpochRequest, EndQuorumEpochResponse


@handles(ApiKey.END_QUORUM_EPOCH, versions=(1, 1), inter_broker=True)
async def end_quorum_epoch(
    request: EndQuorumEpochRequest, session: RequestContext, broker: Broker
) -> EndQuorumEpochResponse:
    try:
        check_cluster_id(broker, request.cluster_id)
        partition = metadata_partition(request.topics)
    except MoldauError as error:
        return {"error_code": error_code(error)}
    try:
        if partition.leader_id < 0 or partition.leader_epoch < 0:
            raise InvalidRequestError(f"node {partition.leader_id} cannot have led in epoch {partition.leader_epoch}")
        check_known_voter(partition.leader_id, session, broker)
        reply = await broker.quorum.end_quorum_epoch(
            raft.EndQuorumEpochRequest(
                leader_id=partition.leader_id,
                epoch=partition.leader_epoch,
                preferred_candidates=tuple(
                    raft.ReplicaKey(each.candidate_id, each.candidate_directory_id)
                    for each in partition.preferred_candidates
                ),
            )
        )
        code = int(epoch_error(partition.leader_epoch, reply.epoch))
    except MoldauError as error:
        code = error_code(error)
        reply = raft.QuorumEpochResponse(broker.quorum.epoch, broker.quorum.leader_id)
    return quorum_epoch_response(code, reply, broker)
