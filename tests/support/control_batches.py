"""Batches of one control record."""

from typing import Any

from moldau.records.batch_builder import build_batch
from moldau.records.control_records import ControlRecord, EndTransaction, encode_key, encode_value
from moldau.records.record import Record


def control_batch(control: ControlRecord, *, timestamp: int, **options: Any) -> bytes:
    """Returns a batch of one control record. `options` are arguments of `build_batch`."""
    return build_batch(
        [Record(timestamp=timestamp, key=encode_key(control), value=encode_value(control))],
        transactional=isinstance(control, EndTransaction),
        control=True,
        **options,
    )
