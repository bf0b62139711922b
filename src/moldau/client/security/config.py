"""How a client reaches a cluster that does not trust everybody: what there is to say of TLS and SASL, as values.

`parse_security` reads them from the properties that Kafka's own clients take; `tls.py` and `sasl.py` act on
them. Nothing
secret is shown by `repr`, and no error carries any.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from moldau.client.security.jaas import parse_jaas_config
from moldau.observe.logging import get_logger
from moldau.settings.option_parser import did_you_mean

PLAIN = "PLAIN"
SCRAM_SHA_256, SCRAM_SHA_512 = "SCRAM-SHA-256", "SCRAM-SHA-512"
MECHANISMS = (PLAIN, SCRAM_SHA_256, SCRAM_SHA_512)

_log = get_logger("client.security")


@dataclass(frozen=True, slots=True)
class Tls:
    """Files are read where the client connects. A PEM text goes before a file; without either there is no such thing,
    but for those who are trusted: then it is the system's authorities."""

    ca_location: str = ""
    """Certificates of those who are trusted: PEM, or PKCS12 where the `cryptography` package is installed."""
    ca_password: str = field(default="", repr=False)
    ca_pem: str = ""
    certificate_location: str = ""
    """The client's own certificate and those up to an authority, PEM."""
    certificate_pem: str = field(default="", repr=False)
    """The key may stand beside it."""
    key_location: str = ""
    """Of the client's certificate; without it the key is in the certificate's file."""
    key_pem: str = field(default="", repr=False)
    key_password: str = field(default="", repr=False)
    checks_host_name: bool = True
    checks_certificate: bool = True
    versions: tuple[str, ...] = ()
    """Of the protocol that may be used, such as TLSv1.3; what Python holds to be safe if none is named."""


@dataclass(frozen=True, slots=True)
class Sasl:
    mechanism: str
    username: str
    password: str = field(repr=False)

    def __post_init__(self) -> None:
        if self.mechanism not in MECHANISMS:
            raise ValueError(f"sasl.mechanism is one of {', '.join(MECHANISMS)} here, not {self.mechanism!r}")
        if not self.username or "\0" in self.username or "\0" in self.password:
            raise ValueError("SASL needs a user name, and neither that nor the password has a NUL in it")


@dataclass(frozen=True, slots=True)
class Security:
    tls: Tls | None = None
    sasl: Sasl | None = None

    @property
    def protocol(self) -> str:
        """As `security.protocol` says it."""
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
"""All that means something here: first the names of Kafka's Java clients, then librdkafka's."""

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
"""What tunes other clients, or is for mechanisms other than those here. It is left aside: properties that were written
for such a client are to be read as they are."""

_REJECTED = {
    "security.providers": "Java classes would decide who is trusted, and there is no Java here",
    "ssl.engine.factory.class": "a Java class would decide who is trusted, and there is no Java here",
    "ssl.engine.location": "keys come from files or PEM texts only",
    "ssl.engine.id": "keys come from files or PEM texts only",
    "ssl.crl.location": "certificates that were revoked would be trusted, for such lists are not read",
    "ssl.ca.certificate.stores": "name who is trusted by ssl.ca.location or ssl.truststore.location",
}
"""To leave these aside would change who is trusted."""
_TRUST_ALGORITHMS = ("PKIX", "SUNX509", "X509", "X.509")

_UNSTRIPPED_PROPERTIES = (
    "sasl.username",
    "sasl.password",
    "ssl.truststore.password",
    "ssl.keystore.password",
    "ssl.key.password",
)
"""Here spaces count."""
_TLS_VERSIONS = ("TLSv1.2", "TLSv1.3")
_OBSOLETE_TLS_VERSIONS = ("SSLv2Hello", "SSLv3", "TLSv1", "TLSv1.1")
_STORE_TYPES = ("JKS", "PKCS12", "PEM")


def parse_security(properties: Mapping[str, str]) -> Security:
    """What these properties say, by the names of Kafka's Java clients or librdkafka's; raises ValueError."""
    given = {
        name: value if name in _UNSTRIPPED_PROPERTIES else value.strip()
        for name, value in properties.items()
        if _is_supported_property(name, value)
        and (value.strip() or name == "ssl.endpoint.identification.algorithm")
    }
    protocol = given.get("security.protocol", "").upper()
    if not protocol:
        credentials = [name for name in given if name in _SASL_PROPERTIES]
        if credentials:
            raise ValueError(
                f"{credentials[0]} needs security.protocol: SASL_SSL, or SASL_PLAINTEXT where the brokers have no TLS"
            )
        if given:
            # Java's clients speak plain text then, and say nothing.
            _log.warning(
                f"{next(iter(given))} is not used: security.protocol is not set, and so there is no TLS"
            )
        return Security()
    if protocol not in PROTOCOLS:
        raise ValueError(
            f"security.protocol is one of {', '.join(PROTOCOLS)}, not {given['security.protocol']!r}"
        )
    return Security(
        tls=_parse_tls(given) if protocol.endswith("SSL") else None,
        sasl=_parse_sasl(given) if protocol.startswith("SASL") else None,
    )


def _is_supported_property(name: str, value: str) -> bool:
    """Raises ValueError for what is not known, and for what cannot be left aside."""
    if name in PROPERTIES:
        return True
    if name == "ssl.trustmanager.algorithm":
        if value.strip() and value.strip().upper() not in _TRUST_ALGORITHMS:
            raise ValueError(f"{name} is PKIX here, and no other: leave it out")
        return False
    if name in _REJECTED:
        raise ValueError(f"{name} cannot be set: {_REJECTED[name]}")
    if name in _IGNORED or name.startswith(_IGNORED_PREFIXES):
        return False
    hint = did_you_mean(name.lower(), (*PROPERTIES, *_IGNORED)) or f"; what is known: {', '.join(PROPERTIES)}"
    raise ValueError(f"{name} is not known{hint}")


def _parse_sasl(given: Mapping[str, str]) -> Sasl:
    mechanism = given.get("sasl.mechanism") or given.get("sasl.mechanisms", "")
    if not mechanism:
        raise ValueError(f"SASL needs sasl.mechanism: one of {', '.join(MECHANISMS)}")
    mechanism = mechanism.upper()
    username, password = given.get("sasl.username", ""), given.get("sasl.password", "")
    if "sasl.jaas.config" in given and mechanism in MECHANISMS:
        module = "PlainLoginModule" if mechanism == PLAIN else "ScramLoginModule"
        login = parse_jaas_config(given["sasl.jaas.config"])
        if not login.module.endswith(module):
            raise ValueError(
                f"sasl.mechanism {mechanism} goes with the {module}, not {login.module}, in sasl.jaas.config"
            )
        username = login.options.get("username", username)
        password = login.options.get("password", password)
    if mechanism in MECHANISMS and not username:
        raise ValueError(
            "SASL needs a user: sasl.username and sasl.password, or username and password in sasl.jaas.config"
        )
    return Sasl(mechanism, username, password)


def _parse_tls(given: Mapping[str, str]) -> Tls:
    for name in ("ssl.truststore.type", "ssl.keystore.type"):
        if name in given and given[name].upper() not in _STORE_TYPES:
            raise ValueError(f"{name} is one of {', '.join(_STORE_TYPES)}, not {given[name]!r}")
    fields: dict[str, Any] = {
        "ca_location": given.get("ssl.truststore.location") or given.get("ssl.ca.location", ""),
        "ca_password": given.get("ssl.truststore.password", ""),
        "ca_pem": given.get("ssl.truststore.certificates") or given.get("ssl.ca.pem", ""),
        "certificate_location": given.get("ssl.keystore.location")
        or given.get("ssl.certificate.location", ""),
        "certificate_pem": given.get("ssl.keystore.certificate.chain")
        or given.get("ssl.certificate.pem", ""),
        "key_location": given.get("ssl.key.location", ""),
        "key_pem": given.get("ssl.keystore.key") or given.get("ssl.key.pem", ""),
        "key_password": given.get("ssl.key.password") or given.get("ssl.keystore.password", ""),
    }
    if (fields["key_pem"] or fields["key_location"]) and not (
        fields["certificate_pem"] or fields["certificate_location"]
    ):
        raise ValueError(
            "a key without its certificate: that is ssl.keystore.certificate.chain or ssl.certificate.location"
        )
    if fields["certificate_pem"] and not (fields["key_pem"] or fields["key_location"]):
        raise ValueError("a certificate without its key: that is ssl.keystore.key or ssl.key.location")
    algorithm = given.get("ssl.endpoint.identification.algorithm", "https").lower()
    if algorithm not in ("https", "", "none"):
        raise ValueError(
            "ssl.endpoint.identification.algorithm is https, or empty for no check of host names"
        )
    verification = given.get("enable.ssl.certificate.verification", "true").lower()
    if verification not in ("true", "false"):
        raise ValueError("enable.ssl.certificate.verification is true or false")
    return Tls(
        **fields,
        checks_host_name=algorithm == "https" and verification == "true",
        checks_certificate=verification == "true",
        versions=_parse_tls_versions(given.get("ssl.enabled.protocols", "")),
    )


def _parse_tls_versions(text: str) -> tuple[str, ...]:
    """Those of the versions named that are spoken; the old ones beside them are for brokers of others."""
    named = [version.strip() for version in text.split(",") if version.strip()]
    versions = tuple(version for version in named if version in _TLS_VERSIONS)
    wrong = [version for version in named if version not in (*_TLS_VERSIONS, *_OBSOLETE_TLS_VERSIONS)]
    if wrong or (named and not versions):
        raise ValueError(
            f"ssl.enabled.protocols has {(wrong or named)[0]!r}: {' and '.join(_TLS_VERSIONS)} are spoken"
        )
    return versions
