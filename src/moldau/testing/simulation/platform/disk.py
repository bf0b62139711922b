"""A simulated disk with two images: the written data, which programs see, and the durable data.

After a power cut, the disk has the durable data plus a random part of the other written data. Appends may be torn
anywhere, or contain sectors of zeros or garbage. Truncations may be undone. Changes of file names may be lost if no
`sync_directory` followed.
"""

import asyncio
import errno
import fnmatch
import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from moldau.metrics.histogram import DurationHistogram
from moldau.platform.disk import Buffer
from moldau.platform.group_commit import Done, GroupCommit
from moldau.platform.os_disk import TEMPORARY_SUFFIX
from moldau.testing.simulation.platform.trace import Trace
from moldau.testing.simulation.platform.volume import (
    Inode,
    NameChange,
    SimulatedDirectory,
    SyncSnapshot,
    Volume,
    split_path,
)

CAPACITY_BYTES = 1 << 40


class CrashedDiskError(OSError):
    """The host of this disk has crashed. The disk object belongs to an earlier boot of the host."""


@dataclass(slots=True)
class DiskFault:
    """An injected error. The first `after` matching calls succeed, and the next `times` calls fail. If `times` is None,
    all later calls fail."""

    operation: str
    path: str
    error: int
    after: int
    times: int | None

    def should_fail(self, operation: str, path: str) -> bool:
        if operation != self.operation or not fnmatch.fnmatchcase(path, self.path):
            return False
        if self.after > 0:
            self.after -= 1
            return False
        if self.times is None:
            return True
        self.times -= 1
        return self.times >= 0


@dataclass(slots=True)
class DiskSettings:
    sync_ms_min: float = 0.05
    sync_ms_max: float = 3.0
    slow_sync_chance: float = 0.02
    slow_sync_ms_max: float = 400.0
    capacity_bytes: int = CAPACITY_BYTES
    ignored_fsync_glob: str = ""
    """Syncs of paths that match this glob succeed but make nothing durable, as if the node never called fsync."""


class SimulatedDisk:
    """A volume during one boot of its host. `crash` and `kill` end the boot and return the disk of the next boot."""

    def __init__(
        self,
        randomness: random.Random,
        trace: Trace | None = None,
        settings: DiskSettings | None = None,
        *,
        volume: Volume | None = None,
        name: str = "disk",
    ) -> None:
        self.random = randomness
        self.settings = settings or DiskSettings()
        self.faults: list[DiskFault] = []
        self.sync_durations = DurationHistogram()
        self.volume = volume or Volume()
        self._trace = trace
        self._name = name
        self._is_dead = False
        self._directory_syncs: dict[SimulatedDirectory, _DirectorySync] = {}
        self._replacements: dict[str, deque[tuple[bytes, asyncio.Future[None]]]] = {}

    # Faults and crashes

    def inject(
        self, operation: str, path: str = "*", *, error: int = errno.EIO, after: int = 0, times: int | None = 1
    ) -> DiskFault:
        """Makes calls of an operation fail: open, append, read, truncate, sync or sync_directory.

        `path` is a glob. With times=None, calls fail until the fault is removed from `faults`. A failed append may have
        written a part of its data.
        """
        fault = DiskFault(operation, path, error, after, times)
        self.faults.append(fault)
        return fault

    def crash(self) -> "SimulatedDisk":
        """Cuts the power. Returns the disk of the next boot."""
        next_boot = self.kill()
        self.volume.crash(self.random)
        self.trace_event("crash")
        return next_boot

    def kill(self) -> "SimulatedDisk":
        """Ends only the process. Written data stays in the page cache. Returns the disk of the next boot."""
        self.check_alive()
        self._is_dead = True
        return self.next_boot()

    def next_boot(self) -> "SimulatedDisk":
        return SimulatedDisk(self.random, self._trace, self.settings, volume=self.volume, name=self._name)

    # Called by SimulatedFile

    def trace_event(self, kind: str, *fields: str | int | bytes) -> None:
        if self._trace is not None:
            loop = asyncio._get_running_loop()
            time_ns = int(loop.time() * 1e9) if loop is not None else 0
            self._trace.add(time_ns, kind, self._name, *fields)

    def check_alive(self) -> None:
        if self._is_dead:
            raise CrashedDiskError(errno.EIO, "the host of this disk has crashed")

    def check_fault(self, operation: str, path: str) -> None:
        for fault in self.faults:
            if fault.should_fail(operation, path):
                self.trace_event("fault", operation, path, fault.error)
                raise OSError(fault.error, f"injected into {operation}", path)

    def ignores_fsync(self, path: str) -> bool:
        return bool(self.settings.ignored_fsync_glob) and fnmatch.fnmatchcase(path, self.settings.ignored_fsync_glob)

    def draw_sync_s(self) -> float:
        settings = self.settings
        milliseconds = self.random.uniform(settings.sync_ms_min, settings.sync_ms_max)
        if self.random.random() < settings.slow_sync_chance:
            milliseconds += self.random.uniform(0, settings.slow_sync_ms_max)
        return milliseconds / 1000

    def free_bytes(self) -> int:
        capacity = self.settings.capacity_bytes
        # Do not count the used bytes of a disk with the default capacity. Counting is slow, and no scenario fills such
        # a disk.
        return capacity if capacity == CAPACITY_BYTES else max(0, capacity - self.volume.used_bytes())

    # moldau.platform.disk.Disk

    def open(self, path: str) -> "SimulatedFile":
        self.check_alive()
        self.check_fault("open", path)
        directory, name = self._parent(path)
        found = directory.names.get(name)
        if isinstance(found, SimulatedDirectory):
            raise IsADirectoryError(errno.EISDIR, "is a directory", path)
        if found is None:
            self.trace_event("create", path)
            found = Inode()
            self.volume.link(directory, name, found)
        return SimulatedFile(self, found, path)

    def exists(self, path: str) -> bool:
        self.check_alive()
        return self.volume.find(path) is not None

    def list(self, directory: str) -> Sequence[str]:
        self.check_alive()
        found = self.volume.find(directory)
        if found is None:
            return []
        if not isinstance(found, SimulatedDirectory):
            raise NotADirectoryError(errno.ENOTDIR, "is not a directory", directory)
        return sorted(found.names)

    def is_directory(self, path: str) -> bool:
        self.check_alive()
        return isinstance(self.volume.find(path), SimulatedDirectory)

    def make_directory(self, path: str) -> None:
        self.check_alive()
        directory = self.volume.root
        for name in split_path(path):
            found = directory.names.get(name)
            if found is None:
                self.trace_event("mkdir", path)
                found = SimulatedDirectory()
                self.volume.link(directory, name, found)
            if not isinstance(found, SimulatedDirectory):
                raise FileExistsError(errno.EEXIST, "is a file", path)
            directory = found

    def rename(self, old: str, new: str) -> None:
        self.check_alive()
        source, old_name = self._parent(old)
        target, new_name = self._parent(new)
        moved = source.names.get(old_name)
        if moved is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", old)
        replaced = target.names.get(new_name)
        if isinstance(moved, SimulatedDirectory) and isinstance(replaced, Inode):
            raise NotADirectoryError(errno.ENOTDIR, "is a file", new)
        if isinstance(replaced, SimulatedDirectory) and replaced is not moved:
            if isinstance(moved, Inode):
                raise IsADirectoryError(errno.EISDIR, "is a directory", new)
            if replaced.names:
                raise OSError(errno.ENOTEMPTY, "the directory is not empty", new)
        self.trace_event("rename", old, new)
        self.volume.rename(source, old_name, target, new_name)

    def remove(self, path: str) -> None:
        self.check_alive()
        if self.volume.find(path) is not None:
            self.trace_event("remove", path)
            self.volume.remove(*self._parent(path))

    def space(self, path: str) -> tuple[int, int]:
        self.check_alive()
        return self.settings.capacity_bytes, self.free_bytes()

    async def sync_directory(self, path: str) -> None:
        self.check_alive()
        directory = self.volume.find(path)
        if not isinstance(directory, SimulatedDirectory):
            raise FileNotFoundError(errno.ENOENT, "no such directory", path)
        if directory not in self._directory_syncs:
            self._directory_syncs[directory] = _DirectorySync(self, directory, path)
        await self._directory_syncs[directory].sync()

    async def replace(self, path: str, data: bytes) -> None:
        self.check_alive()
        waiter = asyncio.get_running_loop().create_future()
        queue = self._replacements.setdefault(path, deque())
        queue.append((data, waiter))
        if len(queue) == 1:
            asyncio.get_running_loop().create_task(self._replace_all(path), name=f"replace {path}")
        await waiter

    async def _replace_all(self, path: str) -> None:
        """Runs the queued replacements of a file in order. They continue even if their callers are cancelled."""
        queue = self._replacements[path]
        while queue:
            data, waiter = queue[0]
            try:
                await self._replace_one(path, data)
            except OSError as error:
                if not waiter.done():
                    waiter.set_exception(error)
            else:
                if not waiter.done():
                    waiter.set_result(None)
            queue.popleft()
        del self._replacements[path]

    async def _replace_one(self, path: str, data: bytes) -> None:
        temporary = self.open(path + TEMPORARY_SUFFIX)
        temporary.truncate(0)
        temporary.append([data])
        await temporary.sync()
        self.rename(path + TEMPORARY_SUFFIX, path)
        await self.sync_directory("/".join(split_path(path)[:-1]))

    def _parent(self, path: str) -> tuple[SimulatedDirectory, str]:
        parts = split_path(path)
        directory = self.volume.find("/".join(parts[:-1]))
        if not parts or not isinstance(directory, SimulatedDirectory):
            raise FileNotFoundError(errno.ENOENT, "no such directory", path)
        return directory, parts[-1]


class SimulatedFile(GroupCommit):
    def __init__(self, disk: SimulatedDisk, inode: Inode, path: str) -> None:
        super().__init__()
        self.path = path
        self._disk = disk
        self._inode = inode
        self._closed = False
        self._failure: OSError | None = None

    @property
    def size(self) -> int:
        self._disk.check_alive()
        return self._inode.size

    @property
    def descriptor(self) -> int | None:
        return None

    def append(self, parts: Sequence[Buffer]) -> int:
        self._check_open()
        data = b"".join(parts)
        position = self._inode.size
        self._is_dirty = True
        try:
            self._disk.check_fault("append", self.path)
        except OSError:
            self._append_part(data, len(data))
            raise
        usable = self._disk.free_bytes()
        if len(data) > usable:
            self._append_part(data, usable)
            raise OSError(errno.ENOSPC, "no space left", self.path)
        self._disk.trace_event("append", self.path, position, data)
        self._inode.append(data)
        return position

    def _append_part(self, data: bytes, size_max: int) -> None:
        part = data[: self._disk.random.randint(0, size_max)]
        self._disk.trace_event("append", self.path, self._inode.size, part)
        self._inode.append(part)

    def read(self, position: int, size: int) -> bytes:
        self._disk.check_alive()
        self._disk.check_fault("read", self.path)
        return self._inode.read(position, size)

    def truncate(self, size: int) -> None:
        self._check_open()
        self._disk.check_fault("truncate", self.path)
        self._is_dirty = True
        self._disk.trace_event("truncate", self.path, size)
        self._inode.truncate(size)

    async def sync(self) -> None:
        self._check_open()
        if self._failure is not None:
            raise OSError(self._failure.errno, "an earlier sync failed", self.path)
        await self._wait_for_run()

    def drop_cache(self) -> None:
        self._disk.check_alive()
        self._inode.drop_cache(self._disk.random)

    def close(self) -> None:
        self._closed = True

    def _start_sync(self, done: Done) -> None:
        snapshot = self._inode.snapshot()
        asyncio.get_running_loop().call_later(self._disk.draw_sync_s(), self._finish, snapshot, done)

    def _finish(self, snapshot: SyncSnapshot, done: Done) -> None:
        try:
            if self._failure is not None:
                raise OSError(self._failure.errno, "an earlier sync failed", self.path)
            self._disk.check_fault("sync", self.path)
        except OSError as error:
            self._failure = error
            self._inode.mark_failed(snapshot)
            done(error)
            return
        self._disk.trace_event("sync", self.path)
        if not self._disk.ignores_fsync(self.path):
            self._inode.make_durable(snapshot, self._disk.random)
        done(None)

    def _check_open(self) -> None:
        self._disk.check_alive()
        if self._closed:
            raise OSError(errno.EBADF, "the file is closed", self.path)


class _DirectorySync(GroupCommit):
    def __init__(self, disk: SimulatedDisk, directory: SimulatedDirectory, path: str) -> None:
        super().__init__()
        self._disk = disk
        self._directory = directory
        self._path = path

    async def sync(self) -> None:
        self._is_dirty = True
        await self._wait_for_run()

    def _start_sync(self, done: Done) -> None:
        changes = self._disk.volume.pending_changes(self._directory)
        asyncio.get_running_loop().call_later(self._disk.draw_sync_s(), self._finish, changes, done)

    def _finish(self, changes: list[NameChange], done: Done) -> None:
        try:
            self._disk.check_fault("sync_directory", self._path)
        except OSError as error:
            done(error)
            return
        self._disk.trace_event("sync_directory", self._path)
        if not self._disk.ignores_fsync(self._path):
            self._disk.volume.make_durable(changes)
        done(None)
