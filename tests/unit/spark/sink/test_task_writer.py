"""A task's write to topics of a real broker: all acknowledged, in order, bounded in memory."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from moldau.client.admin.admin import Admin
from moldau.client.admin.types import ConfigResource
from moldau.client.errors import ErrorCode, KafkaError
from moldau.columnar.encode import to_sections
from moldau.spark.errors import SparkSourceError
from moldau.spark.loop_thread import EventLoopThread, event_loop_thread
from moldau.spark.sink import task_writer
from moldau.spark.sink.columns import SinkColumns
from moldau.spark.sink.options import TopicSinkOptions, parse_topic_options
from moldau.spark.sink.task_writer import SectionSender, write_rows
from moldau.testing import Broker
from support.broker_process import BrokerProcess
from support.log_reader import all_records
from support.log_writer import LogWriter
from support.topics import Topics

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    topics = {"one": 1, "four": 4, "small": 1, "other": 2}
    with Broker(topics, settings={"auto.create.topics.enable": "false"}) as running:
        yield running
        event_loop_thread().close()


def options(broker: Broker, **settings: str) -> TopicSinkOptions:
    named = {f"kafka.{name.replace('_', '.')}": value for name, value in settings.items() if name != "topic"}
    topic = {"topic": settings["topic"]} if "topic" in settings else {}
    return parse_topic_options({"kafka.bootstrap.servers": broker.bootstrap, **named, **topic})


def batch(**columns: Any) -> pa.RecordBatch:
    return pa.record_batch(columns)


def test_records_are_readable_when_the_task_ends(broker: Broker) -> None:
    headers = pa.array([[{"key": "h", "value": b"1"}], []], HEADERS)
    rows = batch(key=["k1", None], value=[b"v1", None], headers=headers, topic=["other", "other"])
    columns = SinkColumns(1, key=0, headers=2, topic=3)
    write_rows(iter([rows]), options(broker), columns)
    found = all_records(broker.bootstrap, "other")
    assert sorted((each.key or b"", each.value, tuple(each.headers)) for each in found) == [
        (b"", None, ()),
        (b"k1", b"v1", (("h", b"1"),)),
    ]


@pytest.mark.parametrize("compression", ["none", "lz4", "zstd", "snappy", "gzip"])
def test_order_is_kept_within_a_partition_over_many_small_batches(broker: Broker, compression: str) -> None:
    before = len(all_records(broker.bootstrap, "one"))
    rows = [batch(value=[f"{number}/{each}".encode() for each in range(50)]) for number in range(40)]
    write_rows(
        iter(rows),
        options(broker, topic="one", batch_size="300", buffer_memory="2000", compression_type=compression),
        SinkColumns(0),
    )
    values = [each.value for each in all_records(broker.bootstrap, "one")[before:]]
    assert values == [value for each in rows for value in each["value"].to_pylist()]


def test_a_task_without_rows_writes_nothing(broker: Broker) -> None:
    before = len(all_records(broker.bootstrap, "one"))
    write_rows(iter([]), options(broker, topic="one"), SinkColumns(0))
    assert len(all_records(broker.bootstrap, "one")) == before


def test_a_producer_is_reused_by_the_next_task(broker: Broker) -> None:
    given = options(broker, topic="one")
    for _ in range(2):
        write_rows(iter([batch(value=["x"])]), given, SinkColumns(0))
    first, second = SectionSender(event_loop_thread(), given), SectionSender(event_loop_thread(), given)
    assert first._producer is second._producer
    assert SectionSender(event_loop_thread(), options(broker, topic="one", acks="1"))._producer is not first._producer


def test_sections_in_flight_are_bounded(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    most = 0
    send = SectionSender.send

    def watched(self: SectionSender, topic: str, partition: int, section: Any) -> None:
        nonlocal most
        send(self, topic, partition, section)
        most = max(most, self._in_flight_bytes)

    monkeypatch.setattr(SectionSender, "send", watched)
    rows = [batch(value=[b"x" * 1000] * 100) for _ in range(20)]
    write_rows(iter(rows), options(broker, topic="four", batch_size="5000", buffer_memory="20000"), SinkColumns(0))
    assert 5000 < most <= 20_000


def test_rows_are_encoded_while_others_are_sent(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last rows are requested before the first are sent."""
    asked = threading.Event()
    was_asked_first: list[bool] = []
    deliver = SectionSender._deliver

    def rows() -> Iterator[pa.RecordBatch]:
        yield batch(value=[b"x" * 1000] * 6000)
        asked.set()
        yield batch(value=[b"last"])

    async def late(self: SectionSender, topic: str, partition: int, section: Any) -> None:
        was_asked_first.append(await asyncio.to_thread(asked.wait, 10))
        await deliver(self, topic, partition, section)

    monkeypatch.setattr(SectionSender, "_deliver", late)
    write_rows(rows(), options(broker, topic="one"), SinkColumns(0))
    assert len(was_asked_first) > 1
    assert all(was_asked_first)


def test_a_missing_topic_is_named(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_writer, "TOPIC_WAIT_MS", 300)
    with pytest.raises(SparkSourceError, match=r"the topic 'missing' does not exist, and the broker at .*: create it"):
        write_rows(iter([batch(value=["x"])]), options(broker, topic="missing"), SinkColumns(0))


def test_a_topic_may_be_created_automatically() -> None:
    with Broker(settings={"auto.create.topics.enable": "true", "num.partitions": "2"}) as broker:
        write_rows(iter([batch(value=["x"])]), options(broker, topic="fresh"), SinkColumns(0))
        assert [each.value for each in all_records(broker.bootstrap, "fresh")] == [b"x"]


def test_batches_respect_max_message_bytes(broker: Broker) -> None:
    topic = LogWriter(broker.bootstrap).create(max_message_bytes="1000")
    write_rows(iter([batch(value=[b"x" * 100] * 100)]), options(broker, topic=topic), SinkColumns(0))
    assert len(all_records(broker.bootstrap, topic)) == 100


def test_a_record_above_max_message_bytes_is_reported_with_a_fix(broker: Broker) -> None:
    topic = LogWriter(broker.bootstrap).create(max_message_bytes="1000")
    with pytest.raises(SparkSourceError, match=r"raise the topic's max\.message\.bytes or shorten the values"):
        write_rows(iter([batch(value=[b"x" * 1000])]), options(broker, topic=topic), SinkColumns(0))


def test_a_broker_without_a_known_limit_is_written_to(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refused(self: Admin, resources: list[ConfigResource]) -> dict[ConfigResource, KafkaError]:
        return {each: KafkaError(ErrorCode.topic_authorization_failed) for each in resources}

    monkeypatch.setattr(Admin, "describe_configs", refused)
    topic = LogWriter(broker.bootstrap).create(max_message_bytes="1000")
    rows = [batch(value=[b"x" * 100] * 100)]
    with pytest.raises(SparkSourceError, match=r"set kafka\.batch\.size below max\.message\.bytes"):
        write_rows(iter(rows), options(broker, topic=topic), SinkColumns(0))
    write_rows(iter(rows), options(broker, topic=topic, batch_size="900"), SinkColumns(0))
    assert len(all_records(broker.bootstrap, topic)) == 100


def test_the_next_task_sees_a_topic_recreated_with_fewer_partitions(broker: Broker) -> None:
    writer = LogWriter(broker.bootstrap)
    topic = writer.create(partitions=4)
    given = options(broker, topic=topic, delivery_timeout_ms="3000", request_timeout_ms="3000")
    rows = batch(key=[str(number) for number in range(50)], value=["x"] * 50)
    write_rows(iter([rows]), given, SinkColumns(1, key=0))
    writer.delete(topic)
    writer.create_named(topic, partitions=2)
    write_rows(iter([rows]), given, SinkColumns(1, key=0))
    found = all_records(broker.bootstrap, topic)
    assert len(found) == 50
    assert {each.partition for each in found} == {0, 1}


def test_a_partition_deleted_during_a_write_is_named(broker: Broker) -> None:
    writer = LogWriter(broker.bootstrap)
    topic = writer.create(partitions=3)
    given = options(broker, topic=topic, delivery_timeout_ms="500", request_timeout_ms="500")
    sender = SectionSender(event_loop_thread(), given)
    assert sender.targets.get(topic).partition_count == 3
    writer.delete(topic)
    writer.create_named(topic, partitions=1)
    (encoded,) = to_sections(
        np.array([2], np.int32),
        key=None,
        value=pa.array(["x"]),
        headers=None,
        timestamp_ms=np.array([0], np.int64),
        batch_bytes_max=100,
        compression=0,
    )
    sender.send(topic, 2, encoded[1])
    with pytest.raises(SparkSourceError, match=rf"partition 2 of '{topic}' "):
        sender.flush()
    sender.abort()


def test_an_unreachable_broker_is_reported_in_one_sentence() -> None:
    given = parse_topic_options(
        {"kafka.bootstrap.servers": "127.0.0.1:1", "kafka.request.timeout.ms": "300", "topic": "t"}
    )
    with pytest.raises(
        SparkSourceError, match=r"no response from the brokers at 127\.0\.0\.1:1 .*: check kafka\.bootstrap"
    ):
        write_rows(iter([batch(value=["x"])]), given, SinkColumns(0))


def test_a_broker_lost_during_a_write_is_reported_in_one_sentence() -> None:
    with Broker({"t": 1}) as broker:
        given = options(broker, topic="t", delivery_timeout_ms="500", request_timeout_ms="300")
        sender = SectionSender(event_loop_thread(), given)
        assert sender.targets.get("t").partition_count == 1

    def rows() -> Iterator[pa.RecordBatch]:
        yield batch(value=["never there"])

    with pytest.raises(SparkSourceError, match=r"'t' at 127\.0\.0\.1:\d+ did not accept records in time .*: check its"):
        write_rows(rows(), given, SinkColumns(0))


def test_a_task_waits_for_a_broker_that_is_restarted(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as process:
        topic = Topics(process.bootstrap).create()
        given = parse_topic_options({"kafka.bootstrap.servers": process.bootstrap, "topic": topic})
        write_rows(iter([batch(value=[b"before"])]), given, SinkColumns(0))
        process.kill()
        process.spawn()
        write_rows(iter([batch(value=[b"after"])]), given, SinkColumns(0))
        assert [each.value for each in all_records(process.bootstrap, topic)] == [b"before", b"after"]


def test_after_a_failure_the_next_task_uses_a_new_producer(broker: Broker) -> None:
    given = options(broker, topic="small")
    before = SectionSender(event_loop_thread(), given)._producer

    def fails() -> Iterator[pa.RecordBatch]:
        yield batch(value=["before"])
        raise RuntimeError("the rows end here")

    with pytest.raises(RuntimeError, match="the rows end here"):
        write_rows(fails(), given, SinkColumns(0))
    assert SectionSender(event_loop_thread(), given)._producer is not before
    write_rows(iter([batch(value=["after"])]), given, SinkColumns(0))
    assert [each.value for each in all_records(broker.bootstrap, "small")][-1] == b"after"


def test_a_forked_process_does_not_use_the_parents_producers(broker: Broker) -> None:
    given = options(broker, topic="one")
    here, elsewhere = (SectionSender(event_loop_thread(), given), SectionSender(other := EventLoopThread(), given))
    assert elsewhere._producer is not here._producer
    elsewhere.abort()
    other.close()
