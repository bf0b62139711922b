"""Pipelines as streaming queries over a real broker: the content of each sink, also after a restart, and errors."""

import asyncio
import json
import textwrap
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from moldau.client import TopicPartition
from moldau.client.record import ConsumerRecord
from moldau.pipelines import PipelineError, load
from moldau.pipelines.error_summary import STATE_INCOMPATIBLE, summarize_error
from moldau.pipelines.planner.checks import check
from moldau.pipelines.planner.query_planner import CheckpointLocation, plan
from moldau.pipelines.planner.sink_writers import ConsoleBatch
from moldau.pipelines.records.redrive import redrive
from moldau.testing import Broker
from support.log_reader import committed_records
from support.log_writer import LogWriter, ProducedRecord

pytestmark = pytest.mark.spark

SCHEMA = "product STRING, n INT, at TIMESTAMP"


def records_in(broker: Broker, topic: str) -> list[ConsumerRecord]:
    return committed_records(broker.bootstrap, topic)


def values_in(broker: Broker, topic: str) -> list[Any]:
    return [json.loads(each.value or b"null") for each in records_in(broker, topic)]


def run(
    spark: SparkSession,
    file: Path,
    *,
    generation: int = 1,
    start: str | None = None,
    only: Iterable[str] | None = None,
    **more: Any,
) -> Mapping[str, Any]:
    """Runs all queries until they have read the available records; returns their progress."""
    place = CheckpointLocation(str(file.parent / "checkpoints"), generation)
    planned = [each for each in plan(spark, load(file), place, start, **more) if only is None or each.name in only]
    started = {each.name: each.start(True) for each in planned}
    try:
        for query in started.values():
            query.awaitTermination()
    finally:
        for query in started.values():
            query.stop()
    return {name: query.recentProgress for name, query in started.items()}


def file_of(folder: Path, broker: Broker, text: str) -> Path:
    path = folder / "test.yaml"
    path.write_text(f"name: test\nbootstrap: {broker.bootstrap}\n{textwrap.dedent(text)}")
    return path


def order(product: str, n: int, minute: int) -> bytes:
    return json.dumps({"product": product, "n": n, "at": f"2024-05-01T10:{minute:02}:30Z"}).encode()


def test_one_stream_reaches_every_kind_of_sink_and_bad_records_the_dead_letters(
    spark: SparkSession, broker: Broker, written: LogWriter, tmp_path: Path
) -> None:
    orders, out, dead = written.create("orders", partitions=2), written.create("out"), written.create("dead")
    written.send(orders, [order("tea", 1, 0), order("milk", 2, 0), order("tea", 3, 1)])
    written.send(
        orders, [ProducedRecord(order("tea", 4, 1), partition=1), ProducedRecord(b"bad", key=b"k", partition=1)]
    )
    written.send(orders, [ProducedRecord(order("tea", -1, 1), partition=1, headers=(("h", b"1"),))])
    path = file_of(
        tmp_path,
        broker,
        f"""
        sources:
          orders:
            topic: {orders}
            schema: {SCHEMA}
            watermark: {{column: at, delay: 1 minute}}
            expectations: {{positive: n > 0}}
        transform: |
          SELECT window.start AS minute, product, SUM(n) AS total
          FROM orders GROUP BY window(at, '1 minute'), product
        sinks:
          out: {{topic: {out}, key: product, mode: update}}
          table: {{delta: table, mode: upsert, key: [minute, product]}}
          whole: {{delta: whole, mode: complete}}
          log: {{delta: log, from: orders, partition_by: product}}
          files: {{parquet: files, from: orders, partition_by: product}}
          screen: {{console: true}}
        dead_letters: {dead}
        """,
    )
    shown: list[ConsoleBatch] = []
    progress = run(spark, path, show=shown.append)
    assert list(progress) == ["out", "table", "whole", "log", "files", "screen", "orders.dead_letters"]

    expected = {("10:00", "tea", 1), ("10:00", "milk", 2), ("10:01", "tea", 7)}
    assert {(each["minute"][11:16], each["product"], each["total"]) for each in values_in(broker, out)} == expected
    assert {each.key for each in records_in(broker, out)} == {b"tea", b"milk"}
    for name in ("table", "whole"):
        rows = DeltaTable(str(tmp_path / name)).to_pyarrow_table().to_pylist()
        assert {(f"{row['minute']:%H:%M}", row["product"], row["total"]) for row in rows} == expected
    for rows in (
        DeltaTable(str(tmp_path / "log")).to_pyarrow_table().to_pylist(),
        [row.asDict() for row in spark.read.parquet(str(tmp_path / "files")).collect()],
    ):
        assert sorted(row["n"] for row in rows) == [1, 2, 3, 4]
        assert set(rows[0]) == {"product", "n", "at"}
    assert {row["total"] for batch in shown for row in batch.rows} == {1, 2, 7}

    letters = records_in(broker, dead)
    assert {(each.key, each.value) for each in letters} == {(b"k", b"bad"), (None, order("tea", -1, 1))}
    headers = dict(next(each for each in letters if each.key is None).headers)
    assert headers["h"] == b"1"
    assert (headers["moldau.error.partition"], headers["moldau.error.offset"]) == (b"1", b"2")
    assert written.committed("moldau-test-out") == {TopicPartition(orders, 0): 3, TopicPartition(orders, 1): 3}

    # With new records: nothing is duplicated, and redriven dead letters are dead letters again.
    written.send(orders, [order("tea", 5, 1)])
    assert asyncio.run(redrive(load(path))).count == 2
    run(spark, path, only=["table", "log", "files", "orders.dead_letters"])
    rows = DeltaTable(str(tmp_path / "table")).to_pyarrow_table().to_pylist()
    assert {(row["product"], row["total"]) for row in rows} == {("tea", 1), ("milk", 2), ("tea", 12)}
    assert sorted(DeltaTable(str(tmp_path / "log")).to_pyarrow_table()["n"].to_pylist()) == [1, 2, 3, 4, 5]
    assert sorted(row.n for row in spark.read.parquet(str(tmp_path / "files")).collect()) == [1, 2, 3, 4, 5]
    again = [dict(each.headers) for each in records_in(broker, dead)][2:]
    assert [each["moldau.redriven"] for each in again] == [b"1", b"1"]


def test_a_compacted_topic_becomes_a_table_with_deletions(
    spark: SparkSession, broker: Broker, written: LogWriter, tmp_path: Path
) -> None:
    topic = written.create("customers")
    path = file_of(
        tmp_path,
        broker,
        f"""
        sources: {{customers: {{topic: {topic}, schema: name STRING}}}}
        transform: SELECT _key AS id, name, _offset, _deleted FROM customers
        sinks: {{table: {{delta: table, mode: upsert, key: id, delete_when: _deleted}}}}
        """,
    )
    written.send(
        topic,
        [
            ProducedRecord(b'{"name": "Ann"}', b"1"),
            ProducedRecord(b'{"name": "Bo"}', b"2"),
            ProducedRecord(b'{"name": "Cy"}', b"1"),
        ],
    )
    run(spark, path)
    table = DeltaTable(str(tmp_path / "table"))
    assert table.to_pyarrow_table().sort_by("id").to_pylist() == [{"id": "1", "name": "Cy"}, {"id": "2", "name": "Bo"}]
    written.send(topic, [ProducedRecord(None, b"2"), ProducedRecord(b'{"name": "Di"}', b"3")])
    run(spark, path)
    table.update_incremental()
    assert table.to_pyarrow_table().sort_by("id").to_pylist() == [{"id": "1", "name": "Cy"}, {"id": "3", "name": "Di"}]
    # Read again from the beginning in a new generation, the table ends the same.
    run(spark, path, generation=2, start="earliest")
    table.update_incremental()
    assert table.to_pyarrow_table().sort_by("id").to_pylist() == [{"id": "1", "name": "Cy"}, {"id": "3", "name": "Di"}]


def test_a_generation_has_its_own_files_and_does_not_write_to_those_of_others(
    spark: SparkSession, broker: Broker, written: LogWriter, tmp_path: Path
) -> None:
    topic = written.create("lines")
    written.send(topic, [b"one"])
    text = f"sources: {{lines: {{topic: {topic}, format: string}}}}\nsinks: {{files: {{parquet: files}}}}\n"
    path = file_of(tmp_path, broker, text)
    run(spark, path)
    run(spark, path)
    assert [row.value for row in spark.read.parquet(str(tmp_path / "files")).collect()] == ["one"]
    run(spark, path, generation=2)
    assert [row.value for row in spark.read.parquet(str(tmp_path / "files.2")).collect()] == ["one"]
    (tmp_path / "checkpoints").rename(tmp_path / "elsewhere")
    (found,) = check(spark, load(path), CheckpointLocation(str(tmp_path / "checkpoints"), 1))
    assert (found.severity, found.where) == ("error", "sinks.files.parquet")
    with pytest.raises(PipelineError, match=r"files has no checkpoint yet, but .* has rows of another query"):
        run(spark, path)


def test_an_inferred_schema_is_stored_for_later_runs(
    spark: SparkSession, broker: Broker, written: LogWriter, tmp_path: Path
) -> None:
    topic, out = written.create("things"), written.create("out")
    path = file_of(
        tmp_path, broker, f"sources: {{things: {{topic: {topic}}}}}\nsinks: {{out: {{topic: {out}}}}}\non_bad: drop\n"
    )
    with pytest.raises(PipelineError, match="no records yet to infer one from"):
        run(spark, path)
    written.send(topic, [b'{"a": 1}'])
    run(spark, path)
    written.send(topic, [b'{"a": 2, "b": 3}', b'{"a": "text"}'])
    run(spark, path)
    assert values_in(broker, out) == [{"a": 1}, {"a": 2}]


def test_a_query_starts_at_its_sources_setting_or_at_the_replay_time(
    spark: SparkSession, broker: Broker, written: LogWriter, tmp_path: Path
) -> None:
    topic, out = written.create("times"), written.create("out")
    day_ms = 86_400_000
    written.send(
        topic, [ProducedRecord(str(n).encode(), timestamp_ms=1_714_521_600_000 + n * day_ms) for n in range(3)]
    )
    path = file_of(
        tmp_path,
        broker,
        f"""
        sources: {{times: {{topic: {topic}, format: string, starting: 2024-05-03T00:00:00Z}}}}
        sinks: {{out: {{topic: {out}, format: string}}}}
        """,
    )
    run(spark, path)
    assert [each.value for each in records_in(broker, out)] == [b"2"]
    run(spark, path, generation=2, start="2024-05-02T00:00:00Z")
    assert [each.value for each in records_in(broker, out)] == [b"2", b"1", b"2"]
    run(spark, path, generation=3, start="2030-01-01T00:00:00Z")
    assert len(records_in(broker, out)) == 3


def test_a_bad_record_fails_its_query_with_one_sentence(
    spark: SparkSession, broker: Broker, written: LogWriter, tmp_path: Path
) -> None:
    topic, out = written.create("strict"), written.create("out")
    written.send(topic, [b'{"n": 1}', b'{"n": "x"}'])
    path = file_of(
        tmp_path, broker, f"sources: {{strict: {{topic: {topic}, schema: n INT}}}}\nsinks: {{out: {{topic: {out}}}}}\n"
    )
    with pytest.raises(Exception, match="PipelineError") as raised:
        run(spark, path)
    assert summarize_error(raised.value) == (
        f"the record at {topic}-0 offset 1 is bad (schema_mismatch): n is INT, not x. "
        "The source strict fails on bad records: set on_bad: drop, or dead_letters: <topic>"
    )


def test_a_bad_record_that_failed_a_run_reaches_dead_letters_added_later(
    spark: SparkSession, broker: Broker, written: LogWriter, tmp_path: Path
) -> None:
    topic, out, dead = written.create("late"), written.create("out"), written.create("dead")
    written.send(topic, [b"bad before it began"])
    text = f"""
        sources: {{late: {{topic: {topic}, schema: n INT, starting: latest}}}}
        sinks: {{out: {{topic: {out}}}}}
        """
    path = file_of(tmp_path, broker, text)
    run(spark, path)
    written.send(topic, [b'{"n": 1}'])
    run(spark, path)
    written.send(topic, [b'{"n": "x"}', b'{"n": 2}'])
    with pytest.raises(Exception, match="PipelineError"):
        run(spark, path)
    run(spark, file_of(tmp_path, broker, f"{text}\n        dead_letters: {dead}"))
    assert values_in(broker, out) == [{"n": 1}, {"n": 2}]
    assert [each.value for each in records_in(broker, dead)] == [b'{"n": "x"}']


def test_incompatible_state_is_reported_with_a_remedy(
    spark: SparkSession, broker: Broker, written: LogWriter, tmp_path: Path
) -> None:
    topic, out = written.create("counted"), written.create("out")
    written.send(topic, [ProducedRecord(b"1", b"a")])
    text = f"""
        sources: {{s: {{topic: {topic}, format: string}}}}
        transform: SELECT _key AS id, count(*) AS n FROM s GROUP BY _key
        sinks: {{out: {{topic: {out}, mode: update}}}}
        """
    run(spark, file_of(tmp_path, broker, text))
    written.send(topic, [ProducedRecord(b"1", b"a")])
    path = file_of(tmp_path, broker, text.replace("GROUP BY _key", "GROUP BY _key, value"))
    (found,) = check(spark, load(path), CheckpointLocation(str(tmp_path / "checkpoints"), 1))
    assert (found.severity, found.where) == ("warning", "checkpoint")
    with pytest.raises(Exception, match="state") as raised:
        run(spark, path)
    assert summarize_error(raised.value) == STATE_INCOMPATIBLE
    with pytest.raises(PipelineError, match="What helps: mode: update or complete, or a watermark"):
        run(spark, file_of(tmp_path, broker, text.replace("mode: update", "mode: append")))


def test_the_checkpoint_of_another_pipeline_and_a_changed_source_are_refused(
    spark: SparkSession, broker: Broker, written: LogWriter, tmp_path: Path
) -> None:
    topic, other, out = written.create("one"), written.create("other"), written.create("out")
    text = f"sources: {{s: {{topic: {topic}, format: string}}}}\nsinks: {{out: {{topic: {out}, format: string}}}}\n"
    run(spark, file_of(tmp_path, broker, text))
    with pytest.raises(PipelineError, match=rf"it reads s \({topic}\), now s \({other}\).*replay"):
        run(spark, file_of(tmp_path, broker, text.replace(topic, other)))
    path = file_of(tmp_path, broker, text)
    path.write_text(path.read_text().replace("name: test", "name: mine"))
    with pytest.raises(PipelineError, match="belongs to the query out of the pipeline test, not to out of mine"):
        run(spark, path)


def test_only_the_columns_that_a_query_needs_are_read(
    spark: SparkSession, broker: Broker, written: LogWriter, tmp_path: Path
) -> None:
    from moldau.pipelines.planner.plan_analysis import empty_stream, required_columns
    from moldau.pipelines.planner.transformation import view_rows

    def read_columns(sql: str, on_bad: str = "drop") -> list[str]:
        text = f"""
        sources: {{s: {{topic: t, schema: 'n INT, at TIMESTAMP', watermark: {{column: _timestamp, delay: 1 s}}}}}}
        transform: {sql}
        sinks: {{screen: {{console: true}}}}
        on_bad: {on_bad}
        """
        pipeline = load(file_of(tmp_path, broker, text))
        from moldau.pipelines.records.decoder import value_schema

        schemas = {"s": value_schema(pipeline.sources[0])}
        frame = view_rows(spark, pipeline, "transform", lambda each: empty_stream(spark, each), schemas)
        return required_columns(frame, pipeline.sources[0])

    assert read_columns("SELECT n FROM s") == ["value", "timestamp"]
    assert read_columns("SELECT n FROM s", "fail") == ["value", "topic", "partition", "offset", "timestamp"]
    assert read_columns("SELECT count(*) AS c, _key FROM s GROUP BY _key") == ["key", "value", "timestamp"]
    assert read_columns("SELECT a.n, b._headers FROM s a JOIN s b ON a.n = b.n") == ["value", "timestamp", "headers"]
