"""Security settings of a client: TLS and SASL, parsed from the properties of Kafka's own clients.

No secret appears in a `repr` or an error message.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from moldau.observe.logging import get_logger
from moldau.settings.option_parser import did_you_mean

PLAIN = "PLAIN"
SCRAM_SHA_256, SCRAM_SHA_512 = "SCRAM-SHA-256", "SCRAM-SHA-512"
MECHANISMS = (PLAIN, SCRAM_SHA_256, SCRAM_SHA_512)

_log = get_logger("client.security")


@dataclass(frozen=True, slots=True)
class Tls:
    """Certificates and keys, as files or PEM text; PEM text takes precedence.

    If no trusted certificates are set, the certificate authorities of the system are trusted. Files are read when the
    client is created.
    """

    ca_location: str = ""
    """The file with trusted certificates: PEM, or PKCS12 if the `cryptography` package is installed."""
    ca_password: str = field(default="", repr=False)
    ca_pem: str = ""
    certificate_location: str = ""
    """The PEM file with the client's certificate chain."""
    certificate_pem: str = field(default="", repr=False)
    """The client's certificate chain as PEM text. It is not in `repr`, because it may include the key."""
    key_location: str = ""
    """The PEM file with the key of the client's certificate. If empty, the key is in the certificate's file."""
    key_pem: str = field(default="", repr=False)
    key_password: str = field(default="", repr=False)
    checks_host_name: bool = True
    checks_certificate: bool = True
    versions: tuple[str, ...] = ()
    """The allowed TLS versions, such as TLSv1.3; Python's defaults if empty."""


@dataclass(frozen=True, slots=True)
class Sasl:
    mechanism: str
    username: str
    password: str = field(repr=False)

    def __post_init__(self) -> None:
        if self.mechanism not in MECHANISMS:
            raise ValueError(f"unsupported sasl.mechanism {self.mechanism!r}; use one of {', '.join(MECHANISMS)}")
        if not self.username or "\0" in self.username or "\0" in self.password:
            raise ValueError("SASL needs a user name, and neither it nor the password may contain NUL")


@dataclass(frozen=True, slots=True)
class Security:
    tls: Tls | None = None
    sasl: Sasl | None = None

    @property
    def protocol(self) -> str:
        """The value of `security.protocol`."""
        if self.sasl is None:
            return "PLAINTEXT" if self.tls is None else "SSL"
        return "SASL_PLAINTEXT" if self.tls is None else "SASL_SSL"


PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")

_TLS_PROPERTIES = (
    "ssl.truststore.location",
    "ssl.truststore.type",
    "ssl.truststore.password",
    "ssl.truststore.certificates",
    "ssl.keystore.location",
    "ssl.keystore.type",
    "ssl.keystore.password",
    "ssl.keystore.key",
    "ssl.keystore.certificate.chain",
    "ssl.key.password",
    "ssl.endpoint.identification.algorithm",
    "ssl.enabled.protocols",
    "ssl.ca.location",
    "ssl.ca.pem",
    "ssl.certificate.location",
    "ssl.certificate.pem",
    "ssl.key.location",
    "ssl.key.pem",
    "enable.ssl.certificate.verification",
)
_SASL_PROPERTIES = ("sasl.mechanism", "sasl.mechanisms", "sasl.jaas.config", "sasl.username", "sasl.password")
PROPERTIES = ("security.protocol", *_SASL_PROPERTIES, *_TLS_PROPERTIES)
"""All supported properties, by their names in Kafka's Java clients and in librdkafka."""

_IGNORED = (
    "ssl.protocol",
    "ssl.provider",
    "ssl.cipher.suites",
    "ssl.keymanager.algorithm",
    "ssl.secure.random.implementation",
    "sasl.client.callback.handler.class",
    "ssl.curves.list",
    "ssl.sigalgs.list",
    "ssl.providers",
    "enable.sasl.oauthbearer.unsecure.jwt",
)
_IGNORED_PREFIXES = ("sasl.kerberos.", "sasl.login.", "sasl.oauthbearer.")
"""Ignored properties, so that a properties file written for another client can be used unchanged."""

_REJECTED = {
    "security.providers": "Java classes cannot decide here which brokers are trusted",
    "ssl.engine.factory.class": "a Java class cannot decide here which brokers are trusted",
    "ssl.engine.location": "keys come from files or PEM text only",
    "ssl.engine.id": "keys come from files or PEM text only",
    "ssl.crl.location": "revocation lists are not supported, so revoked certificates would be trusted",
    "ssl.ca.certificate.stores": "use ssl.ca.location or ssl.truststore.location",
}
"""Properties that are rejected, with the reason. Ignoring them would change which brokers are trusted."""
_TRUST_ALGORITHMS = ("PKIX", "SUNX509", "X509", "X.509")

_UNSTRIPPED_PROPERTIES = (
    "sasl.username",
    "sasl.password",
    "ssl.truststore.password",
    "ssl.keystore.password",
    "ssl.key.password",
)
"""Properties whose leading and trailing spaces are part of the value."""
_TLS_VERSIONS = ("TLSv1.2", "TLSv1.3")
_OBSOLETE_TLS_VERSIONS = ("SSLv2Hello", "SSLv3", "TLSv1", "TLSv1.1")
_STORE_TYPES = ("JKS", "PKCS12", "PEM")

_LOGIN_FLAGS = ("required", "requisite", "sufficient", "optional")
_TOKEN = re.compile(
    r"""\s+ | //[^\n]* | /\*.*?\*/      # between tokens
    | "(?P<double>(?:[^"\\\n]|\\.)*)"
    | '(?P<single>(?:[^'\\\n]|\\.)*)'
    | (?P<sign>[=;])
    | (?P<word>[^\s="';]+)""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = re.compile(r"\\([0-3]?[0-7]{1,2}|.)", re.DOTALL)
_ESCAPE_CHARACTERS = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a", "v": "\v"}
_QUOTED_PREFIX = "\0"
"""The prefix of a quoted token, so that a quoted `=` or `;` is not parsed as an operator."""


def parse_security(properties: Mapping[str, str]) -> Security:
    """Parses properties named as in Kafka's Java clients or librdkafka; raises ValueError."""
    given = {
        name: value if name in _UNSTRIPPED_PROPERTIES else value.strip()
        for name, value in properties.items()
        if _is_supported_property(name, value) and (value.strip() or name == "ssl.endpoint.identification.algorithm")
    }
    protocol = given.get("security.protocol", "").upper()
    if not protocol:
        credentials = [name for name in given if name in _SASL_PROPERTIES]
        if credentials:
            raise ValueError(
                f"{credentials[0]} needs security.protocol: SASL_SSL, or SASL_PLAINTEXT if the brokers have no TLS"
            )
        if given:
            # Use plain text like Java's clients, but log a warning, because the user probably expects TLS.
            _log.warning(f"{next(iter(given))} is ignored: security.protocol is not set, so TLS is not used")
        return Security()
    if protocol not in PROTOCOLS:
        raise ValueError(f"unknown security.protocol {given['security.protocol']!r}; use one of {', '.join(PROTOCOLS)}")
    return Security(
        tls=_parse_tls(given) if protocol.endswith("SSL") else None,
        sasl=_parse_sasl(given) if protocol.startswith("SASL") else None,
    )


def _is_supported_property(name: str, value: str) -> bool:
    """Returns whether to use a property. Raises ValueError if the property is unknown or must not be ignored."""
    if name in PROPERTIES:
        return True
    if name == "ssl.trustmanager.algorithm":
        if value.strip() and value.strip().upper() not in _TRUST_ALGORITHMS:
            raise ValueError(f"{name} can only be PKIX: leave it out")
        return False
    if name in _REJECTED:
        raise ValueError(f"{name} cannot be set: {_REJECTED[name]}")
    if name in _IGNORED or name.startswith(_IGNORED_PREFIXES):
        return False
    hint = did_you_mean(name.lower(), (*PROPERTIES, *_IGNORED)) or f"; supported properties: {', '.join(PROPERTIES)}"
    raise ValueError(f"unknown property {name}{hint}")


def _parse_sasl(given: Mapping[str, str]) -> Sasl:
    mechanism = given.get("sasl.mechanism") or given.get("sasl.mechanisms", "")
    if not mechanism:
        raise ValueError(f"SASL needs sasl.mechanism: one of {', '.join(MECHANISMS)}")
    mechanism = mechanism.upper()
    username, password = given.get("sasl.username", ""), given.get("sasl.password", "")
    if "sasl.jaas.config" in given and mechanism in MECHANISMS:
        module = "PlainLoginModule" if mechanism == PLAIN else "ScramLoginModule"
        login_module, options = parse_jaas_config(given["sasl.jaas.config"])
        if not login_module.endswith(module):
            raise ValueError(f"sasl.mechanism {mechanism} requires {module} in sasl.jaas.config, not {login_module}")
        username, password = options.get("username", username), options.get("password", password)
    if mechanism in MECHANISMS and not username:
        raise ValueError(
            "SASL needs a user: sasl.username and sasl.password, or username and password in sasl.jaas.config"
        )
    return Sasl(mechanism, username, password)


def _parse_tls(given: Mapping[str, str]) -> Tls:
    for name in ("ssl.truststore.type", "ssl.keystore.type"):
        if name in given and given[name].upper() not in _STORE_TYPES:
            raise ValueError(f"unknown {name} {given[name]!r}; use one of {', '.join(_STORE_TYPES)}")
    fields: dict[str, Any] = {
        "ca_location": given.get("ssl.truststore.location") or given.get("ssl.ca.location", ""),
        "ca_password": given.get("ssl.truststore.password", ""),
        "ca_pem": given.get("ssl.truststore.certificates") or given.get("ssl.ca.pem", ""),
        "certificate_location": given.get("ssl.keystore.location") or given.get("ssl.certificate.location", ""),
        "certificate_pem": given.get("ssl.keystore.certificate.chain") or given.get("ssl.certificate.pem", ""),
        "key_location": given.get("ssl.key.location", ""),
        "key_pem": given.get("ssl.keystore.key") or given.get("ssl.key.pem", ""),
        "key_password": given.get("ssl.key.password") or given.get("ssl.keystore.password", ""),
    }
    if (fields["key_pem"] or fields["key_location"]) and not (
        fields["certificate_pem"] or fields["certificate_location"]
    ):
        raise ValueError(
            "there is a key but no certificate: set ssl.keystore.certificate.chain or ssl.certificate.location"
        )
    if fields["certificate_pem"] and not (fields["key_pem"] or fields["key_location"]):
        raise ValueError("there is a certificate but no key: set ssl.keystore.key or ssl.key.location")
    algorithm = given.get("ssl.endpoint.identification.algorithm", "https").lower()
    if algorithm not in ("https", "", "none"):
        raise ValueError("ssl.endpoint.identification.algorithm must be https, or empty to skip the host name check")
    verification = given.get("enable.ssl.certificate.verification", "true").lower()
    if verification not in ("true", "false"):
        raise ValueError("enable.ssl.certificate.verification must be true or false")
    return Tls(
        **fields,
        checks_host_name=algorithm == "https" and verification == "true",
        checks_certificate=verification == "true",
        versions=_parse_tls_versions(given.get("ssl.enabled.protocols", "")),
    )


def _parse_tls_versions(text: str) -> tuple[str, ...]:
    """Returns the supported versions that `text` lists. Raises ValueError if one is unknown or none is supported."""
    named = [version.strip() for version in text.split(",") if version.strip()]
    versions = tuple(version for version in named if version in _TLS_VERSIONS)
    unknown = [version for version in named if version not in (*_TLS_VERSIONS, *_OBSOLETE_TLS_VERSIONS)]
    if unknown or (named and not versions):
        raise ValueError(
            f"ssl.enabled.protocols has {(unknown or named)[0]!r}; supported are {' and '.join(_TLS_VERSIONS)}"
        )
    return versions


def parse_jaas_config(text: str) -> tuple[str, dict[str, str]]:
    """Returns the class and the options of a login module: `some.LoginModule required name="value" ...;`.

    Raises ValueError. The error does not quote the text, because the text contains secrets.
    """
    tokens = _tokenize(text)
    if len(tokens) < 3 or tokens[1].lower() not in _LOGIN_FLAGS:
        raise ValueError('sasl.jaas.config must be `some.LoginModule required username="..." password="...";`')
    if tokens.count(";") != 1 or tokens[-1] != ";":
        raise ValueError("sasl.jaas.config must be one login module and end with a semicolon")
    options = tokens[2:-1]
    if len(options) % 3 or any(sign != "=" for sign in options[1::3]):
        raise ValueError("options in sasl.jaas.config must be name=value, with the value in quotes")
    names, values = options[0::3], options[2::3]
    if "=" in names or "=" in values:
        raise ValueError("an option in sasl.jaas.config has no name or no value")
    return tokens[0], {name: value.removeprefix(_QUOTED_PREFIX) for name, value in zip(names, values, strict=True)}


def _tokenize(text: str) -> list[str]:
    tokens: list[str] = []
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise ValueError("sasl.jaas.config has an unclosed quote")
        position = match.end()
        quoted = match["double"] if match["double"] is not None else match["single"]
        if quoted is not None:
            tokens.append(_QUOTED_PREFIX + _ESCAPE.sub(_unescape, quoted))
        elif match["sign"] or match["word"]:
            tokens.append(match["sign"] or match["word"])
    return tokens


def _unescape(match: re.Match[str]) -> str:
    escaped = match[1]
    if escaped[0] in "01234567":
        return chr(int(escaped, 8))
    return _ESCAPE_CHARACTERS.get(escaped, escaped)
