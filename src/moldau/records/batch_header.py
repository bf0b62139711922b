"""The header of a batch without its records, for scans that read only headers."""

from moldau.errors import CorruptRecordError
from moldau.records.batch import HEADER, HEADER_SIZE, LOG_OVERHEAD

MAGIC = 2


class BatchHeader:
    """The header of a batch, and the position of the batch in its file."""

    __slots__ = (
        "attributes",
        "base_offset",
        "base_sequence",
        "count",
        "last_offset",
        "last_offset_delta",
        "leader_epoch",
        "max_timestamp",
        "position",
        "producer_epoch",
        "producer_id",
        "size",
    )

    def __init__(self, data: bytes, start: int, position: int) -> None:
        (
            self.base_offset,
            length,
            self.leader_epoch,
            magic,
            _,
            self.attributes,
            self.last_offset_delta,
            _,
            self.max_timestamp,
            self.producer_id,
            self.producer_epoch,
            self.base_sequence,
            self.count,
        ) = HEADER.unpack_from(data, start)
        self.size = length + LOG_OVERHEAD
        self.position = position
        self.last_offset = self.base_offset + self.last_offset_delta
        if magic != MAGIC or self.size < HEADER_SIZE or self.last_offset_delta < 0 or self.base_offset < 0:
            raise CorruptRecordError(f"there is no record batch at position {position}")
