"""Heartbeat: a member says that it is alive, and hears when the group rebalances.

Versions: 3 brought static members, 4 the flexible encoding.
"""

from typing import Any

from moldau.errors import MoldauError
from moldau.groups.requests import MemberIdentity
from moldau.server.broker import Broker
from moldau.server.errors import error_code
from moldau.server.registry import handles
from moldau.server.session import Session
from moldau.wire.api_keys import ApiKey


@handles(ApiKey.HEARTBEAT, versions=(0, 4))
async def heartbeat(request: Any, session: Session, broker: Broker) -> Any:
    identity = MemberIdentity(
        group_id=request.group_id,
        generation=request.generation_id,
        member_id=request.member_id,
        instance_id=request.get("group_instance_id"),
    )
    try:
        await broker.groups.heartbeat(identity)
    except MoldauError as error:
        return {"throttle_time": 0, "error_code": error_code(error)}
    return {"throttle_time": 0, "error_code": 0}
