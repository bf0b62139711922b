"""Validation of a producer's batches before they get their offsets, as in Kafka.

Unlike in Kafka, records are decoded only if the topic is compacted or limits the age of records.
"""

from moldau.errors import (
    CorruptRecordError,
    InvalidRecordError,
    InvalidTimestampError,
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
from moldau.records.batch_builder import recompress, with_append_time
from moldau.records.compression import CODECS_BY_NAME, DECOMPRESSED_BYTES_MAX, GZIP, LZ4, NAMES, NONE, ZSTD
from moldau.records.record import RECORD_BYTES_MIN, section, spans
from moldau.settings.registry import LONG_MAX
from moldau.settings.topic import TopicSettings

ZSTD_PRODUCE_VERSION = 7
"""The first version of Produce that allows zstd, because older clients cannot decompress it."""

_BROKER_ATTRIBUTES = CONTROL_MASK | TIMESTAMP_TYPE_MASK | DELETE_HORIZON_MASK
_KAFKA_LZ4_LEVEL_DEFAULT = 9


def validate(
    data: Buffer,
    settings: TopicSettings,
    *,
    now_ms: int,
    api_version: int,
    decompressed_bytes_max: int = DECOMPRESSED_BYTES_MAX,
) -> list[Batch]:
    """Returns the batch of one partition in a Produce request, which must contain exactly one, as a list.

    Raises InvalidRecordError, CorruptRecordError, RecordTooLargeError, InvalidTimestampError or
    UnsupportedCompressionError, with a message for the producer.
    """
    batch = _parse_single_batch(data)
    _check_header(batch, settings, api_version)
    append_time = settings.message_timestamp_type == "LogAppendTime"
    if not append_time:
        _check_header_timestamps(batch, settings, now_ms)

    compacted = "compact" in settings.cleanup_policy
    bounds_age = not append_time and settings.message_timestamp_before_max_ms < LONG_MAX
    if compacted or bounds_age:
        oldest_ms = now_ms - settings.message_timestamp_before_max_ms if bounds_age else None
        _check_records(batch, compacted, oldest_ms, decompressed_bytes_max)

    if settings.compression_type != "producer":
        batch = _convert_codec(batch, settings, decompressed_bytes_max)
    if append_time:
        batch = with_append_time(batch, now_ms)
    return [batch]


def may_recompress(settings: TopicSettings) -> bool:
    """Whether `validate` may have to decompress or compress a batch."""
    looks_inside = "compact" in settings.cleanup_policy or settings.message_timestamp_before_max_ms < LONG_MAX
    return looks_inside or settings.compression_type != "producer"


def _parse_single_batch(data: Buffer) -> Batch:
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


def _check_header(batch: Batch, settings: TopicSettings, api_version: int) -> None:
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
    if attributes & _BROKER_ATTRIBUTES:
        _reject_broker_attributes(attributes)
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


def _reject_broker_attributes(attributes: int) -> None:
    if attributes & CONTROL_MASK:
        raise InvalidRecordError("clients may not write control records")
    if attributes & TIMESTAMP_TYPE_MASK:
        raise InvalidTimestampError("producers may not set the timestamp type to LogAppendTime")
    raise InvalidRecordError("producers may not set a delete horizon")


def _check_header_timestamps(batch: Batch, settings: TopicSettings, now_ms: int) -> None:
    newest_ms = now_ms + settings.message_timestamp_after_max_ms
    if batch.max_timestamp > newest_ms or batch.base_timestamp > newest_ms:
        raise InvalidTimestampError(
            f"a timestamp of {max(batch.max_timestamp, batch.base_timestamp)} is more than "
            f"message.timestamp.after.max.ms ahead of the broker's clock, which shows {now_ms}"
        )


def _check_records(batch: Batch, compacted: bool, oldest_ms: int | None, limit: int) -> None:
    base_timestamp = batch.base_timestamp
    try:
        records = spans(batch, section(batch, limit))
        for index, (_, _, timestamp_delta, _, key, _, _) in enumerate(records):
            if compacted and key is None:
                raise InvalidRecordError("a compacted topic takes no records without a key", index)
            timestamp = base_timestamp + timestamp_delta
            if oldest_ms is not None and timestamp < oldest_ms and timestamp != NO_TIMESTAMP:
                raise InvalidTimestampError(
                    f"the timestamp {timestamp} is older than message.timestamp.before.max.ms allows: "
                    f"{oldest_ms} is the oldest now"
                )
    except CorruptRecordError as error:
        # Raise an error that is not retriable, because the checksum is correct: the producer built a wrong batch.
        raise InvalidRecordError(str(error)) from None


def _convert_codec(batch: Batch, settings: TopicSettings, limit: int) -> Batch:
    codec = CODECS_BY_NAME[settings.compression_type]
    if codec == batch.compression:
        return batch
    try:
        batch = recompress(batch, codec, level=_level(codec, settings), limit=limit)
    except CorruptRecordError as error:
        raise InvalidRecordError(str(error)) from None
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
