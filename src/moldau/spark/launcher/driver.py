"""Starts the Java process of a driver, with the class cache and fewer log messages."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from moldau.spark.launcher import gateway
from moldau.spark.launcher.class_cache import ClassCache, cache_directory, is_enabled
from moldau.spark.launcher.java import Java, find_java
from moldau.spark.launcher.java_command import gateway_command, properties_text, submit_settings
from moldau.spark.launcher.spark_home import SparkHome

TRAINING_TIMEOUT_S = 300.0


def write_stderr(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()


@dataclass(frozen=True)
class DriverOptions:
    quiet: bool = False
    say: Callable[[str], None] = write_stderr
    """A callback for messages about slow steps."""
    log: Path | None = None
    descriptors: Sequence[int] = ()
    for_all_sessions: bool = False
    """Whether the settings apply to every session of the process, including sessions that PySpark creates."""


def start_driver(
    spark: SparkHome,
    settings: Mapping[str, str],
    options: DriverOptions,
    *,
    code: Path | None = None,
    java: Java | None = None,
    class_options: Sequence[str] | None = None,
) -> gateway.Gateway:
    """Starts the gateway.

    `code` is a zip file with Moldau's code for the Python workers on this machine, in which Spark plans queries.
    `class_options` are the Java options of the class cache; None looks them up.
    """
    java = java or find_java()
    if class_options is None:
        class_options = class_cache_options(java, spark, say=options.say)
    java_options = [*class_options, *log_options(spark, "error" if options.quiet else "warn")]
    properties = settings if options.for_all_sessions else submit_settings(settings)
    environ = {**os.environ, "JAVA_HOME": str(java.home)}
    if code is not None:
        environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(code), os.environ.get("PYTHONPATH")]))
    return gateway.start_gateway(
        lambda file: gateway_command(java, spark, settings, file, options=java_options),
        properties_text(properties),
        environ,
        options.log,
        options.descriptors,
    )


def log_options(spark: SparkHome, level: str, *, deploy: str = "warn") -> list[str]:
    """Returns the Java options for logging, or an empty list if the user has a log4j2.properties.

    `deploy` is the log level of masters and workers, `level` the log level of most other classes.
    """
    if (spark.settings / "log4j2.properties").is_file():
        return []
    configuration = Path(__file__).with_name("log4j2.properties")
    return [
        f"-Dlog4j2.configurationFile={configuration}",
        f"-Dmoldau.log.level={level}",
        f"-Dmoldau.deploy.level={deploy}",
    ]


def class_cache_options(java: Java, spark: SparkHome, *, say: Callable[[str], None]) -> list[str]:
    """Returns the Java options of the class cache. Builds a missing cache. Returns an empty list without a cache."""
    if not is_enabled(os.environ):
        return []
    cache = ClassCache(cache_directory(os.environ), java, spark)
    if not cache.is_ready() and cache.can_be_built(time.time()):
        _build_class_cache(cache, say)
    return cache.jvm_options() if cache.is_ready() else []


def _build_class_cache(cache: ClassCache, say: Callable[[str], None]) -> None:
    try:
        with cache.locked_output() as output:
            if output is None:
                return
            say("Building a class cache for faster starts of Spark: once, half a minute or more (Ctrl-C skips it) ... ")
            began = time.monotonic()
            is_installed = _train_class_cache(cache, output) and cache.install(output)
            took = f"{time.monotonic() - began:.0f} s"
            say(f"done in {took}.\n" if is_installed else f"failed, see {cache.log}; continuing without.\n")
    except KeyboardInterrupt:
        say("skipped.\n")
    except OSError as error:
        say(f"failed ({error.strerror}); continuing without.\n")


def _train_class_cache(cache: ClassCache, output: Path) -> bool:
    """Trains in another Python process, because PySpark can connect to only one Java process.

    The training uses this Java, Spark and Python, but not the user's session settings.
    """
    environ = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK_", "SPARK_", "MASTER"))},
        "JAVA_HOME": str(cache.java.home),
        "SPARK_HOME": str(cache.spark.home),
        "PYSPARK_PYTHON": sys.executable,
        "MOLDAU_CLASS_CACHE": "off",
    }
    with cache.log.open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "moldau.spark.launcher.class_cache_training", str(output)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            # Ctrl-C must not interrupt the child. The parent terminates the child in `finally`.
            process_group=0,
            env=environ,
        )
        try:
            return process.wait(TRAINING_TIMEOUT_S) == 0
        except subprocess.TimeoutExpired:
            return False
        finally:
            gateway.terminate_process(process)
