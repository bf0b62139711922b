"""A preloaded C library that makes fsync fail or slow and shifts the clock of one node, controlled through a file."""

import mmap
import shutil
import struct
import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_name("shim.c")
_SETTINGS = struct.Struct("=qqq")


def make_library(directory: Path) -> Path | None:
    """Compiles the library; returns None without a C compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        return None
    library = directory / "shim.so"
    command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(SOURCE), "-ldl"]
    done = subprocess.run(command, capture_output=True, check=False, timeout=60)
    return library if done.returncode == 0 else None


class Shim:
    """Shim of one node; it has no effect until `set` is called."""

    def __init__(self, library: Path, settings: Path) -> None:
        settings.write_bytes(bytes(_SETTINGS.size))
        with settings.open("r+b") as file:
            self._page = mmap.mmap(file.fileno(), _SETTINGS.size)
        self.environment = {"LD_PRELOAD": str(library), "CHAOS_SHIM": str(settings)}

    def set(self, *, sync_fails: bool = False, sync_ms: int = 0, clock_ms: int = 0) -> None:
        self._page[:] = _SETTINGS.pack(sync_fails, sync_ms, clock_ms)
