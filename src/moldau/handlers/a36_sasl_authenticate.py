"""SaslAuthenticate: rejected, because listeners are plaintext and need no authentication. The connection stays usable.

v1 added the lifetime of the session.
"""

from moldau.error_codes import ErrorCode
from moldau.server.api import Broker, RequestContext, handles
from moldau.wire.messages import SaslAuthenticateRequest, SaslAuthenticateResponse


@handles(versions=(0, 2))
async def sasl_authenticate(
    request: SaslAuthenticateRequest, session: RequestContext, broker: Broker
) -> SaslAuthenticateResponse:
    return {
        "error_code": ErrorCode.illegal_sasl_state,
        # Kafka's message: a plaintext connection counts as authenticated.
        "error_message": "SaslAuthenticate request received after successful authentication",
        "auth_bytes": b"",
    }
