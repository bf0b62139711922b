"""A cache of Spark's loaded and linked classes, which makes sessions start faster.

The cache is optional. It is built once for each pair of Spark and Java, in the user's cache directory. From Java 25 on
it is an AOT cache; for older releases it is a class data sharing (CDS) archive.
"""

import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from moldau.spark.launcher.java import Java
from moldau.spark.launcher.java_command import module_options
from moldau.spark.launcher.spark_home import SparkHome

try:
    import fcntl
except ImportError:  # pragma: no cover
    fcntl = None  # type: ignore[assignment]

FORMAT = 1
"""The format version. Increment it when the training or Java's options change, to invalidate old caches."""
AOT_RELEASE_MIN = 25
FREE_BYTES_MIN = 700 * 2**20
"""The free disk space that a build needs. A cache takes 200 MB, and the build needs about 200 MB more."""
CHECK_TIMEOUT_S = 60.0
RETRY_AFTER_S = 24 * 3600


def cache_directory(environ: Mapping[str, str]) -> Path:
    if environ.get("MOLDAU_CACHE"):
        return Path(environ["MOLDAU_CACHE"]) / "spark"
    home = environ.get("XDG_CACHE_HOME") or Path(environ.get("HOME", "~")).expanduser() / ".cache"
    return Path(home) / "moldau" / "spark"


@dataclass(frozen=True)
class ClassCache:
    directory: Path
    java: Java
    spark: SparkHome

    @property
    def path(self) -> Path:
        suffix = "aot" if self.java.release >= AOT_RELEASE_MIN else "jsa"
        return self.directory / f"{self._installation_id}-{self._fingerprint}.{suffix}"

    @property
    def _installation_id(self) -> str:
        """Identifies the Java and Spark directories. Successive caches of an installation have the same id."""
        return _short_hash(self.java.home, self.spark.home)

    @property
    def _fingerprint(self) -> str:
        """A hash of the Java build, the jars and the options, which is part of the file name.

        The cache is therefore built again after a change. Java would silently ignore an outdated cache.
        """
        jars = sorted(
            (each.name, each.stat().st_size, each.stat().st_mtime_ns) for each in self.spark.jars.glob("*.jar")
        )
        return _short_hash(FORMAT, self.java.build, platform.machine(), self.spark.class_path(), jars)

    def is_ready(self) -> bool:
        """Returns whether the cache exists and was not modified after its installation."""
        try:
            status = self.path.stat()
            marker = json.loads(self._marker.read_text())
        except (OSError, ValueError):
            return False
        return bool(marker == {"bytes": status.st_size, "mtime_ns": status.st_mtime_ns})

    def jvm_options(self) -> list[str]:
        """Returns the Java options that enable the cache. Java silently ignores an unusable cache."""
        if self.java.release >= AOT_RELEASE_MIN:
            return [f"-XX:AOTCache={self.path}", *_quiet("aot")]
        return [f"-XX:SharedArchiveFile={self.path}", "-Xshare:auto", *_quiet("cds")]

    @property
    def _marker(self) -> Path:
        return self.path.with_suffix(".json")

    @property
    def log(self) -> Path:
        return self.path.with_suffix(".log")

    def unavailable_reason(self, now_s: float) -> str | None:
        """Returns the reason why the cache cannot be built now, or None if the cache can be built."""
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            free = shutil.disk_usage(self.directory).free
            failed_s = self.log.stat().st_mtime if self.log.exists() else None
        except OSError as error:
            return f"{self.directory} cannot be used: {error.strerror}"
        if not os.access(self.directory, os.W_OK):
            return f"{self.directory} cannot be written to"
        if free < FREE_BYTES_MIN:
            return f"{self.directory} has only {free // 2**20} MB free"
        if failed_s is not None and now_s - failed_s < RETRY_AFTER_S:
            return f"it failed before; see {self.log}"
        return None

    @contextmanager
    def locked_output(self) -> Iterator[Path | None]:
        """Yields the path at which to build the cache, or None if the cache exists or another process builds it."""
        with (self.directory / f"{self._installation_id}.lock").open("w") as lock:
            if not _try_lock(lock.fileno()) or self.is_ready():
                yield None
                return
            # Remove the files that killed processes left.
            self._clean_up()
            try:
                yield self.path.with_name(f"{self.path.stem}.new-{os.getpid()}{self.path.suffix}")
            finally:
                self._clean_up()

    def _clean_up(self) -> None:
        for leftover in self.directory.glob(f"{self._installation_id}-*.new-*"):
            leftover.unlink(missing_ok=True)

    def install(self, output: Path) -> bool:
        """Installs a new cache if Java can use it, and removes older caches. Returns whether it was installed."""
        if not self._is_usable(output):
            return False
        status = output.stat()
        note = output.with_suffix(".json")
        note.write_text(json.dumps({"bytes": status.st_size, "mtime_ns": status.st_mtime_ns}))
        # Between the two renames no process uses the cache, because the marker does not match the cache file.
        os.replace(note, self._marker)
        os.replace(output, self.path)
        for old in self.directory.glob(f"{self._installation_id}-*"):
            if not old.name.startswith(self.path.stem):
                old.unlink(missing_ok=True)
        self.log.unlink(missing_ok=True)
        return True

    def _is_usable(self, output: Path) -> bool:
        if not output.is_file():
            return False
        strict = (
            [f"-XX:AOTCache={output}", "-XX:AOTMode=on"]
            if self.java.release >= AOT_RELEASE_MIN
            else [f"-XX:SharedArchiveFile={output}", "-Xshare:on"]
        )
        command: Sequence[str] = [
            str(self.java.program),
            "-cp",
            self.spark.class_path(),
            *module_options(self.java.release),
            *strict,
            "-version",
        ]
        with suppress(OSError, subprocess.TimeoutExpired):
            return subprocess.run(command, capture_output=True, timeout=CHECK_TIMEOUT_S).returncode == 0
        return False


def training_options(java: Java, output: Path) -> list[str]:
    """Returns the Java options of the training process, whose classes are recorded."""
    name = "AOTCacheOutput" if java.release >= AOT_RELEASE_MIN else "ArchiveClassesAtExit"
    return [f"-XX:{name}={output}"]


def _quiet(subject: str) -> list[str]:
    # Log only errors, and to standard error. By default Java logs to standard output, which is for results.
    return ["-Xlog:disable", f"-Xlog:all=error,{subject}*=off:stderr"]


def _try_lock(file: int) -> bool:
    if fcntl is None:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _short_hash(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:12]


def is_enabled(environ: Mapping[str, str]) -> bool:
    """Returns whether the cache is enabled.

    `MOLDAU_CLASS_CACHE=off` disables the cache. The default in CI is off, because CI machines are not reused.
    """
    setting = environ.get("MOLDAU_CLASS_CACHE", "off" if environ.get("CI") else "on")
    return not re.fullmatch(r"off|no|false|0", setting.strip(), re.I)
