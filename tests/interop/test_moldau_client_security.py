"""Moldau's client with TLS and SASL listeners of Apache Kafka: successful logins, and the errors of failed ones."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from apache_kafka import ApacheKafka, available

from moldau.client import Admin, AuthenticationError, Cluster, Consumer, KafkaError, Producer
from moldau.client.security.config import Security, parse_security
from support.certificates import KEY_PASSWORD, Certificates, make_certificates
from support.ports import free_port
from support.topics import unique

DEADLINE_S = 60
PASSWORD = 'a "quoted", back\\slashed = password'
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required"
REAUTHENTICATION_MS = 4_000
"""The client connects again after 85 % of it, and a request that is on its way then must arrive in the rest."""
MECHANISMS = ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]


@dataclass
class Kafka:
    ports: dict[str, int]
    certificates: Certificates

    def bootstrap(self, listener: str) -> str:
        return f"127.0.0.1:{self.ports[listener]}"

    def trusting(self, **properties: str) -> dict[str, str]:
        return {
            "security.protocol": "SSL",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.certificates.authority),
            **{name.replace("_", "."): value for name, value in properties.items()},
        }


def jaas(mechanism: str, password: str = PASSWORD, user: str = "ada") -> str:
    quoted = password.replace("\\", "\\\\").replace('"', '\\"')
    return f'{PLAIN if mechanism == "PLAIN" else SCRAM} username="{user}" password="{quoted}";'


def sasl(mechanism: str, **given: str) -> dict[str, str]:
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.jaas.config": jaas(mechanism, **given),
    }


LISTENERS = {"SECURE": "SASL_SSL", "OPEN": "SASL_PLAINTEXT", "SHORT": "SASL_PLAINTEXT", "TLS": "SSL", "MUTUAL": "SSL"}


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    reason = available()
    if reason is not None:
        pytest.skip(f"Apache Kafka is not there: {reason}")
    directory = tmp_path_factory.mktemp("secured")
    made = make_certificates(directory)
    keystore = directory / "keystore.pem"
    keystore.write_text(made.broker_key.read_text() + made.broker.read_text() + made.authority.read_text())
    ports = {name: free_port() for name in LISTENERS}
    users = [f"{each}=[name=ada,password={PASSWORD_OF_SCRAM}]" for each in MECHANISMS[1:]]
    broker = ApacheKafka(directory / "data", heap="512m", scram=users)
    broker.properties.update(_listeners(broker, ports))
    broker.properties.update(
        {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(keystore),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(made.authority),
        }
    )
    with broker:
        yield Kafka(ports, made)


PASSWORD_OF_SCRAM = "pencils and paper"
"""The tool that creates these users accepts neither commas nor brackets."""


def _listeners(broker: ApacheKafka, ports: dict[str, int]) -> dict[str, str]:
    own = {"PLAINTEXT": broker.port, **ports}
    protocols = {"PLAINTEXT": "PLAINTEXT", "CONTROLLER": "PLAINTEXT", **LISTENERS}
    quoted = PASSWORD.replace("\\", "\\\\").replace('"', '\\"')
    # A properties file unescapes backslashes once more.
    user = f'{PLAIN} user_ada="{quoted}";'.replace("\\", "\\\\")
    settings = {
        "listeners": ",".join(
            [f"{name}://127.0.0.1:{port}" for name, port in own.items()]
            + [f"CONTROLLER://127.0.0.1:{broker.controller_port}"]
        ),
        "advertised.listeners": ",".join(f"{name}://127.0.0.1:{port}" for name, port in own.items()),
        "listener.security.protocol.map": ",".join(f"{name}:{each}" for name, each in protocols.items()),
        "listener.name.mutual.ssl.client.auth": "required",
        "listener.name.short.plain.connections.max.reauth.ms": str(REAUTHENTICATION_MS),
    }
    for name in ("secure", "open", "short"):
        prefix = f"listener.name.{name}"
        settings[f"{prefix}.sasl.enabled.mechanisms"] = "PLAIN" if name == "short" else ",".join(MECHANISMS)
        settings[f"{prefix}.plain.sasl.jaas.config"] = user
        settings[f"{prefix}.scram-sha-256.sasl.jaas.config"] = f"{SCRAM};"
        settings[f"{prefix}.scram-sha-512.sasl.jaas.config"] = f"{SCRAM};"
    return settings


def password_for(mechanism: str) -> str:
    return PASSWORD if mechanism == "PLAIN" else PASSWORD_OF_SCRAM


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(DEADLINE_S):
            await test()

    asyncio.run(limited())


async def write_and_read(bootstrap: str, security: Security) -> None:
    """Creates a topic, writes to it and reads it in a group, each with another client."""
    topic = unique()
    async with Admin(bootstrap, security=security) as admin:
        await admin.create_topic(topic, 2)
    async with Producer(bootstrap, security=security) as producer:
        values = [b"x" * 10_000 + b"%d" % number for number in range(100)]
        for number, value in enumerate(values):
            await producer.send(topic, value, partition=number % 2)
    read: list[bytes] = []
    async with Consumer(bootstrap, group_id=topic, auto_offset_reset="earliest", security=security) as consumer:
        consumer.subscribe([topic])
        while len(read) < len(values):
            read += [record.value for record in await consumer.poll(1_000) if record.value is not None]
    assert sorted(read) == sorted(values)


async def failure(bootstrap: str, properties: dict[str, str], timeout_ms: int = 30_000) -> KafkaError:
    settings = {"security": parse_security(properties), "request_timeout_ms": timeout_ms}
    with pytest.raises(KafkaError) as raised:
        async with Cluster(bootstrap, **settings):
            pass
    assert PASSWORD not in str(raised.value)
    return raised.value


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_sasl_with_and_without_tls(kafka: Kafka, mechanism: str) -> None:
    async def test() -> None:
        properties = sasl(mechanism, password=password_for(mechanism))
        await write_and_read(kafka.bootstrap("OPEN"), parse_security(properties))
        secured = {**kafka.trusting(), **properties, "security.protocol": "SASL_SSL"}
        await write_and_read(kafka.bootstrap("SECURE"), parse_security(secured))

    run(test)


def test_tls_with_librdkafkas_names(kafka: Kafka) -> None:
    async def test() -> None:
        properties = {"security.protocol": "ssl", "ssl.ca.location": str(kafka.certificates.authority)}
        await write_and_read(kafka.bootstrap("TLS"), parse_security(properties))

    run(test)


def test_tls_with_a_certificate_of_the_client(kafka: Kafka, tmp_path: Path) -> None:
    made = kafka.certificates
    keystore = tmp_path / "client.pem"
    keystore.write_text(made.client_locked_key.read_text() + made.client.read_text())

    async def test() -> None:
        for properties in (
            {"ssl.keystore.location": str(keystore), "ssl.key.password": KEY_PASSWORD},
            {
                "ssl.keystore.certificate.chain": made.client.read_text(),
                "ssl.keystore.key": made.client_key.read_text(),
            },
        ):
            security = parse_security({**kafka.trusting(), "ssl.keystore.type": "PEM", **properties})
            await write_and_read(kafka.bootstrap("MUTUAL"), security)

    run(test)


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
def test_a_missing_client_certificate_is_an_immediate_error(kafka: Kafka, version: str) -> None:
    async def test() -> None:
        properties = kafka.trusting(ssl_enabled_protocols=version)
        error = await failure(kafka.bootstrap("MUTUAL"), properties)
        assert isinstance(error, AuthenticationError), error
        assert "does it require a client certificate" in str(error)

    run(test)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_wrong_password_is_an_immediate_error(kafka: Kafka, mechanism: str) -> None:
    async def test() -> None:
        error = await failure(kafka.bootstrap("OPEN"), sasl(mechanism, password="SECRET"))
        assert isinstance(error, AuthenticationError)
        assert "rejected user 'ada'" in str(error)
        assert "SECRET" not in str(error)
        error = await failure(kafka.bootstrap("OPEN"), sasl(mechanism, user="nobody"))
        assert "rejected user 'nobody'" in str(error)

    run(test)


def test_an_unsupported_mechanism_is_an_error(kafka: Kafka) -> None:
    async def test() -> None:
        error = await failure(kafka.bootstrap("SHORT"), sasl("SCRAM-SHA-256"))
        assert "does not support the mechanism SCRAM-SHA-256; it offers PLAIN" in str(error)

    run(test)


def test_a_port_with_another_protocol_is_an_error_that_says_what_to_change(kafka: Kafka) -> None:
    async def test() -> None:
        for listener, properties, complaint in (
            ("TLS", {}, "does it require TLS"),
            ("OPEN", {}, "does it require SASL"),
            ("SECURE", kafka.trusting(), "does it require SASL"),
            ("TLS", sasl("PLAIN"), "does it require TLS"),
        ):
            error = await failure(kafka.bootstrap(listener), properties, timeout_ms=3_000)
            assert complaint in str(error), (listener, error)
        tls_and_sasl = {**kafka.trusting(), **sasl("PLAIN"), "security.protocol": "SASL_SSL"}
        error = await failure(kafka.bootstrap("TLS"), tls_and_sasl)
        assert "does not use SASL on this port" in str(error)

    run(test)


def test_an_unknown_authority_is_an_immediate_error(kafka: Kafka) -> None:
    async def test() -> None:
        properties = kafka.trusting(ssl_truststore_location=str(kafka.certificates.stranger))
        error = await failure(kafka.bootstrap("TLS"), properties)
        assert isinstance(error, AuthenticationError)
        assert "certificate verify failed" in str(error)

    run(test)


def test_an_expiring_session_is_reauthenticated_while_records_flow(
    kafka: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost: list[str] = []
    monkeypatch.setattr(Cluster, "note_failure", lambda _, connection: lost.append(str(connection)))

    async def test() -> None:
        security = parse_security(sasl("PLAIN"))
        bootstrap, topic = kafka.bootstrap("SHORT"), unique()
        settings: dict[str, Any] = {"security": security}
        async with Admin(bootstrap, **settings) as admin:
            await admin.create_topic(topic, 1)
        until = asyncio.get_running_loop().time() + 3 * REAUTHENTICATION_MS / 1000
        sent: list[asyncio.Future[Any]] = []
        read: list[bytes | None] = []
        consumer = Consumer(bootstrap, group_id=topic, auto_offset_reset="earliest", **settings)
        async with Producer(bootstrap, linger_ms=0, **settings) as producer, consumer:
            consumer.subscribe([topic])
            while asyncio.get_running_loop().time() < until:
                sent.append(await producer.send(topic, b"%d" % len(sent)))
                read += [record.value for record in await consumer.poll(10)]
            await producer.flush()
            while len(read) < len(sent):
                read += [record.value for record in await consumer.poll(1_000)]
        assert [each.result().offset for each in sent] == list(range(len(sent)))
        assert read == [b"%d" % number for number in range(len(sent))]
        assert lost == [], "the broker ended connections that were still used"

    run(test)
