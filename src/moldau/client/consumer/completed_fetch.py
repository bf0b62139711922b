"""What a fetch of one partition brought: its batches cut out, checked, and cleared of what was aborted."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from moldau.client.errors import ErrorCode, KafkaError
from moldau.client.record import TopicPartition
from moldau.errors import MoldauError
from moldau.records.batch import HEADER_SIZE, LOG_OVERHEAD, Batch
from moldau.records.control_records import ControlRecordType, control_type
from moldau.records.record import iterate_records
from moldau.wire.codec import Message

READ_UNCOMMITTED, READ_COMMITTED = 0, 1


class LogTruncationError(KafkaError):
    """What was read last is not in the log any more: the log was cut, and has gone on differently."""

    def __init__(self, partition: TopicPartition, position: int, end_offset: int, leader_epoch: int) -> None:
        super().__init__(
            ErrorCode.offset_out_of_range,
            f"the log of {partition} was cut at {end_offset}, before {position}",
        )
        self.offset = min(end_offset, position)
        """Up to here all is as it was when it was read."""
        self.leader_epoch = leader_epoch
        """Of the record before that."""


class CompletedFetch(NamedTuple):
    """News of one partition. With an error the partition is not fetched from any more until somebody seeks."""

    partition: TopicPartition
    position: int
    """The offset that was asked for: records below it, which a first batch may hold, are not wanted."""
    next_offset: int
    """Where the next fetch goes on. It may be ahead of the last batch, for control records are not handed out; or
    inside it, where a bounded read ends."""
    batches: Sequence[Batch]
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    error: KafkaError | None = None
    is_empty: bool = False
    """A bounded read ends here: from `position` to its end the leader had nothing, however often it was asked."""
    leader_epoch: int = -1
    """Of the last batch before `next_offset`, also of one that is not handed out; -1 if none was passed."""

    @property
    def size(self) -> int:
        return sum(batch.size for batch in self.batches)


class ParsedBatches(NamedTuple):
    batches: list[Batch]
    next_offset: int
    leader_epoch: int
    """Of the last batch there was; -1 if there was none."""
    error: KafkaError | None


def parse_batches(
    partition: TopicPartition,
    answer: Message,
    position: int,
    isolation_level: int,
    until: int | None = None,
) -> ParsedBatches:
    """The batches of records from `position` on, up to the first that is damaged or the one that reaches `until`. Where
    it cannot be told which of them were aborted there are none."""
    batches: list[Batch] = []
    next_offset, leader_epoch = position, -1
    error: KafkaError | None = None
    try:
        for batch in _split_batches(answer.records):
            if until is not None and next_offset >= until:
                break
            if not batch.has_valid_checksum():
                raise KafkaError(ErrorCode.corrupt_message, f"{batch!r} of {partition} has a wrong checksum")
            if batch.next_offset > next_offset:
                batches.append(batch)
                next_offset, leader_epoch = batch.next_offset, batch.leader_epoch
    except KafkaError as found:
        error = found
    except MoldauError as found:
        error = KafkaError(ErrorCode.corrupt_message, f"{partition} at offset {next_offset}: {found}")
    if isolation_level == READ_COMMITTED:
        try:
            batches = _drop_aborted(batches, answer.aborted_transactions or ())
        except MoldauError as found:
            told = f"a transaction's end in {partition} from offset {position} on: {found}"
            return ParsedBatches([], position, -1, KafkaError(ErrorCode.corrupt_message, told))
    batches = [batch for batch in batches if not batch.is_control]
    return ParsedBatches(batches, next_offset, leader_epoch, error)


def _split_batches(records: memoryview | None) -> Iterable[Batch]:
    """The batches in an answer; a last one that the byte limit has cut off is left out."""
    position, end = 0, 0 if records is None else len(records)
    while records is not None and end - position >= HEADER_SIZE:
        size = int.from_bytes(records[position + 8 : position + 12], "big", signed=True) + LOG_OVERHEAD
        if position + size > end:
            if position == 0:
                raise KafkaError(
                    ErrorCode.message_too_large, f"a batch of {size} bytes comes cut off at {end}"
                )
            return
        # Batch refuses a size that is too small to be one.
        yield Batch(records[position : position + max(size, 0)])
        position += size


def _drop_aborted(batches: Sequence[Batch], aborted: Iterable[Message]) -> list[Batch]:
    """Leaves out the batches of transactions that were aborted: from their first offset to their abort marker."""
    beginning = sorted((each.first_offset, each.producer_id) for each in aborted)
    beginning.reverse()
    open_now: dict[int, None] = {}
    kept = []
    for batch in batches:
        while beginning and beginning[-1][0] <= batch.last_offset:
            open_now[beginning.pop()[1]] = None
        if batch.is_control and _is_abort_marker(batch):
            open_now.pop(batch.producer_id, None)
        elif not (batch.is_transactional and batch.producer_id in open_now):
            kept.append(batch)
    return kept


def _is_abort_marker(batch: Batch) -> bool:
    record = next(iterate_records(batch), None)
    return record is not None and control_type(record.key) == ControlRecordType.ABORT
