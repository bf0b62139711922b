"""Moldau's consumer against Apache Kafka, with the behaviours that it has against Moldau."""

import asyncio
from collections.abc import Iterator

import pytest
from apache_kafka import ApacheKafka, available

from support.consumer_behaviours import CONSUMER_BEHAVIOURS, ConsumerFixture, a_group_resumes_after_a_broker_restart


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheKafka]:
    reason = available()
    if reason is not None:
        pytest.skip(f"Apache Kafka is not there: {reason}")
    with ApacheKafka(tmp_path_factory.mktemp("kafka"), heap="512m") as started:
        yield started


@pytest.mark.parametrize("behaviour", CONSUMER_BEHAVIOURS)
def test_moldaus_consumer_on_kafka(kafka: ApacheKafka, behaviour: str) -> None:
    asyncio.run(CONSUMER_BEHAVIOURS[behaviour](ConsumerFixture(kafka.bootstrap)))


def test_it_resumes_after_a_restart_of_kafka(kafka: ApacheKafka) -> None:
    def restart() -> None:
        kafka.stop()
        kafka.start()

    asyncio.run(a_group_resumes_after_a_broker_restart(ConsumerFixture(kafka.bootstrap), restart))
