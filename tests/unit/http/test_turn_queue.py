"""TurnQueue: one callback per iteration of the event loop, in order, paced while Kafka clients are active."""

import asyncio
import itertools
from collections.abc import Callable

import pytest

from moldau.http.turn_queue import BUSY_PER_TURN_S, KAFKA_ACTIVE_S, PAUSE_MAX_S, TURNS_MAX, TurnQueue


class Load:
    """Requests of Kafka clients, and the CPU time of the event loop."""

    def __init__(self) -> None:
        self.kafka_requests = 0
        self.cpu_s = 0.0

    def turns(self) -> TurnQueue:
        return TurnQueue(lambda: self.kafka_requests, lambda: self.cpu_s)


def test_callbacks_take_turns_with_other_work() -> None:
    async def run() -> list[object]:
        turns, seen, loop = Load().turns(), list[object](), asyncio.get_running_loop()

        def count(iteration: int) -> None:
            seen.append(iteration)
            if iteration < 3:
                loop.call_soon(count, iteration + 1)

        for name in "abc":
            turns.add(lambda name=name: seen.append(name))  # type: ignore[misc]
        loop.call_soon(count, 1)
        while len(seen) < 6:
            await asyncio.sleep(0)
        return seen

    assert asyncio.run(run()) == ["a", 1, "b", 2, "c", 3]


def test_a_callback_that_fails_does_not_stop_the_others() -> None:
    async def run() -> tuple[list[str], int]:
        turns, seen, failures = Load().turns(), list[str](), list[object]()
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: failures.append(context))

        def fail() -> None:
            raise ValueError("broken")

        turns.add(fail)
        turns.add(lambda: seen.append("later"))
        while not seen:
            await asyncio.sleep(0)
        return seen, len(failures)

    assert asyncio.run(run()) == (["later"], 1)


def turns_per_iteration(busy_s: float, count: int = 30) -> list[int]:
    """Returns how many turns each iteration has if the loop is busy for this long in between."""

    async def run() -> list[int]:
        load, seen, loop = Load(), list[int](), asyncio.get_running_loop()
        queue, iteration = load.turns(), 0

        def iterate() -> None:
            nonlocal iteration
            iteration += 1
            load.cpu_s += busy_s
            if len(seen) < count:
                loop.call_soon(iterate)

        for _ in range(count):
            queue.add(lambda: seen.append(iteration))
        loop.call_soon(iterate)
        while len(seen) < count:
            await asyncio.sleep(0)
        return [seen.count(each) for each in sorted(set(seen))]

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("busy_s", "turns"), [(0.0, 1), (BUSY_PER_TURN_S * 0.9, 1), (BUSY_PER_TURN_S * 3.5, 4), (60.0, TURNS_MAX)]
)
def test_long_iterations_have_several_turns(busy_s: float, turns: int) -> None:
    first, *rest = turns_per_iteration(busy_s)
    assert first == 1
    assert set(rest[:-1]) == {turns}


def pauses(turn_cpu_s: float, on_turn: Callable[[Load], None], turns: int = 5) -> list[float]:
    """Returns the seconds between turns that each cost this CPU time. `on_turn` is called in each."""

    async def run() -> list[float]:
        load, times, loop = Load(), list[float](), asyncio.get_running_loop()
        queue, done = load.turns(), loop.create_future()

        def turn() -> None:
            times.append(queue._last_turn_s)
            load.cpu_s += turn_cpu_s
            on_turn(load)
            if len(times) == turns:
                done.set_result(None)

        for _ in range(turns):
            queue.add(turn)
        await asyncio.wait_for(done, 10)
        return [later - earlier for earlier, later in itertools.pairwise(times)]

    return asyncio.run(run())


def kafka_request(load: Load) -> None:
    load.kafka_requests += 1


def test_the_loop_is_idle_for_as_long_as_it_was_busy_while_kafka_clients_are_active() -> None:
    assert all(pause >= 2 * 0.0015 for pause in pauses(0.0015, kafka_request))


def test_turns_are_not_paced_without_kafka_clients() -> None:
    turns = 500
    assert sum(pauses(60.0, lambda load: None, turns)) < (turns - 1) * PAUSE_MAX_S


def test_turns_make_progress_if_kafka_clients_keep_the_loop_busy() -> None:
    # Without a limit, each pause would be two minutes.
    found = pauses(60.0, kafka_request, turns=3 * TURNS_MAX)
    assert max(found) < 5
    assert sum(pause >= PAUSE_MAX_S for pause in found) == 3


def test_kafka_clients_are_no_longer_active_after_a_while() -> None:
    def only_first(load: Load) -> None:
        load.kafka_requests = 1

    paced = [pause for pause in pauses(60.0, only_first, turns=100) if pause >= PAUSE_MAX_S]
    # Twice as many as possible, because the machine may be slow.
    assert 1 <= len(paced) <= 2 * KAFKA_ACTIVE_S / PAUSE_MAX_S
