"""Compaction: retained records, the resulting batches, and the removal of tombstones."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.errors import MoldauError
from moldau.logs.compaction import ENTRY_BYTES, OffsetMap, TransactionOutcomes, clean_batch, is_last_of_producer
from moldau.logs.producer_state import ProducerStateManager
from moldau.logs.transaction_index import AbortedTransaction, TransactionIndex
from moldau.records.batch import Batch
from moldau.records.batch_builder import build_batch, encode_batch
from moldau.records.control_records import EndTransaction, end_of_transaction
from moldau.records.record import Record, iterate_records
from support.control_batches import control_batch
from support.transactional_logs import data, marker

ROOMY = 1_000_000
DAY_MS = 86_400_000


def batch_of(*pairs: tuple[bytes | None, bytes | None], base_offset: int = 0, **fields: object) -> Batch:
    """Returns a batch of these keys and values, a second apart."""
    records = [
        Record(timestamp=1000 * (base_offset + delta), key=key, value=value, headers=(("h", b"x"),))
        for delta, (key, value) in enumerate(pairs)
    ]
    return Batch(build_batch(records, base_offset=base_offset, leader_epoch=3, **fields))  # type: ignore[arg-type]


def map_of(*batches: Batch, bytes_max: int = ROOMY) -> OffsetMap:
    offsets = OffsetMap(bytes_max)
    for batch in batches:
        assert offsets.add(batch)
    return offsets


def clean(
    batch: Batch, offsets: OffsetMap, *, now_ms: int = 0, retention_ms: int = DAY_MS, empty: bool = False
) -> Batch | None:
    return clean_batch(batch, offsets, now_ms=now_ms, delete_retention_ms=retention_ms, retain_empty=empty)


def left(batch: Batch | None) -> Batch:
    assert batch is not None
    return batch


@pytest.mark.parametrize("codec", range(5))
def test_only_the_last_record_of_each_key_is_retained(codec: int) -> None:
    first = batch_of((b"a", b"1"), (b"b", b"1"), (b"a", b"2"), (b"c", b"1"), compression=codec)
    second = batch_of((b"b", b"2"), (b"d", b"1"), base_offset=4, compression=codec)
    offsets = map_of(first, second)
    cleaned = left(clean(first, offsets))
    originals = list(iterate_records(first))
    assert list(iterate_records(cleaned)) == [originals[2], originals[3]]
    assert cleaned.compression == codec
    assert cleaned.has_valid_checksum()
    assert clean(second, offsets) is second


def test_the_batch_keeps_its_range_and_its_producer() -> None:
    first = batch_of(
        *[(b"a", b"1"), (b"b", b"1"), (b"c", b"1")], base_offset=10, producer_id=7, producer_epoch=2, base_sequence=5
    )
    second = batch_of((b"a", b"2"), (b"c", b"2"), base_offset=13)
    cleaned = left(clean(first, map_of(first, second)))
    assert cleaned.count == 1
    assert (cleaned.base_offset, cleaned.last_offset) == (10, 12)
    assert (cleaned.producer_id, cleaned.producer_epoch) == (7, 2)
    assert (cleaned.base_sequence, cleaned.last_sequence) == (5, 7)
    assert cleaned.leader_epoch == 3
    assert cleaned.max_timestamp == 11_000, "of the retained records"
    assert cleaned.size < first.size


def test_log_append_time_is_retained() -> None:
    first = batch_of((b"a", b"1"), (b"b", b"1"), append_time_ms=77)
    cleaned = left(clean(first, map_of(first, batch_of((b"a", b"2"), base_offset=2))))
    assert cleaned.is_log_append_time
    assert [record.timestamp for record in iterate_records(cleaned)] == [77]


def test_a_batch_without_retained_records_is_removed() -> None:
    first = batch_of((b"a", b"1"), (b"a", b"2"))
    assert clean(first, map_of(first, batch_of((b"a", b"3"), base_offset=2))) is None


@pytest.mark.parametrize("codec", [0, 4])
def test_the_last_batch_of_a_producer_is_retained_without_records(codec: int) -> None:
    first = batch_of(
        *[(b"a", b"1"), (b"a", b"2")], producer_id=7, producer_epoch=1, base_sequence=40, compression=codec
    )
    offsets = map_of(first, batch_of((b"a", b"3"), base_offset=2))
    emptied = left(clean(first, offsets, empty=True))
    assert emptied.count == 0
    assert list(iterate_records(emptied)) == []
    assert emptied.has_valid_checksum()
    assert (emptied.base_offset, emptied.last_offset) == (0, 1)
    assert (emptied.producer_id, emptied.base_sequence, emptied.last_sequence) == (7, 40, 41)
    assert clean(emptied, offsets, empty=True) is emptied
    assert clean(emptied, offsets) is None, "after a later batch of the producer"


def test_records_without_a_key_are_removed() -> None:
    first = batch_of((None, b"1"), (b"b", b"1"))
    cleaned = left(clean(first, map_of(first)))
    assert [record.key for record in iterate_records(cleaned)] == [b"b"]


def test_records_beyond_the_offset_map_are_retained() -> None:
    first, second = batch_of((b"a", b"1")), batch_of((b"a", b"2"), (None, b"x"), base_offset=1)
    offsets = map_of(first)
    assert clean(first, offsets) is first
    assert clean(second, offsets) is second


def test_a_full_map_ends_inside_a_batch_and_later_records_are_retained() -> None:
    offsets = OffsetMap(2 * ENTRY_BYTES)
    first = batch_of((b"a", b"1"), (b"b", b"1"), (b"a", b"2"), (b"c", b"1"), (b"a", b"3"))
    assert not offsets.add(first)
    assert offsets.end_offset == 3
    assert len(offsets) == 2
    cleaned = left(clean(first, offsets))
    assert [record.offset for record in iterate_records(cleaned)] == [1, 2, 3, 4]


def test_the_smallest_map_advances_by_one_key() -> None:
    offsets = OffsetMap(0)
    assert not offsets.add(batch_of((b"a", b"1"), (b"a", b"2"), (b"b", b"1")))
    assert offsets.end_offset == 2


def test_the_next_round_continues_inside_the_batch_where_the_last_one_ended() -> None:
    batch = batch_of((b"a", b"1"), (b"b", b"1"), (b"b", b"2"))
    offsets = OffsetMap(ENTRY_BYTES)
    assert not offsets.add(batch)
    reopened = OffsetMap(ENTRY_BYTES, offsets.end_offset)
    assert reopened.add(batch)
    assert [record.offset for record in iterate_records(left(clean(batch, reopened)))] == [0, 2]


def test_tombstones_are_removed_even_without_new_records() -> None:
    batch = batch_of((b"a", None), (b"b", b"1"))
    once = left(clean(batch, map_of(batch), now_ms=0, retention_ms=10))
    reopened = left(clean(once, OffsetMap(ROOMY, 2), now_ms=10))
    assert [record.key for record in iterate_records(reopened)] == [b"b"]


def test_long_keys_are_distinguished() -> None:
    long_one, long_two = b"x" * 1000 + b"1", b"x" * 1000 + b"2"
    first = batch_of((long_one, b"1"), (long_two, b"1"))
    second = batch_of((long_one, b"2"), base_offset=2)
    cleaned = left(clean(first, map_of(first, second)))
    assert [record.key for record in iterate_records(cleaned)] == [long_two]


def test_the_map_ends_where_the_last_batch_ends() -> None:
    batch = batch_of((b"a", b"1"), (b"b", b"1"), (b"a", b"2"))
    later = batch_of((b"b", b"2"), base_offset=3)
    cleaned = left(clean(batch, map_of(batch, later)))
    assert [record.offset for record in iterate_records(cleaned)] == [2]
    assert map_of(cleaned).end_offset == 3


def test_a_tombstone_is_retained_for_delete_retention_ms_after_its_first_cleaning() -> None:
    batch = batch_of((b"a", b"1"), (b"a", None), (b"b", b"1"))
    offsets = map_of(batch)
    once = left(clean(batch, offsets, now_ms=50_000, retention_ms=1000))
    assert once.delete_horizon_ms == 51_000
    assert once.has_valid_checksum()
    assert list(iterate_records(once)) == list(iterate_records(batch))[1:], (
        "timestamps, headers and offsets are as they were"
    )
    assert once.max_timestamp == 2000

    assert clean(once, offsets, now_ms=50_999, retention_ms=1000) is once
    assert clean(once, offsets, now_ms=50_999, retention_ms=0) is once, "the horizon does not change"
    removed = left(clean(once, offsets, now_ms=51_000, retention_ms=1000))
    assert list(iterate_records(removed)) == list(iterate_records(batch))[2:]
    assert removed.delete_horizon_ms == 51_000
    assert clean(removed, offsets, now_ms=99_000) is removed


@pytest.mark.parametrize("codec", range(5))
def test_a_delete_horizon_changes_no_timestamp(codec: int) -> None:
    batch = batch_of((b"a", None), (b"b", b"1"), (b"c", None), base_offset=5, compression=codec)
    cleaned = left(clean(batch, map_of(batch), now_ms=1_700_000_000_000))
    assert list(iterate_records(cleaned)) == list(iterate_records(batch))
    assert cleaned.compression == codec


def test_a_delete_horizon_is_limited_to_its_field() -> None:
    batch = batch_of((b"a", None))
    cleaned = left(clean(batch, map_of(batch), now_ms=1_700_000_000_000, retention_ms=2**63 - 1))
    assert list(iterate_records(cleaned)) == list(iterate_records(batch))
    assert clean(cleaned, map_of(batch), now_ms=2**60) is cleaned


def test_a_tombstone_with_a_later_record_is_removed_at_once() -> None:
    batch = batch_of((b"a", None), (b"b", b"1"))
    cleaned = left(clean(batch, map_of(batch, batch_of((b"a", b"2"), base_offset=2))))
    assert [record.key for record in iterate_records(cleaned)] == [b"b"]
    assert cleaned.delete_horizon_ms is None


def test_control_batches_are_retained() -> None:
    control = Batch(control_batch(EndTransaction(True, 0), timestamp=0, base_offset=1, producer_id=1, producer_epoch=0))
    offsets = map_of(batch_of((b"a", b"1")), control, batch_of((b"a", b"2"), base_offset=2))
    assert len(offsets) == 1
    assert clean(control, offsets, now_ms=2**60) is control


def test_committed_batches_are_compacted_and_aborted_ones_removed() -> None:
    old, replaced = batch_of((b"a", b"1")), data(1, [b"2"], keys=[b"b"])
    batches = [
        old,
        replaced,
        data(2, [b"3"], keys=[b"a"], producer=8),
        marker(3, commit=True),
        marker(4, producer=8),
        data(5, [b"4"], keys=[b"b"], sequence=1),
        marker(6, commit=True),
    ]
    aborted = [AbortedTransaction(8, 2, 4, 5)]
    cleaned, index = clean_all(batches, aborted)
    assert [each and each.base_offset for each in cleaned] == [0, None, None, 3, 4, 5, 6]
    assert list(index) == aborted, "its batch was there"
    assert all(each is None or each.delete_horizon_ms is None for each in cleaned)

    again = [each for each in cleaned if each is not None]
    cleaned, index = clean_all(again, aborted, now_ms=1_000)
    assert [(each.base_offset, each.delete_horizon_ms) for each in cleaned if each is not None] == [
        (0, None),
        (3, 1_100),
        (4, 1_100),
        (5, None),
        (6, None),
    ]
    assert list(index) == []
    with_horizon = [each for each in cleaned if each is not None]
    assert [end_of_transaction(each) for each in with_horizon[1:3]] == [
        EndTransaction(True, 0),
        EndTransaction(False, 0),
    ]
    assert [each and each.base_offset for each in clean_all(with_horizon, now_ms=1_099)[0]] == [0, 3, 4, 5, 6]
    assert [each and each.base_offset for each in clean_all(with_horizon, now_ms=1_100)[0]] == [0, None, None, 5, 6]


def test_the_last_batch_and_the_marker_of_the_epoch_stay_without_records() -> None:
    producers = ProducerStateManager()
    batches = [data(0, producer=7), data(1, producer=8), marker(2, producer=7), marker(3, producer=8, epoch=1)]
    for batch in batches:
        producers.update(batch)
    aborted = [AbortedTransaction(7, 0, 2, 1), AbortedTransaction(8, 1, 3, 4)]
    cleaned, _ = clean_all(batches, aborted, producers=producers)
    assert [each and (each.base_offset, each.count) for each in cleaned] == [(0, 0), None, (2, 1), (3, 1)]
    remaining = [each for each in cleaned if each is not None]
    for now_ms in (0, 1_000):
        cleaned, _ = clean_all(remaining, aborted, now_ms=now_ms, producers=producers)
        remaining = [each for each in cleaned if each is not None]
    assert [(each.base_offset, each.count) for each in remaining] == [(0, 0), (2, 1), (3, 0)], (
        "the batch needs its marker"
    )
    recovered = ProducerStateManager()
    for batch in remaining:
        recovered.update(batch)
    assert [(each.producer_id, each.epoch, each.last_sequence) for each in recovered] == [(7, 0, 0), (8, 1, -1)]
    assert recovered.unstable.first_offset(2**62) is None


def clean_all(
    batches: list[Batch],
    aborted: Sequence[AbortedTransaction] = (),
    *,
    now_ms: int = 0,
    producers: ProducerStateManager | None = None,
) -> tuple[list[Batch | None], TransactionIndex]:
    """Returns what remains of each batch, and the aborted transactions that remain in the index."""
    offsets = OffsetMap(10_000)
    outcomes = TransactionOutcomes()
    outcomes.add_aborted(aborted)
    for batch in batches:
        offsets.add(batch, is_obsolete=outcomes.is_obsolete(batch))
    outcomes = TransactionOutcomes()
    outcomes.add_aborted(aborted)
    cleaned = [
        clean_batch(
            batch,
            offsets,
            now_ms=now_ms,
            delete_retention_ms=100,
            retain_empty=producers is not None and is_last_of_producer(batch, producers),
            is_obsolete=outcomes.is_obsolete(batch),
        )
        for batch in batches
    ]
    return cleaned, outcomes.index


def test_an_undecodable_batch_is_retained_and_removes_nothing() -> None:
    first = batch_of((b"a", b"1"), (b"a", b"2"))
    broken = Batch(
        encode_batch(
            b"no records at all",
            base_offset=2,
            leader_epoch=0,
            attributes=4,
            last_offset_delta=1,
            base_timestamp=0,
            max_timestamp=0,
            producer_id=-1,
            producer_epoch=-1,
            base_sequence=-1,
            count=2,
        )
    )
    with pytest.raises(MoldauError):
        list(iterate_records(broken))
    offsets = map_of(first, broken)
    assert offsets.end_offset == 4
    assert clean(broken, offsets) is broken
    assert [record.offset for record in iterate_records(left(clean(first, offsets)))] == [1]


record_pairs = st.tuples(
    st.sampled_from([b"a", b"b", b"c", b"long key of more than 16"]), st.none() | st.binary(max_size=5)
)
logs = st.lists(st.tuples(st.lists(record_pairs, min_size=1, max_size=6), st.integers(0, 4)), max_size=8)


@given(log=logs, entries=st.integers(1, 5), rounds=st.integers(1, 4))
def test_a_compacted_log_has_the_same_latest_values(
    log: list[tuple[list[tuple[bytes, bytes | None]], int]], entries: int, rounds: int
) -> None:
    batches: list[Batch] = []
    for pairs, codec in log:
        base_offset = batches[-1].next_offset if batches else 0
        batches.append(batch_of(*pairs, base_offset=base_offset, compression=codec))
    before = {record.offset: record for batch in batches for record in iterate_records(batch)}
    expected = {record.key: record.value for record in before.values()}

    clean_end = 0
    for number in range(rounds):
        offsets = OffsetMap(entries * ENTRY_BYTES, clean_end)
        for batch in batches:
            if batch.next_offset > clean_end and not offsets.add(batch):
                break
        now_ms = number * DAY_MS // 2
        cleaned = [clean(batch, offsets, now_ms=now_ms) for batch in batches]
        batches = [batch for batch in cleaned if batch is not None]
        assert offsets.end_offset > clean_end or clean_end == len(before), "every round makes progress"
        clean_end = offsets.end_offset

        after = [record for batch in batches for record in iterate_records(batch)]
        assert all(record == before[record.offset] for record in after)
        state = {record.key: record.value for record in after}
        if number < 2:
            assert state == expected, "no horizon has passed"
        assert {key: value for key, value in state.items() if value is not None} == {
            key: value for key, value in expected.items() if value is not None
        }
