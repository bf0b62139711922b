"""What a client says to prove who it is, and what it asks of the broker in turn: PLAIN and SCRAM (RFC 5802, 7677).

A conversation is a generator: it yields what to send, is sent what the broker answered, and ends when all is well.
User names and passwords are taken as they are, for that is what Kafka's brokers do.
"""

import hashlib
import hmac
from base64 import b64decode, b64encode
from collections.abc import Generator

from moldau.client.errors import AuthenticationError
from moldau.client.security.config import PLAIN, SCRAM_SHA_256, Sasl

ITERATIONS_MIN = 4096
"""Fewer would help those who guess passwords."""
ITERATIONS_MAX = 1_000_000
"""More would stop this client for a second."""
NONCE_BYTES = 24

SaslExchange = Generator[bytes, bytes, None]


def start_exchange(sasl: Sasl, nonce: bytes) -> SaslExchange:
    """`nonce` is NONCE_BYTES that nobody can foresee. Raises AuthenticationError if the broker cannot be trusted."""
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
    told = _parse_attributes(server_first, "r", "s", "i")
    if not told["r"].startswith(nonce) or len(told["r"]) == len(nonce):
        raise AuthenticationError("the broker's nonce does not go on from ours")
    if not told["i"].isdecimal() or not ITERATIONS_MIN <= int(told["i"]) <= ITERATIONS_MAX:
        raise AuthenticationError(
            f"the broker asks for {told['i'][:20]} iterations; {ITERATIONS_MIN} to {ITERATIONS_MAX} are accepted"
        )
    salted = hashlib.pbkdf2_hmac(digest, sasl.password.encode(), _decode_base64(told["s"]), int(told["i"]))
    client_key = hmac.digest(salted, b"Client Key", digest)
    stored_key = hashlib.new(digest, client_key).digest()
    # biws is the base64 of "n,,": no channel is bound.
    client_final = f"c=biws,r={told['r']}"
    signed = f"{client_first},{server_first},{client_final}".encode()
    signature = hmac.digest(stored_key, signed, digest)
    proof = bytes(one ^ other for one, other in zip(client_key, signature, strict=True))
    answer = yield f"{client_final},p={b64encode(proof).decode()}".encode()
    expected = hmac.digest(hmac.digest(salted, b"Server Key", digest), signed, digest)
    told = _parse_attributes(answer.decode(errors="replace"), "v")
    if not hmac.compare_digest(_decode_base64(told["v"]), expected):
        raise AuthenticationError("the broker does not know the password: it is not who it should be")


def _parse_attributes(text: str, *wanted: str) -> dict[str, str]:
    found = {each[:1]: each[2:] for each in text.split(",") if each[1:2] == "="}
    if "e" in found:
        raise AuthenticationError(f"the broker says {found['e']!r}")
    if "m" in found:
        raise AuthenticationError("the broker asks for an extension of SCRAM that is not known")
    if any(not found.get(name) for name in wanted):
        raise AuthenticationError("the broker's answer is not one of SCRAM")
    return found


def _decode_base64(text: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except ValueError:
        raise AuthenticationError("the broker's answer is not one of SCRAM") from None
