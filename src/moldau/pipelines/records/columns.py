"""The columns that a view over topics has beside those of the records' values, and those that stay inside."""

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
