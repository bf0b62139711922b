"""Security of new connections: the TLS context of a client, SASL authentication, and errors of both."""

import random
import ssl
from collections.abc import Awaitable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, Protocol

from moldau.client.errors import (
    AuthenticationError,
    ConnectionLostError,
    ErrorCode,
    KafkaError,
    UnsupportedVersionError,
)
from moldau.client.security.config import Sasl, Security, Tls
from moldau.wire.api_keys import ApiKey
from moldau.wire.codec import Message

TLS_HINT = "; does it require TLS? Then set security.protocol to SSL or SASL_SSL"
SASL_HINT = "; does it require SASL? Then set security.protocol to SASL_PLAINTEXT or SASL_SSL"
CERTIFICATE_HINT = "; does it require a client certificate? Set ssl.keystore.location (ssl.certificate.location)"
"""Likely causes when a broker disconnects a new client."""

_TRANSIENT_TLS_ERRORS = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)
"""TLS errors which mean only that the other side closed the connection. A retry may succeed."""
_TLS_VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_JKS_MAGIC = (b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce")
_DER_SEQUENCE = b"\x30"
_PEM_PREFIX = b"-----BEGIN "


class SaslChannel(Protocol):
    """A connection whose API versions are known."""

    def call(self, api: ApiKey, tree: Mapping[str, Any], *, timeout_ms: int) -> Awaitable[Message]: ...


class ChannelSecurity:
    """The TLS context and SASL credentials of a client's connections."""

    def __init__(self, security: Security, random: random.Random) -> None:
        """Reads the configured files; raises ValueError if one is unusable."""
        self.tls = None if security.tls is None else create_tls_context(security.tls)
        self.sasl = security.sasl
        self._random = random
        self.disconnect_hint = TLS_HINT if security.tls is None else ""
        """The likely cause when a broker disconnects before its first response."""
        if security.tls is not None and not (security.tls.certificate_pem or security.tls.certificate_location):
            self.disconnect_hint = CERTIFICATE_HINT

    async def authenticate(self, connection: SaslChannel, timeout_ms: int) -> int:
        """Authenticates if SASL is configured. Returns the session lifetime in milliseconds (0: no limit)."""
        if self.sasl is None:
            return 0
        from moldau.client.security.sasl import NONCE_BYTES, start_exchange  # Loaded only where SASL is configured.

        await _handshake(connection, self.sasl, timeout_ms)
        exchange = start_exchange(self.sasl, self._random.randbytes(NONCE_BYTES))
        token = next(exchange)
        while True:
            response = await connection.call(ApiKey.SASL_AUTHENTICATE, {"auth_bytes": token}, timeout_ms=timeout_ms)
            if response.error_code != ErrorCode.none:
                reason = response.error_message or "no reason given"
                raise AuthenticationError(
                    f"{connection} rejected user {self.sasl.username!r} ({self.sasl.mechanism}): {reason}",
                    response.error_code,
                )
            try:
                token = exchange.send(bytes(response.auth_bytes))
            except StopIteration:
                return int(response.get("session_lifetime", 0))


async def _handshake(connection: SaslChannel, sasl: Sasl, timeout_ms: int) -> None:
    tree = {"mechanism": sasl.mechanism}
    try:
        response = await connection.call(ApiKey.SASL_HANDSHAKE, tree, timeout_ms=timeout_ms)
    except UnsupportedVersionError:
        raise AuthenticationError(f"{connection} does not support SASL", ErrorCode.illegal_sasl_state) from None
    if response.error_code == ErrorCode.unsupported_sasl_mechanism:
        offered = ", ".join(response.mechanisms) or "none"
        raise AuthenticationError(
            f"{connection} does not support the mechanism {sasl.mechanism}; it offers {offered}", response.error_code
        )
    if response.error_code == ErrorCode.illegal_sasl_state:
        raise AuthenticationError(
            f"{connection} does not use SASL on this port: set security.protocol to PLAINTEXT or SSL",
            response.error_code,
        )
    if response.error_code != ErrorCode.none:
        raise KafkaError(response.error_code, f"SASL handshake of {sasl.mechanism} with {connection}")


def disconnect_error(text: str, cause: Exception | None) -> KafkaError:
    """Returns the error for a lost connection. The error is retriable, unless TLS rejected the connection."""
    if not isinstance(cause, ssl.SSLError) or isinstance(cause, _TRANSIENT_TLS_ERRORS):
        return ConnectionLostError(text, cause.errno if isinstance(cause, OSError) else None)
    if isinstance(cause, ssl.SSLCertVerificationError):
        text = f"{text}. Does ssl.truststore.location (ssl.ca.location) have the right authorities?"
    elif cause.reason == "WRONG_VERSION_NUMBER":
        text = f"{text}. Does this port use TLS? If not, set security.protocol to PLAINTEXT or SASL_PLAINTEXT"
    elif "ALERT" in (cause.reason or ""):
        text = text.removesuffix(CERTIFICATE_HINT) + CERTIFICATE_HINT
    return AuthenticationError(text)


# TLS


def create_tls_context(tls: Tls) -> ssl.SSLContext:
    """Returns a TLS context with the configured certificates and keys. Raises ValueError for an unusable file."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = tls.checks_host_name
    # As in Java, every certificate in a truststore is trusted, even if it is not a certificate authority.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.verify_mode = ssl.CERT_REQUIRED if tls.checks_certificate else ssl.CERT_NONE
    if tls.versions:
        context.minimum_version = min(_TLS_VERSIONS[version] for version in tls.versions)
        context.maximum_version = max(_TLS_VERSIONS[version] for version in tls.versions)
    _load_truststore(context, tls)
    if tls.certificate_pem or tls.certificate_location:
        _load_keystore(context, tls)
    return context


def _load_truststore(context: ssl.SSLContext, tls: Tls) -> None:
    if not tls.ca_pem and not tls.ca_location:
        context.load_default_certs()
        return
    source = "ssl.truststore.certificates" if tls.ca_pem else tls.ca_location
    pem = tls.ca_pem or _read_truststore(tls.ca_location, tls.ca_password)
    try:
        context.load_verify_locations(cadata=pem)
    except ssl.SSLError as error:
        raise ValueError(f"{source} has no usable certificates: {error}") from None


def _read_truststore(location: str, password: str) -> str:
    data = _read_file(location, "truststore")
    if data.startswith(_JKS_MAGIC):
        raise ValueError(
            f"{location} is a JKS store, which only Java reads. Convert it to PEM:"
            f" keytool -list -rfc -keystore {location} > truststore.pem"
        )
    if data.startswith(_DER_SEQUENCE):
        return _read_pkcs12_truststore(data, location, password)
    if _PEM_PREFIX not in data:
        raise ValueError(f"{location} is neither PEM nor PKCS12")
    # Accept any encoding of the names and comments that keytool and openssl write around the PEM blocks.
    return data.decode("ascii", errors="replace").replace("\ufffd", "?")


def _read_pkcs12_truststore(data: bytes, location: str, password: str) -> str:
    try:
        pkcs12 = import_module("cryptography.hazmat.primitives.serialization.pkcs12")
        serialization = import_module("cryptography.hazmat.primitives.serialization")
    except ImportError:
        raise ValueError(
            f"{location} is a PKCS12 store, which needs the package `cryptography`: install it, or convert the store"
            f" to PEM: keytool -list -rfc -keystore {location} > truststore.pem"
        ) from None
    try:
        store = pkcs12.load_pkcs12(data, password.encode() or None)
    except ValueError:
        raise ValueError(f"{location} cannot be read: is ssl.truststore.password right?") from None
    certificates = [*([store.cert] if store.cert else []), *store.additional_certs]
    encoding = serialization.Encoding.PEM
    return "".join(each.certificate.public_bytes(encoding).decode() for each in certificates)


def _load_keystore(context: ssl.SSLContext, tls: Tls) -> None:
    with (
        _pem_file(tls.certificate_pem, tls.certificate_location, "keystore") as certificate,
        _pem_file(tls.key_pem, tls.key_location or tls.certificate_location, "key") as key,
    ):
        password = tls.key_password
        try:
            # Without a password function, OpenSSL would ask for a missing password on the terminal.
            context.load_cert_chain(certificate, key, lambda: password)
        except (ssl.SSLError, ValueError) as error:
            reason = getattr(error, "reason", None) or str(error)
            raise ValueError(
                f"the client's certificate and key cannot be used together (is ssl.key.password right?): {reason}"
            ) from None


@contextmanager
def _pem_file(pem: str, location: str, what: str) -> Iterator[str]:
    """Yields a file for OpenSSL: a private temporary file with the text `pem` if it is set, else `location`."""
    if not pem:
        data = _read_file(location, what)
        if _PEM_PREFIX not in data:
            raise ValueError(
                f"{location} is not PEM. Convert a PKCS12 or JKS store to PEM:"
                f" keytool -importkeystore -srckeystore {location} -destkeystore client.p12 -deststoretype PKCS12,"
                " then openssl pkcs12 -in client.p12 -out client.pem"
            )
        yield location
        return
    with NamedTemporaryFile("w", suffix=".pem") as file:
        file.write(pem)
        file.flush()
        yield file.name


def _read_file(location: str, what: str) -> bytes:
    try:
        return Path(location).read_bytes()
    except OSError as error:
        raise ValueError(f"the {what} {location} cannot be read: {error.strerror}") from None
