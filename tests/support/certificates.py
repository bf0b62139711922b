"""Test certificates created with the openssl command: an authority, a broker's and a client's."""

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

KEY_PASSWORD = "open sesame"


@dataclass(frozen=True)
class Certificates:
    """PEM files."""

    authority: Path
    broker: Path
    """For localhost and 127.0.0.1."""
    broker_key: Path
    elsewhere: Path
    """The broker's key with a certificate for another host."""
    client: Path
    client_key: Path
    client_locked_key: Path
    """Encrypted with KEY_PASSWORD."""
    stranger: Path
    """An authority that signed none of the others."""


def make_certificates(directory: Path) -> Certificates:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl, which makes the certificates, is not installed")

    def run(*arguments: str) -> None:
        subprocess.run([openssl, *arguments], cwd=directory, check=True, capture_output=True)

    def authority(name: str) -> Path:
        subject = ["-subj", f"/CN={name}", "-addext", "basicConstraints=critical,CA:TRUE"]
        run(*_NEW, "-x509", "-days", "2", *subject, "-keyout", f"{name}.key", "-out", f"{name}.pem")
        return directory / f"{name}.pem"

    def signed(name: str, key: str, alternatives: str) -> Path:
        (directory / f"{name}.ext").write_text(f"subjectAltName={alternatives}\n")
        run("req", "-new", "-key", f"{key}.key", "-subj", f"/CN={name}", "-out", f"{name}.csr")
        by = ["-CA", "authority.pem", "-CAkey", "authority.key", "-CAcreateserial", "-days", "2"]
        run("x509", "-req", "-in", f"{name}.csr", *by, "-extfile", f"{name}.ext", "-out", f"{name}.pem")
        return directory / f"{name}.pem"

    made, stranger = authority("authority"), authority("stranger")
    for name in ("broker", "client"):
        run("genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", f"{name}.key")
    locked = ["-passout", f"pass:{KEY_PASSWORD}", "-out", "client_locked.key"]
    run("pkcs8", "-topk8", "-v2", "aes-256-cbc", "-in", "client.key", *locked)
    return Certificates(
        authority=made,
        broker=signed("broker", "broker", "DNS:localhost,IP:127.0.0.1"),
        broker_key=directory / "broker.key",
        elsewhere=signed("elsewhere", "broker", "DNS:elsewhere.example"),
        client=signed("client", "client", "DNS:client"),
        client_key=directory / "client.key",
        client_locked_key=directory / "client_locked.key",
        stranger=stranger,
    )


_NEW = ("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
