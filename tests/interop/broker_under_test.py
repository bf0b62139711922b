"""The broker that Java clients and Kafka's tools are tested with: Moldau, or Apache Kafka with
`MOLDAU_TEST_BROKER=kafka`. A test that fails against Apache Kafka is a wrong test."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from apache_kafka import ApacheKafka

from support.broker_process import BrokerProcess

AGAINST_KAFKA = os.environ.get("MOLDAU_TEST_BROKER") == "kafka"
Broker = BrokerProcess | ApacheKafka
GROUPS = {
    # No initial delay of rebalances: the tests check assignments, not timing.
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
    "offsets.topic.num.partitions": "50",
    # Many records have old timestamps. A check of the retention, every five minutes, would delete them during a test.
    "log.retention.check.interval.ms": "86400000",
}


def broker(
    data_dir: Path,
    advertised_port: int | None = None,
    settings: Mapping[str, str] | None = None,
    kafka_features: Sequence[str] = (),
) -> Broker:
    """Creates a broker for `with`; `advertised_port` is the port in its metadata, `kafka_features` are feature levels
    of Apache Kafka, as `group.version=0`."""
    advertised = {} if advertised_port is None else {"advertised.listeners": f"127.0.0.1:{advertised_port}"}
    if not AGAINST_KAFKA:
        flags = {**GROUPS, **advertised, **(settings or {})}
        return BrokerProcess(
            data_dir, *[part for name, value in flags.items() for part in (f"--{name.replace('.', '-')}", value)]
        )
    # Makes the tests wait for topics: Kafka responds before a topic can be used.
    os.environ["MOLDAU_TEST_BOOTSTRAP"] = "Apache Kafka"
    named = {name: f"PLAINTEXT://{value}" for name, value in advertised.items()}
    # Kafka checks the retention for the first time after this delay.
    delayed = {"log.initial.task.delay.ms": GROUPS["log.retention.check.interval.ms"]}
    properties = {**GROUPS, **delayed, **named, **(settings or {})}
    return ApacheKafka(data_dir, properties, heap="512m", features=kafka_features)
