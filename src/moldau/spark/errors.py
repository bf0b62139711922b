"""What goes wrong between Spark and a cluster, in words for who wrote the query: the cause, and what to do."""

import re


class SparkSourceError(Exception):
    """A query cannot be read or written as it was asked for. Its text is all that a user needs."""


class OptionError(SparkSourceError):
    """An option is unknown, missing, or has a value that makes no sense."""


class DataLossError(SparkSourceError):
    """Records that a query was to read are not there any more."""


_TOLD = re.compile(
    r"(?:SparkSourceError|OptionError|DataLossError|PipelineError): (.+?)(?=\n\s*(?:at |SQLSTATE|$)|\Z)", re.S
)


def told(error: BaseException) -> str | None:
    """What one of the errors above said, found in what Spark made of it on its way to the driver; None where the error
    is another one."""
    found = _TOLD.search(str(error))
    return None if found is None else found.group(1).strip()
