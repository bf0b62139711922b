"""Batches of transactions and markers, and the filter of a consumer, for tests of logs."""

from collections.abc import Iterable, Iterator, Sequence

from moldau.logs.transaction_index import AbortedTransaction
from moldau.records.batch import Batch
from moldau.records.batch_builder import build_batch
from moldau.records.control_records import EndTransaction, encode_key, encode_value
from moldau.records.record import Record, iterate_records
from support.logs import batch_at

ABORT_KEY = encode_key(EndTransaction(False, 0))


def data(
    offset: int,
    values: Sequence[bytes | None] = (b"v",),
    *,
    producer: int = 7,
    epoch: int = 0,
    sequence: int = 0,
    keys: Sequence[bytes | None] | None = None,
    timestamp_ms: int = 1_000,
    leader_epoch: int = 0,
) -> Batch:
    """Returns a batch of a transaction."""
    return batch_at(
        offset,
        values,
        keys=keys,
        timestamp_ms=timestamp_ms,
        leader_epoch=leader_epoch,
        producer_id=producer,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=True,
    )


def marker(
    offset: int,
    *,
    commit: bool = False,
    producer: int = 7,
    epoch: int = 0,
    coordinator_epoch: int = 0,
    timestamp_ms: int = 1_000,
    leader_epoch: int = 0,
) -> Batch:
    """Returns the marker of a transaction."""
    control = EndTransaction(commit, coordinator_epoch)
    record = Record(timestamp=timestamp_ms, key=encode_key(control), value=encode_value(control))
    return Batch(
        build_batch(
            [record],
            base_offset=offset,
            leader_epoch=leader_epoch,
            producer_id=producer,
            producer_epoch=epoch,
            transactional=True,
            control=True,
        )
    )


def visible_records(
    batches: Iterable[Batch], aborted: Iterable[AbortedTransaction], *, with_control: bool = False
) -> Iterator[Record]:
    """Yields the records that a consumer of committed records delivers, as clients filter them."""
    pending = sorted(aborted, key=lambda each: each.first_offset)
    producers: set[int] = set()
    for batch in batches:
        while pending and pending[0].first_offset <= batch.last_offset:
            producers.add(pending.pop(0).producer_id)
        if batch.is_control:
            if with_control:
                yield from iterate_records(batch)
            elif batch.count and next(iterate_records(batch)).key == ABORT_KEY:
                producers.discard(batch.producer_id)
        elif not (batch.is_transactional and batch.producer_id in producers):
            yield from iterate_records(batch)
