"""LeaveGroup: members leave a group, or an operator removes them.

Versions: 0-2 have one member, identified by its member id. Since 3, a request has several members, each with its own
error code. Static members can then be identified by their instance id alone. 4 added the flexible encoding, 5 the
reason.
"""

from moldau.error_codes import error_code
from moldau.groups.requests import LeavingMember
from moldau.server.api import Broker, RequestContext, handles, top_level_error
from moldau.wire.messages import LeaveGroupRequest, LeaveGroupResponse

BATCHED_MEMBERS_VERSION = 3


@handles(versions=(0, 5), error_response=top_level_error)
async def leave_group(request: LeaveGroupRequest, session: RequestContext, broker: Broker) -> LeaveGroupResponse:
    if session.api_version < BATCHED_MEMBERS_VERSION:
        (result,) = await broker.groups.leave(request.group_id, [LeavingMember(request.member_id or "", None)])
        return {"error_code": error_code(result.error)}
    members = [
        LeavingMember(each.member_id, each.group_instance_id, each.reason or "") for each in request.members or ()
    ]
    results = await broker.groups.leave(request.group_id, members)
    return {
        "members": [
            {"member_id": each.member_id, "group_instance_id": each.instance_id, "error_code": error_code(each.error)}
            for each in results
        ]
    }
