"""The commands of operators against Apache Kafka."""

from collections.abc import Iterator

import pytest
from apache_kafka import ApacheKafka, available

# Its tests are collected here with the broker below.
from clients.test_cli_admin import *  # noqa: F403


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    reason = available()
    if reason is not None:
        pytest.skip(f"Apache Kafka is not there: {reason}")
    with ApacheKafka(
        tmp_path_factory.mktemp("kafka"), {"group.initial.rebalance.delay.ms": "0"}, heap="512m"
    ) as started:
        yield started.bootstrap
