"""The broker that Java's clients and Kafka's tools are tried against: Moldau, or with `MOLDAU_TEST_BROKER=kafka` Apache
Kafka itself. A test that fails against Apache Kafka is a wrong test."""

import os
from pathlib import Path

from apache_kafka import ApacheKafka

from support.broker_process import BrokerProcess

AGAINST_KAFKA = os.environ.get("MOLDAU_TEST_BROKER") == "kafka"
Broker = BrokerProcess | ApacheKafka
GROUPS = {
    # A new group waits no longer than it must: what is tried here is who gets what, not how long it takes.
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
    "offsets.topic.num.partitions": "50",
}


def broker(data_dir: Path, advertised_port: int | None = None) -> Broker:
    """A broker to be started (`with`), stopped and started again; `advertised_port` is where its clients are sent."""
    advertised = {} if advertised_port is None else {"advertised.listeners": f"127.0.0.1:{advertised_port}"}
    if not AGAINST_KAFKA:
        settings = {**GROUPS, **advertised}
        flags = [part for name, value in settings.items() for part in (f"--{name.replace('.', '-')}", value)]
        return BrokerProcess(data_dir, *flags)
    # Topics made by the tests are waited for where this is set: Kafka says that a topic is there before it is.
    os.environ["MOLDAU_TEST_BOOTSTRAP"] = "Apache Kafka"
    named = {name: f"PLAINTEXT://{value}" for name, value in advertised.items()}
    return ApacheKafka(data_dir, {**GROUPS, **named}, heap="512m")
