"""Record batches in Kafka's format v2: the header, which is all that a broker needs of most batches.

offset  size  field
     0     8  base offset             stamped by the leader, outside the checksum
     8     4  batch length            bytes after this field
    12     4  partition leader epoch  stamped by the leader, outside the checksum
    16     1  magic                   2
    17     4  crc                     CRC-32C of everything from `attributes` to the end
    21     2  attributes              bits 0-2 compression, 3 timestamp type, 4 transactional, 5 control,
                                      6 base timestamp is a delete horizon
    23     4  last offset delta
    27     8  base timestamp
    35     8  max timestamp
    43     8  producer id
    51     2  producer epoch
    53     4  base sequence
    57     4  records count
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass

import crc32c

from moldau.errors import CorruptRecordError, InvalidRecordError
from moldau.platform.disk import Buffer

HEADER = struct.Struct(">qiibIhiqqqhii")
HEADER_SIZE = HEADER.size
LOG_OVERHEAD = 12
"""The size of the first two fields, which `batch length` does not include."""

_STAMP = struct.Struct(">qii")
_STAMP_SIZE = _STAMP.size
CRC_START = 21
MAGIC_POSITION = 16
ATTRIBUTES_LOW_POSITION = 22

COMPRESSION_MASK = 0x07
TIMESTAMP_TYPE_MASK = 0x08
TRANSACTIONAL_MASK = 0x10
CONTROL_MASK = 0x20
DELETE_HORIZON_MASK = 0x40
"""Set by compaction only. The base timestamp is then the time from which tombstones may be removed."""

NO_PRODUCER_ID = -1
NO_SEQUENCE = -1
NO_TIMESTAMP = -1
SEQUENCE_LIMIT = 2**31
"""Sequences wrap to 0 at this value."""


def is_transactional(data: Buffer) -> bool:
    """Returns whether a batch is transactional, without parsing it. The data may be damaged or of an older format."""
    return len(data) > ATTRIBUTES_LOW_POSITION and bool(
        data[ATTRIBUTES_LOW_POSITION] & TRANSACTIONAL_MASK and data[MAGIC_POSITION] == 2
    )


def is_data(attributes: int, count: int) -> bool:
    """Returns whether a batch with these header fields has records of clients."""
    return count > 0 and not attributes & CONTROL_MASK


@dataclass(slots=True, init=False, eq=False, repr=False)
class Batch:
    """The bytes of a batch and the fields of its header. `base_offset` and `leader_epoch` may be assigned."""

    base_offset: int
    leader_epoch: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    count: int
    data: Buffer
    size: int

    def __init__(self, data: Buffer) -> None:
        """Parses the header of exactly one batch. Raises CorruptRecordError or InvalidRecordError."""
        if len(data) < HEADER_SIZE:
            raise CorruptRecordError(f"a batch of {len(data)} bytes is shorter than its header")
        if data[MAGIC_POSITION] != 2:
            raise InvalidRecordError(f"record batches of magic {data[MAGIC_POSITION]} are not supported")
        (
            self.base_offset,
            length,
            self.leader_epoch,
            _,
            self.crc,
            self.attributes,
            self.last_offset_delta,
            self.base_timestamp,
            self.max_timestamp,
            self.producer_id,
            self.producer_epoch,
            self.base_sequence,
            self.count,
        ) = HEADER.unpack_from(data)
        self.data = data
        self.size = length + LOG_OVERHEAD
        if self.size != len(data):
            raise CorruptRecordError(f"the length field of a batch says {self.size} bytes, and it has {len(data)}")

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def compression(self) -> int:
        return self.attributes & COMPRESSION_MASK

    @property
    def is_log_append_time(self) -> bool:
        return bool(self.attributes & TIMESTAMP_TYPE_MASK)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL_MASK)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL_MASK)

    @property
    def delete_horizon_ms(self) -> int | None:
        return self.base_timestamp if self.attributes & DELETE_HORIZON_MASK else None

    @property
    def last_sequence(self) -> int:
        if self.base_sequence < 0:
            return NO_SEQUENCE
        return (self.base_sequence + self.last_offset_delta) % SEQUENCE_LIMIT

    def parts(self) -> tuple[Buffer, Buffer]:
        """Returns the bytes to write: new base offset, length and leader epoch, then the other bytes unchanged."""
        stamp = _STAMP.pack(self.base_offset, self.size - LOG_OVERHEAD, self.leader_epoch)
        return stamp, memoryview(self.data)[_STAMP_SIZE:]

    def to_bytes(self) -> bytes:
        return b"".join(self.parts())

    @property
    def section(self) -> memoryview:
        """The records after the header, still compressed."""
        return memoryview(self.data)[HEADER_SIZE:]

    def has_valid_checksum(self) -> bool:
        return bool(crc32c.crc32c(memoryview(self.data)[CRC_START:]) == self.crc)

    def __repr__(self) -> str:
        return f"Batch({self.base_offset}..{self.last_offset}, {self.size} bytes)"


def split(data: Buffer, *, allow_partial: bool = False) -> Iterator[Batch]:
    """Yields the consecutive batches in `data`. Raises CorruptRecordError if the last one is not whole.

    With `allow_partial` a partial last batch is ignored, because a byte limit may have truncated it.
    """
    view = memoryview(data)
    position, end = 0, len(view)
    while position < end:
        size = int.from_bytes(view[position + 8 : position + LOG_OVERHEAD], "big", signed=True) + LOG_OVERHEAD
        if end - position < LOG_OVERHEAD or size > end - position:
            if allow_partial:
                return
            raise CorruptRecordError(f"{end - position} bytes are left after the last whole batch")
        if size < HEADER_SIZE:
            raise CorruptRecordError(f"the length field of a batch says {size} bytes")
        yield Batch(view[position : position + size])
        position += size
