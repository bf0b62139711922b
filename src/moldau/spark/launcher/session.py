"""`moldau.spark.session()`: a Spark session with nothing to install or to set beforehand."""

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
from moldau.spark.launcher import session as code_archive
from moldau.spark.launcher.cluster_checks import (
    check_executors,
    reach_master,
    unresponsive_master_error,
    wait_for_executors,
)
from moldau.spark.launcher.driver import start_driver
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
"""The Java process of this one, when it was started here."""
_gateway_master: str | None = None
_submitted_settings: dict[str, str] = {}
"""The settings that the program was started with, by `moldau spark submit` or `shell`."""


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
    """The running session, or a new one.

    The master is `local[*]` unless it is given here, as `spark.master`, or in the environment as MASTER. Settings are
    Spark's own and win over ours. Quiet means that only errors are told. `say` is told what takes long before Spark
    starts, and `log` gets what Java and the Python workers of this machine print; both go to standard error
    otherwise. Java keeps the descriptors open as long as it lives: with a lock it may outlive this process by a moment.
    Raises LaunchError, whose text says what to do.
    """
    spark = find_spark()
    where, chosen = resolve_settings(
        app,
        master,
        settings or {},
        submitted=_submitted_settings,
        defaults=read_defaults(spark.settings),
        environ=os.environ,
    )
    with _start_lock:
        if where.kind is MasterKind.CONNECT:
            return _connect_session(where, chosen)
        if _running_context(where if master else None) is None:
            _set_worker_python(chosen)
            _new_context(spark, where, chosen, quiet, say, log, descriptors)
        _silence_query_logs()
        from pyspark.sql import SparkSession

        return SparkSession.builder.config(map=dict(settings or {})).getOrCreate()


def start_submitted(spark: SparkHome, where: Master, settings: Mapping[str, str]) -> None:
    """Makes this process one in which every session has these settings, also those that PySpark makes by itself."""
    _submitted_settings.update(settings)
    _set_worker_python(settings)
    with _start_lock:
        if where.kind is MasterKind.CONNECT:
            os.environ["SPARK_REMOTE"] = where.url
        else:
            _connect_gateway(
                spark, where, _with_runtime_settings(where, settings), quiet=False, for_all_sessions=True
            )


def _running_context(asked: Master | None) -> "SparkContext | None":
    if _gateway_process is not None and _gateway_process.process.poll() is not None:
        _discard_gateway(_gateway_process)
    pyspark = sys.modules.get("pyspark")
    context: SparkContext | None = pyspark.SparkContext._active_spark_context if pyspark else None
    if context is None or context._jsc is None:
        return None
    if asked is not None and context.master != asked.url:
        raise LaunchError(
            f"A session with the master {context.master} is running, and a process has one at a time: "
            f"stop it (spark.stop()) before you start one with {asked.url}."
        )
    return context


def _new_context(
    spark: SparkHome,
    where: Master,
    chosen: Mapping[str, str],
    quiet: bool,
    say: Callable[[str], None] | None,
    log: Path | None,
    descriptors: Sequence[int],
) -> "SparkContext":
    prepared = _with_runtime_settings(where, chosen)
    _connect_gateway(
        spark,
        where,
        prepared,
        quiet=quiet,
        say=say,
        log=log,
        descriptors=descriptors,
        for_all_sessions=False,
    )
    from pyspark import SparkConf, SparkContext

    conf = SparkConf().setAll(list(session_settings(prepared).items()))
    # What a program was submitted with, files among it, the Java process has got already.
    files = [] if _submitted_settings else python_files(prepared)
    if where.kind is not MasterKind.STANDALONE:
        return SparkContext(conf=conf, pyFiles=files)
    with _startup_deadline(where, parse_seconds(MASTER_TIMEOUT, chosen[MASTER_TIMEOUT])):
        context = SparkContext(conf=conf, pyFiles=files)
    try:
        wait_for_executors(context, where, parse_seconds(EXECUTOR_TIMEOUT, chosen[EXECUTOR_TIMEOUT]))
        check_executors(context)
    except BaseException:
        context.stop()
        raise
    return context


def _with_runtime_settings(where: Master, chosen: Mapping[str, str]) -> dict[str, str]:
    """With what only now can be known: our address, and where our code is for those who have not got it."""
    prepared = dict(chosen)
    if where.kind is MasterKind.STANDALONE:
        # As the master sees it: a host's own name often means something else to other machines.
        address = reach_master(where, parse_seconds(MASTER_TIMEOUT, chosen[MASTER_TIMEOUT]))
        prepared.setdefault("spark.driver.host", address)
    if where.kind is not MasterKind.LOCAL:
        prepared[PYTHON_FILES] = ",".join([str(code_archive.build_code_archive()), *python_files(chosen)])
    return prepared


def _connect_gateway(
    spark: SparkHome,
    where: Master,
    settings: Mapping[str, str],
    *,
    quiet: bool,
    say: Callable[[str], None] | None = None,
    log: Path | None = None,
    descriptors: Sequence[int] = (),
    for_all_sessions: bool,
) -> None:
    """To a Java process. Sessions with one master that follow each other share it."""
    global _gateway_process, _gateway_master
    from_outside = "PYSPARK_GATEWAY_PORT" in os.environ or (
        _gateway_process is None and _pyspark_gateway() is not None
    )
    if from_outside or (
        _gateway_process is not None
        and _gateway_process.process.poll() is None
        and _gateway_master == where.url
    ):
        return
    if _gateway_process is not None:
        _discard_gateway(_gateway_process)
    code = None if where.kind is MasterKind.LOCAL else Path(python_files(settings)[0])
    _gateway_process = start_driver(
        spark,
        settings,
        quiet=quiet,
        say=say,
        log=log,
        descriptors=descriptors,
        for_all_sessions=for_all_sessions,
        code=code,
    )
    _gateway_master = where.url
    from pyspark import SparkContext

    SparkContext._ensure_initialized(gateway=_gateway_process.connect())


def _silence_query_logs() -> None:
    """PySpark writes each error of a query to standard error as well, as JSON with all of Java's stack."""
    from pyspark.logger import PySparkLogger

    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).disabled = True


def _pyspark_gateway() -> Any:
    """That of PySpark, which need not be imported yet: it can be while Java starts."""
    pyspark = sys.modules.get("pyspark")
    return None if pyspark is None else pyspark.SparkContext._gateway


@contextmanager
def _startup_deadline(where: Master, within_s: float) -> Iterator[None]:
    """Ends the Java process when what is done in it takes too long: Spark itself would try for a minute."""
    java, given_up = _gateway_process, threading.Event()
    if java is None:
        yield
        return

    def give_up() -> None:
        given_up.set()
        java.kill()

    timer = threading.Timer(within_s, give_up)
    timer.daemon = True
    timer.start()
    try:
        yield
    except Exception:
        if not given_up.is_set():
            raise
        _discard_gateway(java)
        from pyspark import __version__

        raise unresponsive_master_error(where, within_s, __version__) from None
    finally:
        timer.cancel()


def _discard_gateway(java: Gateway) -> None:
    """Ends a Java process that no session uses any more, and lets PySpark start anew."""
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
    """Workers run the Python of the driver, not whichever `python3` comes first on the PATH."""
    named = settings.get("spark.pyspark.python") or os.environ.get("PYSPARK_PYTHON")
    os.environ["PYSPARK_PYTHON"] = named or sys.executable


def _connect_session(where: Master, chosen: Mapping[str, str]) -> "SparkSession":
    from pyspark.sql import SparkSession

    settings = {name: value for name, value in chosen.items() if name.startswith("spark.sql.")}
    session: SparkSession = SparkSession.builder.remote(where.url).config(map=dict(settings)).getOrCreate()
    session.addArtifact(str(code_archive.build_code_archive()), pyfile=True)
    return session


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
