"""Apache Kafka's tools and clients as the judge of Moldau's files and responses."""

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import spark_connector
from apache_kafka import ApacheKafka, KafkaUnavailable, fetch
from broker_under_test import Broker, broker
from command_line import Tools
from java_clients import JavaClients

from support.broker_process import BrokerProcess
from support.topics import Topics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from spark_data import SparkTopics


@pytest.fixture(scope="session")
def jvm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaClients]:
    """One JVM for the whole run: its start takes longer than most tests."""
    try:
        fetch()
        clients = JavaClients(tmp_path_factory.mktemp("java"))
    except KafkaUnavailable as reason:
        pytest.skip(f"Apache Kafka's clients and tools are not there: {reason}")
    yield clients
    clients.stop()


@pytest.fixture
def java(jvm: JavaClients) -> Iterator[JavaClients]:
    """Java clients; consumers that a test leaves open are closed afterwards."""
    yield jvm
    jvm.close_consumers()


@pytest.fixture(scope="session")
def tools(jvm: JavaClients, tmp_path_factory: pytest.TempPathFactory) -> Tools:
    return Tools(jvm, tmp_path_factory.mktemp("tools"))


@pytest.fixture(scope="session")
def node(jvm: JavaClients, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A shared node with files."""
    with broker(tmp_path_factory.mktemp("interop") / "data") as started:
        yield started


@pytest.fixture(scope="session")
def spark() -> Iterator["SparkSession"]:
    """A Spark session with both data sources: `format("moldau")`, and Spark's connector as `format("kafka")`."""
    pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'moldau[spark]'")
    from moldau.spark import session

    reason = spark_connector.available()
    if reason is not None:
        pytest.skip(f"Spark's Kafka connector is not there: {reason}")
    settings = {
        "spark.jars": spark_connector.spark_jars(),
        "spark.driver.memory": "1g",
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false",
    }
    started = session("interop", master="local[2]", settings=settings, quiet=True)
    yield started
    started.stop()


@pytest.fixture(scope="session", params=["moldau", "kafka"])
def written(
    request: pytest.FixtureRequest, spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory
) -> Iterator["SparkTopics"]:
    """Topics for comparing reads, on Moldau and on Apache Kafka in turn."""
    from spark_data import Transactions, write

    directory = tmp_path_factory.mktemp(request.param) / "data"
    if request.param == "moldau":
        with BrokerProcess(directory) as served:
            yield write(Topics(served.bootstrap))
        return
    reason = ApacheKafka.available()
    if reason is not None:
        pytest.skip(f"Apache Kafka is not there: {reason}")
    with pytest.MonkeyPatch.context() as patch, ApacheKafka(directory, heap="512m") as kafka:
        # Makes the tests wait for topics: Kafka responds before a topic can be used.
        patch.setenv("MOLDAU_TEST_BOOTSTRAP", kafka.bootstrap)
        topics = Topics(kafka.bootstrap)
        transactions = Transactions(topics)
        yield replace(write(topics), committed=transactions.topic)
        transactions.close()
