"""The master and workers of a standalone cluster. This Python process is replaced by Spark's Java process."""

import hashlib
import os
import re
import shlex
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from moldau.spark.errors import LaunchError
from moldau.spark.launcher.class_cache import cache_directory
from moldau.spark.launcher.driver import class_cache_options, log_options, write_stderr
from moldau.spark.launcher.java import Java, find_java
from moldau.spark.launcher.java_command import java_command
from moldau.spark.launcher.spark_home import SparkHome, find_spark

MEMORY = "1g"
"""The memory of the master or worker process. Executors have their own memory."""


def exec_master(host: str, port: int, web_ui_port: int) -> NoReturn:
    try:
        # Check the port before Spark starts, so that a port in use is reported without a Java stack trace.
        with socket.create_server((host, port)):
            pass
    except OSError as error:
        raise LaunchError(
            f"A master cannot listen on {host}:{port}: {error.strerror}. Name another with --host and --port."
        ) from None
    _exec_spark("master.Master", host, ["--port", str(port), "--webui-port", str(web_ui_port)])


def exec_worker(
    master: str, host: str, web_ui_port: int, cores: int | None, memory: str | None, directory: Path
) -> NoReturn:
    directory.mkdir(parents=True, exist_ok=True)
    arguments = ["--webui-port", str(web_ui_port), "--work-dir", str(directory)]
    if cores is not None:
        arguments += ["--cores", str(cores)]
    if memory is not None:
        arguments += ["--memory", memory]
    _exec_spark("worker.Worker", host, [*arguments, master])


def _exec_spark(main_class: str, host: str, arguments: Sequence[str]) -> NoReturn:
    spark, java = find_spark(), find_java()
    class_options = class_cache_options(java, spark, say=write_stderr)
    options = [*class_options, *log_options(spark, "warn", deploy="info"), "-Dspark.port.maxRetries=0"]
    command = java_command(java, spark, main_class, ["--host", host, *arguments], options=options, memory=MEMORY)
    # Set the local address, so that executors bind only to the address of their worker.
    environ = {"SPARK_LOCAL_IP": host, **os.environ, **worker_environment(spark)}
    environ["JAVA_HOME"] = str(make_java_home(cache_directory(os.environ), java, class_options))
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(command[0], command, environ)


def worker_environment(spark: SparkHome) -> Mapping[str, str]:
    """Returns the environment variables that a worker needs to start executors."""
    found = {"SPARK_HOME": str(spark.home)}
    for jar in sorted(spark.jars.glob("spark-core_*.jar"))[:1]:
        if scala := re.match(r"spark-core_([\d.]+)-", jar.name):
            found["SPARK_SCALA_VERSION"] = scala.group(1)
    return found


VECTOR_MODULE_OPTION = "--add-modules=jdk.incubator.vector"
DROP_VECTOR_SCRIPT = f"""for argument do
  shift
  [ "$argument" = {VECTOR_MODULE_OPTION} ] || set -- "$@" "$argument"
done
"""


def make_java_home(directory: Path, java: Java, options: Sequence[str]) -> Path:
    """Creates a JAVA_HOME for executors, atomically.

    Its program `java` is a script. The script drops a module option that the real Java may not support, and adds the
    class cache.
    """
    dropping = "" if "jdk.incubator.vector" in java.modules else DROP_VECTOR_SCRIPT
    text = f'#!/bin/sh\n{dropping}exec {shlex.join([str(java.program), *options])} "$@"\n'
    home = directory / f"java-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    program = home / "bin" / "java"
    if not program.exists():
        program.parent.mkdir(parents=True, exist_ok=True)
        new = program.with_name(f"java.new-{os.getpid()}")
        new.write_text(text)
        new.chmod(0o755)
        os.replace(new, program)
    return home
