"""SaslHandshake: rejected, because listeners are plaintext and need no authentication. The connection stays usable."""

from moldau.error_codes import ErrorCode
from moldau.server.api import Broker, RequestContext, handles
from moldau.wire.messages import SaslHandshakeRequest, SaslHandshakeResponse


@handles(versions=(0, 1))
async def sasl_handshake(
    request: SaslHandshakeRequest, session: RequestContext, broker: Broker
) -> SaslHandshakeResponse:
    return {"error_code": ErrorCode.illegal_sasl_state, "mechanisms": []}
