"""BeginQuorumEpoch: the new leader of the metadata quorum announces itself and its endpoints.

Only nodes send this request. Only v1 is served, because it is the first version with endpoints. The leader repeats the
request until it gets a response. Errors:

- FENCED_LEADER_EPOCH, with the current leader, if the epoch of the request is older than the epoch of this node.
- INCONSISTENT_VOTER_SET if the sender is not a known voter while this node has another live leader.
"""

from moldau.raft import messages as raft
from moldau.server.api import Broker, RequestContext, handles, top_level_error
from moldau.server.raft_requests import check_cluster_id, metadata_partition, quorum_epoch_response
from moldau.wire.messages import BeginQuorumEpochRequest, BeginQuorumEpochResponse


@handles(versions=(1, 1), error_response=top_level_error, inter_broker=True)
async def begin_quorum_epoch(
    request: BeginQuorumEpochRequest, session: RequestContext, broker: Broker
) -> BeginQuorumEpochResponse:
    check_cluster_id(broker, request.cluster_id)
    partition = metadata_partition(request.topics)
    announcement = raft.BeginQuorumEpochRequest(
        leader_id=partition.leader_id,
        epoch=partition.leader_epoch,
        voter=raft.ReplicaKey(request.voter_id, partition.voter_directory_id),
        endpoints=tuple(raft.VoterEndpoint(each.name, each.host, each.port) for each in request.leader_endpoints),
    )
    return await quorum_epoch_response(broker.quorum.begin_quorum_epoch, announcement, session, broker)
