"""SCRAM as in the RFC, and brokers that fail to authenticate."""

import hashlib
import hmac
from base64 import b64decode, b64encode

import pytest

from moldau.client.errors import AuthenticationError
from moldau.client.security.config import Sasl
from moldau.client.security.sasl import start_exchange

NONCE = b64decode("rOprNGfwEbeRWgbNEkqO")
"""The RFC's client nonce happens to be base64."""
SERVER_FIRST = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
PENCIL = Sasl("SCRAM-SHA-256", "user", "pencil")


def test_plain_is_one_message() -> None:
    speaking = start_exchange(Sasl("PLAIN", "ada", "pässword"), NONCE)
    assert next(speaking) == "\0ada\0pässword".encode()
    with pytest.raises(StopIteration):
        speaking.send(b"")


def test_scram_speaks_as_the_rfc_has_it() -> None:
    speaking = start_exchange(PENCIL, NONCE)
    assert next(speaking) == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    assert speaking.send(SERVER_FIRST) == (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    with pytest.raises(StopIteration):
        speaking.send(SERVER_FINAL)


def test_signs_in_a_user_name_that_scram_uses_itself_are_written_otherwise() -> None:
    speaking = start_exchange(Sasl("SCRAM-SHA-256", "a=b,c", "x"), NONCE)
    assert next(speaking) == b"n,,n=a=3Db=2Cc,r=rOprNGfwEbeRWgbNEkqO"


def test_scram_sha_512_produces_a_valid_proof() -> None:
    salt, iterations = b"0123456789", 8192
    speaking = start_exchange(Sasl("SCRAM-SHA-512", "ada", "pw"), NONCE)
    bare = next(speaking).removeprefix(b"n,,").decode()
    first = f"r={b64encode(NONCE).decode()}more,s={b64encode(salt).decode()},i={iterations}"
    final = speaking.send(first.encode()).decode()
    without_proof, _, proof = final.rpartition(",p=")
    salted = hashlib.pbkdf2_hmac("sha512", b"pw", salt, iterations)
    stored = hashlib.sha512(hmac.digest(salted, b"Client Key", "sha512")).digest()
    words = f"{bare},{first},{without_proof}".encode()
    signature = hmac.digest(stored, words, "sha512")
    key = bytes(one ^ other for one, other in zip(b64decode(proof), signature, strict=True))
    assert hashlib.sha512(key).digest() == stored
    server = hmac.digest(hmac.digest(salted, b"Server Key", "sha512"), words, "sha512")
    with pytest.raises(StopIteration):
        speaking.send(b"v=" + b64encode(server))


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        (b"r=somebodyelse,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096", "nonce does not extend the client's"),
        (b"r=rOprNGfwEbeRWgbNEkqO,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096", "nonce does not extend the client's"),
        (SERVER_FIRST.replace(b"4096", b"1"), "requires 1 iterations"),
        (SERVER_FIRST.replace(b"4096", b"99999999"), "requires 99999999 iterations"),
        (SERVER_FIRST.replace(b"4096", b"many"), "requires many iterations"),
        (SERVER_FIRST.replace(b"W22Z", b"!!!!"), "not a SCRAM message"),
        (b"m=something," + SERVER_FIRST, "extension"),
        (b"e=unknown-user", "SCRAM error 'unknown-user'"),
        (b"\xff\xfe", "not a SCRAM message"),
        (b"", "not a SCRAM message"),
    ],
)
def test_an_invalid_first_scram_message_fails_authentication(answer: bytes, complaint: str) -> None:
    speaking = start_exchange(PENCIL, NONCE)
    next(speaking)
    with pytest.raises(AuthenticationError, match=complaint) as failure:
        speaking.send(answer)
    assert not failure.value.is_retriable


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        (SERVER_FINAL.replace(b"6rri", b"7rri"), "does not know the password"),
        (b"e=invalid-proof", "SCRAM error 'invalid-proof'"),
        (b"", "not a SCRAM message"),
    ],
)
def test_a_broker_that_does_not_know_the_password_is_found_out(answer: bytes, complaint: str) -> None:
    speaking = start_exchange(PENCIL, NONCE)
    next(speaking)
    speaking.send(SERVER_FIRST)
    with pytest.raises(AuthenticationError, match=complaint):
        speaking.send(answer)
