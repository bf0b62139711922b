"""Producer state: new, duplicate and out-of-order batches."""

import struct
import weakref

import crc32c
import pytest

from moldau.errors import (
    CorruptRecordError,
    DuplicateSequenceError,
    InvalidProducerEpochError,
    MoldauError,
    NotEnoughReplicasError,
    NotLeaderOrFollowerError,
    OutOfOrderSequenceError,
    StorageError,
)
from moldau.logs.producer_state import SUCCESSORS_REJECTED_MAX, ProducerStateManager
from moldau.records.batch import SEQUENCE_LIMIT, Batch
from support.logs import batch_at


def produced(
    sequence: int, count: int = 1, *, offset: int = 0, epoch: int = 0, producer: int = 7, timestamp_ms: int = 5
) -> Batch:
    return batch_at(
        offset,
        [b"v"] * count,
        producer_id=producer,
        producer_epoch=epoch,
        base_sequence=sequence,
        timestamp_ms=timestamp_ms,
    )


def states_after(*batches: Batch) -> ProducerStateManager:
    states = ProducerStateManager()
    for batch in batches:
        assert states.check(batch) is None
        states.update(batch)
    return states


def six_batches() -> ProducerStateManager:
    return states_after(*(produced(2 * number, 2, offset=10 * number) for number in range(6)))


def test_consecutive_sequences_are_new() -> None:
    states = states_after(produced(0, 3), produced(3, 2, offset=3), produced(5, offset=5))
    state = states.get(7)
    assert state is not None
    assert (state.last_sequence, state.last_offset) == (5, 5)


NO_ROOM = StorageError("no room")


def test_a_producer_whose_first_batch_was_rejected_resends_it_first() -> None:
    """Later batches are in flight already: appending one of them would make the first out of order."""
    states = ProducerStateManager()
    states.note_rejected(produced(0, 5), NO_ROOM)
    with pytest.raises(StorageError, match="sequence 0 of producer 7 was rejected and has to come first: no room"):
        states.check(produced(5))
    assert states.check(produced(5, epoch=1)) is None, "another epoch starts again"
    assert states.check(produced(5, producer=8)) is None
    assert states.check(produced(0, 5)) is None
    states.update(produced(0, 5))
    assert states.check(produced(5)) is None


@pytest.mark.parametrize("why", [NO_ROOM, NotEnoughReplicasError("1 of 2"), NotLeaderOrFollowerError("no lease")])
def test_batches_after_a_rejected_one_fail_with_the_same_error(why: MoldauError) -> None:
    states = states_after(produced(0, 2))
    states.note_rejected(produced(2, 2), why)
    for sequence in (4, 6, 4):
        with pytest.raises(type(why), match="sequence 2 of producer 7 was rejected and has to come first"):
            states.check(produced(sequence, 2))
    states.note_rejected(produced(6, 2), why)
    states.update(produced(2, 2))
    assert states.check(produced(4, 2)) is None
    with pytest.raises(OutOfOrderSequenceError):
        states.check(produced(6, 2))


def test_the_error_of_a_rejected_batch_is_not_kept_in_memory() -> None:
    """It would keep the frames of its traceback in memory."""
    states = ProducerStateManager()
    why = StorageError("no room")
    kept = weakref.ref(why)
    states.note_rejected(produced(0, 5), why)
    del why
    assert kept() is None


def test_the_first_batch_of_a_new_epoch_can_be_rejected_too() -> None:
    states = states_after(produced(0, 2))
    states.note_rejected(produced(0, 1, epoch=1), NO_ROOM)
    with pytest.raises(StorageError):
        states.check(produced(1, epoch=1))
    states.update(produced(0, 1, epoch=1))
    assert states.check(produced(1, epoch=1)) is None


def test_a_gap_without_a_rejected_batch_is_out_of_order() -> None:
    states = states_after(produced(0, 2))
    states.note_rejected(produced(4, 2), NO_ROOM)
    states.note_rejected(produced(0, 2), NO_ROOM)
    with pytest.raises(OutOfOrderSequenceError):
        states.check(produced(6, 2))
    with pytest.raises(OutOfOrderSequenceError):
        states.check(produced(4, 2))


def test_a_producer_that_never_resends_a_rejected_batch_gets_out_of_order() -> None:
    states = states_after(produced(0, 2))
    states.note_rejected(produced(2, 2), NO_ROOM)
    for _ in range(SUCCESSORS_REJECTED_MAX):
        with pytest.raises(StorageError):
            states.check(produced(4, 2))
    with pytest.raises(OutOfOrderSequenceError):
        states.check(produced(4, 2))


def test_a_duplicate_of_the_last_five_batches_is_recognized() -> None:
    states = six_batches()
    for number in range(1, 6):
        repeated = states.check(produced(2 * number, 2))
        assert repeated is not None
        assert (repeated.base_offset, repeated.last_offset) == (10 * number, 10 * number + 1)
        assert repeated.timestamp_ms == 6


def test_a_duplicate_of_an_older_batch_has_no_offset() -> None:
    with pytest.raises(DuplicateSequenceError):
        six_batches().check(produced(0, 2))


@pytest.mark.parametrize(
    ("sequence", "count"),
    [(13, 1), (11, 1), (10, 1), (10, 3), (2, 4), (1, 2), (0, 20), (SEQUENCE_LIMIT - 2, 2)],
    ids=[
        "gap",
        "second half of the last batch",
        "first half of the last batch",
        "last batch and more",
        "two batches as one",
        "straddles what is forgotten",
        "overlaps everything",
        "never written, though behind if one counts around",
    ],
)
def test_anything_else_is_out_of_order(sequence: int, count: int) -> None:
    with pytest.raises(OutOfOrderSequenceError):
        six_batches().check(produced(sequence, count))


def test_an_unseen_sequence_is_not_a_duplicate() -> None:
    # The first known batch is number 10: earlier sequences may or may not have been appended.
    states = states_after(produced(10))
    with pytest.raises(OutOfOrderSequenceError):
        states.check(produced(9))


def test_an_unknown_producer_may_start_with_any_sequence() -> None:
    assert ProducerStateManager().check(produced(1234)) is None


def test_a_new_epoch_starts_at_sequence_zero() -> None:
    states = states_after(produced(0), produced(1))
    with pytest.raises(OutOfOrderSequenceError):
        states.check(produced(2, epoch=1))
    fresh = produced(0, epoch=1, offset=2)
    assert states.check(fresh) is None
    states.update(fresh)
    with pytest.raises(InvalidProducerEpochError):
        states.check(produced(2, epoch=0))
    with pytest.raises(OutOfOrderSequenceError):
        states.check(produced(2, epoch=1))


def test_sequences_wrap() -> None:
    last = SEQUENCE_LIMIT - 1
    states = states_after(produced(last - 2, 2), produced(last, 3, offset=2), produced(2, offset=5))
    repeated = states.check(produced(last, 3))
    assert repeated is not None
    assert (repeated.first_sequence, repeated.last_sequence, repeated.base_offset) == (last, 1, 2)
    for number in range(3, 8):
        states.update(produced(number, offset=number + 3))
    with pytest.raises(DuplicateSequenceError):
        states.check(produced(last, 3))


@pytest.mark.parametrize("from_snapshot", [False, True])
def test_a_sequence_that_comes_too_early_is_not_a_duplicate(from_snapshot: bool) -> None:
    states = six_batches()
    state = states.get(7)
    assert state is not None
    state.evicted_sequences = SEQUENCE_LIMIT - 2
    if from_snapshot:
        data = states.snapshot()
        states = ProducerStateManager()
        states.restore(data)
    else:
        states.update(produced(12, 2, offset=60))
    ahead = 14 if from_snapshot else 16
    with pytest.raises(OutOfOrderSequenceError):
        states.check(produced(ahead, 2))
    with pytest.raises(DuplicateSequenceError):
        states.check(produced(0, 2))


def test_batches_without_sequences_are_accepted() -> None:
    states = states_after(produced(0))
    assert states.check(batch_at(0, [b"v"])) is None
    states.update(batch_at(1, [b"v"]))
    assert len(states) == 1


def test_a_control_batch_updates_the_epoch_and_no_sequence() -> None:
    states = states_after(produced(0))
    marker = batch_at(1, [b"v"], producer_id=7, producer_epoch=1, control=True, transactional=True)
    states.update(marker)
    state = states.get(7)
    assert state is not None
    assert (state.epoch, state.last_sequence) == (1, -1)
    assert states.check(produced(0, epoch=1)) is None
    with pytest.raises(OutOfOrderSequenceError):
        states.check(produced(1, epoch=1))


def test_idle_producers_expire_regardless_of_record_timestamps() -> None:
    states = states_after(produced(0, timestamp_ms=1), produced(0, producer=8, timestamp_ms=1))
    states.expire(1_000_000, 100)
    states.update(produced(1, producer=8, offset=1, timestamp_ms=2))
    states.expire(1_000_100, 100)
    assert [state.producer_id for state in states] == [8]
    states.expire(1_000_199, 100)
    assert [state.producer_id for state in states] == [8]
    states.expire(1_000_200, 100)
    assert not len(states)


def test_a_snapshot_restores_all_states() -> None:
    states = six_batches()
    states.update(produced(0, producer=9, offset=70))
    states.update(batch_at(71, [b"v"], producer_id=10, producer_epoch=3, control=True))
    reopened = ProducerStateManager()
    reopened.restore(states.snapshot())
    assert reopened.snapshot() == states.snapshot()
    repeated = reopened.check(produced(2, 2))
    assert repeated is not None
    assert repeated.base_offset == 10
    with pytest.raises(DuplicateSequenceError):
        reopened.check(produced(0, 2))
    marker_only = reopened.get(10)
    assert marker_only is not None
    assert (marker_only.epoch, marker_only.last_sequence, marker_only.last_offset) == (3, -1, -1)


def test_a_snapshot_starts_in_kafkas_format() -> None:
    data = states_after(produced(0, 3, offset=40, timestamp_ms=5)).snapshot()
    version, checksum, count = struct.unpack_from(">hIi", data)
    assert (version, count) == (1, 1)
    assert checksum == crc32c.crc32c(data[6:])
    assert struct.unpack_from(">qhiqiqiq", data, 10) == (7, 0, 2, 42, 2, 7, -1, -1)


def test_kafkas_own_snapshot_can_be_read() -> None:
    body = struct.pack(">i", 1) + struct.pack(">qhiqiqiq", 7, 2, 11, 99, 4, 1234, -1, -1)
    states = ProducerStateManager()
    states.restore(struct.pack(">hI", 1, crc32c.crc32c(body)) + body)
    repeated = states.check(produced(7, 5, epoch=2))
    assert repeated is not None
    assert (repeated.base_offset, repeated.last_offset, repeated.timestamp_ms) == (95, 99, 1234)


def test_a_damaged_snapshot_is_rejected() -> None:
    data = six_batches().snapshot()
    for length in range(len(data)):
        with pytest.raises(CorruptRecordError):
            ProducerStateManager().restore(data[:length])
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 0x10
        with pytest.raises(CorruptRecordError):
            ProducerStateManager().restore(bytes(damaged))
