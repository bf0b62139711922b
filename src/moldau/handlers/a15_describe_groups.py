"""DescribeGroups: returns the state, the protocol and the members of groups.

Versions: 3 added authorized operations, 4 static members, 5 the flexible encoding. A group that does not exist has the
state Dead. Since 6, it also has the error GROUP_ID_NOT_FOUND.
"""

from moldau.error_codes import error_code, error_message
from moldau.errors import GroupIdNotFoundError, MoldauError
from moldau.groups.requests import GroupDescription, GroupState
from moldau.server.api import Broker, RequestContext, handles
from moldau.server.authorized_operations import GROUP_OPERATIONS, NOT_REQUESTED
from moldau.wire.messages import DescribeGroupsRequest, DescribeGroupsResponse, DescribeGroupsResponseDescribedGroup

GROUP_ID_NOT_FOUND_VERSION = 6


@handles(versions=(0, 6))
async def describe_groups(
    request: DescribeGroupsRequest, session: RequestContext, broker: Broker
) -> DescribeGroupsResponse:
    operations = GROUP_OPERATIONS if request.include_authorized_operations else NOT_REQUESTED
    groups: list[DescribeGroupsResponseDescribedGroup] = []
    # Describe each group only once, so that a small request cannot cause a huge response.
    for group_id in dict.fromkeys(request.groups):
        failure: MoldauError | None = None
        try:
            group = await broker.groups.describe(group_id)
        except GroupIdNotFoundError as error:
            failure = error if session.api_version >= GROUP_ID_NOT_FOUND_VERSION else None
            group = GroupDescription(group_id, GroupState.DEAD, "", "", ())
        except MoldauError as error:
            failure = error
            group = GroupDescription(group_id, "", "", "", ())
        groups.append(
            {
                "error_code": error_code(failure),
                "error_message": error_message(failure),
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
                        "member_metadata": each.subscription,
                        "member_assignment": each.assignment,
                    }
                    for each in group.members
                ],
                "authorized_operations": operations,
            }
        )
    return {"groups": groups}
