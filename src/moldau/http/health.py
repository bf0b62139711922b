"""Health responses, which a node gives without loading the HTTP API.

`/livez` says that the event loop runs, whatever the state of the cluster. `/readyz` and `/healthz` say whether clients
can use this node. `/healthcheck` is always 200 and names the leader of the cluster.
"""

from collections.abc import Mapping
from typing import NamedTuple

from moldau.broker_lifecycle.state import BrokerState
from moldau.server.api import Broker

PATHS = frozenset({"/healthcheck", "/livez", "/readyz", "/healthz"})
RETRY_AFTER_S = 1
IMAGE_LAG_MAX = 1_000
"""A node that is more metadata records behind is not ready. Every change leaves the image behind for a moment."""


class HealthResponse(NamedTuple):
    status: int
    body: Mapping[str, object]


def health_response(path: str, broker: Broker) -> HealthResponse:
    """Returns the response to one of `PATHS`."""
    match path:
        case "/healthcheck":
            leader_id = broker.quorum.leader_id
            return HealthResponse(200, {"status": "up", "broker_id": broker.broker_id, "leader_broker_id": leader_id})
        case "/livez":
            return HealthResponse(200, {"status": "live"})
    reasons = unready_reasons(broker)
    if reasons:
        return HealthResponse(503, {"status": "not ready", "reasons": reasons})
    return HealthResponse(200, {"status": "ready"})


def unready_reasons(broker: Broker) -> list[str]:
    """Returns why clients cannot use this node; an empty list if it is ready."""
    lifecycle = broker.lifecycle
    if lifecycle.phase in (BrokerState.CONTROLLED_SHUTDOWN, BrokerState.STOPPED):
        return ["the node is shutting down"]
    reasons = []
    if not broker.ready.is_set():
        reasons.append("the node is starting")
    if not lifecycle.is_active:
        reasons.append("the broker is fenced")
    if not lifecycle.lease.is_valid():
        reasons.append("the broker has no valid lease")
    lag = broker.quorum.high_watermark - 1 - broker.metadata.image.offset
    if lag > IMAGE_LAG_MAX:
        reasons.append(f"the metadata image is {lag} records behind")
    return reasons
