"""TurnQueue: one callback per iteration of the event loop, in order, even if one fails."""

import asyncio

from moldau.http.turn_queue import TurnQueue


def test_callbacks_take_turns_with_other_work() -> None:
    async def run() -> list[object]:
        turns, seen, loop = TurnQueue(), list[object](), asyncio.get_running_loop()

        def count(iteration: int) -> None:
            seen.append(iteration)
            if iteration < 3:
                loop.call_soon(count, iteration + 1)

        for name in "abc":
            turns.add(lambda name=name: seen.append(name))  # type: ignore[misc]
        loop.call_soon(count, 1)
        await asyncio.sleep(0.01)
        return seen

    assert asyncio.run(run()) == ["a", 1, "b", 2, "c", 3]


def test_a_callback_that_fails_does_not_stop_the_others() -> None:
    async def run() -> tuple[list[str], int]:
        turns, seen, failures = TurnQueue(), list[str](), list[object]()
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: failures.append(context))

        def fail() -> None:
            raise ValueError("broken")

        turns.add(fail)
        turns.add(lambda: seen.append("later"))
        await asyncio.sleep(0.01)
        return seen, len(failures)

    assert asyncio.run(run()) == (["later"], 1)
