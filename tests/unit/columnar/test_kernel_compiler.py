"""Compilation of kernels: what the cache finds again, and that cache failures are not errors."""

import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from importlib import import_module, invalidate_caches
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from numba.core import config

SOURCE = """
from moldau.columnar.kernel_compiler import INT64, kernel, kernel_helper
from {numbers} import FACTOR

@kernel_helper
def scaled(number):
    return FACTOR * number

@kernel(INT64, INT64)
def triple(number):
    return scaled(number) + 0
"""


@pytest.fixture
def cache_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    directory = tmp_path / "cache"
    monkeypatch.setattr(config, "CACHE_DIR", str(directory))
    path = list(sys.path)
    yield directory
    sys.path[:] = path
    forget()


def forget() -> None:
    for name in ("kernels_of_test", "numbers_of_test"):
        sys.modules.pop(name, None)


def imported(place: Path, factor: int = 3) -> ModuleType:
    """Imports the kernel's module from this directory or zip."""
    place.parent.mkdir(parents=True, exist_ok=True)
    files = {"kernels_of_test.py": SOURCE.format(numbers="numbers_of_test"), "numbers_of_test.py": f"FACTOR = {factor}"}
    if place.suffix == ".zip":
        with zipfile.ZipFile(place, "w") as packed:
            for name, text in files.items():
                packed.writestr(name, text)
    else:
        place.mkdir(exist_ok=True)
        for name, text in files.items():
            (place / name).write_text(text)
    forget()
    sys.path.insert(0, str(place))
    invalidate_caches()
    module = import_module("kernels_of_test")
    assert str(place) in str(module.__file__)
    return module


def loads(module: Any) -> int:
    """Counts the loads of the kernel from the cache."""
    return sum(module.triple.stats.cache_hits.values())


def test_the_same_source_is_compiled_once_in_any_directory(cache_directory: Path, tmp_path: Path) -> None:
    compiled = imported(tmp_path / "a")
    assert (compiled.triple(5), loads(compiled)) == (15, 0)
    for place in ("a", "b", "application-1/code.zip", "application-2/code.zip"):
        again = imported(tmp_path / place)
        assert (again.triple(5), loads(again)) == (15, 1), place


def test_a_number_from_another_module_counts_as_source(cache_directory: Path, tmp_path: Path) -> None:
    assert imported(tmp_path / "a", factor=3).triple(5) == 15
    changed = imported(tmp_path / "b", factor=4)
    assert (changed.triple(5), loads(changed)) == (20, 0)


def test_an_unwritable_cache_is_not_an_error(
    cache_directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config, "CACHE_DIR", "/dev/null/cache")
    for place in ("a", "code.zip"):
        module = imported(tmp_path / place)
        assert (module.triple(5), loads(module)) == (15, 0)


@pytest.mark.parametrize("suffix", [".nbi", ".nbc"])
@pytest.mark.parametrize("damage", [b"", b"garbage"])
def test_a_damaged_cache_is_not_an_error(cache_directory: Path, tmp_path: Path, suffix: str, damage: bytes) -> None:
    imported(tmp_path / "a")
    files = list(cache_directory.rglob(f"*{suffix}"))
    assert files
    for file in files:
        file.write_bytes(damage)
    assert imported(tmp_path / "a").triple(5) == 15


def test_a_deleted_cache_is_not_an_error(cache_directory: Path, tmp_path: Path) -> None:
    imported(tmp_path / "a")
    for file in cache_directory.rglob("*.nbc"):
        file.unlink()
    assert imported(tmp_path / "b").triple(5) == 15


@pytest.mark.parametrize(
    ("before", "environment"),
    [("sys.modules['numba'] = None", {}), ("pass", {"NUMBA_DISABLE_JIT": "1"})],
    ids=["no numba", "numba without its compiler"],
)
def test_without_numba_the_python_codec_is_used(before: str, environment: dict[str, str]) -> None:
    script = f"""
import sys
{before}
from moldau.columnar import native
from moldau.columnar.decode import to_arrow_batches
from moldau.columnar.encode import to_sections
from moldau.columnar.partitioner import key_partitions
from moldau.records.batch import Batch
from moldau.records.batch_builder import build_batch
from moldau.records.record import Record
import numpy, pyarrow
batch = Batch(build_batch([Record(timestamp=1, key=b"k", value=b"v")]))
(row,) = to_arrow_batches("t", 0, [batch], start=0, end=9, columns=["key", "value"])
encoded = to_sections(key_partitions(row.column("key"), 1, 0), key=row.column("key"), value=row.column("value"),
    headers=None, timestamp_ms=numpy.ones(1, numpy.int64), batch_bytes_max=100, compression=0)
assert [bytes(section.data) for _, section in encoded] == [bytes(batch.section)]
print(native.is_native(), row.to_pylist())
"""
    ran = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, env=os.environ | environment
    )
    assert ran.stdout == "False [{'key': b'k', 'value': b'v'}]\n", ran.stderr
