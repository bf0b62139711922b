"""What a log remembers of its producers, so that a batch sent twice is written once. Pure.

Kafka's rules: a producer's sequences go up by one from record to record, start again at 0 with a new epoch and
wrap at 2^31; the last five batches are remembered, because a producer has at most five in flight.
"""

import struct
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import crc32c

from moldau.errors import (
    CorruptRecordError,
    DuplicateSequenceError,
    InvalidProducerEpochError,
    MoldauError,
    OutOfOrderSequenceError,
)
from moldau.records.batch import CONTROL_MASK, NO_SEQUENCE, NO_TIMESTAMP, SEQUENCE_LIMIT

RETAINED_BATCHES_MAX = 5
EVICTED_SEQUENCES_MAX = SEQUENCE_LIMIT // 2
"""Sequences wrap: what is further behind than this could as well be ahead."""
REJECTED_BATCHES_MAX = 10_000
"""Producers of whom a batch that was refused is awaited; when there are more, the oldest are forgotten."""
SUCCESSORS_REJECTED_MAX = 1_000
"""How many batches are put off because the one before them was refused: a producer that does not send that one again is
told what is wrong in the end."""
NO_COORDINATOR_EPOCH = -1

_SNAPSHOT_VERSION = 1
_SNAPSHOT_START = struct.Struct(">hI")
_COUNT = struct.Struct(">i")
_ENTRY = struct.Struct(">qhiqiqiq")
_MORE = struct.Struct(">qb")
_EARLIER = struct.Struct(">iqiq")


class SequencedBatch(Protocol):
    """The part of a batch's header that producer state is made of."""

    base_offset: int
    last_offset_delta: int
    attributes: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int


class BatchMetadata(NamedTuple):
    """A batch of which a repetition would be recognised."""

    first_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    timestamp_ms: int


@dataclass(slots=True)
class _RejectedBatch:
    """A batch that was next, and was refused for a reason that may pass."""

    epoch: int
    sequence: int
    kind: type[MoldauError]
    """Of the error, which is not kept itself: it would keep the request that it was raised for."""
    why: str
    successors_rejected: int = 0
    """How many batches behind it had to wait."""


class ProducerState:
    """What is known of one producer id in one log."""

    __slots__ = (
        "batches",
        "coordinator_epoch",
        "epoch",
        "evicted_sequences",
        "idle_since_ms",
        "last_timestamp_ms",
        "producer_id",
        "transaction_first_offset",
    )

    def __init__(self, producer_id: int, epoch: int) -> None:
        self.producer_id = producer_id
        self.epoch = epoch
        self.batches: deque[BatchMetadata] = deque()
        """The newest batches of this epoch, oldest first, at most BATCHES_REMEMBERED."""
        self.evicted_sequences = 0
        """How many sequences right before the oldest remembered batch are known to have been written; at most
        FORGOTTEN_MAX."""
        self.last_timestamp_ms = NO_TIMESTAMP
        self.coordinator_epoch = NO_COORDINATOR_EPOCH
        self.transaction_first_offset: int | None = None
        self.idle_since_ms: int | None = None
        """When `expire` first found it idle; None while it has written since."""

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    @property
    def last_offset(self) -> int:
        """-1 when none of its batches is remembered."""
        return self.batches[-1].last_offset if self.batches else -1

    def add_batch(self, batch: BatchMetadata) -> None:
        batches = self.batches
        if len(batches) == RETAINED_BATCHES_MAX:
            oldest = batches.popleft()
            if batches[0].first_sequence == (oldest.last_sequence + 1) % SEQUENCE_LIMIT:
                count = (oldest.last_sequence - oldest.first_sequence) % SEQUENCE_LIMIT + 1
                self.evicted_sequences = min(self.evicted_sequences + count, EVICTED_SEQUENCES_MAX)
            else:
                # Compaction took batches in between: what came before them can no longer be vouched for.
                self.evicted_sequences = 0
        batches.append(batch)

    def is_evicted(self, first_sequence: int, last_sequence: int) -> bool:
        """Whether these sequences were certainly written, by a batch that is no longer remembered."""
        behind = (self.batches[0].first_sequence - first_sequence) % SEQUENCE_LIMIT
        length = (last_sequence - first_sequence) % SEQUENCE_LIMIT + 1
        return length <= behind <= self.evicted_sequences


class ProducerStateManager:
    """All producers that have written to a log and have not been idle for too long."""

    __slots__ = ("_rejected_batches", "_states")

    def __init__(self) -> None:
        self._states: dict[int, ProducerState] = {}
        self._rejected_batches: dict[int, _RejectedBatch] = {}
        """Not in the log: whoever goes on after a restart sends that batch first."""

    def __len__(self) -> int:
        return len(self._states)

    def __iter__(self) -> Iterator[ProducerState]:
        return iter(self._states.values())

    def get(self, producer_id: int) -> ProducerState | None:
        return self._states.get(producer_id)

    def check(self, batch: SequencedBatch) -> BatchMetadata | None:
        """The batch that this one repeats, or None when it may be appended.

        Raises InvalidProducerEpochError, OutOfOrderSequenceError, or DuplicateSequenceError for a repetition of
        a batch that is no longer remembered.

        A producer of whom nothing is known may begin with any sequence, as in Kafka: this log's memory of it
        has expired, or the topic was deleted and created again under a running producer. Memory is never
        lost otherwise; it is rebuilt from the log and its snapshots.

        Behind a batch that was refused for a reason that may pass (`note_rejected`), others are on their way
        already. They
        are refused for the same reason, and come again after it. Told that they are out of order, librdkafka would
        begin a new epoch, and send again in it what other partitions may have written before.
        """
        state = self._states.get(batch.producer_id)
        first = batch.base_sequence
        if first < 0:
            return None
        if state is None:
            awaited = self._rejected_batches.get(batch.producer_id)
            if awaited is not None and awaited.sequence != first:
                self._check_not_after_rejected(batch, awaited.sequence)
            return None
        if batch.producer_epoch != state.epoch:
            if batch.producer_epoch < state.epoch:
                raise InvalidProducerEpochError(
                    f"producer {batch.producer_id} has epoch {batch.producer_epoch}, "
                    f"and one with epoch {state.epoch} has written already"
                )
            if first != 0:
                self._check_not_after_rejected(batch, 0)
                raise OutOfOrderSequenceError(
                    f"producer {batch.producer_id} begins epoch {batch.producer_epoch} "
                    f"with sequence {first} instead of 0"
                )
            return None
        expected = (state.last_sequence + 1) % SEQUENCE_LIMIT
        if first == expected:
            return None
        last = (first + batch.last_offset_delta) % SEQUENCE_LIMIT
        for remembered in state.batches:
            if remembered.first_sequence == first and remembered.last_sequence == last:
                return remembered
        if state.batches and state.is_evicted(first, last):
            raise DuplicateSequenceError(
                f"producer {batch.producer_id} repeats sequences {first} to {last}, "
                f"written before the last {RETAINED_BATCHES_MAX} batches"
            )
        self._check_not_after_rejected(batch, expected)
        raise OutOfOrderSequenceError(
            f"producer {batch.producer_id} sent sequence {first} where {expected} comes next"
        )

    def _check_not_after_rejected(self, batch: SequencedBatch, expected: int) -> None:
        """Raises what the batch that comes next was refused with."""
        awaited = self._rejected_batches.get(batch.producer_id)
        if awaited is None or (awaited.epoch, awaited.sequence) != (batch.producer_epoch, expected):
            return
        awaited.successors_rejected += 1
        if awaited.successors_rejected > SUCCESSORS_REJECTED_MAX:
            del self._rejected_batches[batch.producer_id]
            return
        raise awaited.kind(
            f"sequence {expected} of producer {batch.producer_id} was refused and comes first: {awaited.why}"
        )

    def note_rejected(self, batch: SequencedBatch, why: MoldauError) -> None:
        """Takes note of a batch that was not appended, though nothing is wrong with it."""
        producer_id, epoch, sequence = batch.producer_id, batch.producer_epoch, batch.base_sequence
        if producer_id < 0 or sequence < 0:
            return
        try:
            if self.check(batch) is not None:
                return
        except MoldauError:
            # It is not the next one.
            return
        known = self._rejected_batches.get(producer_id)
        if known is None or (known.epoch, known.sequence) != (epoch, sequence):
            if known is None and len(self._rejected_batches) >= REJECTED_BATCHES_MAX:
                del self._rejected_batches[next(iter(self._rejected_batches))]
            self._rejected_batches[producer_id] = _RejectedBatch(epoch, sequence, type(why), str(why))

    def update(self, batch: SequencedBatch) -> None:
        """Takes note of a batch that was appended, or is read again from the log."""
        producer_id = batch.producer_id
        if producer_id < 0:
            return
        epoch = batch.producer_epoch
        if self._rejected_batches:
            self._rejected_batches.pop(producer_id, None)
        state = self._states.get(producer_id)
        if state is None:
            state = self._states[producer_id] = ProducerState(producer_id, epoch)
        elif state.epoch != epoch:
            state.epoch = epoch
            state.batches.clear()
            state.evicted_sequences = 0
        state.last_timestamp_ms = timestamp_ms = batch.max_timestamp
        state.idle_since_ms = None
        first = batch.base_sequence
        if first < 0 or batch.attributes & CONTROL_MASK:
            return
        base_offset, delta = batch.base_offset, batch.last_offset_delta
        state.add_batch(
            BatchMetadata(
                first, (first + delta) % SEQUENCE_LIMIT, base_offset, base_offset + delta, timestamp_ms
            )
        )

    def rebuild(self, snapshot: bytes | None, batches: Iterable[SequencedBatch]) -> None:
        """Forgets everything, then takes up a snapshot (or nothing) and the batches that follow it."""
        self._states = {}
        self._rejected_batches = {}
        if snapshot is not None:
            self.restore(snapshot)
        for batch in batches:
            self.update(batch)

    def expire(self, now_ms: int, ttl_ms: int) -> None:
        """Forgets producers that have written nothing for `ttl_ms`. Called now and then.

        Idle time is counted between calls and not from record timestamps: a producer that copies last
        year's records must not be forgotten while it is at work.
        """
        expired = []
        for state in self._states.values():
            if state.idle_since_ms is None:
                state.idle_since_ms = now_ms
            elif now_ms - state.idle_since_ms >= ttl_ms and state.transaction_first_offset is None:
                expired.append(state.producer_id)
        for producer_id in expired:
            del self._states[producer_id]

    def snapshot(self) -> bytes:
        """All states in Kafka's producer snapshot format, version 1.

        Kafka keeps a producer's last batch only. The four before it follow behind Kafka's entries, where
        its reader, which goes by their count, does not look; the checksum covers both.
        """
        entries = [_COUNT.pack(len(self._states))]
        more = []
        for state in self._states.values():
            last = state.batches[-1] if state.batches else None
            first_offset = state.transaction_first_offset
            entries.append(
                _ENTRY.pack(
                    state.producer_id,
                    state.epoch,
                    last.last_sequence if last else NO_SEQUENCE,
                    last.last_offset if last else -1,
                    last.last_offset - last.base_offset if last else 0,
                    state.last_timestamp_ms,
                    state.coordinator_epoch,
                    -1 if first_offset is None else first_offset,
                )
            )
            more.append(_MORE.pack(state.evicted_sequences, max(0, len(state.batches) - 1)))
            for number, batch in enumerate(state.batches, 1):
                if number < len(state.batches):
                    more.append(
                        _EARLIER.pack(
                            batch.last_sequence,
                            batch.last_offset,
                            batch.last_offset - batch.base_offset,
                            batch.timestamp_ms,
                        )
                    )
        body = b"".join(entries + more)
        return _SNAPSHOT_START.pack(_SNAPSHOT_VERSION, crc32c.crc32c(body)) + body

    def restore(self, data: bytes) -> None:
        """Becomes what `snapshot` gave, or what Kafka wrote; raises CorruptRecordError."""
        if len(data) < _SNAPSHOT_START.size + _COUNT.size:
            raise CorruptRecordError(f"a producer snapshot of {len(data)} bytes is too short")
        version, checksum = _SNAPSHOT_START.unpack_from(data)
        if version != _SNAPSHOT_VERSION:
            raise CorruptRecordError(f"producer snapshots of version {version} are not known")
        if crc32c.crc32c(memoryview(data)[_SNAPSHOT_START.size :]) != checksum:
            raise CorruptRecordError("the checksum of a producer snapshot is wrong")
        try:
            states = _read_states(data, _SNAPSHOT_START.size)
        except struct.error as error:
            raise CorruptRecordError(f"a producer snapshot ends short: {error}") from error
        self._states = {state.producer_id: state for state in states}


def _read_states(data: bytes, position: int) -> list[ProducerState]:
    (count,) = _COUNT.unpack_from(data, position)
    position += _COUNT.size
    states, newest = [], []
    for _ in range(count):
        producer_id, epoch, sequence, offset, delta, timestamp_ms, coordinator_epoch, first_offset = (
            _ENTRY.unpack_from(data, position)
        )
        position += _ENTRY.size
        state = ProducerState(producer_id, epoch)
        state.last_timestamp_ms = timestamp_ms
        state.coordinator_epoch = coordinator_epoch
        state.transaction_first_offset = None if first_offset < 0 else first_offset
        states.append(state)
        newest.append(None if offset < 0 else _batch_metadata(sequence, offset, delta, timestamp_ms))
    with_more = position < len(data)
    for state, last in zip(states, newest, strict=True):
        if with_more:
            evicted_sequences, earlier_count = _MORE.unpack_from(data, position)
            state.evicted_sequences = min(evicted_sequences, EVICTED_SEQUENCES_MAX)
            position += _MORE.size
            for _ in range(earlier_count):
                state.batches.append(_batch_metadata(*_EARLIER.unpack_from(data, position)))
                position += _EARLIER.size
        if last is not None:
            state.batches.append(last)
    return states


def _batch_metadata(last_sequence: int, last_offset: int, delta: int, timestamp_ms: int) -> BatchMetadata:
    return BatchMetadata(
        (last_sequence - delta) % SEQUENCE_LIMIT,
        last_sequence,
        last_offset - delta,
        last_offset,
        timestamp_ms,
    )
