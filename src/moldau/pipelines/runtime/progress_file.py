"""The file that a run writes a line into per batch. It is limited: when it is full it becomes `….1`, and a new one
begins."""

from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Self

BYTES_MAX = 8 * 1024 * 1024


class ProgressFile:
    def __init__(self, path: Path, bytes_max: int = BYTES_MAX) -> None:
        self._path = path
        self._bytes_max = bytes_max
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab", buffering=0)

    def append(self, line: str) -> None:
        data = line.encode() + b"\n"
        if self._file.tell() > 0 and self._file.tell() + len(data) > self._bytes_max:
            self._file.close()
            self._path.replace(rotated_path(self._path))
            self._file = self._path.open("ab", buffering=0)
        self._file.write(data)

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def rotated_path(path: Path) -> Path:
    return path.with_name(path.name + ".1")


def read_lines(path: Path) -> Iterable[str]:
    """All lines that are kept, the oldest first."""
    for each in (rotated_path(path), path):
        try:
            with each.open(errors="replace") as file:
                yield from file
        except FileNotFoundError:
            continue
