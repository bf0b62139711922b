"""Record batches to Arrow: the compiled and the Python decoder agree with each other and with the record decoder."""

from collections.abc import Sequence

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moldau.columnar import native
from moldau.columnar.columns import COLUMNS, arrow_schema
from moldau.columnar.decode import to_arrow_batches
from moldau.errors import CorruptRecordError, RecordTooLargeError
from moldau.records import compression
from moldau.records.batch import Batch
from moldau.records.batch_builder import build_batch
from moldau.records.record import Record, encode_record
from moldau.records.varint import write_varint
from support.columnar import (
    PARTITION,
    TOPIC,
    batch_around,
    codec,
    decoded,
    expected_rows,
    projections,
    rows,
    runs_of_batches,
)

both = pytest.mark.parametrize("is_native", [True, False], ids=["native", "plain"])


def batch_of(*records: Record, base_offset: int = 0, codec_number: int = 0) -> Batch:
    return Batch(build_batch(records, base_offset=base_offset, compression=codec_number))


def test_the_compiled_codec_is_available() -> None:
    assert native.is_native()


@both
@given(batches=runs_of_batches(), data=st.data())
def test_rows_equal_the_output_of_the_record_decoder(
    is_native: bool, batches: list[Batch], data: st.DataObject
) -> None:
    offsets = [row["offset"] for row in expected_rows(batches)] or [0]
    start = data.draw(st.integers(offsets[0] - 2, offsets[-1] + 2))
    end = data.draw(st.integers(start, offsets[-1] + 3))
    columns = data.draw(projections)
    found = decoded(batches, start=start, end=end, columns=columns, is_native=is_native)
    expected = expected_rows(batches, start=start, end=end)
    assert found.schema == arrow_schema(columns)
    assert rows(found) == ([{name: row[name] for name in columns} for row in expected] if columns else [])


@given(batches=runs_of_batches(), arrow_batch_bytes=st.integers(1, 5000))
def test_arrow_batches_together_equal_one_arrow_batch(batches: list[Batch], arrow_batch_bytes: int) -> None:
    offsets = [row["offset"] for row in expected_rows(batches)] or [0]
    start, end = offsets[len(offsets) // 3], offsets[-1]
    parts = list(
        to_arrow_batches(
            TOPIC, PARTITION, batches, start=start, end=end, columns=COLUMNS, arrow_batch_bytes=arrow_batch_bytes
        )
    )
    assert all(part.num_rows for part in parts)
    assert [row for part in parts for row in rows(part)] == expected_rows(batches, start=start, end=end)


def test_arrow_batches_have_about_the_requested_size() -> None:
    batches = [batch_of(*[Record(timestamp=0, value=b"v" * 1000)] * 10, base_offset=10 * index) for index in range(20)]
    parts = list(
        to_arrow_batches(TOPIC, 0, iter(batches), start=0, end=1000, columns=["value"], arrow_batch_bytes=50_000)
    )
    assert [part.num_rows for part in parts] == [40] * 5


def test_a_batch_whose_topic_names_overflow_is_split() -> None:
    batch = batch_of(*[Record(timestamp=0)] * 50, base_offset=10)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("moldau.columnar.decode.ARROW_BYTES_MAX", 1000)
        parts = list(to_arrow_batches("t" * 30, 0, [batch], start=12, end=55, columns=["topic", "offset"]))
    assert len(parts) > 2
    assert [offset for part in parts for offset in part.column("offset").to_pylist()] == list(range(12, 55))


@both
def test_columns_have_the_requested_order_and_the_connectors_types(is_native: bool) -> None:
    batch = batch_of(Record(timestamp=5, key=b"k", value=b"v", headers=(("h", b"x"),)))
    found = decoded([batch], is_native=is_native)
    assert found.schema.names == list(COLUMNS)
    assert [str(field.type) for field in found.schema] == [
        "binary",
        "binary",
        "string",
        "int32",
        "int64",
        "timestamp[us, tz=UTC]",
        "int32",
        "list<element: struct<key: string, value: binary>>",
    ]
    assert decoded([batch], columns=["offset", "key"], is_native=is_native).schema.names == ["offset", "key"]


def test_an_unknown_column_is_named() -> None:
    with pytest.raises(ValueError, match="no column 'values'"):
        arrow_schema(["key", "values"])


@both
def test_no_batches_give_no_rows(is_native: bool) -> None:
    assert decoded([], is_native=is_native).num_rows == 0
    empty = batch_around(b"", count=0)
    compressed_empty = batch_around(b"", count=0, attributes=compression.ZSTD)
    assert decoded([empty, compressed_empty], is_native=is_native).num_rows == 0


@both
def test_a_range_may_exceed_the_offsets(is_native: bool) -> None:
    batch = batch_of(Record(timestamp=0), Record(timestamp=0))
    assert decoded([batch], start=-(2**80), end=2**80, is_native=is_native).num_rows == 2


@both
def test_nulls_and_empty_byte_strings_differ(is_native: bool) -> None:
    batch = batch_of(Record(timestamp=0, key=b"", value=None), Record(timestamp=0, key=None, value=b""))
    found = decoded([batch], columns=["key", "value"], is_native=is_native)
    assert found.to_pylist() == [{"key": b"", "value": None}, {"key": None, "value": b""}]
    assert found.column("key").null_count == found.column("value").null_count == 1


@both
def test_headers_keep_their_order_their_duplicates_and_their_nulls(is_native: bool) -> None:
    headers = (("b", b"1"), ("a", None), ("b", b""), ("", b"\x00"))
    found = decoded(
        [batch_of(Record(timestamp=0), Record(timestamp=0, headers=headers), Record(timestamp=0))],
        columns=["headers"],
        is_native=is_native,
    )
    assert found.column("headers").to_pylist() == [
        None,
        [{"key": name, "value": content} for name, content in headers],
        None,
    ]


@both
def test_invalid_utf8_in_header_names_is_replaced(is_native: bool) -> None:
    name = b"a\xff\xfeb".decode("utf-8", "surrogateescape")
    found = decoded(
        [batch_of(Record(timestamp=0, headers=((name, b"x"), ("é", None))))], columns=["headers"], is_native=is_native
    )
    assert found.column("headers").to_pylist() == [
        [{"key": "a\ufffd\ufffdb", "value": b"x"}, {"key": "é", "value": None}]
    ]


@both
def test_a_missing_timestamp_is_decoded_as_in_sparks_connector(is_native: bool) -> None:
    found = decoded([batch_of(Record(timestamp=-1))], columns=["timestamp"], is_native=is_native)
    assert str(found.column("timestamp")[0].as_py()) == "1969-12-31 23:59:59.999000+00:00"


@both
@pytest.mark.parametrize("timestamp_ms", [2**62, -(2**62), (2**63 - 1) // 1000 + 1])
def test_a_timestamp_beyond_64_bit_microseconds_is_null(is_native: bool, timestamp_ms: int) -> None:
    batch = batch_of(Record(timestamp=7), Record(timestamp=timestamp_ms), Record(timestamp=8))
    found = decoded([batch], columns=["timestamp"], is_native=is_native)
    assert found.column("timestamp").cast(pa.int64()).to_pylist() == [7000, None, 8000]


@both
def test_timestamp_types_follow_their_batches(is_native: bool) -> None:
    batches = [
        batch_of(Record(timestamp=5)),
        Batch(build_batch([Record(timestamp=5)], base_offset=1, append_time_ms=77)),
    ]
    found = decoded(batches, columns=["timestamp", "timestampType"], is_native=is_native)
    assert rows(found) == [{"timestamp": 5000, "timestampType": 0}, {"timestamp": 77000, "timestampType": 1}]


@both
def test_columns_that_are_not_requested_are_not_decoded(is_native: bool) -> None:
    """The headers are malformed, which only a read of the headers detects."""
    body = b"\x00\x00\x00" + b"\x01\x01" + write_varint(3)
    batch = batch_around(write_varint(len(body)) + body, count=1)
    assert decoded([batch], columns=["key", "value", "offset"], is_native=is_native).num_rows == 1
    with pytest.raises(CorruptRecordError, match="headers"):
        decoded([batch], columns=["headers"], is_native=is_native)


@both
def test_buffers_are_trimmed_to_the_rows(is_native: bool) -> None:
    batches = [
        batch_of(*[Record(timestamp=0, key=b"kk", value=b"v" * 100)] * 1000, base_offset=1000 * index)
        for index in range(10)
    ]
    found = decoded(batches, start=9_000, columns=["key", "offset"], is_native=is_native)
    assert found.num_rows == 1000
    assert found.get_total_buffer_size() < 2 * found.nbytes


@both
def test_more_bytes_than_an_arrow_column_holds_are_refused(is_native: bool) -> None:
    batch = batch_of(Record(timestamp=0))
    with codec(is_native), pytest.MonkeyPatch.context() as patch:
        patch.setattr("moldau.columnar.decode.ARROW_BYTES_MAX", 5)
        patch.setattr("moldau.columnar.decode._ROW_BYTES", 1)
        with pytest.raises(ValueError, match="7 bytes decompressed, more than the 5 an Arrow column holds"):
            next(to_arrow_batches(TOPIC, 0, [batch], start=0, end=1, columns=["offset"]))


@both
def test_a_batch_that_decompresses_to_too_much_is_named(is_native: bool) -> None:
    bomb = compression.compress(compression.ZSTD, bytes(compression.DECOMPRESSED_BYTES_MAX + 1))
    with pytest.raises(RecordTooLargeError, match=r"orders-3: Batch\(0\.\."):
        decoded([batch_around(bomb, count=1, attributes=compression.ZSTD)], is_native=is_native)


@both
def test_a_batch_that_does_not_decompress_is_named(is_native: bool) -> None:
    with pytest.raises(CorruptRecordError, match=r"orders-3: Batch\(7\.\..*gzip"):
        decoded([batch_around(b"no gzip", count=1, base_offset=7, attributes=compression.GZIP)], is_native=is_native)


@settings(max_examples=20)
@given(st.lists(st.integers(0, 3000), min_size=1, max_size=30), st.integers(0, 4))
def test_long_keys_and_values_are_decoded(lengths: Sequence[int], codec_number: int) -> None:
    records = [
        Record(timestamp=0, key=bytes([length % 251]) * length, value=bytes([length % 13]) * (length * 7))
        for length in lengths
    ]
    batch = batch_of(*records, codec_number=codec_number)
    assert rows(decoded([batch])) == expected_rows([batch])


@both
def test_sections_may_be_any_kind_of_buffer(is_native: bool) -> None:
    data = build_batch([Record(timestamp=0, key=b"k", value=b"v")])
    kinds = [data, bytearray(data), memoryview(data), memoryview(b"xx" + data + b"xx")[2:-2]]
    for kind in kinds:
        assert decoded([Batch(kind)], columns=["value"], is_native=is_native).to_pylist() == [{"value": b"v"}]


@both
def test_the_shortest_record_is_decoded(is_native: bool) -> None:
    section = encode_record(timestamp_delta=0, offset_delta=0, key=None, value=None)
    assert len(section) == 7
    assert decoded([batch_around(section, count=1)], is_native=is_native).num_rows == 1
