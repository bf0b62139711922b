"""The headers of a dead letter: where the record was, and what is wrong with it. Texts in UTF-8, times in milliseconds
since 1970."""

from enum import StrEnum

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
