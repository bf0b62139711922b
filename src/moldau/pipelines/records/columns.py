"""Names of record columns and of dead-letter headers. Header values are UTF-8 text, times are in milliseconds."""

from enum import StrEnum

METADATA = ("_key", "_topic", "_partition", "_offset", "_timestamp", "_headers", "_deleted")
"""Metadata columns of a source's view. `_deleted`: the record has no value."""

RAW_KEY, RAW_VALUE, RAW_HEADERS = "__key", "__value", "__headers"
"""The original record, for dead letters."""
IS_BAD = "__is_bad"
"""Never null, and cheap to compute; the reason is computed only for bad records."""
BAD = "__bad"
"""A struct of reason and detail."""

MALFORMED, SCHEMA_MISMATCH, EXPECTATION = "malformed", "schema_mismatch", "expectation"
"""Reasons."""


PREFIX = "moldau.error."
REDRIVEN = "moldau.redriven"
"""Counts how often a record was sent back to its topic."""


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
    """When the error was detected."""
