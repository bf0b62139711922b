"""The decision runtime: order, atomicity, no reply before it is safe, a clean end when leadership is lost."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from moldau.coordinator import CoordinatorResult
from moldau.coordinator.runtime import CoordinatorRuntime
from moldau.errors import InvalidRequestError, NotControllerError, RequestTimedOutError, StorageError


class Counter:
    """A state to decide on: the numbers written so far."""

    def __init__(self, numbers: Sequence[int] = ()) -> None:
        self.numbers = list(numbers)

    def apply(self, records: Sequence[int], end_offset: int) -> None:
        self.numbers += records
        assert len(self.numbers) == end_offset


class GatedLog:
    """A log whose appends wait until they are let through, one by one."""

    def __init__(self, *, gated: bool = False) -> None:
        self.batches: list[list[int]] = []
        self.gate = asyncio.Semaphore(0) if gated else None
        self.error: Exception | None = None
        self.appending = 0

    async def append(self, records: Sequence[int]) -> int:
        self.appending += 1
        assert self.appending == 1, "appends of one log come one after the other"
        try:
            if self.gate is not None:
                await self.gate.acquire()
            if self.error is not None:
                raise self.error
            self.batches.append(list(records))
            return sum(map(len, self.batches))
        finally:
            self.appending -= 1


Runtime = CoordinatorRuntime[Counter, int]


def loaded(log: GatedLog) -> Runtime:
    runtime: Runtime = CoordinatorRuntime(log, not_loaded_error=lambda: NotControllerError("not here"))
    runtime.load(Counter(), 0)
    return runtime


def run(story: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        await story()

    asyncio.run(main())


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def add(*numbers: int) -> Callable[[Counter], CoordinatorResult[int, list[int]]]:
    """Writes the numbers; the reply is all that was there before."""
    return lambda state: CoordinatorResult(numbers, list(state.numbers))


def read(state: Counter) -> CoordinatorResult[int, list[int]]:
    return CoordinatorResult((), list(state.numbers))


def refuse(state: Counter) -> CoordinatorResult[int, list[int]]:
    raise InvalidRequestError(f"there are {len(state.numbers)}")


def start(runtime: Runtime, decide: Callable[[Counter], CoordinatorResult[int, Any]]) -> "asyncio.Task[Any]":
    return asyncio.get_running_loop().create_task(runtime.submit(decide))


def test_a_reply_leaves_when_its_records_are_committed_and_not_before() -> None:
    async def story() -> None:
        log = GatedLog()
        runtime = loaded(log)
        first, second = start(runtime, add(1, 2)), start(runtime, add(3))
        await settle()
        assert log.batches == [[1, 2], [3]], "each decision is one batch"
        assert not first.done()
        runtime.update_committed_offset(1)
        await settle()
        assert not first.done(), "half of its records are not enough"
        runtime.update_committed_offset(2)
        await settle()
        assert first.result() == []
        assert not second.done()
        runtime.update_committed_offset(3)
        assert await second == [1, 2]

    run(story)


def test_a_decision_builds_on_records_that_are_appended_and_not_yet_committed() -> None:
    async def story() -> None:
        runtime = loaded(GatedLog())
        start(runtime, add(1))
        second = start(runtime, add(2))
        await settle()
        runtime.update_committed_offset(2)
        assert await second == [1]

    run(story)


def test_a_read_waits_for_the_newest_record_it_could_have_seen() -> None:
    async def story() -> None:
        runtime = loaded(GatedLog())
        assert await runtime.submit(read) == [], "with nothing in flight it waits for nothing"
        start(runtime, add(1))
        seen = start(runtime, read)
        await settle()
        assert not seen.done()
        runtime.update_committed_offset(1)
        assert await seen == [1]

    run(story)


def test_a_refusal_waits_too_because_it_tells_of_state() -> None:
    async def story() -> None:
        runtime = loaded(GatedLog())
        start(runtime, add(1))
        refused = start(runtime, refuse)
        await settle()
        assert not refused.done()
        runtime.update_committed_offset(1)
        with pytest.raises(InvalidRequestError, match="there are 1"):
            await refused

    run(story)


def test_decisions_that_come_while_an_append_awaits_are_made_after_it_in_order() -> None:
    async def story() -> None:
        log = GatedLog(gated=True)
        assert log.gate is not None
        runtime = loaded(log)
        tasks = [start(runtime, add(number)) for number in range(5)]
        await settle()
        assert log.batches == []
        for _ in range(5):
            log.gate.release()
            await settle()
        assert log.batches == [[0], [1], [2], [3], [4]]
        runtime.update_committed_offset(5)
        assert [await task for task in tasks] == [list(range(number)) for number in range(5)]

    run(story)


def test_replies_leave_in_the_order_of_their_offsets() -> None:
    async def story() -> None:
        runtime = loaded(GatedLog())
        left: list[int] = []

        async def submit(number: int) -> None:
            await runtime.submit(add(number) if number % 2 else read)
            left.append(number)

        tasks = [asyncio.get_running_loop().create_task(submit(number)) for number in range(1, 9)]
        await settle()
        for offset in range(1, 5):
            runtime.update_committed_offset(offset)
            await settle()
        await asyncio.gather(*tasks)
        assert left == list(range(1, 9))

    run(story)


def test_an_append_that_fails_changes_nothing_and_later_ones_may_succeed() -> None:
    async def story() -> None:
        log = GatedLog()
        runtime = loaded(log)
        log.error = StorageError("no space left")
        with pytest.raises(StorageError, match="no space left"):
            await runtime.submit(add(1))
        log.error = None
        second = start(runtime, add(2))
        await settle()
        runtime.update_committed_offset(1)
        assert await second == [], "the failed decision left no trace"

    run(story)


def test_loss_of_leadership_fails_everything_parked_appending_and_queued() -> None:
    async def story() -> None:
        log = GatedLog(gated=True)
        assert log.gate is not None
        runtime = loaded(log)
        parked, appending, queued = (start(runtime, add(number)) for number in range(3))
        await settle()
        log.gate.release()
        await settle()
        assert log.batches == [[0]]
        runtime.unload(NotControllerError("another leads"))
        for task in (parked, appending, queued):
            with pytest.raises(NotControllerError, match="another leads"):
                await task
        with pytest.raises(NotControllerError, match="not here"):
            await runtime.submit(read)

    run(story)


def test_changes_that_the_next_leader_may_commit_are_told_apart_from_what_was_never_begun() -> None:
    async def story() -> None:
        log = GatedLog(gated=True)
        assert log.gate is not None
        runtime = loaded(log)
        parked, parked_read, appending, queued = (
            start(runtime, decide) for decide in (add(0), read, add(1), add(2))
        )
        await settle()
        log.gate.release()
        await settle()
        assert log.batches == [[0]]
        runtime.unload(NotControllerError("another leads"), in_doubt_error=RequestTimedOutError("who knows"))
        await settle()
        assert [type(each.exception()) for each in (parked, parked_read, appending, queued)] == [
            RequestTimedOutError,
            NotControllerError,
            RequestTimedOutError,
            NotControllerError,
        ]

    run(story)


def test_after_loss_the_state_is_loaded_again_and_an_old_append_is_not_applied_to_it() -> None:
    async def story() -> None:
        log = GatedLog(gated=True)
        assert log.gate is not None
        runtime = loaded(log)
        late = start(runtime, add(7))
        await settle()
        runtime.unload(NotControllerError("another leads"))
        runtime.load(Counter([7]), 1)
        log.gate.release()
        with pytest.raises(NotControllerError):
            await late
        assert await runtime.submit(read) == [7]

    run(story)


def test_a_caller_that_gives_up_does_not_undo_what_was_decided() -> None:
    async def story() -> None:
        log = GatedLog(gated=True)
        assert log.gate is not None
        runtime = loaded(log)
        impatient = start(runtime, add(1))
        await settle()
        impatient.cancel()
        await settle()
        log.gate.release()
        seen = start(runtime, read)
        await settle()
        assert log.batches == [[1]]
        runtime.update_committed_offset(1)
        assert await seen == [1], "the state and the log agree"

    run(story)


def test_a_caller_that_gives_up_before_its_turn_has_decided_nothing() -> None:
    async def story() -> None:
        log = GatedLog(gated=True)
        assert log.gate is not None
        runtime = loaded(log)
        first, second = start(runtime, add(1)), start(runtime, add(2))
        await settle()
        second.cancel()
        await settle()
        log.gate.release()
        log.gate.release()
        await settle()
        runtime.update_committed_offset(1)
        await first
        assert log.batches == [[1]]

    run(story)


def test_a_state_that_cannot_take_its_own_records_is_never_decided_on_again() -> None:
    class Broken(Counter):
        def apply(self, records: Sequence[int], end_offset: int) -> None:
            raise ZeroDivisionError

    async def story() -> None:
        runtime: Runtime = CoordinatorRuntime(
            GatedLog(), not_loaded_error=lambda: NotControllerError("not here")
        )
        runtime.load(Broken(), 0)
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
        with pytest.raises(ZeroDivisionError):
            await runtime.submit(add(1))
        with pytest.raises(NotControllerError):
            await runtime.submit(read)

    run(story)


def test_closing_waits_for_the_append_under_way() -> None:
    async def story() -> None:
        log = GatedLog(gated=True)
        assert log.gate is not None
        runtime = loaded(log)
        task = start(runtime, add(1))
        await settle()
        closing = asyncio.get_running_loop().create_task(runtime.close(NotControllerError("closing")))
        await settle()
        assert not closing.done()
        log.gate.release()
        await closing
        with pytest.raises(NotControllerError, match="closing"):
            await task

    run(story)


def test_a_reply_that_needs_less_does_not_wait_for_what_was_decided_before_it() -> None:
    def needs(offset: int) -> Callable[[Counter], CoordinatorResult[int, int]]:
        return lambda state: CoordinatorResult((), offset, min_committed_offset=offset)

    async def story() -> None:
        runtime = loaded(GatedLog())
        first, second = start(runtime, add(1)), start(runtime, add(2, 3))
        nothing, one, two, all_ = (start(runtime, needs(offset)) for offset in (0, 1, 2, 9))
        everything = start(runtime, read)
        await settle()
        assert [each.done() for each in (nothing, one, two, all_, everything)] == [True] + [False] * 4
        runtime.update_committed_offset(1)
        await settle()
        assert [each.done() for each in (first, one, second, two, all_)] == [True, True, False, False, False]
        runtime.update_committed_offset(2)
        await settle()
        assert [each.done() for each in (second, two, all_)] == [False, True, False]
        runtime.update_committed_offset(3)
        assert await asyncio.gather(second, all_, everything) == [[1], 9, [1, 2, 3]]

    run(story)


def test_records_that_the_state_cannot_take_are_told_of_and_nothing_is_decided_any_more() -> None:
    async def story() -> None:
        failures: list[BaseException] = []
        runtime: Runtime = CoordinatorRuntime(
            GatedLog(), not_loaded_error=lambda: NotControllerError("not here"), on_failure=failures.append
        )
        runtime.load(Counter([7]), 0)
        with pytest.raises(AssertionError):
            await runtime.submit(add(1))
        assert not runtime.is_loaded
        assert [type(each) for each in failures] == [AssertionError]
        await runtime.close(NotControllerError("closed"))

    run(story)
