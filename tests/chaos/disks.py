"""A small ext4 disk in a file, for one node: it can be full, and its power can be cut."""

import os
import shutil
import subprocess
from pathlib import Path

from chaos.namespaces import IsolationUnavailable


class LoopDisk:
    """Mounted at `path`. What was synced is in the file at any moment; what was not is not."""

    def __init__(self, directory: Path, name: str, megabytes: int) -> None:
        self.path = directory / name
        self._image = directory / f"{name}.ext4"
        self._megabytes = megabytes
        self._filler = self.path / "filler"
        self.path.mkdir(parents=True)
        with self._image.open("wb") as image:
            image.truncate(megabytes * 1024 * 1024)
        # Nothing is held back for root, as whom nodes run here.
        _run("mkfs.ext4", "-q", "-F", "-m", "0", str(self._image))
        self._mount()

    def _mount(self) -> None:
        _run("mount", "-o", "loop", str(self._image), str(self.path))

    def take_image(self) -> Path:
        """What a power cut at this moment would leave: the file under the live file system, as it is."""
        copy = self._image.with_suffix(".cut")
        _run("cp", "--sparse=always", str(self._image), str(copy))
        return copy

    def restore_image(self, image: Path) -> None:
        """Goes on from an image that was taken. Nobody may have files of this disk open."""
        _run("umount", str(self.path))
        os.replace(image, self._image)
        self._mount()

    def fill(self) -> None:
        """Leaves no room at all."""
        free = shutil.disk_usage(self.path).free
        with self._filler.open("wb") as filler:
            os.posix_fallocate(filler.fileno(), 0, max(1, free - 8 * 1024))
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
