"""Completed fetches: the validated batches of one partition, and the buffer of those that no poll has returned yet."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from moldau.client.errors import ErrorCode, KafkaError
from moldau.client.record import ConsumerRecord, TopicPartition, decode_records
from moldau.errors import MoldauError
from moldau.records.batch import HEADER_SIZE, LOG_OVERHEAD, Batch
from moldau.records.control_records import ControlRecordType, control_type
from moldau.records.record import iterate_records
from moldau.wire.codec import Message

READ_UNCOMMITTED, READ_COMMITTED = 0, 1


class LogTruncationError(KafkaError):
    """The log was truncated below the position, so records that were already read have been removed."""

    def __init__(self, partition: TopicPartition, position: int, end_offset: int, leader_epoch: int) -> None:
        super().__init__(
            ErrorCode.offset_out_of_range,
            f"the log of {partition} was truncated to {end_offset}, below the position {position}",
        )
        self.offset = min(end_offset, position)
        """The offset to which the log was truncated. Records below this offset are unchanged."""
        self.leader_epoch = leader_epoch
        """The leader epoch of the record before `offset`."""


class CompletedFetch(NamedTuple):
    """The fetched batches of one partition. If `error` is set, the partition is not fetched again until a seek."""

    partition: TopicPartition
    position: int
    """The fetch offset. Callers must skip records below this offset, which the first batch may contain."""
    next_offset: int
    """The offset of the next fetch: after the last batch, even a control batch, or the end of a bounded read."""
    batches: Sequence[Batch]
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    error: KafkaError | None = None
    is_empty: bool = False
    """Whether a bounded read is finished because the leader has no records between `position` and the end offset."""
    leader_epoch: int = -1
    """The leader epoch of the last batch before `next_offset`, control batches included; -1 if there was none."""

    @property
    def size(self) -> int:
        return sum(batch.size for batch in self.batches)


class ParsedBatches(NamedTuple):
    batches: list[Batch]
    next_offset: int
    leader_epoch: int
    """The leader epoch of the last batch; -1 if there was none."""
    error: KafkaError | None


def parse_batches(
    partition: TopicPartition, response: Message, position: int, isolation_level: int, until: int | None = None
) -> ParsedBatches:
    """Parses batches from `position`, up to the first corrupt batch or the batch that reaches `until`.

    If a transaction marker is corrupt, returns only an error, because it is unknown which transactions were aborted.
    """
    batches: list[Batch] = []
    next_offset, leader_epoch = position, -1
    error: KafkaError | None = None
    try:
        for batch in _split_batches(response.records):
            if until is not None and next_offset >= until:
                break
            if not batch.has_valid_checksum():
                raise KafkaError(ErrorCode.corrupt_message, f"{batch!r} of {partition} has a wrong checksum")
            if batch.next_offset > next_offset:
                batches.append(batch)
                next_offset, leader_epoch = batch.next_offset, batch.leader_epoch
    except KafkaError as failure:
        error = failure
    except MoldauError as failure:
        error = KafkaError(ErrorCode.corrupt_message, f"{partition} at offset {next_offset}: {failure}")
    if isolation_level == READ_COMMITTED:
        try:
            batches = _drop_aborted(batches, response.aborted_transactions or ())
        except MoldauError as failure:
            text = f"transaction marker in {partition} from offset {position} on: {failure}"
            return ParsedBatches([], position, -1, KafkaError(ErrorCode.corrupt_message, text))
    batches = [batch for batch in batches if not batch.is_control]
    return ParsedBatches(batches, next_offset, leader_epoch, error)


def _split_batches(records: memoryview | None) -> Iterable[Batch]:
    """Yields the batches of a response, without a truncated last batch. Raises KafkaError if the first is truncated."""
    position, end = 0, 0 if records is None else len(records)
    while records is not None and end - position >= HEADER_SIZE:
        size = int.from_bytes(records[position + 8 : position + 12], "big", signed=True) + LOG_OVERHEAD
        if position + size > end:
            if position == 0:
                raise KafkaError(ErrorCode.message_too_large, f"a batch of {size} bytes is truncated to {end}")
            return
        # If the size is smaller than a header, `Batch` raises an error, so the loop cannot run forever.
        yield Batch(records[position : position + max(size, 0)])
        position += size


def _drop_aborted(batches: Sequence[Batch], aborted: Iterable[Message]) -> list[Batch]:
    """Returns the batches without those of `aborted` transactions and without their abort markers."""
    pending = sorted((each.first_offset, each.producer_id) for each in aborted)
    pending.reverse()
    aborting: dict[int, None] = {}
    kept = []
    for batch in batches:
        while pending and pending[-1][0] <= batch.last_offset:
            aborting[pending.pop()[1]] = None
        if batch.is_control and _is_abort_marker(batch):
            aborting.pop(batch.producer_id, None)
        elif not (batch.is_transactional and batch.producer_id in aborting):
            kept.append(batch)
    return kept


def _is_abort_marker(batch: Batch) -> bool:
    record = next(iterate_records(batch), None)
    return record is not None and control_type(record.key) == ControlRecordType.ABORT


PositionUpdate = Callable[[TopicPartition, int, int], None]
"""Called with a partition, its next offset, and the leader epoch of the record before that offset."""


class PartitionFetchError(Exception):
    """An error that stops reading a partition until a seek."""

    def __init__(self, partition: TopicPartition, error: KafkaError) -> None:
        super().__init__(f"{partition}: {error}")
        self.partition = partition
        self.error = error


class FetchBuffer:
    """Completed fetches in the order of their arrival. A fetch may have more records than a poll returns."""

    def __init__(self, is_paused: Callable[[TopicPartition], bool], update_position: PositionUpdate) -> None:
        """`update_position` is called when records are taken, and when offsets without records are skipped."""
        self._is_paused = is_paused
        self._update_position = update_position
        self._entries: deque[_BufferedFetch] = deque()

    def add(self, fetched: Iterable[CompletedFetch]) -> None:
        self._entries.extend(_BufferedFetch(each) for each in fetched)

    def drop(self, partitions: Iterable[TopicPartition]) -> None:
        dropped = set(partitions)
        self._entries = deque(each for each in self._entries if each.partition not in dropped)

    def has_readable(self) -> bool:
        """Returns whether there are records to take. Nothing should be added until these records are taken."""
        return any(not each.is_drained for each in self._readable())

    @property
    def failed_partitions(self) -> list[TopicPartition]:
        """The partitions with an error. They are not read until `drop` removes them."""
        return [each.partition for each in self._entries if each.is_drained]

    def take_records(self, records_max: int) -> list[ConsumerRecord]:
        """Returns up to `records_max` records, partition by partition, without paused partitions.

        If there are none and a partition has failed, raises PartitionFetchError until `drop` removes that partition.
        """
        taken: list[ConsumerRecord] = []
        for entry in self._readable():
            taken += entry.read_records(records_max - len(taken))
            self._update_position(entry.partition, entry.position, entry.leader_epoch)
            if len(taken) >= records_max:
                break
        self._remove_drained(taken)
        return taken

    def take_batches(self) -> list[CompletedFetch]:
        """Returns all remaining batches of partitions that are not paused. Raises the same errors as `take_records`."""
        taken: list[CompletedFetch] = []
        for entry in self._readable():
            fetched = entry.remaining()
            taken += [fetched] if fetched.batches else []
            self._update_position(entry.partition, entry.position, entry.leader_epoch)
        self._remove_drained(taken)
        return taken

    def _readable(self) -> Iterator["_BufferedFetch"]:
        failed_partitions: set[TopicPartition] = set()
        for entry in self._entries:
            if not self._is_paused(entry.partition) and entry.partition not in failed_partitions:
                yield entry
                if entry.error is not None:
                    # Do not read later fetches of the partition, because records before them are missing.
                    failed_partitions.add(entry.partition)

    def _remove_drained(self, taken: Iterable[object]) -> None:
        self._entries = deque(each for each in self._entries if not each.is_drained or each.error is not None)
        if taken:
            return
        for entry in self._entries:
            if entry.is_drained and entry.error is not None and not self._is_paused(entry.partition):
                raise PartitionFetchError(entry.partition, entry.error)


class _BufferedFetch:
    """A completed fetch that is read record by record."""

    def __init__(self, fetched: CompletedFetch) -> None:
        self.partition = fetched.partition
        self.position = fetched.position
        self.leader_epoch = -1
        self.error = fetched.error
        self.is_drained = False
        """Whether all records were read. If `error` is set, it is raised next."""
        self._fetched = fetched
        self._records = (
            record for batch in fetched.batches for record in decode_records(fetched.partition, batch, fetched.position)
        )

    def read_records(self, records_max: int) -> list[ConsumerRecord]:
        records: list[ConsumerRecord] = []
        if self.is_drained:
            return records
        try:
            for record in islice(self._records, records_max):
                records.append(record)
        except MoldauError as error:
            self.error = KafkaError(ErrorCode.corrupt_message, str(error))
            self.is_drained = True
        if records:
            self.position, self.leader_epoch = records[-1].offset + 1, records[-1].leader_epoch
        if len(records) < records_max and not self.is_drained:
            self._mark_drained()
        return records

    def remaining(self) -> CompletedFetch:
        batches = [] if self.is_drained else [e for e in self._fetched.batches if e.next_offset > self.position]
        remaining = self._fetched._replace(position=self.position, batches=batches, error=None)
        if not self.is_drained:
            self._mark_drained()
        return remaining

    def _mark_drained(self) -> None:
        self.is_drained = True
        self.position = self._fetched.next_offset
        self.leader_epoch = max(self.leader_epoch, self._fetched.leader_epoch)
