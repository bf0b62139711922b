"""Work that goes on when its caller is cancelled."""

import asyncio

import pytest

from moldau.concurrency.tasks import run_uncancelled


@pytest.mark.parametrize("fails", [False, True])
def test_a_cancelled_caller_stops_after_the_work_has_ended(fails: bool) -> None:
    ended = []

    async def work() -> None:
        await asyncio.sleep(0.01)
        ended.append(True)
        if fails:
            raise ValueError

    async def body() -> None:
        task = asyncio.create_task(run_uncancelled(work()))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended

    asyncio.run(body())


def test_an_error_of_the_work_is_raised() -> None:
    async def work() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        asyncio.run(run_uncancelled(work()))
