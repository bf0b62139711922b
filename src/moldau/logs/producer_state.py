"""The producer state of a log: detects duplicate batches of idempotent producers, and knows open transactions. Pure.

Sequences increase by one from record to record, restart at 0 with a new producer epoch, and wrap at 2^31.

A transaction is open in this log from its first batch until its marker. The leader must ask the transaction coordinator
before that first batch, because the batch may be late: if the transaction has already ended, no marker would follow,
and the transaction would stay open. Between question and append, a `VerificationGuard` protects the answer.
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
    InvalidTransactionStateError,
    MoldauError,
    OutOfOrderSequenceError,
    TransactionCoordinatorFencedError,
)
from moldau.logs.transaction_index import AbortedTransaction
from moldau.logs.unstable_transactions import UnstableTransactions
from moldau.records.batch import CONTROL_MASK, NO_SEQUENCE, NO_TIMESTAMP, SEQUENCE_LIMIT, TRANSACTIONAL_MASK, Batch
from moldau.records.control_records import end_of_transaction

PRODUCER_EXPIRATION_MS_DEFAULT = 86_400_000
RETAINED_BATCHES_MAX = 5
"""How many batches of a producer are retained. A producer has at most this many in flight."""
EVICTED_SEQUENCES_MAX = SEQUENCE_LIMIT // 2
"""The maximum of `ProducerState.evicted_sequences`. Sequences wrap, so a sequence further behind could be ahead."""
REJECTED_BATCHES_MAX = 10_000
"""The maximum number of rejected batches that are remembered, one per producer. The oldest is forgotten first."""
SUCCESSORS_REJECTED_MAX = 1_000
"""How many batches after a rejected batch fail with the same error. Further batches fail with OutOfOrderSequenceError,
because the producer evidently does not resend the rejected batch."""
NO_COORDINATOR_EPOCH = -1
EPOCH_BUMP_TRANSACTION_VERSION = 2
"""From this transaction version on, the marker of a transaction has a higher producer epoch than its batches."""

_TRANSACTIONAL_OR_CONTROL = TRANSACTIONAL_MASK | CONTROL_MASK

_SNAPSHOT_VERSION = 1
_SNAPSHOT_START = struct.Struct(">hI")
_COUNT = struct.Struct(">i")
_ENTRY = struct.Struct(">qhiqiqiq")
_EXTENSION = struct.Struct(">qb")
_EARLIER_BATCH = struct.Struct(">iqiq")
_COMPLETED = struct.Struct(">qq")


class SequencedBatch(Protocol):
    """The header fields of a batch that producer state is built from."""

    base_offset: int
    last_offset_delta: int
    attributes: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int


class BatchMetadata(NamedTuple):
    """A retained batch, which is used to detect duplicates."""

    first_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    timestamp_ms: int


_NO_BATCH = BatchMetadata(NO_SEQUENCE, NO_SEQUENCE, -1, -1, NO_TIMESTAMP)


@dataclass(slots=True)
class _RejectedBatch:
    """A batch that had the expected sequence but was rejected with a retriable error."""

    epoch: int
    sequence: int
    error_type: type[MoldauError]
    """Stored instead of the error, which would keep its request in memory."""
    message: str
    successors_rejected: int = 0
    """How many later batches were rejected with the same error."""


class TransactionOwner(NamedTuple):
    """Who writes in a transaction, for operators. Only the leader that has accepted its first batch knows it."""

    transactional_id: str = ""
    client_id: str = ""
    client_host: str = ""


UNKNOWN_OWNER = TransactionOwner()


@dataclass(slots=True, eq=False)
class VerificationGuard:
    """The verification of a transaction that is not open in this log yet. All batches of the transaction that wait for
    the coordinator's response share it."""

    producer_id: int
    epoch: int
    lowest_sequence: int
    """The lowest sequence that has waited. Higher ones must not overtake it."""
    supports_epoch_bump: bool
    """Whether the producer uses a transaction version in which markers have a new epoch."""
    owner: TransactionOwner = UNKNOWN_OWNER
    waiting: int = 1
    """How many batches wait."""


class ProducerState:
    """The state of one producer id in one log."""

    __slots__ = (
        "batches",
        "coordinator_epoch",
        "epoch",
        "evicted_sequences",
        "idle_since_ms",
        "last_timestamp_ms",
        "producer_id",
        "transaction_first_offset",
        "transaction_owner",
    )

    def __init__(self, producer_id: int, epoch: int) -> None:
        self.producer_id = producer_id
        self.epoch = epoch
        self.batches: deque[BatchMetadata] = deque()
        """The latest batches of this epoch, oldest first, at most RETAINED_BATCHES_MAX."""
        self.evicted_sequences = 0
        """How many sequences right before the oldest retained batch are known to be in the log."""
        self.last_timestamp_ms = NO_TIMESTAMP
        self.coordinator_epoch = NO_COORDINATOR_EPOCH
        """The coordinator epoch of the last marker."""
        self.transaction_first_offset: int | None = None
        """The first offset of the open transaction; None if no transaction is open."""
        self.transaction_owner = UNKNOWN_OWNER
        """The owner of the open transaction. It is not in snapshots."""
        self.idle_since_ms: int | None = None
        """When `expire` first found the producer idle; None if it has appended since."""

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    @property
    def last_offset(self) -> int:
        """The last offset of the latest batch; -1 without a retained batch."""
        return self.batches[-1].last_offset if self.batches else -1

    def add_batch(self, batch: BatchMetadata) -> None:
        batches = self.batches
        if len(batches) == RETAINED_BATCHES_MAX:
            oldest = batches.popleft()
            if batches[0].first_sequence == (oldest.last_sequence + 1) % SEQUENCE_LIMIT:
                count = (oldest.last_sequence - oldest.first_sequence) % SEQUENCE_LIMIT + 1
                self.evicted_sequences = min(self.evicted_sequences + count, EVICTED_SEQUENCES_MAX)
            else:
                # Compaction left a gap after `oldest`, so sequences before the gap are not known to be in the log.
                self.evicted_sequences = 0
        batches.append(batch)

    def find(self, first_sequence: int, last_offset_delta: int) -> BatchMetadata | None:
        """Returns the retained batch with exactly these sequences."""
        last_sequence = (first_sequence + last_offset_delta) % SEQUENCE_LIMIT
        for batch in self.batches:
            if batch.first_sequence == first_sequence and batch.last_sequence == last_sequence:
                return batch
        return None

    def is_evicted(self, first_sequence: int, last_sequence: int) -> bool:
        """Returns whether these sequences are known to be in the log, in a batch that is no longer retained."""
        behind = (self.batches[0].first_sequence - first_sequence) % SEQUENCE_LIMIT
        length = (last_sequence - first_sequence) % SEQUENCE_LIMIT + 1
        return length <= behind <= self.evicted_sequences


class ProducerStateManager:
    """The states of all producers of a log that have not expired."""

    __slots__ = ("_guards", "_rejected_batches", "_states", "unstable")

    def __init__(self) -> None:
        self._states: dict[int, ProducerState] = {}
        self.unstable = UnstableTransactions()
        self._guards: dict[int, list[VerificationGuard]] = {}
        """The valid verification guards by producer id, one per producer epoch."""
        self._rejected_batches: dict[int, _RejectedBatch] = {}
        """Rejected batches by producer id. They need not survive a restart, because producers then reconnect and resend
        their batches in order."""

    def __len__(self) -> int:
        return len(self._states)

    def __iter__(self) -> Iterator[ProducerState]:
        return iter(self._states.values())

    def get(self, producer_id: int) -> ProducerState | None:
        return self._states.get(producer_id)

    def check(self, batch: SequencedBatch, verification: VerificationGuard | None = None) -> BatchMetadata | None:
        """Returns the appended batch that this batch duplicates; None if this batch may be appended.

        Raises InvalidProducerEpochError for an old producer epoch, OutOfOrderSequenceError for an unexpected sequence,
        and DuplicateSequenceError for a duplicate of a batch that is no longer retained. As in Kafka, an unknown
        producer may start with any sequence, because its state may have expired. Raises InvalidTransactionStateError
        for a plain batch inside an open transaction, and for the first batch of a transaction without the current
        guard of `begin_verification`.

        After a batch was rejected with a retriable error (`note_rejected`), later batches of the producer are rejected
        with the same error, so that it resends all of them in order. After OUT_OF_ORDER_SEQUENCE_NUMBER, librdkafka
        would start a new epoch, and other partitions could append its batches in flight twice.
        """
        state = self._states.get(batch.producer_id)
        if batch.attributes & TRANSACTIONAL_MASK:
            return self._check_transactional(batch, state, verification)
        repeated = self._check_sequence(batch, state)
        if repeated is None and state is not None and state.transaction_first_offset is not None:
            raise InvalidTransactionStateError(
                f"producer {batch.producer_id} sent a batch outside of its open transaction"
            )
        return repeated

    def _check_transactional(
        self, batch: SequencedBatch, state: ProducerState | None, verification: VerificationGuard | None
    ) -> BatchMetadata | None:
        producer_id, epoch, first = batch.producer_id, batch.producer_epoch, batch.base_sequence
        if state is not None:
            if epoch < state.epoch:
                raise self._fenced(producer_id, epoch, state)
            if epoch == state.epoch:
                if state.transaction_first_offset is not None:
                    return self._check_sequence(batch, state)
                repeated = state.find(first, batch.last_offset_delta)
                if repeated is not None:
                    return repeated
        guards = self._guards.get(producer_id, ())
        if verification is None or verification.epoch != epoch or verification not in guards:
            raise InvalidTransactionStateError(
                f"no transaction of epoch {epoch} of producer {producer_id} is open, or it has ended meanwhile"
            )
        if first > 0 and verification.supports_epoch_bump and (state is None or not state.batches):
            self._check_not_after_rejected(batch, 0)
            raise OutOfOrderSequenceError(
                f"producer {producer_id} starts epoch {epoch} with sequence {first} instead of 0"
            )
        if first > verification.lowest_sequence:
            self._check_not_after_rejected(batch, verification.lowest_sequence)
            raise OutOfOrderSequenceError(
                f"producer {producer_id} sent sequence {first} before {verification.lowest_sequence}"
            )
        return self._check_sequence(batch, state)

    def _check_sequence(self, batch: SequencedBatch, state: ProducerState | None) -> BatchMetadata | None:
        """Checks producer epoch and sequence. Coordinators send batches without a sequence."""
        first = batch.base_sequence
        if state is None:
            if self._rejected_batches and first >= 0:
                rejected = self._rejected_batches.get(batch.producer_id)
                if rejected is not None and rejected.sequence != first:
                    self._check_not_after_rejected(batch, rejected.sequence)
            return None
        if batch.producer_epoch != state.epoch:
            if batch.producer_epoch < state.epoch:
                raise self._fenced(batch.producer_id, batch.producer_epoch, state)
            if first > 0:
                self._check_not_after_rejected(batch, 0)
                raise OutOfOrderSequenceError(
                    f"producer {batch.producer_id} starts epoch {batch.producer_epoch} "
                    f"with sequence {first} instead of 0"
                )
            return None
        if first < 0:
            return None
        expected = (state.last_sequence + 1) % SEQUENCE_LIMIT
        if first == expected:
            return None
        repeated = state.find(first, batch.last_offset_delta)
        if repeated is not None:
            return repeated
        last = (first + batch.last_offset_delta) % SEQUENCE_LIMIT
        if state.batches and state.is_evicted(first, last):
            raise DuplicateSequenceError(
                f"producer {batch.producer_id} repeats sequences {first} to {last}, "
                f"which precede its last {RETAINED_BATCHES_MAX} batches"
            )
        self._check_not_after_rejected(batch, expected)
        raise OutOfOrderSequenceError(f"producer {batch.producer_id} sent sequence {first} instead of {expected}")

    @staticmethod
    def _fenced(producer_id: int, epoch: int, state: ProducerState) -> InvalidProducerEpochError:
        return InvalidProducerEpochError(f"epoch {epoch} of producer {producer_id} is fenced by epoch {state.epoch}")

    def begin_verification(
        self,
        producer_id: int,
        epoch: int,
        sequence: int,
        *,
        supports_epoch_bump: bool,
        owner: TransactionOwner = UNKNOWN_OWNER,
    ) -> VerificationGuard | None:
        """Returns the guard for the first batch of a transaction; None if the transaction of this epoch is open.

        The caller then asks the transaction coordinator, and passes the guard to `check` if the coordinator agrees. In
        any case it calls `end_verification` at the end. Meanwhile a transactional batch or a marker of the producer
        makes the guard invalid. With `supports_epoch_bump`, which Produce has from version 12 on, a marker of the same
        epoch does not, because it ends the transaction of the epoch before. Raises InvalidProducerEpochError for an old
        producer epoch.
        """
        state = self._states.get(producer_id)
        if state is not None:
            if epoch < state.epoch:
                raise self._fenced(producer_id, epoch, state)
            if epoch == state.epoch and state.transaction_first_offset is not None:
                return None
        guards = self._guards.setdefault(producer_id, [])
        for guard in guards:
            if guard.epoch == epoch:
                guard.waiting += 1
                guard.lowest_sequence = min(guard.lowest_sequence, sequence)
                return guard
        guard = VerificationGuard(producer_id, epoch, sequence, supports_epoch_bump, owner)
        guards.append(guard)
        return guard

    def end_verification(self, guard: VerificationGuard) -> None:
        """Forgets the guard when no batch waits any more."""
        guard.waiting -= 1
        if not guard.waiting:
            self._retain_guards(
                guard.producer_id, [each for each in self._guards.get(guard.producer_id, ()) if each is not guard]
            )

    def invalidate_all_guards(self) -> None:
        """The leader has changed. It may come back after a transaction has ended elsewhere."""
        self._guards.clear()

    def _retain_guards(self, producer_id: int, guards: list[VerificationGuard]) -> None:
        if guards:
            self._guards[producer_id] = guards
        else:
            self._guards.pop(producer_id, None)

    def check_marker(self, producer_id: int, epoch: int, coordinator_epoch: int, transaction_version: int) -> None:
        """Checks a marker before the leader appends it. Followers and recovery accept every marker in the log.

        Raises InvalidProducerEpochError, also if the marker could end a later transaction than its own, and
        TransactionCoordinatorFencedError for a marker of an earlier coordinator.
        """
        state = self._states.get(producer_id)
        if state is None:
            return
        is_open = state.transaction_first_offset is not None
        # Without an open transaction, a marker of the same epoch repeats the last one. It must succeed, or else the
        # coordinator would never complete the transaction.
        has_epoch_bump = transaction_version >= EPOCH_BUMP_TRANSACTION_VERSION
        if epoch < state.epoch or (epoch == state.epoch and has_epoch_bump and is_open):
            raise InvalidProducerEpochError(
                f"a marker of epoch {epoch} cannot end the transaction of epoch {state.epoch} of producer {producer_id}"
            )
        if coordinator_epoch < state.coordinator_epoch:
            raise TransactionCoordinatorFencedError(
                f"coordinator epoch {coordinator_epoch} of a marker of producer {producer_id} is fenced by "
                f"{state.coordinator_epoch}"
            )

    def _check_not_after_rejected(self, batch: SequencedBatch, expected: int) -> None:
        """Raises the error of an earlier rejected batch if the log still expects the sequence of that batch."""
        rejected = self._rejected_batches.get(batch.producer_id)
        if rejected is None or (rejected.epoch, rejected.sequence) != (batch.producer_epoch, expected):
            return
        rejected.successors_rejected += 1
        if rejected.successors_rejected > SUCCESSORS_REJECTED_MAX:
            del self._rejected_batches[batch.producer_id]
            return
        raise rejected.error_type(
            f"sequence {expected} of producer {batch.producer_id} was rejected and has to come first: "
            f"{rejected.message}"
        )

    def note_rejected(self, batch: SequencedBatch, error: MoldauError) -> None:
        """Records that a valid batch was not appended because of a retriable error."""
        producer_id, epoch, sequence = batch.producer_id, batch.producer_epoch, batch.base_sequence
        if producer_id < 0 or sequence < 0:
            return
        try:
            if self._check_sequence(batch, self._states.get(producer_id)) is not None:
                return
        except MoldauError:
            # This is not the next batch of the producer.
            return
        known = self._rejected_batches.get(producer_id)
        if known is None or (known.epoch, known.sequence) != (epoch, sequence):
            if known is None and len(self._rejected_batches) >= REJECTED_BATCHES_MAX:
                del self._rejected_batches[next(iter(self._rejected_batches))]
            self._rejected_batches[producer_id] = _RejectedBatch(epoch, sequence, type(error), str(error))

    def update(self, batch: SequencedBatch) -> AbortedTransaction | None:
        """Adds a batch that was appended, or that recovery reads from the log. A control batch must be a `Batch`.

        Returns the transaction that the batch aborts; None for other batches, and if the transaction has no records in
        this log.
        """
        producer_id = batch.producer_id
        if producer_id < 0:
            return None
        epoch, attributes = batch.producer_epoch, batch.attributes
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
        base_offset, delta = batch.base_offset, batch.last_offset_delta
        if attributes & _TRANSACTIONAL_OR_CONTROL:
            owner = UNKNOWN_OWNER
            if attributes & TRANSACTIONAL_MASK and self._guards:
                owner = self._invalidate_guards(batch)
            if attributes & CONTROL_MASK:
                assert isinstance(batch, Batch)
                return self._end_transaction(state, batch)
            if state.transaction_first_offset is None:
                state.transaction_first_offset = base_offset
                state.transaction_owner = owner
                self.unstable.begin(producer_id, base_offset)
        first = batch.base_sequence
        if first >= 0:
            state.add_batch(
                BatchMetadata(first, (first + delta) % SEQUENCE_LIMIT, base_offset, base_offset + delta, timestamp_ms)
            )
        return None

    def _invalidate_guards(self, batch: SequencedBatch) -> TransactionOwner:
        """Invalidates the guards of the producer, except one for the transaction after the one that a marker ends.

        Returns the owner of the batch's transaction.
        """
        epoch, is_marker = batch.producer_epoch, bool(batch.attributes & CONTROL_MASK)
        guards = self._guards.get(batch.producer_id, ())
        self._retain_guards(
            batch.producer_id,
            [each for each in guards if is_marker and each.supports_epoch_bump and each.epoch == epoch],
        )
        return next((each.owner for each in guards if each.epoch == epoch), UNKNOWN_OWNER)

    def _end_transaction(self, state: ProducerState, batch: Batch) -> AbortedTransaction | None:
        marker = end_of_transaction(batch)
        if marker is None:
            # Compaction has removed the record of the marker and all batches of its transaction.
            return None
        state.coordinator_epoch = marker.coordinator_epoch
        first_offset = state.transaction_first_offset
        if first_offset is None:
            return None
        state.transaction_first_offset = None
        state.transaction_owner = UNKNOWN_OWNER
        last_offset = batch.base_offset
        last_stable_offset = self.unstable.complete(first_offset, last_offset)
        if marker.commit:
            return None
        return AbortedTransaction(state.producer_id, first_offset, last_offset, last_stable_offset)

    def rebuild(self, snapshot: bytes | None, batches: Iterable[SequencedBatch]) -> None:
        """Replaces all states by those of a snapshot (if any) and of the batches after it."""
        self._states = {}
        self._rejected_batches = {}
        self._guards = {}
        self.unstable.clear()
        if snapshot is not None:
            self.restore(snapshot)
        for batch in batches:
            self.update(batch)

    def replace(self, other: "ProducerStateManager") -> None:
        """Takes over all states of a manager that was rebuilt, which must not be used any more."""
        self._states = other._states
        self._rejected_batches = {}
        self._guards = {}
        self.unstable = other.unstable

    def expire(self, now_ms: int, ttl_ms: int) -> None:
        """Forgets producers that have appended nothing for `ttl_ms`. Called periodically.

        Idle time is measured between calls and not by record timestamps, because producers may copy old records.
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
        """Returns all states in Kafka's producer snapshot format, version 1.

        Kafka stores only the last batch of each producer. Here the earlier retained batches follow after Kafka's
        entries, and then the completed transactions whose markers may not be below the high watermark yet. Kafka reads
        the number of entries in the snapshot and ignores all following bytes.
        """
        entries = [_COUNT.pack(len(self._states))]
        extensions = []
        for state in self._states.values():
            *earlier, last = state.batches or (_NO_BATCH,)
            first_offset = state.transaction_first_offset
            entries.append(
                _ENTRY.pack(
                    state.producer_id,
                    state.epoch,
                    last.last_sequence,
                    last.last_offset,
                    last.last_offset - last.base_offset,
                    state.last_timestamp_ms,
                    state.coordinator_epoch,
                    -1 if first_offset is None else first_offset,
                )
            )
            extensions.append(_EXTENSION.pack(state.evicted_sequences, len(earlier)))
            for _, last_sequence, base_offset, last_offset, timestamp_ms in earlier:
                extensions.append(
                    _EARLIER_BATCH.pack(last_sequence, last_offset, last_offset - base_offset, timestamp_ms)
                )
        if extensions:
            completed = self.unstable.completed
            extensions.append(_COUNT.pack(len(completed)))
            extensions += (_COMPLETED.pack(*each) for each in completed)
        body = b"".join(entries + extensions)
        return _SNAPSHOT_START.pack(_SNAPSHOT_VERSION, crc32c.crc32c(body)) + body

    def restore(self, data: bytes) -> None:
        """Replaces all states by those of a snapshot, written by `snapshot` or by Kafka. Raises CorruptRecordError."""
        if len(data) < _SNAPSHOT_START.size + _COUNT.size:
            raise CorruptRecordError(f"a producer snapshot of {len(data)} bytes is too short")
        version, checksum = _SNAPSHOT_START.unpack_from(data)
        if version != _SNAPSHOT_VERSION:
            raise CorruptRecordError(f"producer snapshots of version {version} are not known")
        if crc32c.crc32c(memoryview(data)[_SNAPSHOT_START.size :]) != checksum:
            raise CorruptRecordError("the checksum of a producer snapshot is wrong")
        try:
            states, completed = _read_states(data, _SNAPSHOT_START.size)
        except struct.error as error:
            raise CorruptRecordError(f"a producer snapshot ends short: {error}") from error
        self._states = {state.producer_id: state for state in states}
        opened = [
            (state.transaction_first_offset, state.producer_id)
            for state in states
            if state.transaction_first_offset is not None
        ]
        self.unstable.restore(opened, completed)


def _read_states(data: bytes, position: int) -> tuple[list[ProducerState], list[tuple[int, int]]]:
    """Returns the states, and marker and first offset of completed transactions."""
    (count,) = _COUNT.unpack_from(data, position)
    position += _COUNT.size
    states, last_batches = [], []
    for _ in range(count):
        producer_id, epoch, sequence, offset, delta, timestamp_ms, coordinator_epoch, first_offset = _ENTRY.unpack_from(
            data, position
        )
        position += _ENTRY.size
        state = ProducerState(producer_id, epoch)
        state.last_timestamp_ms = timestamp_ms
        state.coordinator_epoch = coordinator_epoch
        state.transaction_first_offset = None if first_offset < 0 else first_offset
        states.append(state)
        last_batches.append(None if offset < 0 else _batch_metadata(sequence, offset, delta, timestamp_ms))
    has_extensions = position < len(data)
    for state, last in zip(states, last_batches, strict=True):
        if has_extensions:
            evicted_sequences, earlier_count = _EXTENSION.unpack_from(data, position)
            state.evicted_sequences = min(evicted_sequences, EVICTED_SEQUENCES_MAX)
            position += _EXTENSION.size
            for _ in range(earlier_count):
                state.batches.append(_batch_metadata(*_EARLIER_BATCH.unpack_from(data, position)))
                position += _EARLIER_BATCH.size
        if last is not None:
            state.batches.append(last)
    completed: list[tuple[int, int]] = []
    if position < len(data):
        (count,) = _COUNT.unpack_from(data, position)
        position += _COUNT.size
        for number in range(count):
            last_offset, first_offset = _COMPLETED.unpack_from(data, position + number * _COMPLETED.size)
            completed.append((last_offset, first_offset))
    return states, completed


def _batch_metadata(last_sequence: int, last_offset: int, delta: int, timestamp_ms: int) -> BatchMetadata:
    return BatchMetadata(
        (last_sequence - delta) % SEQUENCE_LIMIT, last_sequence, last_offset - delta, last_offset, timestamp_ms
    )
