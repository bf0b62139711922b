"""Encoder in pure Python. It is the reference for the compiled encoder, and the fallback without numba."""

from collections.abc import Iterator

from moldau.columnar.arrays import ByteSpans
from moldau.columnar.rows import EncoderRows
from moldau.platform.disk import Buffer
from moldau.records.batch import NO_TIMESTAMP
from moldau.records.record import encode_record

EncodedRows = tuple[int, Buffer, int, int, int]
"""Partition, records, record count, base timestamp, max timestamp."""


def encode(rows: EncoderRows, bytes_max: int) -> Iterator[EncodedRows]:
    """Yields sections of one partition each, in row order, of at most `bytes_max` bytes or of one larger record."""
    keys, values = _values(rows.keys), _values(rows.values)
    names = [(name or b"").decode("utf-8", "surrogateescape") for name in _values(rows.names)]
    headers = list(zip(names, _values(rows.contents), strict=True))
    partitions, timestamps = rows.partitions.tolist(), rows.timestamps.tolist()
    starts, counts = rows.header_starts.tolist(), rows.header_counts.tolist()

    records: list[bytes] = []
    size = 0
    partition = base_timestamp = max_timestamp = NO_TIMESTAMP
    for row in rows.order.tolist():
        while True:
            if not records:
                partition, base_timestamp, max_timestamp = partitions[row], timestamps[row], NO_TIMESTAMP
            record = encode_record(
                timestamp_delta=timestamps[row] - base_timestamp,
                offset_delta=len(records),
                key=keys[row],
                value=values[row],
                headers=headers[starts[row] : starts[row] + counts[row]],
            )
            if not records or (partitions[row] == partition and size + len(record) <= bytes_max):
                break
            yield partition, b"".join(records), len(records), base_timestamp, max_timestamp
            records, size = [], 0
        records.append(record)
        size += len(record)
        max_timestamp = max(max_timestamp, timestamps[row])
    if records:
        yield partition, b"".join(records), len(records), base_timestamp, max_timestamp


def _values(spans: ByteSpans) -> list[bytes | None]:
    data = spans.data.tobytes()
    return [
        None if length < 0 else data[start : start + length]
        for start, length in zip(spans.starts.tolist(), spans.lengths.tolist(), strict=True)
    ]
