"""`moldau transaction` against Apache Kafka."""

from collections.abc import Iterator

import pytest
from apache_kafka import ApacheKafka, available

# Its tests are collected here with the broker below.
from clients.test_cli_transactions import *  # noqa: F403


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    reason = available()
    if reason is not None:
        pytest.skip(f"Apache Kafka is not there: {reason}")
    with ApacheKafka(tmp_path_factory.mktemp("kafka"), {}, heap="512m") as started:
        yield started.bootstrap


@pytest.fixture(scope="module")
def has_clients() -> bool:
    return False
