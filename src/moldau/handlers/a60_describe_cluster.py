"""DescribeCluster: returns the cluster id, the controller and the brokers, with endpoints on the client's listener.

- v1 added the endpoint type, which is brokers (1) or controllers (2). Only brokers are supported.
- The controller id is the node of the active controller if the client can reach that node. Otherwise it is any broker,
  because all brokers forward requests to the controller.
- v2 can include fenced brokers. The response marks them as fenced.
"""

from moldau.error_codes import ErrorCode
from moldau.server.api import Broker, RequestContext, handles
from moldau.server.authorized_operations import CLUSTER_OPERATIONS, NOT_REQUESTED
from moldau.server.cluster_view import advertised_controller_id, reachable_brokers
from moldau.wire.messages import DescribeClusterRequest, DescribeClusterResponse

BROKERS = 1
CONTROLLERS = 2


@handles(versions=(0, 2))
async def describe_cluster(
    request: DescribeClusterRequest, session: RequestContext, broker: Broker
) -> DescribeClusterResponse:
    if request.endpoint_type == CONTROLLERS:
        return _error_response(
            ErrorCode.mismatched_endpoint_type,
            "The request was sent to an endpoint of type BROKER, but we wanted an endpoint of type CONTROLLER",
        )
    if request.endpoint_type != BROKERS:
        return _error_response(
            ErrorCode.unsupported_endpoint_type, f"Unsupported endpoint type {request.endpoint_type}"
        )
    image, listener = broker.metadata.image, session.connection.listener
    include_fenced = bool(request.include_fenced_brokers)
    return {
        "cluster_id": image.cluster_id,
        "controller_id": advertised_controller_id(image, listener, broker.broker_id),
        "brokers": [
            {
                "broker_id": each.broker_id,
                "host": endpoint.host,
                "port": endpoint.port,
                "rack": each.rack,
                "is_fenced": each.fenced,
            }
            for each, endpoint in reachable_brokers(image, listener, include_fenced=include_fenced)
        ],
        "cluster_authorized_operations": CLUSTER_OPERATIONS
        if request.include_cluster_authorized_operations
        else NOT_REQUESTED,
    }


def _error_response(code: ErrorCode, message: str) -> DescribeClusterResponse:
    return {"error_code": code, "error_message": message, "cluster_id": ""}
