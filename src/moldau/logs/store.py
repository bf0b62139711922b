"""The interface of log stores: `LogStore` for all logs of a broker, `Log` for one partition."""

import errno
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from moldau.errors import StorageError
from moldau.logs.leader_epochs import LeaderEpochCache
from moldau.logs.producer_state import ProducerStateManager
from moldau.logs.transaction_index import AbortedTransaction
from moldau.metrics.histogram import DurationHistogram
from moldau.platform.disk import File
from moldau.platform.group_commit import copy_os_error
from moldau.records.batch import Batch
from moldau.settings.topic import TopicSettings

TRANSIENT_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE)
"""Disk errors after which a log stays usable. After any other error the disk cannot be trusted."""


class StoreUnavailableError(StorageError):
    """The server of the store does not respond. It may do so later."""


def is_transient(error: StorageError) -> bool:
    """Returns whether the failed operation may succeed later, for example after the disk was full."""
    if isinstance(error, StoreUnavailableError):
        return True
    return isinstance(error.__cause__, OSError) and error.__cause__.errno in TRANSIENT_ERRNOS


def copy_error(error: StorageError) -> StorageError:
    """Returns a copy without the traceback, which would keep files and requests in memory if the error is stored."""
    copy, cause = type(error)(str(error)), error.__cause__
    copy.__cause__ = copy_os_error(cause) if isinstance(cause, OSError) else None
    return copy


class LogName(NamedTuple):
    """The name of a partition and of its directory, such as `orders-0`."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


@dataclass(frozen=True, slots=True)
class FileSlice:
    """A range of a file, which stays readable as long as the slice is referenced."""

    file: File
    position: int
    size: int

    def read(self) -> bytes:
        return self.file.read(self.position, self.size)


class RecordSlices(NamedTuple):
    """The result of a read: whole batches."""

    parts: Sequence[FileSlice | bytes | memoryview]
    size: int

    def read(self) -> bytes:
        return b"".join(part.read() if isinstance(part, FileSlice) else part for part in self.parts)


BATCHES_SKIPPED_MAX = 1_000
"""How many batches without records of clients `Log.find_batch_time` skips."""

EMPTY_SLICES = RecordSlices((), 0)


class TimestampAndOffset(NamedTuple):
    timestamp_ms: int
    offset: int
    leader_epoch: int


class BatchTime(NamedTuple):
    """The time of a batch according to its header."""

    offset: int
    """The offset from which the batch was found, or its first offset if that is later."""
    timestamp_ms: int
    """The largest timestamp of the batch; NO_TIMESTAMP if its records have none."""
    is_append_time: bool
    """Whether the topic uses LogAppendTime. Otherwise the producer has set the timestamp."""


class Log(ABC):
    """The log of one partition.

    The caller serializes appends, truncations and changes of the start offset. Reads and `flush` may run concurrently.
    """

    name: LogName
    topic_id: UUID
    settings: TopicSettings

    start_offset: int
    """The first readable offset; retention and DeleteRecords advance it."""
    end_offset: int
    """The offset of the next record."""
    durable_offset: int
    """All records below this offset survive a power failure. `flush` advances it up to end_offset."""

    checkpointed_high_watermark: int = 0
    """A lower bound of the high watermark. After a crash the log may end before this offset."""

    producers: ProducerStateManager
    epochs: LeaderEpochCache

    @property
    def failure(self) -> str | None:
        """Why the log is offline; None if it is online. A full disk does not take the log offline."""
        return None

    @abstractmethod
    async def append(self, batches: Sequence[Batch]) -> None:
        """Appends batches whose base offset and leader epoch are set, in ascending order from end_offset on.

        Raises StorageError if the disk fails. Then none of the batches is visible, and the log is offline unless the
        error is transient.
        """

    @abstractmethod
    async def flush(self) -> None:
        """Makes all batches that were appended before this call durable. Concurrent callers share an fsync."""

    @property
    def has_unfinalized_segments(self) -> bool:
        return False

    async def finalize_segments(self) -> None:  # noqa: B027 - a store without segments has nothing to do
        """Writes the indexes and snapshots of closed and flushed segments, so that recovery may skip these segments."""

    @abstractmethod
    async def read(
        self, offset: int, bytes_max: int, below: int, *, min_one_batch: bool = True, skip_empty: bool = False
    ) -> RecordSlices:
        """Returns the batches from the one that contains `offset` (or the first after it) up to the offset `below`.

        The result has at most bytes_max bytes. With min_one_batch it has at least the whole first batch. `offset` must
        not be below start_offset.

        With skip_empty the result starts with the first batch that has a record at or after `offset`, and ends before
        two empty batches in a row. Compaction may have removed all records of a batch or the last ones. Some clients do
        not advance if they receive only such batches, and fail if they receive several. If there is no record, the
        result is the last batch, which takes the reader to `below`.
        """

    def last_stable_offset(self, high_watermark: int) -> int:
        """Returns the offset below which every transaction has ended, and its marker is below the high watermark."""
        first_offset = self.producers.unstable.first_offset(high_watermark)
        if first_offset is None:
            return high_watermark
        return max(self.start_offset, min(first_offset, high_watermark))

    @abstractmethod
    async def read_committed(
        self, offset: int, bytes_max: int, below: int, *, min_one_batch: bool = True
    ) -> tuple[RecordSlices, Sequence[AbortedTransaction]]:
        """Returns the same as `read` with skip_empty, and the aborted transactions of these records."""

    @abstractmethod
    async def offset_for_timestamp(self, timestamp_ms: int, below: int) -> TimestampAndOffset | None:
        """Returns the first record with an offset less than `below` and a timestamp of at least timestamp_ms."""

    @abstractmethod
    async def max_timestamp(self, below: int) -> TimestampAndOffset | None:
        """Returns the first record with the largest timestamp among the offsets less than `below`, or None."""

    @abstractmethod
    async def find_batch_time(self, offset: int, below: int) -> BatchTime | None:
        """Returns the time of the first batch with records of clients that ends at or after `offset` and starts before
        `below`; None if there is none. Reads only headers.

        If very many batches without such records come first, returns the time of the last one that was read.
        """

    @abstractmethod
    async def truncate_to(self, offset: int) -> None:
        """Deletes all records at and after `offset`, durably. Producers and epochs are truncated too."""

    @abstractmethod
    async def truncate_fully_and_start_at(self, offset: int) -> None:
        """Resets the log to `offset`, durably and atomically. Removes all records, producers and epochs."""

    @abstractmethod
    async def advance_start_offset(self, offset: int) -> None:
        """Advances start_offset to `offset`, durably, and deletes storage that contains only records below `offset`."""

    @abstractmethod
    async def apply_retention(self, now_ms: int, below: int) -> None:
        """Deletes old records with offsets less than `below` if cleanup.policy contains `delete`.

        Also rolls the active segment by segment.ms, so that idle topics shrink too.
        """

    @abstractmethod
    async def compact(self, now_ms: int, below: int) -> bool:
        """Compacts records with offsets less than `below` if cleanup.policy contains `compact` and enough is dirty.

        Returns whether anything was cleaned.
        """

    @abstractmethod
    def configure(self, settings: TopicSettings) -> None: ...

    @property
    @abstractmethod
    def size(self) -> int:
        """The size of all batches in bytes."""

    @abstractmethod
    async def close(self) -> None:
        """Flushes and closes the log, so that opening it again needs no recovery."""


class LogStore(ABC):
    had_clean_shutdown: bool = True
    """Whether the last shutdown was clean; set by start(). After a crash unflushed records may be lost."""
    previous_broker_epoch: int = -1
    """The broker epoch of the last clean shutdown, -1 after a crash; set by start()."""

    @abstractmethod
    async def start(self) -> None:
        """Finds the existing logs and completes interrupted deletions. Called once, before all other methods."""

    @abstractmethod
    def list_logs(self) -> Sequence[tuple[LogName, UUID]]:
        """Returns all logs with their topic ids."""

    @abstractmethod
    async def open(self, name: LogName, topic_id: UUID, settings: TopicSettings) -> Log:
        """Opens a log, or creates it durably. Raises StorageError if the log is damaged.

        An existing log with the same name and another topic id is renamed to a stray log first.
        """

    @abstractmethod
    async def remove(self, name: LogName) -> None:
        """Closes and deletes a log. Returns when the deletion is durable."""

    @abstractmethod
    async def move_to_stray(self, name: LogName) -> None:
        """Closes a log that belongs to no topic, and renames it to a stray log.

        A stray log is never opened or deleted, because an operator has to decide about it.
        """

    @abstractmethod
    async def checkpoint_high_watermarks(self) -> None:
        """Makes the `checkpointed_high_watermark` of all logs durable."""

    @abstractmethod
    async def close(self, broker_epoch: int = -1) -> None:
        """Closes all logs and records a clean shutdown in this broker epoch."""

    @property
    def sync_durations(self) -> DurationHistogram:
        """Durations of fsyncs, or of commits in a database; empty if nothing becomes durable."""
        return DurationHistogram()

    @abstractmethod
    def space(self) -> tuple[int, int]:
        """Returns the total and the usable bytes of the volume."""
