"""CreateAcls: each creation is rejected with SECURITY_DISABLED, because there is no authorizer. All versions have the
same fields."""

from moldau.error_codes import ErrorCode
from moldau.server.acl_requests import NO_AUTHORIZER, check_known_elements
from moldau.server.api import Broker, RequestContext, handles
from moldau.wire.messages import CreateAclsRequest, CreateAclsResponse


@handles(versions=(1, 3))
async def create_acls(request: CreateAclsRequest, session: RequestContext, broker: Broker) -> CreateAclsResponse:
    for each in request.creations:
        check_known_elements(each.resource_type, each.resource_pattern_type, each.operation, each.permission_type)
    return {
        "results": [
            {"error_code": ErrorCode.security_disabled, "error_message": NO_AUTHORIZER} for _ in request.creations
        ]
    }
