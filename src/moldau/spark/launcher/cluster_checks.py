"""Checks of a standalone cluster before the first query: the master, and the executors' Python and packages."""

import errno
import importlib.util
import re
import socket
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from moldau.spark.errors import LaunchError
from moldau.spark.launcher.master_url import Master

if TYPE_CHECKING:
    from pyspark import SparkContext

REQUIRED_PACKAGES = ("pyarrow", "numpy", "pandas", "cramjam", "crc32c", "kio")
"""Packages that the data source imports on executors. numba is not listed, because it is optional."""
RETRY_INTERVAL_S = 0.25
POLL_INTERVAL_S = 0.05


def reach_master(master: Master, within_s: float) -> str:
    """Returns the local address of a connection to the master. Raises LaunchError if there is none in `within_s`."""
    deadline = time.monotonic() + within_s
    while True:
        failures = []
        for host, port in master.addresses:
            left_s = max(0.1, (deadline - time.monotonic()) / len(master.addresses))
            try:
                with socket.create_connection((host, port), timeout=left_s) as connection:
                    return str(connection.getsockname()[0])
            except socket.gaierror as error:
                failures.append(f"{host} cannot be resolved ({error.strerror})")
            except TimeoutError:
                failures.append(f"{host}:{port} does not respond")
            except OSError as error:
                is_refused = error.errno == errno.ECONNREFUSED
                failures.append(f"{host}:{port}: {'connection refused' if is_refused else error.strerror or error}")
        if time.monotonic() + RETRY_INTERVAL_S > deadline:
            raise LaunchError(
                f"No Spark master at {master.url} within {within_s:.0f} s: {'; '.join(failures)}. Is it running "
                "(`moldau spark master` starts one and prints its address), and does a firewall let this machine "
                "through?"
            )
        time.sleep(RETRY_INTERVAL_S)


def wait_for_executors(context: "SparkContext", master: Master, within_s: float) -> None:
    """Waits for the first executor. Raises LaunchError if the master provides none within `within_s`."""
    deadline = time.monotonic() + within_s
    state = context._jsc.sc()
    while True:
        if state.isStopped():
            raise LaunchError(
                f"The master {master.url} has terminated the application: its executors could not "
                "start. See the workers' logs (work/app-… in their directories)."
            )
        # The status has one entry for the driver and one for each executor.
        if state.getExecutorMemoryStatus().size() > 1:
            return
        if time.monotonic() > deadline:
            conf = context.getConf()
            raise LaunchError(
                f"The master {master.url} provided no executor within {within_s:.0f} s. Check that "
                f"it has workers (`moldau spark worker {master.url}` starts one) with a free core "
                f"and {conf.get('spark.executor.memory', '1g')} of memory (spark.executor.memory) "
                "that no other application uses (spark.cores.max)."
            )
        time.sleep(POLL_INTERVAL_S)


def check_executors(context: "SparkContext") -> None:
    """Runs tasks on the executors. Raises LaunchError with the packages that the executors lack."""
    count = max(1, context.defaultParallelism)
    try:
        found = context.parallelize(range(count), count).mapPartitions(_find_missing_packages).collect()
    except Exception as error:
        raise LaunchError(executor_error_text(str(error), context.pythonExec)) from None
    missing_by_host = {host: missing for host, missing in found if missing}
    if missing_by_host:
        lacks = "; ".join(f"The executor on {host} lacks {', '.join(names)}" for host, names in missing_by_host.items())
        raise LaunchError(
            f"{lacks}. Install them there with pip install 'moldau[spark]', for the Python of executors "
            f"({context.pythonExec})."
        )


def _find_missing_packages(_: Iterable[int]) -> Iterator[tuple[str, tuple[str, ...]]]:
    missing = tuple(name for name in REQUIRED_PACKAGES if importlib.util.find_spec(name) is None)
    yield socket.gethostname(), missing


def executor_error_text(failure: str, python: str) -> str:
    """Explains why executors could not run the first task. `failure` is Spark's error message."""
    if "PYTHON_VERSION_MISMATCH" in failure:
        versions = re.search(r"version: (\S+) than that in driver:? (\S+?),", failure)
        executor_version, driver_version = versions.groups() if versions else ("another version", "this one")
        return (
            f"Executors run Python {executor_version} and this driver {driver_version}: Spark needs the same minor "
            f"version. Set the environment variable PYSPARK_PYTHON (now {python})."
        )
    if re.search(r'Cannot run program "[^"]*"', failure):
        return (
            f"Executors have no program {python}. Set the environment variable PYSPARK_PYTHON, or "
            "the setting spark.pyspark.python, to a Python that exists on all of them."
        )
    cause = re.search(r"(?:\w*Error|\w*Exception): [^\n]+", failure)
    return f"Executors cannot run Python tasks: {cause.group() if cause else failure.splitlines()[0]}"
