"""One Spark session for all tests of a run, and a broker for the tests of a module."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

import moldau.spark
from moldau.testing import Broker
from support.log_writer import LogWriter


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    settings = {
        "spark.driver.memory": "1g",
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.streaming.pollingDelay": "20ms",
        "spark.ui.enabled": "false",
    }
    session = moldau.spark.session("moldau-tests", master="local[2]", settings=settings, quiet=True)
    yield session
    session.stop()


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(settings={"auto.create.topics.enable": "false"}) as running:
        yield running


@pytest.fixture
def written(broker: Broker) -> LogWriter:
    """Creates topics at the broker and writes records to them."""
    return LogWriter(broker.bootstrap)
