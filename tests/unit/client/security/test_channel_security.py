"""TLS and SASL on the wire, against a scripted broker: success and error messages."""

import asyncio
import ssl
import subprocess
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from moldau.client import AuthenticationError, Cluster, ConnectionLostError, KafkaError, Producer
from moldau.client.errors import ErrorCode
from moldau.client.net.api_versions import SUPPORTED_VERSIONS
from moldau.client.security.channel_security import create_tls_context
from moldau.client.security.config import Sasl, Security, Tls
from moldau.wire.api_keys import ApiKey
from support.certificates import KEY_PASSWORD, Certificates, make_certificates
from support.scripted_broker import Disconnect, ReceivedRequest, ScriptedBroker, ScriptedResponse

DEADLINE_S = 20
ADA = Security(sasl=Sasl("PLAIN", "ada", "right"))
Test = Callable[[ScriptedBroker], Coroutine[Any, Any, None]]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


def run(test: Test, broker: ScriptedBroker, new_loop: Callable[[], asyncio.AbstractEventLoop] | None = None) -> None:
    async def main() -> None:
        async with asyncio.timeout(DEADLINE_S), broker:
            await test(broker)

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(main())


def plain_broker(password: str = "right", lifetime_ms: int = 0, **settings: Any) -> ScriptedBroker:
    """Accepts `ada` by PLAIN on every connection, and disconnects clients that send anything else before that."""
    known: set[int] = set()

    def handshake(received: ReceivedRequest) -> ScriptedResponse:
        code = 0 if received.request.mechanism == "PLAIN" else int(ErrorCode.unsupported_sasl_mechanism)
        return {"error_code": code, "mechanisms": ["PLAIN", "OTHER"]}

    def authenticate(received: ReceivedRequest) -> ScriptedResponse:
        if received.request.auth_bytes == f"\0ada\0{password}".encode():
            known.add(received.connection)
            return {"error_code": 0, "error_message": None, "auth_bytes": b"", "session_lifetime": lifetime_ms}
        code = int(ErrorCode.sasl_authentication_failed)
        return {"error_code": code, "error_message": "wrong!", "auth_bytes": b"", "session_lifetime": 0}

    def metadata(received: ReceivedRequest) -> ScriptedResponse:
        return broker._metadata(received) if received.connection in known else Disconnect

    broker = ScriptedBroker(
        {ApiKey.SASL_HANDSHAKE: handshake, ApiKey.SASL_AUTHENTICATE: authenticate, ApiKey.METADATA: metadata},
        topics={"orders": 1},
        **settings,
    )
    return broker


async def start(broker: ScriptedBroker, security: Security | None, host: str = "127.0.0.1") -> None:
    settings: dict[str, Any] = {"retry_backoff_ms": 1, "request_timeout_ms": 2_000, "security": security}
    async with Cluster(f"{host}:{broker.port}", **settings):
        pass


async def failure(broker: ScriptedBroker, security: Security | None, **settings: Any) -> KafkaError:
    with pytest.raises(KafkaError) as raised:
        await start(broker, security, **settings)
    return raised.value


# SASL


@pytest.mark.parametrize("version", [0, 1, 2])
def test_every_connection_authenticates_first(version: int) -> None:
    async def test(broker: ScriptedBroker) -> None:
        async with Cluster(broker.bootstrap, security=ADA) as cluster:
            await cluster.connection(7, "another lane")
        for connection in range(2):
            received = [each.api for each in broker.received_requests if each.connection == connection]
            assert received[:3] == [ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE]

    versions = {
        **SUPPORTED_VERSIONS,
        ApiKey.SASL_AUTHENTICATE: SUPPORTED_VERSIONS[ApiKey.SASL_AUTHENTICATE]._replace(maximum=version),
    }
    run(test, plain_broker(versions=versions))


def test_a_wrong_password_is_reported_at_once_without_retries() -> None:
    async def test(broker: ScriptedBroker) -> None:
        wrong = Security(sasl=Sasl("PLAIN", "ada", "SECRET"))
        error = await failure(broker, wrong)
        assert isinstance(error, AuthenticationError)
        assert "rejected user 'ada' (PLAIN): wrong!" in str(error)
        assert "SECRET" not in str(error)
        assert broker.count(ApiKey.SASL_AUTHENTICATE) == 1

    run(test, plain_broker())


def test_an_unsupported_mechanism_is_reported_with_the_supported_ones() -> None:
    async def test(broker: ScriptedBroker) -> None:
        error = await failure(broker, Security(sasl=Sasl("SCRAM-SHA-256", "ada", "right")))
        assert "does not support the mechanism SCRAM-SHA-256; it offers PLAIN, OTHER" in str(error)
        assert not error.is_retriable

    run(test, plain_broker())


def test_a_port_without_sasl_is_reported() -> None:
    async def test(broker: ScriptedBroker) -> None:
        broker.scripts[ApiKey.SASL_HANDSHAKE] = lambda _: {"error_code": 34, "mechanisms": []}
        assert "does not use SASL on this port: set security.protocol to PLAINTEXT or SSL" in str(
            await failure(broker, ADA)
        )
        del broker.versions[ApiKey.SASL_HANDSHAKE]
        assert "does not support SASL" in str(await failure(broker, ADA))

    run(test, plain_broker())


def test_a_missing_sasl_configuration_is_hinted_at() -> None:
    async def test(broker: ScriptedBroker) -> None:
        assert "does it require SASL" in str(await failure(broker, None))

    run(test, plain_broker())


def _pretends(said: bytes) -> bytes:
    return said.removeprefix(b"n,,n=ada,") + b"x,s=AAAA,i=4096" if said.startswith(b"n,,") else b"v=AAAA"


def test_a_broker_with_a_wrong_server_signature_is_rejected() -> None:
    async def test(broker: ScriptedBroker) -> None:
        broker.scripts[ApiKey.SASL_HANDSHAKE] = lambda _: {"error_code": 0, "mechanisms": []}
        broker.scripts[ApiKey.SASL_AUTHENTICATE] = lambda received: {
            "error_code": 0,
            "error_message": None,
            "auth_bytes": _pretends(bytes(received.request.auth_bytes)),
            "session_lifetime": 0,
        }
        error = await failure(broker, Security(sasl=Sasl("SCRAM-SHA-256", "ada", "right")))
        assert "it is not the expected broker" in str(error)
        assert not error.is_retriable

    run(test, plain_broker())


def test_a_connection_is_replaced_before_its_sasl_session_expires() -> None:
    async def test(broker: ScriptedBroker) -> None:
        async with Cluster(broker.bootstrap, security=ADA) as cluster:
            first = await cluster.connection(7)
            assert await cluster.connection(7) is first
            release = asyncio.Event()

            async def slowly(received: ReceivedRequest) -> ScriptedResponse:
                await release.wait()
                return {"throttle_time": 0, "error_code": 0, "groups": []}

            broker.scripts[ApiKey.LIST_GROUPS] = slowly
            waiting = first.call(ApiKey.LIST_GROUPS, {"states_filter": []}, timeout_ms=10_000)
            await asyncio.sleep(0.2)
            second = await cluster.connection(7)
            assert second is not first
            assert first.is_open
            release.set()
            assert (await waiting).groups == []
            assert not first.is_open
            await cluster.refresh()
            assert broker.count(ApiKey.SASL_AUTHENTICATE) >= 2

    run(test, plain_broker(lifetime_ms=200))


def test_a_producer_fails_at_once_when_its_password_becomes_invalid() -> None:
    async def test(broker: ScriptedBroker) -> None:
        async with Producer(broker.bootstrap, linger_ms=0, retry_backoff_ms=1, security=ADA) as producer:
            await producer.partition_count("orders")
            broker.scripts[ApiKey.SASL_AUTHENTICATE] = lambda _: {
                "error_code": 58,
                "error_message": "no more",
                "auth_bytes": b"",
                "session_lifetime": 0,
            }
            sent = await producer.send("orders", b"x")
            with pytest.raises(KafkaError, match="no more"):
                await sent

    run(test, plain_broker())


# TLS


def broker_tls(certificates: Certificates, *, wants_client: bool = False, elsewhere: bool = False) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.elsewhere if elsewhere else certificates.broker, certificates.broker_key)
    if wants_client:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(certificates.authority)
    return context


def trusting(certificates: Certificates, **fields: Any) -> Security:
    return Security(Tls(**{"ca_location": str(certificates.authority), **fields}))


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_broker_with_a_certificate_of_ours_is_trusted(certificates: Certificates, host: str) -> None:
    async def test(broker: ScriptedBroker) -> None:
        await start(broker, trusting(certificates), host)
        pem = certificates.authority.read_text()
        await start(broker, Security(Tls(ca_pem=pem)), host)
        await start(broker, Security(Tls(ca_location=str(certificates.broker))), host)

    run(test, ScriptedBroker(tls=broker_tls(certificates)))


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_large_responses_are_received_over_tls_with_sasl(certificates: Certificates, loop: str) -> None:
    async def test(broker: ScriptedBroker) -> None:
        security = Security(trusting(certificates).tls, ADA.sasl)
        broker.topics = {f"topic-{number:05d}": 1 for number in range(2_000)}
        async with Cluster(broker.bootstrap, security=security) as cluster:
            for _ in range(3):
                await cluster.refresh(all_topics=True)
                assert list(cluster.topics) == list(broker.topics)

    new_loop = None if loop == "asyncio" else pytest.importorskip("uvloop").new_event_loop
    run(test, plain_broker(tls=broker_tls(certificates)), new_loop)


@pytest.mark.parametrize(
    ("fields", "elsewhere", "complaint"),
    [
        ({"ca_location": "stranger"}, False, "certificate verify failed.*ssl.truststore.location"),
        ({"ca_location": ""}, False, "certificate verify failed"),
        ({}, True, "not valid for '127.0.0.1'"),
    ],
)
def test_an_untrusted_broker_is_reported_at_once(
    certificates: Certificates, fields: dict[str, Any], elsewhere: bool, complaint: str
) -> None:
    if fields.get("ca_location"):
        fields = {"ca_location": str(certificates.stranger)}

    async def test(broker: ScriptedBroker) -> None:
        with pytest.raises(AuthenticationError, match=complaint):
            await start(broker, trusting(certificates, **fields))
        assert broker.received_requests == []

    run(test, ScriptedBroker(tls=broker_tls(certificates, elsewhere=elsewhere)))


def test_host_names_and_certificates_are_not_checked_where_that_is_said(certificates: Certificates) -> None:
    async def test(broker: ScriptedBroker) -> None:
        await start(broker, trusting(certificates, checks_host_name=False))
        await start(broker, Security(Tls(checks_host_name=False, checks_certificate=False)))

    run(test, ScriptedBroker(tls=broker_tls(certificates, elsewhere=True)))


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
def test_a_broker_that_wants_a_certificate_gets_one(certificates: Certificates, version: str) -> None:
    files = {"certificate_location": str(certificates.client)}
    ways: list[dict[str, Any]] = [
        {**files, "key_location": str(certificates.client_key)},
        {**files, "key_location": str(certificates.client_locked_key), "key_password": KEY_PASSWORD},
        {"certificate_pem": certificates.client.read_text(), "key_pem": certificates.client_key.read_text()},
    ]

    async def test(broker: ScriptedBroker) -> None:
        for way in ways:
            await start(broker, trusting(certificates, versions=(version,), **way))
        with pytest.raises(ConnectionLostError, match="does it require a client certificate"):
            await start(broker, trusting(certificates, versions=(version,)))

    run(test, ScriptedBroker(tls=broker_tls(certificates, wants_client=True)))


def test_a_key_beside_its_certificate_in_one_file_is_found(certificates: Certificates, tmp_path: Path) -> None:
    store = tmp_path / "keystore.pem"
    store.write_text(certificates.client_key.read_text() + certificates.client.read_text())
    create_tls_context(Tls(certificate_location=str(store)))


def test_tls_mismatches_are_reported_on_both_sides(certificates: Certificates) -> None:
    async def test(broker: ScriptedBroker) -> None:
        error = await failure(broker, None)
        assert isinstance(error, ConnectionLostError)
        assert "does it require TLS" in str(error)

    async def says_something_else(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    async def other_way_round(broker: ScriptedBroker) -> None:
        async with await asyncio.start_server(says_something_else, "127.0.0.1", 0) as server:
            broker.port = server.sockets[0].getsockname()[1]
            error = await failure(broker, trusting(certificates))
            assert isinstance(error, AuthenticationError)
            assert "Does this port use TLS" in str(error)

    run(test, ScriptedBroker(tls=broker_tls(certificates)))
    run(other_way_round, ScriptedBroker())


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"\xfe\xed\xfe\xed....", "is a JKS store.*keytool -list -rfc -keystore"),
        (b"nothing", "neither PEM nor PKCS12"),
        (b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "no usable certificates"),
    ],
)
def test_an_unusable_truststore_is_reported_with_a_hint(tmp_path: Path, content: bytes, complaint: str) -> None:
    (tmp_path / "store").write_bytes(content)
    with pytest.raises(ValueError, match=complaint):
        create_tls_context(Tls(ca_location=str(tmp_path / "store")))


def test_missing_files_are_reported_before_connecting(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"the truststore .*nowhere cannot be read: No such file"):
        Cluster("127.0.0.1:1", security=Security(Tls(ca_location=str(tmp_path / "nowhere"))))
    with pytest.raises(ValueError, match=r"the keystore .*nowhere cannot be read: No such file"):
        create_tls_context(Tls(certificate_location=str(tmp_path / "nowhere")))


def test_a_wrong_key_password_is_reported_without_a_terminal_prompt(certificates: Certificates) -> None:
    for password in ("", "SECRET"):
        tls = Tls(
            certificate_location=str(certificates.client),
            key_location=str(certificates.client_locked_key),
            key_password=password,
        )
        with pytest.raises(ValueError, match=r"is ssl.key.password right\?\): (?!.*SECRET)"):
            create_tls_context(tls)
    with pytest.raises(ValueError, match="cannot be used together"):
        create_tls_context(
            Tls(certificate_location=str(certificates.client), key_location=str(certificates.broker_key))
        )


def test_names_around_the_certificates_of_a_truststore_do_no_harm(certificates: Certificates, tmp_path: Path) -> None:
    store = tmp_path / "ca.pem"
    store.write_bytes("Alias: Älteste\n".encode("latin-1") + certificates.authority.read_bytes())
    create_tls_context(Tls(ca_location=str(store)))


def test_a_pkcs12_truststore_is_read_where_python_can(
    certificates: Certificates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "store.p12"
    source = ["-nokeys", "-in", str(certificates.authority), "-out", str(store)]
    subprocess.run(["openssl", "pkcs12", "-export", *source, "-passout", "pass:right"], check=True)
    tls = Tls(ca_location=str(store), ca_password="right")
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "cryptography", None)
        with pytest.raises(ValueError, match=r"PKCS12 store.*`cryptography`.*keytool -list -rfc"):
            create_tls_context(tls)
    pytest.importorskip("cryptography")
    assert create_tls_context(tls).cert_store_stats()["x509"] == 1
    with pytest.raises(ValueError, match=r"is ssl\.truststore\.password right"):
        create_tls_context(Tls(ca_location=str(store), ca_password="SECRET"))
