"""The interface of a disk. Written data is durable only after `sync`.

Calls that are not async run on the event loop. They return at once, because they access only the page cache.
All calls raise the OSError of the operating system (EIO, ENOSPC, ...).
"""

from collections.abc import Sequence
from typing import Protocol

from moldau.metrics.histogram import DurationHistogram

Buffer = bytes | bytearray | memoryview


class ReadableFile(Protocol):
    @property
    def size(self) -> int: ...

    def read(self, position: int, size: int) -> bytes: ...

    def close(self) -> None: ...


class File(Protocol):
    """An open file. Writes always append; reads can start at any position.

    The file stays readable while this object is referenced, even if the file was removed or replaced. So retention and
    compaction do not interrupt a fetch response that is being sent.
    """

    path: str

    @property
    def size(self) -> int: ...

    @property
    def descriptor(self) -> int | None:
        """The descriptor for sendfile; None if this is not a file of the operating system."""

    def append(self, parts: Sequence[Buffer]) -> int:
        """Appends all parts and returns the position of the first byte.

        After an OSError some of the bytes may have been written, so the caller must truncate the file.
        """

    def read(self, position: int, size: int) -> bytes:
        """Returns `size` bytes, or fewer at the end of the file."""

    def truncate(self, size: int) -> None: ...

    async def sync(self) -> None:
        """Makes everything appended or truncated before this call durable.

        Calls that arrive while a sync is running share the next sync. After a failed sync every later sync fails too,
        because the page cache can no longer be trusted.
        """

    def drop_cache(self) -> None:
        """Drops clean pages from the page cache, so that reads return what the device has.

        After a failed write, Linux marks a page as clean although the device does not have it, and the next sync
        reports success. A killed process may have left such pages, so recovery calls this before it reads. Dirty pages
        are kept.
        """

    def close(self) -> None: ...


class SmallFiles(Protocol):
    """The part of a disk that suffices for small files, which are only replaced as a whole.

    A disk has it, and so has a database. Instead of an OSError it may raise a StorageError.
    """

    def open(self, path: str) -> ReadableFile: ...

    def exists(self, path: str) -> bool: ...

    def list(self, directory: str) -> Sequence[str]: ...

    def rename(self, old: str, new: str) -> None: ...

    def remove(self, path: str) -> None: ...

    async def sync_directory(self, path: str) -> None: ...

    async def replace(self, path: str, data: bytes) -> None: ...


class Disk(Protocol):
    @property
    def sync_durations(self) -> DurationHistogram:
        """Durations of the syncs of files and directories and of replacements; empty if they are not measured."""

    def open(self, path: str) -> File:
        """Opens a file for reading and appending; creates it if it does not exist."""

    def exists(self, path: str) -> bool: ...

    def list(self, directory: str) -> Sequence[str]:
        """Returns the sorted names in a directory; empty if the directory does not exist."""

    def is_directory(self, path: str) -> bool: ...

    def make_directory(self, path: str) -> None:
        """Creates a directory and its parents, unless they exist."""

    def rename(self, old: str, new: str) -> None:
        """Renames a file or a directory. Replaces an existing file at `new`."""

    def remove(self, path: str) -> None:
        """Removes a file, or a directory with everything in it, if it exists."""

    def space(self, path: str) -> tuple[int, int]:
        """Returns the total and the usable bytes of the volume of `path`."""

    async def sync_directory(self, path: str) -> None:
        """Makes all creations, renames and removals in this directory durable."""

    async def replace(self, path: str, data: bytes) -> None:
        """Replaces the content of a file atomically and durably."""


def read_small_file(disk: SmallFiles, path: str, bytes_max: int | None = None) -> bytes | None:
    """Returns the content of a small file, or only its first `bytes_max` bytes; None if the file does not exist."""
    if not disk.exists(path):
        return None
    file = disk.open(path)
    try:
        return file.read(0, file.size if bytes_max is None else min(file.size, bytes_max))
    finally:
        file.close()
