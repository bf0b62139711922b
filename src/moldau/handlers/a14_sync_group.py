"""SyncGroup: the group leader sends the assignments, and every member gets its own assignment.

Versions: 3 added static members, 4 the flexible encoding, 5 the protocol type and name. The member must
send both, and the response repeats them.
"""

from moldau.error_codes import error_code
from moldau.errors import InconsistentGroupProtocolError, MoldauError
from moldau.groups.requests import SyncRequest
from moldau.server.api import Broker, RequestContext, handles
from moldau.wire.messages import SyncGroupRequest, SyncGroupResponse

PROTOCOL_VERSION = 5


@handles(versions=(0, 5))
async def sync_group(request: SyncGroupRequest, session: RequestContext, broker: Broker) -> SyncGroupResponse:
    try:
        sync = _sync_request(request, session.api_version)
        # Drop the request, because it would keep its frame in memory while this call waits for the group's leader.
        del request
        reply = await broker.groups.sync(sync)
    except MoldauError as error:
        return {"error_code": error_code(error), "assignment": b""}
    return {"protocol_type": reply.protocol_type, "protocol_name": reply.protocol_name, "assignment": reply.assignment}


def _sync_request(request: SyncGroupRequest, version: int) -> SyncRequest:
    protocol_type, protocol_name = request.protocol_type, request.protocol_name
    if version >= PROTOCOL_VERSION and (protocol_type is None or protocol_name is None):
        raise InconsistentGroupProtocolError("the member must send its protocol type and protocol name")
    return SyncRequest(
        group_id=request.group_id,
        generation=request.generation_id,
        member_id=request.member_id,
        instance_id=request.group_instance_id,
        protocol_type=protocol_type,
        protocol_name=protocol_name,
        # Copy the assignments, because the group keeps them, and views would keep the whole request frame in memory.
        assignments={each.member_id: bytes(each.assignment) for each in request.assignments},
    )
