"""The columns of a topic, as in Spark's Kafka connector, and their Arrow types."""

from collections.abc import Sequence

import pyarrow as pa

HEADER_TYPE = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])

TYPES = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestampType": pa.int32(),
    "headers": pa.list_(pa.field("element", HEADER_TYPE)),
}

COLUMNS: tuple[str, ...] = tuple(TYPES)

TIMESTAMP_MS_MAX = (2**63 - 1) // 1000
TIMESTAMP_MS_MIN = -TIMESTAMP_MS_MAX
"""The range of timestamps that fit into 64-bit microseconds. The column timestamp is null for other timestamps."""


def arrow_schema(columns: Sequence[str]) -> pa.Schema:
    """Returns the Arrow schema of the columns, all nullable. Raises ValueError for an unknown column."""
    for name in columns:
        if name not in TYPES:
            raise ValueError(f"a topic has no column {name!r}; the columns are {', '.join(COLUMNS)}")
    return pa.schema([(name, TYPES[name]) for name in columns])
