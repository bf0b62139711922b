"""Log compaction: when a log is due, which of its records are retained, and what remains of a batch. Pure.

A cleaner works in two passes. The first pass adds the keys of the dirty batches to an `OffsetMap`, until the map is
full or all batches that may be compacted are read. The second pass calls `clean_batch` for all batches from the start
of the log up to `OffsetMap.end_offset`, and writes what remains. Afterwards the log is clean below this offset, and the
next round starts there. This offset is inside a batch if the map became full within the batch.

Records keep their offsets, and batches keep their first and last offset. A batch without records is removed, as in
Kafka, unless it is the last batch of a live producer or the last batch of the round. Batches beyond the map and batches
whose records cannot be decoded are retained unchanged.

Both passes follow the transactions with `TransactionOutcomes`. All of them have ended, because compaction stops at the
last stable offset. The records of aborted transactions are removed and never enter the map. A marker is retained until
no batch of its transaction is left; then it is removed like a tombstone.
"""

import heapq
from collections.abc import Iterable
from hashlib import blake2b

from moldau.logs.producer_state import ProducerStateManager
from moldau.logs.transaction_index import AbortedTransaction, TransactionIndex
from moldau.records.batch import COMPRESSION_MASK, DELETE_HORIZON_MASK, NO_TIMESTAMP, Batch
from moldau.records.batch_builder import replace_records
from moldau.records.compression import compress
from moldau.records.control_records import end_of_transaction
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
    """Returns whether this is the last batch of a live producer. Recovery reads the last sequence from it.

    A producer without a batch in its current epoch has a marker of this epoch, which fences earlier epochs.
    """
    if batch.producer_id < 0:
        return False
    state = producers.get(batch.producer_id)
    if state is None:
        return False
    if not state.batches:
        return batch.is_control and batch.producer_epoch == state.epoch
    return state.last_offset == batch.last_offset


def has_record_from(batch: Batch, offset: int) -> bool:
    """Returns whether the batch, which ends at or after `offset`, has a record there. Compaction may have removed its
    last records. Decodes the records only if the header does not tell."""
    if not batch.count or offset <= batch.base_offset or batch.count > batch.last_offset_delta:
        return batch.count > 0
    try:
        return any(batch.base_offset + span[3] >= offset for span in spans(batch, section(batch)))
    except UNDECODABLE_ERRORS:
        return True


class TransactionOutcomes:
    """The transactions of the batches that a cleaner reads, in the order of the log."""

    __slots__ = ("_aborted", "_committed", "_pending", "index")

    def __init__(self) -> None:
        self._pending: list[tuple[int, AbortedTransaction]] = []
        """Aborted transactions that start later, as a heap by first offset."""
        self._aborted: dict[int, tuple[AbortedTransaction, bool]] = {}
        """Aborted transactions by producer id until their marker, and whether any of their batches was read."""
        self._committed: set[int] = set()
        """Producers with batches of a committed transaction whose marker was not read yet."""
        self.index = TransactionIndex()
        """The aborted transactions whose markers were read and are needed."""

    def add_aborted(self, transactions: Iterable[AbortedTransaction]) -> None:
        """Adds the aborted transactions of the batches that are read next. They may overlap those added before."""
        for aborted in transactions:
            heapq.heappush(self._pending, (aborted.first_offset, aborted))

    def is_obsolete(self, batch: Batch) -> bool:
        """Returns whether the next batch belongs to an aborted transaction, or is a marker without batches."""
        while self._pending and self._pending[0][0] <= batch.last_offset:
            _, aborted = heapq.heappop(self._pending)
            known = self._aborted.get(aborted.producer_id)
            if known is None or known[0].last_offset < aborted.first_offset:
                self._aborted[aborted.producer_id] = (aborted, False)
        if batch.is_control:
            return self._is_obsolete_marker(batch)
        if not batch.is_transactional:
            return False
        entry = self._aborted.get(batch.producer_id)
        if entry is None:
            self._committed.add(batch.producer_id)
            return False
        self._aborted[batch.producer_id] = (entry[0], True)
        return True

    def _is_obsolete_marker(self, batch: Batch) -> bool:
        marker = end_of_transaction(batch)
        if marker is None:
            # Other control records have no producer id and are retained.
            return batch.producer_id >= 0 and not batch.count
        if marker.commit:
            has_batches = batch.producer_id in self._committed
            self._committed.discard(batch.producer_id)
            return not has_batches
        aborted, has_batches = self._aborted.pop(batch.producer_id, (None, False))
        if aborted is not None and has_batches:
            self.index.append(aborted)
        return not has_batches


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

    def add(self, batch: Batch, *, is_obsolete: bool = False) -> bool:
        """Adds the keys of the next batch from `end_offset` on. Returns False if the map became full.

        The keys of control batches and of obsolete batches are left out; see `TransactionOutcomes`.
        """
        if not batch.is_control and not is_obsolete:
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
    batch: Batch,
    offsets: OffsetMap,
    *,
    now_ms: int,
    delete_retention_ms: int,
    retain_empty: bool = False,
    is_obsolete: bool = False,
) -> Batch | None:
    """Returns the same batch if nothing changes, a smaller batch, or None if nothing remains.

    `is_obsolete` comes from `TransactionOutcomes`. With `retain_empty` the batch is kept even without records. The
    first cleaning that finds a tombstone writes the delete horizon, `now_ms + delete_retention_ms`, into the batch. A
    cleaning after the delete horizon removes the tombstone. So a consumer that reads the whole log within
    delete.retention.ms sees every tombstone.
    """
    if is_obsolete and not batch.is_control:
        return _without_records(batch, retain_empty)
    if batch.base_offset >= offsets.end_offset:
        return batch
    if not batch.count:
        return batch if retain_empty else None
    if batch.is_control:
        return _clean_marker(batch, now_ms, delete_retention_ms, retain_empty) if is_obsolete else batch
    try:
        data = section(batch)
        found = list(spans(batch, data))
    except UNDECODABLE_ERRORS:
        return batch

    horizon_ms = batch.delete_horizon_ms
    drops_tombstones = horizon_ms is not None and now_ms >= horizon_ms
    kept = [span for span in found if _is_retained(span, batch.base_offset, offsets, drops_tombstones)]
    if not kept:
        return _without_records(batch, retain_empty)
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


def _clean_marker(batch: Batch, now_ms: int, delete_retention_ms: int, retain_empty: bool) -> Batch | None:
    """Returns a marker that no batch needs any more with a delete horizon, and None after that.

    A consumer that has read batches of the transaction before they were removed still finds its marker until then.
    """
    horizon_ms = batch.delete_horizon_ms
    if horizon_ms is None:
        data = section(batch)
        horizon_ms = min(now_ms + delete_retention_ms, HORIZON_MS_MAX)
        return _with_delete_horizon(batch, data, list(spans(batch, data)), horizon_ms)
    return batch if now_ms < horizon_ms else _without_records(batch, retain_empty)


def _without_records(batch: Batch, retain_empty: bool) -> Batch | None:
    if not retain_empty:
        return None
    return _empty_batch(batch) if batch.count else batch


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
