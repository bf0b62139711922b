"""DeleteAcls: each filter is rejected with SECURITY_DISABLED, because there is no authorizer. All versions have the
same fields."""

from moldau.error_codes import ErrorCode
from moldau.server.acl_requests import NO_AUTHORIZER, check_known_elements
from moldau.server.api import Broker, RequestContext, handles
from moldau.wire.messages import DeleteAclsRequest, DeleteAclsResponse


@handles(versions=(1, 3))
async def delete_acls(request: DeleteAclsRequest, session: RequestContext, broker: Broker) -> DeleteAclsResponse:
    for each in request.filters:
        check_known_elements(each.resource_type_filter, each.pattern_type_filter, each.operation, each.permission_type)
    return {
        "filter_results": [
            {"error_code": ErrorCode.security_disabled, "error_message": NO_AUTHORIZER, "matching_acls": []}
            for _ in request.filters
        ]
    }
