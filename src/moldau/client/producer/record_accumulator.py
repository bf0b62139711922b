"""The producer's record accumulator: batches per partition, their sequence numbers, retries and expiry.

The accumulator does no I/O. It decides which batches to send, and the sender sends them.

The order of records is kept with several batches of a partition in flight. If one batch fails, the broker rejects the
later batches, because the sequence has a gap. When all responses have arrived, the failed batches are sent again in
order. Until a broker has acknowledged the first batch of a sequence, only one batch is in flight. The reason is that a
broker that does not know a producer accepts any first sequence number.

A batch that fails permanently leaves a gap in the sequence. The later batches then continue with the next producer
epoch and sequence 0. This is safe only for batches that were certainly not written. Batches that may have been written
fail, because the broker cannot detect duplicates under a new epoch.

In a transaction such a batch fails the transaction. Nothing more is sent to its partition until the transaction has
ended, and the caller sets the next epoch.
"""

from bisect import insort
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from moldau.client.errors import ErrorCode, KafkaError, RequestTimedOutError
from moldau.client.producer.producer_batch import (
    BatchPayload,
    ProducerBatch,
    ProduceResult,
    ProducerIdAndEpoch,
    RecordsPayload,
    SectionPayload,
)
from moldau.client.record import TopicPartition
from moldau.records.batch import HEADER_SIZE, NO_SEQUENCE, SEQUENCE_LIMIT
from moldau.records.batch_builder import Section
from moldau.records.compression import NONE
from moldau.records.record import Record

EPOCH_MAX = 2**15 - 1

_NEVER = 2**63
_batch_order = attrgetter("order")

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
"""Errors that brokers return before they write a batch. After other errors the batch may have been written."""


@dataclass(slots=True)
class _PartitionQueue:
    """The batches of one partition, in order."""

    producer_id_and_epoch: ProducerIdAndEpoch | None
    """The producer id and epoch for this partition; None until a producer id is known, and with TV1 also while the
    partition is not in a transaction."""
    waiting: list[ProducerBatch] = field(default_factory=list)
    in_flight: list[ProducerBatch] = field(default_factory=list)
    next_sequence: int = 0
    has_acknowledged_batch: bool = False
    """Whether the broker has acknowledged a batch of the current producer epoch."""
    needs_epoch_bump: bool = False
    """Whether the sequence has a gap, so that the next epoch must start when no batch is in flight."""
    is_draining: bool = False
    """Whether a batch has failed and nothing is sent until the other batches in flight have their responses."""
    backoff_until_ms: int = 0


@dataclass(slots=True, eq=False, kw_only=True)
class RecordAccumulator:
    """Collects records in batches and tracks each batch until it is acknowledged or fails."""

    linger_ms: int
    batch_size: int
    buffer_memory: int
    delivery_timeout_ms: int
    in_flight_max: int
    idempotent: bool
    compression: int = NONE
    transactional: bool = False
    _producer_id_and_epoch: ProducerIdAndEpoch | None = field(default=None, init=False)
    _queues: dict[TopicPartition, _PartitionQueue] = field(default_factory=dict, init=False)
    _used_bytes: int = field(default=0, init=False)
    _last_batch_number: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        if not self.idempotent:
            self._producer_id_and_epoch = ProducerIdAndEpoch()

    # Appending

    def has_memory(self, size: int) -> bool:
        """Returns whether the buffer has memory for a record of this size. An empty buffer accepts any size."""
        return self._used_bytes == 0 or self._used_bytes + size <= self.buffer_memory

    def fits_open_batch(self, partition: TopicPartition, size: int) -> bool:
        """Returns whether a record of this size fits into the open batch of the partition, if there is one."""
        queue = self._queues.get(partition)
        return queue is not None and self._appendable_batch(queue, size) is not None

    def append(self, partition: TopicPartition, record: Record, size: int, handle: Any, now_ms: int) -> bool:
        """Adds a record of this estimated size. Returns whether the sender should check for ready batches."""
        queue = self._queue(partition)
        batch = self._appendable_batch(queue, size)
        is_new = batch is None
        if batch is None:
            batch = self._start_batch(queue, partition, RecordsPayload(self.compression), now_ms)
        assert isinstance(batch.payload, RecordsPayload), "a section's batch is never open"
        batch.payload.records.append(record)
        batch.payload.handles.append(handle)
        batch.size += size
        batch.is_full = batch.size >= self.batch_size
        self._used_bytes += size
        return is_new or batch.is_full

    def append_section(self, partition: TopicPartition, section: Section, handle: Any, now_ms: int) -> None:
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
        return last if last is not None and last.is_open and last.size + size <= self.batch_size else None

    def close_batches(self) -> int:
        """Closes all batches, so that they do not linger. Returns the number of the last batch, for `is_complete`."""
        for queue in self._queues.values():
            for batch in queue.waiting:
                batch.is_full = True
        return self._last_batch_number

    def is_complete(self, number: int) -> bool:
        """Returns whether every batch up to this number has its result."""
        return all(
            batch.order[0] > number for queue in self._queues.values() for batch in (*queue.in_flight, *queue.waiting)
        )

    # Producer id

    @property
    def needs_producer_id(self) -> bool:
        """Whether a batch waits for a (new) producer id."""
        is_idempotent_only = self.idempotent and not self.transactional
        return is_idempotent_only and any(
            queue.producer_id_and_epoch is None and queue.waiting for queue in self._queues.values()
        )

    def set_producer_id(self, producer_id: int, epoch: int) -> None:
        """Sets the producer id of all partitions that have none, and of all partitions that are added later."""
        self._producer_id_and_epoch = ProducerIdAndEpoch(producer_id, epoch)
        for queue in self._queues.values():
            if queue.producer_id_and_epoch is None:
                queue.producer_id_and_epoch = self._producer_id_and_epoch

    # Transactions

    def start_epoch(self, producer: ProducerIdAndEpoch | None) -> None:
        """Starts all sequences again under this producer id and epoch, between two transactions.

        With None (TV1), no partition is sent to before `resume_partitions`.
        """
        assert self.is_complete(self._last_batch_number), "a batch of an earlier epoch has no result yet"
        self._queues.clear()
        self._producer_id_and_epoch = producer

    def suspend_partitions(self) -> None:
        """Stops sending to all partitions at the end of a transaction (TV1). The sequences continue in the next one."""
        for queue in self._queues.values():
            queue.producer_id_and_epoch = None

    def resume_partitions(self, partitions: Iterable[TopicPartition], producer: ProducerIdAndEpoch) -> None:
        """Allows sending to partitions that have been added to the transaction (TV1)."""
        for partition in partitions:
            self._queues[partition].producer_id_and_epoch = producer

    @property
    def has_sequence_gap(self) -> bool:
        """Whether a batch with a sequence number has failed in the current epoch of a transactional producer."""
        return any(queue.needs_epoch_bump for queue in self._queues.values())

    # Draining

    def ready_partitions(self, now_ms: int) -> list[TopicPartition]:
        """Returns the partitions with a batch to send. The partition with the oldest batch comes first."""
        ready = [partition for partition, queue in self._queues.items() if self._ready_at(queue) <= now_ms]
        return sorted(ready, key=lambda partition: self._queues[partition].waiting[0].order)

    def next_wakeup_ms(self, now_ms: int) -> int | None:
        """Returns when the next batch becomes ready or expires if nothing else happens; None if no batch will."""
        times = [self._ready_at(queue) for queue in self._queues.values()]
        times += [
            batch.created_ms + self.delivery_timeout_ms for queue in self._queues.values() for batch in queue.waiting
        ]
        return min((at for at in times if now_ms < at < _NEVER), default=None)

    def _ready_at(self, queue: _PartitionQueue) -> int:
        if not queue.waiting or queue.producer_id_and_epoch is None:
            return _NEVER
        if self.transactional and queue.needs_epoch_bump:
            return _NEVER
        head = queue.waiting[0]
        if queue.in_flight:
            if queue.is_draining or queue.needs_epoch_bump:
                return _NEVER
            limit = self.in_flight_max if queue.has_acknowledged_batch or not self.idempotent else 1
            if len(queue.in_flight) >= limit:
                return _NEVER
        lingers = head.is_open and len(queue.waiting) == 1
        return max(queue.backoff_until_ms, head.created_ms + self.linger_ms if lingers else 0)

    def next_batch_bytes(self, partition: TopicPartition) -> int:
        """Returns the size of the batch that `drain_next` would return."""
        return self._queues[partition].waiting[0].size

    def drain_next(self, partition: TopicPartition, leader_epoch: int = -1) -> ProducerBatch:
        """Encodes the next batch of a ready partition, moves it to the batches in flight and returns it.

        `leader_epoch` is the epoch of the leader to which the batch is sent. If the encoding raises an error, nothing
        has changed. The caller must then call `fail_next`.
        """
        queue = self._queues[partition]
        batch = queue.waiting[0]
        assert queue.producer_id_and_epoch is not None, "a partition without a producer id is never ready"
        producer, sequence = batch.producer_id_and_epoch or ProducerIdAndEpoch(), batch.base_sequence
        is_new_in_sequence = self.idempotent and sequence == NO_SEQUENCE
        if is_new_in_sequence:
            producer, sequence = queue.producer_id_and_epoch, queue.next_sequence
        if not batch.data:
            batch.data = batch.payload.build(producer, sequence, self.transactional)
        if is_new_in_sequence:
            batch.producer_id_and_epoch, batch.base_sequence = producer, sequence
            queue.next_sequence = (sequence + batch.payload.count) % SEQUENCE_LIMIT
        batch.attempts += 1
        batch.leader_epoch = leader_epoch
        queue.in_flight.append(queue.waiting.pop(0))
        return batch

    def fail_next(self, partition: TopicPartition, error: KafkaError) -> list[ProduceResult]:
        """Fails the next batch of a partition, because the batch cannot be sent at all."""
        queue = self._queues[partition]
        batch = queue.waiting.pop(0)
        return [self._abort_batch(queue, batch, error), *self._maybe_bump_epoch(queue)]

    # Results

    def complete_batch(
        self, batch: ProducerBatch, base_offset: int, log_append_time_ms: int = -1
    ) -> list[ProduceResult]:
        """Completes a batch that the broker has acknowledged."""
        queue = self._queues[batch.partition]
        queue.in_flight.remove(batch)
        queue.has_acknowledged_batch = (
            queue.has_acknowledged_batch or batch.producer_id_and_epoch == queue.producer_id_and_epoch
        )
        result = self._release_memory(ProduceResult(batch, base_offset, log_append_time_ms))
        return [result, *self._maybe_bump_epoch(queue)]

    def fail_batch(self, batch: ProducerBatch, error: KafkaError, now_ms: int, retry_at_ms: int) -> list[ProduceResult]:
        """Handles a failed attempt: queues the batch again, splits it, or fails it permanently."""
        if error.code == ErrorCode.duplicate_sequence_number:
            # The batch was already written, so long ago that the broker no longer knows its offset.
            return self.complete_batch(batch, -1)
        queue = self._queues[batch.partition]
        has_earlier = any(each.order < batch.order for each in (*queue.in_flight, *queue.waiting))
        is_first = not has_earlier and not queue.needs_epoch_bump
        queue.in_flight.remove(batch)
        queue.is_draining = bool(queue.in_flight)
        batch.last_error = error
        batch.is_possibly_written = batch.is_possibly_written or error.code not in _NOT_WRITTEN_ERRORS
        results: list[ProduceResult] = []
        is_sequence_error = self.idempotent and error.code in _SEQUENCE_ERRORS
        if now_ms >= batch.created_ms + self.delivery_timeout_ms:
            results.append(self._abort_batch(queue, batch, error))
        elif error.code in _TOO_LARGE_ERRORS:
            halves = None if batch.is_possibly_written else batch.split()
            if halves is None:
                results.append(self._abort_batch(queue, batch, batch.payload.too_large_error(error)))
            else:
                for half in halves:
                    insort(queue.waiting, half, key=_batch_order)
        elif self.transactional and is_sequence_error and (is_first or error.code == ErrorCode.invalid_producer_epoch):
            results.append(self._abort_batch(queue, batch, error))
        elif is_sequence_error or error.is_retriable:
            # A sequence error is expected if an earlier batch has failed. Otherwise the broker has lost the
            # producer's state, and the sequence starts again in a new epoch.
            queue.needs_epoch_bump = queue.needs_epoch_bump or (is_sequence_error and is_first)
            queue.backoff_until_ms = retry_at_ms
            insort(queue.waiting, batch, key=_batch_order)
        else:
            results.append(self._abort_batch(queue, batch, error))
        return results + self._maybe_bump_epoch(queue)

    def reenqueue(self, batch: ProducerBatch, error: KafkaError) -> None:
        """Puts back a drained batch that was not sent."""
        queue = self._queues[batch.partition]
        queue.in_flight.remove(batch)
        queue.is_draining = bool(queue.in_flight)
        batch.last_error = error
        insort(queue.waiting, batch, key=_batch_order)

    def end_backoffs(self, has_newer_leader: Callable[[TopicPartition, int], bool]) -> None:
        """Ends the backoff of partitions whose next batch was last sent to a leader that has been replaced."""
        for partition, queue in self._queues.items():
            head = queue.waiting[0] if queue.waiting and queue.backoff_until_ms else None
            if head is not None and head.attempts and has_newer_leader(partition, head.leader_epoch):
                queue.backoff_until_ms = 0

    def record_error(self, partition: TopicPartition, error: KafkaError) -> None:
        """Records why the next batch of a partition cannot be sent now. The error is reported if the batch expires."""
        self._queues[partition].waiting[0].last_error = error

    def expire_batches(self, now_ms: int) -> list[ProduceResult]:
        """Fails waiting batches that are older than the delivery timeout. Batches in flight wait for their response."""
        results: list[ProduceResult] = []
        for queue in self._queues.values():
            for batch in list(queue.waiting):
                if now_ms >= batch.created_ms + self.delivery_timeout_ms:
                    queue.waiting.remove(batch)
                    text = f"{batch.partition} accepted no records for {self.delivery_timeout_ms} ms"
                    if batch.last_error is not None:
                        text += f"; the last error was {batch.last_error}"
                    results.append(self._abort_batch(queue, batch, RequestTimedOutError(text)))
            results += self._maybe_bump_epoch(queue)
        return results

    def abort_undrained(self, error: KafkaError) -> list[ProduceResult]:
        results: list[ProduceResult] = []
        for queue in self._queues.values():
            waiting, queue.waiting = queue.waiting, []
            results += [self._abort_batch(queue, batch, error) for batch in waiting]
        return results

    def _abort_batch(self, queue: _PartitionQueue, batch: ProducerBatch, error: KafkaError) -> ProduceResult:
        if batch.base_sequence != NO_SEQUENCE:
            queue.needs_epoch_bump = True
        return self._release_memory(ProduceResult(batch, error=error))

    def _maybe_bump_epoch(self, queue: _PartitionQueue) -> list[ProduceResult]:
        """Resumes sending if no batch is in flight. Starts the next epoch if the sequence has a gap."""
        if queue.in_flight:
            return []
        queue.is_draining = False
        if not queue.needs_epoch_bump or self.transactional:
            return []
        assert queue.producer_id_and_epoch is not None, "there is no sequence without a producer id"
        producer_id, epoch = queue.producer_id_and_epoch
        queue.producer_id_and_epoch = ProducerIdAndEpoch(producer_id, epoch + 1) if epoch < EPOCH_MAX else None
        queue.next_sequence, queue.has_acknowledged_batch, queue.needs_epoch_bump = 0, False, False
        results = []
        for batch in list(queue.waiting):
            if batch.is_possibly_written:
                queue.waiting.remove(batch)
                error = batch.last_error or KafkaError(ErrorCode.out_of_order_sequence_number)
                results.append(self._release_memory(ProduceResult(batch, error=error)))
            else:
                batch.producer_id_and_epoch, batch.base_sequence, batch.data = None, NO_SEQUENCE, b""
        return results

    def _release_memory(self, result: ProduceResult) -> ProduceResult:
        self._used_bytes -= result.batch.size - HEADER_SIZE
        return result
