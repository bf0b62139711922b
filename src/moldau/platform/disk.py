"""What a node may ask of a disk. What is written and what is safe are two things: only `sync` makes safe.

Every call but the `sync` family runs on the event loop and returns at once, because it touches the page
cache only. Failing calls raise OSError (EIO, ENOSPC, ...) as the operating system does.
"""

from collections.abc import Sequence
from typing import Protocol

Buffer = bytes | bytearray | memoryview


class File(Protocol):
    """One open file. Writes go to its end; reads may go anywhere.

    The file stays readable while anybody holds this object, even after the disk has removed or replaced
    its name: a fetch that is still being sent must not be cut off by retention or compaction.
    """

    path: str

    @property
    def size(self) -> int: ...

    @property
    def descriptor(self) -> int | None:
        """For sendfile; None where there is no operating-system file behind it."""

    def append(self, parts: Sequence[Buffer]) -> int:
        """Writes all parts, one after the other, at the end; returns the position of the first byte.

        On an OSError a part of the bytes may have been written: the caller truncates or gives up.
        """

    def read(self, position: int, size: int) -> bytes:
        """Up to `size` bytes; fewer only at the end of the file."""

    def truncate(self, size: int) -> None: ...

    async def sync(self) -> None:
        """Everything appended (or truncated) before this call is safe once it returns.

        Callers that arrive while a sync is running share the next one. After a failed sync every later
        one fails too: the page cache can no longer be trusted.
        """

    def drop_cache(self) -> None:
        """From here on reads show what the device has, not what memory kept of a write that failed.

        A killed process may leave such a write behind, and the next sync would call it safe: so recovery asks
        for this before it believes what it reads. What still waits to be written is not lost.
        """

    def close(self) -> None: ...


class Disk(Protocol):
    def open(self, path: str) -> File:
        """Opens for reading and appending, creating an empty file where there is none."""

    def exists(self, path: str) -> bool: ...

    def list(self, directory: str) -> Sequence[str]:
        """The names in a directory, sorted; empty where there is no such directory."""

    def is_directory(self, path: str) -> bool: ...

    def make_directory(self, path: str) -> None:
        """With its parents; no error where it exists."""

    def rename(self, old: str, new: str) -> None:
        """A file or a directory; replaces an existing file at `new`."""

    def remove(self, path: str) -> None:
        """A file, or a directory with everything in it; no error where there is none."""

    def space(self, path: str) -> tuple[int, int]:
        """(total bytes, usable bytes) of the volume that holds `path`."""

    async def sync_directory(self, path: str) -> None:
        """Makes created, renamed and removed names in this directory safe."""

    async def replace(self, path: str, data: bytes) -> None:
        """Atomically and durably: after a crash the file holds either its old content or all of `data`."""
