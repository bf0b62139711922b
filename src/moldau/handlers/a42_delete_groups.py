"""DeleteGroups: deletes groups without members, including all their offsets. Versions 0-2 have the same fields."""

from moldau.error_codes import error_code
from moldau.errors import MoldauError
from moldau.server.api import Broker, RequestContext, handles
from moldau.wire.messages import DeleteGroupsRequest, DeleteGroupsResponse, DeleteGroupsResponseDeletableGroupResult


@handles(versions=(0, 2))
async def delete_groups(request: DeleteGroupsRequest, session: RequestContext, broker: Broker) -> DeleteGroupsResponse:
    results: list[DeleteGroupsResponseDeletableGroupResult] = []
    for group_id in dict.fromkeys(request.groups_names):
        code = 0
        try:
            await broker.groups.delete_group(group_id)
        except MoldauError as error:
            code = error_code(error)
        results.append({"group_id": group_id, "error_code": code})
    return {"results": results}
