"""DescribeGroups: the state, the protocol and the members of groups.

Versions: 3 brought authorized operations, 4 static members, 5 the flexible encoding. A group that is not there is
described as Dead; from 6 on it is an error of its own.
"""

from typing import Any

from moldau.errors import GroupIdNotFoundError, MoldauError
from moldau.groups.requests import GroupDescription, GroupState
from moldau.server.authorized_operations import GROUP_OPERATIONS, NOT_REQUESTED
from moldau.server.broker import Broker
from moldau.server.errors import error_code, error_message
from moldau.server.registry import handles
from moldau.server.session import Session
from moldau.wire.api_keys import ApiKey

GROUP_ID_NOT_FOUND_VERSION = 6


@handles(ApiKey.DESCRIBE_GROUPS, versions=(0, 6))
async def describe_groups(request: Any, session: Session, broker: Broker) -> Any:
    operations = GROUP_OPERATIONS if request.get("include_authorized_operations", False) else NOT_REQUESTED
    groups = []
    # Each once, or a small request could ask for a huge answer.
    for group_id in dict.fromkeys(request.groups):
        try:
            group = _group_response(await broker.groups.describe(group_id))
        except GroupIdNotFoundError as error:
            known = session.api_version < GROUP_ID_NOT_FOUND_VERSION
            group = _empty_group_response(group_id, GroupState.DEAD, None if known else error)
        except MoldauError as error:
            group = _empty_group_response(group_id, "", error)
        groups.append({**group, "authorized_operations": operations})
    return {"throttle_time": 0, "groups": groups}


def _group_response(group: GroupDescription) -> dict[str, Any]:
    return {
        "error_code": 0,
        "error_message": None,
        "group_id": group.group_id,
        "group_state": str(group.state),
        "protocol_type": group.protocol_type,
        "protocol_data": group.protocol_name,
        "members": [
            {
                "member_id": each.member_id,
                "group_instance_id": each.instance_id,
                "client_id": each.client_id,
                "client_host": each.client_host,
                "member_metadata": each.metadata,
                "member_assignment": each.assignment,
            }
            for each in group.members
        ],
    }


def _empty_group_response(group_id: str, state: str, error: MoldauError | None) -> dict[str, Any]:
    return {
        "error_code": error_code(error),
        "error_message": error_message(error),
        "group_id": group_id,
        "group_state": str(state),
        "protocol_type": "",
        "protocol_data": "",
        "members": [],
    }
