"""A JAVA_HOME for processes that Spark starts by itself, as workers start executors. Its `java` is a script before the
real one: it leaves out a module that the real one may not have, and adds the class cache."""

import hashlib
import os
import shlex
from collections.abc import Sequence
from pathlib import Path

from moldau.spark.launcher.java import Java

VECTOR_MODULE_OPTION = "--add-modules=jdk.incubator.vector"
DROP_VECTOR_SCRIPT = f"""for argument do
  shift
  [ "$argument" = {VECTOR_MODULE_OPTION} ] || set -- "$@" "$argument"
done
"""


def wrapper_script(java: Java, options: Sequence[str]) -> str:
    dropping = "" if "jdk.incubator.vector" in java.modules else DROP_VECTOR_SCRIPT
    return f'#!/bin/sh\n{dropping}exec {shlex.join([str(java.program), *options])} "$@"\n'


def make_java_home(directory: Path, java: Java, options: Sequence[str]) -> Path:
    """Made where it is not there yet; it is only ever put in its place as a whole."""
    text = wrapper_script(java, options)
    home = directory / f"java-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    program = home / "bin" / "java"
    if not program.exists():
        program.parent.mkdir(parents=True, exist_ok=True)
        new = program.with_name(f"java.new-{os.getpid()}")
        new.write_text(text)
        new.chmod(0o755)
        os.replace(new, program)
    return home
