"""SASL requests on a plaintext listener, which needs no authentication."""

import pytest

from support.wire import METADATA, WireClient

SASL_HANDSHAKE, SASL_AUTHENTICATE = 17, 36
ILLEGAL_SASL_STATE = 34


@pytest.fixture(autouse=True)
def _connection_stays_usable(client: WireClient) -> object:
    yield
    assert client.request(METADATA, 1, {"topics": []})["brokers"]


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "no-such-mechanism"])
@pytest.mark.parametrize("version", [0, 1])
def test_a_handshake_is_rejected_without_mechanisms(client: WireClient, version: int, mechanism: str) -> None:
    for _ in range(2):
        response = client.request(SASL_HANDSHAKE, version, {"mechanism": mechanism})
        assert response == {"error_code": ILLEGAL_SASL_STATE, "mechanisms": []}


@pytest.mark.parametrize("auth_bytes", [b"\x00user\x00password", b""])
@pytest.mark.parametrize("version", [0, 1, 2])
def test_authentication_is_rejected(client: WireClient, version: int, auth_bytes: bytes) -> None:
    response = client.request(SASL_AUTHENTICATE, version, {"auth_bytes": auth_bytes})
    assert response.pop("session_lifetime", 0) == 0
    assert response == {
        "error_code": ILLEGAL_SASL_STATE,
        "error_message": "SaslAuthenticate request received after successful authentication",
        "auth_bytes": b"",
    }
