"""The disk of the operating system. Fsyncs run in threads, because they wait for the device."""

import asyncio
import errno
import fcntl
import os
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import islice
from queue import SimpleQueue

from moldau.metrics.histogram import DurationHistogram
from moldau.platform.disk import Buffer
from moldau.platform.group_commit import Done, GroupCommit, Outcome, complete

FSYNC_THREADS_MAX = 16
"""The maximum number of concurrent fsyncs. A device handles about this many in parallel."""

WRITEV_PARTS_MAX = min(os.sysconf("SC_IOV_MAX"), 1024)

TEMPORARY_SUFFIX = ".tmp"
"""The suffix of the temporary file that `replace` writes and then renames. A crash may leave such a file."""

_SyncWork = Callable[[], None]
_Finish = Callable[[Outcome, float], None]
"""Called on the event loop with the result and the duration in milliseconds."""
_Job = tuple[asyncio.AbstractEventLoop, _SyncWork, _Finish]

# On macOS a plain fsync does not flush the cache of the drive.
_FULL_SYNC: int | None = getattr(fcntl, "F_FULLFSYNC", None)


def _sync_data(descriptor: int) -> None:
    if _FULL_SYNC is not None:
        fcntl.fcntl(descriptor, _FULL_SYNC)
    else:
        os.fdatasync(descriptor)


def _sync_directory(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write(path: str, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        remaining = memoryview(data)
        while remaining:
            remaining = remaining[os.write(descriptor, remaining) :]
        _sync_data(descriptor)
    finally:
        os.close(descriptor)


def replace_file(path: str, data: bytes) -> None:
    """Replaces the content of a file atomically and durably."""
    temporary = path + TEMPORARY_SUFFIX
    try:
        _write(temporary, data)
        os.rename(temporary, path)
    except OSError:
        # Delete the partial file, because after ENOSPC it would keep the disk full.
        with suppress(OSError):
            os.unlink(temporary)
        raise
    _sync_directory(os.path.dirname(path) or ".")


def _run_jobs(jobs: "SimpleQueue[_Job | None]") -> None:
    while (job := jobs.get()) is not None:
        loop, work, finish = job
        outcome: Outcome = None
        start_ns = time.perf_counter_ns()
        try:
            work()
        except OSError as error:
            outcome = error
        except Exception as error:
            # A bug must neither end this thread nor leave the caller without a result.
            outcome = OSError(errno.EIO, repr(error))
        try:
            loop.call_soon_threadsafe(finish, outcome, (time.perf_counter_ns() - start_ns) / 1e6)
        except RuntimeError:
            # The event loop was closed, so no caller waits for the result.
            pass
        # Drop all references to the job before this thread waits, because they would keep the job's file open.
        del job, loop, work, finish, outcome


class FsyncThreads:
    """A thread pool that runs callbacks on the event loop. It starts a new thread only when all threads are busy.

    It is not an Executor, because waking a thread through a plain queue takes about half the time.
    """

    def __init__(self, threads_max: int = FSYNC_THREADS_MAX) -> None:
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._threads = 0
        self._threads_max = threads_max
        self._running = 0
        self.durations = DurationHistogram()
        """Of all work that succeeded, without the wait for a thread."""

    def submit(self, work: _SyncWork, done: Done) -> None:
        """Runs `work` in a thread, then calls `done` on the event loop with the OSError of `work`, or None.

        If no new thread can be started, an existing thread runs `work`. If no thread exists, `done` receives EAGAIN.
        """

        def finish(outcome: Outcome, duration_ms: float) -> None:
            self._running -= 1
            if outcome is None:
                self.durations.record(duration_ms)
            done(outcome)

        loop = asyncio.get_running_loop()
        self._running += 1
        if self._running > self._threads and self._threads < self._threads_max:
            try:
                threading.Thread(target=_run_jobs, args=(self._jobs,), name="moldau-sync", daemon=True).start()
                self._threads += 1
            except RuntimeError as error:
                if not self._threads:
                    loop.call_soon(finish, OSError(errno.EAGAIN, str(error)), 0.0)
                    return
        self._jobs.put((loop, work, finish))

    def __del__(self) -> None:
        for _ in range(self._threads):
            self._jobs.put(None)


class OsFile(GroupCommit):
    """A file of the operating system. The descriptor is closed when this object is no longer referenced."""

    def __init__(self, path: str, threads: FsyncThreads) -> None:
        self.descriptor = -1
        super().__init__()
        self.path = path
        self._threads = threads
        # A newly opened file counts as dirty (the default), because a killed process may have left unsynced data.
        self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self.size = os.fstat(self.descriptor).st_size
        self._is_closed = False
        self._failure: OSError | None = None

    def append(self, parts: Sequence[Buffer]) -> int:
        self._check_open()
        position = self.size
        expected = 0
        for part in parts:
            expected += len(part)
        self._is_dirty = True
        if len(parts) <= WRITEV_PARTS_MAX:
            written = os.writev(self.descriptor, parts)
            self.size += written
            if written == expected:
                return position
        else:
            written = 0
        self._append_rest(parts, written)
        return position

    def _append_rest(self, parts: Sequence[Buffer], written: int) -> None:
        """Appends all bytes after the first `written` bytes, with as many calls as necessary."""
        remaining: deque[memoryview] = deque(memoryview(part).cast("B") for part in parts if len(part))
        while True:
            while remaining and written >= len(remaining[0]):
                written -= len(remaining.popleft())
            if not remaining:
                return
            remaining[0] = remaining[0][written:]
            written = os.writev(self.descriptor, list(islice(remaining, WRITEV_PARTS_MAX)))
            self.size += written

    def read(self, position: int, size: int) -> bytes:
        data = os.pread(self.descriptor, size, position)
        # Read again, because a call may return less than requested (a signal, or more than 2 GiB). Only an empty result
        # marks the end of the file.
        while len(data) < size and (more := os.pread(self.descriptor, size - len(data), position + len(data))):
            data += more
        return data

    def truncate(self, size: int) -> None:
        self._check_open()
        self._is_dirty = True
        os.ftruncate(self.descriptor, size)
        self.size = size

    async def sync(self) -> None:
        self._check_open()
        self._check_no_failed_sync()
        await self._wait_for_run()

    def drop_cache(self) -> None:
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self.descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        self._is_closed = True

    def _start_sync(self, done: Done) -> None:
        self._threads.submit(self._sync_now, done)

    def _sync_now(self) -> None:
        self._check_no_failed_sync()
        try:
            _sync_data(self.descriptor)
        except OSError as error:
            # Remember the failure, because the kernel may have dropped the dirty pages, and the next fsync would report
            # success.
            self._failure = error
            raise

    def _check_open(self) -> None:
        if self._is_closed:
            raise OSError(errno.EBADF, "the file is closed", self.path)

    def _check_no_failed_sync(self) -> None:
        if self._failure is not None:
            raise OSError(self._failure.errno, f"an earlier sync failed: {self._failure.strerror}", self.path)

    def __del__(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)

    def __repr__(self) -> str:
        return f"OsFile({self.path!r}, {self.size} bytes)"


class _OsDirectory(GroupCommit):
    def __init__(self, path: str, threads: FsyncThreads) -> None:
        super().__init__()
        self._path = path
        self._threads = threads

    def _start_sync(self, done: Done) -> None:
        self._threads.submit(lambda: _sync_directory(self._path), done)

    async def sync(self) -> None:
        # Always wait for a new sync, because the directory may have changed after the running sync started.
        self._is_dirty = True
        await self._wait_for_run()


class OsDisk:
    def __init__(self, fsync_threads_max: int = FSYNC_THREADS_MAX) -> None:
        self._threads = FsyncThreads(fsync_threads_max)
        self._directories: dict[str, _OsDirectory] = {}
        self._replacements: dict[str, deque[tuple[bytes, asyncio.Future[None]]]] = {}

    @property
    def sync_durations(self) -> DurationHistogram:
        return self._threads.durations

    def open(self, path: str) -> OsFile:
        return OsFile(path, self._threads)

    def exists(self, path: str) -> bool:
        return os.path.lexists(path)

    def list(self, directory: str) -> Sequence[str]:
        try:
            return sorted(os.listdir(directory))
        except FileNotFoundError:
            return []

    def is_directory(self, path: str) -> bool:
        return os.path.isdir(path)

    def make_directory(self, path: str) -> None:
        os.makedirs(path, exist_ok=True)

    def rename(self, old: str, new: str) -> None:
        os.rename(old, new)

    def remove(self, path: str) -> None:
        try:
            if os.path.isdir(path) and not os.path.islink(path):
                shutil.rmtree(path)
            else:
                os.unlink(path)
        except FileNotFoundError:
            pass

    def space(self, path: str) -> tuple[int, int]:
        volume = os.statvfs(path)
        return volume.f_blocks * volume.f_frsize, volume.f_bavail * volume.f_frsize

    async def sync_directory(self, path: str) -> None:
        directory = self._directories.get(path)
        if directory is None:
            directory = self._directories[path] = _OsDirectory(path, self._threads)
        try:
            await directory.sync()
        finally:
            if directory.is_idle:
                self._directories.pop(path, None)

    async def replace(self, path: str, data: bytes) -> None:
        """Replaces the content of a file. Calls take effect in order, even if a caller is cancelled."""
        waiter = asyncio.get_running_loop().create_future()
        queue = self._replacements.setdefault(path, deque())
        queue.append((data, waiter))
        if len(queue) == 1:
            self._replace_next(path)
        await waiter

    def _replace_next(self, path: str) -> None:
        queue = self._replacements[path]
        data, waiter = queue[0]

        def done(outcome: Outcome) -> None:
            queue.popleft()
            if queue:
                self._replace_next(path)
            else:
                del self._replacements[path]
            complete(waiter, outcome)

        self._threads.submit(lambda: replace_file(path, data), done)
