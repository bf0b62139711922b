"""The register check agrees with a search over all orders of the operations."""

import itertools
import math
import random

from moldau.testing.simulation.checkers.register import Interval, RegisterValue, contradictions

HISTORIES = 3000
OPERATIONS_MAX = 6


def has_an_order(values: list[RegisterValue]) -> bool:
    """Returns whether some order respects real time and puts each read after its own write."""
    operations = [
        (number, is_write, when)
        for number, value in enumerate(values)
        for is_write, when in [(True, value.write), *((False, read) for read in value.reads)]
    ]
    return any(_explains(order) for order in itertools.permutations(operations))


def _explains(order: tuple[tuple[int, bool, Interval], ...]) -> bool:
    held = None
    latest_begin = -math.inf
    for number, is_write, when in order:
        if when.completed_at < latest_begin:
            return False
        latest_begin = max(latest_begin, when.invoked_at)
        if is_write:
            held = number
        elif held != number:
            return False
    return True


def random_history(draw: random.Random) -> list[RegisterValue]:
    times = draw.sample(range(100), 2 * OPERATIONS_MAX)

    def interval(not_before: float = -1) -> Interval:
        invoked_at, completed_at = sorted((times.pop(), times.pop()))
        # The group checker reports reads of unwritten values before this check.
        return Interval(invoked_at, max(completed_at, not_before))

    values: list[RegisterValue] = []
    left = OPERATIONS_MAX
    while left > 0:
        write = interval()
        reads = [interval(write.invoked_at + 0.5) for _ in range(min(left - 1, draw.choice((0, 1, 2))))]
        left -= 1 + len(reads)
        if reads and draw.random() < 0.3:
            write = write._replace(completed_at=math.inf)
        values.append(RegisterValue(str(len(values)), write, reads))
    return values


def test_it_agrees_with_a_search_over_all_orders() -> None:
    draw = random.Random(1)
    verdicts = set()
    for _ in range(HISTORIES):
        values = random_history(draw)
        can_be = has_an_order(values)
        assert (not list(contradictions(values))) == can_be, values
        verdicts.add(can_be)
    assert verdicts == {True, False}


def test_a_write_with_an_unobserved_result_contradicts_nothing() -> None:
    lasting = RegisterValue("a", Interval(1, 2), [Interval(8, 9)])
    assert list(contradictions([lasting, RegisterValue("b", Interval(4, math.inf), [])])) == []
    assert list(contradictions([lasting, RegisterValue("b", Interval(4, 5), [])]))
