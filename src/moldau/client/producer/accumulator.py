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
from moldau.client.producer.batch_contents import Contents, Identity, Records, WholeSection, record_size
from moldau.client.record import TopicPartition
from moldau.records.batch import HEADER_SIZE, NO_SEQUENCE, SEQUENCE_LIMIT
from moldau.records.build import Section
from moldau.records.compression import NONE
from moldau.records.record import Record

EPOCH_MAX = 2**15 - 1

_SEQUENCE_IS_LOST = (
    ErrorCode.out_of_order_sequence_number,
    ErrorCode.unknown_producer_id,
    ErrorCode.invalid_producer_epoch,
)
_TOO_LARGE = (ErrorCode.message_too_large, ErrorCode.record_list_too_large)
_NOT_WRITTEN = (
    *_SEQUENCE_IS_LOST,
    *_TOO_LARGE,
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

__all__ = ["EPOCH_MAX", "Accumulator", "Identity", "Outcome", "ProducerBatch", "record_size"]


@dataclass(slots=True, eq=False)
class ProducerBatch:
    """Records that travel together."""

    partition: TopicPartition
    order: tuple[int, ...]
    """Its place among all batches of the producer; the halves of a split one share its first number."""
    created_ms: int
    contents: Contents
    size: int
    """In bytes, about: of records uncompressed, of a section as it is."""
    is_full: bool = False
    identity: Identity | None = None
    base_sequence: int = NO_SEQUENCE
    data: bytes = b""
    """As it travels; made when it is taken."""
    attempts: int = 0
    may_be_written: bool = False
    """An attempt ended without the certainty that it was refused."""
    last_error: KafkaError | None = None

    @property
    def is_open(self) -> bool:
        """Whether it takes more records."""
        return not self.is_full and self.attempts == 0


class Outcome(NamedTuple):
    """A batch is done: acknowledged, or given up with an error."""

    batch: ProducerBatch
    base_offset: int = -1
    """-1 where the broker does not say."""
    append_time_ms: int = -1
    """Where the broker's clock counts; else -1."""
    error: KafkaError | None = None


@dataclass(slots=True)
class _Queue:
    """The batches of one partition, in their order."""

    identity: Identity | None
    """Who writes to this partition; None until there is a producer id."""
    waiting: list[ProducerBatch] = field(default_factory=list)
    in_flight: list[ProducerBatch] = field(default_factory=list)
    next_sequence: int = 0
    is_known: bool = False
    """Whether the broker has acknowledged anything of the present identity."""
    must_restart: bool = False
    """The sequence has a gap: when no answer is outstanding the next epoch begins."""
    is_draining: bool = False
    """One has failed: nothing leaves until the answers to those that were sent with it are in."""
    not_before_ms: int = 0


class Accumulator:
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
        self._identity = None if idempotent else Identity()
        self._queues: dict[TopicPartition, _Queue] = {}
        self._used_bytes = 0
        self._last_number = 0

    # Records come in

    def has_room(self, size: int) -> bool:
        """Whether a record of this size may come in now; one larger than all memory may when there is no other."""
        return self._used_bytes == 0 or self._used_bytes + size <= self._buffer_memory

    def fits_open_batch(self, partition: TopicPartition, size: int) -> bool:
        """Whether a record would join a batch that is there, and not begin one."""
        queue = self._queues.get(partition)
        return queue is not None and self._open_batch(queue, size) is not None

    def append(self, partition: TopicPartition, record: Record, size: int, ticket: Any, now_ms: int) -> bool:
        """Puts a record (with its `record_size`) into a batch; says whether there may be something new to send."""
        queue = self._queue(partition)
        batch = self._open_batch(queue, size)
        is_new = batch is None
        if batch is None:
            batch = self._begin(queue, partition, Records(self._compression), now_ms)
        assert isinstance(batch.contents, Records), "a section is never open"
        batch.contents.records.append(record)
        batch.contents.tickets.append(ticket)
        batch.size += size
        batch.is_full = batch.size >= self._batch_size
        self._used_bytes += size
        return is_new or batch.is_full

    def append_section(self, partition: TopicPartition, section: Section, ticket: Any, now_ms: int) -> None:
        """Puts a section behind what is there, as a batch that is full."""
        contents = WholeSection(section, ticket)
        batch = self._begin(self._queue(partition), partition, contents, now_ms)
        batch.is_full = True
        self._used_bytes += contents.size

    def _queue(self, partition: TopicPartition) -> _Queue:
        queue = self._queues.get(partition)
        if queue is None:
            queue = self._queues[partition] = _Queue(self._identity)
        return queue

    def _begin(
        self, queue: _Queue, partition: TopicPartition, contents: Contents, now_ms: int
    ) -> ProducerBatch:
        if queue.waiting:
            queue.waiting[-1].is_full = True
        self._last_number += 1
        size = HEADER_SIZE + contents.size
        batch = ProducerBatch(partition, (self._last_number,), now_ms, contents, size)
        queue.waiting.append(batch)
        return batch

    def _open_batch(self, queue: _Queue, size: int) -> ProducerBatch | None:
        last = queue.waiting[-1] if queue.waiting else None
        return last if last is not None and last.is_open and last.size + size <= self._batch_size else None

    def seal(self) -> int:
        """Nothing joins the present batches any more, so they need not linger; `is_done` takes the number."""
        for queue in self._queues.values():
            for batch in queue.waiting:
                batch.is_full = True
        return self._last_number

    def is_done(self, number: int) -> bool:
        """Whether every batch up to this number has its outcome."""
        return all(batch.order[0] > number for batch in self._outstanding())

    @property
    def is_empty(self) -> bool:
        return not any(True for _ in self._outstanding())

    def _outstanding(self) -> Iterator[ProducerBatch]:
        for queue in self._queues.values():
            yield from queue.in_flight
            yield from queue.waiting

    # Who writes

    @property
    def wants_identity(self) -> bool:
        """Whether something waits for a (new) producer id."""
        return self._idempotent and any(
            queue.identity is None and queue.waiting for queue in self._queues.values()
        )

    def identify(self, producer_id: int, epoch: int) -> None:
        """Partitions without a producer id take this one, now and later."""
        self._identity = Identity(producer_id, epoch)
        for queue in self._queues.values():
            if queue.identity is None:
                queue.identity = self._identity

    # Batches go out

    def ready(self, now_ms: int) -> list[TopicPartition]:
        """The partitions of which a batch may leave, the one that waits longest first."""
        ready = [partition for partition, queue in self._queues.items() if self._ready_at(queue) <= now_ms]
        return sorted(ready, key=lambda partition: self._queues[partition].waiting[0].order)

    def wake_at(self, now_ms: int) -> int | None:
        """When next something becomes ready, or too old, though nothing else happens."""
        times = [self._ready_at(queue) for queue in self._queues.values()]
        times += [
            batch.created_ms + self._delivery_timeout_ms
            for queue in self._queues.values()
            for batch in queue.waiting
        ]
        return min((at for at in times if now_ms < at < _NEVER), default=None)

    def _ready_at(self, queue: _Queue) -> int:
        if not queue.waiting or queue.identity is None:
            return _NEVER
        head = queue.waiting[0]
        if queue.in_flight:
            if queue.is_draining or queue.must_restart:
                return _NEVER
            limit = self._in_flight_max if queue.is_known or not self._idempotent else 1
            if len(queue.in_flight) >= limit:
                return _NEVER
        lingers = head.is_open and len(queue.waiting) == 1
        return max(queue.not_before_ms, head.created_ms + self._linger_ms if lingers else 0)

    def next_size(self, partition: TopicPartition) -> int:
        """The size of the batch that `take` would give."""
        return self._queues[partition].waiting[0].size

    def take(self, partition: TopicPartition) -> ProducerBatch:
        """The next batch of a partition that is ready, now under way, with its bytes in `data`.

        Whatever building it raises leaves everything as it was; then `drop` it.
        """
        queue = self._queues[partition]
        batch = queue.waiting[0]
        assert queue.identity is not None, "a partition without a producer id is never ready"
        writer, sequence = batch.identity or Identity(), batch.base_sequence
        is_new_in_sequence = self._idempotent and sequence == NO_SEQUENCE
        if is_new_in_sequence:
            writer, sequence = queue.identity, queue.next_sequence
        if not batch.data:
            batch.data = batch.contents.build(writer, sequence)
        if is_new_in_sequence:
            batch.identity, batch.base_sequence = writer, sequence
            queue.next_sequence = (sequence + batch.contents.count) % SEQUENCE_LIMIT
        batch.attempts += 1
        queue.in_flight.append(queue.waiting.pop(0))
        return batch

    def drop(self, partition: TopicPartition, error: KafkaError) -> list[Outcome]:
        """Gives up the next batch of a partition: it cannot be sent at all."""
        queue = self._queues[partition]
        batch = queue.waiting.pop(0)
        return [self._give_up(queue, batch, error), *self._settle(queue)]

    # Outcomes

    def acknowledge(self, batch: ProducerBatch, base_offset: int, append_time_ms: int = -1) -> list[Outcome]:
        """The broker has it."""
        queue = self._queues[batch.partition]
        queue.in_flight.remove(batch)
        queue.is_known = queue.is_known or batch.identity == queue.identity
        return [self._done(Outcome(batch, base_offset, append_time_ms)), *self._settle(queue)]

    def fail(self, batch: ProducerBatch, error: KafkaError, now_ms: int, retry_at_ms: int) -> list[Outcome]:
        """It was refused, or nobody knows: it waits to be sent again, or is given up."""
        if error.code == ErrorCode.duplicate_sequence_number:
            # Written before, so long ago that the broker does not remember where.
            return self.acknowledge(batch, -1)
        queue = self._queues[batch.partition]
        is_first = self._is_first(queue, batch)
        queue.in_flight.remove(batch)
        queue.is_draining = bool(queue.in_flight)
        batch.last_error = error
        batch.may_be_written = batch.may_be_written or error.code not in _NOT_WRITTEN
        outcomes: list[Outcome] = []
        if now_ms >= batch.created_ms + self._delivery_timeout_ms:
            outcomes.append(self._give_up(queue, batch, error))
        elif self._idempotent and error.code in _SEQUENCE_IS_LOST:
            # Behind one that failed this was to be expected. Otherwise the broker does not know of what it had
            # acknowledged, and the sequence begins anew.
            queue.must_restart = queue.must_restart or is_first
            queue.not_before_ms = retry_at_ms
            insort(queue.waiting, batch, key=_order)
        elif error.code in _TOO_LARGE:
            halves = None if batch.may_be_written else batch.contents.halves()
            if halves is None:
                outcomes.append(self._give_up(queue, batch, batch.contents.too_large(error)))
            else:
                for half in _in_place_of(batch, halves):
                    insort(queue.waiting, half, key=_order)
        elif error.is_retriable:
            queue.not_before_ms = retry_at_ms
            insort(queue.waiting, batch, key=_order)
        else:
            outcomes.append(self._give_up(queue, batch, error))
        return outcomes + self._settle(queue)

    def put_back(self, batch: ProducerBatch, error: KafkaError) -> None:
        """It did not leave after all."""
        queue = self._queues[batch.partition]
        queue.in_flight.remove(batch)
        queue.is_draining = bool(queue.in_flight)
        batch.last_error = error
        insort(queue.waiting, batch, key=_order)

    def note(self, partition: TopicPartition, error: KafkaError) -> None:
        """Why the next batch of a partition cannot be taken, for the case that it is never."""
        self._queues[partition].waiting[0].last_error = error

    def expire(self, now_ms: int) -> list[Outcome]:
        """Gives up what has waited for longer than the delivery timeout. Batches under way are awaited."""
        outcomes: list[Outcome] = []
        for queue in self._queues.values():
            for batch in list(queue.waiting):
                if now_ms >= batch.created_ms + self._delivery_timeout_ms:
                    queue.waiting.remove(batch)
                    text = f"{batch.partition} took no records for {self._delivery_timeout_ms} ms"
                    if batch.last_error is not None:
                        text += f"; the last error was {batch.last_error}"
                    outcomes.append(self._give_up(queue, batch, RequestTimedOutError(text)))
            outcomes += self._settle(queue)
        return outcomes

    def abandon(self, error: KafkaError) -> list[Outcome]:
        """Gives up everything that waits."""
        outcomes: list[Outcome] = []
        for queue in self._queues.values():
            waiting, queue.waiting = queue.waiting, []
            outcomes += [self._give_up(queue, batch, error) for batch in waiting]
        return outcomes

    def _is_first(self, queue: _Queue, batch: ProducerBatch) -> bool:
        """Whether every batch of the partition before this one has its outcome, and no gap is known."""
        before = [each for each in (*queue.in_flight, *queue.waiting) if each.order < batch.order]
        return not before and not queue.must_restart

    def _give_up(self, queue: _Queue, batch: ProducerBatch, error: KafkaError) -> Outcome:
        if batch.base_sequence != NO_SEQUENCE:
            queue.must_restart = True
        return self._done(Outcome(batch, error=error))

    def _settle(self, queue: _Queue) -> list[Outcome]:
        """When no answer is outstanding sending goes on: with the next epoch, if there is a gap."""
        if queue.in_flight:
            return []
        queue.is_draining = False
        if not queue.must_restart:
            return []
        assert queue.identity is not None, "there is no sequence without a producer id"
        producer_id, epoch = queue.identity
        queue.identity = Identity(producer_id, epoch + 1) if epoch < EPOCH_MAX else None
        queue.next_sequence, queue.is_known, queue.must_restart = 0, False, False
        outcomes = []
        for batch in list(queue.waiting):
            if batch.may_be_written:
                queue.waiting.remove(batch)
                error = batch.last_error or KafkaError(ErrorCode.out_of_order_sequence_number)
                outcomes.append(self._done(Outcome(batch, error=error)))
            else:
                batch.identity, batch.base_sequence, batch.data = None, NO_SEQUENCE, b""
        return outcomes

    def _done(self, outcome: Outcome) -> Outcome:
        self._used_bytes -= outcome.batch.size - HEADER_SIZE
        return outcome


_NEVER = 2**63


def _order(batch: ProducerBatch) -> tuple[int, ...]:
    return batch.order


def _in_place_of(batch: ProducerBatch, halves: tuple[Contents, Contents]) -> Iterator[ProducerBatch]:
    """Two batches in the place of one that was refused for its size: together they fill its range of sequences."""
    sequence = batch.base_sequence
    for number, contents in enumerate(halves):
        yield ProducerBatch(
            batch.partition,
            (*batch.order, number),
            batch.created_ms,
            contents,
            size=HEADER_SIZE + contents.size,
            is_full=True,
            identity=batch.identity,
            base_sequence=sequence,
            attempts=batch.attempts,
            last_error=batch.last_error,
        )
        if sequence != NO_SEQUENCE:
            sequence = (sequence + contents.count) % SEQUENCE_LIMIT
