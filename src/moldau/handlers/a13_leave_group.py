"""LeaveGroup: members leave, or are sent away by an operator.

Versions: up to 2 one member leaves by its id, and the answer is about it; from 3 on many may, each answered for itself,
static ones by their instance id alone; 4 brought the flexible encoding, 5 the reason for leaving.
"""

from typing import Any

from moldau.errors import MoldauError
from moldau.groups.requests import LeaveResult, LeavingMember
from moldau.server.broker import Broker
from moldau.server.errors import error_code
from moldau.server.registry import handles
from moldau.server.session import Session
from moldau.wire.api_keys import ApiKey

BATCHED_MEMBERS_VERSION = 3


@handles(ApiKey.LEAVE_GROUP, versions=(0, 5))
async def leave_group(request: Any, session: Session, broker: Broker) -> Any:
    try:
        reply = await broker.groups.leave(request.group_id, _leaving_members(request, session.api_version))
    except MoldauError as error:
        return {"throttle_time": 0, "error_code": error_code(error), "members": []}
    if session.api_version < BATCHED_MEMBERS_VERSION:
        return {"throttle_time": 0, "error_code": error_code(reply.members[0].error)}
    return {
        "throttle_time": 0,
        "error_code": 0,
        "members": [_member_response(member) for member in reply.members],
    }


def _leaving_members(request: Any, version: int) -> list[LeavingMember]:
    if version < BATCHED_MEMBERS_VERSION:
        return [LeavingMember(request.member_id, None)]
    return [
        LeavingMember(each.member_id, each.group_instance_id, each.get("reason") or "")
        for each in request.members
    ]


def _member_response(member: LeaveResult) -> dict[str, Any]:
    return {
        "member_id": member.member_id,
        "group_instance_id": member.instance_id,
        "error_code": error_code(member.error),
    }
