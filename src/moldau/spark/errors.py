"""What goes wrong between Spark and a cluster, in words for who wrote the query: the cause, and what to do."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager


class SparkSourceError(Exception):
    """A query cannot be read or written as it was asked for. Its text is all that a user needs."""


class OptionError(SparkSourceError):
    """An option is unknown, missing, or has a value that makes no sense."""


class DataLossError(SparkSourceError):
    """Records that a query was to read are not there any more."""


_USER_MESSAGE = re.compile(
    # Not behind a parenthesis: there it is part of a plan that raises one, and Spark shows plans in errors of its own.
    r"(?<!\()(?:SparkSourceError|OptionError|DataLossError|PipelineError): (.+?)(?=\n\s*(?:at |===|SQLSTATE|$)|\Z)",
    re.S,
)


def find_user_message(error: BaseException) -> str | None:
    """What one of the errors above said, found in what Spark made of it on its way to the driver; None where the error
    is another one."""
    found = _USER_MESSAGE.search(str(error))
    return None if found is None else found.group(1).strip()


@contextmanager
def user_facing_errors(bootstrap: str) -> Iterator[None]:
    """Around what Spark calls. What the client raises comes out as a SparkSourceError that says where the brokers were
    thought to be, and none of the errors above drags the traceback of a worker to the driver."""
    try:
        yield
    except SparkSourceError:
        _hide_traceback()
        raise
    except Exception as error:
        from moldau.client.errors import KafkaError

        if not isinstance(error, KafkaError):
            raise
        _hide_traceback()
        raise SparkSourceError(_error_text(error, bootstrap)) from None


def _error_text(error: Exception, bootstrap: str) -> str:
    from moldau.client.errors import ConnectionLostError, RequestTimedOutError

    if isinstance(error, ConnectionLostError | RequestTimedOutError):
        return (
            f"no answer from the cluster at {bootstrap} ({error}). Is a broker running there? "
            "Check kafka.bootstrap.servers, and that this machine reaches the addresses that brokers advertise"
        )
    return f"the cluster at {bootstrap} says: {error}"


def _hide_traceback() -> None:
    """Spark asks for this variable when it writes down an error, after which the worker ends: nobody else is meant."""
    if os.environ.get("SPARK_PYTHON_RUNTIME") == "PYTHON_WORKER":
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"


class LaunchError(Exception):
    """Its text is all that a user needs: the cause, and the way out."""


NO_PYSPARK = "PySpark is not installed: pip install 'moldau[spark]'"
