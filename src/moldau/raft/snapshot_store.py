"""Where a node keeps snapshots of the metadata: each stands for the metadata log up to an offset, so that the log
need not reach back to its beginning.

A snapshot is there as a whole or not at all. The newest two are kept, and the log from the older one's end on:
should the newest be found damaged, nothing is lost.
"""

import asyncio
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

from moldau.errors import CorruptRecordError, PositionOutOfRangeError, SnapshotNotFoundError, StorageError
from moldau.logs.store import Log
from moldau.observe.logging import get_logger
from moldau.platform.disk import Disk
from moldau.raft.messages import SnapshotId
from moldau.raft.snapshot_format import SnapshotContents, decode, encode, snapshot_name

log = get_logger("quorum.snapshots")

SUFFIX = ".checkpoint"
SNAPSHOTS_RETAINED = 2

_NAME = re.compile(r"([0-9]{20})-([0-9]{10})\.checkpoint")


class SnapshotChunk(NamedTuple):
    size: int
    """Of the whole snapshot."""
    data: bytes


class SnapshotStore(ABC):
    """What is the same wherever the bytes are kept."""

    def __init__(self, found: Sequence[SnapshotId] = ()) -> None:
        self._ids = sorted(found)

    def latest(self) -> SnapshotId | None:
        return self._ids[-1] if self._ids else None

    def oldest(self) -> SnapshotId | None:
        """Of those that are kept: the log is needed from its end on."""
        return self._ids[0] if self._ids else None

    def read(self, snapshot: SnapshotId) -> SnapshotContents:
        """Raises SnapshotNotFoundError, CorruptRecordError, StorageError."""
        self._check_exists(snapshot)
        return decode(snapshot, self._read_bytes(snapshot, 0, None).data)

    def read_chunk(self, snapshot: SnapshotId, position: int, bytes_max: int) -> SnapshotChunk:
        """A part of the snapshot as it is sent to others; raises SnapshotNotFoundError, PositionOutOfRangeError,
        StorageError."""
        self._check_exists(snapshot)
        read_chunk = self._read_bytes(snapshot, max(position, 0), bytes_max)
        if not 0 <= position < read_chunk.size:
            raise PositionOutOfRangeError(
                f"the snapshot {snapshot_name(snapshot)} has {read_chunk.size} bytes, and none at position {position}"
            )
        return read_chunk

    async def store(self, contents: SnapshotContents) -> None:
        """Durable when it returns. Raises StorageError; then the snapshot is not there."""
        parts: list[bytes] = []
        for part in encode(contents):
            parts.append(part)
            # A large snapshot takes long to write: others get their turn between its batches.
            await asyncio.sleep(0)
        await self._store(contents.id, b"".join(parts))

    async def take(self, snapshot: SnapshotId, data: bytes) -> SnapshotContents:
        """Stores what was fetched from another node, if it is whole; raises CorruptRecordError, StorageError."""
        contents = decode(snapshot, data)
        await self._store(snapshot, data)
        return contents

    async def quarantine(self, snapshot: SnapshotId) -> None:
        """A damaged one does not count any more. Its file is kept for whoever looks into it."""
        await self._quarantine(snapshot)
        self._ids.remove(snapshot)

    async def _store(self, snapshot: SnapshotId, data: bytes) -> None:
        await self._write(snapshot, data)
        if snapshot not in self._ids:
            self._ids = sorted([*self._ids, snapshot])
        while len(self._ids) > SNAPSHOTS_RETAINED:
            self._remove(self._ids.pop(0))

    def _check_exists(self, snapshot: SnapshotId) -> None:
        if snapshot not in self._ids:
            raise SnapshotNotFoundError(f"there is no snapshot {snapshot_name(snapshot)} here")

    @abstractmethod
    def _read_bytes(self, snapshot: SnapshotId, position: int, bytes_max: int | None) -> SnapshotChunk: ...

    @abstractmethod
    async def _write(self, snapshot: SnapshotId, data: bytes) -> None:
        """Durably, and whole or not at all."""

    @abstractmethod
    def _remove(self, snapshot: SnapshotId) -> None: ...

    @abstractmethod
    async def _quarantine(self, snapshot: SnapshotId) -> None: ...


async def load_latest_snapshot(of: Log, snapshots: SnapshotStore) -> SnapshotContents | None:
    """What the node begins with: the newest whole snapshot, with the metadata log made to go on from its end.

    None where the log reaches back to the beginning of all. Raises StorageError where neither does.
    """
    while (last_entry := snapshots.latest()) is not None:
        try:
            contents = snapshots.read(last_entry)
        except CorruptRecordError as error:
            log.warning("a damaged snapshot of the metadata is set aside", why=str(error))
            await snapshots.quarantine(last_entry)
            continue
        if last_entry.end_offset < of.start_offset:
            raise _missing_prefix_error(
                of, f"the newest whole snapshot ends at offset {last_entry.end_offset}"
            )
        if not _contains_snapshot_end(of, last_entry):
            # Fetched from a leader because this log was behind or another; the crash came before it began anew.
            log.info("the metadata log begins anew behind its snapshot", offset=last_entry.end_offset)
            await of.truncate_fully_and_start_at(last_entry.end_offset)
        return contents
    if of.start_offset > 0:
        raise _missing_prefix_error(of, "there is no whole snapshot")
    return None


def _contains_snapshot_end(of: Log, snapshot: SnapshotId) -> bool:
    """Whether the log holds what the snapshot stands for, as far as it reaches back, and ends not before it."""
    if of.end_offset < snapshot.end_offset:
        return False
    if of.start_offset >= snapshot.end_offset:
        return True
    return of.epochs.epoch_for_offset(snapshot.end_offset - 1) == snapshot.epoch


def _missing_prefix_error(of: Log, found: str) -> StorageError:
    return StorageError(
        f"the metadata log begins at offset {of.start_offset}, and {found}: what came before cannot be known. "
        f"Restore {of.name} with its {SUFFIX} files from a copy; or, where other voters are whole, take its "
        "directory and the file quorum-state away, remove this node from the voters, and add it anew"
    )


class FileSnapshotStore(SnapshotStore):
    """Files in the metadata log's directory, named as Kafka names them."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._directory = directory
        found = (_NAME.fullmatch(name) for name in disk.list(directory))
        super().__init__([SnapshotId(int(match[1]), int(match[2])) for match in found if match])

    def _read_bytes(self, snapshot: SnapshotId, position: int, bytes_max: int | None) -> SnapshotChunk:
        try:
            file = self._disk.open(self._path(snapshot))
            try:
                size = file.size
                wanted = size if bytes_max is None else min(bytes_max, size)
                return SnapshotChunk(size, file.read(position, wanted) if position < size else b"")
            finally:
                file.close()
        except OSError as error:
            raise StorageError(f"{self._path(snapshot)} cannot be read: {error}") from error

    async def _write(self, snapshot: SnapshotId, data: bytes) -> None:
        try:
            await self._disk.replace(self._path(snapshot), data)
        except OSError as error:
            raise StorageError(f"{self._path(snapshot)} cannot be written: {error}") from error

    def _remove(self, snapshot: SnapshotId) -> None:
        try:
            # Not synced: one that a power cut brings back does no harm.
            self._disk.remove(self._path(snapshot))
        except OSError as error:
            log.warning("an old snapshot of the metadata stays", path=self._path(snapshot), why=str(error))

    async def _quarantine(self, snapshot: SnapshotId) -> None:
        path = self._path(snapshot)
        try:
            self._disk.rename(path, path + ".damaged")
            await self._disk.sync_directory(self._directory)
        except OSError as error:
            raise StorageError(f"{path} is damaged and cannot be set aside: {error}") from error

    def _path(self, snapshot: SnapshotId) -> str:
        return f"{self._directory}/{snapshot_name(snapshot)}{SUFFIX}"


class MemorySnapshotStore(SnapshotStore):
    """For a node without a disk."""

    def __init__(self) -> None:
        super().__init__()
        self._data: dict[SnapshotId, bytes] = {}

    def _read_bytes(self, snapshot: SnapshotId, position: int, bytes_max: int | None) -> SnapshotChunk:
        data = self._data[snapshot]
        return SnapshotChunk(len(data), data[position:][:bytes_max])

    async def _write(self, snapshot: SnapshotId, data: bytes) -> None:
        self._data[snapshot] = data

    def _remove(self, snapshot: SnapshotId) -> None:
        del self._data[snapshot]

    async def _quarantine(self, snapshot: SnapshotId) -> None:
        del self._data[snapshot]
