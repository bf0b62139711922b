"""Encoding of rows as the text format of COPY. Executors encode, so that the driver only forwards bytes.

Executors need no psycopg: this module does not import it.
"""

import uuid
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StructType, VariantType

from moldau.spark.sink.upsert_rows import quote_column

CHUNK_BYTES = 1 << 20
"""The approximate size of the rows in one chunk."""
CHUNK_SCHEMA = "chunk BINARY, evaluation STRING"
NULL = "\\N"

_ESCAPES = (("\\", "\\\\"), ("\n", "\\n"), ("\r", "\\r"), ("\t", "\\t"))
_JSON_OPTIONS = {"ignoreNullFields": "false", "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss[.SSSSSS][XXX]"}
"""Keeps null fields and microseconds, which Spark would leave out."""


def is_json(kind: DataType) -> bool:
    """Returns whether values of this Spark type are stored as JSON."""
    return isinstance(kind, ArrayType | StructType | MapType | VariantType)


def encoded_chunks(frame: DataFrame) -> DataFrame:
    """Returns the rows as chunks of lines, in the column `chunk`.

    The column `evaluation` is random for each computation of a partition. If Spark computes a partition again, its rows
    can have another order, and are then in other chunks.
    """
    columns = []
    for field in frame.schema.fields:
        column = F.col(quote_column(field.name))
        if isinstance(field.dataType, VariantType):
            column = F.to_json(column)
        elif is_json(field.dataType):
            column = F.to_json(column, _JSON_OPTIONS)
        columns.append(column.alias(field.name))
    return frame.select(*columns).mapInArrow(_encode_batches, CHUNK_SCHEMA)


def _encode_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    evaluation = uuid.uuid4().hex
    for batch in batches:
        if batch.num_rows == 0:
            continue
        # Few rows at a time, because the lines of a batch of large rows could exceed the size of an Arrow array.
        count = max(1, CHUNK_BYTES * batch.num_rows // max(batch.nbytes, 1))
        for start in range(0, batch.num_rows, count):
            lines = encode_rows(batch.slice(start, count))
            columns = [pa.array([lines], pa.binary()), pa.array([evaluation])]
            yield pa.RecordBatch.from_arrays(columns, ["chunk", "evaluation"])


def encode_rows(batch: pa.RecordBatch) -> bytes:
    """Returns a line for each row."""
    texts = [_texts(column) for column in batch.columns]
    lines = pc.binary_join_element_wise(*texts, _text("\t"), null_handling="replace", null_replacement=NULL)
    ended = pc.binary_join_element_wise(lines, _text(""), _text("\n"))
    offsets, data = ended.buffers()[1:3]
    ends = pa.Array.from_buffers(pa.int64(), len(ended) + 1, [None, offsets], offset=ended.offset)
    return bytes(memoryview(data)[ends[0].as_py() : ends[len(ended)].as_py()])


def _text(value: str) -> Any:
    return pa.scalar(value, pa.large_string())


def _texts(column: Any) -> Any:
    """Returns the values as Postgres reads them in COPY."""
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        texts = column.cast(pa.large_string())
        for special, escape in _ESCAPES:
            texts = pc.replace_substring(texts, special, escape)
        return texts
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        values = column.to_pylist()
        return pa.array([None if each is None else f"\\\\x{each.hex()}" for each in values], pa.large_string())
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        # Formatting a time with a zone would need the system's time zone database.
        utc = column.cast(pa.timestamp("us", kind.tz)).cast(pa.int64()).cast(pa.timestamp("us"))
        return pc.binary_join_element_wise(utc.cast(pa.large_string()), _text("+00"), _text(""))
    return column.cast(pa.large_string())
