"""A lock for exclusive use of a data directory: a file lock on `.lock` that ends when the process exits."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager

from moldau.errors import StorageError

LOCK_FILE = ".lock"


@contextmanager
def data_lock(data_dir: str) -> Iterator[None]:
    """Creates a data directory if needed, and locks it. Raises StorageError if it is in use or not writable."""
    try:
        os.makedirs(data_dir, exist_ok=True)
        descriptor = os.open(os.path.join(data_dir, LOCK_FILE), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise StorageError(f"cannot use the data directory {data_dir}: {error.strerror}") from error
    try:
        _lock(descriptor, data_dir)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, data_dir: str) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # The process id in the file is only for the error message of another process. It does not affect the lock.
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    except BlockingIOError:
        holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
        user = f"process {holder}" if holder.isdigit() else "another process"
        raise StorageError(
            f"the data directory {data_dir} is in use by {user}; stop it, or choose another directory with --data-dir"
        ) from None
    except OSError as error:
        raise StorageError(f"cannot use the data directory {data_dir}: {error.strerror}") from error
