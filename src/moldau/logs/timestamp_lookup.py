"""Lookup of records by timestamp in one batch, for ListOffsets."""

from collections.abc import Iterator

from moldau.logs.store import TimestampAndOffset
from moldau.records.batch import Batch
from moldau.records.record import UNDECODABLE_ERRORS, section, spans


def first_record_at_or_after(batch: Batch, timestamp_ms: int, start_offset: int) -> TimestampAndOffset | None:
    """Returns the first record from start_offset on with a timestamp of at least timestamp_ms."""
    try:
        for timestamp, offset in _timestamps(batch):
            if timestamp >= timestamp_ms and offset >= start_offset:
                return TimestampAndOffset(timestamp, offset, batch.leader_epoch)
    except UNDECODABLE_ERRORS:
        return _batch_position(batch, start_offset) if batch.max_timestamp >= timestamp_ms else None
    return None


def max_timestamp_record(batch: Batch, start_offset: int) -> TimestampAndOffset | None:
    """Returns the first record from start_offset on with the largest timestamp."""
    latest: TimestampAndOffset | None = None
    try:
        for timestamp, offset in _timestamps(batch):
            if offset >= start_offset and (latest is None or timestamp > latest.timestamp_ms):
                latest = TimestampAndOffset(timestamp, offset, batch.leader_epoch)
    except UNDECODABLE_ERRORS:
        return _batch_position(batch, start_offset)
    return latest


def _timestamps(batch: Batch) -> Iterator[tuple[int, int]]:
    """Yields the timestamp and the offset of each record."""
    append_time = batch.max_timestamp if batch.is_log_append_time else None
    for _, _, timestamp_delta, offset_delta, *_ in spans(batch, section(batch)):
        timestamp = batch.base_timestamp + timestamp_delta if append_time is None else append_time
        yield timestamp, batch.base_offset + offset_delta


def _batch_position(batch: Batch, start_offset: int) -> TimestampAndOffset:
    """Returns the largest timestamp and the first readable offset of a batch whose records cannot be decoded."""
    return TimestampAndOffset(batch.max_timestamp, max(batch.base_offset, start_offset), batch.leader_epoch)
