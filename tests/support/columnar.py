"""Batches for tests of the columnar codec, and their expected rows by the record decoder of brokers."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import strategies as st

from moldau.columnar.columns import COLUMNS, arrow_schema
from moldau.columnar.decode import to_arrow_batches
from moldau.records.batch import Batch
from moldau.records.batch_builder import build_batch, encode_batch
from moldau.records.record import Record, iterate_records

TOPIC, PARTITION = "orders", 3
END = 2**62

optional_bytes = st.none() | st.binary(max_size=300)
header_names = st.text(max_size=12) | st.binary(max_size=5).map(lambda name: name.decode("utf-8", "surrogateescape"))
records = st.builds(
    Record,
    timestamp=st.integers(-1, 2**40) | st.integers(-(2**61), 2**61),
    key=optional_bytes,
    value=optional_bytes,
    headers=st.lists(st.tuples(header_names, optional_bytes), max_size=3).map(tuple),
)
projections = st.lists(st.sampled_from(COLUMNS), unique=True)


@st.composite
def runs_of_batches(draw: st.DrawFn) -> list[Batch]:
    """Batches as in a log: ascending offsets, with gaps between batches and between records."""
    batches = []
    offset = draw(st.integers(0, 2**40))
    for _ in range(draw(st.integers(0, 4))):
        given = []
        base_offset = offset = offset + draw(st.integers(0, 3))
        for record in draw(st.lists(records, min_size=1, max_size=12)):
            offset += draw(st.sampled_from([0, 0, 0, 1, 200]))
            given.append(record._replace(offset=offset))
            offset += 1
        batches.append(
            Batch(
                build_batch(
                    given,
                    base_offset=base_offset,
                    compression=draw(st.integers(0, 4)),
                    append_time_ms=draw(st.none() | st.integers(0, 2**41)),
                    keep_offsets=True,
                )
            )
        )
    return batches


@contextmanager
def codec(is_native: bool) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MOLDAU_NATIVE", str(int(is_native)))
        yield


def decoded(
    batches: Sequence[Batch],
    *,
    start: int = 0,
    end: int = END,
    columns: Sequence[str] = COLUMNS,
    is_native: bool = True,
) -> pa.RecordBatch:
    with codec(is_native):
        parts = to_arrow_batches(TOPIC, PARTITION, batches, start=start, end=end, columns=columns)
        found = next(parts, pa.RecordBatch.from_pylist([], arrow_schema(columns)))
        assert not list(parts), "the tests' batches fit into one Arrow batch"
    found.validate(full=True)
    return found


def expected_rows(batches: Sequence[Batch], *, start: int = 0, end: int = END) -> list[dict[str, Any]]:
    """Timestamps are in microseconds."""
    return [
        {
            "key": record.key,
            "value": record.value,
            "topic": TOPIC,
            "partition": PARTITION,
            "offset": record.offset,
            "timestamp": record.timestamp * 1000 if abs(record.timestamp) <= (2**63 - 1) // 1000 else None,
            "timestampType": int(batch.is_log_append_time),
            "headers": [
                {"key": name.encode("utf-8", "surrogateescape").decode("utf-8", "replace"), "value": content}
                for name, content in record.headers
            ]
            or None,
        }
        for batch in batches
        for record in iterate_records(batch)
        if start <= record.offset < end
    ]


def rows(found: pa.RecordBatch) -> list[dict[str, Any]]:
    """Timestamps as numbers, because Python's end with the year 9999."""
    columns = [column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column for column in found.columns]
    return pa.RecordBatch.from_arrays(columns, names=found.schema.names).to_pylist()


def batch_around(
    section: bytes,
    *,
    count: int,
    base_offset: int = 0,
    last_offset_delta: int = 2**31 - 1,
    base_timestamp: int = 0,
    attributes: int = 0,
) -> Batch:
    return Batch(
        encode_batch(
            section,
            base_offset=base_offset,
            leader_epoch=0,
            attributes=attributes,
            last_offset_delta=last_offset_delta,
            base_timestamp=base_timestamp,
            max_timestamp=0,
            producer_id=-1,
            producer_epoch=-1,
            base_sequence=-1,
            count=count,
        )
    )
