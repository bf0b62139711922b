"""Rows are encoded as the text format of COPY."""

from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa

from moldau.spark.sink import postgres_copy
from moldau.spark.sink.postgres_copy import encode_rows

AT = datetime(2024, 1, 2, 3, 4, 5, 6, tzinfo=UTC)


def rows() -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {
            "i": pa.array([1, None, -3], pa.int8()),
            "f": pa.array([1.5, float("nan"), float("-inf")], pa.float32()),
            "b": pa.array([True, None, False]),
            "s": pa.array(["a\tb\n\\N\r", None, ""]),
            "x": pa.array([b"\x00\xff", None, b""]),
            "t": pa.array([AT, None, AT], pa.timestamp("us", "Europe/Prague")),
            "n": pa.array([AT.replace(tzinfo=None), None, None], pa.timestamp("us")),
            "d": pa.array([date(2024, 2, 29), None, date(1, 1, 1)]),
            "m": pa.array([Decimal("1.0000000001"), None, Decimal(-2)], pa.decimal128(38, 10)),
        }
    )


LINES = [
    (
        b"1\t1.5\ttrue\ta\\tb\\n\\\\N\\r\t\\\\x00ff\t2024-01-02 03:04:05.000006+00\t2024-01-02 03:04:05.000006"
        b"\t2024-02-29\t1.0000000001\n"
    ),
    b"\\N\tnan\t\\N\t\\N\t\\N\t\\N\t\\N\t\\N\t\\N\n",
    b"-3\t-inf\tfalse\t\t\\\\x\t2024-01-02 03:04:05.000006+00\t\\N\t0001-01-01\t-2.0000000000\n",
]


def test_every_type_and_null_has_its_text() -> None:
    assert encode_rows(rows()) == b"".join(LINES)


def test_a_part_of_a_batch_is_encoded_alone() -> None:
    for index, line in enumerate(LINES):
        assert encode_rows(rows().slice(index, 1)) == line


def test_large_rows_are_in_chunks_of_their_own() -> None:
    texts = ["x" * postgres_copy.CHUNK_BYTES, "y", "z" * postgres_copy.CHUNK_BYTES]
    chunks = [
        chunk.column(0)[0].as_py()
        for chunk in postgres_copy._encode_batches(iter([pa.RecordBatch.from_pydict({"s": texts})]))
    ]
    assert len(chunks) == 3
    assert b"".join(chunks) == "".join(f"{text}\n" for text in texts).encode()
    assert list(postgres_copy._encode_batches(iter([rows().slice(0, 0)]))) == []
