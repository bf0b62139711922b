"""The names of record columns, and the reasons why a record is bad."""

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
