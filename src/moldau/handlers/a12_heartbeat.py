"""Heartbeat: keeps a member's session alive. An error code tells the member that the group rebalances.

Versions: 3 added static members, 4 the flexible encoding.
"""

from moldau.errors import MoldauError
from moldau.groups.requests import MemberIdentity
from moldau.server.broker import Broker
from moldau.server.error_codes import error_code
from moldau.server.registry import handles
from moldau.server.request_context import RequestContext
from moldau.wire.api_keys import ApiKey
from moldau.wire.messages import HeartbeatRequest, HeartbeatResponse


@handles(ApiKey.HEARTBEAT, versions=(0, 4))
async def heartbeat(request: HeartbeatRequest, session: RequestContext, broker: Broker) -> HeartbeatResponse:
    identity = MemberIdentity(
        group_id=request.group_id,
        generation=request.generation_id,
        member_id=request.member_id,
        instance_id=request.group_instance_id,
    )
    try:
        await broker.groups.heartbeat(identity)
    except MoldauError as error:
        return {"error_code": error_code(error)}
    return {}
