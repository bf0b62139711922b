"""Heartbeat: keeps a member's session alive. An error code tells the member that the group rebalances.

Versions: 3 added static members, 4 the flexible encoding.
"""

from moldau.groups.requests import MemberIdentity
from moldau.server.api import Broker, RequestContext, handles, top_level_error
from moldau.wire.messages import HeartbeatRequest, HeartbeatResponse


@handles(versions=(0, 4), error_response=top_level_error)
async def heartbeat(request: HeartbeatRequest, session: RequestContext, broker: Broker) -> HeartbeatResponse:
    identity = MemberIdentity(
        group_id=request.group_id,
        generation=request.generation_id,
        member_id=request.member_id,
        instance_id=request.group_instance_id,
    )
    await broker.groups.heartbeat(identity)
    return {}
