"""`moldau.spark.session()`: a Spark session with nothing to install or to set beforehand."""

import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moldau.spark.launcher import shipping
from moldau.spark.launcher.cluster import check_executors, reach, unresponsive, wait_for_executors
from moldau.spark.launcher.command import PYTHON_FILES, brought_by_sessions, python_files
from moldau.spark.launcher.driver import start_driver
from moldau.spark.launcher.errors import LaunchError
from moldau.spark.launcher.gateway import Gateway
from moldau.spark.launcher.masters import Kind, Master
from moldau.spark.launcher.settings import (
    EXECUTOR_TIMEOUT,
    MASTER_TIMEOUT,
    choose,
    parse_seconds,
    read_defaults,
)
from moldau.spark.launcher.spark_home import Spark, find_spark

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

_starting = threading.Lock()
_java: Gateway | None = None
"""The Java process of this one, when it was started here."""
_java_master: str | None = None
_submitted: dict[str, str] = {}
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
    where, chosen = choose(
        app,
        master,
        settings or {},
        submitted=_submitted,
        defaults=read_defaults(spark.settings),
        environ=os.environ,
    )
    with _starting:
        if where.kind is Kind.CONNECT:
            return _remote(where, chosen)
        if _running(where if master else None) is None:
            _set_python(chosen)
            _new_context(spark, where, chosen, quiet, say, log, descriptors)
        _hush()
        from pyspark.sql import SparkSession

        return SparkSession.builder.config(map=dict(settings or {})).getOrCreate()


def submitted(spark: Spark, where: Master, settings: Mapping[str, str]) -> None:
    """Makes this process one in which every session has these settings, also those that PySpark makes by itself."""
    _submitted.update(settings)
    _set_python(settings)
    with _starting:
        if where.kind is Kind.CONNECT:
            os.environ["SPARK_REMOTE"] = where.url
        else:
            _connect(spark, where, _prepared(where, settings), quiet=False, for_all_sessions=True)


def _running(asked: Master | None) -> "SparkContext | None":
    if _java is not None and _java.process.poll() is not None:
        _forget(_java)
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
    spark: Spark,
    where: Master,
    chosen: Mapping[str, str],
    quiet: bool,
    say: Callable[[str], None] | None,
    log: Path | None,
    descriptors: Sequence[int],
) -> "SparkContext":
    prepared = _prepared(where, chosen)
    _connect(
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

    conf = SparkConf().setAll(list(brought_by_sessions(prepared).items()))
    # What a program was submitted with, files among it, the Java process has got already.
    files = [] if _submitted else python_files(prepared)
    if where.kind is not Kind.STANDALONE:
        return SparkContext(conf=conf, pyFiles=files)
    with _given_up(where, parse_seconds(chosen[MASTER_TIMEOUT])):
        context = SparkContext(conf=conf, pyFiles=files)
    try:
        wait_for_executors(context, where, parse_seconds(chosen[EXECUTOR_TIMEOUT]))
        check_executors(context)
    except BaseException:
        context.stop()
        raise
    return context


def _prepared(where: Master, chosen: Mapping[str, str]) -> dict[str, str]:
    """With what only now can be known: our address, and where our code is for those who have not got it."""
    prepared = dict(chosen)
    if where.kind is Kind.STANDALONE:
        # As the master sees it: a host's own name often means something else to other machines.
        address = reach(where, parse_seconds(chosen[MASTER_TIMEOUT]))
        prepared.setdefault("spark.driver.host", address)
    if where.kind is not Kind.LOCAL:
        prepared[PYTHON_FILES] = ",".join([str(shipping.packed()), *python_files(chosen)])
    return prepared


def _connect(
    spark: Spark,
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
    global _java, _java_master
    from_outside = "PYSPARK_GATEWAY_PORT" in os.environ or (_java is None and _gateway() is not None)
    if from_outside or (_java is not None and _java.process.poll() is None and _java_master == where.url):
        return
    if _java is not None:
        _forget(_java)
    code = None if where.kind is Kind.LOCAL else Path(python_files(settings)[0])
    _java = start_driver(
        spark,
        settings,
        quiet=quiet,
        say=say,
        log=log,
        descriptors=descriptors,
        for_all_sessions=for_all_sessions,
        code=code,
    )
    _java_master = where.url
    from pyspark import SparkContext

    SparkContext._ensure_initialized(gateway=_java.connect())


def _hush() -> None:
    """PySpark writes each error of a query to standard error as well, as JSON with all of Java's stack."""
    from pyspark.logger import PySparkLogger

    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).disabled = True


def _gateway() -> Any:
    """That of PySpark, which need not be imported yet: it can be while Java starts."""
    pyspark = sys.modules.get("pyspark")
    return None if pyspark is None else pyspark.SparkContext._gateway


@contextmanager
def _given_up(where: Master, within_s: float) -> Iterator[None]:
    """Ends the Java process when what is done in it takes too long: Spark itself would try for a minute."""
    java, given_up = _java, threading.Event()
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
        _forget(java)
        from pyspark import __version__

        raise unresponsive(where, within_s, __version__) from None
    finally:
        timer.cancel()


def _forget(java: Gateway) -> None:
    """Ends a Java process that no session uses any more, and lets PySpark start anew."""
    global _java
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    java.kill()
    _java = None
    SparkContext._gateway = None
    SparkContext._jvm = None
    SparkContext._active_spark_context = None
    SparkSession._instantiatedSession = None


def _set_python(settings: Mapping[str, str]) -> None:
    """Workers run the Python of the driver, not whichever `python3` comes first on the PATH."""
    named = settings.get("spark.pyspark.python") or os.environ.get("PYSPARK_PYTHON")
    os.environ["PYSPARK_PYTHON"] = named or sys.executable


def _remote(where: Master, chosen: Mapping[str, str]) -> "SparkSession":
    from pyspark.sql import SparkSession

    settings = {name: value for name, value in chosen.items() if name.startswith("spark.sql.")}
    session: SparkSession = SparkSession.builder.remote(where.url).config(map=dict(settings)).getOrCreate()
    session.addArtifact(str(shipping.packed()), pyfile=True)
    return session
