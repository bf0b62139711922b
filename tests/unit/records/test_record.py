"""Records in batches: round trips and inconsistent batches."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.errors import CorruptRecordError, MoldauError, RecordTooLargeError
from moldau.records.batch import HEADER_SIZE, Batch
from moldau.records.batch_builder import build_batch, encode_batch
from moldau.records.record import Record, encode_record, iterate_records
from moldau.records.varint import read_varint, write_varint

optional_bytes = st.none() | st.binary(max_size=300)
records = st.builds(
    Record,
    timestamp=st.integers(-1, 2**50),
    key=optional_bytes,
    value=optional_bytes,
    headers=st.lists(st.tuples(st.text(max_size=20), optional_bytes), max_size=4).map(tuple),
)


def batch_around(section: bytes, *, count: int, last_offset_delta: int = 9, base_timestamp: int = 0) -> Batch:
    return Batch(
        encode_batch(
            section,
            base_offset=0,
            leader_epoch=0,
            attributes=0,
            last_offset_delta=last_offset_delta,
            base_timestamp=base_timestamp,
            max_timestamp=0,
            producer_id=-1,
            producer_epoch=-1,
            base_sequence=-1,
            count=count,
        )
    )


def record(offset_delta: int = 0, **fields: object) -> bytes:
    given_fields: dict[str, object] = {"timestamp_delta": 0, "key": b"k", "value": b"v"} | fields
    return encode_record(offset_delta=offset_delta, **given_fields)  # type: ignore[arg-type]


@given(st.integers(-(2**63), 2**63 - 1))
def test_varints_round_trip(number: int) -> None:
    encoded = write_varint(number)
    assert read_varint(encoded, 0) == (number, len(encoded))
    assert len(encoded) <= 10


@pytest.mark.parametrize(
    ("number", "encoded"), [(0, "00"), (-1, "01"), (1, "02"), (63, "7e"), (-64, "7f"), (64, "8001")]
)
def test_varints_are_zigzag(number: int, encoded: str) -> None:
    assert write_varint(number).hex() == encoded


@given(given_records=st.lists(records, min_size=1, max_size=20), codec=st.integers(0, 4))
def test_records_round_trip_through_a_batch(given_records: list[Record], codec: int) -> None:
    batch = Batch(build_batch(given_records, base_offset=100, compression=codec))
    assert batch.has_valid_checksum()
    assert list(iterate_records(batch)) == [one._replace(offset=100 + delta) for delta, one in enumerate(given_records)]


def test_header_names_that_are_not_utf8_keep_their_bytes() -> None:
    name = b"\xff\xfe".decode("utf-8", "surrogateescape")
    batch = Batch(build_batch([Record(timestamp=0, headers=((name, b"x"),))]))
    (read,) = iterate_records(batch)
    assert read.headers[0][0].encode("utf-8", "surrogateescape") == b"\xff\xfe"
    assert b"\xff\xfe" in batch.data


def test_records_of_a_log_append_time_batch_have_the_append_time() -> None:
    batch = Batch(build_batch([Record(timestamp=5), Record(timestamp=7)], append_time_ms=1000))
    assert [one.timestamp for one in iterate_records(batch)] == [1000, 1000]


def test_offsets_may_have_gaps() -> None:
    batch = batch_around(record(2) + record(7), count=2)
    assert [one.offset for one in iterate_records(batch)] == [2, 7]


@pytest.mark.parametrize(
    ("section", "count", "message"),
    [
        (record(0), 2, "claims 2 records"),
        (record(0) + record(1), 1, "left after"),
        (record(0) + record(0), 2, "offset delta 0 after 0"),
        (record(1) + record(0), 2, "offset delta 0 after 1"),
        (record(10), 1, "offset delta 10"),
        (record(-1), 1, "offset delta -1"),
        (record(0), -1, "claims -1 records"),
        (record(0), 2**31 - 1, "records"),
        (record(0)[:-1] + b"", 1, "has a"),
        (b"\x7f" + record(0)[1:], 1, "has a length of -64 bytes"),
        (record(0)[:4] + write_varint(60) + record(0)[5:], 1, "longer than the record|inside a record"),
        (record(0) + b"\x80" * 11, 2, "more than 10 bytes"),
        (record(0, timestamp_delta=2**63 - 1) + b"", 1, "timestamp"),
    ],
)
def test_an_inconsistent_batch_is_corrupt(section: bytes, count: int, message: str) -> None:
    with pytest.raises(CorruptRecordError, match=message):
        list(iterate_records(batch_around(section, count=count)))


@pytest.mark.parametrize(
    "headers",
    [
        write_varint(3),
        write_varint(-2),
        write_varint(1) + write_varint(-1) + write_varint(0),
        write_varint(1) + write_varint(100) + b"n",
        write_varint(1) + write_varint(1) + b"n" + write_varint(90),
        write_varint(1) + write_varint(1) + b"n" + write_varint(1) + b"vv",
        write_varint(1) + write_varint(0) + b"\x80",
    ],
)
def test_headers_that_do_not_fit_their_record_are_corrupt(headers: bytes) -> None:
    body = b"\x00\x00\x00" + b"\x01\x01" + headers
    with pytest.raises(CorruptRecordError):
        list(iterate_records(batch_around(write_varint(len(body)) + body, count=1)))


@given(st.binary(max_size=200), st.integers(0, 30))
def test_garbage_raises_only_corrupt_record_errors(section: bytes, count: int) -> None:
    try:
        for one in iterate_records(batch_around(section, count=count, last_offset_delta=2**31 - 1)):
            assert isinstance(one, Record)
    except CorruptRecordError:
        pass


@given(st.data())
def test_a_damaged_batch_raises_only_known_errors(data: st.DataObject) -> None:
    batch = bytearray(build_batch([Record(timestamp=1, key=b"k", value=b"v" * 50, headers=(("h", b"x"),))] * 3))
    position = data.draw(st.integers(HEADER_SIZE, len(batch) - 1))
    batch[position] = data.draw(st.integers(0, 255))
    try:
        list(iterate_records(Batch(batch)))
    except MoldauError:
        pass


def test_a_batch_that_decompresses_too_large_is_rejected() -> None:
    batch = Batch(build_batch([Record(timestamp=0, value=bytes(100_000))], compression=4))
    with pytest.raises(RecordTooLargeError):
        list(iterate_records(batch, limit=1000))


def test_an_empty_batch_has_no_records() -> None:
    assert list(iterate_records(batch_around(b"", count=0))) == []


def test_a_timestamp_outside_64_bits_is_corrupt() -> None:
    batch = batch_around(
        record(0, timestamp_delta=63), count=1, base_timestamp=struct.unpack(">q", b"\x7f" + b"\xff" * 7)[0]
    )
    with pytest.raises(CorruptRecordError):
        list(iterate_records(batch))
