"""DescribeCluster: the cluster's id, its controller and its brokers, as the caller's listener reaches them.

- v1 asks for brokers (1) or controllers (2). Brokers are told of here; whoever wants controllers is at
  the wrong door.
- As controller it names the active one's broker where the caller can reach it, else any: they all hand on.
- v2 may ask for fenced brokers too, and marks them.
"""

from typing import Any

from moldau.server.authorized_operations import CLUSTER_OPERATIONS, NOT_REQUESTED
from moldau.server.broker import Broker
from moldau.server.cluster_view import advertised_controller_id, reachable_brokers
from moldau.server.errors import ErrorCode
from moldau.server.registry import handles
from moldau.server.session import Session
from moldau.wire.api_keys import ApiKey
from moldau.wire.codec import Message

BROKERS = 1
CONTROLLERS = 2


@handles(ApiKey.DESCRIBE_CLUSTER, versions=(0, 2))
async def describe_cluster(request: Message, session: Session, broker: Broker) -> dict[str, Any]:
    endpoint_type = request.get("endpoint_type", BROKERS)
    if endpoint_type == CONTROLLERS:
        return _error_response(
            ErrorCode.mismatched_endpoint_type,
            "The request was sent to an endpoint of type BROKER, but we wanted an endpoint of type "
            "CONTROLLER",
        )
    if endpoint_type != BROKERS:
        return _error_response(
            ErrorCode.unsupported_endpoint_type, f"Unsupported endpoint type {endpoint_type}"
        )
    image, listener = broker.metadata.image, session.connection.listener
    include_fenced = request.get("include_fenced_brokers", False)
    brokers = [
        {
            "broker_id": each.broker_id,
            "host": endpoint.host,
            "port": endpoint.port,
            "rack": each.rack,
            "is_fenced": each.fenced,
        }
        for each, endpoint in reachable_brokers(image, listener, include_fenced=include_fenced)
    ]
    asked = request.include_cluster_authorized_operations
    return {
        "throttle_time": 0,
        "error_code": int(ErrorCode.none),
        "error_message": None,
        "endpoint_type": BROKERS,
        "cluster_id": image.cluster_id,
        "controller_id": advertised_controller_id(image, listener, broker.broker_id),
        "brokers": brokers,
        "cluster_authorized_operations": CLUSTER_OPERATIONS if asked else NOT_REQUESTED,
    }


def _error_response(code: ErrorCode, message: str) -> dict[str, Any]:
    return {
        "throttle_time": 0,
        "error_code": int(code),
        "error_message": message,
        "endpoint_type": BROKERS,
        "cluster_id": "",
        "controller_id": -1,
        "brokers": [],
        "cluster_authorized_operations": NOT_REQUESTED,
    }
