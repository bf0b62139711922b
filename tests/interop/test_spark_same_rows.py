"""Reads through `format("moldau")` compared with Spark's connector, `format("kafka")`: same schema, rows and
micro-batches, from Moldau and from Apache Kafka."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from spark_data import FIRST_MS, RECORDS, Options, SparkTopics, Streamed, batch, in_order, stream, stream_to_end

pytestmark = pytest.mark.spark

MIDDLE_MS = FIRST_MS + 1000 * RECORDS // 2
BEHIND_MS = FIRST_MS + 1000 * RECORDS * 2

Reads = dict[str, Callable[[SparkTopics], Options]]

READS: Reads = {
    "one topic": lambda on: {"subscribe": on.plain},
    "several topics": lambda on: {"subscribe": f"{on.plain}, {on.appended},{on.empty}"},
    "a pattern": lambda on: {"subscribePattern": on.pattern},
    "some partitions": lambda on: {"assign": json.dumps({on.plain: [0, 2], on.appended: [0]})},
    "headers": lambda on: {"subscribe": on.plain, "includeHeaders": "true"},
    "a time set by the broker": lambda on: {"subscribe": on.appended},
    "from earliest to latest": lambda on: {
        "subscribe": on.plain,
        "startingOffsets": "earliest",
        "endingOffsets": "latest",
    },
    "between offsets": lambda on: {
        "subscribe": on.plain,
        "startingOffsets": on.at(on.plain, {0: 5, 1: 0, 2: 39}),
        "endingOffsets": on.at(on.plain, {0: 9, 1: 40, 2: 40}),
    },
    "between named offsets": lambda on: {
        "subscribe": on.plain,
        "startingOffsets": on.at(on.plain, {0: -2, 1: 3, 2: -2}),
        "endingOffsets": on.at(on.plain, {0: -1, 1: -1, 2: 1}),
    },
    "from a time on": lambda on: {"subscribe": on.plain, "startingTimestamp": MIDDLE_MS},
    "up to a time": lambda on: {"subscribe": on.plain, "endingTimestamp": MIDDLE_MS},
    "between times": lambda on: {
        "subscribe": on.plain,
        "startingOffsetsByTimestamp": on.at(on.plain, {0: FIRST_MS, 1: MIDDLE_MS, 2: MIDDLE_MS + 1}),
        "endingOffsetsByTimestamp": on.at(on.plain, {0: MIDDLE_MS, 1: BEHIND_MS, 2: BEHIND_MS}),
    },
    "a time takes precedence over offsets": lambda on: {
        "subscribe": on.plain,
        "startingTimestamp": MIDDLE_MS,
        "startingOffsets": on.at(on.plain, {0: 0, 1: 0, 2: 0}),
    },
    "times by partition take precedence over offsets": lambda on: {
        "subscribe": on.plain,
        "startingOffsetsByTimestamp": on.at(on.plain, {0: MIDDLE_MS, 1: MIDDLE_MS, 2: MIDDLE_MS}),
        "startingOffsets": "earliest",
    },
    "a time behind the last record, by strategy the latest": lambda on: {
        "subscribe": on.plain,
        "startingOffsetsByTimestamp": on.at(on.plain, {0: BEHIND_MS, 1: MIDDLE_MS, 2: BEHIND_MS}),
        "startingOffsetsByTimestampStrategy": "latest",
    },
    "in more pieces than partitions": lambda on: {"subscribe": on.plain, "minPartitions": 7},
    "in pieces of so many records": lambda on: {"subscribe": on.plain, "maxRecordsPerPartition": 9},
    "what is left after records were deleted": lambda on: {"subscribe": on.truncated},
    "deleted records, which may be lost": lambda on: {
        "subscribe": on.truncated,
        "startingOffsets": on.at(on.truncated, {0: 0, 1: 0}),
        "failOnDataLoss": "false",
    },
    "an option in other letters": lambda on: {"SUBSCRIBE": on.plain, "STARTINGoffsets": "EARLIEST"},
}
NOTHING: Reads = {
    "an empty topic": lambda on: {"subscribe": on.empty},
    "an empty range": lambda on: {
        "subscribe": on.plain,
        "startingOffsets": on.at(on.plain, {0: 5, 1: 5, 2: 5}),
        "endingOffsets": on.at(on.plain, {0: 5, 1: 5, 2: 5}),
    },
    "a pattern that no topic matches": lambda on: {"subscribePattern": f"{on.plain}-no-such-topic-.*"},
}
REFUSED: Reads = {
    "no topic": lambda on: {},
    "two ways to name topics": lambda on: {"subscribe": on.plain, "subscribePattern": on.pattern},
    "a topic that is not there": lambda on: {"subscribe": f"{on.plain}-no-such-topic"},
    "a start at latest": lambda on: {"subscribe": on.plain, "startingOffsets": "latest"},
    "an end at earliest": lambda on: {"subscribe": on.plain, "endingOffsets": "earliest"},
    "a start that names latest": lambda on: {"subscribe": on.appended, "startingOffsets": on.at(on.appended, {0: -1})},
    "offsets of some partitions only": lambda on: {"subscribe": on.plain, "startingOffsets": on.at(on.plain, {0: 1})},
    "a start that was deleted": lambda on: {
        "subscribe": on.truncated,
        "startingOffsets": on.at(on.truncated, {0: 0, 1: 0}),
    },
    "a time behind the last record": lambda on: {"subscribe": on.plain, "startingTimestamp": BEHIND_MS},
    "no number": lambda on: {"subscribe": on.plain, "minPartitions": "many"},
    "fewer than no pieces": lambda on: {"subscribe": on.plain, "minPartitions": -1},
}
STREAMS: Reads = {
    "all at once": lambda on: {"subscribe": on.plain, "startingOffsets": "earliest"},
    "a limit, three partitions alike": lambda on: {
        "subscribe": on.plain,
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": 50,
    },
    "a limit, topics of different size, with headers": lambda on: {
        "subscribePattern": on.pattern,
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": 60,
        "includeHeaders": "true",
    },
    "a limit, offsets far apart": lambda on: {
        "subscribe": on.plain,
        "startingOffsets": on.at(on.plain, {0: 38, 1: 0, 2: 17}),
        "maxOffsetsPerTrigger": 30,
    },
    "from a time on, in pieces": lambda on: {
        "assign": json.dumps({on.plain: [0, 1]}),
        "startingTimestamp": MIDDLE_MS,
        "minPartitions": 5,
    },
    "deleted records, which may be lost": lambda on: {
        "subscribe": on.truncated,
        "startingOffsets": on.at(on.truncated, {0: 0, 1: 2}),
        "failOnDataLoss": "false",
    },
}
REFUSED_STREAMS: Reads = {
    "a start that was deleted": lambda on: {
        "subscribe": on.truncated,
        "startingOffsets": on.at(on.truncated, {0: 0, 1: 0}),
    },
    "an end": lambda on: {"subscribe": on.plain, "endingOffsets": "latest"},
}
COMMITTED = {"startingOffsets": "earliest", "kafka.isolation.level": "read_committed"}
UNCOMMITTED = {"startingOffsets": "earliest", "kafka.isolation.level": "read_uncommitted"}
ISOLATION = {"read_committed": (COMMITTED, 12), "read_uncommitted": (UNCOMMITTED, 24)}
LONG = {
    "a time takes precedence over offsets",
    "times by partition take precedence over offsets",
    "a time behind the last record",
    "a topic that is not there",
    "no number",
}


def some_slow(reads: Reads) -> list[object]:
    """Returns the names of the reads, with less important ones marked slow."""
    return [pytest.param(name, marks=pytest.mark.slow) if name in LONG else name for name in reads]


@pytest.mark.parametrize("read", some_slow(READS))
def test_a_batch_read_has_the_same_rows_as_sparks_connector(
    spark: SparkSession, written: SparkTopics, read: str
) -> None:
    options = READS[read](written)
    ours, theirs = (batch(spark, source, written.bootstrap, options) for source in ("moldau", "kafka"))
    assert ours.schema == theirs.schema
    rows = in_order(ours)
    assert rows == in_order(theirs)
    assert rows, "there was nothing to compare"


@pytest.mark.parametrize("read", NOTHING)
def test_an_empty_batch_read_is_empty_as_with_sparks_connector(
    spark: SparkSession, written: SparkTopics, read: str
) -> None:
    options = NOTHING[read](written)
    for source in ("moldau", "kafka"):
        assert batch(spark, source, written.bootstrap, options).collect() == []


@pytest.mark.parametrize("read", some_slow(REFUSED))
def test_a_batch_read_that_sparks_connector_rejects_is_rejected(
    spark: SparkSession, written: SparkTopics, read: str
) -> None:
    options = REFUSED[read](written)
    # Some of the connector's errors are plain Java exceptions; ours always have Spark's error class.
    for source, error in (("kafka", (PySparkException, Py4JJavaError)), ("moldau", PySparkException)):
        with pytest.raises(error):
            batch(spark, source, written.bootstrap, options).collect()


@pytest.mark.parametrize("read", STREAMS)
def test_a_stream_has_the_same_micro_batches_as_sparks_connector(
    spark: SparkSession, written: SparkTopics, tmp_path: Path, read: str
) -> None:
    options = STREAMS[read](written)
    ours, theirs = (_streamed(spark, source, written, options, tmp_path) for source in ("moldau", "kafka"))
    assert ours.rows == theirs.rows
    assert ours.ends == theirs.ends
    assert ours.rows, "there was nothing to compare"


@pytest.mark.parametrize("read", REFUSED_STREAMS)
def test_a_stream_that_sparks_connector_rejects_is_rejected(
    spark: SparkSession, written: SparkTopics, tmp_path: Path, read: str
) -> None:
    options = REFUSED_STREAMS[read](written)
    for source in ("kafka", "moldau"):
        with pytest.raises(PySparkException):
            _streamed(spark, source, written, options, tmp_path)


@pytest.mark.parametrize("level", ISOLATION)
def test_transactions_have_the_same_rows_as_with_sparks_connector(
    spark: SparkSession, written: SparkTopics, tmp_path: Path, level: str
) -> None:
    if written.committed is None:
        pytest.skip("Moldau has no transactions yet")
    isolation, count = ISOLATION[level]
    options = {"subscribe": written.committed, **isolation}
    ours, theirs = (in_order(batch(spark, source, written.bootstrap, options)) for source in ("moldau", "kafka"))
    assert ours == theirs
    assert len(ours) == count
    assert _streamed(spark, "moldau", written, options, tmp_path).rows == ours
    assert _streamed(spark, "kafka", written, options, tmp_path).rows == ours


def _streamed(spark: SparkSession, source: str, written: SparkTopics, options: Options, directory: Path) -> Streamed:
    return stream_to_end(stream(spark, source, written.bootstrap, options), directory)
