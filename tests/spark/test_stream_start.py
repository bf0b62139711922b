"""Streams that start at the same time do not change the map of environment variables that they share."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import moldau.spark
from moldau.pipelines.planner.query_planner import PlannedQuery
from moldau.pipelines.runtime.query_group import QueryGroup
from moldau.spark.stream_start import VARIABLES
from moldau.testing import Broker
from support.log_writer import LogWriter

pytestmark = pytest.mark.spark


class SharedVariables:
    """The variables of all queries with format("moldau"), without those that a stream adds."""

    def __init__(self, spark: SparkSession) -> None:
        manager: Any = spark._jsparkSession.sessionState().dataSourceManager()  # type: ignore[operator]
        self._map = manager.lookupDataSource("moldau").dataSourceCls().envVars()
        for name in VARIABLES:
            self._map.remove(name)

    def names(self) -> set[str]:
        return set(self._map.keySet())


@pytest.fixture
def shared(spark: SparkSession) -> SharedVariables:
    return SharedVariables(spark)


def start(spark: SparkSession, broker: Broker, topic: str, checkpoint: Path) -> StreamingQuery:
    options = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": topic, "startingOffsets": "earliest"}
    rows = spark.readStream.format("moldau").options(**options).load()
    writer = rows.writeStream.format("noop").trigger(availableNow=True)
    return writer.option("checkpointLocation", str(checkpoint)).start()


def test_a_stream_adds_no_variable_after_the_preparation(
    spark: SparkSession, shared: SharedVariables, broker: Broker, written: LogWriter, tmp_path: Path
) -> None:
    topic = written.create("numbers")
    written.send(topic, [b"1"])
    before = shared.names()
    start(spark, broker, topic, tmp_path / "first").awaitTermination()
    assert shared.names() > before, "Spark no longer adds variables: moldau.spark.stream_start is not needed any more"

    prepared = SharedVariables(spark)
    moldau.spark.prepare_streams(spark)
    before = prepared.names()
    start(spark, broker, topic, tmp_path / "second").awaitTermination()
    assert prepared.names() == before


def test_queries_of_a_pipeline_start_after_the_preparation(
    spark: SparkSession, shared: SharedVariables, broker: Broker, written: LogWriter, tmp_path: Path
) -> None:
    topic = written.create("numbers")
    names: list[set[str]] = []

    def start_query(available_now: bool) -> StreamingQuery:
        names.append(shared.names())
        query = start(spark, broker, topic, tmp_path / "checkpoint")
        query.awaitTermination()
        return query

    queries = QueryGroup(spark, [PlannedQuery("only", start_query)], lambda progress: None, NoEnds())  # type: ignore[arg-type]
    queries.start(available_now=True)
    queries.end()
    assert names[0] >= set(VARIABLES)


class NoEnds:
    def poll(self, _: object) -> None:
        return None

    def close(self) -> None:
        pass
