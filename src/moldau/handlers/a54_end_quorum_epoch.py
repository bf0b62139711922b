"""EndQuorumEpoch: the leader of the metadata quorum resigns and names its preferred successors.

Only nodes send this request. Only v1 is served, because it is the first version with the directory ids of successors.
The errors are those of BeginQuorumEpoch.
"""

from moldau.raft import messages as raft
from moldau.server.api import Broker, RequestContext, handles, top_level_error
from moldau.server.raft_requests import check_cluster_id, metadata_partition, quorum_epoch_response
from moldau.wire.messages import EndQuorumEpochRequest, EndQuorumEpochResponse


@handles(versions=(1, 1), error_response=top_level_error, inter_broker=True)
async def end_quorum_epoch(
    request: EndQuorumEpochRequest, session: RequestContext, broker: Broker
) -> EndQuorumEpochResponse:
    check_cluster_id(broker, request.cluster_id)
    partition = metadata_partition(request.topics)
    announcement = raft.EndQuorumEpochRequest(
        leader_id=partition.leader_id,
        epoch=partition.leader_epoch,
        preferred_candidates=tuple(
            raft.ReplicaKey(each.candidate_id, each.candidate_directory_id) for each in partition.preferred_candidates
        ),
    )
    return await quorum_epoch_response(broker.quorum.end_quorum_epoch, announcement, session, broker)
