"""A task's read of an offset range, without Spark: gaps, data loss, corruption and failing brokers."""

from collections.abc import Callable, Iterator
from typing import Any

import crc32c
import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructType

from moldau.client.consumer import fetch_position
from moldau.records.batch_builder import build_batch
from moldau.records.control_records import EndTransaction
from moldau.records.record import Record
from moldau.spark.errors import DataLossError, SparkSourceError, user_facing_errors
from moldau.spark.loop_thread import event_loop_thread
from moldau.spark.source import range_reader, replica_reader
from moldau.spark.source.columns import TYPES, requested_columns
from moldau.spark.source.offset_ranges import OffsetRange
from moldau.spark.source.options import SourceOptions, parse_source_options
from moldau.spark.source.range_reader import RangeReader, read_range
from moldau.testing import Broker
from moldau.wire.api_keys import ApiKey
from support.control_batches import control_batch
from support.log_writer import LogWriter, ProducedRecord
from support.scripted_broker import Disconnect, ReceivedRequest, ScriptedBroker, Tree


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(settings={"auto.create.topics.enable": "false", "log.cleaner.backoff.ms": "3600000"}) as running:
        yield running
        event_loop_thread().close()


@pytest.fixture
def written(broker: Broker) -> LogWriter:
    return LogWriter(broker.bootstrap)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(range_reader, "_IDLE_CHECK_MS", 50)
    monkeypatch.setattr(range_reader, "_UNKNOWN_PARTITION_MS", 100)


def options_of(bootstrap: str, **options: str) -> SourceOptions:
    named = {name.replace("__", "."): value for name, value in options.items()}
    base = {"kafka.bootstrap.servers": bootstrap, "subscribe": "t", "kafka.retry.backoff.max.ms": "50"}
    return parse_source_options({**base, **named}, is_stream=False)


def reading(
    bootstrap: str, topic: str, start: int, end: int, columns: str = "offset", **options: str
) -> Iterator[pa.RecordBatch]:
    schema = schema_of(columns)
    parsed = options_of(bootstrap, **options)
    with user_facing_errors(bootstrap):
        yield from read_range(OffsetRange(topic, 0, start, end), parsed, requested_columns(schema), schema)


def schema_of(columns: str) -> StructType:
    """Parses comma-separated names; `value as text` is a column of its own."""
    schema = StructType()
    for column in columns.split(", "):
        name = column.removesuffix(" as text")
        schema.add(name, TYPES[name] if name == column else StringType())
    return schema


def rows(*args: Any, **options: str) -> list[dict[str, Any]]:
    return [row for part in reading(*args, **options) for row in part.to_pylist()]


def offsets(*args: Any, **options: str) -> list[int]:
    return [row["offset"] for row in rows(*args, **options)]


# Records


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_a_range_is_read_with_any_compression(written: LogWriter, compression: str) -> None:
    topic = written.create()
    written.send(topic, range(100), compression=compression, batch_size=300)
    found = rows(written.bootstrap, topic, 13, 77, "value as text, offset")
    assert found == [{"value": str(number), "offset": number} for number in range(13, 77)]


def test_columns_have_the_requested_order_and_sparks_types(written: LogWriter) -> None:
    topic = written.create()
    written.send(
        topic, [ProducedRecord(None, key=b"k", timestamp_ms=1_700_000_000_123, headers=(("h", b"x"), ("n", None)))]
    )
    columns = ["timestamp", "headers", "value", "key", "partition", "topic"]
    (part,) = reading(written.bootstrap, topic, 0, 1, ", ".join(columns))
    assert part.schema.names == columns
    (row,) = part.to_pylist()
    assert row["timestamp"].timestamp() == pytest.approx(1_700_000_000.123)
    assert row["headers"] == [{"key": "h", "value": b"x"}, {"key": "n", "value": None}]
    assert (row["value"], row["key"], row["partition"], row["topic"]) == (None, b"k", 0, topic)


def test_the_python_decoder_reads_the_same(written: LogWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = written.create()
    records = [ProducedRecord(b"v%d" % number, key=b"k", headers=(("h", b"x"),)) for number in range(50)]
    written.send(topic, records, compression="lz4")
    schema = "key, value, offset, headers, timestamp, timestampType"
    natively = rows(written.bootstrap, topic, 3, 44, schema)
    monkeypatch.setenv("MOLDAU_NATIVE", "0")
    assert rows(written.bootstrap, topic, 3, 44, schema) == natively
    assert len(natively) == 41


def test_invalid_utf8_is_refused_as_text(written: LogWriter) -> None:
    topic = written.create()
    written.send(topic, [b"fine", b"\xff\xfe"])
    with pytest.raises(SparkSourceError, match=f"value as STRING, but {topic}-0 from 0 to 2 has one that is not UTF-8"):
        rows(written.bootstrap, topic, 0, 2, "value as text")
    assert rows(written.bootstrap, topic, 0, 1, "value as text") == [{"value": "fine"}]


def test_many_records_become_several_arrow_batches(written: LogWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(range_reader, "ARROW_BYTES", 2_000)
    topic = written.create()
    written.send(topic, [b"x" * 100 for _ in range(200)], batch_size=1_000)
    parts = list(reading(written.bootstrap, topic, 0, 200, "value, offset"))
    assert len(parts) > 5
    assert [offset for part in parts for offset in part.column("offset").to_pylist()] == list(range(200))


def test_small_fetches_read_everything_too(written: LogWriter) -> None:
    topic = written.create()
    written.send(topic, range(300), batch_size=200)
    read = offsets(written.bootstrap, topic, 0, 300, kafka__max__partition__fetch__bytes="1")
    assert read == list(range(300))


def test_an_abandoned_read_does_not_affect_the_next(written: LogWriter) -> None:
    topic = written.create()
    written.send(topic, range(300), batch_size=200)
    for _ in range(3):
        given_up = reading(written.bootstrap, topic, 0, 300, kafka__max__partition__fetch__bytes="1")
        next(given_up)
        given_up.close()  # type: ignore[attr-defined]
    assert offsets(written.bootstrap, topic, 290, 300) == list(range(290, 300))


def test_interleaved_reads_of_one_worker_are_complete(written: LogWriter) -> None:
    topic = written.create()
    written.send(topic, range(300), batch_size=200)
    small = {"kafka__max__partition__fetch__bytes": "1"}
    one = reading(written.bootstrap, topic, 0, 300, **small)
    read = next(one).column("offset").to_pylist()
    assert offsets(written.bootstrap, topic, 0, 300, **small) == list(range(300))
    for part in one:
        read += part.column("offset").to_pylist()
    assert read == list(range(300))


def test_an_abandoned_read_does_not_end_a_running_one(written: LogWriter) -> None:
    topic = written.create()
    written.send(topic, range(300), batch_size=200)
    small = {"kafka__max__partition__fetch__bytes": "1"}
    given_up = reading(written.bootstrap, topic, 0, 300, **small)
    next(given_up)
    runs = reading(written.bootstrap, topic, 0, 300, **small)
    read = next(runs).column("offset").to_pylist()
    given_up.close()  # type: ignore[attr-defined]
    for part in runs:
        read += part.column("offset").to_pylist()
    assert read == list(range(300))


def test_time_spent_by_spark_does_not_count_as_idle(scripted: Any) -> None:
    """The broker closes the connection just when the timeout would expire if it had run since the last records."""
    log = Log((0, 0, batch(0, "a")), (1, 1, batch(1, "b")), end=2)
    count = 0

    def fetch(received: ReceivedRequest) -> Any:
        nonlocal count
        count += 1
        if count == 1:
            return Log((0, 0, batch(0, "a")), end=2).fetch(received)
        return Disconnect if count < 12 else log.fetch(received)

    broker = scripted(fetch)
    options = options_of(broker.bootstrap, kafkaConsumer__pollTimeoutMs="1000")
    read = RangeReader(OffsetRange("t", 0, 0, 2), options)

    async def work() -> list[int]:
        found = [await read.next()]
        read._idle_since_s -= 60
        found += [await read.next(), await read.next()]
        await read.close()
        return [each.position for each in found if each is not None]

    assert event_loop_thread().run(work()) == [0, 1]


# Gaps


def test_compaction_gaps_are_not_data_loss(broker: Broker, written: LogWriter) -> None:
    topic = written.create(cleanup_policy="compact", min_cleanable_dirty_ratio="0")
    written.send(
        topic, [ProducedRecord(b"v%d" % number, key=b"k%d" % (number % 3)) for number in range(30)], batch_size=100
    )
    written.send(topic, [ProducedRecord(b"last", key=b"other")])
    compact(broker)
    assert offsets(written.bootstrap, topic, 0, 31) == [27, 28, 29, 30]
    assert offsets(written.bootstrap, topic, 0, 20) == []
    assert offsets(written.bootstrap, topic, 5, 28) == [27]


def compact(broker: Broker) -> None:
    assert broker._thread is not None
    broker._thread.submit(broker.node._log_maintenance.run_compaction()).result()


def batch(offset: int, *values: str, **settings: Any) -> bytes:
    return build_batch([Record(value=value.encode()) for value in values], base_offset=offset, **settings)


def transactional(offset: int, *values: str, producer_id: int) -> bytes:
    fields = {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": 0, "transactional": True}
    return batch(offset, *values, **fields)


def marker(offset: int, *, producer_id: int, is_commit: bool) -> bytes:
    return control_batch(
        EndTransaction(is_commit, 0), base_offset=offset, producer_id=producer_id, producer_epoch=0, timestamp=0
    )


class Log:
    """Responses of a broker whose log is built by a test."""

    def __init__(self, *batches: tuple[int, int, bytes], aborted: list[Tree] | None = None, end: int) -> None:
        self.batches = batches
        self.aborted = aborted
        self.end = end

    def fetch(self, received: ReceivedRequest) -> Tree:
        (topic,) = received.request.topics
        (wanted,) = topic.partitions
        records = b"".join(data for _, last, data in self.batches if last >= wanted.fetch_offset)
        partition = {
            "partition_index": wanted.partition,
            "error_code": 0,
            "high_watermark": self.end,
            "last_stable_offset": self.end,
            "log_start_offset": 0,
            "aborted_transactions": self.aborted,
            "records": records,
        }
        return {"throttle_time": 0, "error_code": 0, "responses": [{"topic": topic.topic, "partitions": [partition]}]}


@pytest.fixture
def scripted() -> Iterator[Callable[[Callable[[ReceivedRequest], Any]], ScriptedBroker]]:
    started: list[ScriptedBroker] = []

    def start(fetch: Callable[[ReceivedRequest], Any]) -> ScriptedBroker:
        broker = ScriptedBroker({ApiKey.FETCH: fetch}, topics={"t": 1})
        started.append(broker)
        return event_loop_thread().run(broker.__aenter__())

    yield start
    for broker in started:
        event_loop_thread().run(broker.__aexit__(None, None, None))


def test_read_committed_skips_aborted_transactions_and_markers(scripted: Any) -> None:
    log = Log(
        (0, 1, transactional(0, "aborted", "aborted", producer_id=1)),
        (2, 2, batch(2, "plain")),
        (3, 3, marker(3, producer_id=1, is_commit=False)),
        (4, 5, transactional(4, "kept", "kept", producer_id=2)),
        (6, 6, marker(6, producer_id=2, is_commit=True)),
        aborted=[{"producer_id": 1, "first_offset": 0}],
        end=7,
    )
    broker = scripted(log.fetch)
    assert offsets(broker.bootstrap, "t", 0, 7, kafka__isolation__level="read_committed") == [2, 4, 5]
    assert offsets(broker.bootstrap, "t", 0, 7) == [0, 1, 2, 4, 5]


def test_a_range_may_end_with_or_consist_of_control_batches(scripted: Any) -> None:
    log = Log((0, 0, transactional(0, "kept", producer_id=2)), (1, 1, marker(1, producer_id=2, is_commit=True)), end=2)
    broker = scripted(log.fetch)
    assert offsets(broker.bootstrap, "t", 0, 2) == [0]
    assert offsets(broker.bootstrap, "t", 1, 2) == []


def test_reads_of_one_worker_share_their_connections(scripted: Any) -> None:
    broker = scripted(Log((0, 1, batch(0, "a", "b")), end=2).fetch)
    for _ in range(4):
        assert offsets(broker.bootstrap, "t", 0, 2) == [0, 1]
    assert broker.connections == 2


def test_a_damaged_batch_is_reported_with_its_offset(scripted: Any) -> None:
    damaged = bytearray(batch(0, "a", "b"))
    damaged[-1] ^= 0xFF
    broker = scripted(Log((0, 1, bytes(damaged)), end=2).fetch)
    with pytest.raises(SparkSourceError, match=r"CORRUPT_MESSAGE.* of t-0 has a wrong checksum"):
        rows(broker.bootstrap, "t", 0, 2)


def test_records_before_a_damaged_batch_are_read(scripted: Any) -> None:
    damaged = bytearray(batch(2, "c"))
    damaged[-1] ^= 0xFF
    broker = scripted(Log((0, 1, batch(0, "a", "b")), (2, 2, bytes(damaged)), end=3).fetch)
    read = reading(broker.bootstrap, "t", 0, 3)
    assert next(read).column("offset").to_pylist() == [0, 1]
    with pytest.raises(SparkSourceError, match="CORRUPT_MESSAGE"):
        next(read)


@pytest.mark.parametrize("codec", [5, 7])
def test_a_batch_with_an_unknown_codec_is_reported_with_its_offset(scripted: Any, codec: int) -> None:
    strange = bytearray(batch(0, "a", "b"))
    strange[22] |= codec
    strange[17:21] = crc32c.crc32c(bytes(strange[21:])).to_bytes(4, "big")
    broker = scripted(Log((0, 1, bytes(strange)), end=2).fetch)
    with pytest.raises(SparkSourceError, match=r"t-0 at .* has a batch that cannot be decoded, .*codec"):
        rows(broker.bootstrap, "t", 0, 2)


def test_a_transaction_whose_end_cannot_be_read_is_an_error_and_no_rows(scripted: Any) -> None:
    fields = {"producer_id": 1, "producer_epoch": 0, "base_sequence": 0, "transactional": True}
    unreadable = build_batch([Record(key=b"\0", value=b"")], base_offset=1, control=True, **fields)
    log = Log(
        (0, 0, transactional(0, "aborted", producer_id=1)),
        (1, 1, unreadable),
        aborted=[{"producer_id": 1, "first_offset": 0}],
        end=2,
    )
    broker = scripted(log.fetch)
    with pytest.raises(SparkSourceError, match="CORRUPT_MESSAGE: transaction marker in t-0"):
        rows(broker.bootstrap, "t", 0, 2, kafka__isolation__level="read_committed")


def test_an_empty_response_is_retried(scripted: Any) -> None:
    """As from a leader whose remote storage was too slow."""
    log = Log((0, 0, batch(0, "a")), (1, 1, batch(1, "b")), end=2)
    count = 0

    def fetch(received: ReceivedRequest) -> Any:
        nonlocal count
        count += 1
        return (Log(end=2) if count <= 3 else log).fetch(received)

    broker = scripted(fetch)
    assert offsets(broker.bootstrap, "t", 0, 2) == [0, 1]
    count = 0
    assert offsets(broker.bootstrap, "t", 0, 2, replica="7") == [0, 1]


def test_offsets_without_records_are_logged(
    scripted: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica_reader, "EMPTY_DURATION_MIN_S", 0)
    monkeypatch.setattr(fetch_position, "EMPTY_DURATION_MIN_S", 0)
    broker = scripted(Log((0, 0, batch(0, "a")), end=5).fetch)
    assert offsets(broker.bootstrap, "t", 0, 4) == [0]
    assert f"t-0 at {broker.bootstrap} has no records from offset 1 to 4" in caplog.text
    assert offsets(broker.bootstrap, "t", 0, 4, replica="7") == [0]
    assert "t-0 on broker 7 has no records from offset 1 to 4" in caplog.text


# Data loss


def test_records_before_the_log_start_are_data_loss(written: LogWriter) -> None:
    topic = written.create()
    written.spread(topic, {0: 10})
    written.delete_records(topic, 6)
    with pytest.raises(DataLossError) as lost:
        rows(written.bootstrap, topic, 2, 10)
    assert str(lost.value) == (
        f"{topic}-0 at {written.bootstrap} should be read from offset 2 to 10, but its log starts at 6: records may "
        "have been lost. With failOnDataLoss set to false the query continues at 6"
    )


def test_a_read_may_continue_at_the_log_start(written: LogWriter, caplog: pytest.LogCaptureFixture) -> None:
    topic = written.create()
    written.spread(topic, {0: 10})
    written.delete_records(topic, 6)
    assert offsets(written.bootstrap, topic, 2, 10, failOnDataLoss="false") == [6, 7, 8, 9]
    assert "its log starts at 6" in caplog.text
    assert offsets(written.bootstrap, topic, 2, 5, failOnDataLoss="false") == []


def test_a_range_beyond_the_log_is_data_loss(written: LogWriter) -> None:
    topic = written.create()
    written.spread(topic, {0: 3})
    with pytest.raises(DataLossError, match="from offset 7 to 9, but its log was truncated and ends at 3"):
        rows(written.bootstrap, topic, 7, 9)
    assert offsets(written.bootstrap, topic, 7, 9, failOnDataLoss="false") == []


def test_a_log_shorter_than_the_range_is_data_loss(written: LogWriter) -> None:
    topic = written.create()
    written.spread(topic, {0: 3})
    with pytest.raises(DataLossError, match="from offset 3 to 9, but its log ends at 3"):
        rows(written.bootstrap, topic, 0, 9, kafkaConsumer__pollTimeoutMs="200")
    lenient = {"kafkaConsumer__pollTimeoutMs": "200", "failOnDataLoss": "false"}
    assert offsets(written.bootstrap, topic, 0, 9, **lenient) == [0, 1, 2]


def test_a_topic_deleted_during_a_read_is_data_loss(written: LogWriter) -> None:
    topic = written.create()
    written.send(topic, range(300), batch_size=200)
    read = reading(written.bootstrap, topic, 0, 300, kafka__max__partition__fetch__bytes="1")
    next(read)
    written.delete(topic)
    with pytest.raises(DataLossError, match=f"{topic}-0 .* it no longer exists"):
        list(read)


def test_a_topic_deleted_before_a_read_is_data_loss(written: LogWriter) -> None:
    with pytest.raises(DataLossError, match=r"gone-0 .* it no longer exists"):
        rows(written.bootstrap, "gone", 0, 3)
    assert offsets(written.bootstrap, "gone", 0, 3, failOnDataLoss="false") == []


# A named replica


@pytest.fixture(params=["leader", "named replica"])
def where(request: pytest.FixtureRequest) -> dict[str, str]:
    """The options of a read from the leader, and from the same broker as a named replica."""
    return {} if request.param == "leader" else {"replica": "1"}


def test_a_range_is_read_in_small_fetches(written: LogWriter, where: dict[str, str]) -> None:
    topic = written.create()
    written.send(topic, range(300), batch_size=200)
    small = {"kafka__max__partition__fetch__bytes": "1", **where}
    assert offsets(written.bootstrap, topic, 13, 277, **small) == list(range(13, 277))


def test_gaps_of_compaction_are_skipped(broker: Broker, written: LogWriter, where: dict[str, str]) -> None:
    topic = written.create(cleanup_policy="compact", min_cleanable_dirty_ratio="0")
    written.send(topic, [ProducedRecord(b"v", key=b"k%d" % (number % 3)) for number in range(30)], batch_size=100)
    written.send(topic, [ProducedRecord(b"last", key=b"other")])
    compact(broker)
    assert offsets(written.bootstrap, topic, 0, 31, **where) == [27, 28, 29, 30]
    assert offsets(written.bootstrap, topic, 0, 20, **where) == []


def test_a_named_replica_hides_aborted_transactions(scripted: Any) -> None:
    log = Log(
        (0, 0, transactional(0, "aborted", producer_id=1)),
        (1, 1, marker(1, producer_id=1, is_commit=False)),
        (2, 2, batch(2, "plain")),
        aborted=[{"producer_id": 1, "first_offset": 0}],
        end=3,
    )
    broker = scripted(log.fetch)
    assert offsets(broker.bootstrap, "t", 0, 3, replica="7", kafka__isolation__level="read_committed") == [2]
    assert offsets(broker.bootstrap, "t", 0, 3, replica="7") == [0, 2]


def test_records_before_the_log_start_of_a_named_replica_are_data_loss(written: LogWriter) -> None:
    topic = written.create()
    written.spread(topic, {0: 10})
    written.delete_records(topic, 6)
    with pytest.raises(DataLossError, match=f"{topic}-0 on broker 1 .* from offset 2 to 10, but its log starts at 6"):
        rows(written.bootstrap, topic, 2, 10, replica="1")
    lenient = {"replica": "1", "failOnDataLoss": "false"}
    assert offsets(written.bootstrap, topic, 2, 10, **lenient) == [6, 7, 8, 9]
    assert offsets(written.bootstrap, topic, 2, 5, **lenient) == []


def test_records_before_a_damaged_batch_of_a_named_replica_are_read(scripted: Any) -> None:
    damaged = bytearray(batch(2, "c"))
    damaged[-1] ^= 0xFF
    broker = scripted(Log((0, 1, batch(0, "a", "b")), (2, 2, bytes(damaged)), end=3).fetch)
    read = reading(broker.bootstrap, "t", 0, 3, replica="7")
    assert next(read).column("offset").to_pylist() == [0, 1]
    with pytest.raises(SparkSourceError, match="t-0 could not be read from broker 7 at offset 2: CORRUPT_MESSAGE"):
        next(read)


def test_a_named_replica_that_does_not_reach_the_end_is_reported(written: LogWriter) -> None:
    topic = written.create()
    written.spread(topic, {0: 3})
    with pytest.raises(SparkSourceError, match=f"{topic}-0 .* from broker 1 at offset 3: it has no records"):
        rows(written.bootstrap, topic, 0, 9, replica="1", kafkaConsumer__pollTimeoutMs="200")


# Failing brokers


def test_a_broker_that_dies_during_a_read_is_named() -> None:
    with Broker(topics=["t"]) as broker:
        bootstrap = broker.bootstrap
        LogWriter(bootstrap).send("t", range(300), batch_size=200)
        read = reading(
            bootstrap,
            "t",
            0,
            300,
            kafka__max__partition__fetch__bytes="1",
            kafkaConsumer__pollTimeoutMs="300",
            kafka__request__timeout__ms="200",
        )
        next(read)
    with pytest.raises(SparkSourceError) as message:
        list(read)
    assert f"is led by broker 1 at {bootstrap}" in str(message.value)
    assert "Check that the broker is up" in str(message.value)


def test_a_closed_connection_is_retried(scripted: Any) -> None:
    log = Log((0, 1, batch(0, "a", "b")), (2, 2, batch(2, "c")), end=3)
    count = 0

    def fetch(received: ReceivedRequest) -> Any:
        nonlocal count
        count += 1
        return Disconnect if count in (1, 2) else log.fetch(received)

    broker = scripted(fetch)
    assert offsets(broker.bootstrap, "t", 0, 3) == [0, 1, 2]


# The end of the event loop thread


def test_fetchers_are_closed_with_the_event_loop_thread() -> None:
    with Broker(topics=["t"]) as broker:
        LogWriter(broker.bootstrap).send("t", range(3))
        assert offsets(broker.bootstrap, "t", 0, 3) == [0, 1, 2]
        kept = [fetcher for each in event_loop_thread().idle_fetchers.values() for fetcher in each]
        assert kept
        event_loop_thread().close()
        assert all(fetcher._is_closed for fetcher in kept)
        assert offsets(broker.bootstrap, "t", 0, 3) == [0, 1, 2]
