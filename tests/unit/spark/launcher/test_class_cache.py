"""The class cache: which one is valid, which process builds it, and that failures do not matter."""

import os
import shutil
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path

import pytest

from moldau.spark.launcher import driver
from moldau.spark.launcher.class_cache import ClassCache, cache_directory, is_enabled, training_options
from moldau.spark.launcher.java import Java
from moldau.spark.launcher.spark_home import SparkHome

Usage = namedtuple("Usage", "total used free")


@pytest.fixture
def spark(tmp_path: Path) -> SparkHome:
    jars = tmp_path / "spark" / "jars"
    jars.mkdir(parents=True)
    (jars / "spark-core_2.13-4.3.0.jar").write_text("classes")
    (jars / "slf4j-api-2.0.jar").write_text("classes")
    return SparkHome(tmp_path / "spark", tmp_path / "spark" / "conf")


@pytest.fixture
def java(tmp_path: Path) -> Java:
    """Its `java` accepts a cache that starts with the word good."""
    program = tmp_path / "java" / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(
        '#!/bin/sh\nfor each do case "$each" in -XX:AOTCache=*|-XX:SharedArchiveFile=*)\n'
        'grep -q "^good" "${each#*=}" || exit 1;; esac; done\n'
    )
    program.chmod(0o755)
    return Java(tmp_path / "java", 25, "25.0.2+10", frozenset(), "JAVA_HOME")


@pytest.fixture
def cache(tmp_path: Path, java: Java, spark: SparkHome) -> ClassCache:
    made = ClassCache(tmp_path / "cache", java, spark)
    made.directory.mkdir()
    return made


def make(cache: ClassCache, content: str = "good") -> bool:
    with cache.locked_output() as output:
        assert output is not None
        output.write_text(content)
        return cache.install(output)


def test_a_cache_is_ready_once_it_is_installed(cache: ClassCache) -> None:
    assert not cache.is_ready()
    assert make(cache)
    assert cache.is_ready()
    assert f"-XX:AOTCache={cache.path}" in cache.jvm_options()


def test_java_before_25_uses_a_class_data_archive(tmp_path: Path, java: Java, spark: SparkHome) -> None:
    older = Java(java.home, 21, "21", frozenset(), "JAVA_HOME")
    cache = ClassCache(tmp_path, older, spark)
    assert f"-XX:SharedArchiveFile={cache.path}" in cache.jvm_options()
    assert training_options(older, Path("/out")) == ["-XX:ArchiveClassesAtExit=/out"]
    assert training_options(java, Path("/out")) == ["-XX:AOTCacheOutput=/out"]


@pytest.mark.parametrize("damage", [lambda path: path.write_text("go"), lambda path: os.utime(path, (1, 1))])
def test_a_modified_cache_is_not_used_and_rebuilt(cache: ClassCache, damage: Callable[[Path], None]) -> None:
    make(cache)
    damage(cache.path)
    assert not cache.is_ready()
    assert make(cache)
    assert cache.is_ready()


def test_a_cache_that_java_cannot_use_is_not_installed(cache: ClassCache) -> None:
    assert not make(cache, "broken")
    assert not cache.is_ready()
    assert [path.suffix for path in cache.directory.iterdir()] == [".lock"]


def test_other_jars_or_another_java_replace_the_cache(
    cache: ClassCache, tmp_path: Path, java: Java, spark: SparkHome
) -> None:
    make(cache)
    old = cache.path
    (spark.jars / "spark-core_2.13-4.3.0.jar").write_text("other classes")
    assert cache.path != old
    assert not cache.is_ready()
    make(cache)
    assert not old.exists()
    assert not old.with_suffix(".json").exists()
    newer = Java(java.home, 25, "25.0.3+9", frozenset(), "JAVA_HOME")
    assert ClassCache(cache.directory, newer, spark).path != cache.path


def test_only_one_process_builds_the_cache(cache: ClassCache) -> None:
    with cache.locked_output() as first, cache.locked_output() as second:
        assert first is not None
        assert second is None


def test_leftovers_of_a_killed_build_are_removed(cache: ClassCache) -> None:
    left = cache.path.with_name(f"{cache.path.stem}.new-1.aot")
    left.write_text("half")
    make(cache)
    assert not left.exists()


def test_no_cache_is_built_on_a_full_disk(cache: ClassCache, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cache.can_be_built(0)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(2**40, 2**40 - 2**20, 2**20))
    assert not cache.can_be_built(0)


def test_no_cache_is_built_in_an_unusable_directory(tmp_path: Path, java: Java, spark: SparkHome) -> None:
    (tmp_path / "file").write_text("")
    assert not ClassCache(tmp_path / "file" / "cache", java, spark).can_be_built(0)


def test_a_failed_build_is_retried_after_a_day(cache: ClassCache) -> None:
    cache.log.write_text("no")
    now = cache.log.stat().st_mtime
    assert not cache.can_be_built(now + 3600)
    assert cache.can_be_built(now + 25 * 3600)


@pytest.mark.parametrize(
    ("environ", "directory"),
    [
        ({"HOME": "/home/u"}, "/home/u/.cache/moldau/spark"),
        ({"HOME": "/home/u", "XDG_CACHE_HOME": "/c"}, "/c/moldau/spark"),
        ({"HOME": "/home/u", "XDG_CACHE_HOME": "/c", "MOLDAU_CACHE": "/m"}, "/m/spark"),
    ],
)
def test_the_cache_directory(environ: dict[str, str], directory: str) -> None:
    assert cache_directory(environ) == Path(directory)


@pytest.mark.parametrize(
    ("environ", "is_wanted"),
    [
        ({}, True),
        ({"CI": "true"}, False),
        ({"CI": "true", "MOLDAU_CLASS_CACHE": "on"}, True),
        ({"MOLDAU_CLASS_CACHE": "off"}, False),
        ({"MOLDAU_CLASS_CACHE": "0"}, False),
    ],
)
def test_when_the_cache_is_enabled(environ: dict[str, str], is_wanted: bool) -> None:
    assert is_enabled(environ) is is_wanted


class Messages:
    def __init__(self) -> None:
        self.text = ""

    def __call__(self, text: str) -> None:
        self.text += text


@pytest.fixture
def in_cache(cache: ClassCache, monkeypatch: pytest.MonkeyPatch) -> ClassCache:
    monkeypatch.setenv("MOLDAU_CACHE", str(cache.directory))
    monkeypatch.setenv("MOLDAU_CLASS_CACHE", "on")
    return ClassCache(cache.directory / "spark", cache.java, cache.spark)


def test_the_cache_is_built_at_the_first_start_and_used_from_then_on(
    in_cache: ClassCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train(cache: ClassCache, output: Path) -> bool:
        output.write_text("good")
        return True

    monkeypatch.setattr(driver, "_train_class_cache", train)
    message = Messages()
    options = driver.class_cache_options(in_cache.java, in_cache.spark, say=message)
    assert options == in_cache.jvm_options()
    assert message.text.startswith("Building a class cache for faster starts of Spark: once")
    assert message.text.endswith("done in 0 s.\n")

    message = Messages()
    assert driver.class_cache_options(in_cache.java, in_cache.spark, say=message) == options
    assert message.text == ""


def test_ctrl_c_skips_the_build(in_cache: ClassCache, monkeypatch: pytest.MonkeyPatch) -> None:
    def train(cache: ClassCache, output: Path) -> bool:
        output.write_text("good")
        raise KeyboardInterrupt

    monkeypatch.setattr(driver, "_train_class_cache", train)
    message = Messages()
    assert driver.class_cache_options(in_cache.java, in_cache.spark, say=message) == []
    assert message.text.endswith("skipped.\n")
    assert not list(in_cache.directory.glob("*.aot"))


def test_a_failed_training_is_reported_and_not_an_error(in_cache: ClassCache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "_train_class_cache", lambda cache, output: False)
    message = Messages()
    assert driver.class_cache_options(in_cache.java, in_cache.spark, say=message) == []
    assert "continuing without" in message.text


def test_a_disk_that_fills_up_is_not_an_error(in_cache: ClassCache, monkeypatch: pytest.MonkeyPatch) -> None:
    def train(cache: ClassCache, output: Path) -> bool:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(driver, "_train_class_cache", train)
    message = Messages()
    assert driver.class_cache_options(in_cache.java, in_cache.spark, say=message) == []
    assert "No space left on device" in message.text
