"""Corrupt records: the compiled and the Python decoder both raise, or both read the same."""

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from moldau.columnar.columns import COLUMNS
from moldau.errors import CorruptRecordError, MoldauError
from moldau.records.batch import HEADER_SIZE, Batch
from moldau.records.batch_builder import build_batch
from moldau.records.record import TIMESTAMP_MAX, TIMESTAMP_MIN, Record, encode_record
from moldau.records.varint import write_varint
from support.columnar import batch_around, decoded, expected_rows, records, rows

both = pytest.mark.parametrize("is_native", [True, False], ids=["native", "plain"])
NOT_HEADERS = [name for name in COLUMNS if name != "headers"]


def outcome(batches: list[Batch], columns: list[str] | tuple[str, ...], is_native: bool) -> Any:
    """Returns the rows, or the type of the error."""
    try:
        return rows(decoded(batches, start=-(2**62), columns=columns, is_native=is_native))
    except MoldauError as error:
        return type(error)


def assert_alike(batches: list[Batch]) -> Any:
    for columns in (NOT_HEADERS, ["headers"], ["offset"]):
        assert outcome(batches, columns, True) == outcome(batches, columns, False), columns
    whole = outcome(batches, COLUMNS, True)
    assert whole == outcome(batches, COLUMNS, False)
    return whole


def record(offset_delta: int = 0, **fields: Any) -> bytes:
    given_fields = {"timestamp_delta": 0, "key": b"k", "value": b"v"} | fields
    return encode_record(offset_delta=offset_delta, **given_fields)


def framed(body: bytes) -> bytes:
    return write_varint(len(body)) + body


@both
@pytest.mark.parametrize(
    ("section", "count", "complaint"),
    [
        (record(0), 2, " 2 records"),
        (record(0) + record(1), 1, "left after"),
        (record(0) + record(0), 2, "offset delta 0 after 0"),
        (record(1) + record(0), 2, "offset delta 0 after 1"),
        (record(10), 1, "offset delta 10"),
        (record(-1), 1, "offset delta -1"),
        (record(0), -1, " -1 records"),
        (record(0), 2**31 - 1, "records"),
        (record(0)[:-1], 1, "has a"),
        (b"\x7f" + record(0)[1:], 1, " -64 bytes"),
        (record(0)[:4] + write_varint(60) + record(0)[5:], 1, "longer than the record|inside a record"),
        (record(0) + b"\x80" * 11, 2, "more than 10 bytes"),
        (record(0, timestamp_delta=2**63 - 1), 1, "timestamp"),
        (b"", 1, " 1 records"),
    ],
)
def test_an_inconsistent_batch_is_named(section: bytes, count: int, complaint: str, is_native: bool) -> None:
    broken = batch_around(section, count=count, base_offset=500, last_offset_delta=9)
    whole = batch_around(record(0), count=1)
    with pytest.raises(CorruptRecordError, match=complaint) as raised:
        decoded([whole, broken, whole], is_native=is_native)
    assert "Batch(500..509" in str(raised.value)
    assert "orders-3" in str(raised.value)


@both
@pytest.mark.parametrize(
    "headers",
    [
        write_varint(3),
        write_varint(-2),
        write_varint(2**62),
        write_varint(1) + write_varint(-1) + write_varint(0),
        write_varint(1) + write_varint(100) + b"n",
        write_varint(1) + write_varint(1) + b"n" + write_varint(90),
        write_varint(1) + write_varint(1) + b"n" + write_varint(2**62),
        write_varint(1) + write_varint(1) + b"n" + write_varint(1) + b"vv",
        write_varint(1) + write_varint(0) + b"\x80",
    ],
)
def test_malformed_headers_are_reported_with_their_batch(headers: bytes, is_native: bool) -> None:
    batch = batch_around(framed(b"\x00\x00\x00" + b"\x01\x01" + headers), count=1, base_offset=500)
    with pytest.raises(CorruptRecordError, match=r"Batch\(500\.\."):
        decoded([batch], is_native=is_native)


@both
def test_offsets_beyond_64_bits_are_corrupt(is_native: bool) -> None:
    batch = batch_around(record(5), count=1, base_offset=2**63 - 3, last_offset_delta=9)
    with pytest.raises(CorruptRecordError, match=r"orders-3: .*64 bits"):
        decoded([batch], end=2**64, is_native=is_native)


@pytest.mark.parametrize("base_timestamp", [TIMESTAMP_MAX, TIMESTAMP_MIN, TIMESTAMP_MAX + 1, -100, 0])
@pytest.mark.parametrize(
    "delta",
    [
        write_varint(63),
        write_varint(-64),
        b"\x82\x00",
        write_varint(2**63 - 1),
        write_varint(-(2**63)),
        write_varint(2**63 - 2),
        b"\xff" * 9 + b"\x02",
        b"\xfe" * 9 + b"\x7f",
        b"\xff" * 9 + b"\x7f",
    ],
)
def test_both_decoders_agree_on_timestamps_at_the_edge_of_64_bits(base_timestamp: int, delta: bytes) -> None:
    section = framed(b"\x00" + delta + b"\x00\x01\x01\x00")
    assert_alike([batch_around(section, count=1, base_timestamp=base_timestamp)])


@pytest.mark.parametrize(
    "number", [b"\xff" * 9 + b"\x7f", b"\xfe" * 9 + b"\x7f", b"\xff" * 9 + b"\x01", b"\xfe" * 9 + b"\x01", b"\x81\x00"]
)
@pytest.mark.parametrize("place", range(6))
def test_both_decoders_agree_on_varints_of_up_to_70_bits(number: bytes, place: int) -> None:
    numbers = [b"\x00", b"\x00", b"\x01", b"\x01", b"\x02", b"\x00", b"\x01"]
    numbers[place] = number
    assert_alike([batch_around(framed(b"\x00" + b"".join(numbers)), count=1)])


@settings(max_examples=300)
@given(st.binary(max_size=200), st.integers(-1, 30))
@example(b"\x0c\x00\x00\x00\x01\x01\x00", 1)
def test_both_decoders_agree_on_garbage(section: bytes, count: int) -> None:
    assert_alike([batch_around(section, count=count)])


@settings(max_examples=300)
@given(st.lists(st.binary(min_size=6, max_size=40), min_size=1, max_size=5))
def test_both_decoders_agree_on_garbage_with_valid_lengths(bodies: list[bytes]) -> None:
    assert_alike([batch_around(b"".join(map(framed, bodies)), count=len(bodies))])


@settings(max_examples=300)
@given(st.lists(records, min_size=1, max_size=6), st.data())
def test_both_decoders_agree_on_records_with_changed_bytes(given_records: list[Record], data: st.DataObject) -> None:
    section = bytearray(build_batch(given_records)[HEADER_SIZE:])
    for _ in range(data.draw(st.integers(1, 3))):
        position = data.draw(st.integers(0, len(section) - 1))
        section[position] = data.draw(st.integers(0, 255))
    broken = batch_around(bytes(section), count=len(given_records))
    whole = batch_around(record(0), count=1, base_offset=-10)
    found = assert_alike([whole, broken, whole])
    if found is not CorruptRecordError:
        assert found == expected_rows([whole, broken, whole], start=-(2**62))


@settings(max_examples=200)
@given(st.lists(records, min_size=1, max_size=6), st.data())
def test_truncated_records_and_trailing_bytes_are_corrupt(given_records: list[Record], data: st.DataObject) -> None:
    section = build_batch(given_records)[HEADER_SIZE:]
    if data.draw(st.booleans()):
        section = section[: data.draw(st.integers(0, len(section) - 1))]
    else:
        section += data.draw(st.binary(min_size=1, max_size=5))
    assert assert_alike([batch_around(section, count=len(given_records))]) is CorruptRecordError


@settings(max_examples=200)
@given(st.lists(records, min_size=1, max_size=6), st.integers(1, 4), st.data())
def test_both_decoders_agree_on_changed_compressed_sections(
    given_records: list[Record], codec_number: int, data: st.DataObject
) -> None:
    section = bytearray(build_batch(given_records, compression=codec_number)[HEADER_SIZE:])
    section[data.draw(st.integers(0, len(section) - 1))] ^= data.draw(st.integers(1, 255))
    assert_alike([batch_around(bytes(section), count=len(given_records), attributes=codec_number)])
