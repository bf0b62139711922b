"""LogStore: where partitions keep their logs. Narrow, awaitable, with zero-copy reads where a store can.

It knows batches, offsets, times, epochs and producers. It knows nothing of groups, transactions or HTTP, and
nothing above it may assume that a call returns at once.
"""

import errno
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from moldau.errors import StorageError
from moldau.logs.leader_epochs import LeaderEpochCache
from moldau.logs.producer_state import ProducerStateManager
from moldau.platform.disk import File
from moldau.platform.group_commit import copy_os_error
from moldau.records.batch import Batch
from moldau.settings.topic import TopicSettings

TRANSIENT_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE)
"""Failures that may pass and leave a log usable; after any other the disk cannot be trusted."""


def is_transient(error: StorageError) -> bool:
    """Whether what could not be written may be written later: there was no room, say, and the disk is as it was."""
    return isinstance(error.__cause__, OSError) and error.__cause__.errno in TRANSIENT_ERRNOS


def copy_error(error: StorageError) -> StorageError:
    """A fresh copy, of an error to keep or of a kept one to raise: an error holds on to every frame that it came
    through, with the files and requests in them."""
    copy, cause = StorageError(str(error)), error.__cause__
    copy.__cause__ = copy_os_error(cause) if isinstance(cause, OSError) else None
    return copy


class LogName(NamedTuple):
    """A partition's name as its directory spells it: `orders-0`."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


@dataclass(frozen=True, slots=True)
class FileSlice:
    """A stretch of a file. Holding it keeps the file readable."""

    file: File
    position: int
    size: int

    def read(self) -> bytes:
        return self.file.read(self.position, self.size)


class RecordSlices(NamedTuple):
    """What a read found: whole batches, except that the last one may be cut off by the byte limit."""

    parts: Sequence[FileSlice | bytes | memoryview]
    size: int

    def read(self) -> bytes:
        return b"".join(part.read() if isinstance(part, FileSlice) else part for part in self.parts)


EMPTY_SLICES = RecordSlices((), 0)


class TimestampAndOffset(NamedTuple):
    timestamp_ms: int
    offset: int
    leader_epoch: int


class Log(ABC):
    """One partition's log.

    Appends, truncations and start-offset moves of one log are called one after the other (the partition sees
    to that); reads and `flush` may run beside them.
    """

    name: LogName
    topic_id: UUID
    settings: TopicSettings

    start_offset: int
    """The first offset that may be read; moved by retention and DeleteRecords."""
    end_offset: int
    """The offset the next record will get. Moves with append."""
    durable_offset: int
    """Everything below it survives a power cut. Moves with make_durable; never above end_offset."""

    checkpointed_high_watermark: int = 0
    """Everything below it was committed once; kept by LogStore.save_high_watermarks, so that a restart knows it. More
    may have been committed since, and after a crash the log may end before it."""

    producers: ProducerStateManager
    """Rebuilt from the log; kept up to date by append, truncate_to and retention."""
    epochs: LeaderEpochCache
    """Where each leader epoch began. append adds to it from the batches' own leader epochs."""

    @property
    def failure(self) -> str | None:
        """Why the log is offline for good, or None. An error that may pass (a full disk) leaves it None."""
        return None

    @abstractmethod
    async def append(self, batches: Sequence[Batch]) -> None:
        """Adds batches whose base offset and leader epoch are stamped, at or after end_offset, ascending.

        Raises StorageError when the disk fails; then nothing of these batches is visible, and the log takes
        no more appends (ENOSPC: the torn bytes are cut off again and later appends may succeed).
        """

    @abstractmethod
    async def flush(self) -> None:
        """Everything appended before this call is below durable_offset when it returns.

        Callers that come while a sync is running share the next one.
        """

    @property
    def has_unfinalized_segments(self) -> bool:
        """Whether there is work that nobody has to wait for: see `finalize_segments`."""
        return False

    async def finalize_segments(self) -> None:  # noqa: B027 - most stores have nothing to settle
        """Does what making durable has left to be done beside appends and syncs (indexes of closed segments)."""

    @abstractmethod
    async def read(
        self, offset: int, bytes_max: int, below: int, *, min_one_batch: bool = True
    ) -> RecordSlices:
        """Batches from the one that holds `offset` (or the first after it) up to the offset `below`.

        At most bytes_max bytes, except that with whole_first the first batch comes whole. start_offset <=
        offset is the caller's duty; offset >= below gives NOTHING.
        """

    @abstractmethod
    async def offset_for_timestamp(self, timestamp_ms: int, below: int) -> TimestampAndOffset | None:
        """The first record at or after start_offset, below `below`, whose timestamp is >= timestamp_ms."""

    @abstractmethod
    async def max_timestamp(self, below: int) -> TimestampAndOffset | None:
        """The record with the largest timestamp (the first of them), or None in an empty log."""

    @abstractmethod
    async def truncate_to(self, offset: int) -> None:
        """Drops everything at and after `offset`, durably; producers and epochs follow."""

    @abstractmethod
    async def truncate_fully_and_start_at(self, offset: int) -> None:
        """Drops everything, producers and epochs too, durably: the log is empty and begins at `offset`, which may lie
        anywhere. After a crash it is as it was or as it should be."""

    @abstractmethod
    async def advance_start_offset(self, offset: int) -> None:
        """Moves start_offset to `offset`, durably, and drops what lies wholly below it."""

    @abstractmethod
    async def apply_retention(self, now_ms: int, below: int) -> None:
        """Deletes by retention.ms and retention.bytes where cleanup.policy has delete; never at or after `below`.

        Rolls the active segment by segment.ms, so that idle topics shrink too.
        """

    @abstractmethod
    async def compact(self, now_ms: int, below: int) -> bool:
        """One round of compaction where cleanup.policy has compact and enough is dirty; True if it did any."""

    @abstractmethod
    def configure(self, settings: TopicSettings) -> None:
        """Takes changed topic settings."""

    @property
    @abstractmethod
    def size(self) -> int:
        """Bytes of all batches, for DescribeLogDirs and retention."""

    @abstractmethod
    async def close(self) -> None:
        """Makes all durable and lets go of files, so that opening again needs no recovery."""


class LogStore(ABC):
    """All logs of a node."""

    had_clean_shutdown: bool = True
    """Set by start(): False where the node ended without closing its logs, so that unsynced records may be gone."""
    previous_broker_epoch: int = -1
    """Set by start(): what `close` was given last, if it was the last thing that happened to the logs."""

    @abstractmethod
    async def start(self) -> None:
        """Finds what is there; finishes deletions that a crash interrupted. Called once, first."""

    @abstractmethod
    def found(self) -> Sequence[tuple[LogName, UUID]]:
        """The logs that start() found, with the topic ids they were created with."""

    @abstractmethod
    async def open(self, name: LogName, topic_id: UUID, settings: TopicSettings) -> Log:
        """Opens a log, recovering it after a crash, or creates it (durably).

        A log of the same name but another topic id belongs to a deleted topic: it is set aside first. Raises
        StorageError when the log cannot be trusted; other logs are not harmed.
        """

    @abstractmethod
    async def remove(self, name: LogName) -> None:
        """Closes and deletes; returns when a restart would not find it any more."""

    @abstractmethod
    async def move_to_stray(self, name: LogName) -> None:
        """Keeps a log that nobody knows, under a name by which it is never found or opened again: only an operator
        can say what is to become of it."""

    @abstractmethod
    async def checkpoint_high_watermarks(self) -> None:
        """Writes down what was noted in the logs' `checkpointed_high_watermark`."""

    @abstractmethod
    async def close(self, broker_epoch: int = -1) -> None:
        """Closes all logs and marks the shutdown as clean, in the life of the broker that has this epoch."""

    @abstractmethod
    def space(self) -> tuple[int, int]:
        """(total, usable) bytes of the volume."""
