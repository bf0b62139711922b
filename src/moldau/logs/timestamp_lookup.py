"""Finding records by time inside one batch, for ListOffsets."""

from collections.abc import Iterator

from moldau.errors import CorruptRecordError, RecordTooLargeError, UnsupportedCompressionError
from moldau.logs.store import TimestampAndOffset
from moldau.records.batch import Batch
from moldau.records.record import section, spans

_UNDECODABLE = (CorruptRecordError, RecordTooLargeError, UnsupportedCompressionError)


def _timestamps(batch: Batch) -> Iterator[tuple[int, int]]:
    """(timestamp, offset) of each record."""
    base_offset, base_timestamp = batch.base_offset, batch.base_timestamp
    if batch.is_log_append_time:
        for _, _, _, offset_delta, *_ in spans(batch, section(batch)):
            yield batch.max_timestamp, base_offset + offset_delta
    else:
        for _, _, timestamp_delta, offset_delta, *_ in spans(batch, section(batch)):
            yield base_timestamp + timestamp_delta, base_offset + offset_delta


def first_record_at_or_after(batch: Batch, timestamp_ms: int, start_offset: int) -> TimestampAndOffset | None:
    """The first record at or after start_offset whose timestamp is at least timestamp_ms."""
    try:
        for timestamp, offset in _timestamps(batch):
            if timestamp >= timestamp_ms and offset >= start_offset:
                return TimestampAndOffset(timestamp, offset, batch.leader_epoch)
    except _UNDECODABLE:
        return _batch_position(batch, start_offset) if batch.max_timestamp >= timestamp_ms else None
    return None


def max_timestamp_record(batch: Batch, start_offset: int) -> TimestampAndOffset | None:
    """The first of the records with the largest timestamp, at or after start_offset."""
    newest: TimestampAndOffset | None = None
    try:
        for timestamp, offset in _timestamps(batch):
            if offset >= start_offset and (newest is None or timestamp > newest.timestamp_ms):
                newest = TimestampAndOffset(timestamp, offset, batch.leader_epoch)
    except _UNDECODABLE:
        return _batch_position(batch, start_offset)
    return newest


def _batch_position(batch: Batch, start_offset: int) -> TimestampAndOffset:
    """Where the records cannot be decoded, the batch's own offset and time have to do."""
    return TimestampAndOffset(batch.max_timestamp, max(batch.base_offset, start_offset), batch.leader_epoch)
