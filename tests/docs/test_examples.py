"""The programs in examples/ run."""

import sys
from pathlib import Path

from docs.pages import PROJECT, run
from moldau.testing import Broker

EXAMPLES = PROJECT / "examples"


def test_the_asyncio_client(tmp_path: Path) -> None:
    with Broker() as broker:
        output = run(
            [sys.executable, str(EXAMPLES / "asyncio_client.py"), broker.bootstrap], tmp_path, broker.bootstrap
        )
    assert output.count("received") == 3


def test_confluent_kafka(tmp_path: Path) -> None:
    with Broker() as broker:
        output = run(
            [sys.executable, str(EXAMPLES / "confluent_client.py"), broker.bootstrap], tmp_path, broker.bootstrap
        )
    assert "received b'tea'" in output


def test_the_fixture(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(EXAMPLES / "test_with_fixture.py")]
    assert "1 passed" in run(command, tmp_path, "")
