"""The leader epoch cache: start offsets, end offset lookups, and the checkpoint file."""

import pytest

from moldau.errors import CorruptRecordError
from moldau.logs.leader_epochs import LeaderEpochCache


def history(*entries: tuple[int, int]) -> LeaderEpochCache:
    epochs = LeaderEpochCache()
    for epoch, offset in entries:
        epochs.assign(epoch, offset)
    return epochs


def test_an_epoch_starts_where_it_was_first_assigned() -> None:
    epochs = history((0, 0), (0, 5), (2, 10), (2, 11), (3, 20))
    assert list(epochs) == [(0, 0), (2, 10), (3, 20)]
    assert epochs.latest == 3
    assert [epochs.epoch_for_offset(offset) for offset in (0, 9, 10, 19, 20, 99)] == [0, 0, 2, 2, 3, 3]


def test_an_assignment_removes_contradicting_entries() -> None:
    assert list(history((1, 0), (2, 10), (3, 20), (4, 15))) == [(1, 0), (2, 10), (4, 15)]
    assert list(history((1, 0), (3, 10), (5, 20), (2, 30))) == [(1, 0), (2, 30)]
    assert list(history((1, 0), (2, 10), (3, 10))) == [(1, 0), (3, 10)]


def test_batches_without_an_epoch_are_ignored() -> None:
    assert list(history((-1, 0))) == []


def test_end_offset_for_epoch() -> None:
    epochs = history((1, 5), (3, 10), (4, 20))
    assert epochs.end_offset_for(4, 30) == (4, 30)
    assert epochs.end_offset_for(3, 30) == (3, 20)
    assert epochs.end_offset_for(2, 30) == (1, 10)
    assert epochs.end_offset_for(1, 30) == (1, 10)
    assert epochs.end_offset_for(0, 30) == (0, 5)
    assert epochs.end_offset_for(5, 30) == (-1, -1)
    assert epochs.end_offset_for(-1, 30) == (-1, -1)
    assert LeaderEpochCache().end_offset_for(0, 30) == (-1, -1)


def test_truncation_from_the_end() -> None:
    epochs = history((1, 0), (2, 10), (3, 20))
    epochs.truncate_from_end(20)
    assert list(epochs) == [(1, 0), (2, 10)]
    epochs.truncate_from_end(15)
    assert (list(epochs), epochs.latest) == ([(1, 0), (2, 10)], 2)
    epochs.clear()
    assert (list(epochs), epochs.latest) == ([], -1)


def test_truncation_from_the_start() -> None:
    epochs = history((1, 0), (2, 10), (3, 20))
    epochs.truncate_from_start(15)
    assert list(epochs) == [(2, 15), (3, 20)]
    epochs.truncate_from_start(20)
    assert list(epochs) == [(3, 20)]
    epochs.truncate_from_start(50)
    assert list(epochs) == [(3, 50)]
    empty = LeaderEpochCache()
    empty.truncate_from_start(5)
    assert list(empty) == []


def test_the_checkpoint_has_kafkas_format() -> None:
    epochs = history((1, 0), (2, 10))
    assert epochs.to_text() == "0\n2\n1 0\n2 10\n"
    assert list(LeaderEpochCache.from_text(epochs.to_text())) == list(epochs)
    assert list(LeaderEpochCache.from_text("0\n0\n")) == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0",
        "1\n0\n",
        "0\n1\n",
        "0\n2\n1 0\n",
        "0\n1\n1 0\n2 5\n",
        "0\n1\n1 x\n",
        "0\n2\n2 0\n1 5\n",
        "0\n2\n1 5\n2 5\n",
        "0\n1\n1 0",
        "0\n1\n1 -3\n",
        "0\n-1\n",
    ],
)
def test_a_damaged_checkpoint_is_rejected(text: str) -> None:
    with pytest.raises(CorruptRecordError):
        LeaderEpochCache.from_text(text)
