"""JoinGroup: a consumer joins a group, or rejoins it when the group rebalances.

Responds when all members have joined or the rebalance timeout is over. Only the response to the group leader lists the
members.

Versions: 0 has no rebalance timeout and uses the session timeout instead. Since 4, a new member first gets its member
id and joins again. 5 added static members, 6 the flexible encoding, 7 the protocol type, 8 the reason. Since 9, the
response can tell the group leader to skip the assignment.
"""

from moldau.controller.ids import random_uuid
from moldau.error_codes import error_code
from moldau.errors import MemberIdRequiredError, MoldauError
from moldau.groups.requests import NO_GENERATION, JoinRequest, Protocol
from moldau.server.api import Broker, RequestContext, handles
from moldau.wire.messages import JoinGroupRequest, JoinGroupResponse

REBALANCE_TIMEOUT_VERSION = 1
MEMBER_ID_REQUIRED_VERSION = 4
NULL_PROTOCOL_VERSION = 7
SKIP_ASSIGNMENT_VERSION = 9

MEMBER_ID_PREFIX_LENGTH_MAX = 255
"""A new member id starts with the client id or instance id, truncated to this many characters."""


@handles(versions=(0, 9))
async def join_group(request: JoinGroupRequest, session: RequestContext, broker: Broker) -> JoinGroupResponse:
    join = _join_request(request, session, broker)
    # Drop the request, because it would keep its frame in memory during the wait, which may be long.
    del request
    try:
        reply = await broker.groups.join(join)
    except MoldauError as error:
        return {
            "error_code": error_code(error),
            "generation_id": NO_GENERATION,
            "protocol_name": None if session.api_version >= NULL_PROTOCOL_VERSION else "",
            "leader": "",
            "member_id": error.member_id if isinstance(error, MemberIdRequiredError) else join.member_id,
        }
    return {
        "generation_id": reply.generation,
        "protocol_type": reply.protocol_type,
        "protocol_name": reply.protocol_name,
        "leader": reply.leader,
        "skip_assignment": reply.skip_assignment,
        "member_id": reply.member_id,
        "members": [
            {"member_id": each.member_id, "group_instance_id": each.instance_id, "metadata": each.metadata}
            for each in reply.members
        ],
    }


def _join_request(request: JoinGroupRequest, session: RequestContext, broker: Broker) -> JoinRequest:
    version, client_id = session.api_version, session.client_id or ""
    instance_id = request.group_instance_id
    has_rebalance_timeout = version >= REBALANCE_TIMEOUT_VERSION
    prefix = (client_id if instance_id is None else instance_id)[:MEMBER_ID_PREFIX_LENGTH_MAX]
    return JoinRequest(
        group_id=request.group_id,
        member_id=request.member_id,
        new_member_id=f"{prefix}-{random_uuid(broker.platform.random)}",
        instance_id=instance_id,
        client_id=client_id,
        client_host=session.client_host,
        session_timeout_ms=request.session_timeout,
        rebalance_timeout_ms=request.rebalance_timeout if has_rebalance_timeout else request.session_timeout,
        protocol_type=request.protocol_type,
        # Copy the metadata, because the group keeps it, and a view would keep the whole request frame in memory.
        protocols=tuple(Protocol(each.name, bytes(each.metadata)) for each in request.protocols),
        requires_known_member_id=version >= MEMBER_ID_REQUIRED_VERSION and instance_id is None,
        supports_skipping_assignment=version >= SKIP_ASSIGNMENT_VERSION,
        reason=request.reason or "",
    )
