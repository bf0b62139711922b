"""AddRaftVoter: makes an observer of the metadata log a voter of the quorum. Responds when the change is committed.

Only one voter is added or removed at a time, and only a replica that has caught up is added. In version 1 a client can
request a response before the commit. This option is ignored, because an uncommitted change may be lost.
"""

from moldau.server.api import Broker, RequestContext, handles
from moldau.server.raft_requests import check_cluster_id, voter_from_request
from moldau.wire.messages import AddRaftVoterRequest, AddRaftVoterResponse


@handles(versions=(0, 1), forwarded=True)
async def add_raft_voter(request: AddRaftVoterRequest, session: RequestContext, broker: Broker) -> AddRaftVoterResponse:
    check_cluster_id(broker, request.cluster_id)
    await broker.quorum.add_voter(voter_from_request(request, broker), request.timeout)
    return {}
