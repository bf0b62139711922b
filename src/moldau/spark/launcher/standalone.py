"""The master and workers of a standalone cluster. This Python process is replaced by Spark's Java process."""

import hashlib
import os
import re
import shlex
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from moldau.spark.errors import LaunchError
from moldau.spark.launcher.class_cache import cache_directory
from moldau.spark.launcher.driver import class_cache_options, log_options, write_stderr
from moldau.spark.launcher.java import Java, find_java
from moldau.spark.launcher.java_command import MASTER_CLASS, WORKER_CLASS, java_command
from moldau.spark.launcher.spark_home import SparkHome, find_spark

MEMORY = "1g"
"""The memory of the master or worker process. Executors have their own memory."""


@dataclass(frozen=True)
class MasterOptions:
    host: str
    port: int
    web_ui_port: int


@dataclass(frozen=True)
class WorkerOptions:
    master: str
    host: str
    web_ui_port: int
    cores: int | None
    memory: str | None
    directory: Path


def master_arguments(options: MasterOptions) -> list[str]:
    return ["--host", options.host, "--port", str(options.port), "--webui-port", str(options.web_ui_port)]


def worker_arguments(options: WorkerOptions) -> list[str]:
    arguments = ["--host", options.host, "--webui-port", str(options.web_ui_port)]
    arguments += ["--work-dir", str(options.directory)]
    if options.cores is not None:
        arguments += ["--cores", str(options.cores)]
    if options.memory is not None:
        arguments += ["--memory", options.memory]
    return [*arguments, options.master]


def exec_master(options: MasterOptions) -> NoReturn:
    _check_port_free(options.host, options.port)
    _exec_spark(MASTER_CLASS, master_arguments(options), options.host)


def exec_worker(options: WorkerOptions) -> NoReturn:
    options.directory.mkdir(parents=True, exist_ok=True)
    _exec_spark(WORKER_CLASS, worker_arguments(options), options.host)


def _check_port_free(host: str, port: int) -> None:
    """Raises LaunchError if the port is in use, because Spark would silently take the next port."""
    try:
        with socket.create_server((host, port)):
            pass
    except OSError as error:
        raise LaunchError(
            f"A master cannot listen on {host}:{port}: {error.strerror}. Name another with --host and --port."
        ) from None


def _exec_spark(name: str, arguments: list[str], host: str) -> NoReturn:
    spark, java = find_spark(), find_java()
    class_options = class_cache_options(java, spark, say=write_stderr)
    options = [*class_options, *log_options(spark, "warn", deploy="info"), "-Dspark.port.maxRetries=0"]
    command = java_command(java, spark, name, arguments, options=options, memory=MEMORY)
    # Set the local address, so that executors bind only to the address of their worker.
    environ = {"SPARK_LOCAL_IP": host, **os.environ, **worker_environment(spark)}
    environ["JAVA_HOME"] = str(make_java_home(cache_directory(os.environ), java, class_options))
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(command[0], command, environ)


def worker_environment(spark: SparkHome) -> Mapping[str, str]:
    """Returns the environment variables that a worker needs to start executors."""
    core = next(iter(sorted(spark.jars.glob("spark-core_*.jar"))), None)
    scala = re.match(r"spark-core_([\d.]+)-", core.name) if core else None
    found = {"SPARK_HOME": str(spark.home)}
    if scala:
        found["SPARK_SCALA_VERSION"] = scala.group(1)
    return found


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
    """Creates a JAVA_HOME for executors, atomically.

    Its program `java` is a script. The script drops a module option that the real Java may not support, and adds the
    class cache.
    """
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
