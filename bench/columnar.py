"""Rows per CPU second of the columnar codec, compiled and plain: `python -m bench.columnar`.

It runs on one thread, so on a quiet machine a CPU second is a second.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import numpy as np
import pyarrow as pa

from moldau.columnar import native
from moldau.columnar.columns import COLUMNS
from moldau.columnar.decode import ARROW_BYTES_MAX, to_arrow_batches
from moldau.columnar.encode import to_sections
from moldau.columnar.partitioner import key_partitions
from moldau.records.batch import Batch
from moldau.records.batch_builder import build_batch
from moldau.records.compression import LZ4, NONE
from moldau.records.record import Record

DATA_BYTES = 32 << 20
ROWS_MAX = 200_000
BATCH_BYTES = 64 << 10
PARTITIONS = 4
REPEATS = 5
KEY = b"key-%07d"


def rate(rows: int, run: Callable[[], object]) -> float:
    """Returns the rate of the fastest run: other work on the machine only slows runs down."""
    taken = []
    for _ in range(REPEATS):
        start = time.process_time()
        run()
        taken.append(time.process_time() - start)
    return rows / min(taken)


def batches_of(rows: int, value_bytes: int, compression: int) -> list[Batch]:
    count = BATCH_BYTES // (value_bytes + 20)
    return [
        Batch(
            build_batch(
                [
                    Record(timestamp=1_700_000_000_000 + row, key=KEY % row, value=value(row, value_bytes))
                    for row in range(first, min(first + count, rows))
                ],
                base_offset=first,
                compression=compression,
            )
        )
        for first in range(0, rows, count)
    ]


def value(row: int, value_bytes: int) -> bytes:
    return (b"%08d" % row * (value_bytes // 8 + 1))[:value_bytes]


def cases(value_bytes: int) -> dict[str, tuple[int, Callable[[], object]]]:
    rows = min(ROWS_MAX, DATA_BYTES // value_bytes)
    batches, compressed = batches_of(rows, value_bytes, NONE), batches_of(rows, value_bytes, LZ4)
    small = [
        Batch(build_batch([Record(timestamp=0, value=value(row, value_bytes))], base_offset=row))
        for row in range(rows // 10)
    ]
    keys = pa.array([KEY % row for row in range(rows)], pa.binary())
    values = pa.array([value(row, value_bytes) for row in range(rows)], pa.binary())
    partitions = (np.arange(rows) % PARTITIONS).astype(np.int32)
    times = np.arange(rows, dtype=np.int64) + 1_700_000_000_000

    def decode(given: list[Batch], columns: tuple[str, ...]) -> Callable[[], object]:
        return lambda: list(
            to_arrow_batches(
                "topic-name", 0, given, start=0, end=rows, columns=columns, arrow_batch_bytes=ARROW_BYTES_MAX
            )
        )

    def encode(compression: int) -> Callable[[], object]:
        def run() -> None:
            for _ in to_sections(
                partitions,
                key=keys,
                value=values,
                headers=None,
                timestamp_ms=times,
                batch_bytes_max=BATCH_BYTES,
                compression=compression,
            ):
                pass

        return run

    return {
        "decode, all but headers": (rows, decode(batches, COLUMNS[:-1])),
        "decode, all columns": (rows, decode(batches, COLUMNS)),
        "decode, value": (rows, decode(batches, ("value",))),
        "decode, offset": (rows, decode(batches, ("offset",))),
        "decode, all columns, lz4": (rows, decode(compressed, COLUMNS)),
        "decode, batches of one record": (len(small), decode(small, COLUMNS)),
        "encode": (rows, encode(NONE)),
        "encode, lz4": (rows, encode(LZ4)),
        "partitions of keys": (rows, lambda: key_partitions(keys, PARTITIONS, 0)),
    }


def main() -> None:
    start = time.perf_counter()
    if not native.is_available():
        raise SystemExit("numba does not work here, so there is nothing to compare")
    print(f"kernels ready after {time.perf_counter() - start:.2f} s\n")
    print(f"{'million rows/s':40}{'native':>10}{'plain':>10}{'ratio':>8}")
    for value_bytes in (100, 1024):
        for name, (rows, run) in cases(value_bytes).items():
            compiled = rate(rows, run)
            os.environ["MOLDAU_NATIVE"] = "0"
            plain = rate(rows, run)
            del os.environ["MOLDAU_NATIVE"]
            title = f"{value_bytes} B: {name}"
            print(f"{title:40}{compiled / 1e6:10.2f}{plain / 1e6:10.2f}{compiled / plain:8.0f}")


if __name__ == "__main__":
    main()
