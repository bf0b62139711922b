"""Compaction, the deciding part: which records of a log survive, and what is left of a batch. Pure, no files.

A segment cleaner uses it in two passes. The first fills an `OffsetMap` from the dirty part of the log, until
the map is full or the batches that may be compacted end:

    offsets = OffsetMap(bytes_max, clean_end)    # where the round before stopped, at first 0
    for batch in dirty_batches:                  # ascending, from the one that holds clean_end on
        if not offsets.add(batch):
            break                                # full: the rest is for the next round

The second walks over everything from the log's start, the clean part too, up to `offsets.end_offset`, and
writes what is left:

    for batch in all_batches:
        left = clean_batch(batch, offsets, now_ms=..., delete_retention_ms=..., retain_empty=...)
        if left is not None:                     # the same object when nothing changed
            write(left)

Afterwards the log is clean below `offsets.end_offset`, and the next round starts there. It may lie inside a
batch when the map became full there; records from it on are all kept. `retain_empty` is for batches that hold
the last sequence of a living producer: one whose records are all gone stays as an empty batch then, so that
producer state can be rebuilt.

Offsets never change: records keep theirs, batches keep their first and last one. A batch whose records cannot
be decoded is kept as it is, and so are control batches and batches wholly beyond the map.
"""

from hashlib import blake2b

from moldau.errors import CorruptRecordError, RecordTooLargeError, UnsupportedCompressionError
from moldau.records.batch import COMPRESSION_MASK, DELETE_HORIZON_MASK, NO_TIMESTAMP, Batch
from moldau.records.batch_builder import replace_records
from moldau.records.compression import compress
from moldau.records.record import Span, keys, section, spans
from moldau.records.varint import read_varint, write_varint

ENTRY_BYTES = 160
"""What a key and its offset take in the map: the two objects and their share of the dict's table."""

HORIZON_MS_MAX = 2**62
"""delete.retention.ms may be so large that the horizon would not fit its field; this is never as well."""

_DIGEST_BYTES = 16

_UNDECODABLE = (CorruptRecordError, RecordTooLargeError, UnsupportedCompressionError)


class OffsetMap:
    """The last offset of each key, in bounded memory.

    Keys of 16 bytes and more are kept as 16-byte digests. Two keys with one digest would lose a record; with
    128 bits that does not happen by chance in any log that fits on a disk.
    """

    __slots__ = ("_entries_max", "_offsets", "end_offset")

    def __init__(self, bytes_max: int, start_offset: int = 0) -> None:
        """For the records from `start_offset` on; those before it are clean already."""
        self._entries_max = max(1, bytes_max // ENTRY_BYTES)
        self._offsets: dict[bytes, int] = {}
        self.end_offset = start_offset
        """Where the map ends: every key between start_offset and here is in it."""

    def __len__(self) -> int:
        return len(self._offsets)

    @property
    def free_entries(self) -> int:
        """How many more keys it takes."""
        return self._entries_max - len(self._offsets)

    def add(self, batch: Batch) -> bool:
        """Takes the next batch's keys from `end_offset` on; False when the map became full before its end."""
        if not batch.is_control:
            try:
                if not self._add_keys(list(keys(batch))):
                    return False
            except _UNDECODABLE:
                # Kept as it is by clean_batch; without its keys, older records of them are kept too.
                pass
        self.end_offset = max(self.end_offset, batch.next_offset)
        return True

    def _add_keys(self, offsets_and_keys: list[tuple[int, bytes | None]]) -> bool:
        offsets, entries_max = self._offsets, self._entries_max
        for offset, key in offsets_and_keys:
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
        """-1 for a key that is not in the map."""
        if len(key) >= _DIGEST_BYTES:
            key = blake2b(key, digest_size=_DIGEST_BYTES).digest()
        return self._offsets.get(key, -1)


def clean_batch(
    batch: Batch,
    offsets: OffsetMap,
    *,
    now_ms: int,
    delete_retention_ms: int,
    retain_empty: bool = False,
) -> Batch | None:
    """What is left of a batch: itself where nothing changes, a smaller one, or None.

    The first cleaning that finds a tombstone writes into its batch when it may go, `delete_retention_ms` from
    now: the delete horizon. A cleaning at or after that time drops it. So a consumer that reads from the
    start and is through within delete.retention.ms sees every tombstone, however often the log is cleaned.
    """
    if batch.is_control or batch.base_offset >= offsets.end_offset:
        return batch
    if not batch.count:
        return batch if retain_empty else None
    try:
        data = section(batch)
        found = list(spans(batch, data))
    except _UNDECODABLE:
        return batch

    horizon_ms = batch.delete_horizon_ms
    tombstones_go = horizon_ms is not None and now_ms >= horizon_ms
    kept = [span for span in found if _is_retained(span, batch.base_offset, offsets, tombstones_go)]
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


def _is_retained(span: Span, base_offset: int, offsets: OffsetMap, tombstones_go: bool) -> bool:
    _, _, _, offset_delta, key, _, value_length = span
    offset = base_offset + offset_delta
    if offset >= offsets.end_offset:
        return True
    if key is None or offset < offsets.last_offset(key):
        return False
    return value_length >= 0 or not tombstones_go


def _max_timestamp(batch: Batch, kept: list[Span]) -> int:
    if batch.is_log_append_time:
        return batch.max_timestamp
    return batch.base_timestamp + max(timestamp_delta for _, _, timestamp_delta, *_ in kept)


def _with_delete_horizon(batch: Batch, data: bytes, kept: list[Span], horizon_ms: int) -> Batch:
    """The base timestamp becomes the horizon, so every record's timestamp delta is written anew."""
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
