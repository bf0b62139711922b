"""Delivery exactly once, without Spark: attempts, replays and drivers in the orders in which Spark may run them."""

import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, Mock

import pyarrow as pa
import pytest
from pyspark import TaskContext

from moldau.client.admin.admin import Admin
from moldau.client.consumer.subscription_state import OffsetAndMetadata
from moldau.client.group.offsets import GroupOffsets
from moldau.client.producer.transaction_group import TransactionGroup
from moldau.client.record import TopicPartition
from moldau.spark.errors import SparkSourceError
from moldau.spark.loop_thread import event_loop_thread
from moldau.spark.sink.columns import SinkColumns
from moldau.spark.sink.exactly_once import (
    GROUP_PREFIX,
    Batch,
    Task,
    TopicCommitMessage,
    abort_batch,
    commit_batch,
    task_of,
)
from moldau.spark.sink.exactly_once_task import write_in_transaction
from moldau.spark.sink.options import TopicSinkOptions, parse_topic_options
from moldau.spark.sink.source_offsets import planned_positions
from moldau.spark.source.offsets import StreamPosition
from moldau.testing import Broker
from support.log_reader import all_records, committed_records
from support.log_writer import LogWriter
from support.topics import unique

GROUPS, STAGED = "transaction groups", "staged rows"


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as started:
        yield started
        event_loop_thread().close()


@pytest.fixture(params=[GROUPS, STAGED])
def design(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """With staged rows, the broker is used as one without transaction groups."""
    if request.param == STAGED:

        async def is_supported(cluster: Any) -> bool:
            return False

        monkeypatch.setattr(TransactionGroup, "is_supported", staticmethod(is_supported))
    return str(request.param)


class Query:
    """A streaming query with one target topic."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.id = unique("q")
        self.topic = LogWriter(broker.bootstrap).create(partitions=3)

    def options(self, **more: str) -> TopicSinkOptions:
        settings = {"kafka.bootstrap.servers": self.broker.bootstrap, "topic": self.topic, **more}
        return parse_topic_options(settings, is_stream=True)

    def batch(self, number: int, run: str) -> Batch:
        return Batch(self.id, number, run, is_last=False)

    def write(self, number: int, *values: str, task: str = "0/0", run: str = "r1", **more: str) -> TopicCommitMessage:
        rows = [pa.record_batch({"value": pa.array(list(values), pa.string())})] if values else []
        message = write_in_transaction(
            iter(rows), self.options(**more), SinkColumns(0), Task(self.batch(number, run), task)
        )
        # Messages travel from executors through the driver to another process.
        copy = pickle.loads(pickle.dumps(message))
        assert isinstance(copy, TopicCommitMessage)
        return copy

    def commit(self, *messages: TopicCommitMessage | None) -> None:
        commit_batch(messages, self.options())

    def values(self) -> list[str]:
        return sorted((each.value or b"").decode() for each in committed_records(self.broker.bootstrap, self.topic))

    def uncommitted_values(self) -> list[str]:
        return sorted((each.value or b"").decode() for each in all_records(self.broker.bootstrap, self.topic))


@pytest.fixture
def query(broker: Broker, design: str) -> Query:
    return Query(broker)


def test_rows_are_visible_after_the_commit(query: Query) -> None:
    for number in range(3):
        messages = [query.write(number, f"{number}a", f"{number}b"), query.write(number, f"{number}c", task="1/0")]
        query.commit(*messages, query.write(number, task="2/0"))
    assert query.values() == ["0a", "0b", "0c", "1a", "1b", "1c", "2a", "2b", "2c"]


def test_attempts_that_spark_did_not_choose_are_not_visible(query: Query) -> None:
    query.write(0, "speculative", task="0/1")
    chosen = query.write(0, "chosen")
    query.write(0, "late", task="0/2")
    query.commit(chosen)
    assert query.values() == ["chosen"]


def test_a_replayed_batch_is_not_visible_twice(query: Query) -> None:
    """The driver died after the commit, before Spark recorded it. The replay has other tasks."""
    query.commit(query.write(0, "a"), query.write(0, "b", task="1/0"))
    query.commit(*[query.write(0, value, task=f"{index}/0", run="r2") for index, value in enumerate("ab")])
    query.commit(query.write(0, "a", "b", run="r3"))
    query.commit(query.write(1, "c", run="r3"))
    assert query.values() == ["a", "b", "c"]


def test_a_commit_can_be_repeated(query: Query) -> None:
    message = query.write(0, "a")
    for _ in range(3):
        query.commit(message)
    assert query.values() == ["a"]


def test_a_batch_of_a_driver_that_died_before_the_commit_is_replayed(query: Query) -> None:
    query.write(0, "a")
    query.write(0, "b", task="7/0")
    query.commit(query.write(0, "a", "b", run="r2"))
    assert query.values() == ["a", "b"]


def test_an_aborted_batch_is_replayed(query: Query) -> None:
    message = query.write(0, "a")
    abort_batch([message, None], query.options())
    abort_batch([message, None], query.options())
    query.commit(query.write(0, "a", run="r2"))
    assert query.values() == ["a"]


def test_an_abort_after_the_commit_changes_nothing(query: Query) -> None:
    message = query.write(0, "a")
    query.commit(message)
    abort_batch([message], query.options())
    query.commit(query.write(1, "b"))
    assert query.values() == ["a", "b"]


def test_batches_without_rows(query: Query) -> None:
    query.commit(query.write(0), query.write(0, task="1/0"))
    query.commit(query.write(1, "a"))
    query.commit(query.write(2))
    query.commit(query.write(3, "b"))
    query.commit()
    assert query.values() == ["a", "b"]


def test_an_older_checkpoint_is_refused(query: Query) -> None:
    for number in range(3):
        query.commit(query.write(number, str(number)))
    with pytest.raises(SparkSourceError, match="the checkpoint is an older copy"):
        query.commit(query.write(1, "1", run="r2"))
    assert query.values() == ["0", "1", "2"]


def test_two_drivers_write_a_batch_once(query: Query) -> None:
    first = query.write(0, "a", run="r1")
    second = query.write(0, "a", run="r2")
    query.commit(second)
    query.commit(first)
    assert query.values() == ["a"]


def test_a_row_that_cannot_be_written_fails_the_task_and_the_next_attempt_succeeds(query: Query) -> None:
    with pytest.raises(SparkSourceError, match="becomes a record of"):
        query.write(0, "a", "x" * 2_000_000)
    query.commit(query.write(0, "a", task="0/1"))
    assert query.values() == ["a"]


# Offsets of the source


def checkpoint(directory: Path, number: int, *positions: StreamPosition | None) -> str:
    (directory / "offsets").mkdir(exist_ok=True)
    lines = ["-" if each is None else json.dumps(each.to_json()) for each in positions]
    (directory / "offsets" / str(number)).write_text("\n".join(["v1", "{}", *lines]))
    return directory.as_uri()


def group_offsets(broker: Broker, group_id: str) -> dict[tuple[str, int], int]:
    async def committed() -> dict[TopicPartition, OffsetAndMetadata]:
        cluster = await event_loop_thread().cluster({"bootstrap": broker.bootstrap})
        return await GroupOffsets(cluster, group_id).committed(None)

    return {(each.topic, each.partition): found.offset for each, found in event_loop_thread().run(committed()).items()}


def topic_id(broker: Broker, topic: str) -> str:
    async def find() -> str:
        cluster = await event_loop_thread().cluster({"bootstrap": broker.bootstrap})
        await cluster.refresh([topic])
        return str(cluster.topics[topic].topic_id)

    return event_loop_thread().run(find())


def test_the_offsets_of_the_source_move_with_the_rows(query: Query, tmp_path: Path) -> None:
    source, group_id = LogWriter(query.broker.bootstrap).create("source", partitions=2), unique("group")
    ids = {source: topic_id(query.broker, source), "elsewhere": "another cluster"}
    for number in range(3):
        ends = {TopicPartition(source, 0): 10 * number, TopicPartition(source, 1): number}
        position = StreamPosition({**ends, TopicPartition("elsewhere", 0): 5}, ids, published_group=group_id)
        location = checkpoint(tmp_path, number, None, position, StreamPosition(ends, ids))
        message = query.write(number, str(number))
        for _ in range(2):
            commit_batch([message], query.options(checkpointLocation=location))
        assert group_offsets(query.broker, group_id) == {(source, 0): 10 * number, (source, 1): number}
    assert query.values() == ["0", "1", "2"]


def test_rows_are_committed_although_the_offsets_of_the_source_cannot_be(query: Query, tmp_path: Path) -> None:
    source = LogWriter(query.broker.bootstrap).create("source")
    ids = {source: topic_id(query.broker, source)}
    position = StreamPosition({TopicPartition(source, 0): 1}, ids, published_group="")
    location = checkpoint(tmp_path, 0, position)
    commit_batch([query.write(0, "a")], query.options(checkpointLocation=location))
    assert query.values() == ["a"]


@pytest.mark.parametrize("location", [None, "hdfs://host/checkpoint", "/missing"])
def test_a_checkpoint_that_cannot_be_read_has_no_offsets(location: str | None) -> None:
    assert planned_positions(location, 0) == []


# Brokers with transaction groups


@pytest.fixture
def group_query(broker: Broker) -> Query:
    return Query(broker)


def test_a_late_task_of_a_dead_driver_fails(group_query: Query) -> None:
    group_query.write(0, "a")
    message = group_query.write(0, "a", run="r2")
    with pytest.raises(SparkSourceError, match="another run of the query has started"):
        group_query.write(0, "a", run="r1")
    group_query.commit(message)
    assert group_query.values() == ["a"]


def test_a_batch_beyond_its_timeout_is_not_visible(group_query: Query) -> None:
    message = group_query.write(0, "late", **{"kafka.transaction.timeout.ms": "1"})
    assert group_query.values() == []
    with pytest.raises(SparkSourceError, match=r"longer than kafka\.transaction\.timeout\.ms .* start the query again"):
        group_query.commit(message)
    assert group_query.values() == []


def test_a_timeout_that_brokers_do_not_allow(group_query: Query) -> None:
    with pytest.raises(SparkSourceError, match=r"do not allow kafka\.transaction\.timeout\.ms=900001: lower it"):
        group_query.write(0, "a", **{"kafka.transaction.timeout.ms": "900001"})


def test_a_failed_task_ends_its_transaction_at_once(group_query: Query) -> None:
    def rows() -> Iterator[pa.RecordBatch]:
        for _ in range(50):
            yield pa.record_batch({"value": pa.array(["x" * 100_000] * 10, pa.string())})
        raise RuntimeError("the task fails after it has sent rows")

    task = Task(group_query.batch(0, "r1"), "0/0")
    with pytest.raises(RuntimeError, match="the task fails"):
        write_in_transaction(rows(), group_query.options(), SinkColumns(0), task)
    assert group_query.uncommitted_values()
    # This waits until no transaction is open, for less than the timeout of the transaction.
    assert group_query.values() == []


@pytest.mark.parametrize("driver_has_groups", [False, True])
@pytest.mark.parametrize("tasks_have_groups", [(False, False), (False, True), (True, True)])
def test_no_row_is_lost_while_only_some_brokers_have_transaction_groups(
    group_query: Query, monkeypatch: pytest.MonkeyPatch, tasks_have_groups: tuple[bool, bool], driver_has_groups: bool
) -> None:
    """The brokers are being upgraded, and each process asks another one."""
    found = [*tasks_have_groups, driver_has_groups, True]
    monkeypatch.setattr(TransactionGroup, "is_supported", AsyncMock(side_effect=found))
    messages = [group_query.write(0, value, task=f"{value}/0") for value in "ab"]
    if set(tasks_have_groups) == {driver_has_groups}:
        group_query.commit(*messages)
        assert group_query.values() == ["a", "b"]
        return
    with pytest.raises(SparkSourceError, match=r"only some brokers at .* have transaction groups: upgrade all"):
        group_query.commit(*messages)
    abort_batch(messages, group_query.options())
    assert group_query.values() == []


def test_a_batch_with_too_many_tasks() -> None:
    with Broker() as broker:
        query = Query(broker)
        query.commit(query.write(0, "a"))

        async def lower_limit() -> None:
            cluster = await event_loop_thread().cluster(query.options().connection)
            await Admin(cluster).alter_topic_configs("__transaction_state", {"max.message.bytes": "600"})

        event_loop_thread().run(lower_limit())
        messages = [query.write(1, "b", task=f"{number}/0") for number in range(6)]
        with pytest.raises(SparkSourceError, match=r"too large .*Write with fewer tasks, such as \.coalesce\(200\)"):
            query.commit(*messages)
        with pytest.raises(SparkSourceError, match="Write with fewer tasks"):
            query.write(1, "b", run="r2")


# Other brokers


def test_the_last_batch_is_a_committed_offset(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    async def is_supported(cluster: Any) -> bool:
        return False

    monkeypatch.setattr(TransactionGroup, "is_supported", staticmethod(is_supported))
    query = Query(broker)
    query.commit(query.write(0, "a"))
    query.commit(query.write(1, "b"))

    assert group_offsets(broker, GROUP_PREFIX + query.id) == {(query.topic, 0): 1}


# The identity of a task


def context(properties: dict[str, str], partition: int = 3, attempt: int = 1, task_attempt: int = 21) -> Any:
    found = Mock(TaskContext)
    found.getLocalProperty.side_effect = properties.get
    found.partitionId.return_value, found.attemptNumber.return_value = partition, attempt
    found.taskAttemptId.return_value = task_attempt
    return found


STREAM = {"sql.streaming.queryId": "q", "streaming.sql.batchId": "7", "spark.jobGroup.id": "run"}


@pytest.mark.parametrize(
    ("properties", "options", "is_stream", "expected"),
    [
        (STREAM, {}, True, Batch("q", 7, "run", is_last=False)),
        (STREAM, {"appId": "app"}, True, Batch("app", 7, "run", is_last=False)),
        (STREAM, {"topic": "t"}, True, Batch("q.t", 7, "run", is_last=False)),
        (STREAM, {"topic": "t", "appId": "app"}, True, Batch("app", 7, "run", is_last=False)),
        (STREAM, {"batchId": "5"}, False, Batch("q", 5, "w", is_last=False)),
        (STREAM, {"batchId": "5", "topic": "t"}, False, Batch("q.t", 5, "w", is_last=False)),
        (STREAM, {"batchId": "5", "appId": "app"}, False, Batch("app", 5, "w", is_last=False)),
        (STREAM, {"delivery": "exactly-once"}, False, Batch("w", 0, "w", is_last=True)),
        ({"spark.jobGroup.id": "g"}, {"delivery": "exactly-once"}, False, Batch("w", 0, "w", is_last=True)),
        ({}, {"batchId": "5", "appId": "app"}, False, Batch("app", 5, "w", is_last=False)),
    ],
)
def test_the_batch_of_a_task(
    properties: dict[str, str], options: dict[str, str], is_stream: bool, expected: Batch
) -> None:
    parsed = parse_topic_options({"kafka.bootstrap.servers": "localhost:1", **options}, is_stream=is_stream)
    assert task_of(context(properties), parsed, "w") == Task(expected, "3/1.5")


def test_a_numbered_batch_write_needs_a_writer() -> None:
    parsed = parse_topic_options({"kafka.bootstrap.servers": "localhost:1", "batchId": "5"})
    with pytest.raises(SparkSourceError, match="batchId needs appId outside of foreachBatch"):
        task_of(context({}), parsed, "w")
