"""Validation of produced batches: one test for each rule."""

import dataclasses
import struct
from typing import Any

import crc32c
import pytest

from moldau.errors import (
    CorruptRecordError,
    InvalidRecordError,
    InvalidTimestampError,
    RecordError,
    RecordTooLargeError,
    UnsupportedCompressionError,
)
from moldau.logs.store import LogName
from moldau.records.batch import Batch
from moldau.records.batch_builder import build_batch
from moldau.records.compression import CODECS_BY_NAME, GZIP, LZ4, NONE, SNAPPY, ZSTD, compress
from moldau.records.record import Record, iterate_records
from moldau.records.validator import check_header, must_decode, parse_batch, validate_records
from moldau.settings.topic import TopicSettings

NOW_MS = 1_700_000_000_000
PARTITION = LogName("orders", 3)
RECORDS = [Record(timestamp=NOW_MS, key=b"key", value=b"value" * 20) for _ in range(3)]


def check(data: bytes, *, api_version: int = 12, now_ms: int = NOW_MS, **settings: Any) -> Batch:
    topic = TopicSettings(**settings)
    batch = parse_batch(data)
    check_header(batch, topic, api_version=api_version)
    if must_decode(batch, topic, now_ms):
        batch = validate_records(batch, topic, PARTITION, now_ms=now_ms)
    return batch


def with_field(data: bytes, position: int, layout: str, value: int) -> bytes:
    """Returns the batch with one header field overwritten and a valid checksum."""
    changed = bytearray(data)
    struct.pack_into(layout, changed, position, value)
    struct.pack_into(">I", changed, 17, crc32c.crc32c(bytes(changed[21:])))
    return bytes(changed)


def test_a_plain_batch_is_unchanged() -> None:
    data = build_batch(RECORDS)
    batch = check(data)
    assert batch.data is data


def test_a_batch_of_an_idempotent_producer_passes() -> None:
    data = build_batch(RECORDS, producer_id=5, producer_epoch=0, base_sequence=0)
    assert check(data).data is data


@pytest.mark.parametrize("codec", range(5))
def test_compressed_batches_are_unchanged(codec: int) -> None:
    data = build_batch(RECORDS, compression=codec)
    assert check(data).data is data


def test_missing_batches_are_invalid() -> None:
    for data in (b"", b"\x00" * 10):
        with pytest.raises(InvalidRecordError):
            check(data)


def test_two_batches_are_invalid() -> None:
    with pytest.raises(InvalidRecordError, match="exactly one"):
        check(build_batch(RECORDS) * 2)


def test_an_unknown_magic_is_corrupt() -> None:
    data = bytearray(build_batch(RECORDS))
    data[16] = 3
    with pytest.raises(CorruptRecordError, match="magic 3"):
        check(bytes(data))


@pytest.mark.parametrize("magic", [0, 1])
def test_older_magics_are_invalid(magic: int) -> None:
    data = bytearray(build_batch(RECORDS))
    data[16] = magic
    with pytest.raises(InvalidRecordError, match=f"magic 2, not {magic}"):
        check(bytes(data))


def test_a_truncated_batch_is_rejected() -> None:
    data = build_batch(RECORDS)
    for size in range(len(data)):
        with pytest.raises((InvalidRecordError, CorruptRecordError)):
            check(data[:size])


def test_a_length_smaller_than_the_header_is_corrupt() -> None:
    for length in (-100, 0, 40):
        data = bytearray(build_batch(RECORDS))
        struct.pack_into(">i", data, 8, length)
        with pytest.raises(CorruptRecordError):
            check(bytes(data))


def test_any_flipped_bit_after_the_checksum_is_detected() -> None:
    data = build_batch(RECORDS[:1])
    for position in range(21, len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 0x10
        with pytest.raises(CorruptRecordError, match="checksum"):
            check(bytes(damaged))


def test_the_base_offset_must_be_0() -> None:
    with pytest.raises(InvalidRecordError, match="base offset"):
        check(build_batch(RECORDS, base_offset=1))


def test_max_message_bytes_is_the_size_of_the_batch() -> None:
    data = build_batch(RECORDS)
    assert check(data, max_message_bytes=len(data)).size == len(data)
    with pytest.raises(RecordTooLargeError, match=str(len(data))):
        check(data, max_message_bytes=len(data) - 1)


@pytest.mark.parametrize("count", [0, -1, 2, 4, 2**31 - 1])
def test_count_and_last_offset_must_agree(count: int) -> None:
    with pytest.raises(InvalidRecordError):
        check(with_field(build_batch(RECORDS), 57, ">i", count))


def test_more_records_than_bytes_can_hold_are_invalid() -> None:
    data = with_field(build_batch(RECORDS), 57, ">i", 1_000_000)
    with pytest.raises(InvalidRecordError, match="1000000 records"):
        check(with_field(data, 23, ">i", 999_999))


def test_clients_may_not_write_control_records() -> None:
    with pytest.raises(InvalidRecordError, match="control"):
        check(build_batch(RECORDS, control=True))


def test_producers_may_not_set_log_append_time() -> None:
    data = build_batch(RECORDS, append_time_ms=NOW_MS)
    with pytest.raises(InvalidTimestampError) as caught:
        check(data, message_timestamp_type="LogAppendTime")
    assert [each.batch_index for each in caught.value.record_errors] == [0, 1, 2]


def test_log_append_time_in_a_batch_is_ignored_if_the_topic_has_create_time() -> None:
    batch = check(build_batch(RECORDS, append_time_ms=NOW_MS, compression=GZIP))
    assert not batch.is_log_append_time
    assert batch.has_valid_checksum()
    with pytest.raises(InvalidTimestampError, match="invalid timestamp"):
        check(build_batch(RECORDS, append_time_ms=NOW_MS * 2))


def test_producers_may_not_set_a_delete_horizon() -> None:
    with pytest.raises(InvalidRecordError, match="horizon"):
        check(with_field(build_batch(RECORDS), 21, ">h", 0x40))


def test_a_producer_id_needs_a_sequence() -> None:
    with pytest.raises(InvalidRecordError, match="sequence"):
        check(build_batch(RECORDS, producer_id=5, producer_epoch=0))


def test_a_transactional_batch_needs_a_producer_id() -> None:
    with pytest.raises(InvalidRecordError, match="producer id"):
        check(build_batch(RECORDS, transactional=True))


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_unknown_codecs_are_unsupported(codec: int) -> None:
    with pytest.raises(UnsupportedCompressionError):
        check(with_field(build_batch(RECORDS), 21, ">h", codec))


def test_zstd_needs_produce_7() -> None:
    data = build_batch(RECORDS, compression=ZSTD)
    assert check(data, api_version=7).compression == ZSTD
    with pytest.raises(UnsupportedCompressionError, match="zstd"):
        check(data, api_version=6)


def test_timestamps_after_the_maximum_are_rejected() -> None:
    after_ms = 1000
    ahead = [Record(timestamp=NOW_MS), Record(timestamp=NOW_MS + after_ms)]
    assert check(build_batch(ahead), message_timestamp_after_max_ms=after_ms)
    ahead.append(Record(timestamp=NOW_MS + after_ms + 1))
    with pytest.raises(InvalidTimestampError) as caught:
        check(build_batch(ahead), message_timestamp_after_max_ms=after_ms)
    assert [each.batch_index for each in caught.value.record_errors] == [2]


def test_a_timestamp_at_the_end_of_the_64_bit_range_is_rejected() -> None:
    with pytest.raises(InvalidTimestampError):
        check(build_batch([Record(timestamp=2**63 - 1)]))


def test_a_maximum_timestamp_after_the_maximum_is_corrected_if_no_record_has_it() -> None:
    data = with_field(build_batch(RECORDS, compression=LZ4), 35, ">q", NOW_MS * 2)
    batch = check(data)
    assert batch.max_timestamp == NOW_MS
    assert batch.has_valid_checksum()
    assert list(iterate_records(batch)) == list(iterate_records(Batch(data)))


@pytest.mark.parametrize("codec", [NONE, LZ4])
def test_timestamps_before_the_minimum_are_rejected(codec: int) -> None:
    before_ms = 1000
    behind = [Record(timestamp=NOW_MS), Record(timestamp=NOW_MS - before_ms), Record(timestamp=NOW_MS)]
    data = build_batch(behind, compression=codec)
    assert check(data, message_timestamp_before_max_ms=before_ms).data is data
    behind[1] = Record(timestamp=NOW_MS - before_ms - 1)
    with pytest.raises(InvalidTimestampError) as caught:
        check(build_batch(behind, compression=codec), message_timestamp_before_max_ms=before_ms)
    assert [each.batch_index for each in caught.value.record_errors] == [1]


def test_records_without_a_timestamp_are_not_too_old() -> None:
    data = build_batch([Record(timestamp=-1, value=b"x")])
    assert check(data, message_timestamp_before_max_ms=1000).data is data


def test_a_topic_with_log_append_time_ignores_timestamps() -> None:
    far_ahead = build_batch([Record(timestamp=NOW_MS * 2, value=b"x")], compression=GZIP)
    settings = {"message_timestamp_type": "LogAppendTime", "message_timestamp_before_max_ms": 1000}
    assert check(far_ahead, **settings).data is far_ahead


@pytest.mark.parametrize("codec", [NONE, SNAPPY])
def test_a_compacted_topic_rejects_records_without_a_key(codec: int) -> None:
    keyed = build_batch(RECORDS, compression=codec)
    keyless = build_batch([*RECORDS, Record(timestamp=NOW_MS, value=b"x")], compression=codec)
    assert check(keyless, cleanup_policy=("delete",)).data is keyless
    for policy in (("compact",), ("compact", "delete")):
        assert check(keyed, cleanup_policy=policy).data is keyed
        with pytest.raises(InvalidRecordError, match="1 record errors in total") as caught:
            check(keyless, cleanup_policy=policy)
        reason = "Compacted topic cannot accept message without key in topic partition orders-3"
        assert caught.value.record_errors == [RecordError(3, reason)]


def test_the_number_of_listed_record_errors_is_limited() -> None:
    batch = parse_batch(build_batch([Record(timestamp=NOW_MS)] * 50, compression=GZIP))
    topic = TopicSettings(cleanup_policy=("compact",))
    with pytest.raises(InvalidRecordError, match="due to 50 record errors in total") as caught:
        validate_records(batch, topic, PARTITION, now_ms=NOW_MS, record_errors_max=10)
    assert [each.batch_index for each in caught.value.record_errors] == list(range(10))


def test_undecodable_records_are_invalid_if_they_have_to_be_decoded() -> None:
    data = build_batch(RECORDS, compression=GZIP)
    not_gzip = with_field(data[:61] + b"\x00" * (len(data) - 61), 21, ">h", GZIP)
    with pytest.raises(InvalidRecordError, match="gzip"):
        check(not_gzip, cleanup_policy=("compact",))
    with pytest.raises(InvalidRecordError, match="gzip"):
        check(not_gzip, compression_type="zstd")


@pytest.mark.parametrize("source", range(5))
@pytest.mark.parametrize("kind", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
def test_compression_type_determines_the_stored_codec(source: int, kind: str) -> None:
    data = build_batch(RECORDS, compression=source, producer_id=3, producer_epoch=1, base_sequence=4)
    batch = check(data, compression_type=kind)
    assert batch.compression == CODECS_BY_NAME[kind]
    assert batch.has_valid_checksum()
    assert list(iterate_records(batch)) == list(iterate_records(Batch(data)))
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (3, 1, 4)
    assert (batch.data is data) == (source == CODECS_BY_NAME[kind])


def test_the_topics_compression_level_is_used() -> None:
    text = b"".join(b"%d," % (number * number) for number in range(20_000))
    data = build_batch([Record(timestamp=NOW_MS, value=text)])
    low = check(data, compression_type="gzip", compression_gzip_level=1)
    high = check(data, compression_type="gzip", compression_gzip_level=9)
    assert high.size < low.size
    assert high.section == compress(GZIP, data[61:], 9)


def test_a_batch_too_large_in_its_new_codec_is_rejected() -> None:
    data = build_batch([Record(timestamp=NOW_MS, value=bytes(10_000))], compression=ZSTD)
    with pytest.raises(RecordTooLargeError, match=r"max\.message\.bytes"):
        check(data, compression_type="uncompressed", max_message_bytes=1000)


def test_a_decompression_bomb_is_rejected() -> None:
    data = build_batch([Record(timestamp=NOW_MS, value=bytes(1_000_000))], compression=ZSTD)
    settings = dataclasses.replace(TopicSettings(), cleanup_policy=("compact",))
    with pytest.raises(RecordTooLargeError, match="decompressed"):
        validate_records(parse_batch(data), settings, PARTITION, now_ms=NOW_MS, decompressed_bytes_max=100_000)
