"""The driver that is killed: three queries on one Spark from a topic to a topic, to Parquet and to Delta.

It takes its job as JSON on the command line and prints each micro-batch. When it reads `finish` it runs every query
to the end of the topic. It fails as soon as a query does, and the harness restarts it.
"""

import json
import queue
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.feather
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

import moldau.spark
from moldau.spark.sink.delta import DeltaSink

TOPIC, PARQUET, DELTA = QUERIES = ("topic", "parquet", "delta")
FINISH = "finish"
TRIES = 4
SETTINGS = {
    "spark.driver.memory": "1g",
    # Every batch is checked afterwards, so none may be cleaned up.
    "spark.sql.streaming.minBatchesToRetain": "1000000",
}
STAMPED = "value BINARY, headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
STAMPED_ARROW = pa.schema(
    [("value", pa.binary()), ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])))]
)


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
    news: queue.Queue[str] = queue.Queue()
    spark.streams.addListener(_Telling(news))
    queries = [start(spark, job) for start in (_to_topic, _to_parquet, _to_delta)]
    threading.Thread(target=lambda: news.put(sys.stdin.readline().strip()), daemon=True).start()
    recorded = news.get()
    if recorded != FINISH:
        raise SystemExit(recorded or "nobody is there any more")
    for query in queries:
        query.processAllAvailable()
        query.stop()
    rows = spark.read.parquet(str(job.table(PARQUET))).toArrow()
    pyarrow.feather.write_feather(rows, str(job.parquet_rows))
    spark.stop()


class _Telling(StreamingQueryListener):
    def __init__(self, news: "queue.Queue[str]") -> None:
        self._news = news

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        pass

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        progress = event.progress
        if progress.numInputRows:
            message = {"query": progress.name, "batch": progress.batchId, "rows": progress.numInputRows}
            print(json.dumps(message), flush=True)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        pass

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        if event.exception is not None:
            self._news.put(f"a query has failed: {event.exception}")


def _rows(spark: SparkSession, job: Job) -> DataFrame:
    options: dict[str, str | int] = {
        "kafka.bootstrap.servers": job.bootstrap,
        "subscribe": job.read,
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": job.rows_per_batch,
    }
    return spark.readStream.format("moldau").options(**options).load()


def _to_topic(spark: SparkSession, job: Job) -> StreamingQuery:
    stamped = _rows(spark, job).select("partition", "offset", "value").mapInArrow(_stamp(job.run), STAMPED)
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


def _stamp(run: int) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Adds headers with the position of each row and the attempt that writes it."""

    def stamp(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task = TaskContext.get()
        assert task is not None
        batch_id = task.getLocalProperty("streaming.sql.batchId")
        attempt = f"{run}/{batch_id}/{task.partitionId()}/{task.attemptNumber()}".encode()
        for batch in batches:
            places = zip(batch["partition"].to_pylist(), batch["offset"].to_pylist(), strict=True)
            headers = [
                [{"key": "place", "value": b"%d/%d" % place}, {"key": "attempt", "value": attempt}] for place in places
            ]
            columns = [batch["value"].cast(pa.binary()), pa.array(headers, STAMPED_ARROW.field("headers").type)]
            yield pa.RecordBatch.from_arrays(columns, schema=STAMPED_ARROW)

    return stamp


if __name__ == "__main__":
    main()
