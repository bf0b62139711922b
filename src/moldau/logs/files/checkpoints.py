"""Checkpoint files, in the format of Kafka: one offset for each log of a store."""

import asyncio
from typing import NamedTuple

from moldau.errors import CorruptRecordError
from moldau.logs.leader_epochs import format_checkpoint, parse_checkpoint
from moldau.logs.store import LogName
from moldau.observe.logging import get_logger
from moldau.platform.clock import Clock
from moldau.platform.disk import Disk, read_small_file

_AGE_MS_MAX = 30_000

log = get_logger(__name__)


class OffsetCheckpoint:
    def __init__(self, disk: Disk, path: str, clock: Clock) -> None:
        self._disk = disk
        self._path = path
        self._clock = clock
        self._written_ms = clock.monotonic_ms()
        self._offsets: dict[LogName, int] = {}
        self._changes = 0
        self._written = 0
        """How many of the `_changes` are durable."""
        self._lock = asyncio.Lock()

    def load(self) -> None:
        """Reads the file. A damaged file counts as empty: recovery then reads more, and logs start at their first
        segment."""
        data = read_small_file(self._disk, self._path)
        if data is None:
            return
        try:
            self._offsets = _parse(data.decode("utf-8"))
        except (CorruptRecordError, UnicodeDecodeError) as error:
            log.warning("checkpoint cannot be read", path=self._path, reason=str(error))

    def names(self) -> list[LogName]:
        return list(self._offsets)

    def get(self, name: LogName) -> int:
        return self._offsets.get(name, 0)

    def set(self, name: LogName, offset: int) -> None:
        if self._offsets.get(name) != offset:
            self._offsets[name] = offset
            self._changes += 1

    def discard(self, name: LogName) -> None:
        if self._offsets.pop(name, None) is not None:
            self._changes += 1

    @property
    def is_due(self) -> bool:
        """Whether the last write is long enough ago to write changes that are not urgent."""
        return self._clock.monotonic_ms() - self._written_ms >= _AGE_MS_MAX

    async def flush(self) -> None:
        """Makes every change made before this call durable. Concurrent callers share a write."""
        wanted = self._changes
        if self._written >= wanted:
            return
        async with self._lock:
            if self._written >= wanted:
                return
            changes = self._changes
            entries = (f"{topic} {partition} {offset}" for (topic, partition), offset in self._offsets.items())
            await self._disk.replace(self._path, format_checkpoint(entries).encode("utf-8"))
            self._written = changes
            self._written_ms = self._clock.monotonic_ms()


class Checkpoints(NamedTuple):
    """The checkpoint files of a store."""

    recovery_points: OffsetCheckpoint
    start_offsets: OffsetCheckpoint
    cleaned_offsets: OffsetCheckpoint
    high_watermarks: OffsetCheckpoint

    async def truncate(self, name: LogName, end: int) -> None:
        """Lowers all offsets of a log to its new end, because they must not apply to records appended later."""
        for checkpoint in self:
            known = checkpoint.get(name)
            if known > end:
                checkpoint.set(name, end)
                try:
                    await checkpoint.flush()
                except OSError:
                    # Restore the offset, because the next `truncate` writes the file only if the offset changes.
                    checkpoint.set(name, known)
                    raise


def _parse(text: str) -> dict[LogName, int]:
    offsets = {}
    try:
        for line in parse_checkpoint(text):
            topic, partition, offset = line.split(" ")
            if int(offset) < 0:
                raise ValueError(f"{offset} is not an offset")
            offsets[LogName(topic, int(partition))] = int(offset)
    except (ValueError, IndexError) as error:
        raise CorruptRecordError(f"not a checkpoint file: {error}") from error
    return offsets
