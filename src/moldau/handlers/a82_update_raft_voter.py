"""UpdateRaftVoter: a voter sends its new endpoints to the leader of the metadata quorum.

Only nodes send this request. Responds when the change is committed. The response always contains the current leader. If
the epoch of the request is not the leader's epoch, the response is an error.
"""

from moldau.error_codes import ErrorCode, error_code
from moldau.errors import MoldauError, NotControllerError
from moldau.server.api import Broker, RequestContext, handles
from moldau.server.raft_requests import check_cluster_id, leadership_error, voter_from_request
from moldau.wire.messages import UpdateRaftVoterRequest, UpdateRaftVoterResponse


@handles(versions=(0, 0), inter_broker=True)
async def update_raft_voter(
    request: UpdateRaftVoterRequest, session: RequestContext, broker: Broker
) -> UpdateRaftVoterResponse:
    quorum = broker.quorum
    try:
        check_cluster_id(broker, request.cluster_id)
        voter = voter_from_request(request, broker)
        code = leadership_error(request.current_leader_epoch, quorum.epoch, is_leader=quorum.is_leader)
        if code == ErrorCode.none:
            await quorum.update_voter(voter)
        return _response(code, broker)
    except NotControllerError:
        return _response(ErrorCode.not_leader_or_follower, broker)
    except MoldauError as error:
        return _response(error_code(error), broker)


def _response(code: int, broker: Broker) -> UpdateRaftVoterResponse:
    host, port = broker.quorum.leader_endpoint() or ("", -1)
    return {
        "error_code": code,
        "current_leader": {
            "leader_id": broker.quorum.leader_id,
            "leader_epoch": broker.quorum.epoch,
            "host": host,
            "port": port,
        },
    }
