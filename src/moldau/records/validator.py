"""Validation of a producer's batches before they get their offsets, as in Kafka.

Unlike in Kafka, records are decoded only if the topic is compacted or limits the age of records, or if the header shows
that a timestamp may be invalid. Errors have a message for the producer.
"""

from moldau.errors import (
    CorruptRecordError,
    InvalidRecordError,
    InvalidTimestampError,
    RecordError,
    RecordTooLargeError,
    UnsupportedCompressionError,
)
from moldau.platform.disk import Buffer
from moldau.records.batch import (
    COMPRESSION_MASK,
    CONTROL_MASK,
    DELETE_HORIZON_MASK,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC_POSITION,
    NO_TIMESTAMP,
    TIMESTAMP_TYPE_MASK,
    Batch,
)
from moldau.records.batch_builder import recompress, replace_records
from moldau.records.compression import CODECS_BY_NAME, DECOMPRESSED_BYTES_MAX, GZIP, LZ4, NAMES, NONE, ZSTD
from moldau.records.record import RECORD_BYTES_MIN, TIMESTAMP_MAX, section, spans
from moldau.settings.registry import LONG_MAX, LONG_MIN
from moldau.settings.topic import TopicSettings

ZSTD_PRODUCE_VERSION = 7
"""The first version of Produce that allows zstd, because older clients cannot decompress it."""

RECORD_ERRORS_MAX = 100_000
"""The maximum number of record errors in a response. A small compressed batch can have millions of invalid records."""

_REJECTED_ATTRIBUTES = CONTROL_MASK | DELETE_HORIZON_MASK
_KAFKA_LZ4_LEVEL_DEFAULT = 9


# The header


def parse_batch(data: Buffer) -> Batch:
    """Returns the batch of one partition in a Produce request, which must contain exactly one.

    Raises InvalidRecordError or CorruptRecordError.
    """
    if len(data) <= MAGIC_POSITION:
        raise InvalidRecordError("a partition's records must hold a record batch")
    if data[MAGIC_POSITION] > 2:
        raise CorruptRecordError(f"magic {data[MAGIC_POSITION]} of record batches is unknown")
    if data[MAGIC_POSITION] < 2:
        raise InvalidRecordError(f"record batches must be of magic 2, not {data[MAGIC_POSITION]}")
    size = int.from_bytes(data[8:12], "big", signed=True) + LOG_OVERHEAD
    if size < HEADER_SIZE:
        raise CorruptRecordError(f"the length field of a batch says {size} bytes, fewer than its header")
    if size > len(data):
        raise InvalidRecordError(f"a batch of {size} bytes was truncated to {len(data)}")
    if size < len(data):
        _reject_trailing_bytes(data[size:])
    return Batch(data)


def _reject_trailing_bytes(rest: Buffer) -> None:
    """Raises the error for bytes after the only allowed batch, usually a second batch."""
    length = int.from_bytes(rest[8:LOG_OVERHEAD], "big", signed=True)
    if len(rest) >= LOG_OVERHEAD and length < HEADER_SIZE - LOG_OVERHEAD:
        raise CorruptRecordError("the bytes after the batch are not a batch")
    raise InvalidRecordError("a partition's records must hold exactly one record batch")


def check_header(batch: Batch, settings: TopicSettings, *, api_version: int) -> None:
    """Raises InvalidRecordError, CorruptRecordError, RecordTooLargeError or UnsupportedCompressionError."""
    if batch.base_offset != 0:
        raise InvalidRecordError(f"the base offset of a producer's batch must be 0, not {batch.base_offset}")
    _check_size(batch, settings)
    if not batch.has_valid_checksum():
        raise CorruptRecordError("the checksum of the batch is wrong: it was damaged in transit")

    count = batch.count
    if count <= 0:
        raise InvalidRecordError(f"the batch has a count of {count} records")
    if batch.last_offset_delta != count - 1:
        raise InvalidRecordError(
            f"the batch has a count of {count} records and a last offset delta of {batch.last_offset_delta}"
        )
    attributes = batch.attributes
    if attributes & _REJECTED_ATTRIBUTES:
        if attributes & CONTROL_MASK:
            raise InvalidRecordError("clients may not write control records")
        raise InvalidRecordError("producers may not set a delete horizon")
    if batch.producer_id >= 0:
        if batch.base_sequence < 0:
            raise InvalidRecordError(
                f"the batch of producer id {batch.producer_id} has the sequence {batch.base_sequence}"
            )
    elif batch.is_transactional:
        raise InvalidRecordError("a transactional batch needs a producer id")

    codec = attributes & COMPRESSION_MASK
    if codec == NONE:
        if count * RECORD_BYTES_MIN > batch.size - HEADER_SIZE:
            raise InvalidRecordError(f"the batch has a count of {count} records in {batch.size} bytes")
    elif codec >= len(NAMES):
        raise UnsupportedCompressionError(f"unknown compression codec {codec}")
    elif codec == ZSTD and api_version < ZSTD_PRODUCE_VERSION:
        raise UnsupportedCompressionError(
            f"zstd needs version {ZSTD_PRODUCE_VERSION} of Produce, and this is version {api_version}"
        )


def _check_size(batch: Batch, settings: TopicSettings) -> None:
    if batch.size > settings.max_message_bytes:
        raise RecordTooLargeError(
            f"the batch has {batch.size} bytes, and max.message.bytes is {settings.max_message_bytes}"
        )


# The records


def must_decode(batch: Batch, settings: TopicSettings, now_ms: int) -> bool:
    """Returns whether the records of a batch have to be decompressed, and perhaps decoded, by `validate_records`."""
    return settings.compression_type != "producer" or _must_check_records(batch, settings, now_ms)


def _must_check_records(batch: Batch, settings: TopicSettings, now_ms: int) -> bool:
    if "compact" in settings.cleanup_policy or batch.attributes & TIMESTAMP_TYPE_MASK:
        return True
    if settings.message_timestamp_type == "LogAppendTime":
        return False
    if settings.message_timestamp_before_max_ms < LONG_MAX:
        return True
    newest_ms = now_ms + settings.message_timestamp_after_max_ms
    return batch.max_timestamp > newest_ms or batch.base_timestamp > newest_ms


def validate_records(
    batch: Batch,
    settings: TopicSettings,
    partition: object,
    *,
    now_ms: int,
    record_errors_max: int = RECORD_ERRORS_MAX,
    decompressed_bytes_max: int = DECOMPRESSED_BYTES_MAX,
) -> Batch:
    """Returns the batch in the codec of the topic, with the timestamp type and maximum timestamp of its records.

    Raises InvalidRecordError, InvalidTimestampError or RecordTooLargeError. The error lists the invalid records, at
    most `record_errors_max` of them, and names the `partition`.
    """
    try:
        if _must_check_records(batch, settings, now_ms):
            if batch.base_timestamp > TIMESTAMP_MAX:
                raise InvalidTimestampError(f"the batch has the base timestamp {batch.base_timestamp}")
            data = section(batch, decompressed_bytes_max)
            if not _are_valid(batch, data, settings, now_ms):
                _reject_invalid_records(batch, data, settings, partition, now_ms, record_errors_max)
                batch = _with_record_timestamps(batch, data)
        if settings.compression_type != "producer":
            batch = _convert_codec(batch, settings, decompressed_bytes_max)
    except CorruptRecordError as error:
        # Raise an error that is not retriable, because the checksum is correct: the producer built a wrong batch.
        raise InvalidRecordError(str(error)) from None
    return batch


def _are_valid(batch: Batch, data: bytes, settings: TopicSettings, now_ms: int) -> bool:
    """Returns False if a record or a timestamp in the header may be invalid. This is the fast check of most batches."""
    if batch.is_log_append_time:
        return False
    compacted = "compact" in settings.cleanup_policy
    oldest_ms, newest_ms = _timestamp_limits(settings, now_ms)
    if batch.max_timestamp > newest_ms:
        return False
    base_timestamp = batch.base_timestamp
    oldest_delta, newest_delta = oldest_ms - base_timestamp, newest_ms - base_timestamp
    for _, _, timestamp_delta, _, key, _, _ in spans(batch, data):
        if key is None and compacted:
            return False
        if not oldest_delta <= timestamp_delta <= newest_delta and base_timestamp + timestamp_delta != NO_TIMESTAMP:
            return False
    return True


def _timestamp_limits(settings: TopicSettings, now_ms: int) -> tuple[int, int]:
    """Returns the oldest and the newest timestamp that producers may set. LogAppendTime topics ignore timestamps."""
    if settings.message_timestamp_type == "LogAppendTime":
        return LONG_MIN, LONG_MAX
    return now_ms - settings.message_timestamp_before_max_ms, now_ms + settings.message_timestamp_after_max_ms


def _reject_invalid_records(
    batch: Batch, data: bytes, settings: TopicSettings, partition: object, now_ms: int, record_errors_max: int
) -> None:
    """Raises an error with Kafka's message for each invalid record, if there is one."""
    compacted, is_append_time = "compact" in settings.cleanup_policy, settings.message_timestamp_type == "LogAppendTime"
    oldest_ms, newest_ms = _timestamp_limits(settings, now_ms)
    no_key = f"Compacted topic cannot accept message without key in topic partition {partition}"
    errors: list[RecordError] = []
    count = 0
    has_invalid_timestamp = False
    for index, (_, _, timestamp_delta, offset, key, _, value_size) in enumerate(spans(batch, data)):
        timestamp = batch.max_timestamp if batch.is_log_append_time else batch.base_timestamp + timestamp_delta
        if compacted and key is None:
            message = no_key
        elif not is_append_time and timestamp != NO_TIMESTAMP:
            if oldest_ms <= timestamp <= newest_ms:
                continue
            has_invalid_timestamp = True
            message = (
                f"Timestamp {timestamp} of message with offset {offset} is out of range. "
                f"The timestamp should be within [{oldest_ms}, {newest_ms}]"
            )
        elif batch.is_log_append_time:
            has_invalid_timestamp = True
            message = (
                f"Invalid timestamp type in message DefaultRecord(offset={offset}, timestamp={timestamp}, "
                f"key={len(key or b'')} bytes, value={max(value_size, 0)} bytes). "
                "Producer should not set timestamp type to LogAppendTime."
            )
        else:
            continue
        count += 1
        if len(errors) < record_errors_max:
            errors.append(RecordError(index, message))
    if has_invalid_timestamp:
        raise InvalidTimestampError("One or more records have been rejected due to invalid timestamp", errors)
    if count:
        first = ", ".join(f"RecordError(batchIndex={index}, message='{message}')" for index, message in errors[:3])
        raise InvalidRecordError(
            f"One or more records have been rejected due to {count} record errors in total, "
            f"and only showing the first three errors at most: [{first}]",
            errors,
        )


def _with_record_timestamps(batch: Batch, data: bytes) -> Batch:
    """Returns a batch with CreateTime whose maximum timestamp is correct."""
    if batch.is_log_append_time:
        return replace_records(batch, batch.section, attributes=batch.attributes & ~TIMESTAMP_TYPE_MASK)
    max_timestamp = batch.base_timestamp + max(timestamp_delta for _, _, timestamp_delta, *_ in spans(batch, data))
    if max_timestamp == batch.max_timestamp:
        return batch
    return replace_records(batch, batch.section, max_timestamp=max_timestamp)


def _convert_codec(batch: Batch, settings: TopicSettings, limit: int) -> Batch:
    codec = CODECS_BY_NAME[settings.compression_type]
    if codec == batch.compression:
        return batch
    batch = recompress(batch, codec, level=_level(codec, settings), limit=limit)
    _check_size(batch, settings)
    return batch


def _level(codec: int, settings: TopicSettings) -> int | None:
    if codec == GZIP:
        return settings.compression_gzip_level
    if codec == ZSTD:
        return settings.compression_zstd_level
    if codec == LZ4 and settings.compression_lz4_level != _KAFKA_LZ4_LEVEL_DEFAULT:
        # Kafka's default level selects the fast algorithm. Every other level selects the high-compression algorithm.
        return settings.compression_lz4_level
    return None
