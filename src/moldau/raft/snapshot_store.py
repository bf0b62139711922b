"""Storage of metadata snapshots, which replace the start of the metadata log.

A snapshot is stored completely or not at all. The latest two snapshots are retained. The log after the older snapshot
is kept too, so that nothing is lost if the latest snapshot is damaged.
"""

import asyncio
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import closing
from typing import NamedTuple

from moldau.errors import CorruptRecordError, PositionOutOfRangeError, SnapshotNotFoundError, StorageError
from moldau.logs.store import Log
from moldau.observe.logging import get_logger
from moldau.platform.disk import SmallFiles
from moldau.raft.messages import SnapshotId
from moldau.raft.snapshot_format import (
    SnapshotContents,
    SnapshotDecoder,
    decode_snapshot,
    encode_snapshot,
    snapshot_name,
    split_snapshot,
)

log = get_logger("quorum.snapshots")

SUFFIX = ".checkpoint"
SNAPSHOTS_RETAINED = 2
STEP_BYTES = 1024 * 1024
"""How much of a snapshot is read before other tasks run."""

_NAME = re.compile(r"([0-9]{20})-([0-9]{10})\.checkpoint")


class SnapshotChunk(NamedTuple):
    size: int
    """The size of the whole snapshot in bytes."""
    data: bytes


class SnapshotStore(ABC):
    """Subclasses read and write the bytes."""

    def __init__(self, snapshots: Sequence[SnapshotId] = ()) -> None:
        self._ids = sorted(snapshots)

    def latest(self) -> SnapshotId | None:
        return self._ids[-1] if self._ids else None

    def oldest(self) -> SnapshotId | None:
        """Returns the oldest retained snapshot. The log after its end must be kept."""
        return self._ids[0] if self._ids else None

    def read(self, snapshot: SnapshotId) -> SnapshotContents:
        """Returns the contents of a snapshot. Raises SnapshotNotFoundError, CorruptRecordError or StorageError."""
        self._check_exists(snapshot)
        return decode_snapshot(snapshot, self._read_bytes(snapshot, 0, None).data)

    async def read_in_steps(self, snapshot: SnapshotId) -> SnapshotContents:
        """Reads like `read`, and lets other tasks run in between."""
        chunks = [self.read_chunk(snapshot, 0, STEP_BYTES)]
        while (position := sum(len(chunk.data) for chunk in chunks)) < chunks[0].size:
            await asyncio.sleep(0)
            chunks.append(self.read_chunk(snapshot, position, STEP_BYTES))
        decoder = SnapshotDecoder(snapshot)
        for batch in split_snapshot(snapshot, b"".join(chunk.data for chunk in chunks)):
            decoder.add(batch)
            await asyncio.sleep(0)
        return decoder.contents()

    def read_chunk(self, snapshot: SnapshotId, position: int, bytes_max: int) -> SnapshotChunk:
        """Returns a part of a snapshot. Raises SnapshotNotFoundError, PositionOutOfRangeError or StorageError."""
        self._check_exists(snapshot)
        chunk = self._read_bytes(snapshot, max(position, 0), bytes_max)
        if not 0 <= position < chunk.size:
            raise PositionOutOfRangeError(
                f"the snapshot {snapshot_name(snapshot)} has {chunk.size} bytes, and none at position {position}"
            )
        return chunk

    async def store(self, contents: SnapshotContents) -> None:
        """Stores the snapshot durably. Raises StorageError if this fails."""
        batches: list[bytes] = []
        for batch in encode_snapshot(contents):
            batches.append(batch)
            # Let other tasks run, because encoding a large snapshot takes long.
            await asyncio.sleep(0)
        await self._store(contents.id, b"".join(batches))

    async def store_fetched(self, snapshot: SnapshotId, data: bytes) -> SnapshotContents:
        """Stores a snapshot that was fetched from another node. Raises CorruptRecordError or StorageError."""
        contents = decode_snapshot(snapshot, data)
        await self._store(snapshot, data)
        return contents

    async def quarantine(self, snapshot: SnapshotId) -> None:
        """Stops using a damaged snapshot. Its file is kept for inspection."""
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
            raise SnapshotNotFoundError(f"snapshot {snapshot_name(snapshot)} does not exist")

    @abstractmethod
    def _read_bytes(self, snapshot: SnapshotId, position: int, bytes_max: int | None) -> SnapshotChunk: ...

    @abstractmethod
    async def _write(self, snapshot: SnapshotId, data: bytes) -> None:
        """Writes the snapshot durably, and either completely or not at all."""

    @abstractmethod
    def _remove(self, snapshot: SnapshotId) -> None: ...

    @abstractmethod
    async def _quarantine(self, snapshot: SnapshotId) -> None: ...


async def load_latest_snapshot(metadata_log: Log, snapshots: SnapshotStore) -> SnapshotContents | None:
    """Returns the latest intact snapshot, if any. A log that does not continue it is reset to the snapshot's end.

    Raises StorageError if records before the start of the log are in no snapshot.
    """
    while (latest := snapshots.latest()) is not None:
        try:
            contents = snapshots.read(latest)
        except CorruptRecordError as error:
            log.warning("ignoring a damaged metadata snapshot", reason=str(error))
            await snapshots.quarantine(latest)
            continue
        if latest.end_offset < metadata_log.start_offset:
            raise _missing_records_error(metadata_log, f"the latest intact snapshot ends at offset {latest.end_offset}")
        if not _continues(metadata_log, latest):
            # The snapshot was fetched from a leader, and the node crashed before it reset its log.
            log.info("resetting the metadata log to the end of its snapshot", offset=latest.end_offset)
            await metadata_log.truncate_fully_and_start_at(latest.end_offset)
        return contents
    if metadata_log.start_offset > 0:
        raise _missing_records_error(metadata_log, "there is no intact snapshot")
    return None


def _continues(metadata_log: Log, snapshot: SnapshotId) -> bool:
    """Returns whether the log has the snapshot's last record, or starts at the snapshot's end."""
    if metadata_log.end_offset < snapshot.end_offset:
        return False
    if metadata_log.start_offset >= snapshot.end_offset:
        return True
    return metadata_log.epochs.epoch_for_offset(snapshot.end_offset - 1) == snapshot.epoch


def _missing_records_error(metadata_log: Log, problem: str) -> StorageError:
    return StorageError(
        f"the metadata log starts at offset {metadata_log.start_offset}, and {problem}: earlier records are missing. "
        f"Restore {metadata_log.name} with its {SUFFIX} files from a backup; or, if the other voters are intact, "
        "remove this node from the voters, delete the log's directory and the file quorum-state, and add the node again"
    )


class FileSnapshotStore(SnapshotStore):
    """A store of snapshot files in the directory of the metadata log, with Kafka's file names."""

    def __init__(self, disk: SmallFiles, directory: str) -> None:
        self._disk = disk
        self._directory = directory
        matches = (_NAME.fullmatch(name) for name in disk.list(directory))
        super().__init__([SnapshotId(int(match[1]), int(match[2])) for match in matches if match])

    def _read_bytes(self, snapshot: SnapshotId, position: int, bytes_max: int | None) -> SnapshotChunk:
        try:
            with closing(self._disk.open(self._path(snapshot))) as file:
                size = file.size
                count = size if bytes_max is None else min(bytes_max, size)
                return SnapshotChunk(size, file.read(position, count) if position < size else b"")
        except OSError as error:
            raise StorageError(f"{self._path(snapshot)} cannot be read: {error}") from error

    async def _write(self, snapshot: SnapshotId, data: bytes) -> None:
        try:
            await self._disk.replace(self._path(snapshot), data)
        except OSError as error:
            raise StorageError(f"{self._path(snapshot)} cannot be written: {error}") from error

    def _remove(self, snapshot: SnapshotId) -> None:
        try:
            # No fsync is needed, because a file that reappears after a power failure is harmless.
            self._disk.remove(self._path(snapshot))
        except OSError as error:
            log.warning("cannot delete an old metadata snapshot", path=self._path(snapshot), reason=str(error))

    async def _quarantine(self, snapshot: SnapshotId) -> None:
        path = self._path(snapshot)
        try:
            self._disk.rename(path, path + ".damaged")
            await self._disk.sync_directory(self._directory)
        except OSError as error:
            raise StorageError(f"{path} is damaged and cannot be renamed: {error}") from error

    def _path(self, snapshot: SnapshotId) -> str:
        return f"{self._directory}/{snapshot_name(snapshot)}{SUFFIX}"


class MemorySnapshotStore(SnapshotStore):
    """The snapshot store of a node with store=memory."""

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
