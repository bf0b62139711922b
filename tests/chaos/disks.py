"""A small ext4 file system in a file, as the disk of one node: it can be filled, and lose power."""

import errno
import os
import shutil
import subprocess
from pathlib import Path

from chaos.namespaces import IsolationUnavailable

_REST_BYTES = 8 * 1024


class LoopDisk:
    """Mounted at `path`. The image file has exactly what was synced."""

    def __init__(self, directory: Path, name: str, megabytes: int) -> None:
        self.path = directory / name
        self._image = directory / f"{name}.ext4"
        self._megabytes = megabytes
        self._filler = self.path / "filler"
        self.path.mkdir(parents=True)
        with self._image.open("wb") as image:
            image.truncate(megabytes * 1024 * 1024)
        # No blocks are reserved for root, because nodes run as root here.
        _run("mkfs.ext4", "-q", "-F", "-m", "0", str(self._image))
        self._mount()

    def _mount(self) -> None:
        _run("mount", "-o", "loop", str(self._image), str(self.path))

    def take_image(self) -> Path:
        """Copies what a power cut at this moment would leave: the image under the live file system."""
        copy = self._image.with_suffix(".cut")
        _run("cp", "--sparse=always", str(self._image), str(copy))
        return copy

    def restore_image(self, image: Path) -> None:
        """Continues with a copied image. No file of this disk may be open."""
        _run("umount", str(self.path))
        os.replace(image, self._image)
        self._mount()

    def fill(self) -> None:
        """Uses up all free space."""
        with self._filler.open("wb") as filler:
            step = shutil.disk_usage(self.path).total
            while step >= 4096 and (free := shutil.disk_usage(self.path).free) > _REST_BYTES:
                try:
                    os.posix_fallocate(filler.fileno(), filler.seek(0, os.SEEK_END), min(step, free - _REST_BYTES))
                except OSError as error:
                    # A node has written since the free space was read.
                    if error.errno != errno.ENOSPC:
                        raise
                    step //= 2
            os.fsync(filler.fileno())

    def remove_filler(self) -> None:
        self._filler.unlink(missing_ok=True)

    def close(self) -> None:
        _run("umount", str(self.path))
        self._image.unlink()


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    if done.returncode != 0:
        raise IsolationUnavailable(f"{' '.join(command)}: {done.stderr.strip()}")
