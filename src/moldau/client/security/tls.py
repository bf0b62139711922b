"""TLS as Python does it, from what `security.Tls` says. Whatever cannot be used is a ValueError with the way out."""

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from tempfile import NamedTemporaryFile

from moldau.client.security.config import Tls

_VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_JKS_MAGIC = (b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce")
_DER_SEQUENCE = b"\x30"
_PEM_PREFIX = b"-----BEGIN "


def create_tls_context(tls: Tls) -> ssl.SSLContext:
    """Reads the files; raises ValueError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = tls.checks_host_name
    # Whatever is in a truststore is trusted, as in Java: authorities or not.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.verify_mode = ssl.CERT_REQUIRED if tls.checks_certificate else ssl.CERT_NONE
    if tls.versions:
        context.minimum_version = min(_VERSIONS[version] for version in tls.versions)
        context.maximum_version = max(_VERSIONS[version] for version in tls.versions)
    _load_truststore(context, tls)
    if tls.certificate_pem or tls.certificate_location:
        _load_keystore(context, tls)
    return context


def _load_truststore(context: ssl.SSLContext, tls: Tls) -> None:
    if not tls.ca_pem and not tls.ca_location:
        context.load_default_certs()
        return
    what = "ssl.truststore.certificates" if tls.ca_pem else tls.ca_location
    pem = tls.ca_pem or _read_truststore(tls.ca_location, tls.ca_password)
    try:
        context.load_verify_locations(cadata=pem)
    except ssl.SSLError as error:
        raise ValueError(f"{what} has no certificates that can be used: {error}") from None


def _read_truststore(location: str, password: str) -> str:
    data = _read_file(location, "the truststore")
    if data.startswith(_JKS_MAGIC):
        raise ValueError(
            f"{location} is a JKS store, which only Java reads. This makes a PEM file of it:"
            f" keytool -list -rfc -keystore {location} > truststore.pem"
        )
    if data.startswith(_DER_SEQUENCE):
        return _read_pkcs12_truststore(data, location, password)
    if _PEM_PREFIX not in data:
        raise ValueError(f"{location} is neither PEM nor PKCS12")
    # keytool and openssl write names and comments around what is PEM, in whatever encoding.
    return data.decode("ascii", errors="replace").replace("\ufffd", "?")


def _read_pkcs12_truststore(data: bytes, location: str, password: str) -> str:
    try:
        pkcs12 = import_module("cryptography.hazmat.primitives.serialization.pkcs12")
        serialization = import_module("cryptography.hazmat.primitives.serialization")
    except ImportError:
        raise ValueError(
            f"{location} is a PKCS12 store, for which the package `cryptography` is needed: install it, or make a PEM"
            f" file: keytool -list -rfc -keystore {location} > truststore.pem"
        ) from None
    try:
        store = pkcs12.load_pkcs12(data, password.encode() or None)
    except ValueError:
        raise ValueError(f"{location} cannot be read: is ssl.truststore.password right?") from None
    found = [*([store.cert] if store.cert else []), *store.additional_certs]
    encoding = serialization.Encoding.PEM
    return "".join(each.certificate.public_bytes(encoding).decode() for each in found)


def _load_keystore(context: ssl.SSLContext, tls: Tls) -> None:
    with (
        _pem_file(tls.certificate_pem, tls.certificate_location, "the keystore") as certificate,
        _pem_file(tls.key_pem, tls.key_location or tls.certificate_location, "the key") as key,
    ):
        # A function, for without a password OpenSSL would ask for one at the terminal.
        secret = tls.key_password
        try:
            context.load_cert_chain(certificate, key, lambda: secret)
        except (ssl.SSLError, ValueError) as error:
            raise ValueError(
                "the client's certificate and key cannot be used together"
                f" (is ssl.key.password right?): {_reason(error)}"
            ) from None


@contextmanager
def _pem_file(pem: str, location: str, what: str) -> Iterator[str]:
    """A file for what OpenSSL takes from files only. One that is made is for this user alone and soon gone."""
    if not pem:
        data = _read_file(location, what)
        if _PEM_PREFIX not in data:
            raise ValueError(
                f"{location} is not PEM. This makes a PEM file of a PKCS12 or JKS store:"
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
        raise ValueError(f"{what} {location} cannot be read: {error.strerror}") from None


def _reason(error: Exception) -> str:
    return getattr(error, "reason", None) or str(error)
