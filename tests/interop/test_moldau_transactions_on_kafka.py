"""Moldau's transactional client against Apache Kafka, with both generations of the protocol."""

from collections.abc import Iterator

import pytest
from apache_kafka import ApacheKafka, available

# Its tests are collected here with the brokers below.
from clients.test_moldau_transactions import *  # noqa: F403

PROPERTIES = {
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "100",
    "group.min.session.timeout.ms": "1000",
}


@pytest.fixture(scope="module", params=[2, 1], ids=["TV2", "TV1"])
def kafka(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheKafka]:
    reason = available()
    if reason is not None:
        pytest.skip(f"Apache Kafka is not there: {reason}")
    features = [f"transaction.version={request.param}"]
    with ApacheKafka(tmp_path_factory.mktemp("kafka"), PROPERTIES, heap="512m", features=features) as started:
        yield started


@pytest.fixture(scope="module")
def bootstrap(kafka: ApacheKafka) -> str:
    return kafka.bootstrap


@pytest.fixture(scope="module")
def transaction_version(kafka: ApacheKafka) -> int:
    return int(kafka.features[0].partition("=")[2])
