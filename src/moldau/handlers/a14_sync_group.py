"""SyncGroup: the leader brings the assignment, every member takes its part home.

Versions: 3 brought static members, 4 the flexible encoding; from 5 on a member must say which protocol it believes
was chosen, and is told.
"""

from typing import Any

from moldau.errors import InconsistentGroupProtocolError, MoldauError
from moldau.groups.requests import SyncRequest
from moldau.server.broker import Broker
from moldau.server.errors import error_code
from moldau.server.registry import handles
from moldau.server.session import Session
from moldau.wire.api_keys import ApiKey

PROTOCOL_VERSION = 5


@handles(ApiKey.SYNC_GROUP, versions=(0, 5))
async def sync_group(request: Any, session: Session, broker: Broker) -> Any:
    try:
        sync = _sync_request(request, session.api_version)
        # The answer waits for the leader, and the request would keep its frame for so long.
        del request
        reply = await broker.groups.sync(sync)
    except MoldauError as error:
        return {
            "throttle_time": 0,
            "error_code": error_code(error),
            "protocol_type": None,
            "protocol_name": None,
            "assignment": b"",
        }
    return {
        "throttle_time": 0,
        "error_code": 0,
        "protocol_type": reply.protocol_type,
        "protocol_name": reply.protocol_name,
        "assignment": reply.assignment,
    }


def _sync_request(request: Any, version: int) -> SyncRequest:
    protocol_type, protocol_name = request.get("protocol_type"), request.get("protocol_name")
    if version >= PROTOCOL_VERSION and (protocol_type is None or protocol_name is None):
        raise InconsistentGroupProtocolError("the member does not say which protocol it goes by")
    return SyncRequest(
        group_id=request.group_id,
        generation=request.generation_id,
        member_id=request.member_id,
        instance_id=request.get("group_instance_id"),
        protocol_type=protocol_type,
        protocol_name=protocol_name,
        # Copied: the frame goes, the assignment stays.
        assignments={each.member_id: bytes(each.assignment) for each in request.assignments},
    )
