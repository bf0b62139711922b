"""Spark appends to and upserts into Delta tables without a JAR; plain deltalake reads exactly the rows."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from moldau.spark.errors import SparkSourceError, find_user_message
from moldau.spark.sink import delta_upsert
from moldau.spark.sink.delta import DeltaSink
from moldau.spark.sink.delta_upsert import upsert

pytestmark = pytest.mark.spark


@pytest.fixture(autouse=True)
def registered(spark: SparkSession) -> None:
    spark.dataSource.register(DeltaSink)


def save(frame: DataFrame, path: Path | str, **options: str) -> None:
    frame.write.format("moldau_delta").options(**options).mode("append").save(str(path))


def rows(path: Path, by: str = "id") -> list[dict[str, Any]]:
    return sorted(DeltaTable(path).to_pyarrow_table().to_pylist(), key=lambda row: row[by])


def data_files(path: Path) -> set[str]:
    return {str(each.relative_to(path)) for each in path.rglob("part-*.parquet")}


def failure(write: Callable[[], Any]) -> str:
    with pytest.raises(PySparkException) as caught:
        write()
    text = find_user_message(caught.value)
    assert text is not None, caught.value
    assert "\n" not in text
    return text


# Batches


def test_every_type_of_spark_is_read_back_as_it_was(spark: SparkSession, tmp_path: Path) -> None:
    frame = spark.range(0, 50, 1, 2).selectExpr(
        "id",
        "CAST(id AS INT) AS i",
        "CAST(id AS SMALLINT) AS sm",
        "CAST(id AS TINYINT) AS ti",
        "CAST(id AS FLOAT) / 3 AS d",
        "CAST(id AS FLOAT) AS f",
        "IF(id = 3, CAST('NaN' AS DOUBLE), 0.5D) AS odd",
        "id % 2 = 0 AS b",
        "IF(id = 4, NULL, concat('š', id)) AS s",
        "CAST('x' AS BINARY) AS bin",
        "DATE'2024-02-29' AS day",
        "timestamp_micros(1700000000123456 + id) AS t",
        "TIMESTAMP_NTZ'2024-03-31 02:30:00' AS local",
        "CAST(id AS DECIMAL(12, 2)) AS m",
        "array(id, NULL) AS a",
        "map('k', id) AS map",
        "struct(id AS x, array(struct('h' AS key)) AS y) AS st",
    )
    save(frame, tmp_path / "table")
    expected = sorted(frame.toArrow().to_pylist(), key=lambda row: row["id"])
    found = rows(tmp_path / "table")
    assert [{**row, "odd": str(row["odd"])} for row in found] == [{**row, "odd": str(row["odd"])} for row in expected]


def test_an_existing_table_keeps_its_partitioning(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "a table"
    frame = spark.range(0, 30, 1, 2).selectExpr("id", "id % 3 AS third", "IF(id < 5, NULL, 'a b/č') AS place")
    save(frame, path.as_uri(), partitionBy="third, place", appId="a", batchId="0", compression="zstd")
    save(frame, path, appId="a", batchId="0")
    save(frame.selectExpr("place", "id + 30 AS id", "third"), path)
    assert DeltaTable(path).metadata().partition_columns == ["third", "place"]
    assert DeltaTable(path).version() == 1
    assert [(row["id"], row["third"], row["place"]) for row in rows(path)] == [
        (number, number % 3, None if number % 30 < 5 else "a b/č") for number in range(60)
    ]


def test_no_rows_create_an_empty_table(spark: SparkSession, tmp_path: Path) -> None:
    save(spark.range(0).selectExpr("id", "'x' AS s"), tmp_path / "table")
    assert [field.name for field in DeltaTable(tmp_path / "table").schema().fields] == ["id", "s"]
    assert rows(tmp_path / "table") == []


def test_invalid_rows_are_reported_in_one_sentence_on_the_driver(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "table"
    frame = spark.range(3).selectExpr("id", "'x' AS s")
    save(frame, path)
    found = failure(lambda: save(frame.selectExpr("CAST(id AS INT) AS id", "s AS name"), path))
    assert f"the rows do not fit the Delta table {path}: id is INT here and BIGINT in the table; name" in found
    assert "did you mean partitionBy?" in failure(lambda: save(frame, path, partitionsBy="s"))
    assert "is partitioned not at all" in failure(lambda: save(frame, path, partitionBy="s"))
    assert "Delta does not support" in failure(lambda: save(frame.selectExpr("NULL AS id"), tmp_path / "other"))
    overwrite = frame.write.format("moldau_delta").mode("overwrite")
    assert "appends only: use .mode('append')" in failure(lambda: overwrite.save(str(path)))
    assert DeltaTable(path).version() == 0


def test_a_job_that_fails_leaves_neither_rows_nor_files(spark: SparkSession, tmp_path: Path) -> None:
    """One task fails after Spark knows that the other is done; a killed task removes its own files."""
    path, is_one_done = tmp_path / "table", tmp_path / "is one done"
    save(spark.range(1), path)
    before = data_files(path)

    def fails_at_last(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        task = TaskContext.get()
        if task is not None and task.partitionId() == 1:
            while not is_one_done.exists():
                time.sleep(0.01)
            raise RuntimeError("poison")

    tracker, is_over = spark.sparkContext.statusTracker(), threading.Event()

    def watch() -> int:
        """Records the number of files when one task is done."""
        while not is_over.wait(0.01):
            jobs = [tracker.getJobInfo(each) for each in tracker.getActiveJobsIds()]
            stages = [tracker.getStageInfo(stage) for job in jobs if job is not None for stage in job.stageIds]
            if any(each.numCompletedTasks for each in stages if each is not None):
                break
        count = len(data_files(path))
        is_one_done.touch()
        return count

    with ThreadPoolExecutor(1) as thread:
        watching = thread.submit(watch)
        try:
            with pytest.raises(PySparkException, match="poison"):
                save(spark.range(0, 100, 1, 2).mapInArrow(fails_at_last, "id BIGINT"), path)
        finally:
            is_over.set()
        assert watching.result() == len(before) + 1
    assert DeltaTable(path).version() == 0
    assert data_files(path) == before


# Streams


def stream(spark: SparkSession, source: Path, path: Path, checkpoint: Path, **options: str) -> Any:
    """Appends new rows of the source, one batch per file, and ends."""
    frame = spark.readStream.schema("id BIGINT").option("maxFilesPerTrigger", 1).parquet(str(source))
    write = frame.writeStream.format("moldau_delta").options(**options).option("path", str(path))
    query = write.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination()
    return query


def offer(spark: SparkSession, source: Path, start: int, end: int) -> None:
    spark.range(start, end, 1, 1).write.mode("append").parquet(str(source))


@pytest.mark.parametrize("options", [{}, {"appId": "mine"}])
def test_a_replayed_micro_batch_is_in_the_table_once(
    spark: SparkSession, tmp_path: Path, options: dict[str, str]
) -> None:
    source, path, checkpoint = tmp_path / "source", tmp_path / "table", tmp_path / "checkpoint"
    offer(spark, source, 0, 5)
    offer(spark, source, 5, 10)
    query = stream(spark, source, path, checkpoint, **options)
    app_id = options.get("appId", query.id)
    assert DeltaTable(path).transaction_version(app_id) == 1

    (checkpoint / "commits" / "1").unlink()
    (checkpoint / "commits" / ".1.crc").unlink(missing_ok=True)
    offer(spark, source, 10, 15)
    stream(spark, source, path, checkpoint, **options)
    assert [row["id"] for row in rows(path)] == list(range(15))
    assert DeltaTable(path).transaction_version(app_id) == 2
    assert len(data_files(path)) == len(DeltaTable(path).file_uris())


def test_a_new_checkpoint_with_an_old_app_id_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    source, path = tmp_path / "source", tmp_path / "table"
    offer(spark, source, 0, 5)
    stream(spark, source, path, tmp_path / "first", appId="mine")
    offer(spark, tmp_path / "other", 5, 10)
    message = failure(lambda: stream(spark, tmp_path / "other", path, tmp_path / "second", appId="mine"))
    assert "has batch 0 of 'mine', but this write is at 0: its checkpoint is new" in message
    assert len(data_files(path)) == len(DeltaTable(path).file_uris())
    stream(spark, tmp_path / "other", path, tmp_path / "third", appId="another")
    assert [row["id"] for row in rows(path)] == list(range(10))


def test_a_stream_that_would_overwrite_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    offer(spark, tmp_path / "source", 0, 5)
    frame = spark.readStream.schema("id BIGINT").parquet(str(tmp_path / "source")).groupBy().count()
    write = frame.writeStream.format("moldau_delta").outputMode("complete").trigger(availableNow=True)
    write.options(path=str(tmp_path / "table"), checkpointLocation=str(tmp_path / "checkpoint"))
    assert "appends only: use .outputMode('append'), or upsert" in failure(lambda: write.start().awaitTermination())


# Upserts


def changes(spark: SparkSession, *given: tuple[int | None, str | None, int]) -> DataFrame:
    return spark.createDataFrame(list(given), "id INT, Name STRING, n INT")


def merge(frame: DataFrame, batch_id: int, path: Path, **more: Any) -> bool:
    given = {"key": ["id"], "order_by": ["n"], "delete_when": "Name IS NULL", **more}
    return upsert(frame, batch_id, str(path), "app", **given)


def test_the_last_row_of_a_key_counts_and_deletes_remove_it(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "table"
    assert merge(changes(spark, (1, "b", 2), (1, "a", 1), (2, "c", 1), (3, "d", 1), (3, None, 2)), 0, path)
    assert rows(path) == [{"id": 1, "Name": "b", "n": 2}, {"id": 2, "Name": "c", "n": 1}]
    assert merge(changes(spark, (1, None, 3), (2, "cc", 4), (4, "e", 5), (5, None, 6)), 1, path)
    assert rows(path) == [{"id": 2, "Name": "cc", "n": 4}, {"id": 4, "Name": "e", "n": 5}]
    assert DeltaTable(path).transaction_version("app") == 1


def test_ordering_and_deleting_columns_need_not_be_stored(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "table"
    assert merge(changes(spark, (1, "a", 1), (1, "b", 2), (2, "c", 1)), 0, path, leave_out=["n"])
    assert merge(changes(spark, (1, "d", 1), (2, "x", 1), (2, None, 2)), 1, path, leave_out=["n"])
    assert rows(path) == [{"id": 1, "Name": "d"}]


def test_a_repeated_upsert_is_skipped(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "table"
    assert merge(changes(spark, (1, "a", 1)), 4, path)
    assert merge(changes(spark, (1, "b", 2)), 5, path)
    assert not merge(changes(spark, (1, "b", 2)), 5, path)
    with pytest.raises(SparkSourceError, match=r"has batch 5 of 'app', but this write is at 4"):
        merge(changes(spark, (1, "a", 1)), 4, path)
    assert rows(path) == [{"id": 1, "Name": "b", "n": 2}]
    assert DeltaTable(path).version() == 1


def test_a_row_replaces_the_whole_old_row(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "table"
    merge(changes(spark, (1, "a", 1), (2, "b", 1)), 0, path)
    fewer = changes(spark, (1, "c", 2), (3, "d", 2))
    merge(fewer, 1, path, leave_out=["n"])
    assert rows(path) == [
        {"id": 1, "Name": "c", "n": None},
        {"id": 2, "Name": "b", "n": 1},
        {"id": 3, "Name": "d", "n": None},
    ]


def test_an_upsert_that_succeeded_despite_an_error_is_applied_once(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "table"
    for batch_id, step in enumerate(("_create", "_merge")):
        really = getattr(delta_upsert, step)

        def unheard(*given: Any, really: Any = really) -> None:
            really(*given)
            raise CommitFailedError("no answer")

        with monkeypatch.context() as patch:
            patch.setattr(delta_upsert, step, unheard)
            assert merge(changes(spark, (batch_id, "a", 1)), batch_id, path)
    assert [row["id"] for row in rows(path)] == [0, 1]
    assert DeltaTable(path).version() == 1


def test_several_columns_may_be_the_key_and_partition_the_table(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "table"
    more: dict[str, Any] = {"key": ["id", "Name"], "delete_when": None, "partition_by": ["Name"]}
    assert merge(changes(spark, (1, "a", 1), (1, "b", 2), (2, "a", 3)), 0, path, **more)
    assert merge(changes(spark, (1, "a", 7), (2, "b", 8)), 1, path, **more)
    found = sorted((row["id"], row["Name"], row["n"]) for row in rows(path))
    assert found == [(1, "a", 7), (1, "b", 2), (2, "a", 3), (2, "b", 8)]
    assert DeltaTable(path).metadata().partition_columns == ["Name"]


def test_nested_columns_and_a_first_batch_without_rows(spark: SparkSession, tmp_path: Path) -> None:
    frame = spark.range(2).selectExpr(
        "id", "array('a') AS a", "map('k', id) AS m", "struct(id AS x, timestamp_micros(id) AS t) AS st"
    )
    assert upsert(frame.limit(0), 0, str(tmp_path / "table"), "app", ["id"])
    assert rows(tmp_path / "table") == []
    assert upsert(frame, 1, str(tmp_path / "table"), "app", ["id"])
    changed = frame.selectExpr("id", "array('b', NULL) AS a", "m", "st").where("id = 1")
    assert upsert(changed, 2, str(tmp_path / "table"), "app", ["id"])
    expected = frame.toArrow().to_pylist()
    expected[1]["a"] = ["b", None]
    assert rows(tmp_path / "table") == expected


def test_upserts_in_a_stream(spark: SparkSession, tmp_path: Path) -> None:
    source, path = tmp_path / "source", tmp_path / "table"
    offer(spark, source, 0, 4)
    offer(spark, source, 2, 6)
    frame = spark.readStream.schema("id BIGINT").option("maxFilesPerTrigger", 1).parquet(str(source))

    def each(batch: DataFrame, batch_id: int) -> None:
        numbered = batch.selectExpr("id", f"CAST({batch_id} AS INT) AS batch")
        upsert(numbered, batch_id, str(path), "app", ["id"], delete_when="id = 3 AND batch = 1")

    write = frame.writeStream.foreachBatch(each).option("checkpointLocation", str(tmp_path / "checkpoint"))
    write.trigger(availableNow=True).start().awaitTermination()
    assert [(row["id"], row["batch"]) for row in rows(path)] == [(0, 0), (1, 0), (2, 1), (4, 1), (5, 1)]


def test_an_upsert_that_conflicts_with_another_writer_is_retried(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other writer changes a row of the same file after the table was opened and before the merge."""
    path = tmp_path / "table"
    merge(changes(spark, (1, "first", 0), (2, "first", 0)), 0, path)
    really = delta_upsert._merge
    outcomes: list[str] = []

    def watched(*given: Any) -> None:
        if not outcomes:
            outcomes.append("begun")
            upsert(changes(spark, (2, "the other", 1)), 0, str(path), "another", ["id"])
        try:
            really(*given)
        except CommitFailedError:
            outcomes.append("lost")
            raise
        outcomes.append("merged")

    monkeypatch.setattr(delta_upsert, "_merge", watched)
    assert merge(changes(spark, (1, "this one", 1)), 1, path)
    assert outcomes == ["begun", "merged", "lost", "merged"]
    assert [(row["id"], row["Name"]) for row in rows(path)] == [(1, "this one"), (2, "the other")]


def test_invalid_upserts_are_named(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "table"
    for frame, more, text in (
        (changes(spark, (1, "a", 1)), {"key": []}, "an upsert needs the columns that identify a row"),
        (changes(spark, (1, "a", 1)), {"key": ["ids"]}, "key names 'ids', which is not a column; did you mean id?"),
        (changes(spark, (1, "a", 1)), {"order_by": ["z"]}, "order_by names 'z', which is not a column; there are id"),
        (changes(spark, (None, "a", 1)), {}, "1 rows have no 'id', which is part of the key: filter them out"),
        (changes(spark, (1, "a", 1), (1, "b", 2)), {"order_by": []}, "occurs more than once in a batch: set"),
    ):
        with pytest.raises(SparkSourceError) as caught:
            merge(frame, 0, path, **more)
        assert text in str(caught.value)
    merge(changes(spark, (1, "a", 1)), 0, path)
    with pytest.raises(SparkSourceError, match="n is STRING here and INT in the table"):
        merge(changes(spark, (1, "a", 1)).selectExpr("id", "Name", "CAST(n AS STRING) AS n"), 1, path)
