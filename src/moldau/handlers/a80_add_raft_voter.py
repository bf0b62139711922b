"""AddRaftVoter: a node that follows the metadata log becomes a voter of the quorum. Answered when that is committed.

One change of voters at a time, and only a replica that has caught up. Version 1 lets the caller not wait for the
commit; here it is waited for all the same, for nothing is promised before.
"""

from typing import Any

from moldau.errors import MoldauError
from moldau.server.broker import Broker
from moldau.server.raft_requests import check_cluster_id
from moldau.server.registry import handles
from moldau.server.session import Session
from moldau.server.voter_changes import voter_from_request, voter_response
from moldau.wire.api_keys import ApiKey
from moldau.wire.codec import Message


@handles(ApiKey.ADD_RAFT_VOTER, versions=(0, 1), forwarded=True)
async def add_raft_voter(request: Message, session: Session, broker: Broker) -> dict[str, Any]:
    try:
        check_cluster_id(broker, request.cluster_id)
        await broker.quorum.add_voter(voter_from_request(request, broker), request.timeout)
    except MoldauError as error:
        return voter_response(error)
    return voter_response(None)
