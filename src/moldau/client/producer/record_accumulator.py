"""The producer's memory: batches per partition, their sequences, what may leave when, and what to do when it failed. It
decides and never waits; `producer.py` does the sending.

Order is kept with several batches of a partition under way. The broker refuses a sequence that leaves a gap, so once
one batch has failed those behind it fail too; all are sent again in their order when no answer is outstanding.
Until a broker has acknowledged the first batch of a sequence only one is under way, because a broker that does not
know a producer takes whatever sequence comes first.

A batch that failed for good leaves a gap. What follows then goes on with the next producer epoch and sequence 0,
which is safe for batches that certainly were not written. Those that may have been are given up, for under a new
epoch the broker could not tell that it has them.
"""

from bisect import insort
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from moldau.client.errors import ErrorCode, KafkaError, RequestTimedOutError
from moldau.client.producer.batch_payload import (
    BatchPayload,
    ProducerIdAndEpoch,
    RecordsPayload,
    SectionPayload,
    estimate_record_size,
)
from moldau.client.record import TopicPartition
from moldau.records.batch import HEADER_SIZE, NO_SEQUENCE, SEQUENCE_LIMIT
from moldau.records.batch_builder import Section
from moldau.records.compression import NONE
from moldau.records.record import Record

EPOCH_MAX = 2**15 - 1

_SEQUENCE_ERRORS = (
    ErrorCode.out_of_order_sequence_number,
    ErrorCode.unknown_producer_id,
    ErrorCode.invalid_producer_epoch,
)
_TOO_LARGE_ERRORS = (ErrorCode.message_too_large, ErrorCode.record_list_too_large)
_NOT_WRITTEN_ERRORS = (
    *_SEQUENCE_ERRORS,
    *_TOO_LARGE_ERRORS,
    ErrorCode.not_enough_replicas,
    ErrorCode.corrupt_message,
    ErrorCode.invalid_record,
    ErrorCode.invalid_timestamp,
    ErrorCode.invalid_required_acks,
    ErrorCode.unsupported_compression_type,
    ErrorCode.unsupported_for_message_format,
    ErrorCode.topic_authorization_failed,
    ErrorCode.cluster_authorization_failed,
    ErrorCode.policy_violation,
    ErrorCode.unsupported_version,
)
"""Refusals from before anything is written. After any other error, NOT_LEADER_OR_FOLLOWER too, it may be in the log."""

__all__ = [
    "EPOCH_MAX",
    "ProduceResult",
    "ProducerBatch",
    "ProducerIdAndEpoch",
    "RecordAccumulator",
    "estimate_record_size",
]


@dataclass(slots=True, eq=False)
class ProducerBatch:
    """Records that travel together."""

    partition: TopicPartition
    order: tuple[int, ...]
    """Its place among all batches of the producer; the halves of a split one share its first number."""
    created_ms: int
    payload: BatchPayload
    size: int
    """In bytes, about: of records uncompressed, of a section as it is."""
    is_full: bool = False
    producer_id_and_epoch: ProducerIdAndEpoch | None = None
    base_sequence: int = NO_SEQUENCE
    data: bytes = b""
    """As it travels; made when it is taken."""
    attempts: int = 0
    is_possibly_written: bool = False
    """An attempt ended without the certainty that it was refused."""
    last_error: KafkaError | None = None

    @property
    def is_open(self) -> bool:
        """Whether it takes more records."""
        return not self.is_full and self.attempts == 0


class ProduceResult(NamedTuple):
    """A batch is done: acknowledged, or given up with an error."""

    batch: ProducerBatch
    base_offset: int = -1
    """-1 where the broker does not say."""
    log_append_time_ms: int = -1
    """Where the broker's clock counts; else -1."""
    error: KafkaError | None = None


@dataclass(slots=True)
class _PartitionQueue:
    """The batches of one partition, in their order."""

    producer_id_and_epoch: ProducerIdAndEpoch | None
    """Who writes to this partition; None until there is a producer id."""
    waiting: list[ProducerBatch] = field(default_factory=list)
    in_flight: list[ProducerBatch] = field(default_factory=list)
    next_sequence: int = 0
    has_acknowledged_batch: bool = False
    """Whether the broker has acknowledged anything of the present identity."""
    needs_epoch_bump: bool = False
    """The sequence has a gap: when no answer is outstanding the next epoch begins."""
    is_draining: bool = False
    """One has failed: nothing leaves until the answers to those that were sent with it are in."""
    backoff_until_ms: int = 0


class RecordAccumulator:
    def __init__(
        self,
        *,
        linger_ms: int,
        batch_size: int,
        buffer_memory: int,
        delivery_timeout_ms: int,
        in_flight_max: int,
        idempotent: bool,
        compression: int = NONE,
    ) -> None:
        self._linger_ms = linger_ms
        self._batch_size = batch_size
        self._buffer_memory = buffer_memory
        self._delivery_timeout_ms = delivery_timeout_ms
        self._in_flight_max = in_flight_max
        self._idempotent = idempotent
        self._compression = compression
        self._producer_id_and_epoch = None if idempotent else ProducerIdAndEpoch()
        self._queues: dict[TopicPartition, _PartitionQueue] = {}
        self._used_bytes = 0
        self._last_batch_number = 0

    # Records come in

    def has_memory(self, size: int) -> bool:
        """Whether a record of this size may come in now; one larger than all memory may when there is no other."""
        return self._used_bytes == 0 or self._used_bytes + size <= self._buffer_memory

    def fits_open_batch(self, partition: TopicPartition, size: int) -> bool:
        """Whether a record would join a batch that is there, and not begin one."""
        queue = self._queues.get(partition)
        return queue is not None and self._appendable_batch(queue, size) is not None

    def append(self, partition: TopicPartition, record: Record, size: int, handle: Any, now_ms: int) -> bool:
        """Puts a record (with its `estimate_record_size`) into a batch; says whether there may be something
        new to send."""
        queue = self._queue(partition)
        batch = self._appendable_batch(queue, size)
        is_new = batch is None
        if batch is None:
            batch = self._start_batch(queue, partition, RecordsPayload(self._compression), now_ms)
        assert isinstance(batch.payload, RecordsPayload), "a section is never open"
        batch.payload.records.append(record)
        batch.payload.handles.append(handle)
        batch.size += size
        batch.is_full = batch.size >= self._batch_size
        self._used_bytes += size
        return is_new or batch.is_full

    def append_section(self, partition: TopicPartition, section: Section, handle: Any, now_ms: int) -> None:
        """Puts a section behind what is there, as a batch that is full."""
        payload = SectionPayload(section, handle)
        batch = self._start_batch(self._queue(partition), partition, payload, now_ms)
        batch.is_full = True
        self._used_bytes += payload.size

    def _queue(self, partition: TopicPartition) -> _PartitionQueue:
        queue = self._queues.get(partition)
        if queue is None:
            queue = self._queues[partition] = _PartitionQueue(self._producer_id_and_epoch)
        return queue

    def _start_batch(
        self, queue: _PartitionQueue, partition: TopicPartition, payload: BatchPayload, now_ms: int
    ) -> ProducerBatch:
        if queue.waiting:
            queue.waiting[-1].is_full = True
        self._last_batch_number += 1
        size = HEADER_SIZE + payload.size
        batch = ProducerBatch(partition, (self._last_batch_number,), now_ms, payload, size)
        queue.waiting.append(batch)
        return batch

    def _appendable_batch(self, queue: _PartitionQueue, size: int) -> ProducerBatch | None:
        last = queue.waiting[-1] if queue.waiting else None
        return last if last is not None and last.is_open and last.size + size <= self._batch_size else None

    def close_batches(self) -> int:
        """Nothing joins the present batches any more, so they need not linger; `is_complete` takes the number."""
        for queue in self._queues.values():
            for batch in queue.waiting:
                batch.is_full = True
        return self._last_batch_number

    def is_complete(self, number: int) -> bool:
        """Whether every batch up to this number has its outcome."""
        return all(batch.order[0] > number for batch in self._incomplete_batches())

    @property
    def is_empty(self) -> bool:
        return not any(True for _ in self._incomplete_batches())

    def _incomplete_batches(self) -> Iterator[ProducerBatch]:
        for queue in self._queues.values():
            yield from queue.in_flight
            yield from queue.waiting

    # Who writes

    @property
    def needs_producer_id(self) -> bool:
        """Whether something waits for a (new) producer id."""
        return self._idempotent and any(
            queue.producer_id_and_epoch is None and queue.waiting for queue in self._queues.values()
        )

    def set_producer_id(self, producer_id: int, epoch: int) -> None:
        """Partitions without a producer id take this one, now and later."""
        self._producer_id_and_epoch = ProducerIdAndEpoch(producer_id, epoch)
        for queue in self._queues.values():
            if queue.producer_id_and_epoch is None:
                queue.producer_id_and_epoch = self._producer_id_and_epoch

    # Batches go out

    def ready_partitions(self, now_ms: int) -> list[TopicPartition]:
        """The partitions of which a batch may leave, the one that waits longest first."""
        ready_partitions = [
            partition for partition, queue in self._queues.items() if self._ready_at(queue) <= now_ms
        ]
        return sorted(ready_partitions, key=lambda partition: self._queues[partition].waiting[0].order)

    def next_wakeup_ms(self, now_ms: int) -> int | None:
        """When next something becomes ready, or too old, though nothing else happens."""
        times = [self._ready_at(queue) for queue in self._queues.values()]
        times += [
            batch.created_ms + self._delivery_timeout_ms
            for queue in self._queues.values()
            for batch in queue.waiting
        ]
        return min((at for at in times if now_ms < at < _NEVER), default=None)

    def _ready_at(self, queue: _PartitionQueue) -> int:
        if not queue.waiting or queue.producer_id_and_epoch is None:
            return _NEVER
        head = queue.waiting[0]
        if queue.in_flight:
            if queue.is_draining or queue.needs_epoch_bump:
                return _NEVER
            limit = self._in_flight_max if queue.has_acknowledged_batch or not self._idempotent else 1
            if len(queue.in_flight) >= limit:
                return _NEVER
        lingers = head.is_open and len(queue.waiting) == 1
        return max(queue.backoff_until_ms, head.created_ms + self._linger_ms if lingers else 0)

    def next_batch_bytes(self, partition: TopicPartition) -> int:
        """The size of the batch that `drain_next` would give."""
        return self._queues[partition].waiting[0].size

    def drain_next(self, partition: TopicPartition) -> ProducerBatch:
        """The next batch of a partition that is ready, now under way, with its bytes in `data`.

        Whatever building it raises leaves everything as it was; then `fail_next` it.
        """
        queue = self._queues[partition]
        batch = queue.waiting[0]
        assert queue.producer_id_and_epoch is not None, "a partition without a producer id is never ready"
        writer, sequence = batch.producer_id_and_epoch or ProducerIdAndEpoch(), batch.base_sequence
        is_new_in_sequence = self._idempotent and sequence == NO_SEQUENCE
        if is_new_in_sequence:
            writer, sequence = queue.producer_id_and_epoch, queue.next_sequence
        if not batch.data:
            batch.data = batch.payload.build(writer, sequence)
        if is_new_in_sequence:
            batch.producer_id_and_epoch, batch.base_sequence = writer, sequence
            queue.next_sequence = (sequence + batch.payload.count) % SEQUENCE_LIMIT
        batch.attempts += 1
        queue.in_flight.append(queue.waiting.pop(0))
        return batch

    def fail_next(self, partition: TopicPartition, error: KafkaError) -> list[ProduceResult]:
        """Gives up the next batch of a partition: it cannot be sent at all."""
        queue = self._queues[partition]
        batch = queue.waiting.pop(0)
        return [self._abort_batch(queue, batch, error), *self._maybe_bump_epoch(queue)]

    # Outcomes

    def complete_batch(
        self, batch: ProducerBatch, base_offset: int, log_append_time_ms: int = -1
    ) -> list[ProduceResult]:
        """The broker has it."""
        queue = self._queues[batch.partition]
        queue.in_flight.remove(batch)
        queue.has_acknowledged_batch = (
            queue.has_acknowledged_batch or batch.producer_id_and_epoch == queue.producer_id_and_epoch
        )
        return [
            self._release_memory(ProduceResult(batch, base_offset, log_append_time_ms)),
            *self._maybe_bump_epoch(queue),
        ]

    def fail_batch(
        self, batch: ProducerBatch, error: KafkaError, now_ms: int, retry_at_ms: int
    ) -> list[ProduceResult]:
        """It was refused, or nobody knows: it waits to be sent again, or is given up."""
        if error.code == ErrorCode.duplicate_sequence_number:
            # Written before, so long ago that the broker does not remember where.
            return self.complete_batch(batch, -1)
        queue = self._queues[batch.partition]
        is_first = self._is_first_incomplete(queue, batch)
        queue.in_flight.remove(batch)
        queue.is_draining = bool(queue.in_flight)
        batch.last_error = error
        batch.is_possibly_written = batch.is_possibly_written or error.code not in _NOT_WRITTEN_ERRORS
        outcomes: list[ProduceResult] = []
        if now_ms >= batch.created_ms + self._delivery_timeout_ms:
            outcomes.append(self._abort_batch(queue, batch, error))
        elif self._idempotent and error.code in _SEQUENCE_ERRORS:
            # Behind one that failed this was to be expected. Otherwise the broker does not know of what it had
            # acknowledged, and the sequence begins anew.
            queue.needs_epoch_bump = queue.needs_epoch_bump or is_first
            queue.backoff_until_ms = retry_at_ms
            insort(queue.waiting, batch, key=_batch_order)
        elif error.code in _TOO_LARGE_ERRORS:
            split = None if batch.is_possibly_written else batch.payload.split()
            if split is None:
                outcomes.append(self._abort_batch(queue, batch, batch.payload.too_large_error(error)))
            else:
                for half in _split_batch(batch, split):
                    insort(queue.waiting, half, key=_batch_order)
        elif error.is_retriable:
            queue.backoff_until_ms = retry_at_ms
            insort(queue.waiting, batch, key=_batch_order)
        else:
            outcomes.append(self._abort_batch(queue, batch, error))
        return outcomes + self._maybe_bump_epoch(queue)

    def reenqueue(self, batch: ProducerBatch, error: KafkaError) -> None:
        """It did not leave after all."""
        queue = self._queues[batch.partition]
        queue.in_flight.remove(batch)
        queue.is_draining = bool(queue.in_flight)
        batch.last_error = error
        insort(queue.waiting, batch, key=_batch_order)

    def record_error(self, partition: TopicPartition, error: KafkaError) -> None:
        """Why the next batch of a partition cannot be taken, for the case that it is never."""
        self._queues[partition].waiting[0].last_error = error

    def expire_batches(self, now_ms: int) -> list[ProduceResult]:
        """Gives up what has waited for longer than the delivery timeout. Batches under way are awaited."""
        outcomes: list[ProduceResult] = []
        for queue in self._queues.values():
            for batch in list(queue.waiting):
                if now_ms >= batch.created_ms + self._delivery_timeout_ms:
                    queue.waiting.remove(batch)
                    text = f"{batch.partition} took no records for {self._delivery_timeout_ms} ms"
                    if batch.last_error is not None:
                        text += f"; the last error was {batch.last_error}"
                    outcomes.append(self._abort_batch(queue, batch, RequestTimedOutError(text)))
            outcomes += self._maybe_bump_epoch(queue)
        return outcomes

    def abort_undrained(self, error: KafkaError) -> list[ProduceResult]:
        """Gives up everything that waits."""
        outcomes: list[ProduceResult] = []
        for queue in self._queues.values():
            waiting, queue.waiting = queue.waiting, []
            outcomes += [self._abort_batch(queue, batch, error) for batch in waiting]
        return outcomes

    def _is_first_incomplete(self, queue: _PartitionQueue, batch: ProducerBatch) -> bool:
        """Whether every batch of the partition before this one has its outcome, and no gap is known."""
        before = [each for each in (*queue.in_flight, *queue.waiting) if each.order < batch.order]
        return not before and not queue.needs_epoch_bump

    def _abort_batch(self, queue: _PartitionQueue, batch: ProducerBatch, error: KafkaError) -> ProduceResult:
        if batch.base_sequence != NO_SEQUENCE:
            queue.needs_epoch_bump = True
        return self._release_memory(ProduceResult(batch, error=error))

    def _maybe_bump_epoch(self, queue: _PartitionQueue) -> list[ProduceResult]:
        """When no answer is outstanding sending goes on: with the next epoch, if there is a gap."""
        if queue.in_flight:
            return []
        queue.is_draining = False
        if not queue.needs_epoch_bump:
            return []
        assert queue.producer_id_and_epoch is not None, "there is no sequence without a producer id"
        producer_id, epoch = queue.producer_id_and_epoch
        queue.producer_id_and_epoch = (
            ProducerIdAndEpoch(producer_id, epoch + 1) if epoch < EPOCH_MAX else None
        )
        queue.next_sequence, queue.has_acknowledged_batch, queue.needs_epoch_bump = 0, False, False
        outcomes = []
        for batch in list(queue.waiting):
            if batch.is_possibly_written:
                queue.waiting.remove(batch)
                error = batch.last_error or KafkaError(ErrorCode.out_of_order_sequence_number)
                outcomes.append(self._release_memory(ProduceResult(batch, error=error)))
            else:
                batch.producer_id_and_epoch, batch.base_sequence, batch.data = None, NO_SEQUENCE, b""
        return outcomes

    def _release_memory(self, outcome: ProduceResult) -> ProduceResult:
        self._used_bytes -= outcome.batch.size - HEADER_SIZE
        return outcome


_NEVER = 2**63


def _batch_order(batch: ProducerBatch) -> tuple[int, ...]:
    return batch.order


def _split_batch(batch: ProducerBatch, split: tuple[BatchPayload, BatchPayload]) -> Iterator[ProducerBatch]:
    """Two batches in the place of one that was refused for its size: together they fill its range of sequences."""
    sequence = batch.base_sequence
    for number, payload in enumerate(split):
        yield ProducerBatch(
            batch.partition,
            (*batch.order, number),
            batch.created_ms,
            payload,
            size=HEADER_SIZE + payload.size,
            is_full=True,
            producer_id_and_epoch=batch.producer_id_and_epoch,
            base_sequence=sequence,
            attempts=batch.attempts,
            last_error=batch.last_error,
        )
        if sequence != NO_SEQUENCE:
            sequence = (sequence + payload.count) % SEQUENCE_LIMIT
