"""JoinGroup: a consumer becomes a member of a group, or says that it still is one when the group rebalances.

The answer waits until the rebalance has gathered the members; the leader's lists them all.

Versions: before 1 the session timeout is the rebalance timeout too; from 4 on a new member is first sent away with
its id; 5 brought static members, 6 the flexible encoding, 7 the protocol type, 8 the reason for joining, 9 the
word to a leader that the assignment stands.
"""

from typing import Any

from moldau.controller.ids import random_uuid
from moldau.errors import MemberIdRequiredError, MoldauError
from moldau.groups.requests import NO_GENERATION, JoinRequest, JoinResponse, Protocol
from moldau.server.broker import Broker
from moldau.server.errors import error_code
from moldau.server.registry import handles
from moldau.server.session import Session
from moldau.wire.api_keys import ApiKey

MEMBER_ID_REQUIRED_VERSION = 4
NULL_PROTOCOL_VERSION = 7
SKIP_ASSIGNMENT_VERSION = 9

MEMBER_ID_PREFIX_LENGTH_MAX = 255
"""Characters of a member's own name that the id it is given begins with."""


@handles(ApiKey.JOIN_GROUP, versions=(0, 9))
async def join_group(request: Any, session: Session, broker: Broker) -> Any:
    join = _join_request(request, session, broker)
    # The answer may be a long time in coming, and the request would keep its frame for so long.
    del request
    try:
        reply = await broker.groups.join(join)
    except MoldauError as error:
        return _error_response(join.member_id, session.api_version, error)
    return _response(reply)


def _join_request(request: Any, session: Session, broker: Broker) -> JoinRequest:
    version, client_id = session.api_version, session.client_id or ""
    instance_id: str | None = request.get("group_instance_id")
    # A name as long as can be would leave no room for the rest of the id.
    name = (client_id if instance_id is None else instance_id)[:MEMBER_ID_PREFIX_LENGTH_MAX]
    return JoinRequest(
        group_id=request.group_id,
        member_id=request.member_id,
        new_member_id=f"{name}-{random_uuid(broker.platform.random)}",
        instance_id=instance_id,
        client_id=client_id,
        client_host=session.client_host,
        session_timeout_ms=request.session_timeout,
        rebalance_timeout_ms=request.get("rebalance_timeout", request.session_timeout),
        protocol_type=request.protocol_type,
        # Copied: what the request says belongs to its frame, and members are remembered for longer.
        protocols=tuple(Protocol(each.name, bytes(each.metadata)) for each in request.protocols),
        requires_known_member_id=version >= MEMBER_ID_REQUIRED_VERSION and instance_id is None,
        supports_skipping_assignment=version >= SKIP_ASSIGNMENT_VERSION,
        reason=request.get("reason") or "",
    )


def _response(reply: JoinResponse) -> dict[str, Any]:
    return {
        "throttle_time": 0,
        "error_code": 0,
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


def _error_response(member_id: str, version: int, error: MoldauError) -> dict[str, Any]:
    return {
        "throttle_time": 0,
        "error_code": error_code(error),
        "generation_id": NO_GENERATION,
        "protocol_type": None,
        "protocol_name": None if version >= NULL_PROTOCOL_VERSION else "",
        "leader": "",
        "skip_assignment": False,
        "member_id": error.member_id if isinstance(error, MemberIdRequiredError) else member_id,
        "members": [],
    }
