"""Arrow to sections: the compiled and the Python encoder agree, and their sections equal those of built batches."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.columnar.columns import HEADER_TYPE
from moldau.columnar.encode import to_sections
from moldau.errors import RecordTooLargeError
from moldau.records import compression
from moldau.records.batch import HEADER_SIZE, Batch
from moldau.records.batch_builder import Section, build_batch, encode_batch
from moldau.records.record import Record, iterate_records
from support.columnar import codec, decoded, records

both = pytest.mark.parametrize("is_native", [True, False], ids=["native", "plain"])

BINARY_TYPES = [pa.binary(), pa.large_binary(), pa.binary_view()]
TEXT_TYPES = [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())]


def headers_of(given_records: list[Record]) -> pa.Array:
    """Every second record without headers has null instead of an empty list."""
    lists = [
        [{"key": name.encode("utf-8", "surrogateescape"), "value": content} for name, content in one.headers]
        or (None if index % 2 else [])
        for index, one in enumerate(given_records)
    ]
    kind = pa.struct([("key", pa.binary()), ("value", pa.binary())])
    return pa.array(lists, pa.list_(kind))


def encoded(
    given_records: list[Record],
    partitions: list[int] | None = None,
    *,
    is_native: bool = True,
    batch_bytes_max: int = 1 << 20,
    codec_number: int = 0,
    **columns: Any,
) -> list[tuple[int, Section]]:
    given_columns: dict[str, Any] = {
        "key": pa.array([one.key for one in given_records], pa.binary()),
        "value": pa.array([one.value for one in given_records], pa.binary()),
        "headers": headers_of(given_records),
        "timestamp_ms": np.array([one.timestamp for one in given_records], np.int64),
    } | columns
    with codec(is_native):
        return list(
            to_sections(
                np.array(partitions or [0] * len(given_records), np.int32),
                batch_bytes_max=batch_bytes_max,
                compression=codec_number,
                **given_columns,
            )
        )


def batch_of(found: tuple[int, Section]) -> Batch:
    _, section = found
    return Batch(
        encode_batch(
            section.data,
            base_offset=0,
            leader_epoch=-1,
            attributes=section.compression,
            last_offset_delta=section.count - 1,
            base_timestamp=section.base_timestamp,
            max_timestamp=section.max_timestamp,
            producer_id=-1,
            producer_epoch=-1,
            base_sequence=-1,
            count=section.count,
        )
    )


def content(one: Record) -> tuple[Any, ...]:
    return one.timestamp, one.key, one.value, tuple(one.headers)


@both
@given(given_records=st.lists(records, min_size=1, max_size=20), codec_number=st.integers(0, 4))
def test_a_section_equals_that_of_a_built_batch(
    is_native: bool, given_records: list[Record], codec_number: int
) -> None:
    (found,) = encoded(given_records, is_native=is_native, codec_number=codec_number)
    built = Batch(build_batch(given_records, compression=codec_number))
    assert found[0] == 0
    assert bytes(found[1].data) == bytes(built.section)
    assert (found[1].count, found[1].base_timestamp, found[1].max_timestamp) == (
        built.count,
        built.base_timestamp,
        built.max_timestamp,
    )
    assert found[1].compression == codec_number


@both
@given(rows=st.lists(st.tuples(records, st.integers(0, 4)), max_size=40), batch_bytes_max=st.integers(1, 2000))
def test_rows_keep_their_order_within_partitions_and_sections_their_limit(
    is_native: bool, rows: list[tuple[Record, int]], batch_bytes_max: int
) -> None:
    given_records, partitions = [one for one, _ in rows], [partition for _, partition in rows]
    found = encoded(given_records, partitions, is_native=is_native, batch_bytes_max=batch_bytes_max)
    read = [(each[0], content(one)) for each in found for one in iterate_records(batch_of(each))]
    by_partition = sorted(((partition, content(one)) for one, partition in rows), key=lambda row: row[0])
    assert read == by_partition
    for each in found:
        assert len(each[1].data) <= batch_bytes_max or each[1].count == 1


@both
@pytest.mark.parametrize("room", [0, 1, -1])
def test_a_section_is_filled_to_the_last_byte(is_native: bool, room: int) -> None:
    given_records = [Record(timestamp=0, value=b"v" * 20)] * 5
    of_three = len(build_batch(given_records[:3])) - HEADER_SIZE
    found = encoded(given_records, is_native=is_native, batch_bytes_max=of_three + room)
    assert [each[1].count for each in found] == ([3, 2] if room >= 0 else [2, 2, 1])


@given(
    rows=st.lists(st.tuples(records, st.integers(0, 4)), max_size=40),
    batch_bytes_max=st.integers(1, 2000),
    codec_number=st.integers(0, 4),
)
def test_both_encoders_write_the_same(rows: list[tuple[Record, int]], batch_bytes_max: int, codec_number: int) -> None:
    given_records, partitions = [one for one, _ in rows], [partition for _, partition in rows]
    native, plain = (
        encoded(
            given_records, partitions, is_native=is_native, batch_bytes_max=batch_bytes_max, codec_number=codec_number
        )
        for is_native in (True, False)
    )
    assert native == plain


@both
@pytest.mark.parametrize("kind", BINARY_TYPES + TEXT_TYPES, ids=str)
def test_all_types_of_bytes_and_text_are_encoded_whole_or_sliced(is_native: bool, kind: pa.DataType) -> None:
    texts = ["", "a", None, "é" * 100, None, "long enough not to be stored inline", "z"]
    wanted = [None if text is None else text.encode() for text in texts]
    column = pa.array(wanted if kind in BINARY_TYPES else texts, kind)
    for start, length in ((0, 7), (2, 3), (4, 0), (1, 6)):
        part = column.slice(start, length)
        found = encoded([Record(timestamp=0)] * length, is_native=is_native, key=part, value=part, headers=None)
        read = [one for each in found for one in iterate_records(batch_of(each))]
        assert [one.key for one in read] == wanted[start : start + length]
        assert [one.value for one in read] == wanted[start : start + length]


@both
def test_headers_may_be_a_slice_of_a_larger_column(is_native: bool) -> None:
    lists = [
        [{"key": "a", "value": b"1"}],
        None,
        [],
        [{"key": "b", "value": None}, {"key": "b", "value": b""}],
        [{"key": "c", "value": b"3"}],
    ]
    for kind in (pa.list_(HEADER_TYPE), pa.large_list(HEADER_TYPE)):
        column = pa.array(lists, kind).slice(1, 3)
        found = encoded([Record(timestamp=0)] * 3, is_native=is_native, headers=column)
        read = [one.headers for each in found for one in iterate_records(batch_of(each))]
        assert read == [(), (), (("b", None), ("b", b""))]


@both
def test_headers_behind_a_null_list_are_ignored(is_native: bool) -> None:
    structs = pa.array([{"key": "a", "value": b"1"}, {"key": None, "value": b"2"}], HEADER_TYPE)
    hiding = pa.ListArray.from_arrays(pa.array([0, 1, 2]), structs, mask=pa.array([False, True]))
    found = encoded([Record(timestamp=0)] * 2, is_native=is_native, headers=hiding)
    assert [one.headers for each in found for one in iterate_records(batch_of(each))] == [(("a", b"1"),), ()]


@both
@pytest.mark.parametrize("header", [{"key": None, "value": b"x"}, None])
def test_a_header_without_a_key_is_refused(is_native: bool, header: Any) -> None:
    lists = pa.array([[{"key": "a", "value": None}], [{"key": "b", "value": None}, header]], pa.list_(HEADER_TYPE))
    with pytest.raises(ValueError, match="a header of row 1 has no key"):
        encoded([Record(timestamp=0)] * 2, is_native=is_native, headers=lists)


@both
def test_missing_columns_are_null(is_native: bool) -> None:
    (found,) = encoded([Record(timestamp=9)] * 3, is_native=is_native, key=None, value=None, headers=None)
    assert [content(one) for one in iterate_records(batch_of(found))] == [(9, None, None, ())] * 3


@both
def test_a_column_of_nulls_may_have_arrows_null_type(is_native: bool) -> None:
    (found,) = encoded([Record(timestamp=9)] * 3, is_native=is_native, key=pa.nulls(3), headers=pa.nulls(3))
    assert [one.key for one in iterate_records(batch_of(found))] == [None] * 3


def test_chunked_columns_are_encoded() -> None:
    column = pa.chunked_array([[b"a"], [], [b"b", None]], pa.binary())
    (found,) = encoded([Record(timestamp=9)] * 3, key=column, value=column, headers=None)
    assert [one.key for one in iterate_records(batch_of(found))] == [b"a", b"b", None]


@both
def test_no_rows_give_no_sections(is_native: bool) -> None:
    assert encoded([], is_native=is_native) == []


@both
def test_partitions_beyond_16_bits_keep_their_rows_in_order(is_native: bool) -> None:
    given_records = [Record(timestamp=index) for index in range(6)]
    found = encoded(given_records, [70_000, 1, 70_000, 1, 70_001, 0], is_native=is_native)
    read = [(each[0], [one.timestamp for one in iterate_records(batch_of(each))]) for each in found]
    assert read == [(0, [5]), (1, [1, 3]), (70_000, [0, 2]), (70_001, [4])]


def test_invalid_columns_are_refused_at_the_call() -> None:
    rows: dict[str, Any] = {"headers": None, "compression": 0, "value": None, "batch_bytes_max": 100}
    one, time = np.zeros(1, np.int32), np.zeros(1, np.int64)
    with pytest.raises(ValueError, match="1 partitions but 2 values of key"):
        to_sections(one, key=pa.array([b"a", b"b"]), timestamp_ms=time, **rows)
    with pytest.raises(ValueError, match="-1 is not a partition"):
        to_sections(one - 1, key=None, timestamp_ms=time, **rows)
    with pytest.raises(ValueError, match="timestamp"):
        to_sections(one, key=None, timestamp_ms=time + 2**62, **rows)
    with pytest.raises(ValueError, match="batch_bytes_max"):
        to_sections(one, key=None, timestamp_ms=time, **rows | {"batch_bytes_max": 0})
    with pytest.raises(TypeError, match="key must be binary or string, not int64"):
        to_sections(one, key=pa.array([1]), timestamp_ms=time, **rows)
    with pytest.raises(TypeError, match="headers must be a list"):
        to_sections(one, key=None, timestamp_ms=time, **rows | {"headers": pa.array(["x"])})
    with pytest.raises(TypeError, match="headers must be a list"):
        to_sections(one, key=None, timestamp_ms=time, **rows | {"headers": pa.array([["x"]])})


@both
def test_a_record_larger_than_any_batch_is_refused(is_native: bool) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("moldau.columnar.encode.SECTION_BYTES_MAX", 50)
        with pytest.raises(RecordTooLargeError, match="partition 7"):
            encoded([Record(timestamp=0, value=b"v" * 100)], [7], is_native=is_native)


@both
def test_encoded_columns_are_decoded_unchanged(is_native: bool) -> None:
    given_records = [
        Record(timestamp=index, key=b"k%d" % index, value=b"v" * index, headers=(("h", b"%d" % index),))
        for index in range(300)
    ]
    found = encoded(given_records, is_native=is_native, codec_number=compression.LZ4)
    columns = decoded([batch_of(each) for each in found], columns=["key", "value"], is_native=is_native)
    assert columns.to_pylist() == [{"key": one.key, "value": one.value} for one in given_records]
