"""The output of killed queries, and its rules, independent of Spark and brokers.

A row is identified by its partition and offset in the source topic. The offset log gives the offsets of each batch,
and the state at each start of a driver gives the batch that it had to repeat.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

Place = tuple[int, int]
Numbers = Mapping[Place, int]
"""The number produced at each position."""
SHOWN = 5


@dataclass(frozen=True, order=True)
class Attempt:
    """One attempt of a task to write its share of a batch."""

    run: int
    """The start of the driver."""
    batch: int
    task: int
    number: int
    """Above zero only if Spark retries the task, or runs it twice (speculation)."""
    task_attempt_id: int = 0
    """Differs also between attempts of the stage, each of which counts the attempts of its tasks from zero."""


@dataclass(frozen=True)
class Copy:
    """A row in the output topic, and the attempt that wrote it."""

    place: Place
    number: int
    by: Attempt


@dataclass(frozen=True)
class Sum:
    """The state of a key when a row was written: all its rows so far, this one included."""

    count: int
    total: int


@dataclass(frozen=True)
class OffsetLog:
    """The end of each batch in each partition, in batch order; the first starts at offset zero."""

    ends: Sequence[Mapping[int, int]]

    def holds(self, batch: int, place: Place) -> bool:
        partition, offset = place
        if not 0 <= batch < len(self.ends):
            return False
        start = self.ends[batch - 1].get(partition, 0) if batch else 0
        return start <= offset < self.ends[batch].get(partition, 0)


@dataclass(frozen=True)
class Replays:
    """The batch that was planned and not committed when the driver was started, if any."""

    by_run: Mapping[int, int | None]

    def begun_again(self, run: int, batch: int) -> bool:
        return self.by_run.get(run) == batch

    @property
    def count(self) -> int:
        return sum(batch is not None for batch in self.by_run.values())


def duplicated(copies: Iterable[Copy]) -> int:
    """Counts the rows with more than one copy."""
    return sum(len(each) > 1 for each in _by_place(copies).values())


def check_topic(written: Numbers, copies: Iterable[Copy], log: OffsetLog, replays: Replays) -> list[str]:
    """Returns violations of at-least-once in a topic: no row may be missing, and a row may be duplicated only if its
    batch was repeated or its task retried, once for each attempt."""
    found = _by_place(copies)
    wrong = _missing_and_strange(written, found)
    for place, each in sorted(found.items()):
        if any(copy.number != written.get(place) for copy in each):
            numbers = [copy.number for copy in each]
            wrong.append(f"the row at {place} has the numbers {numbers}, not its own: {written.get(place)}")
        batches = sorted({copy.by.batch for copy in each})
        if len(batches) > 1:
            wrong.append(f"the row at {place} was written by several batches: {batches}")
        elif not log.holds(batches[0], place):
            wrong.append(f"the row at {place} was written by batch {batches[0]}, which was not to read it")
        elif len(each) > 1:
            wrong += _unexplained(place, sorted(copy.by for copy in each), replays)
    return wrong


def _unexplained(place: Place, attempts: list[Attempt], replays: Replays) -> list[str]:
    wrong = []
    for first, second in pairwise(attempts):
        if first == second:
            wrong.append(f"the row at {place} was written twice by one attempt: {first}")
        elif first.run == second.run and first.task != second.task:
            wrong.append(f"the row at {place} was written by two tasks of one batch: {first} and {second}")
        elif first.run != second.run and not replays.begun_again(second.run, second.batch):
            wrong.append(
                f"the row at {place} was written again by {second}, and that run did not begin the batch again"
            )
    return wrong


def check_table(written: Numbers, rows: Iterable[tuple[Place, int]]) -> list[str]:
    """Returns violations of exactly-once in a table."""
    found: dict[Place, list[int]] = defaultdict(list)
    for place, number in rows:
        found[place].append(number)
    wrong = _missing_and_strange(written, found)
    for place, numbers in sorted(found.items()):
        if len(numbers) > 1:
            wrong.append(f"the row at {place} is there {len(numbers)} times")
        elif place in written and numbers[0] != written[place]:
            wrong.append(f"the row at {place} has the number {numbers[0]}, not its own: {written[place]}")
    return wrong


def check_sums(written: Numbers, rows: Iterable[tuple[Place, Sum]], keys: int) -> list[str]:
    """Returns rows that were written with a wrong state: it includes every earlier row of the key exactly once. A row
    with number n has the key n % keys, and all rows of a key are in one partition."""
    states: dict[int, Sum] = {}
    expected: dict[Place, Sum] = {}
    for place, number in sorted(written.items()):
        state = states.get(number % keys, Sum(0, 0))
        expected[place] = states[number % keys] = Sum(state.count + 1, state.total + number)
    wrong = [(place, found) for place, found in rows if found != expected.get(place)]
    return [
        f"the row at {place} was written with {found}, not with {expected.get(place)}"
        for place, found in sorted(wrong, key=lambda each: each[0])[:SHOWN]
    ]


def check_input(produced: int, acknowledged: Numbers, found: Numbers) -> list[str]:
    """Returns errors of the input topic: every number once, where it was acknowledged."""
    numbers = sorted(found.values())
    wrong = [] if numbers == list(range(produced)) else [f"{len(numbers)} rows instead of {produced}, or not those"]
    moved = [place for place, number in acknowledged.items() if found.get(place) != number]
    return wrong + ([f"acknowledged and not there: {sorted(moved)[:SHOWN]}"] if moved else [])


def _missing_and_strange(written: Numbers, found: Mapping[Place, object]) -> list[str]:
    missing, strange = sorted(written.keys() - found.keys()), sorted(found.keys() - written.keys())
    wrong = [f"{len(missing)} rows are lost, the first at {missing[:SHOWN]}"] if missing else []
    return wrong + ([f"{len(strange)} rows were never produced: {strange[:SHOWN]}"] if strange else [])


def _by_place(copies: Iterable[Copy]) -> dict[Place, list[Copy]]:
    found: dict[Place, list[Copy]] = defaultdict(list)
    for copy in copies:
        found[copy.place].append(copy)
    return found
