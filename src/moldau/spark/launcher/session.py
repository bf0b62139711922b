"""`moldau.spark.session()`, which returns a Spark session without installation or configuration."""

import atexit
import os
import shutil
import sys
import tempfile
import threading
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moldau.spark.errors import LaunchError
from moldau.spark.launcher.cluster_checks import (
    check_executors,
    reach_master,
    unresponsive_master_error,
    wait_for_executors,
)
from moldau.spark.launcher.driver import DriverOptions, start_driver
from moldau.spark.launcher.gateway import Gateway
from moldau.spark.launcher.java_command import PYTHON_FILES, python_files, session_settings
from moldau.spark.launcher.master_url import Master, MasterKind
from moldau.spark.launcher.spark_home import SparkHome, find_spark
from moldau.spark.launcher.spark_settings import (
    EXECUTOR_TIMEOUT,
    MASTER_TIMEOUT,
    parse_seconds,
    read_defaults,
    resolve_settings,
)

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

_start_lock = threading.Lock()
_gateway_process: Gateway | None = None
"""The Java process that this Python process has started."""
_gateway_master: str | None = None
_submitted_settings: dict[str, str] = {}
"""The settings of `moldau spark submit` or `shell`."""


def session(
    app: str | None = None,
    *,
    master: str | None = None,
    settings: Mapping[str, str] | None = None,
    quiet: bool = False,
    say: Callable[[str], None] | None = None,
    log: Path | None = None,
    descriptors: Sequence[int] = (),
) -> "SparkSession":
    """Returns the running session, or starts a session.

    The master is the argument `master`, else the setting `spark.master`, else the environment variable MASTER, else
    `local[*]`. `settings` override Moldau's defaults. With `quiet` only errors are printed.

    `say` receives messages about slow steps before Spark starts. `log` receives the output of Java and of local Python
    workers. The default for both is standard error. Java keeps `descriptors` open until it exits, so a lock on a
    descriptor may last a little longer than this process. Raises LaunchError.
    """
    spark = find_spark()
    spark_master, chosen = resolve_settings(
        app,
        master,
        settings or {},
        submitted=_submitted_settings,
        defaults=read_defaults(spark.settings),
        environ=os.environ,
    )
    with _start_lock:
        if spark_master.kind is MasterKind.CONNECT:
            return _connect_session(spark_master, chosen)
        if _running_context(spark_master if master else None) is None:
            _set_worker_python(chosen)
            _new_context(spark, spark_master, chosen, DriverOptions(quiet, say, log, descriptors))
        _silence_query_logs()
        from pyspark.sql import SparkSession

        return SparkSession.builder.config(map=dict(settings or {})).getOrCreate()


def start_submitted(spark: SparkHome, spark_master: Master, settings: Mapping[str, str]) -> None:
    """Applies these settings to every session of the process, including sessions that PySpark creates."""
    _submitted_settings.update(settings)
    _set_worker_python(settings)
    with _start_lock:
        if spark_master.kind is MasterKind.CONNECT:
            os.environ["SPARK_REMOTE"] = spark_master.url
        else:
            prepared = _with_runtime_settings(spark_master, settings)
            _connect_gateway(spark, spark_master, prepared, DriverOptions(for_all_sessions=True))


def _running_context(requested: Master | None) -> "SparkContext | None":
    if _gateway_process is not None and _gateway_process.process.poll() is not None:
        _discard_gateway(_gateway_process)
    pyspark = sys.modules.get("pyspark")
    context: SparkContext | None = pyspark.SparkContext._active_spark_context if pyspark else None
    if context is None or context._jsc is None:
        return None
    if requested is not None and context.master != requested.url:
        raise LaunchError(
            f"A session with the master {context.master} is running, and a process can have only "
            f"one: stop it (spark.stop()) before you start one with {requested.url}."
        )
    return context


def _new_context(
    spark: SparkHome, spark_master: Master, chosen: Mapping[str, str], options: DriverOptions
) -> "SparkContext":
    prepared = _with_runtime_settings(spark_master, chosen)
    _connect_gateway(spark, spark_master, prepared, options)
    from pyspark import SparkConf, SparkContext

    conf = SparkConf().setAll(list(session_settings(prepared).items()))
    # Pass no files for a submitted program, because the Java process already has them.
    files = [] if _submitted_settings else python_files(prepared)
    if spark_master.kind is not MasterKind.STANDALONE:
        return SparkContext(conf=conf, pyFiles=files)
    with _startup_deadline(spark_master, parse_seconds(MASTER_TIMEOUT, chosen[MASTER_TIMEOUT])):
        context = SparkContext(conf=conf, pyFiles=files)
    try:
        wait_for_executors(context, spark_master, parse_seconds(EXECUTOR_TIMEOUT, chosen[EXECUTOR_TIMEOUT]))
        check_executors(context)
    except BaseException:
        context.stop()
        raise
    return context


def _with_runtime_settings(spark_master: Master, chosen: Mapping[str, str]) -> dict[str, str]:
    """Adds settings that are known only at the start: the driver's address, and the archive of Moldau's code for
    executors."""
    prepared = dict(chosen)
    if spark_master.kind is MasterKind.STANDALONE:
        # Use the address from the connection to the master, because host names may not resolve on other machines.
        address = reach_master(spark_master, parse_seconds(MASTER_TIMEOUT, chosen[MASTER_TIMEOUT]))
        prepared.setdefault("spark.driver.host", address)
    if spark_master.kind is not MasterKind.LOCAL:
        prepared[PYTHON_FILES] = ",".join([str(build_code_archive()), *python_files(chosen)])
    return prepared


def _connect_gateway(
    spark: SparkHome, spark_master: Master, settings: Mapping[str, str], options: DriverOptions
) -> None:
    """Connects to a Java process, and starts it if needed. Successive sessions with the same master share the
    process."""
    global _gateway_process, _gateway_master
    is_external = "PYSPARK_GATEWAY_PORT" in os.environ or (_gateway_process is None and _pyspark_gateway() is not None)
    if is_external or (
        _gateway_process is not None and _gateway_process.process.poll() is None and _gateway_master == spark_master.url
    ):
        return
    if _gateway_process is not None:
        _discard_gateway(_gateway_process)
    code = None if spark_master.kind is MasterKind.LOCAL else Path(python_files(settings)[0])
    _gateway_process = start_driver(spark, settings, options, code=code)
    _gateway_master = spark_master.url
    from pyspark import SparkContext

    SparkContext._ensure_initialized(gateway=_gateway_process.connect())


def _silence_query_logs() -> None:
    """Disables loggers that repeat every query error on standard error, as JSON with a Java stack trace."""
    from pyspark.logger import PySparkLogger

    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).disabled = True


def _pyspark_gateway() -> Any:
    """Returns PySpark's gateway, or None. Does not import PySpark, so that PySpark can be imported while Java
    starts."""
    pyspark = sys.modules.get("pyspark")
    return None if pyspark is None else pyspark.SparkContext._gateway


@contextmanager
def _startup_deadline(spark_master: Master, within_s: float) -> Iterator[None]:
    """Kills the Java process if the block takes too long, because Spark would retry for a minute."""
    java, timed_out = _gateway_process, threading.Event()
    if java is None:
        yield
        return

    def on_timeout() -> None:
        timed_out.set()
        java.kill()

    timer = threading.Timer(within_s, on_timeout)
    timer.daemon = True
    timer.start()
    try:
        yield
    except Exception:
        if not timed_out.is_set():
            raise
        _discard_gateway(java)
        from pyspark import __version__

        raise unresponsive_master_error(spark_master, within_s, __version__) from None
    finally:
        timer.cancel()


def _discard_gateway(java: Gateway) -> None:
    """Kills the Java process and resets PySpark's state."""
    global _gateway_process
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    java.kill()
    _gateway_process = None
    SparkContext._gateway = None
    SparkContext._jvm = None
    SparkContext._active_spark_context = None
    SparkSession._instantiatedSession = None


def _set_worker_python(settings: Mapping[str, str]) -> None:
    """Makes workers run the driver's Python instead of the first `python3` on the PATH."""
    python = settings.get("spark.pyspark.python") or os.environ.get("PYSPARK_PYTHON")
    os.environ["PYSPARK_PYTHON"] = python or sys.executable


def _connect_session(spark_master: Master, chosen: Mapping[str, str]) -> "SparkSession":
    from pyspark.sql import SparkSession

    settings = {name: value for name, value in chosen.items() if name.startswith("spark.sql.")}
    session: SparkSession = SparkSession.builder.remote(spark_master.url).config(map=dict(settings)).getOrCreate()
    session.addArtifact(str(build_code_archive()), pyfile=True)
    return session


PACKAGES = ("moldau", "pyspark_moldau")


def build_code_archive() -> Path:
    """Writes a zip file of Moldau's code and returns its path. The file is deleted when the process exits."""
    directory = Path(tempfile.mkdtemp(prefix="moldau-code-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    path = directory / "moldau.zip"
    write_code_archive([_directory(name) for name in PACKAGES], path)
    return path


def _directory(package: str) -> Path:
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise LaunchError(f"The package {package} is not installed correctly: pip install 'moldau[spark]'")
    return Path(spec.origin).parent


def write_code_archive(packages: list[Path], path: Path) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for package in packages:
            for file in sorted(package.rglob("*")):
                if file.is_file() and "__pycache__" not in file.parts:
                    archive.write(file, file.relative_to(package.parent))
