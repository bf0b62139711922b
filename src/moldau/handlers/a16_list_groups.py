"""ListGroups: returns all groups that this broker coordinates.

Versions: 3 added the flexible encoding, 4 a filter by state, 5 a filter by type.
"""

from moldau.server.api import Broker, RequestContext, handles, top_level_error
from moldau.wire.messages import ListGroupsRequest, ListGroupsResponse


@handles(versions=(0, 5), error_response=top_level_error)
async def list_groups(request: ListGroupsRequest, session: RequestContext, broker: Broker) -> ListGroupsResponse:
    groups = await broker.groups.list_groups(request.states_filter, request.types_filter)
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
