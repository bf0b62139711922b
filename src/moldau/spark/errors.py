"""Errors for authors of Spark queries. Each message names the cause and what to do."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager


class SparkSourceError(Exception):
    """A query cannot be planned or run. The message tells the user enough without a traceback."""


class OptionError(SparkSourceError):
    """An option that is unknown, missing or has an invalid value."""


class DataLossError(SparkSourceError):
    """Records that a query should read no longer exist."""


_USER_MESSAGE = re.compile(
    # Ignore a class name after a parenthesis. It is part of a query plan that Spark quotes in an error message.
    r"(?<!\()(?:SparkSourceError|OptionError|DataLossError|PipelineError): (.+?)(?=\n\s*(?:at |===|SQLSTATE|$)|\Z)",
    re.S,
)


def find_user_message(error: BaseException) -> str | None:
    """Returns the message of a SparkSourceError or PipelineError that Spark has wrapped, or None for other errors."""
    found = _USER_MESSAGE.search(str(error))
    return None if found is None else found.group(1).strip()


@contextmanager
def user_facing_errors(bootstrap: str) -> Iterator[None]:
    """Translates client errors to a SparkSourceError that names the bootstrap servers. Hides tracebacks in workers."""
    try:
        yield
    except SparkSourceError:
        _hide_traceback()
        raise
    except Exception as error:
        from moldau.client.errors import ConnectionLostError, KafkaError, RequestTimedOutError

        if not isinstance(error, KafkaError):
            raise
        _hide_traceback()
        if not isinstance(error, ConnectionLostError | RequestTimedOutError):
            raise SparkSourceError(f"the cluster at {bootstrap} returned an error: {error}") from None
        raise SparkSourceError(
            f"no response from the cluster at {bootstrap} ({error}). Check that a broker is running there, "
            "kafka.bootstrap.servers, and that this machine reaches the addresses that brokers advertise"
        ) from None


def _hide_traceback() -> None:
    """Makes Spark omit the traceback of an error in a worker. The worker exits afterwards, so this is not reset."""
    if os.environ.get("SPARK_PYTHON_RUNTIME") == "PYTHON_WORKER":
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"


class LaunchError(Exception):
    """Spark cannot be started. The message names the cause and what to do."""


NO_PYSPARK = "PySpark is not installed: pip install 'moldau[spark]'"
