"""A cache of Spark's classes, loaded and linked, with which a session starts sooner. It is made once for
each Spark and Java, in the user's cache directory; without it everything works, only slower.

From Java 25 on it is an AOT cache, before that an archive of class data.
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
"""Raised when the training or the options of Java change, so that old caches are not used any more."""
AOT_RELEASE_MIN = 25
FREE_BYTES_MIN = 700 * 2**20
"""A cache takes 200 MB, and about as much more while it is made."""
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
        """The same for all that follow each other in one installation."""
        return _short_hash(self.java.home, self.spark.home)

    @property
    def _fingerprint(self) -> str:
        """Another Java, other jars or other options: another cache. Java would only ignore the old one."""
        jars = sorted(
            (each.name, each.stat().st_size, each.stat().st_mtime_ns)
            for each in self.spark.jars.glob("*.jar")
        )
        return _short_hash(FORMAT, self.java.build, platform.machine(), self.spark.class_path(), jars)

    def is_ready(self) -> bool:
        """Whether it is there as it was made. What was cut short or written to since is none."""
        try:
            found = self.path.stat()
            noted = json.loads(self._marker.read_text())
        except (OSError, ValueError):
            return False
        return bool(noted == {"bytes": found.st_size, "mtime_ns": found.st_mtime_ns})

    def jvm_options(self) -> list[str]:
        """For a process that uses it. One that Java cannot use it ignores, and says so to nobody."""
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
        """Why it cannot be made here and now."""
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
            return f"it failed before, as {self.log} tells"
        return None

    @contextmanager
    def locked_output(self) -> Iterator[Path | None]:
        """Gives where to make it; None while another process is making it."""
        with (self.directory / f"{self._installation_id}.lock").open("w") as lock:
            if not _try_lock(lock.fileno()) or self.is_ready():
                yield None
                return
            # Also what those left who were killed while they made it.
            self._clean_up()
            try:
                yield self.path.with_name(f"{self.path.stem}.new-{os.getpid()}{self.path.suffix}")
            finally:
                self._clean_up()

    def _clean_up(self) -> None:
        for left in self.directory.glob(f"{self._installation_id}-*.new-*"):
            left.unlink(missing_ok=True)

    def install(self, output: Path) -> bool:
        """Puts a new cache in its place, if Java can use it, and removes those that it follows."""
        if not self._is_usable(output):
            return False
        found = output.stat()
        note = output.with_suffix(".json")
        note.write_text(json.dumps({"bytes": found.st_size, "mtime_ns": found.st_mtime_ns}))
        # Who comes between the two finds a note that does not fit, and does without.
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
    """For the process whose classes a cache is made of."""
    name = "AOTCacheOutput" if java.release >= AOT_RELEASE_MIN else "ArchiveClassesAtExit"
    return [f"-XX:{name}={output}"]


def _quiet(subject: str) -> list[str]:
    # Java tells about its caches on standard output, where results are printed.
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
    """`MOLDAU_CLASS_CACHE=off` does without; so do machines that are thrown away after one run."""
    told = environ.get("MOLDAU_CLASS_CACHE", "off" if environ.get("CI") else "on")
    return not re.fullmatch(r"off|no|false|0", told.strip(), re.I)
