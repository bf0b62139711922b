"""SASL exchanges of a client: PLAIN and SCRAM (RFC 5802, 7677).

An exchange is a generator. It yields the bytes to send, receives the broker's response, and ends when authentication
has succeeded. User names and passwords are not normalized, because Kafka's brokers do not normalize them either.
"""

import hashlib
import hmac
from base64 import b64decode, b64encode
from collections.abc import Generator

from moldau.client.errors import AuthenticationError
from moldau.client.security.config import PLAIN, SCRAM_SHA_256, Sasl

ITERATIONS_MIN = 4096
"""The minimum iteration count of SCRAM. Fewer iterations make it easier to guess the password."""
ITERATIONS_MAX = 1_000_000
"""The maximum iteration count of SCRAM. More iterations block the event loop for over a second."""
NONCE_BYTES = 24

SaslExchange = Generator[bytes, bytes, None]


def start_exchange(sasl: Sasl, nonce: bytes) -> SaslExchange:
    """Returns the exchange of the mechanism, which raises AuthenticationError if it fails. `nonce` has NONCE_BYTES."""
    if sasl.mechanism == PLAIN:
        return _plain_exchange(sasl)
    return _scram_exchange(sasl, b64encode(nonce).decode())


def _plain_exchange(sasl: Sasl) -> SaslExchange:
    yield f"\0{sasl.username}\0{sasl.password}".encode()


def _scram_exchange(sasl: Sasl, nonce: str) -> SaslExchange:
    digest = "sha256" if sasl.mechanism == SCRAM_SHA_256 else "sha512"
    name = sasl.username.replace("=", "=3D").replace(",", "=2C")
    client_first = f"n={name},r={nonce}"
    server_first = (yield b"n,," + client_first.encode()).decode(errors="replace")
    challenge = _parse_attributes(server_first, "r", "s", "i")
    if not challenge["r"].startswith(nonce) or len(challenge["r"]) == len(nonce):
        raise AuthenticationError("the broker's nonce does not extend the client's")
    if not challenge["i"].isdecimal() or not ITERATIONS_MIN <= int(challenge["i"]) <= ITERATIONS_MAX:
        raise AuthenticationError(
            f"the broker requires {challenge['i'][:20]} iterations; {ITERATIONS_MIN} to {ITERATIONS_MAX} are accepted"
        )
    salted = hashlib.pbkdf2_hmac(digest, sasl.password.encode(), _decode_base64(challenge["s"]), int(challenge["i"]))
    client_key = hmac.digest(salted, b"Client Key", digest)
    stored_key = hashlib.new(digest, client_key).digest()
    # `biws` is the base64 of "n,,", which means that there is no channel binding.
    client_final = f"c=biws,r={challenge['r']}"
    signed = f"{client_first},{server_first},{client_final}".encode()
    signature = hmac.digest(stored_key, signed, digest)
    proof = bytes(key_byte ^ byte for key_byte, byte in zip(client_key, signature, strict=True))
    server_final = yield f"{client_final},p={b64encode(proof).decode()}".encode()
    expected = hmac.digest(hmac.digest(salted, b"Server Key", digest), signed, digest)
    verifier = _parse_attributes(server_final.decode(errors="replace"), "v")
    if not hmac.compare_digest(_decode_base64(verifier["v"]), expected):
        raise AuthenticationError("the broker does not know the password: it is not the expected broker")


def _parse_attributes(text: str, *required: str) -> dict[str, str]:
    attributes = {each[:1]: each[2:] for each in text.split(",") if each[1:2] == "="}
    if "e" in attributes:
        raise AuthenticationError(f"the broker returned the SCRAM error {attributes['e']!r}")
    if "m" in attributes:
        raise AuthenticationError("the broker requires an unsupported SCRAM extension")
    if any(not attributes.get(name) for name in required):
        raise AuthenticationError("the broker's response is not a SCRAM message")
    return attributes


def _decode_base64(text: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except ValueError:
        raise AuthenticationError("the broker's response is not a SCRAM message") from None
