"""ShareGroupHeartbeat: refused, because share groups are not served.

The response is Kafka's response in a cluster without the feature `share.version`. The API is advertised, because
librdkafka waits for a broker that advertises it, without an error (docs/decisions/0026-refused-apis.md).
"""

from moldau.error_codes import ErrorCode
from moldau.server.api import Broker, RequestContext, handles
from moldau.wire.messages import ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse


@handles(versions=(1, 1))
async def share_group_heartbeat(
    request: ShareGroupHeartbeatRequest, session: RequestContext, broker: Broker
) -> ShareGroupHeartbeatResponse:
    return {
        "error_code": ErrorCode.unsupported_version,
        "error_message": "share groups are not supported",
        "member_epoch": 0,
        "heartbeat_interval": 0,
    }
