"""A cache of Spark's loaded and linked classes, which makes sessions start faster.

The cache is optional. It is built once for each pair of Spark and Java, in the user's cache directory. From Java 25 on
it is an AOT cache; for older releases it is a class data sharing (CDS) archive.
"""

import fcntl
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from moldau.spark.launcher.java import Java
from moldau.spark.launcher.java_command import module_options
from moldau.spark.launcher.spark_home import SparkHome

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
        """The cache file. Its name depends on Java, the jars and FORMAT, so a change of these leads to a new build."""
        jars = sorted(
            (each.name, each.stat().st_size, each.stat().st_mtime_ns) for each in self.spark.jars.glob("*.jar")
        )
        fingerprint = _short_hash(FORMAT, self.java.build, platform.machine(), self.spark.class_path(), jars)
        return self.directory / f"{self._installation_id}-{fingerprint}.{'aot' if self._is_aot else 'jsa'}"

    @property
    def _is_aot(self) -> bool:
        return self.java.release >= AOT_RELEASE_MIN

    @property
    def _installation_id(self) -> str:
        """Identifies the Java and Spark directories. Successive caches of an installation have the same id."""
        return _short_hash(self.java.home, self.spark.home)

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
        use = [f"-XX:AOTCache={self.path}"] if self._is_aot else [f"-XX:SharedArchiveFile={self.path}", "-Xshare:auto"]
        # Log only errors, but none about the cache, to standard error. Standard output, Java's default, is for results.
        return [*use, "-Xlog:disable", f"-Xlog:all=error,{'aot' if self._is_aot else 'cds'}*=off:stderr"]

    @property
    def _marker(self) -> Path:
        return self.path.with_suffix(".json")

    @property
    def log(self) -> Path:
        return self.path.with_suffix(".log")

    def can_be_built(self, now_s: float) -> bool:
        """Returns whether the directory is writable, has enough space, and no build failed recently."""
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            free = shutil.disk_usage(self.directory).free
            failed_s = self.log.stat().st_mtime if self.log.exists() else None
        except OSError:
            return False
        has_failed = failed_s is not None and now_s - failed_s < RETRY_AFTER_S
        return os.access(self.directory, os.W_OK) and free >= FREE_BYTES_MIN and not has_failed

    @contextmanager
    def locked_output(self) -> Iterator[Path | None]:
        """Yields the path at which to build the cache, or None if the cache exists or another process builds it."""
        with (self.directory / f"{self._installation_id}.lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                yield None
                return
            if self.is_ready():
                yield None
                return
            # Remove the unfinished caches of killed processes.
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
        if self._is_aot:
            strict = [f"-XX:AOTCache={output}", "-XX:AOTMode=on"]
        else:
            strict = [f"-XX:SharedArchiveFile={output}", "-Xshare:on"]
        options = ["-cp", self.spark.class_path(), *module_options(self.java.release), *strict]
        command = [str(self.java.program), *options, "-version"]
        with suppress(OSError, subprocess.TimeoutExpired):
            return subprocess.run(command, capture_output=True, timeout=CHECK_TIMEOUT_S).returncode == 0
        return False


def training_options(java: Java, output: Path) -> list[str]:
    """Returns the Java options of the training process, whose classes are recorded."""
    name = "AOTCacheOutput" if java.release >= AOT_RELEASE_MIN else "ArchiveClassesAtExit"
    return [f"-XX:{name}={output}"]


def _short_hash(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:12]


def is_enabled(environ: Mapping[str, str]) -> bool:
    """Returns whether MOLDAU_CLASS_CACHE enables the cache. The default in CI is off: CI machines are not reused."""
    setting = environ.get("MOLDAU_CLASS_CACHE", "off" if environ.get("CI") else "on")
    return not re.fullmatch(r"off|no|false|0", setting.strip(), re.I)
