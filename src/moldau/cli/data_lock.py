"""One process per data directory: an operating-system lock on its `.lock` file, gone when the process is."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager

from moldau.errors import StorageError

LOCK_FILE = ".lock"


@contextmanager
def data_lock(data_dir: str) -> Iterator[None]:
    """Makes the directory where there is none; StorageError, as one sentence, where it cannot be used."""
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
        # Only to name the holder to whoever comes next; the lock itself is what counts.
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    except BlockingIOError:
        holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
        by = f"process {holder}" if holder.isdigit() else "another process"
        raise StorageError(
            f"the data directory {data_dir} is in use by {by}; stop it, or choose another with --data-dir"
        ) from None
    except OSError as error:
        raise StorageError(f"cannot use the data directory {data_dir}: {error.strerror}") from error
