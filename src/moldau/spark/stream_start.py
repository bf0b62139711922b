"""A workaround for a race in Spark 4.3 between streaming queries that start at the same time in one session.

All queries with `format("moldau")` share one map of environment variables for their Python processes, a Scala
`mutable.HashMap`, which is serialized with their tasks. At its start, every stream adds the same four variables to it
(`PythonStreamingSourceRunner.init`), in its own thread and without a lock. If two streams do so at the same time for
the first time, the map counts an entry twice or not at all. Then it cannot be serialized any more ("Illegal size 5 of
collection, expected 6"), and every query of the process fails with "Task not serializable". Streams that find the
variables in the map only replace their values, which is safe.
"""

from typing import TYPE_CHECKING

from moldau.observe.logging import get_logger

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

VARIABLES = ("SPARK_LOCAL_DIRS", "SPARK_AUTH_SOCKET_TIMEOUT", "SPARK_BUFFER_SIZE", "SPARK_PYTHON_RUNTIME")
"""What every stream adds. Spark sets the values before it starts a Python process."""

_log = get_logger("spark.stream_start")


def prepare_streams(spark: "SparkSession") -> None:
    """Makes it safe to start several streaming queries at the same time. Call it before the first one starts."""
    from py4j.protocol import Py4JError
    from pyspark.sql.utils import is_remote

    if is_remote():
        # The queries run in another process, which this one cannot change.
        return
    try:
        manager = spark._jsparkSession.sessionState().dataSourceManager()
        environment = manager.lookupDataSource("moldau").dataSourceCls().envVars()
        for name in VARIABLES:
            environment.putIfAbsent(name, "")
    except Py4JError as error:
        _log.warning("several queries that start at the same time may fail with Task not serializable", error=error)
