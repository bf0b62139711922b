"""Makes new connections secure: the TLS context of a client, its authentication, and what their failures mean."""

import random
import ssl
from collections.abc import Awaitable, Mapping
from typing import Any, Protocol

from moldau.client.errors import (
    AuthenticationError,
    ConnectionLostError,
    ErrorCode,
    KafkaError,
    UnsupportedVersionError,
)
from moldau.client.security.config import Sasl, Security
from moldau.client.security.sasl import NONCE_BYTES, start_exchange
from moldau.client.security.tls import create_tls_context
from moldau.wire.api_keys import ApiKey
from moldau.wire.codec import Message

TLS_HINT = "; does it want TLS? Then security.protocol is SSL or SASL_SSL"
SASL_HINT = "; does it want SASL? Then security.protocol is SASL_PLAINTEXT or SASL_SSL"
CERTIFICATE_HINT = "; does it want a certificate, in ssl.keystore.location (ssl.certificate.location)?"
"""What may be wrong when a broker hangs up on a client that has just come."""

_TRANSIENT_TLS_ERRORS = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)
"""The other side has gone, for whatever reason."""


class SaslChannel(Protocol):
    """A connection on which versions have been agreed."""

    def call(self, api: ApiKey, tree: Mapping[str, Any], *, timeout_ms: int) -> Awaitable[Message]: ...


class ChannelSecurity:
    def __init__(self, security: Security, random: random.Random) -> None:
        """Reads the files that are named; raises ValueError where they are of no use."""
        self.tls = None if security.tls is None else create_tls_context(security.tls)
        self.sasl = security.sasl
        self._random = random
        self.disconnect_hint = TLS_HINT if security.tls is None else ""
        """What is likely to be wrong when a broker hangs up before it has said anything."""
        if security.tls is not None and not (
            security.tls.certificate_pem or security.tls.certificate_location
        ):
            self.disconnect_hint = CERTIFICATE_HINT

    async def authenticate(self, connection: SaslChannel, timeout_ms: int) -> int:
        """Says who we are; gives for how many milliseconds that is good, 0 for any time. Raises AuthenticationError."""
        if self.sasl is None:
            return 0
        await _handshake(connection, self.sasl, timeout_ms)
        speaking = start_exchange(self.sasl, self._random.randbytes(NONCE_BYTES))
        said = next(speaking)
        while True:
            answer = await connection.call(
                ApiKey.SASL_AUTHENTICATE, {"auth_bytes": said}, timeout_ms=timeout_ms
            )
            if answer.error_code != ErrorCode.none:
                why = answer.error_message or "it does not say why"
                raise AuthenticationError(
                    f"{connection} does not accept {self.sasl.username!r}, by {self.sasl.mechanism}: {why}",
                    answer.error_code,
                )
            try:
                said = speaking.send(bytes(answer.auth_bytes))
            except StopIteration:
                return int(answer.get("session_lifetime", 0))


async def _handshake(connection: SaslChannel, sasl: Sasl, timeout_ms: int) -> None:
    tree = {"mechanism": sasl.mechanism}
    try:
        answer = await connection.call(ApiKey.SASL_HANDSHAKE, tree, timeout_ms=timeout_ms)
    except UnsupportedVersionError:
        raise AuthenticationError(f"{connection} has no SASL", ErrorCode.illegal_sasl_state) from None
    if answer.error_code == ErrorCode.unsupported_sasl_mechanism:
        offered = ", ".join(answer.mechanisms) or "none"
        raise AuthenticationError(
            f"{connection} does not take the mechanism {sasl.mechanism}; it offers {offered}",
            answer.error_code,
        )
    if answer.error_code == ErrorCode.illegal_sasl_state:
        raise AuthenticationError(
            f"{connection} wants no SASL on this port: security.protocol is PLAINTEXT or SSL there",
            answer.error_code,
        )
    if answer.error_code != ErrorCode.none:
        raise KafkaError(answer.error_code, f"{connection} was offered {sasl.mechanism}")


def disconnect_error(text: str, cause: Exception | None) -> KafkaError:
    """What the end of a connection means: a retry may help, unless TLS has refused it."""
    if not isinstance(cause, ssl.SSLError) or isinstance(cause, _TRANSIENT_TLS_ERRORS):
        return ConnectionLostError(text, cause.errno if isinstance(cause, OSError) else None)
    if isinstance(cause, ssl.SSLCertVerificationError):
        text = f"{text}. Are the right authorities in ssl.truststore.location (ssl.ca.location)?"
    elif cause.reason == "WRONG_VERSION_NUMBER":
        text = f"{text}. Does this port speak TLS? Else security.protocol is PLAINTEXT or SASL_PLAINTEXT"
    elif "ALERT" in (cause.reason or ""):
        text = text.removesuffix(CERTIFICATE_HINT) + CERTIFICATE_HINT
    return AuthenticationError(text)
