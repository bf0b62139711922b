"""Batches against those of other clients: each reads what the other wrote, in every codec."""

from collections.abc import Sequence
from typing import Any

import pytest

from moldau.records.batch import Batch
from moldau.records.batch_builder import build_batch
from moldau.records.compression import NAMES
from moldau.records.record import Record, iterate_records

pytestmark = pytest.mark.clients

kafka_records = pytest.importorskip("kafka.record.default_records")
aiokafka_records = pytest.importorskip("aiokafka.record.default_records")

RECORDS = [
    Record(timestamp=1_700_000_000_000, key=b"a", value=b"one" * 400, headers=(("h", b"x"), ("n", None))),
    Record(timestamp=1_700_000_000_500, key=None, value=b"two"),
    Record(timestamp=1_699_999_999_000, key=b"c", value=None),
    Record(timestamp=1_700_000_001_000, key=b"", value=b""),
    *(Record(timestamp=1_700_000_002_000 + n, key=b"%d" % n, value=b"v%d" % n * 30) for n in range(500)),
]


def readable_codecs(library: str) -> Sequence[int]:
    """Returns the codecs that the installed client supports; some need additional libraries."""
    if library == "kafka":
        import kafka.codec as codec
    else:
        import aiokafka.codec as codec
    has = (lambda: True, codec.has_gzip, codec.has_snappy, codec.has_lz4, codec.has_zstd)
    return [number for number, available in enumerate(has) if available()]


MATRIX = [
    pytest.param(library, codec, id=f"{library}-{NAMES[codec]}")
    for library in ("kafka", "aiokafka")
    for codec in readable_codecs(library)
]


def module(library: str) -> Any:
    return kafka_records if library == "kafka" else aiokafka_records


@pytest.mark.parametrize(("library", "codec"), MATRIX)
def test_their_batches_are_read(library: str, codec: int) -> None:
    builder = module(library).DefaultRecordBatchBuilder(
        magic=2,
        compression_type=codec,
        is_transactional=0,
        producer_id=7,
        producer_epoch=1,
        base_sequence=12,
        batch_size=1_000_000,
    )
    for delta, record in enumerate(RECORDS):
        builder.append(delta, record.timestamp, record.key, record.value, list(record.headers))
    batch = Batch(bytes(builder.build()))
    assert batch.has_valid_checksum()
    assert batch.compression == codec
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (7, 1, 12)
    assert list(iterate_records(batch)) == [record._replace(offset=delta) for delta, record in enumerate(RECORDS)]


@pytest.mark.parametrize(("library", "codec"), MATRIX)
def test_they_read_our_batches(library: str, codec: int) -> None:
    data = build_batch(RECORDS, base_offset=1000, compression=codec, producer_id=7, producer_epoch=1, base_sequence=12)
    theirs = module(library).DefaultRecordBatch(bytearray(data))
    assert theirs.validate_crc()
    read = [
        (one.offset, one.timestamp, one.key, one.value, [tuple(header) for header in one.headers]) for one in theirs
    ]
    assert read == [
        (1000 + delta, one.timestamp, one.key, one.value, list(one.headers)) for delta, one in enumerate(RECORDS)
    ]
