"""Options of the Delta sink, and compatibility of rows with a table."""

from pathlib import Path
from typing import Any

import pytest

from moldau.spark.errors import OptionError, SparkSourceError
from moldau.spark.sink.delta_options import Location, locate, parse_delta_options
from moldau.spark.sink.delta_schema import as_nullable, check_row_schema, check_rows_fit_table, type_text


def struct(**types: Any) -> dict[str, Any]:
    fields = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in types.items()]
    return {"type": "struct", "fields": fields}


def array(kind: Any, contains_null: bool = True) -> dict[str, Any]:
    return {"type": "array", "elementType": kind, "containsNull": contains_null}


# Options


def test_option_names_are_case_insensitive() -> None:
    found = parse_delta_options(
        {"PATH": "/t", "partitionby": "a, b", "APPID": "me", "storage.aws_region": "x", "Compression": "ZSTD"},
        is_streaming=True,
    )
    assert found.location == Location("/t", (("aws_region", "x"),))
    assert "aws_region" not in repr(found)
    assert found.partition_by == ("a", "b")
    assert found.app_id == "me"
    assert found.compression == "zstd"


@pytest.mark.parametrize(
    ("path", "located"),
    [("/a b/t", "/a b/t"), ("file:///a%20b/t", "/a b/t"), ("file:/a/t", "/a/t"), ("s3://bucket/t", "s3://bucket/t")],
)
def test_paths_and_file_urls_are_directories_and_other_urls_are_unchanged(path: str, located: str) -> None:
    assert locate(path).path == located
    assert locate(path).is_directory is not located.startswith("s3")


def test_a_relative_path_is_made_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert locate("t").path == str(tmp_path / "t")


@pytest.mark.parametrize(
    ("given", "is_streaming", "message"),
    [
        ({}, True, r"needs the table's directory: .option\('path'"),
        ({"path": "/t", "partitionsBy": "a"}, True, r"no option 'partitionsBy'; did you mean partitionBy\?"),
        ({"path": "/t", "mergeSchema": "true"}, True, r"no option 'mergeSchema'; there are path, partitionBy"),
        ({"path": "file://host/t"}, True, r"names the host 'host', and a file URL is one of this host"),
        ({"path": "/t", "compression": "bzip"}, True, r"compression must be one of snappy, .*, not 'bzip'"),
        ({"path": "/t", "batchId": "1"}, True, r"a streaming query numbers its batches itself"),
        ({"path": "/t", "batchId": "1"}, False, r"batchId needs appId"),
        ({"path": "/t", "batchId": "-1", "appId": "a"}, False, r"an integer, 0 or more, not '-1'"),
        ({"path": "/t", "batchId": "x", "appId": "a"}, False, r"an integer, 0 or more, not 'x'"),
    ],
)
def test_invalid_options_are_named(given: dict[str, str], is_streaming: bool, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        parse_delta_options(given, is_streaming=is_streaming)


# Columns of rows


@pytest.mark.parametrize(
    ("types", "partition_by", "message"),
    [
        ({}, (), r"a table needs columns"),
        ({"a": "long", "A": "long"}, (), r"the column 'a' is duplicated"),
        ({"a b": "long"}, (), r"the name of the column 'a b' contains a space .*: rename it"),
        ({"a": "void"}, (), r"the column 'a' is of type VOID, which Delta does not support: cast or drop it"),
        ({"a": array(struct(x="interval day"))}, (), r"'a' is of type INTERVAL DAY, which Delta does not"),
        ({"a": "long", "b": "long"}, ("c",), r"partitionBy names 'c', which is not a column; there are a, b"),
        ({"price": "long", "b": "long"}, ("prize",), r"which is not a column; did you mean price\?"),
        ({"a": "timestamp", "b": "long"}, ("a",), r"'a', which is of type TIMESTAMP: partition by a string"),
        ({"a": array("long"), "b": "long"}, ("a",), r"'a', which is of type ARRAY<BIGINT>: partition by"),
        ({"a": "long"}, ("a",), r"partitionBy names all columns"),
        ({"a": "long", "b": "long"}, ("a", "a"), r"names a column twice"),
    ],
)
def test_rows_that_delta_cannot_store_are_refused(
    types: dict[str, Any], partition_by: tuple[str, ...], message: str
) -> None:
    with pytest.raises(SparkSourceError, match=message):
        check_row_schema(struct(**types), partition_by)


def test_all_delta_types_are_accepted() -> None:
    kinds = "string long integer short byte float double boolean binary date timestamp timestamp_ntz decimal(10,2)"
    types: dict[str, Any] = {f"c{number}": kind for number, kind in enumerate(kinds.split())}
    types["m"] = {"type": "map", "keyType": "string", "valueType": array(struct(x="long")), "valueContainsNull": True}
    check_row_schema(struct(**types), ("c0",))


def test_columns_of_a_new_table_are_nullable_and_without_metadata() -> None:
    inner = struct(x="long")
    inner["fields"][0].update(nullable=False, metadata={"comment": "no"})
    schema = struct(a=array(inner, contains_null=False))
    schema["fields"][0]["nullable"] = False
    assert as_nullable(schema) == struct(a=array(struct(x="long")))


def test_types_are_shown_in_sql() -> None:
    kind = struct(a="long", b=array("string"), c={"type": "map", "keyType": "string", "valueType": "integer"})
    assert type_text(kind) == "STRUCT<a: BIGINT, b: ARRAY<STRING>, c: MAP<STRING, INT>>"


# Rows and a table


def check(
    rows: dict[str, Any],
    table: dict[str, Any],
    by: tuple[str, ...] = (),
    table_by: tuple[str, ...] = (),
    configuration: dict[str, str] | None = None,
) -> None:
    check_rows_fit_table(rows, by, table, table_by, configuration or {}, "/t")


def test_rows_may_have_the_columns_in_any_order_or_fewer() -> None:
    table = struct(a="long", b=array("string"), c="date")
    check(struct(c="date", a="long", b=array("string", contains_null=False)), table)
    check(struct(a="long"), table)
    check(struct(a="long", c="date"), table, table_by=("c",))
    check(struct(a="long", c="date"), table, by=("c",), table_by=("c",))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (struct(a="integer"), r"do not fit the Delta table /t: a is INT here and BIGINT in the table\. Select and"),
        (struct(a="long", x="string", y="date"), r"x \(STRING\) is not in the table; y \(DATE\) is not in the table"),
        (struct(A="long"), r"A \(BIGINT\) is not in the table"),
    ],
)
def test_all_mismatched_columns_are_named(rows: dict[str, Any], message: str) -> None:
    with pytest.raises(SparkSourceError, match=message):
        check(rows, struct(a="long", b="string"))


def test_a_non_null_column_cannot_be_missing() -> None:
    table = struct(a="long", b="string")
    table["fields"][1]["nullable"] = False
    with pytest.raises(SparkSourceError, match="b may not be null in the table and is missing here"):
        check(struct(a="long"), table)


def test_a_partitioning_other_than_the_tables_is_refused() -> None:
    both = struct(a="long", b="string")
    with pytest.raises(OptionError, match=r"is partitioned by b, but partitionBy is a: leave partitionBy out"):
        check(both, both, by=("a",), table_by=("b",))
    with pytest.raises(OptionError, match=r"is partitioned not at all, but partitionBy is a"):
        check(both, both, by=("a",))
    with pytest.raises(SparkSourceError, match=r"is partitioned by b, which the rows do not have: select it too"):
        check(struct(a="long"), both, table_by=("b",))
    timed = struct(a="long", t="timestamp")
    with pytest.raises(SparkSourceError, match=r"is partitioned by t of type TIMESTAMP, which is not written here"):
        check(timed, timed, table_by=("t",))


def test_a_table_with_unsupported_writer_features_is_refused() -> None:
    table = struct(a="long")
    with pytest.raises(
        SparkSourceError, match=r"has the constraint 'positive', column mapping, which this writer does not support"
    ):
        check(table, table, configuration={"delta.constraints.positive": "a > 0", "delta.columnMapping.mode": "name"})
    made = struct(a="long")
    made["fields"][0]["metadata"] = {"delta.generationExpression": "b + 1"}
    with pytest.raises(SparkSourceError, match=r"delta\.generationExpression of the column 'a'"):
        check(table, made)
