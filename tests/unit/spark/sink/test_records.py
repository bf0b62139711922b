"""Rows as records: topics, partitions, timestamps and sizes, and errors for invalid rows."""

from collections import Counter
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from moldau.client.producer.partitioner import partition_of_key
from moldau.spark.errors import SparkSourceError
from moldau.spark.sink.columns import SinkColumns
from moldau.spark.sink.records import (
    RECORD_OVERHEAD,
    RecordColumns,
    RowPartitioner,
    check_sizes,
    merge_batches,
    record_columns,
    split_by_topic,
)

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
NOW_MS = 1_700_000_000_123


def rows(columns: dict[str, Any]) -> RecordColumns:
    names = list(columns)
    table = pa.table(columns)
    places: dict[str, Any] = {name: names.index(name) for name in names}
    return record_columns(table, SinkColumns(**places), NOW_MS)


def place(given: RecordColumns, count: int = 4, batch_bytes: int = 1000, turn: int = 0) -> Any:
    return RowPartitioner(turn).partitions(given, "t", count, range(count), batch_bytes).tolist()


def test_rows_are_split_by_topic_and_keep_their_order() -> None:
    table = pa.table({"topic": ["a", "b", "a", "b"], "value": ["1", "2", "3", "4"]})
    split = {name: some["value"].to_pylist() for name, some in split_by_topic(table, SinkColumns(1, topic=0), None)}
    assert split == {"a": ["1", "3"], "b": ["2", "4"]}


def test_the_topic_option_keeps_all_rows_together() -> None:
    table = pa.table({"value": ["1", "2"]})
    assert list(split_by_topic(table, SinkColumns(0), "t")) == [("t", table)]


def test_rows_without_a_topic_are_counted() -> None:
    table = pa.table({"topic": ["a", None, None], "value": ["1", "2", "3"]})
    with pytest.raises(SparkSourceError, match=r"2 of 3 rows have no topic .* fill it, filter them out, or set"):
        list(split_by_topic(table, SinkColumns(1, topic=0), None))


def test_an_invalid_topic_name_is_shown() -> None:
    table = pa.table({"topic": ["a b"], "value": ["1"]})
    with pytest.raises(SparkSourceError, match=r"the column `topic`: 'a b' is not a topic name"):
        list(split_by_topic(table, SinkColumns(1, topic=0), None))


def test_small_batches_are_merged_in_order_without_loss() -> None:
    batches = [pa.record_batch({"value": [f"{number}{each}" for each in range(3)]}) for number in range(7)]
    empty = batches[0].slice(0, 0)
    tables = list(merge_batches([empty, *batches, empty], batches[0].nbytes * 3))
    assert [table.num_rows for table in tables] == [9, 9, 3]
    values = [value for table in tables for value in table["value"].to_pylist()]
    assert values == [value for batch in batches for value in batch["value"].to_pylist()]


def test_the_key_decides_as_in_kafka_clients() -> None:
    keys = ["a", "b", "", "žluťoučký", "1" * 50]
    expected = [partition_of_key(key.encode(), 4) for key in keys]
    assert place(rows({"key": keys, "value": keys})) == expected


def test_the_column_partition_overrides_the_key_unless_null() -> None:
    given = rows({"key": ["a", "a"], "value": ["1", "2"], "partition": pa.array([3, None], pa.int32())})
    assert place(given) == [3, partition_of_key(b"a", 4)]


@pytest.mark.parametrize("wrong", [-1, 4, -(2**31)])
def test_a_missing_partition_is_named(wrong: int) -> None:
    given = rows({"value": ["1", "2"], "partition": pa.array([0, wrong], pa.int32())})
    with pytest.raises(SparkSourceError, match=rf"is {wrong}, but 't' has the partitions 0 to 3: correct it"):
        place(given)


def test_rows_without_a_key_fill_a_batch_and_move_on_to_the_next_partition() -> None:
    value = "x" * (100 - RECORD_OVERHEAD)
    assert place(rows({"value": [value] * 40}), batch_bytes=1000, turn=6) == [2] * 10 + [3] * 10 + [0] * 10 + [1] * 10


def test_the_next_rows_without_a_key_start_with_another_partition() -> None:
    placing, given = RowPartitioner(0), rows({"value": ["x"] * 3})
    several = [placing.partitions(given, "t", 4, range(4), 1000).tolist() for _ in range(5)]
    assert several == [[each] * 3 for each in (0, 1, 2, 3, 0)]


def test_rows_without_a_key_avoid_partitions_without_a_leader() -> None:
    given = rows({"value": ["x" * (100 - RECORD_OVERHEAD)] * 20})
    placed = RowPartitioner(0).partitions(given, "t", 4, [1, 3], 100)
    assert Counter(placed.tolist()) == {1: 10, 3: 10}
    assert set(RowPartitioner(0).partitions(given, "t", 4, [], 100).tolist()) == {0, 1, 2, 3}


def test_rows_with_and_without_a_key_are_partitioned_independently() -> None:
    placed = place(rows({"key": ["a", None, "a", None], "value": ["1"] * 4}), turn=2)
    home = partition_of_key(b"a", 4)
    assert placed == [home, 2, home, 2]


def test_a_timestamp_has_milliseconds_and_defaults_to_now() -> None:
    times = [datetime(2024, 1, 1, 0, 0, 0, 123_999, UTC), None, datetime(1970, 1, 1, tzinfo=UTC)]
    found = rows({"value": ["a"] * 3, "timestamp": pa.array(times, pa.timestamp("us", tz="Europe/Prague"))})
    assert found.timestamp_ms.tolist() == [1_704_067_200_123, NOW_MS, 0]
    assert rows({"value": ["a"]}).timestamp_ms.tolist() == [NOW_MS]


def test_a_time_before_1970_is_refused() -> None:
    times = pa.array([datetime(1969, 12, 31, tzinfo=UTC)], pa.timestamp("us", tz="UTC"))
    with pytest.raises(SparkSourceError, match=r"before 1970 in the column `timestamp` \(1969-12-31"):
        rows({"value": ["a"], "timestamp": times})


def test_sizes_count_keys_values_and_headers_of_each_row_also_in_slices() -> None:
    headers = pa.array(
        [[{"key": "no", "value": b"no"}], [{"key": "ab", "value": b"cde"}] * 2, None, [{"key": "a", "value": None}]],
        HEADERS,
    ).slice(1)
    found = rows({"key": [None, "k", "kk"], "value": ["v", None, "vv"], "headers": headers})
    assert (found.sizes - RECORD_OVERHEAD).tolist() == [1 + 2 * (10 + 5), 1, 4 + 10 + 1]


def test_a_header_without_a_key_is_refused() -> None:
    for header in ({"key": None, "value": b"x"}, None):
        with pytest.raises(SparkSourceError, match=r"a header has no key .* filter such headers out"):
            rows({"value": ["a"], "headers": pa.array([[header]], HEADERS)})


def test_a_row_that_is_too_large_is_named_by_its_key() -> None:
    given = rows({"key": ["small", "grown"], "value": ["x", "x" * 2000]})
    check_sizes(given, "t", 5000)
    with pytest.raises(
        SparkSourceError, match=r"with the key 'grown' becomes a record of 2026 bytes for 't', but kafka\.max\.request"
    ):
        check_sizes(given, "t", 1000)
    check_sizes(rows({"value": pa.array([None], pa.binary())}), "t", 100)


def test_a_column_of_nulls_equals_a_missing_column() -> None:
    given = rows(
        {
            "key": pa.array([None, None], pa.string()),
            "value": ["1", "2"],
            "partition": pa.array([None, None], pa.int32()),
        }
    )
    assert given.key is None
    assert given.partition is None
    assert np.all(given.sizes == RECORD_OVERHEAD + 1)
