"""Log compaction: when a log is due, which of its records are retained, and what remains of a batch. Pure.

A cleaner works in two passes. The first pass adds the keys of the dirty batches to an `OffsetMap`, until the map is
full or all batches that may be compacted are read. The second pass calls `clean_batch` for all batches from the start
of the log up to `OffsetMap.end_offset`, and writes what remains. Afterwards the log is clean below this offset, and the
next round starts there. This offset is inside a batch if the map became full within the batch.

Records keep their offsets, and batches keep their first and last offset. A batch without records is removed, as in
Kafka, unless it is the last batch of a live producer or the last batch of the round. Control batches, batches of
transactions, batches beyond the map and batches whose records cannot be decoded are retained unchanged.
"""

from hashlib import blake2b

from moldau.logs.producer_state import ProducerStateManager
from moldau.records.batch import COMPRESSION_MASK, DELETE_HORIZON_MASK, NO_TIMESTAMP, Batch
from moldau.records.batch_builder import replace_records
from moldau.records.compression import compress
from moldau.records.record import UNDECODABLE_ERRORS, Span, section, spans
from moldau.records.varint import read_varint, write_varint
from moldau.settings.topic import TopicSettings

OFFSET_MAP_BYTES_MAX = 128 * 1024 * 1024
"""Memory for the keys of one round (Kafka's log.cleaner.dedupe.buffer.size)."""

ENTRY_BYTES = 160
"""Memory of a key and its offset in the map: the two objects and their share of the dict's table."""

HORIZON_MS_MAX = 2**62
"""The limit of delete horizons, far in the future. With a large delete.retention.ms they could exceed 64 bits."""

_DIGEST_BYTES = 16


def should_compact(
    settings: TopicSettings, total_bytes: int, dirty_bytes: int, oldest_dirty_ms: int, now_ms: int
) -> bool:
    """Returns whether min.cleanable.dirty.ratio or max.compaction.lag.ms is exceeded."""
    if not dirty_bytes:
        return False
    is_overdue = now_ms - oldest_dirty_ms > settings.max_compaction_lag_ms
    return is_overdue or dirty_bytes / total_bytes > settings.min_cleanable_dirty_ratio


def is_past_min_lag(settings: TopicSettings, max_timestamp_ms: int, now_ms: int) -> bool:
    """Returns whether min.compaction.lag.ms has passed for records up to this timestamp."""
    lag_ms = settings.min_compaction_lag_ms
    return lag_ms == 0 or max_timestamp_ms <= now_ms - lag_ms


def is_last_of_producer(batch: Batch, producers: ProducerStateManager) -> bool:
    """Returns whether this is the last batch of a live producer. Recovery reads the last sequence from it."""
    if batch.producer_id < 0:
        return False
    state = producers.get(batch.producer_id)
    return state is not None and state.last_offset == batch.last_offset


def has_record_from(batch: Batch, offset: int) -> bool:
    """Returns whether the batch, which ends at or after `offset`, has a record there. Compaction may have removed its
    last records. Decodes the records only if the header does not tell."""
    if not batch.count or offset <= batch.base_offset or batch.count > batch.last_offset_delta:
        return batch.count > 0
    try:
        return any(batch.base_offset + span[3] >= offset for span in spans(batch, section(batch)))
    except UNDECODABLE_ERRORS:
        return True


class OffsetMap:
    """The last offset of each key, in bounded memory. Keys of 16 bytes and more are stored as 16-byte digests."""

    __slots__ = ("_entries_max", "_offsets", "end_offset")

    def __init__(self, bytes_max: int, start_offset: int = 0) -> None:
        """Creates an empty map for the records from `start_offset` on; earlier records are clean."""
        self._entries_max = max(1, bytes_max // ENTRY_BYTES)
        self._offsets: dict[bytes, int] = {}
        self.end_offset = start_offset
        """Every key between start_offset and this offset is in the map."""

    def __len__(self) -> int:
        return len(self._offsets)

    def add(self, batch: Batch) -> bool:
        """Adds the keys of the next batch from `end_offset` on. Returns False if the map became full."""
        if not _is_transaction(batch):
            try:
                found = list(spans(batch, section(batch)))
            except UNDECODABLE_ERRORS:
                # The keys are unknown. `clean_batch` retains this batch, and older records with the same keys.
                found = []
            if not self._add_keys(batch.base_offset, found):
                return False
        self.end_offset = max(self.end_offset, batch.next_offset)
        return True

    def _add_keys(self, base_offset: int, found: list[Span]) -> bool:
        offsets, entries_max = self._offsets, self._entries_max
        for _, _, _, offset_delta, key, _, _ in found:
            offset = base_offset + offset_delta
            if offset < self.end_offset:
                continue
            if key is not None:
                if len(key) >= _DIGEST_BYTES:
                    key = blake2b(key, digest_size=_DIGEST_BYTES).digest()
                if len(offsets) >= entries_max and key not in offsets:
                    return False
                offsets[key] = offset
            self.end_offset = offset + 1
        return True

    def last_offset(self, key: bytes) -> int:
        """Returns the last offset of the key; -1 if the key is not in the map."""
        if len(key) >= _DIGEST_BYTES:
            key = blake2b(key, digest_size=_DIGEST_BYTES).digest()
        return self._offsets.get(key, -1)


def clean_batch(
    batch: Batch, offsets: OffsetMap, *, now_ms: int, delete_retention_ms: int, retain_empty: bool = False
) -> Batch | None:
    """Returns the same batch if nothing changes, a smaller batch, or None if nothing remains.

    With `retain_empty` the batch is kept even without records. The first cleaning that finds a tombstone writes the
    delete horizon, `now_ms + delete_retention_ms`, into the batch. A cleaning after the delete horizon removes the
    tombstone. So a consumer that reads the whole log within delete.retention.ms sees every tombstone.
    """
    if _is_transaction(batch) or batch.base_offset >= offsets.end_offset:
        return batch
    if not batch.count:
        return batch if retain_empty else None
    try:
        data = section(batch)
        found = list(spans(batch, data))
    except UNDECODABLE_ERRORS:
        return batch

    horizon_ms = batch.delete_horizon_ms
    drops_tombstones = horizon_ms is not None and now_ms >= horizon_ms
    kept = [span for span in found if _is_retained(span, batch.base_offset, offsets, drops_tombstones)]
    if not kept:
        return _empty_batch(batch) if retain_empty else None
    if horizon_ms is None and any(length < 0 for *_, length in kept):
        return _with_delete_horizon(batch, data, kept, min(now_ms + delete_retention_ms, HORIZON_MS_MAX))
    if len(kept) == len(found):
        return batch
    return replace_records(
        batch,
        compress(batch.compression, b"".join([data[start:end] for start, end, *_ in kept])),
        max_timestamp=_max_timestamp(batch, kept),
        count=len(kept),
    )


def _is_transaction(batch: Batch) -> bool:
    """Returns whether the batch is a marker or belongs to a transaction. Its outcome is unknown here, and the records
    of an aborted transaction must not replace earlier records."""
    return batch.is_control or batch.is_transactional


def _is_retained(span: Span, base_offset: int, offsets: OffsetMap, drops_tombstones: bool) -> bool:
    _, _, _, offset_delta, key, _, value_length = span
    offset = base_offset + offset_delta
    if offset >= offsets.end_offset:
        return True
    if key is None or offset < offsets.last_offset(key):
        return False
    return value_length >= 0 or not drops_tombstones


def _max_timestamp(batch: Batch, kept: list[Span]) -> int:
    if batch.is_log_append_time:
        return batch.max_timestamp
    return batch.base_timestamp + max(timestamp_delta for _, _, timestamp_delta, *_ in kept)


def _with_delete_horizon(batch: Batch, data: bytes, kept: list[Span], horizon_ms: int) -> Batch:
    """Returns a batch of the kept records, with the delete horizon as base timestamp and new timestamp deltas."""
    shift = batch.base_timestamp - horizon_ms
    records: list[bytes] = []
    for start, end, timestamp_delta, *_ in kept:
        _, position = read_varint(data, start)
        _, after = read_varint(data, position + 1)
        body = b"".join((b"\x00", write_varint(timestamp_delta + shift), data[after:end]))
        records += (write_varint(len(body)), body)
    return replace_records(
        batch,
        compress(batch.compression, b"".join(records)),
        attributes=batch.attributes | DELETE_HORIZON_MASK,
        base_timestamp=horizon_ms,
        max_timestamp=_max_timestamp(batch, kept),
        count=len(kept),
    )


def _empty_batch(batch: Batch) -> Batch:
    return replace_records(
        batch,
        b"",
        attributes=batch.attributes & ~(COMPRESSION_MASK | DELETE_HORIZON_MASK),
        base_timestamp=NO_TIMESTAMP,
        count=0,
    )
