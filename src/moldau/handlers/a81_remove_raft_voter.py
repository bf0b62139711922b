"""RemoveRaftVoter: removes a voter from the metadata quorum. The voter becomes an observer.

Responds when the change is committed. Only one voter is added or removed at a time. A leader that removes itself
resigns when the change is committed.
"""

from moldau.raft.messages import ReplicaKey
from moldau.server.api import Broker, RequestContext, handles
from moldau.server.raft_requests import check_cluster_id
from moldau.wire.messages import RemoveRaftVoterRequest, RemoveRaftVoterResponse


@handles(versions=(0, 0), forwarded=True)
async def remove_raft_voter(
    request: RemoveRaftVoterRequest, session: RequestContext, broker: Broker
) -> RemoveRaftVoterResponse:
    check_cluster_id(broker, request.cluster_id)
    await broker.quorum.remove_voter(ReplicaKey(request.voter_id, request.voter_directory_id))
    return {}
