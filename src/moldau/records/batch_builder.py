"""Builds batches from records, or from another batch with changed fields or another codec."""

from collections.abc import Iterable
from dataclasses import dataclass

import crc32c

from moldau.platform.disk import Buffer
from moldau.records.batch import (
    COMPRESSION_MASK,
    CONTROL_MASK,
    CRC_START,
    HEADER,
    HEADER_SIZE,
    LOG_OVERHEAD,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    TIMESTAMP_TYPE_MASK,
    TRANSACTIONAL_MASK,
    Batch,
)
from moldau.records.compression import DECOMPRESSED_BYTES_MAX, NONE, compress
from moldau.records.record import Record, encode_record
from moldau.records.record import section as records_section

NO_LEADER_EPOCH = -1
NO_PRODUCER_EPOCH = -1
_MAGIC = 2
_HEADER_FIELDS = (
    "base_offset",
    "leader_epoch",
    "attributes",
    "last_offset_delta",
    "base_timestamp",
    "max_timestamp",
    "producer_id",
    "producer_epoch",
    "base_sequence",
    "count",
)
"""The header fields that `encode_batch` does not compute."""


@dataclass(frozen=True, slots=True)
class Section:
    """The records of a batch, encoded and compressed, without producer id and sequence."""

    data: Buffer
    count: int
    """The relative offsets of the records are 0 to count - 1."""
    base_timestamp: int
    max_timestamp: int
    compression: int = NONE


def build_batch(
    records: Iterable[Record],
    *,
    base_offset: int = 0,
    leader_epoch: int = NO_LEADER_EPOCH,
    compression: int = NONE,
    level: int | None = None,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    transactional: bool = False,
    control: bool = False,
    append_time_ms: int | None = None,
    keep_offsets: bool = False,
) -> bytes:
    """Returns a batch of these records with consecutive offsets from `base_offset` on.

    With keep_offsets the records keep their own offsets, which must be ascending. With append_time_ms the batch has
    LogAppendTime.
    """
    encoded: list[bytes] = []
    base_timestamp = max_timestamp = NO_TIMESTAMP
    offset_delta = -1
    for record in records:
        delta = record.offset - base_offset if keep_offsets else offset_delta + 1
        if delta <= offset_delta:
            raise ValueError(f"the offset {record.offset} does not come after {base_offset + offset_delta}")
        offset_delta = delta
        if not encoded:
            base_timestamp = record.timestamp
        max_timestamp = max(max_timestamp, record.timestamp)
        encoded.append(
            encode_record(
                timestamp_delta=record.timestamp - base_timestamp,
                offset_delta=offset_delta,
                key=record.key,
                value=record.value,
                headers=record.headers,
            )
        )
    if not encoded:
        raise ValueError("a batch needs at least one record")
    attributes = compression | transactional * TRANSACTIONAL_MASK | control * CONTROL_MASK
    if append_time_ms is not None:
        attributes |= TIMESTAMP_TYPE_MASK
        max_timestamp = append_time_ms
    return encode_batch(
        compress(compression, b"".join(encoded), level),
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        attributes=attributes,
        last_offset_delta=offset_delta,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        count=len(encoded),
    )


def encode_batch(
    section: Buffer,
    *,
    base_offset: int,
    leader_epoch: int,
    attributes: int,
    last_offset_delta: int,
    base_timestamp: int,
    max_timestamp: int,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    count: int,
) -> bytes:
    """Returns a batch with the compressed records `section`. Computes the length and the checksum."""
    data = bytearray(HEADER_SIZE + len(section))
    HEADER.pack_into(
        data,
        0,
        base_offset,
        len(data) - LOG_OVERHEAD,
        leader_epoch,
        _MAGIC,
        0,
        attributes,
        last_offset_delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        count,
    )
    data[HEADER_SIZE:] = section
    view = memoryview(data)
    view[CRC_START - 4 : CRC_START] = crc32c.crc32c(view[CRC_START:]).to_bytes(4, "big")
    return bytes(data)


def replace_records(batch: Batch, section: Buffer, **changes: int) -> Batch:
    """Returns a copy with another section and changed header fields."""
    header: dict[str, int] = {name: getattr(batch, name) for name in _HEADER_FIELDS}
    return Batch(encode_batch(section, **(header | changes)))


def recompress(
    batch: Batch, compression: int, *, level: int | None = None, limit: int = DECOMPRESSED_BYTES_MAX
) -> Batch:
    """Returns the batch compressed with another codec, without decoding its records."""
    return replace_records(
        batch,
        compress(compression, records_section(batch, limit), level),
        attributes=batch.attributes & ~COMPRESSION_MASK | compression,
    )


def with_append_time(batch: Batch, now_ms: int) -> Batch:
    """Returns the batch with LogAppendTime: all its records then have the timestamp `now_ms`."""
    return replace_records(
        batch, batch.section, attributes=batch.attributes | TIMESTAMP_TYPE_MASK, max_timestamp=now_ms
    )
