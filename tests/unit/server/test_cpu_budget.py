"""CPU-heavy work shares the event loop with other callbacks."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from moldau.server import cpu_budget as sharing
from moldau.server.cpu_budget import CpuBudget


class Work:
    """Each piece of work takes one second of loop time; an iteration has a budget of two."""

    def __init__(self) -> None:
        self.turns = CpuBudget()
        self.turn = 0
        self.done: list[tuple[int, int]] = []
        """Turns, and the numbers of the pieces that were done in them."""
        self._now_s = 0.0

    async def piece(self, number: int) -> int:
        def work() -> int:
            self._now_s += 1
            self.done.append((self.turn, number))
            return number

        return await self.turns.run(work)

    def run(self, story: Callable[[], Awaitable[None]], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sharing, "BUDGET_PER_ITERATION_S", 2.0)

        async def count() -> None:
            while True:
                self.turn += 1
                await asyncio.sleep(0)

        async def main() -> None:
            monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: self._now_s)
            counting = asyncio.ensure_future(count())
            await asyncio.sleep(0)
            await story()
            counting.cancel()

        asyncio.run(main())


def test_an_iteration_runs_work_in_order_up_to_its_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    work = Work()

    async def story() -> None:
        assert await asyncio.gather(*map(work.piece, range(7))) == list(range(7))

    work.run(story, monkeypatch)
    first = work.done[0][0]
    assert work.done == [(first + number // 2, number) for number in range(7)]


def test_new_work_does_not_overtake_queued_work(monkeypatch: pytest.MonkeyPatch) -> None:
    work = Work()

    async def story() -> None:
        pieces = [asyncio.ensure_future(work.piece(number)) for number in range(6)]
        await asyncio.sleep(0)
        await work.piece(6)
        await asyncio.gather(*pieces)

    work.run(story, monkeypatch)
    assert [number for _, number in work.done] == list(range(7))


def test_failed_or_cancelled_work_does_not_block_the_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    work = Work()

    def fails() -> None:
        raise ValueError("no")

    async def story() -> None:
        pieces = [asyncio.ensure_future(work.piece(number)) for number in range(5)]
        failing = asyncio.ensure_future(work.turns.run(fails))
        await asyncio.sleep(0)
        pieces[3].cancel()
        with pytest.raises(ValueError, match="no"):
            await failing
        await asyncio.gather(*pieces, return_exceptions=True)
        assert await work.piece(5) == 5

    work.run(story, monkeypatch)
    assert [number for _, number in work.done] == [0, 1, 2, 4, 5]
