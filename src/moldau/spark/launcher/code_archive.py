"""Moldau's own code as a zip, which Spark brings to executors that have only the third-party packages."""

import atexit
import shutil
import tempfile
import zipfile
from importlib.util import find_spec
from pathlib import Path

from moldau.spark.launcher.errors import LaunchError

PACKAGES = ("moldau", "pyspark_moldau")


def build_code_archive() -> Path:
    """A fresh zip of the code that runs here, which is there as long as this process is."""
    directory = Path(tempfile.mkdtemp(prefix="moldau-code-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    path = directory / "moldau.zip"
    write_code_archive([_directory(name) for name in PACKAGES], path)
    return path


def _directory(package: str) -> Path:
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise LaunchError(
            f"The package {package} is not installed as it should be: pip install 'moldau[spark]'"
        )
    return Path(spec.origin).parent


def write_code_archive(packages: list[Path], path: Path) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for package in packages:
            for file in sorted(package.rglob("*")):
                if file.is_file() and "__pycache__" not in file.parts:
                    archive.write(file, file.relative_to(package.parent))
