"""A coroutine that is started at once behaves like a task, except that it has begun."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from moldau.concurrency.eager import gather_eagerly, start_eagerly


async def _outcome(coroutine: Coroutine[Any, Any, Any]) -> tuple[list[tuple[Any, BaseException | None]], bool]:
    """What `done` was told, and whether the coroutine needed a task."""
    told: list[tuple[Any, BaseException | None]] = []
    task = start_eagerly(coroutine, lambda result, error: told.append((result, error)))
    if task is not None:
        await asyncio.wait([task])
        await asyncio.sleep(0)
    return told, task is not None


def test_what_never_waits_is_done_before_the_call_returns() -> None:
    async def quick() -> int:
        return 7

    assert asyncio.run(_outcome(quick())) == ([(7, None)], False)


def test_what_waits_goes_on_as_a_task() -> None:
    async def slow() -> int:
        total = 0
        for delay_s in (0, 0.001, 0, 0.001):
            await asyncio.sleep(delay_s)
            total += 1
        return total

    assert asyncio.run(_outcome(slow())) == ([(4, None)], True)


def test_errors_before_and_after_the_first_wait_are_told() -> None:
    async def fails(wait: bool) -> None:
        if wait:
            await asyncio.sleep(0)
        raise ValueError("no")

    for wait in (False, True):
        [(result, error)], waited = asyncio.run(_outcome(fails(wait)))
        assert result is None
        assert isinstance(error, ValueError)
        assert waited is wait


def test_one_awaited_failure_after_the_other_reaches_the_coroutine() -> None:
    async def catches() -> list[str]:
        caught = []
        for name in "abc":
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            asyncio.get_running_loop().call_soon(future.set_exception, KeyError(name))
            try:
                await future
            except KeyError as error:
                caught.append(error.args[0])
        await asyncio.sleep(0)
        return caught

    assert asyncio.run(_outcome(catches())) == ([(["a", "b", "c"], None)], True)


def test_an_awaited_failure_reaches_the_coroutine() -> None:
    async def catches() -> str:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(future.set_exception, KeyError("x"))
        try:
            await future
        except KeyError:
            return "caught"
        return "missed"

    assert asyncio.run(_outcome(catches())) == ([("caught", None)], True)


def test_a_cancelled_one_cleans_up_even_if_its_task_never_ran() -> None:
    async def main() -> list[str]:
        seen: list[str] = []

        async def careful() -> None:
            try:
                await asyncio.sleep(60)
            finally:
                seen.append("cleaned up")

        task = start_eagerly(careful(), lambda _, error: seen.append(type(error).__name__))
        assert task is not None
        task.cancel()
        await asyncio.wait([task])
        await asyncio.sleep(0)
        return seen

    assert asyncio.run(main()) == ["cleaned up", "CancelledError"]


def test_gathering_keeps_the_order_of_results() -> None:
    async def main() -> list[str]:
        async def wait(result: str, turns: int) -> str:
            for _ in range(turns):
                await asyncio.sleep(0)
            return result

        return await gather_eagerly([wait("a", 2), wait("b", 0), wait("c", 1)])

    assert asyncio.run(main()) == ["a", "b", "c"]


def test_gathering_creates_tasks_only_for_coroutines_that_suspend() -> None:
    async def main() -> int:
        async def immediate() -> int:
            return len(asyncio.all_tasks())

        return max(await gather_eagerly(immediate() for _ in range(3)))

    assert asyncio.run(main()) == 1


def test_gathering_raises_the_error_of_a_coroutine() -> None:
    async def main() -> None:
        async def fail() -> None:
            await asyncio.sleep(0)
            raise KeyError("x")

        await gather_eagerly([asyncio.sleep(0), fail()])

    with pytest.raises(KeyError):
        asyncio.run(main())
