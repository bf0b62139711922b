"""RemoveRaftVoter: a voter leaves the metadata quorum, and follows it from then on. Answered when that is committed.

One change of voters at a time. A leader may remove itself: it resigns when that is committed.
"""

from typing import Any

from moldau.errors import MoldauError
from moldau.raft.messages import ReplicaKey
from moldau.server.broker import Broker
from moldau.server.raft_requests import check_cluster_id
from moldau.server.registry import handles
from moldau.server.session import Session
from moldau.server.voter_changes import voter_response
from moldau.wire.api_keys import ApiKey
from moldau.wire.codec import Message


@handles(ApiKey.REMOVE_RAFT_VOTER, versions=(0, 0), forwarded=True)
async def remove_raft_voter(request: Message, session: Session, broker: Broker) -> dict[str, Any]:
    try:
        check_cluster_id(broker, request.cluster_id)
        await broker.quorum.remove_voter(ReplicaKey(request.voter_id, request.voter_directory_id))
    except MoldauError as error:
        return voter_response(error)
    return voter_response(None)
