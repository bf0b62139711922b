"""Parts of the drivers that are killed: they print each micro-batch, and when they read `finish` they run every query
to the end of its topic. They fail as soon as a query does, and the harness restarts them."""

import json
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pyarrow as pa
from pyspark import TaskContext, cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)
from pyspark.sql.streaming.query import StreamingQuery

import moldau.spark

FINISH = "finish"
TRIES = 4
STAMPED = "value BINARY, headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
STAMPED_ARROW = pa.schema(
    [("value", pa.binary()), ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])))]
)
# Executors of a cluster do not have this module.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


def read_rows(spark: SparkSession, bootstrap: str, topic: str, rows_per_batch: int) -> DataFrame:
    options: dict[str, str | int] = {
        "kafka.bootstrap.servers": bootstrap,
        "subscribe": topic,
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": rows_per_batch,
    }
    return spark.readStream.format("moldau").options(**options).load()


def run_until_finished(spark: SparkSession, start: Callable[[], list[StreamingQuery]]) -> None:
    """Starts queries, and stops them at the end of their topic when the harness says so."""
    news: queue.Queue[str] = queue.Queue()
    spark.streams.addListener(_Telling(news))
    moldau.spark.prepare_streams(spark)
    queries = start()
    threading.Thread(target=lambda: news.put(sys.stdin.readline().strip()), daemon=True).start()
    recorded = news.get()
    if recorded != FINISH:
        raise SystemExit(recorded or "the parent process has ended")
    for query in queries:
        query.processAllAvailable()
        query.stop()


class _Telling(StreamingQueryListener):
    def __init__(self, news: "queue.Queue[str]") -> None:
        self._news = news

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        pass

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        progress = event.progress
        if progress.numInputRows:
            message = {
                "query": progress.name,
                "batch": progress.batchId,
                "rows": progress.numInputRows,
                "ms": progress.batchDuration,
            }
            print(json.dumps(message), flush=True)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        pass

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        if event.exception is not None:
            self._news.put(f"a query has failed: {event.exception}")


def stamp(
    run: int, *further: str, slow_s: float = 0.0
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Returns a function that adds headers with the position of each row and the attempt that writes it.

    `further` are columns for more headers. In most batches, the first attempt of one of two tasks takes up to three
    times `slow_s` longer than the other.
    """

    def add_headers(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task = TaskContext.get()
        assert task is not None
        batch_id = int(task.getLocalProperty("streaming.sql.batchId") or -1)
        number, partition = task.attemptNumber(), task.partitionId()
        attempt = f"{run}/{batch_id}/{partition}/{number}/{task.taskAttemptId()}".encode()
        if slow_s and number == 0 and partition == batch_id % 2:
            time.sleep(slow_s * (batch_id % 4))
        for batch in batches:
            places = zip(batch["partition"].to_pylist(), batch["offset"].to_pylist(), strict=True)
            headers = [
                [{"key": "place", "value": b"%d/%d" % place}, {"key": "attempt", "value": attempt}] for place in places
            ]
            for name in further:
                for each, value in zip(headers, batch[name].to_pylist(), strict=True):
                    each.append({"key": name, "value": b"%d" % value})
            columns = [batch["value"].cast(pa.binary()), pa.array(headers, STAMPED_ARROW.field("headers").type)]
            yield pa.RecordBatch.from_arrays(columns, schema=STAMPED_ARROW)

    return add_headers
