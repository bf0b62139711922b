"""Avro codec for Spark's Python workers. Converts from and to Arrow arrays."""

import io
import json
import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import pyarrow as pa

CONFLUENT_PREFIX_BYTES = 5
"""The size of the prefix in Confluent's wire format: a zero byte and the schema id."""


def decode(values: Sequence[bytes | None], schema: str, wire: str) -> tuple[list[Any], list[str | None]]:
    """Returns the decoded records and the errors, both with one element per value.

    If a value cannot be decoded, its record is None. Otherwise its error is None.
    """
    read = _reader(schema)
    records: list[Any] = []
    failures: list[str | None] = []
    for value in values:
        record, failure = None, None
        if value is not None:
            try:
                record = read(_payload(value, wire))
            except Exception as error:
                # Treat the record as bad, whatever exception the library raises.
                failure = str(error) or type(error).__name__
        records.append(record)
        failures.append(failure)
    return records, failures


def decode_arrow(values: pa.Array, schema: str, wire: str, arrow_type: pa.DataType) -> pa.Array:
    """Returns structs of the decoded record `v` and the text `error`. `error` is null if the value could be decoded."""
    records, failures = decode(values.to_pylist(), schema, wire)
    try:
        decoded = pa.array(records, type=arrow_type)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, ValueError):
        # A record does not fit its column, for example a time before the year 1. Convert one by one to find the bad
        # records.
        columns = []
        for index, record in enumerate(records):
            try:
                columns.append(pa.array([record], type=arrow_type))
            except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, ValueError) as error:
                failures[index] = str(error)
                columns.append(pa.nulls(1, arrow_type))
        decoded = pa.concat_arrays(columns)
    return pa.StructArray.from_arrays([decoded, pa.array(failures, pa.string())], ["v", "error"])


def encode_arrow(rows: pa.Array, schema: str, prefix: bytes) -> pa.Array:
    write = _writer(schema)
    return pa.array(
        [None if row is None else prefix + write(row) for row in rows.to_pylist(maps_as_pydicts="strict")], pa.binary()
    )


def encode_record(row: Any, schema: str) -> bytes:
    return _writer(schema)(row)


def confluent_prefix(schema_id: int) -> bytes:
    return struct.pack(">bI", 0, schema_id)


def _payload(value: bytes, wire: str) -> bytes:
    if wire != "confluent":
        return value
    if len(value) < CONFLUENT_PREFIX_BYTES or value[0] != 0:
        raise ValueError("it does not start with a zero byte and a schema id, as avro.wire: confluent requires")
    return value[CONFLUENT_PREFIX_BYTES:]


@lru_cache(maxsize=16)
def _reader(schema: str) -> Callable[[bytes], Any]:
    import fastavro

    parsed = fastavro.parse_schema(json.loads(schema))

    def read(value: bytes) -> Any:
        stream = io.BytesIO(value)
        record = fastavro.schemaless_reader(stream, parsed)
        left = len(value) - stream.tell()
        if left:
            raise ValueError(f"{left} bytes follow the record")
        return record

    return read


@lru_cache(maxsize=16)
def _writer(schema: str) -> Callable[[Any], bytes]:
    import fastavro

    parsed = fastavro.parse_schema(json.loads(schema))

    def write(row: Any) -> bytes:
        stream = io.BytesIO()
        fastavro.schemaless_writer(stream, parsed, row)
        return stream.getvalue()

    return write
