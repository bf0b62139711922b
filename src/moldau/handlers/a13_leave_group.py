"""LeaveGroup: members leave a group, or an operator removes them.

Versions: 0-2 have one member, identified by its member id. Since 3, a request has several members, each with its own
error code. Static members can then be identified by their instance id alone. 4 added the flexible encoding, 5 the
reason.
"""

from moldau.groups.requests import LeavingMember
from moldau.server.api import Broker, RequestContext, handles, top_level_error
from moldau.server.error_codes import error_code
from moldau.wire.messages import LeaveGroupRequest, LeaveGroupResponse

BATCHED_MEMBERS_VERSION = 3


@handles(versions=(0, 5), error_response=top_level_error)
async def leave_group(request: LeaveGroupRequest, session: RequestContext, broker: Broker) -> LeaveGroupResponse:
    results = await broker.groups.leave(request.group_id, _leaving_members(request, session.api_version))
    if session.api_version < BATCHED_MEMBERS_VERSION:
        return {"error_code": error_code(results[0].error)}
    return {
        "members": [
            {"member_id": each.member_id, "group_instance_id": each.instance_id, "error_code": error_code(each.error)}
            for each in results
        ]
    }


def _leaving_members(request: LeaveGroupRequest, version: int) -> list[LeavingMember]:
    if version < BATCHED_MEMBERS_VERSION:
        return [LeavingMember(request.member_id or "", None)]
    return [LeavingMember(each.member_id, each.group_instance_id, each.reason or "") for each in request.members or ()]
