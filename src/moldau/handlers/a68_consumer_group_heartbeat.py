"""ConsumerGroupHeartbeat: refused, because consumer groups of KIP-848 are not served.

The response is Kafka's response in a cluster without the feature `group.version`. The API is advertised, because
librdkafka waits for a broker that advertises it, without an error (docs/decisions/0026-refused-apis.md).
"""

from moldau.error_codes import ErrorCode
from moldau.server.api import Broker, RequestContext, handles
from moldau.wire.messages import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse


@handles(versions=(0, 1))
async def consumer_group_heartbeat(
    request: ConsumerGroupHeartbeatRequest, session: RequestContext, broker: Broker
) -> ConsumerGroupHeartbeatResponse:
    return {
        "error_code": ErrorCode.unsupported_version,
        "error_message": "the consumer group protocol is not supported: set group.protocol=classic",
        "member_epoch": 0,
        "heartbeat_interval": 0,
    }
