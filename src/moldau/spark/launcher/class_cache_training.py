"""The training of the class cache. Runs the operations that most sessions use, so that Java records their classes.

Runs as a program: `python -m moldau.spark.launcher.class_cache_training OUTPUT`.
"""

import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa
from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.functions import window
from pyspark.sql.streaming.datasource import ReadLimit

from moldau.spark.launcher.class_cache import training_options
from moldau.spark.launcher.driver import DriverOptions, start_driver
from moldau.spark.launcher.java import find_java
from moldau.spark.launcher.spark_home import find_spark
from moldau.spark.launcher.spark_settings import resolve_settings

ORDER = b'{"product": "tea", "amount": 3, "at": "2026-01-01T00:00:00Z"}'
ORDER_SCHEMA = "product STRING, amount INT, at TIMESTAMP"


class TrainingReader(DataSourceReader, DataSourceStreamReader):
    def initialOffset(self) -> dict[str, int]:
        return {"rows": 0}

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        return {"rows": 2}

    def partitions(self, *between: Any) -> list[InputPartition]:
        return [InputPartition(0), InputPartition(1)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"key": [b"a"], "value": [ORDER]})

    def commit(self, end: dict[str, int]) -> None:
        pass


class TrainingWriter(DataSourceStreamArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()

    def commit(self, messages: list[Any], batchId: int) -> None:
        pass


class TrainingSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "training"

    def schema(self) -> str:
        return "key BINARY, value BINARY"

    def reader(self, schema: Any) -> DataSourceReader:
        return TrainingReader()

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        return TrainingReader()

    def streamWriter(self, schema: Any, overwrite: bool) -> DataSourceStreamWriter:
        return TrainingWriter()


def train(spark: SparkSession, directory: Path) -> None:
    spark.dataSource.register(TrainingSource)
    spark.read.format("training").load().selectExpr("CAST(value AS STRING)").collect()
    rows = spark.readStream.format("training").load()
    to_parquet = rows.writeStream.format("parquet").option("path", str(directory / "table"))
    _run(to_parquet, directory / "first")
    revenue = (
        rows.selectExpr(f"from_json(CAST(value AS STRING), '{ORDER_SCHEMA}') AS o")
        .selectExpr("o.*")
        .withWatermark("at", "1 minute")
        .groupBy("product", window("at", "1 minute"))
        .agg({"amount": "sum"})
    )
    records = revenue.selectExpr("CAST(product AS BINARY) AS key", "CAST(to_json(struct(*)) AS BINARY) AS value")
    _run(records.writeStream.format("training"), directory / "second")


def _run(writing: Any, checkpoint: Path) -> None:
    query = writing.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination()


def main(output: str) -> None:
    java = find_java()
    _, settings = resolve_settings("training", "local[2]", {}, submitted={}, defaults={}, environ={})
    class_options = training_options(java, Path(output))
    gateway = start_driver(find_spark(), settings, DriverOptions(), java=java, class_options=class_options)

    def give_up(*_: object) -> NoReturn:
        # Kill Java, because on a normal exit Java would write a cache although the training is unfinished.
        gateway.kill()
        os._exit(1)

    signal.signal(signal.SIGTERM, give_up)
    try:
        with tempfile.TemporaryDirectory(prefix="moldau-training-") as directory:
            conf = SparkConf(loadDefaults=False).setAll(list(settings.items()))
            SparkContext(conf=conf, gateway=gateway.connect())
            session = SparkSession.builder.getOrCreate()
            train(session, Path(directory))
            session.stop()
    except Exception:
        traceback.print_exc()
        give_up()
    # Let Java exit normally, because only then does Java write the cache.
    gateway.shut_down()


if __name__ == "__main__":
    main(sys.argv[1])
