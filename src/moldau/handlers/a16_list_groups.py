"""ListGroups: returns all groups that this broker coordinates.

Versions: 3 added the flexible encoding, 4 a filter by state, 5 a filter by type.
"""

from moldau.errors import MoldauError
from moldau.server.broker import Broker
from moldau.server.error_codes import error_code
from moldau.server.registry import handles
from moldau.server.request_context import RequestContext
from moldau.wire.api_keys import ApiKey
from moldau.wire.messages import ListGroupsRequest, ListGroupsResponse


@handles(ApiKey.LIST_GROUPS, versions=(0, 5))
async def list_groups(request: ListGroupsRequest, session: RequestContext, broker: Broker) -> ListGroupsResponse:
    try:
        groups = await broker.groups.list_groups(request.states_filter, request.types_filter)
    except MoldauError as error:
        return {"error_code": error_code(error)}
    return {
        "groups": [
            {
                "group_id": each.group_id,
                "protocol_type": each.protocol_type,
                "group_state": str(each.state),
                "group_type": each.type,
            }
            for each in groups
        ]
    }
