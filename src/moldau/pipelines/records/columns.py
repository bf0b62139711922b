"""The columns that a view over topics has beside those of the records' values, and those that stay inside."""

from enum import StrEnum

METADATA = ("_key", "_topic", "_partition", "_offset", "_timestamp", "_headers", "_deleted")
"""What a source's view tells of each record. `_deleted`: the record has no value, which deletes its key."""

RAW_KEY, RAW_VALUE, RAW_HEADERS = "__key", "__value", "__headers"
"""The record as it came, for dead letters."""
IS_BAD = "__is_bad"
"""Never null. All that good records are asked: why one is bad takes longer to find out."""
BAD = "__bad"
"""Of a bad record: a struct of reason and detail."""

MALFORMED, SCHEMA_MISMATCH, EXPECTATION = "malformed", "schema_mismatch", "expectation"
"""The reasons."""


PREFIX = "moldau.error."
REDRIVEN = "moldau.redriven"
"""How often a record was sent back to its topic."""


class ErrorHeader(StrEnum):
    REASON = PREFIX + "reason"
    """`malformed`, `schema_mismatch` or `expectation`."""
    DETAIL = PREFIX + "detail"
    TOPIC = PREFIX + "topic"
    PARTITION = PREFIX + "partition"
    OFFSET = PREFIX + "offset"
    TIMESTAMP = PREFIX + "timestamp"
    PIPELINE = PREFIX + "pipeline"
    SOURCE = PREFIX + "source"
    TIME = PREFIX + "time"
    """When it was found to be bad."""
