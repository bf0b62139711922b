"""DescribeAcls: rejected with SECURITY_DISABLED, because there is no authorizer. All versions have the same fields."""

from moldau.error_codes import ErrorCode
from moldau.server.acl_requests import check_known_elements
from moldau.server.api import Broker, RequestContext, handles
from moldau.wire.messages import DescribeAclsRequest, DescribeAclsResponse


@handles(versions=(1, 3))
async def describe_acls(request: DescribeAclsRequest, session: RequestContext, broker: Broker) -> DescribeAclsResponse:
    check_known_elements(
        request.resource_type_filter, request.pattern_type_filter, request.operation, request.permission_type
    )
    return {
        "error_code": ErrorCode.security_disabled,
        "error_message": "No Authorizer is configured on the broker",
        "resources": [],
    }
