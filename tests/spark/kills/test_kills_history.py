"""The rules for the output of killed queries on constructed histories: each rule finds its violation."""

from dataclasses import replace

from kills.history import (
    Attempt,
    Copy,
    OffsetLog,
    Replays,
    Sum,
    check_input,
    check_sums,
    check_table,
    check_topic,
    duplicated,
)

WRITTEN = {(partition, offset): 10 * partition + offset for partition in (0, 1) for offset in range(4)}
LOG = OffsetLog([{0: 2, 1: 1}, {0: 4, 1: 3}, {0: 4, 1: 4}])
NO_REPLAY = Replays({0: None})
REPLAYED = Replays({0: None, 1: 1, 2: None})


def batch_of(place: tuple[int, int]) -> int:
    return next(batch for batch in range(3) if LOG.holds(batch, place))


def once() -> list[Copy]:
    return [Copy(place, number, Attempt(0, batch_of(place), place[0], 0)) for place, number in WRITTEN.items()]


def again(place: tuple[int, int], *, run: int = 0, number: int = 0, task: int | None = None) -> Copy:
    return Copy(place, WRITTEN[place], Attempt(run, batch_of(place), place[0] if task is None else task, number))


def test_the_offset_log_gives_the_offsets_of_a_batch() -> None:
    assert [place for place in WRITTEN if LOG.holds(0, place)] == [(0, 0), (0, 1), (1, 0)]
    assert [place for place in WRITTEN if LOG.holds(2, place)] == [(1, 3)]
    assert not LOG.holds(3, (0, 0))
    assert not LOG.holds(0, (7, 0))


def test_every_row_once_is_valid() -> None:
    assert check_topic(WRITTEN, once(), LOG, NO_REPLAY) == []
    assert duplicated(once()) == 0


def test_rows_of_a_repeated_batch_may_be_duplicated() -> None:
    copies = [*once(), again((0, 2), run=1), again((1, 1), run=1)]
    assert check_topic(WRITTEN, copies, LOG, REPLAYED) == []
    assert duplicated(copies) == 2


def test_rows_of_a_retried_task_may_be_duplicated() -> None:
    assert check_topic(WRITTEN, [*once(), again((0, 0), number=1)], LOG, NO_REPLAY) == []


def test_a_lost_row_is_found() -> None:
    (wrong,) = check_topic(WRITTEN, once()[1:], LOG, NO_REPLAY)
    assert "1 rows are lost, the first at [(0, 0)]" in wrong


def test_a_row_that_was_never_produced_is_found() -> None:
    wrong = check_topic(WRITTEN, [*once(), Copy((1, 9), 5, Attempt(0, 2, 1, 0))], LOG, NO_REPLAY)
    assert "never produced" in wrong[0]


def test_a_row_with_another_rows_number_is_found() -> None:
    changed = [Copy(copy.place, copy.number + (copy.place == (0, 1)), copy.by) for copy in once()]
    (wrong,) = check_topic(WRITTEN, changed, LOG, NO_REPLAY)
    assert "the row at (0, 1) has the numbers [2]" in wrong


def test_a_row_written_twice_by_one_attempt_is_found() -> None:
    (wrong,) = check_topic(WRITTEN, [*once(), again((0, 0))], LOG, NO_REPLAY)
    assert "twice by one attempt" in wrong


def test_a_row_written_by_two_tasks_is_found() -> None:
    (wrong,) = check_topic(WRITTEN, [*once(), again((0, 0), task=5)], LOG, NO_REPLAY)
    assert "two tasks of one batch" in wrong


def test_a_row_repeated_without_a_restart_is_found() -> None:
    (wrong,) = check_topic(WRITTEN, [*once(), again((0, 0), run=1)], LOG, REPLAYED)
    assert "did not begin the batch again" in wrong
    (wrong,) = check_topic(WRITTEN, [*once(), again((0, 2), run=2)], LOG, REPLAYED)
    assert "did not begin the batch again" in wrong


def test_a_row_written_by_two_batches_is_found() -> None:
    (wrong,) = check_topic(WRITTEN, [*once(), Copy((0, 0), 0, Attempt(1, 1, 0, 0))], LOG, REPLAYED)
    assert "several batches: [0, 1]" in wrong


def test_a_row_written_by_the_wrong_batch_is_found() -> None:
    copies = [copy for copy in once() if copy.place != (0, 0)]
    (wrong,) = check_topic(WRITTEN, [*copies, Copy((0, 0), 0, Attempt(0, 1, 0, 0))], LOG, NO_REPLAY)
    assert "batch 1, which was not to read it" in wrong


def test_a_table_has_every_row_once() -> None:
    assert check_table(WRITTEN, WRITTEN.items()) == []


def test_a_table_with_a_row_too_many_too_few_or_changed_is_found() -> None:
    rows = list(WRITTEN.items())
    assert "is there 2 times" in check_table(WRITTEN, [*rows, rows[0]])[0]
    assert "1 rows are lost" in check_table(WRITTEN, rows[1:])[0]
    assert "has the number 99" in check_table(WRITTEN, [(rows[0][0], 99), *rows[1:]])[0]
    assert "never produced" in check_table(WRITTEN, [*rows, ((5, 5), 1)])[0]


def test_a_sum_that_misses_or_repeats_an_earlier_row_is_found() -> None:
    written = {(0, 0): 0, (0, 1): 2, (1, 0): 1, (0, 2): 4}
    sums = {(0, 0): Sum(1, 0), (0, 1): Sum(2, 2), (1, 0): Sum(1, 1), (0, 2): Sum(3, 6)}
    assert check_sums(written, sums.items(), keys=2) == []
    assert "Sum(count=3, total=8)" in check_sums(written, {**sums, (0, 2): Sum(3, 8)}.items(), keys=2)[0]
    assert "Sum(count=2, total=4)" in check_sums(written, {**sums, (0, 2): Sum(2, 4)}.items(), keys=2)[0]
    assert "the row at (1, 9)" in check_sums(written, {**sums, (1, 9): Sum(1, 1)}.items(), keys=2)[0]


def test_attempts_of_a_repeated_stage_are_different_attempts() -> None:
    copies = once()
    first = copies[0]
    repeated = Copy(first.place, first.number, replace(first.by, task_attempt_id=7))
    assert check_topic(WRITTEN, [*copies, repeated], LOG, NO_REPLAY) == []


def test_an_input_that_differs_from_the_acknowledged_records_is_found() -> None:
    found = {(0, 0): 0, (0, 1): 1, (1, 0): 2}
    assert check_input(3, {(0, 0): 0}, found) == []
    assert check_input(4, {}, found) != []
    assert check_input(3, {}, {**found, (1, 0): 1}) != []
    assert "acknowledged and not there: [(1, 1)]" in check_input(3, {(1, 1): 2}, found)[0]


def test_replays_are_counted() -> None:
    assert REPLAYED.count == 1
    assert NO_REPLAY.count == 0
