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
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moldau.spark.errors import LaunchError
from moldau.spark.launcher.cluster_checks import check_executors, reach_master, wait_for_executors
from moldau.spark.launcher.driver import DriverOptions, start_driver, write_stderr
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
    from pyspark.sql import SparkSession


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

    `say` receives messages about slow steps before Spark starts; by default they are printed to standard error. `log`
    receives the output of Java and of local Python workers; by default they use the output of this process. Java keeps
    `descriptors` open until it exits, so a lock on a descriptor may last a little longer than this process. Raises
    LaunchError.
    """
    say = say or ((lambda _: None) if quiet else write_stderr)
    return spark_launcher().session(app, master, settings or {}, DriverOptions(quiet, say, log, descriptors))


_creation_lock = threading.Lock()


def spark_launcher() -> "SparkLauncher":
    """Returns the launcher of this process. There is one, because PySpark connects to only one Java process."""
    with _creation_lock:
        return _cached_launcher()


@cache
def _cached_launcher() -> "SparkLauncher":
    return SparkLauncher()


class SparkLauncher:
    """Starts sessions and owns their Java process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._gateway: Gateway | None = None
        """The Java process that this process has started."""
        self._gateway_master: str | None = None
        self._submitted_settings: dict[str, str] = {}
        """The settings of `moldau spark submit`."""

    def session(
        self, app: str | None, master: str | None, settings: Mapping[str, str], options: DriverOptions
    ) -> "SparkSession":
        spark = find_spark()
        spark_master, chosen = resolve_settings(
            app,
            master,
            settings,
            submitted=self._submitted_settings,
            defaults=read_defaults(spark.settings),
            environ=os.environ,
        )
        with self._lock:
            if spark_master.kind is MasterKind.CONNECT:
                return _connect_session(spark_master, chosen)
            if not self._has_context(spark_master if master else None):
                _set_worker_python(chosen)
                self._start_context(spark, spark_master, chosen, options)
            _silence_query_logs()
            from pyspark.sql import SparkSession

            return SparkSession.builder.config(map=dict(settings)).getOrCreate()

    def start_submitted(self, spark: SparkHome, spark_master: Master, settings: Mapping[str, str]) -> None:
        """Connects PySpark with these settings, which apply to all sessions, also to those that PySpark creates."""
        self._submitted_settings.update(settings)
        _set_worker_python(settings)
        with self._lock:
            if spark_master.kind is MasterKind.CONNECT:
                os.environ["SPARK_REMOTE"] = spark_master.url
            else:
                prepared = _with_runtime_settings(spark_master, settings)
                self._connect_gateway(spark, spark_master, prepared, DriverOptions(for_all_sessions=True))

    def _has_context(self, requested: Master | None) -> bool:
        """Returns whether Spark is running. Raises LaunchError if its master is not the requested one."""
        if self._gateway is not None and self._gateway.process.poll() is not None:
            self._discard_gateway()
        context = _pyspark_state("_active_spark_context")
        if context is None or context._jsc is None:
            return False
        if requested is not None and context.master != requested.url:
            raise LaunchError(
                f"A session with the master {context.master} is running, and a process can have only "
                f"one: stop it (spark.stop()) before you start one with {requested.url}."
            )
        return True

    def _start_context(
        self, spark: SparkHome, spark_master: Master, chosen: Mapping[str, str], options: DriverOptions
    ) -> None:
        prepared = _with_runtime_settings(spark_master, chosen)
        self._connect_gateway(spark, spark_master, prepared, options)
        from pyspark import SparkConf, SparkContext

        conf = SparkConf().setAll(list(session_settings(prepared).items()))
        # Pass no files for a submitted program, because the Java process already has them.
        files = [] if self._submitted_settings else python_files(prepared)
        if spark_master.kind is not MasterKind.STANDALONE:
            SparkContext(conf=conf, pyFiles=files)
            return
        with self._startup_deadline(spark_master, parse_seconds(MASTER_TIMEOUT, chosen[MASTER_TIMEOUT])):
            context = SparkContext(conf=conf, pyFiles=files)
        try:
            wait_for_executors(context, spark_master, parse_seconds(EXECUTOR_TIMEOUT, chosen[EXECUTOR_TIMEOUT]))
            check_executors(context)
        except BaseException:
            context.stop()
            raise

    def _connect_gateway(
        self, spark: SparkHome, spark_master: Master, settings: Mapping[str, str], options: DriverOptions
    ) -> None:
        """Connects PySpark to a Java process. Successive sessions with the same master share the Java process."""
        if "PYSPARK_GATEWAY_PORT" in os.environ:
            return  # Another program has started Java and runs this process.
        if self._gateway is None:
            if _pyspark_state("_gateway") is not None:
                return  # PySpark has started Java itself.
        elif self._gateway.process.poll() is None and self._gateway_master == spark_master.url:
            return
        else:
            self._discard_gateway()
        code = None if spark_master.kind is MasterKind.LOCAL else Path(python_files(settings)[0])
        self._gateway = start_driver(spark, settings, options, code=code)
        self._gateway_master = spark_master.url
        from pyspark import SparkContext

        SparkContext._ensure_initialized(gateway=self._gateway.connect())

    @contextmanager
    def _startup_deadline(self, spark_master: Master, within_s: float) -> Iterator[None]:
        """Kills the Java process if the block takes too long, because Spark would retry for a minute."""
        java, timed_out = self._gateway, threading.Event()
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
            self._discard_gateway()
            from pyspark import __version__

            raise LaunchError(
                f"{spark_master.url} accepts connections but did not register this application within "
                f"{within_s:.0f} s. Check that it is the port of a Spark master (not of its web UI), and that it runs "
                f"the same Spark ({__version__})."
            ) from None
        finally:
            timer.cancel()

    def _discard_gateway(self) -> None:
        """Kills the Java process and resets PySpark's state."""
        from pyspark import SparkContext
        from pyspark.sql import SparkSession

        assert self._gateway is not None
        self._gateway.kill()
        self._gateway = None
        SparkContext._gateway = None
        SparkContext._jvm = None
        SparkContext._active_spark_context = None
        SparkSession._instantiatedSession = None


def _pyspark_state(name: str) -> Any:
    """Returns a class attribute of SparkContext, or None if PySpark has not been imported yet."""
    pyspark = sys.modules.get("pyspark")
    return None if pyspark is None else getattr(pyspark.SparkContext, name)


def _with_runtime_settings(spark_master: Master, chosen: Mapping[str, str]) -> dict[str, str]:
    """Returns the settings with the driver's address and the archive of Moldau's code for executors."""
    prepared = dict(chosen)
    if spark_master.kind is MasterKind.STANDALONE:
        # Other machines may be unable to resolve this machine's name. Use its address on the connection to the master.
        address = reach_master(spark_master, parse_seconds(MASTER_TIMEOUT, chosen[MASTER_TIMEOUT]))
        prepared.setdefault("spark.driver.host", address)
    if spark_master.kind is not MasterKind.LOCAL:
        prepared[PYTHON_FILES] = ",".join([str(build_code_archive()), *python_files(chosen)])
    return prepared


def _silence_query_logs() -> None:
    """Disables loggers that repeat every query error on standard error, as JSON with a Java stack trace."""
    from pyspark.logger import PySparkLogger

    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).disabled = True


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


def build_code_archive() -> Path:
    """Writes a zip file of Moldau's code and returns its path. The file is deleted when the process exits."""
    directory = Path(tempfile.mkdtemp(prefix="moldau-code-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    path = directory / "moldau.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("moldau", "pyspark_moldau"):
            spec = find_spec(name)
            if spec is None or spec.origin is None:
                raise LaunchError(f"The package {name} is not installed correctly: pip install 'moldau[spark]'")
            package = Path(spec.origin).parent
            for file in sorted(package.rglob("*")):
                if file.is_file() and "__pycache__" not in file.parts:
                    archive.write(file, file.relative_to(package.parent))
    return path
