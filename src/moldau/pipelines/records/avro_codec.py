"""Avro codec for Spark's Python workers. Converts from and to Arrow arrays."""

import io
import json
import struct
from functools import lru_cache
from typing import Any

import fastavro
import pyarrow as pa

CONFLUENT_PREFIX_BYTES = 5
"""The size of the prefix in Confluent's wire format: a zero byte and the schema id."""


def decode_arrow(values: pa.Array, schema: str, wire: str, arrow_type: pa.DataType) -> pa.Array:
    """Returns structs of the decoded record `v` and the text `error`, which is null if the value could be decoded."""
    parsed = _parse(schema)
    records: list[Any] = []
    failures: list[str | None] = []
    for value in values.to_pylist():
        record, failure = None, None
        if value is not None:
            try:
                record = _decode_record(value, parsed, wire)
            except Exception as error:
                # Treat the record as bad, whatever exception the library raises.
                failure = str(error) or type(error).__name__
        records.append(record)
        failures.append(failure)
    try:
        decoded = pa.array(records, type=arrow_type)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, ValueError):
        # A record does not fit its column, for example a time before the year 1. Convert the records one by one to find
        # the bad ones.
        columns = []
        for index, record in enumerate(records):
            try:
                columns.append(pa.array([record], type=arrow_type))
            except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, ValueError) as error:
                failures[index] = str(error)
                columns.append(pa.nulls(1, arrow_type))
        decoded = pa.concat_arrays(columns)
    return pa.StructArray.from_arrays([decoded, pa.array(failures, pa.string())], ["v", "error"])


def _decode_record(value: bytes, parsed: Any, wire: str) -> Any:
    stream = io.BytesIO(value)
    if wire == "confluent":
        prefix = stream.read(CONFLUENT_PREFIX_BYTES)
        if len(prefix) < CONFLUENT_PREFIX_BYTES or prefix[0] != 0:
            raise ValueError("it does not start with a zero byte and a schema id, as avro.wire: confluent requires")
    record = fastavro.schemaless_reader(stream, parsed)
    left = len(value) - stream.tell()
    if left:
        raise ValueError(f"{left} bytes follow the record")
    return record


def encode_arrow(rows: pa.Array, schema: str, prefix: bytes) -> pa.Array:
    records = rows.to_pylist(maps_as_pydicts="strict")
    return pa.array([None if each is None else prefix + encode_record(each, schema) for each in records], pa.binary())


def encode_record(row: Any, schema: str) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, _parse(schema), row)
    return stream.getvalue()


def confluent_prefix(schema_id: int) -> bytes:
    return struct.pack(">bI", 0, schema_id)


@lru_cache(maxsize=16)
def _parse(schema: str) -> Any:
    return fastavro.parse_schema(json.loads(schema))
