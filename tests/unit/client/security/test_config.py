"""Security settings from the properties of Kafka's clients, without leaking secrets."""

import pickle
from contextlib import suppress

import pytest

from moldau.client.security.config import PROPERTIES, Sasl, Security, Tls, parse_jaas_config, parse_security

PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
SASL = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}
TLS = {"security.protocol": "SSL"}


@pytest.mark.parametrize(
    ("properties", "security"),
    [
        ({}, Security()),
        ({"security.protocol": "PLAINTEXT"}, Security()),
        (TLS, Security(tls=Tls())),
        (
            {**SASL, "sasl.username": "ada", "sasl.password": " with spaces "},
            Security(sasl=Sasl("PLAIN", "ada", " with spaces ")),
        ),
        (
            {**SASL, "sasl.jaas.config": f'{PLAIN_MODULE} required username="ada" password="pw";'},
            Security(sasl=Sasl("PLAIN", "ada", "pw")),
        ),
        (
            {
                "security.protocol": "sasl_ssl",
                "sasl.mechanism": "SCRAM-SHA-512",
                "sasl.jaas.config": f"kafkashaded.{SCRAM_MODULE} required\n  username='ada'\n  password='pw';",
                "ssl.truststore.location": "/etc/ca.pem",
                "ssl.truststore.type": "PEM",
                "ssl.endpoint.identification.algorithm": "",
            },
            Security(Tls(ca_location="/etc/ca.pem", checks_host_name=False), Sasl("SCRAM-SHA-512", "ada", "pw")),
        ),
        (
            {
                **TLS,
                "ssl.ca.location": "/etc/ca.pem",
                "ssl.certificate.location": "/etc/me.pem",
                "ssl.key.location": "/etc/me.key",
                "ssl.key.password": "pw",
            },
            Security(
                Tls(
                    ca_location="/etc/ca.pem",
                    certificate_location="/etc/me.pem",
                    key_location="/etc/me.key",
                    key_password="pw",
                )
            ),
        ),
        (
            {
                **TLS,
                "ssl.truststore.certificates": "CA",
                "ssl.keystore.certificate.chain": "CHAIN",
                "ssl.keystore.key": "KEY",
                "ssl.enabled.protocols": "TLSv1.2, TLSv1.3",
            },
            Security(Tls(ca_pem="CA", certificate_pem="CHAIN", key_pem="KEY", versions=("TLSv1.2", "TLSv1.3"))),
        ),
        (
            {**TLS, "enable.ssl.certificate.verification": "false"},
            Security(Tls(checks_host_name=False, checks_certificate=False)),
        ),
    ],
)
def test_the_properties_of_kafkas_clients_are_understood(properties: dict[str, str], security: Security) -> None:
    assert parse_security(properties) == security
    assert hash(parse_security(properties)) == hash(security)
    assert pickle.loads(pickle.dumps(security)) == security
    assert security.protocol == properties.get("security.protocol", "PLAINTEXT").upper()


@pytest.mark.parametrize(
    ("properties", "complaint"),
    [
        ({"security.protocol": "TLS"}, "use one of PLAINTEXT, SSL"),
        ({"sasl.mechanism": "PLAIN"}, "sasl.mechanism needs security.protocol.*SASL_SSL"),
        ({"ssl.trustore.location": "x"}, "did you mean ssl.truststore.location"),
        ({"ssl.protocl": "x"}, "did you mean ssl.protocol"),
        ({"sasl.jaas.confg": "x"}, "did you mean sasl.jaas.config"),
        ({"security.qqqqqqqqqqqqqqqqqqqqqq": "x"}, "; supported properties: security.protocol, "),
        (
            {"security.providers": "x"},
            "security.providers cannot be set: Java classes cannot decide here which brokers",
        ),
        ({**TLS, "ssl.engine.factory.class": "x"}, "ssl.engine.factory.class cannot be set: .* are trusted"),
        ({**TLS, "ssl.crl.location": "x"}, "ssl.crl.location cannot be set: revocation lists are not supported"),
        ({**TLS, "ssl.trustmanager.algorithm": "TrustAll"}, "ssl.trustmanager.algorithm can only be PKIX"),
        ({"security.protocol": "SASL_SSL"}, "SASL needs sasl.mechanism"),
        ({**SASL, "sasl.mechanism": "GSSAPI"}, "'GSSAPI'; use one of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512"),
        (SASL, "SASL needs a user"),
        (
            {**SASL, "sasl.jaas.config": f'{SCRAM_MODULE} required username="a" password="b";'},
            "PLAIN requires PlainLoginModule .* not .*ScramLoginModule",
        ),
        ({**TLS, "ssl.truststore.type": "BKS"}, "'BKS'; use one of JKS, PKCS12, PEM"),
        ({**TLS, "ssl.keystore.key": "x"}, "there is a key but no certificate"),
        ({**TLS, "ssl.certificate.pem": "x"}, "there is a certificate but no key"),
        ({**TLS, "ssl.endpoint.identification.algorithm": "ldaps"}, "must be https, or empty"),
        ({**TLS, "ssl.enabled.protocols": "TLSv1"}, "has 'TLSv1'; supported are TLSv1.2 and TLSv1.3"),
        ({**TLS, "ssl.enabled.protocols": "TLSv1.3,TLSv13"}, "has 'TLSv13'; supported are TLSv1.2 and TLSv1.3"),
        ({**TLS, "enable.ssl.certificate.verification": "no"}, "true or false"),
    ],
)
def test_invalid_properties_are_rejected_with_a_hint(properties: dict[str, str], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        parse_security(properties)


@pytest.mark.parametrize(
    ("unused", "security"),
    [
        ({"ssl.ca.location": "/etc/ca.pem"}, Security()),
        ({"sasl.kerberos.service.name": "kafka"}, Security()),
        ({**TLS, "ssl.protocol": "TLSv1.3"}, Security(tls=Tls())),
        ({**TLS, "ssl.cipher.suites": "TLS_AES_256_GCM_SHA384"}, Security(tls=Tls())),
        ({**TLS, "ssl.trustmanager.algorithm": "PKIX"}, Security(tls=Tls())),
        ({**TLS, "ssl.enabled.protocols": "TLSv1.2,TLSv1.1,TLSv1"}, Security(Tls(versions=("TLSv1.2",)))),
        (
            {
                **SASL,
                "sasl.username": "ada",
                "sasl.password": "pw",
                "sasl.kerberos.service.name": "kafka",
                "sasl.login.refresh.window.factor": "0.8",
                "sasl.oauthbearer.scope.claim.name": "scope",
            },
            Security(sasl=Sasl("PLAIN", "ada", "pw")),
        ),
    ],
)
def test_unsupported_java_properties_without_effect_on_trust_are_ignored(
    unused: dict[str, str], security: Security
) -> None:
    assert parse_security(unused) == security


def test_tls_properties_without_tls_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    parse_security({"ssl.truststore.password": "SECRET"})
    assert "ssl.truststore.password is ignored: security.protocol is not set" in caplog.text
    assert "SECRET" not in caplog.text


def test_nothing_secret_is_shown() -> None:
    security = parse_security(
        {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "ada",
            "sasl.password": "SECRET",
            "ssl.truststore.password": "SECRET",
            "ssl.keystore.key": "SECRET",
            "ssl.keystore.certificate.chain": "SECRET, for the key is there too",
            "ssl.key.password": "SECRET",
        }
    )
    assert "ada" in repr(security)
    assert "SECRET" not in repr(security)
    assert "SECRET" not in str(security)


SECRETS = [name for name in PROPERTIES if "password" in name or "jaas" in name or name.endswith((".key", "key.pem"))]


@pytest.mark.parametrize("name", SECRETS)
def test_no_error_shows_a_value_that_may_be_secret(name: str) -> None:
    for protocol in ("", "SSL", "SASL_SSL"):
        with suppress(ValueError):
            parse_security({**SASL, "sasl.username": "ada", "security.protocol": protocol, name: "SECRET"})
            continue
        with pytest.raises(ValueError, match=r"^(?!.*SECRET)"):
            parse_security({**SASL, "sasl.username": "ada", "security.protocol": protocol, name: "SECRET"})


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ('m.Login required username="a" password="b";', {"username": "a", "password": "b"}),
        (
            r'm.Login REQUIRED username="a\"b" password="c\\d\101;=";',
            {"username": 'a"b', "password": "c\\dA;="},
        ),
        ("m.Login required // who\n user=ada /* and\n how */ password='x y' ;", {"user": "ada", "password": "x y"}),
        ('m.Login required password="";', {"password": ""}),
        ("m.Login required;", {}),
    ],
)  # fmt: skip
def test_jaas_is_read_as_java_reads_it(text: str, options: dict[str, str]) -> None:
    assert parse_jaas_config(text) == ("m.Login", options)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "must be `some.LoginModule required"),
        ("m.Login SECRET;", "must be `some.LoginModule required"),
        ('m.Login required password="SECRET"', "end with a semicolon"),
        ('m.Login required password="SECRET";;', "one login module"),
        ('m.Login required password="SECRET;', "unclosed quote"),
        ('m.Login required password "SECRET";', "name=value"),
        ('m.Login required password="SECRET" username;', "name=value"),
        ("m.Login required = = SECRET;", "has no name or no value"),
    ],
)
def test_jaas_that_cannot_be_read_is_not_repeated_in_the_error(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint) as failure:
        parse_jaas_config(text)
    assert "SECRET" not in str(failure.value)
