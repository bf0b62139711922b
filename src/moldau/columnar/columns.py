"""The columns of a topic as Spark's Kafka connector has them, and their types in Arrow."""

from collections.abc import Sequence

import pyarrow as pa

HEADER_TYPE = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])

_TYPES = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestampType": pa.int32(),
    "headers": pa.list_(pa.field("element", HEADER_TYPE)),
}

COLUMNS: tuple[str, ...] = tuple(_TYPES)

CREATE_TIME, LOG_APPEND_TIME = 0, 1
"""What the column timestampType says."""

TIMESTAMP_MS_MAX = (2**63 - 1) // 1000
TIMESTAMP_MS_MIN = -TIMESTAMP_MS_MAX
"""Milliseconds beyond these are no microseconds of 64 bits: the column timestamp is null there."""


def arrow_schema(columns: Sequence[str]) -> pa.Schema:
    """These columns in this order, all nullable; raises ValueError for a name that is no column."""
    for name in columns:
        if name not in _TYPES:
            raise ValueError(f"a topic has no column {name!r}: it has {', '.join(COLUMNS)}")
    return pa.schema([pa.field(name, _TYPES[name]) for name in columns])
