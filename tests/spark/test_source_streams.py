"""Streaming reads on real Spark: triggers, limits, restarts, new and deleted partitions, lag in the group."""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from moldau.client.record import TopicPartition
from moldau.spark.errors import find_user_message
from moldau.testing import Broker
from support.log_writer import LogWriter

pytestmark = pytest.mark.spark

WAIT_S = 60


class Query:
    """A streaming query that stores the rows of each micro-batch, and can be restarted."""

    def __init__(self, spark: SparkSession, written: LogWriter, checkpoint: Path, **options: str) -> None:
        self.spark = spark
        self.checkpoint = checkpoint
        self.options = {
            "kafka.bootstrap.servers": written.bootstrap,
            "kafka.metadata.max.age.ms": "100",
            "startingOffsets": "earliest",
            "fetchOffset.retryIntervalMs": "10",
            **{name.replace("__", "."): value for name, value in options.items()},
        }
        self.batches: list[list[tuple[str, int, int]]] = []
        self.query: StreamingQuery | None = None

    def start(self, **trigger: Any) -> StreamingQuery:
        stream = self.spark.readStream.format("moldau").options(**self.options)
        rows = stream.schema("topic STRING, partition INT, offset BIGINT").load()

        def keep(frame: DataFrame, batch_id: int) -> None:
            self.batches.append(sorted(tuple(row) for row in frame.collect()))

        writer = rows.writeStream.foreachBatch(keep).option("checkpointLocation", str(self.checkpoint))
        self.query = writer.trigger(**(trigger or {"processingTime": "0 seconds"})).start()
        return self.query

    def run(self) -> list[list[tuple[str, int, int]]]:
        """Reads all available records; returns the micro-batches."""
        before = len(self.batches)
        query = self.start(availableNow=True)
        assert query.awaitTermination(WAIT_S)
        return self.batches[before:]

    def error_text(self) -> str:
        with pytest.raises(StreamingQueryException) as failed:
            self.run()
        text = find_user_message(failed.value)
        assert text is not None, failed.value
        return text


@pytest.fixture
def query(spark: SparkSession, written: LogWriter, tmp_path: Path) -> Iterator[Callable[..., Query]]:
    made: list[Query] = []

    def request(**options: str) -> Query:
        made.append(Query(spark, written, tmp_path / f"checkpoint-{len(made)}", **options))
        return made[-1]

    yield request
    for each in made:
        if each.query is not None:
            each.query.stop()


def offsets(batches: list[list[tuple[str, int, int]]]) -> list[list[tuple[int, int]]]:
    return [[(partition, offset) for _, partition, offset in rows] for rows in batches]


def test_available_now_respects_the_limit_and_resumes_after_a_restart(
    query: Callable[..., Query], written: LogWriter
) -> None:
    topic = written.create(partitions=2)
    written.spread(topic, {0: 4, 1: 2})
    limited = query(subscribe=topic, maxOffsetsPerTrigger="3", minOffsetsPerTrigger="2")
    assert offsets(limited.run()) == [[(0, 0), (0, 1), (1, 0)], [(0, 2), (0, 3), (1, 1)]]
    assert limited.run() == []
    written.spread(topic, {1: 1})
    assert offsets(limited.run()) == [[(1, 2)]]


def test_offsets_are_committed_to_a_group_that_survives_restarts(
    query: Callable[..., Query], written: LogWriter
) -> None:
    topic = written.create(partitions=2)
    written.spread(topic, {0: 3, 1: 1})
    reader = query(subscribe=topic, groupIdPrefix="team-a", maxOffsetsPerTrigger="2")
    reader.run()
    assert reader.query is not None
    group = json.loads(reader.query.recentProgress[-1].sources[0].endOffset)["@group"]
    assert group.startswith("team-a-")
    assert written.committed(group) == {TopicPartition(topic, 0): 3, TopicPartition(topic, 1): 1}
    written.spread(topic, {0: 2})
    reader.run()
    assert written.committed(group)[TopicPartition(topic, 0)] == 5


def test_the_group_can_be_set_and_commits_disabled(query: Callable[..., Query], written: LogWriter) -> None:
    topic = written.create()
    written.spread(topic, {0: 3})
    query(subscribe=topic, kafka__group__id="named").run()
    query(subscribe=topic, kafka__group__id="quiet", publishOffsets="false", minOffsetsPerTrigger="5").run()
    assert written.committed("named") == {TopicPartition(topic, 0): 3}
    assert written.committed("quiet") == {}


def test_a_running_query_finds_new_records_partitions_and_topics(
    query: Callable[..., Query], written: LogWriter
) -> None:
    first = written.create("running")
    reader = query(subscribePattern="running-.*")
    running = reader.start()
    written.spread(first, {0: 2})
    wait_for(reader, 2)
    written.add_partitions(first, 2)
    written.spread(first, {1: 2})
    wait_for(reader, 4)
    second = written.create("running")
    written.spread(second, {0: 2})
    wait_for(reader, 6)
    running.stop()
    assert sorted(row for rows in reader.batches for row in rows) == [
        *((first, partition, offset) for partition in (0, 1) for offset in (0, 1)),
        (second, 0, 0),
        (second, 0, 1),
    ]


def wait_for(reader: Query, count: int) -> None:
    """Waits for this many rows: `processAllAvailable` ends too early for unknown partitions."""
    deadline = time.monotonic() + WAIT_S
    while sum(map(len, reader.batches)) < count:
        assert reader.query is not None
        assert reader.query.isActive, reader.query.exception()
        assert time.monotonic() < deadline, reader.batches
        time.sleep(0.05)


def test_progress_reports_the_lag(query: Callable[..., Query], written: LogWriter) -> None:
    topic = written.create()
    written.spread(topic, {0: 5})
    reader = query(subscribe=topic, maxOffsetsPerTrigger="2")
    reader.run()
    assert reader.query is not None
    first = reader.query.recentProgress[0].sources[0]
    assert json.loads(first.endOffset)[topic] == {"0": 2}
    assert json.loads(first.latestOffset) == {topic: {"0": 5}}


def test_a_new_stream_starts_at_the_end_by_default(query: Callable[..., Query], written: LogWriter) -> None:
    topic = written.create()
    written.spread(topic, {0: 3})
    from_the_end = query(subscribe=topic, startingOffsets="latest").run()
    assert [row for rows in from_the_end for row in rows] == []
    by_time = query(subscribe=topic, startingTimestamp="0")
    assert offsets(by_time.run()) == [[(0, 0), (0, 1), (0, 2)]]


def test_a_deleted_topic_stops_the_query_unless_data_loss_is_allowed(
    query: Callable[..., Query], written: LogWriter
) -> None:
    gone, stays = written.create("gone"), written.create("stays")
    written.spread(gone, {0: 1})
    reader = query(subscribe=f"{gone},{stays}")
    reader.run()
    written.delete(gone)
    written.spread(stays, {0: 2})
    assert f"{gone}-0 was read before and no longer exists" in reader.error_text()
    reader.options["failOnDataLoss"] = "false"
    assert reader.run()[0] == [(stays, 0, 0), (stays, 0, 1)]


def test_deleted_records_stop_the_query_unless_data_loss_is_allowed(
    query: Callable[..., Query], written: LogWriter
) -> None:
    topic = written.create()
    written.spread(topic, {0: 2})
    reader = query(subscribe=topic)
    reader.run()
    written.spread(topic, {0: 5})
    written.delete_records(topic, 4)
    assert f"{topic}-0 at {written.bootstrap} should be read from offset 2 to 7, but its log starts at 4" in (
        reader.error_text()
    )
    reader.options["failOnDataLoss"] = "false"
    assert offsets(reader.run()) == [[(0, 4), (0, 5), (0, 6)]]


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"endingOffsets": "latest"}, "endingOffsets is for batch queries: a stream has no end"),
        ({"subscribe": "no-such-topic"}, "there is no topic 'no-such-topic'"),
        ({"maxOffsetsPerTriger": "5"}, "did you mean maxOffsetsPerTrigger?"),
    ],
)
def test_an_invalid_option_is_reported_on_the_driver(
    query: Callable[..., Query], written: LogWriter, options: dict[str, str], complaint: str
) -> None:
    with pytest.raises(Exception, match=r"moldau\.spark\.errors") as failed:
        query(**{"subscribe": written.create(), **options}).run()
    assert complaint in (find_user_message(failed.value) or "")


def test_a_query_survives_a_broker_restart(
    spark: SparkSession, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    data = {"store": "files", "data.dir": str(tmp_path_factory.mktemp("data"))}
    with Broker(topics=["t"], settings=data) as broker:
        port = broker.bootstrap.rpartition(":")[2]
        written = LogWriter(broker.bootstrap)
        written.spread("t", {0: 2})
        reader = Query(spark, written, tmp_path / "checkpoint", subscribe="t")
        running = reader.start()
        wait_for(reader, 2)
    with Broker(settings={**data, "listen": f"127.0.0.1:{port}"}):
        written.spread("t", {0: 2})
        wait_for(reader, 4)
        running.stop()
    assert [row for rows in reader.batches for row in rows] == [("t", 0, offset) for offset in range(4)]
