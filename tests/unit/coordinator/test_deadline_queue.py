"""DeadlineQueue against a plain list of deadlines."""

from hypothesis import given
from hypothesis import strategies as st

from moldau.coordinator.deadline_queue import DeadlineQueue


def test_the_earliest_deadline_comes_first_and_once() -> None:
    deadlines = DeadlineQueue()
    deadlines.set("b", 20)
    deadlines.set("a", 10)
    assert deadlines.next_ms == 10
    assert deadlines.pop_due(9) is None
    assert deadlines.pop_due(25) == "a"
    assert deadlines.pop_due(25) == "b"
    assert deadlines.pop_due(25) is None
    assert deadlines.next_ms is None


def test_a_postponed_deadline_is_not_due_at_its_first_time() -> None:
    deadlines = DeadlineQueue()
    deadlines.set("a", 10)
    deadlines.set("a", 30)
    assert deadlines.pop_due(10) is None
    assert deadlines.next_ms == 30


def test_an_advanced_deadline_is_due_once() -> None:
    deadlines = DeadlineQueue()
    deadlines.set("a", 30)
    deadlines.set("a", 10)
    assert deadlines.pop_due(10) == "a"
    assert deadlines.pop_due(30) is None


def test_a_cleared_deadline_is_never_due() -> None:
    deadlines = DeadlineQueue()
    deadlines.set("a", 10)
    deadlines.set("a", None)
    deadlines.set("never", None)
    assert deadlines.next_ms is None
    assert deadlines.pop_due(100) is None


def test_equal_deadlines_have_a_deterministic_order() -> None:
    deadlines = DeadlineQueue()
    for key in ("c", "a", "b"):
        deadlines.set(key, 5)
    assert [deadlines.pop_due(5) for _ in range(3)] == ["a", "b", "c"]


def test_cleared_deadlines_leak_nothing() -> None:
    deadlines = DeadlineQueue()
    deadlines.set("stays", 10**9)
    for number in range(10_000):
        deadlines.set(f"group-{number}", 10**6 + number)
        deadlines.set(f"group-{number}", None)
        deadlines.set("stays", 10**9 - number)
    assert len(deadlines) == 1
    assert len(deadlines._heap) < 100


changes = st.tuples(st.sampled_from("abcde"), st.none() | st.integers(0, 30))
ticks = st.integers(0, 30)


@given(st.lists(changes | ticks))
def test_it_matches_a_plain_list_of_deadlines(steps: list[tuple[str, int | None] | int]) -> None:
    deadlines = DeadlineQueue()
    plain: dict[str, int] = {}
    for step in steps:
        if isinstance(step, int):
            due = min((deadline_ms, key) for key, deadline_ms in plain.items()) if plain else None
            expected = due[1] if due is not None and due[0] <= step else None
            assert deadlines.pop_due(step) == expected
            plain.pop(expected or "", None)
        else:
            key, deadline_ms = step
            deadlines.set(key, deadline_ms)
            plain.pop(key, None)
            if deadline_ms is not None:
                plain[key] = deadline_ms
        assert deadlines.next_ms == min(plain.values(), default=None)
        assert len(deadlines) == len(plain)
