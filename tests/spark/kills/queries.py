"""The driver that is killed: three queries on one Spark from a topic to a topic, to Parquet and to Delta.

It takes its job as JSON on the command line.
"""

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow.feather
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

import moldau.spark
from kills.driver_program import STAMPED, TRIES, read_rows, run_until_finished, stamp
from moldau.spark.sink.delta import DeltaSink

TOPIC, PARQUET, DELTA = QUERIES = ("topic", "parquet", "delta")

SETTINGS = {
    "spark.driver.memory": "1g",
    # Every batch is checked afterwards, so none may be cleaned up.
    "spark.sql.streaming.minBatchesToRetain": "1000000",
}


@dataclass(frozen=True)
class Job:
    bootstrap: str
    read: str
    write: str
    directory: str
    run: int
    rows_per_batch: int

    def as_json(self) -> str:
        return json.dumps(asdict(self))

    def checkpoint(self, query: str) -> Path:
        return Path(self.directory, "checkpoints", query)

    def table(self, query: str) -> Path:
        return Path(self.directory, query)

    @property
    def parquet_rows(self) -> Path:
        """Returns the rows that Spark finds in the Parquet table at the end."""
        return Path(self.directory, "parquet.arrow")


def main() -> None:
    job = Job(**json.loads(sys.argv[1]))
    spark = moldau.spark.session("kills", master=f"local[2,{TRIES}]", settings=SETTINGS, quiet=True)
    spark.dataSource.register(DeltaSink)
    run_until_finished(spark, lambda: [start(spark, job) for start in (_to_topic, _to_parquet, _to_delta)])
    rows = spark.read.parquet(str(job.table(PARQUET))).toArrow()
    pyarrow.feather.write_feather(rows, str(job.parquet_rows))
    spark.stop()


def _rows(spark: SparkSession, job: Job) -> DataFrame:
    return read_rows(spark, job.bootstrap, job.read, job.rows_per_batch)


def _to_topic(spark: SparkSession, job: Job) -> StreamingQuery:
    stamped = _rows(spark, job).select("partition", "offset", "value").mapInArrow(stamp(job.run), STAMPED)
    writer = stamped.writeStream.format("moldau").option("kafka.bootstrap.servers", job.bootstrap)
    return _start(writer.option("topic", job.write).option("includeHeaders", "true"), job, TOPIC)


def _to_parquet(spark: SparkSession, job: Job) -> StreamingQuery:
    return _start(_numbered(spark, job).writeStream.format("parquet"), job, PARQUET)


def _to_delta(spark: SparkSession, job: Job) -> StreamingQuery:
    return _start(_numbered(spark, job).writeStream.format("moldau_delta"), job, DELTA)


def _numbered(spark: SparkSession, job: Job) -> DataFrame:
    return _rows(spark, job).selectExpr("partition", "offset", "CAST(CAST(value AS STRING) AS LONG) AS number")


def _start(writer: DataStreamWriter, job: Job, query: str) -> StreamingQuery:
    if query != TOPIC:
        writer = writer.option("path", str(job.table(query)))
    checkpoint = str(job.checkpoint(query))
    return writer.queryName(query).option("checkpointLocation", checkpoint).start()


if __name__ == "__main__":
    main()
