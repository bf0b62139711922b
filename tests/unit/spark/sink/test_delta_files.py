"""Files of a Delta table and commits, without Spark: plain deltalake reads exactly the written rows."""

import json
import threading
from collections.abc import Iterable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, Schema
from deltalake.transaction import create_table_with_add_actions

from moldau.spark.errors import SparkSourceError
from moldau.spark.sink import delta_commits
from moldau.spark.sink.delta_commits import (
    CommitConflictError,
    batch_commit_properties,
    commit_files,
    remove_uncommitted,
)
from moldau.spark.sink.delta_files import TableFiles, WrittenFile, split_by_partition
from moldau.spark.sink.delta_options import locate

SCHEMA = pa.schema([("id", pa.int64()), ("day", pa.date32()), ("place", pa.string())])
DAY = date(2024, 2, 29)


def delta_schema(schema: pa.Schema) -> dict[str, Any]:
    found = json.loads(Schema.from_arrow(schema).to_json())
    assert isinstance(found, dict)
    return found


def rows(ids: Iterable[int], place: str | None = "x") -> pa.RecordBatch:
    ids = list(ids)
    return pa.record_batch([ids, [DAY] * len(ids), [place] * len(ids)], schema=SCHEMA)


def write(path: Path, *batches: pa.RecordBatch, by: tuple[str, ...] = ()) -> list[WrittenFile]:
    files = TableFiles(locate(str(path)), batches[0].schema, by)
    for batch in batches:
        files.write(batch)
    return files.finish()


def commit(
    path: Path,
    files: list[WrittenFile],
    batch_id: int | None = None,
    app_id: str | None = "app",
    by: tuple[str, ...] = (),
    query_id: str | None = None,
) -> bool:
    return commit_files(locate(str(path)), delta_schema(SCHEMA), by, files, app_id, batch_id, query_id)


def table_rows(path: Path) -> list[dict[str, Any]]:
    return sorted(DeltaTable(path).to_pyarrow_table().to_pylist(), key=lambda row: row["id"])


def parquet_files(path: Path) -> list[Path]:
    return sorted(each for each in path.rglob("*.parquet") if "_delta_log" not in each.parts)


# Files


def test_no_rows_write_no_file(tmp_path: Path) -> None:
    assert write(tmp_path, rows([])) == []


def test_rows_of_a_partition_keep_their_order_and_lose_its_columns() -> None:
    batch = pa.record_batch({"a": [1, 1, 2, 1], "b": ["x", "", "x", "x"], "v": [0, 1, 2, 3]})
    split = {values: some.to_pydict() for values, some in split_by_partition(batch, ("a", "b"))}
    assert split == {("1", "x"): {"v": [0, 3]}, ("1", None): {"v": [1]}, ("2", "x"): {"v": [2]}}


def test_every_type_of_partition_value_is_read_back(tmp_path: Path) -> None:
    batch = pa.record_batch(
        {
            "id": [1, 2, 3],
            "s": ["a b/č=%", None, "." * 300],
            "d": [DAY, date(1, 1, 1), None],
            "b": [True, False, None],
            "n": pa.array([-5, 2**31 - 1, None], pa.int32()),
        }
    )
    by = ("s", "d", "b", "n")
    files = write(tmp_path, batch, by=by)
    assert commit_files(locate(str(tmp_path)), delta_schema(batch.schema), by, files, None, None)
    assert table_rows(tmp_path) == batch.to_pylist()
    found = DeltaTable(tmp_path).to_pyarrow_table(filters=[("s", "=", "a b/č=%")])
    assert found["id"].to_pylist() == [1]


def test_a_partition_date_outside_the_supported_years_is_named(tmp_path: Path) -> None:
    days = pa.array([0, 5_000_000], pa.int32()).cast(pa.date32())
    with pytest.raises(
        SparkSourceError, match=r"the partition column 'day' has a date outside the years 1 to 9999: filter"
    ):
        write(tmp_path, pa.record_batch([[1, 2], days, ["x", "y"]], schema=SCHEMA), by=("day",))


def test_memory_is_bounded_with_many_partitions(tmp_path: Path) -> None:
    """Many partitions, one of them large: few files are open at once, and all rows arrive."""
    batches = [rows(range(n * 100, n * 100 + 50), f"p{n % 9}") for n in range(40)]
    batches += [rows(range(n * 100 + 50, n * 100 + 100), "big") for n in range(40)]
    files = TableFiles(
        locate(str(tmp_path)),
        SCHEMA,
        ("place",),
        files_open_max=3,
        row_group_bytes=2_000,
        buffered_bytes_max=4_000,
        file_bytes_max=5_000,
    )
    for batch in batches:
        files.write(batch)
        assert len(files._open) <= 3
        assert files._buffered_bytes <= 4_000
    written = files.finish()
    assert files._buffered_bytes == 0
    assert len(written) > 10
    assert commit(tmp_path, written, by=("place",))
    assert [row["id"] for row in table_rows(tmp_path)] == list(range(4000))


def test_small_batches_are_buffered_into_one_file(tmp_path: Path) -> None:
    (file,) = write(tmp_path, *[rows([n]) for n in range(100)])
    assert pq.ParquetFile(tmp_path / file.path).metadata.num_row_groups == 1
    assert file.size == (tmp_path / file.path).stat().st_size


def test_discarded_files_are_removed(tmp_path: Path) -> None:
    files = TableFiles(locate(str(tmp_path)), SCHEMA, ("place",), files_open_max=1, row_group_bytes=1)
    for place in ("a", "b", "a"):
        files.write(rows([1], place))
    assert parquet_files(tmp_path)
    files.discard()
    assert parquet_files(tmp_path) == []


def test_times_of_any_zone_are_the_same_instants(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("t", pa.timestamp("us", tz="UTC"))])
    instant = datetime(2024, 3, 31, 1, 30, tzinfo=UTC)
    files = TableFiles(locate(str(tmp_path)), schema, ())
    files.write(pa.record_batch({"id": [1], "t": pa.array([instant], pa.timestamp("us", tz="Europe/Prague"))}))
    commit_files(locate(str(tmp_path)), delta_schema(schema), (), files.finish(), None, None)
    assert table_rows(tmp_path) == [{"id": 1, "t": instant}]


@pytest.mark.parametrize("compression", ["snappy", "zstd", "gzip", "lz4", "none"])
def test_every_compression_is_read_back(tmp_path: Path, compression: str) -> None:
    files = TableFiles(locate(str(tmp_path)), SCHEMA, (), compression=compression)
    files.write(rows(range(100)))
    assert commit(tmp_path, files.finish())
    assert [row["id"] for row in table_rows(tmp_path)] == list(range(100))


def test_a_path_that_is_no_directory_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(SparkSourceError, match=r"files cannot be written to .*/file \(.*exists.*: check the path"):
        TableFiles(locate(str(tmp_path / "file")), SCHEMA, ())


# Statistics


def test_statistics_bound_all_values(tmp_path: Path) -> None:
    instant = datetime(2024, 1, 1, 0, 0, 0, 123_456, UTC)
    batch = pa.record_batch(
        {
            "n": [3, None, -7],
            "s": ["b", "a" * 100, "z" * 100],
            "t": pa.array([instant, instant + timedelta(days=1), None], pa.timestamp("us", tz="UTC")),
            "d": [DAY, DAY, DAY],
            "f": [-0.5, 1.0, None],
            "m": pa.array([Decimal("1.10"), Decimal("-2.00"), None], pa.decimal128(10, 2)),
            "b": [True, False, None],
            "none": pa.array([None] * 3, pa.int32()),
            "list": [[1], [2], []],
        }
    )
    (file,) = write(tmp_path, batch)
    assert file.stats == {
        "numRecords": 3,
        "minValues": {
            "n": -7,
            "s": "a" * 64,
            "t": "2024-01-01T00:00:00.123456Z",
            "d": "2024-02-29",
            "f": -0.5,
            "m": -2.0,
            "b": False,
        },
        "maxValues": {
            "n": 3,
            "s": "z" * 64 + "\U0010ffff",
            "t": "2024-01-02T00:00:00.123456Z",
            "d": "2024-02-29",
            "f": 1.0,
            "m": 1.1,
            "b": True,
        },
        "nullCount": {"n": 1, "s": 0, "t": 1, "d": 0, "f": 1, "m": 1, "b": 1, "none": 3},
    }


@pytest.mark.parametrize(
    "column",
    [
        pa.array([float("nan"), 1.0]),
        pa.array([float("inf"), 1.0]),
        pa.array(["\U0010ffff" * 100, "a"]),
        pa.array(["x" * 10_000, "a"]),
        pa.array([Decimal("12345678901234567890.12"), Decimal(1)], pa.decimal128(38, 2)),
        pa.array([5_000_000, 0], pa.int32()).cast(pa.date32()),
        pa.array([-800_000, 0], pa.int32()).cast(pa.date32()),
        pa.array([2**58, 0], pa.int64()).cast(pa.timestamp("us", tz="UTC")),
        pa.array([-(2**57), 0], pa.int64()).cast(pa.timestamp("us")),
    ],
)
def test_unbounded_values_leave_the_file_without_bounds(tmp_path: Path, column: pa.Array) -> None:
    batch = pa.record_batch({"id": [1, 2], "x": column})
    (file,) = write(tmp_path, batch)
    assert file.stats == {"numRecords": 2, "nullCount": {"id": 0, "x": 0}}
    commit_files(locate(str(tmp_path)), delta_schema(batch.schema), (), [file], None, None)
    assert DeltaTable(tmp_path).to_pyarrow_table(filters=[("x", "=", column[1].as_py())]).num_rows == 1


@pytest.mark.parametrize(
    ("filters", "ids"),
    [
        ([("id", ">=", 99), ("id", "<=", 100)], [99, 100]),
        ([("place", "=", "p100" * 30)], list(range(100, 200))),
        ([("place", "<", "p1")], list(range(100))),
        ([("day", "=", DAY)], list(range(200))),
        ([("f", ">", 49.6)], list(range(100, 200))),
        ([("f", "=", 49.5)], [99]),
        ([("m", "=", Decimal("1.50"))], [150]),
        ([("b", "=", True)], list(range(0, 200, 2))),
        ([("t", ">", datetime(2024, 1, 1, 3, 18, tzinfo=UTC))], [199]),
    ],
)
def test_a_reader_that_skips_files_finds_every_row(tmp_path: Path, filters: Any, ids: list[int]) -> None:
    for start in (0, 100):
        numbers = range(start, start + 100)
        batch = pa.record_batch(
            {
                "id": list(numbers),
                "place": [f"p{start:03}" * 30] * 100,
                "day": [DAY] * 100,
                "f": [each / 2 for each in numbers],
                "m": pa.array([Decimal(each) / 100 for each in numbers], pa.decimal128(10, 2)),
                "b": [each % 2 == 0 for each in numbers],
                "t": [datetime(2024, 1, 1, tzinfo=UTC) + timedelta(minutes=each) for each in numbers],
                "none": pa.array([None] * 100, pa.string()),
            }
        )
        files = write(tmp_path, batch)
        commit_files(locate(str(tmp_path)), delta_schema(batch.schema), (), files, None, None)
    assert sorted(DeltaTable(tmp_path).to_pyarrow_table(filters=filters)["id"].to_pylist()) == ids


def test_rows_without_a_column_of_the_table_are_found_by_filters(tmp_path: Path) -> None:
    commit(tmp_path, write(tmp_path, rows([1])))
    fewer = rows([2]).select(["id"])
    commit_files(locate(str(tmp_path)), delta_schema(fewer.schema), (), write(tmp_path, fewer), None, None)
    table = DeltaTable(tmp_path)
    assert table_rows(tmp_path)[1] == {"id": 2, "day": None, "place": None}
    assert table.to_pyarrow_dataset().to_table(filter=pc.field("place").is_null())["id"].to_pylist() == [2]
    assert table.to_pyarrow_table(filters=[("id", "=", 2)]).num_rows == 1


def test_a_file_of_very_many_columns_has_no_bounds(tmp_path: Path) -> None:
    (file,) = write(tmp_path, pa.record_batch({f"c{n}": [n] for n in range(101)}))
    assert set(file.stats) == {"numRecords", "nullCount"}


# Commits


def test_the_first_commit_creates_the_table_and_later_ones_append(tmp_path: Path) -> None:
    path = tmp_path / "new table"
    assert commit(path, write(path, rows([1])), 0)
    assert commit(path, write(path, rows([2])), 1)
    assert [row["id"] for row in table_rows(path)] == [1, 2]
    assert DeltaTable(path).version() == 1
    assert DeltaTable(path).transaction_version("app") == 1


def test_a_first_batch_without_rows_creates_an_empty_table(tmp_path: Path) -> None:
    assert commit(tmp_path, [], 0)
    assert table_rows(tmp_path) == []
    assert commit(tmp_path, [], 1)
    assert DeltaTable(tmp_path).version() == 0


def test_a_repeated_batch_is_skipped_and_its_files_are_removed(tmp_path: Path) -> None:
    commit(tmp_path, write(tmp_path, rows([1])), 0)
    commit(tmp_path, write(tmp_path, rows([2])), 1)
    again = write(tmp_path, rows([3]))
    assert not commit(tmp_path, again, 1)
    assert not (tmp_path / again[0].path).exists()
    assert [row["id"] for row in table_rows(tmp_path)] == [1, 2]
    assert commit(tmp_path, write(tmp_path, rows([3])), 1, app_id="another")
    assert [row["id"] for row in table_rows(tmp_path)] == [1, 2, 3]


def test_rows_under_an_old_batch_number_are_never_dropped(tmp_path: Path) -> None:
    for batch_id in range(8):
        commit(tmp_path, write(tmp_path, rows([batch_id])), batch_id)
    with pytest.raises(SparkSourceError, match=r"has batch 7 of 'app', but this write is at 0: .* or another appId"):
        commit(tmp_path, write(tmp_path, rows([100])), 0)
    assert [row["id"] for row in table_rows(tmp_path)] == list(range(8))


def test_the_same_batch_of_a_query_with_another_checkpoint_is_never_dropped(tmp_path: Path) -> None:
    assert commit(tmp_path, write(tmp_path, rows([1])), 0, query_id="first")
    assert not commit(tmp_path, write(tmp_path, rows([1])), 0, query_id="first")
    with pytest.raises(SparkSourceError, match=r"has batch 0 of 'app', but this write is at 0: its checkpoint"):
        commit(tmp_path, write(tmp_path, rows([2])), 0, query_id="second")
    assert [row["id"] for row in table_rows(tmp_path)] == [1]
    assert commit(tmp_path, write(tmp_path, rows([2])), 1, query_id="first")


@pytest.mark.parametrize("app_id", ["app", None])
def test_a_commit_that_succeeded_despite_an_error_keeps_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, app_id: str | None
) -> None:
    """As with a store that lost its first response: the retry finds the file of the first attempt."""
    commit(tmp_path, write(tmp_path, rows([1])), 0, app_id=app_id)

    class Retried(DeltaTable):
        def create_write_transaction(self, *given: Any, **more: Any) -> None:
            DeltaTable(tmp_path).create_write_transaction(*given, **more)
            super().create_write_transaction(*given, **more)

    monkeypatch.setattr(delta_commits, "DeltaTable", Retried)
    assert commit(tmp_path, write(tmp_path, rows([2])), 1, app_id=app_id)
    assert [row["id"] for row in table_rows(tmp_path)] == [1, 2]


def test_a_first_commit_that_succeeded_despite_an_error_keeps_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    really = create_table_with_add_actions

    def retried(*given: Any, **more: Any) -> None:
        really(*given, **more)
        really(*given, **more)

    monkeypatch.setattr(delta_commits, "create_table_with_add_actions", retried)
    assert commit(tmp_path, write(tmp_path, rows([1])), 0)
    assert [row["id"] for row in table_rows(tmp_path)] == [1]


@pytest.mark.parametrize("step", ["_create", "_append"])
def test_a_commit_that_succeeds_late_keeps_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    if step == "_append":
        commit(tmp_path, write(tmp_path, rows([1])), 0)
    really = getattr(delta_commits, step)

    def late(*given: Any) -> None:
        really(*given)
        raise CommitConflictError("no answer")

    monkeypatch.setattr(delta_commits, step, late)
    files = write(tmp_path, rows([2]))
    commit(tmp_path, files, 1)
    assert [row["id"] for row in table_rows(tmp_path)][-1] == 2


def test_a_failure_after_a_commit_does_not_undo_it(tmp_path: Path) -> None:
    commit(tmp_path, write(tmp_path, rows([1])), 0)
    DeltaTable(tmp_path).alter.set_table_properties({"delta.checkpointInterval": "1"})
    note = tmp_path / "_delta_log" / "_last_checkpoint"
    note.unlink(missing_ok=True)
    (note / "in the way").mkdir(parents=True)
    assert commit(tmp_path, write(tmp_path, rows([2])), 1)
    (note / "in the way").rmdir()
    note.rmdir()
    assert [row["id"] for row in table_rows(tmp_path)] == [1, 2]


def test_a_log_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit(tmp_path, write(tmp_path, rows([1])), 0)

    class Full(DeltaTable):
        def create_write_transaction(self, *given: Any, **more: Any) -> None:
            raise OSError("No space left on device\n  a trace")

    monkeypatch.setattr(delta_commits, "DeltaTable", Full)
    with pytest.raises(SparkSourceError, match=r"cannot be written to: No space left on device$"):
        commit(tmp_path, write(tmp_path, rows([2])), 1)


def test_in_an_object_store_nothing_is_removed(tmp_path: Path) -> None:
    files = write(tmp_path, rows([1]))
    remove_uncommitted(locate("s3://nowhere/table"), files)
    assert (tmp_path / files[0].path).exists()


def test_files_of_a_failed_batch_are_removed_but_none_of_the_table(tmp_path: Path) -> None:
    inside = write(tmp_path, rows([1], "a b"), by=("place",))
    commit(tmp_path, inside, 0, by=("place",))
    outside = write(tmp_path, rows([2], "a b"), by=("place",))
    remove_uncommitted(locate(str(tmp_path)), [*inside, *outside])
    assert [row["id"] for row in table_rows(tmp_path)] == [1]
    assert not (tmp_path / outside[0].path).exists()
    remove_uncommitted(locate(str(tmp_path)), outside)


def test_nulls_are_refused_in_non_null_columns(tmp_path: Path) -> None:
    strict = pa.schema([each.with_nullable(each.name == "place") for each in SCHEMA])
    DeltaTable.create(tmp_path, Schema.from_arrow(strict))
    assert commit(tmp_path, write(tmp_path, rows([1])), 0)
    nameless = pa.record_batch([pa.array([None], pa.int64()), [DAY], ["x"]], schema=SCHEMA)
    with pytest.raises(SparkSourceError, match=r"'id' may not be null .*: filter them out \(WHERE id IS NOT NULL\)"):
        commit(tmp_path, write(tmp_path, nameless), 1)
    assert [row["id"] for row in table_rows(tmp_path)] == [1]


def test_nested_columns_may_be_non_null(tmp_path: Path) -> None:
    kinds = {"list": pa.list_(pa.int64()), "struct": pa.struct([("x", pa.int64())])}
    schema = pa.schema([("id", pa.int64()), *kinds.items()])
    strict = pa.schema([each.with_nullable(each.name == "id") for each in schema])
    DeltaTable.create(tmp_path, Schema.from_arrow(strict))

    def append(*values: Any) -> None:
        batch = pa.record_batch([[each] for each in values], schema=schema)
        commit_files(locate(str(tmp_path)), delta_schema(schema), (), write(tmp_path, batch), None, None)

    append(1, [], {"x": 1})
    for values, name in (((2, None, {"x": 1}), "list"), ((2, [1], None), "struct")):
        with pytest.raises(SparkSourceError, match=f"the column '{name}' may not be null"):
            append(*values)
    assert [row["id"] for row in table_rows(tmp_path)] == [1]


def test_a_commit_that_creates_the_table_is_not_retried_by_the_library() -> None:
    """Its retry would overwrite a table that another writer created meanwhile and that already has the batch."""
    assert batch_commit_properties("app", 0, creates_table=True).max_commit_retries == 0
    assert batch_commit_properties("app", 0).max_commit_retries is None


def test_many_writers_at_once_lose_nothing(tmp_path: Path) -> None:
    """One writer creates the table, the others append; each batch is committed twice concurrently."""
    failures: list[BaseException] = []
    taken: list[tuple[int, int]] = []
    start, pairs = threading.Barrier(6), [threading.Barrier(2) for _ in range(3)]

    def work(writer: int) -> None:
        try:
            start.wait()
            for batch_id in range(4):
                app = writer // 2
                pairs[app].wait()
                files = write(tmp_path, rows([app * 100 + batch_id]))
                if commit(tmp_path, files, batch_id, app_id=f"app{app}"):
                    taken.append((app, batch_id))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(writer,)) for writer in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert [row["id"] for row in table_rows(tmp_path)] == [a * 100 + b for a in range(3) for b in range(4)]
    assert sorted(taken) == [(a, b) for a in range(3) for b in range(4)]
