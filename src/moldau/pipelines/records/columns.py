"""The names of record columns and of dead-letter headers. Header values are UTF-8 text. Times are in milliseconds."""

from enum import StrEnum

METADATA = ("_key", "_topic", "_partition", "_offset", "_timestamp", "_headers", "_deleted")
"""The metadata columns of a source's view. `_deleted` is true if the record has no value."""

RAW_KEY, RAW_VALUE, RAW_HEADERS = "__key", "__value", "__headers"
"""The columns of the original record, for dead letters."""
IS_BAD = "__is_bad"
"""Whether a record is bad. The column is never null."""
BAD = "__bad"
"""A struct of the reason and the detail of a bad record. Spark computes it only for bad records."""

MALFORMED, SCHEMA_MISMATCH, EXPECTATION = "malformed", "schema_mismatch", "expectation"
"""The reasons why a record is bad."""

PREFIX = "moldau.error."
REDRIVEN = "moldau.redriven"
"""The header that counts how often a record was sent back to its topic."""


class ErrorHeader(StrEnum):
    REASON = PREFIX + "reason"
    DETAIL = PREFIX + "detail"
    TOPIC = PREFIX + "topic"
    PARTITION = PREFIX + "partition"
    OFFSET = PREFIX + "offset"
    TIMESTAMP = PREFIX + "timestamp"
    PIPELINE = PREFIX + "pipeline"
    SOURCE = PREFIX + "source"
    TIME = PREFIX + "time"
    """The time when the error was detected."""
