"""Apache Kafka's own tools and clients, from its published artifacts, as the judge of Moldau's files and answers."""

from collections.abc import Iterator

import pytest
from apache_kafka import KafkaUnavailable, fetch
from broker_under_test import Broker, broker
from command_line import Tools
from java_clients import JavaClients


@pytest.fixture(scope="session")
def jvm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaClients]:
    """One JVM for the whole run: starting one takes longer than most of what is asked of it."""
    try:
        fetch()
        clients = JavaClients(tmp_path_factory.mktemp("java"))
    except KafkaUnavailable as reason:
        pytest.skip(f"Apache Kafka's clients and tools are not there: {reason}")
    yield clients
    clients.stop()


@pytest.fixture
def java(jvm: JavaClients) -> Iterator[JavaClients]:
    """Java's clients; consumers that a test leaves open are closed behind it."""
    yield jvm
    jvm.close_consumers()


@pytest.fixture(scope="session")
def tools(jvm: JavaClients, tmp_path_factory: pytest.TempPathFactory) -> Tools:
    return Tools(jvm, tmp_path_factory.mktemp("tools"))


@pytest.fixture(scope="session")
def node(jvm: JavaClients, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A node on files that the tests of a run share."""
    with broker(tmp_path_factory.mktemp("interop") / "data") as started:
        yield started
