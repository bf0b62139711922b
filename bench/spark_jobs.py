"""A contestant of the Spark benchmarks in its own process: `python -m bench.spark_jobs NAME` starts up, prints `ready`,
then reads jobs as JSON lines and prints a result for each."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from bench import spark_loop

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import DataStreamWriter

MOLDAU, LOOP, INSIDE, CONNECTOR, CONNECTOR_HERE = CONTESTANTS = (
    "moldau",
    "loop",
    "inside",
    "connector",
    "connector-here",
)
"""Moldau's data source; librdkafka in a plain loop; librdkafka inside Spark; Spark's connector in a default session,
and in a session of Moldau's."""
NOOP, PARQUET, TOPIC = SINKS = ("noop", "parquet", "topic")
CHECK, MICRO_BATCHES, FIRST_RESULT, STREAM = "check", "micro-batches", "first result", "stream"
MASTER = "local[2]"
SETTINGS = {"spark.driver.memory": "2g", "spark.ui.showConsoleProgress": "false"}
COLUMNS = "key BINARY, value BINARY, topic STRING, partition INT, offset LONG, timestamp TIMESTAMP, timestampType INT"
WARM_UP_BATCHES = 15


@dataclass(frozen=True)
class Job:
    kind: str
    """A sink, or one of the other kinds above."""
    bootstrap: str
    topic: str
    partitions: int
    records: int
    into: str = ""
    """Directory or topic to write."""
    delivery: str = ""
    """How a stream writes to a topic: the option `delivery` of Moldau's sink."""
    rows_per_batch: int = 0
    """The maximum number of rows of a micro-batch; 0 for no limit."""

    def as_json(self) -> str:
        return json.dumps(asdict(self))


@dataclass(frozen=True)
class JobResult:
    elapsed_s: float
    records: int = 0
    value_bytes: int = 0
    batches_ms: list[float] = field(default_factory=list)
    """Duration of each micro-batch."""
    rows_ms: list[float] = field(default_factory=list)
    """Time from each row's acknowledgement to the end of its micro-batch."""


def connector_session() -> SparkSession:
    """Returns a default Spark session with the connector's jars and the settings from its documentation."""
    from pyspark.sql import SparkSession
    from tests.interop import spark_connector

    builder = SparkSession.builder.appName("bench").master(MASTER)
    for name, value in {**SETTINGS, "spark.jars": spark_connector.spark_jars()}.items():
        builder = builder.config(name, value)
    session: SparkSession = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def our_session(*, with_connector: bool = False) -> SparkSession:
    from tests.interop import spark_connector

    import moldau.spark

    jars = {"spark.jars": spark_connector.spark_jars()} if with_connector else {}
    return moldau.spark.session("bench", master=MASTER, settings={**SETTINGS, **jars}, quiet=True)


def session_of(contestant: str) -> SparkSession:
    if contestant == CONNECTOR:
        return connector_session()
    return our_session(with_connector=contestant == CONNECTOR_HERE)


def source_of(contestant: str) -> str:
    return "moldau" if contestant == MOLDAU else "kafka"


class Spark:
    """A data source in a session."""

    def __init__(self, contestant: str) -> None:
        self.source = source_of(contestant)
        self.spark = session_of(contestant)

    def frame(self, job: Job) -> DataFrame:
        options = {"kafka.bootstrap.servers": job.bootstrap, "subscribe": job.topic}
        return self.spark.read.format(self.source).options(**options).load()

    def write_topic(self, job: Job) -> None:
        rows = self.frame(job).select("key", "value").write.format(self.source).mode("append")
        rows.option("kafka.bootstrap.servers", job.bootstrap).option("topic", job.into).save()

    def run(self, job: Job) -> JobResult:
        began = time.perf_counter()
        if job.kind == CHECK:
            found = self.frame(job).selectExpr("COUNT(*)", "SUM(LENGTH(value))").collect()[0]
            return JobResult(time.perf_counter() - began, found[0], found[1])
        if job.kind == MICRO_BATCHES:
            return self.micro_batches(job)
        if job.kind == STREAM:
            return self.stream(job)
        if job.kind == TOPIC:
            self.write_topic(job)
        else:
            path = () if job.kind == NOOP else (job.into,)
            self.frame(job).write.format(job.kind).mode("overwrite").save(*path)
        return JobResult(time.perf_counter() - began, job.records)

    def stream(self, job: Job) -> JobResult:
        """Copies a topic into another one with a streaming query that ends with it."""
        with TemporaryDirectory(prefix="moldau-bench-") as checkpoint:
            began = time.perf_counter()
            query = self._stream(job, "earliest", checkpoint).trigger(availableNow=True).start()
            query.awaitTermination()
            elapsed = time.perf_counter() - began
            batches = [float(one.durationMs["triggerExecution"]) for one in query.recentProgress if one.numInputRows]
        return JobResult(elapsed, job.records, batches_ms=batches)

    def _stream(self, job: Job, offsets: str, checkpoint: str) -> DataStreamWriter:
        options = {"kafka.bootstrap.servers": job.bootstrap, "subscribe": job.topic, "startingOffsets": offsets}
        if job.rows_per_batch:
            options["maxOffsetsPerTrigger"] = str(job.rows_per_batch)
        rows = self.spark.readStream.format(self.source).options(**options).load()
        if not job.into:
            return rows.writeStream.format("noop").option("checkpointLocation", checkpoint)
        into = {"kafka.bootstrap.servers": job.bootstrap, "topic": job.into, "delivery": job.delivery}
        writer = rows.select("key", "value").writeStream.format(self.source)
        return writer.options(**into).option("checkpointLocation", checkpoint)

    def micro_batches(self, job: Job) -> JobResult:
        """Sends one row at a time, each after the micro-batch of the previous one."""
        sent: list[float] = []
        with TemporaryDirectory(prefix="moldau-bench-") as checkpoint:
            query = self._stream(job, "latest", checkpoint).start()
            try:
                query.processAllAvailable()
                before = len(query.recentProgress)
                began = time.perf_counter()
                for send in spark_loop.one_by_one(job.bootstrap, job.topic, WARM_UP_BATCHES + job.records):
                    send()
                    sent.append(time.time())
                    query.processAllAvailable()
                elapsed = time.perf_counter() - began
                progress = [one for one in query.recentProgress[before:] if one.numInputRows]
            finally:
                query.stop()
        if len(progress) != len(sent):
            raise RuntimeError(f"{len(sent)} rows were read in {len(progress)} micro-batches")
        measured = list(zip(sent, progress, strict=True))[WARM_UP_BATCHES:]
        batches = [float(one.durationMs["triggerExecution"]) for _, one in measured]
        done = [_started(one.timestamp) * 1000 + one.durationMs["triggerExecution"] for _, one in measured]
        waited = [end - at * 1000 for end, (at, _) in zip(done, measured, strict=True)]
        return JobResult(elapsed, job.records, batches_ms=batches, rows_ms=waited)


def _started(timestamp: str) -> float:
    return datetime.fromisoformat(timestamp.replace("Z", "+00:00")).timestamp()


class InsideSpark(Spark):
    """librdkafka in Spark's tasks, one per partition, tuned: ten thousand messages per call, as Arrow."""

    def frame(self, job: Job) -> DataFrame:
        return self._tasks(job).mapInArrow(_read_partition(job), COLUMNS)

    def write_topic(self, job: Job) -> None:
        """Reads and writes in the same task, so that rows do not pass through Spark."""
        copied = self._tasks(job).mapInArrow(_copy_partition(job), "copied LONG").collect()
        if sum(row.copied for row in copied) != job.records:
            raise RuntimeError(f"{sum(row.copied for row in copied)} records of {job.records} were copied")

    def _tasks(self, job: Job) -> DataFrame:
        return self.spark.range(0, job.partitions, 1, job.partitions)


Mapped = Callable[[Iterator["pa.RecordBatch"]], Iterator["pa.RecordBatch"]]


def _read_partition(job: Job) -> Mapped:
    def read(tasks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for task in tasks:
            for partition in task["id"].to_pylist():
                for messages in spark_loop.to_the_end(job.bootstrap, job.topic, [partition]):
                    yield spark_loop.to_arrow(messages)

    return read


def _copy_partition(job: Job) -> Mapped:
    def copy(tasks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for task in tasks:
            for partition in task["id"].to_pylist():
                copied = spark_loop.copy(job.bootstrap, job.topic, [partition], job.into)
                yield pa.RecordBatch.from_pydict({"copied": pa.array([copied], pa.int64())})

    return copy


class Loop:
    """librdkafka in one process, without Spark."""

    def run(self, job: Job) -> JobResult:
        partitions = list(range(job.partitions))
        began = time.perf_counter()
        size = 0
        if job.kind == TOPIC:
            records = spark_loop.copy(job.bootstrap, job.topic, partitions, job.into)
        elif job.kind == PARQUET:
            records = spark_loop.to_parquet(job.bootstrap, job.topic, partitions, Path(job.into))
        else:
            records, size = spark_loop.count_bytes(job.bootstrap, job.topic, partitions)
        if records != job.records:
            raise RuntimeError(f"{records} records of {job.records} were read")
        return JobResult(time.perf_counter() - began, records, size)


def contestant_of(name: str) -> Any:
    if name == LOOP:
        return Loop()
    return InsideSpark(name) if name == INSIDE else Spark(name)


def first_result(name: str, job: Job) -> None:
    """Starts a session and reads ten rows; prints how long the session took and when the rows arrived."""
    began = time.perf_counter()
    spark = Spark(name)
    session_s = time.perf_counter() - began
    rows = spark.frame(job).selectExpr("CAST(value AS STRING)").take(10)
    elapsed = time.perf_counter() - began
    if len(rows) != 10:
        raise RuntimeError(f"{len(rows)} rows instead of 10")
    print(json.dumps({"session_s": session_s, "elapsed_s": elapsed}), flush=True)
    # Stays up until the harness has measured it.
    sys.stdin.read()


def main() -> None:
    name = sys.argv[1]
    if len(sys.argv) > 2:
        first_result(name, Job(**json.loads(sys.argv[2])))
        return
    contestant = contestant_of(name)
    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps(asdict(contestant.run(Job(**json.loads(line))))), flush=True)


if __name__ == "__main__":
    main()
