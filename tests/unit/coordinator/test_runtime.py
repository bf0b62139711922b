"""The coordinator runtime: order, atomicity, delayed responses, and loss of leadership."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from moldau.coordinator import CoordinatorResult
from moldau.coordinator.runtime import CoordinatorRuntime
from moldau.errors import InvalidRequestError, NotControllerError, RequestTimedOutError, StorageError


class Counter:
    """A state with all appended numbers."""

    def __init__(self, numbers: Sequence[int] = ()) -> None:
        self.numbers = list(numbers)

    def apply(self, records: Sequence[int], end_offset: int) -> None:
        self.numbers += records
        assert len(self.numbers) == end_offset


class GatedLog:
    """A log whose appends wait until the test releases them, one by one."""

    def __init__(self, *, gated: bool = False) -> None:
        self.batches: list[list[int]] = []
        self.gate = asyncio.Semaphore(0) if gated else None
        self.error: Exception | None = None
        self.appending = 0

    async def append(self, records: Sequence[int]) -> int:
        self.appending += 1
        assert self.appending == 1, "appends do not overlap"
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


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        await scenario()

    asyncio.run(main())


async def run_pending_tasks() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


class DoubledWrite:
    """Writes every number twice and applies its negative."""

    def __init__(self, log: GatedLog) -> None:
        self.log = log

    async def append(self, records: Sequence[int]) -> int:
        return await self.log.append([*records, *records])

    def apply(self, state: Counter, records: Sequence[int], end_offset: int) -> None:
        state.apply([-each for each in (*records, *records)], end_offset)


def add(*numbers: int) -> Callable[[Counter], CoordinatorResult[int, list[int]]]:
    """Returns an operation that appends numbers and responds with all earlier ones."""
    return lambda state: CoordinatorResult(numbers, list(state.numbers))


def read(state: Counter) -> CoordinatorResult[int, list[int]]:
    return CoordinatorResult((), list(state.numbers))


def reject(state: Counter) -> CoordinatorResult[int, list[int]]:
    raise InvalidRequestError(f"there are {len(state.numbers)}")


def start(runtime: Runtime, operation: Callable[[Counter], CoordinatorResult[int, Any]]) -> "asyncio.Task[Any]":
    return asyncio.get_running_loop().create_task(runtime.submit(operation))


def test_a_response_is_sent_when_its_records_are_committed() -> None:
    async def scenario() -> None:
        log = GatedLog()
        runtime = loaded(log)
        first, second = start(runtime, add(1, 2)), start(runtime, add(3))
        await run_pending_tasks()
        assert log.batches == [[1, 2], [3]], "each operation is one batch"
        assert not first.done()
        runtime.update_committed_offset(1)
        await run_pending_tasks()
        assert not first.done(), "only half of its records are committed"
        runtime.update_committed_offset(2)
        await run_pending_tasks()
        assert first.result() == []
        assert not second.done()
        runtime.update_committed_offset(3)
        assert await second == [1, 2]

    run(scenario)


def test_an_operation_can_have_its_own_write() -> None:
    async def scenario() -> None:
        log = GatedLog()
        runtime = loaded(log)
        doubled = runtime.schedule(add(1, 2), write=DoubledWrite(log))
        seen = start(runtime, add(3))
        await run_pending_tasks()
        assert log.batches == [[1, 2, 1, 2], [3]]
        runtime.update_committed_offset(3)
        assert not doubled.done()
        runtime.update_committed_offset(5)
        assert await doubled == []
        assert await seen == [-1, -2, -1, -2]

    run(scenario)


def test_a_failed_write_applies_nothing() -> None:
    async def scenario() -> None:
        log = GatedLog()
        log.error = StorageError("disk full")
        runtime = loaded(log)
        with pytest.raises(StorageError):
            await runtime.schedule(add(1), write=DoubledWrite(log))
        assert await runtime.submit(read) == []

    run(scenario)


def test_an_operation_sees_appended_uncommitted_records() -> None:
    async def scenario() -> None:
        runtime = loaded(GatedLog())
        start(runtime, add(1))
        second = start(runtime, add(2))
        await run_pending_tasks()
        runtime.update_committed_offset(2)
        assert await second == [1]

    run(scenario)


def test_a_read_waits_for_the_last_record_it_could_have_seen() -> None:
    async def scenario() -> None:
        runtime = loaded(GatedLog())
        assert await runtime.submit(read) == [], "without uncommitted records a read does not wait"
        start(runtime, add(1))
        seen = start(runtime, read)
        await run_pending_tasks()
        assert not seen.done()
        runtime.update_committed_offset(1)
        assert await seen == [1]

    run(scenario)


def test_an_exception_waits_like_a_response() -> None:
    async def scenario() -> None:
        runtime = loaded(GatedLog())
        start(runtime, add(1))
        refused = start(runtime, reject)
        await run_pending_tasks()
        assert not refused.done()
        runtime.update_committed_offset(1)
        with pytest.raises(InvalidRequestError, match="there are 1"):
            await refused

    run(scenario)


def test_operations_queue_behind_an_append() -> None:
    async def scenario() -> None:
        log = GatedLog(gated=True)
        assert log.gate is not None
        runtime = loaded(log)
        tasks = [start(runtime, add(number)) for number in range(5)]
        await run_pending_tasks()
        assert log.batches == []
        for _ in range(5):
            log.gate.release()
            await run_pending_tasks()
        assert log.batches == [[0], [1], [2], [3], [4]]
        runtime.update_committed_offset(5)
        assert [await task for task in tasks] == [list(range(number)) for number in range(5)]

    run(scenario)


def test_responses_are_sent_in_the_order_of_their_offsets() -> None:
    async def scenario() -> None:
        runtime = loaded(GatedLog())
        left: list[int] = []

        async def submit(number: int) -> None:
            await runtime.submit(add(number) if number % 2 else read)
            left.append(number)

        tasks = [asyncio.get_running_loop().create_task(submit(number)) for number in range(1, 9)]
        await run_pending_tasks()
        for offset in range(1, 5):
            runtime.update_committed_offset(offset)
            await run_pending_tasks()
        await asyncio.gather(*tasks)
        assert left == list(range(1, 9))

    run(scenario)


def test_a_failed_append_changes_nothing_and_later_ones_can_succeed() -> None:
    async def scenario() -> None:
        log = GatedLog()
        runtime = loaded(log)
        log.error = StorageError("no space left")
        with pytest.raises(StorageError, match="no space left"):
            await runtime.submit(add(1))
        log.error = None
        second = start(runtime, add(2))
        await run_pending_tasks()
        runtime.update_committed_offset(1)
        assert await second == [], "the failed operation changed nothing"

    run(scenario)


def test_unloading_fails_parked_running_and_queued_operations() -> None:
    async def scenario() -> None:
        log = GatedLog(gated=True)
        assert log.gate is not None
        runtime = loaded(log)
        parked, appending, queued = (start(runtime, add(number)) for number in range(3))
        await run_pending_tasks()
        log.gate.release()
        await run_pending_tasks()
        assert log.batches == [[0]]
        runtime.unload(NotControllerError("another leads"))
        for task in (parked, appending, queued):
            with pytest.raises(NotControllerError, match="another leads"):
                await task
        with pytest.raises(NotControllerError, match="not here"):
            await runtime.submit(read)

    run(scenario)


def test_operations_with_appended_records_get_the_in_doubt_error() -> None:
    async def scenario() -> None:
        log = GatedLog(gated=True)
        assert log.gate is not None
        runtime = loaded(log)
        parked, parked_read, appending, queued = (
            start(runtime, operation) for operation in (add(0), read, add(1), add(2))
        )
        await run_pending_tasks()
        log.gate.release()
        await run_pending_tasks()
        assert log.batches == [[0]]
        runtime.unload(NotControllerError("another leads"), in_doubt_error=RequestTimedOutError("who knows"))
        await run_pending_tasks()
        assert [type(each.exception()) for each in (parked, parked_read, appending, queued)] == [
            RequestTimedOutError,
            NotControllerError,
            RequestTimedOutError,
            NotControllerError,
        ]

    run(scenario)


def test_a_reloaded_state_gets_no_records_of_an_earlier_append() -> None:
    async def scenario() -> None:
        log = GatedLog(gated=True)
        assert log.gate is not None
        runtime = loaded(log)
        late = start(runtime, add(7))
        await run_pending_tasks()
        runtime.unload(NotControllerError("another leads"))
        runtime.load(Counter([7]), 1)
        log.gate.release()
        with pytest.raises(NotControllerError):
            await late
        assert await runtime.submit(read) == [7]

    run(scenario)


def test_cancelling_the_caller_does_not_undo_a_running_operation() -> None:
    async def scenario() -> None:
        log = GatedLog(gated=True)
        assert log.gate is not None
        runtime = loaded(log)
        impatient = start(runtime, add(1))
        await run_pending_tasks()
        impatient.cancel()
        await run_pending_tasks()
        log.gate.release()
        seen = start(runtime, read)
        await run_pending_tasks()
        assert log.batches == [[1]]
        runtime.update_committed_offset(1)
        assert await seen == [1], "the state matches the log"

    run(scenario)


def test_cancelling_a_queued_operation_skips_it() -> None:
    async def scenario() -> None:
        log = GatedLog(gated=True)
        assert log.gate is not None
        runtime = loaded(log)
        first, second = start(runtime, add(1)), start(runtime, add(2))
        await run_pending_tasks()
        second.cancel()
        await run_pending_tasks()
        log.gate.release()
        log.gate.release()
        await run_pending_tasks()
        runtime.update_committed_offset(1)
        await first
        assert log.batches == [[1]]

    run(scenario)


def test_a_state_that_fails_to_apply_its_records_is_unloaded() -> None:
    class Broken(Counter):
        def apply(self, records: Sequence[int], end_offset: int) -> None:
            raise ZeroDivisionError

    async def scenario() -> None:
        runtime: Runtime = CoordinatorRuntime(GatedLog(), not_loaded_error=lambda: NotControllerError("not here"))
        runtime.load(Broken(), 0)
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
        with pytest.raises(ZeroDivisionError):
            await runtime.submit(add(1))
        with pytest.raises(NotControllerError):
            await runtime.submit(read)

    run(scenario)


def test_closing_waits_for_the_append_in_progress() -> None:
    async def scenario() -> None:
        log = GatedLog(gated=True)
        assert log.gate is not None
        runtime = loaded(log)
        task = start(runtime, add(1))
        await run_pending_tasks()
        closing = asyncio.get_running_loop().create_task(runtime.close(NotControllerError("closing")))
        await run_pending_tasks()
        assert not closing.done()
        log.gate.release()
        await closing
        with pytest.raises(NotControllerError, match="closing"):
            await task

    run(scenario)


def test_a_response_with_a_lower_required_offset_does_not_wait_for_earlier_records() -> None:
    def read_below(offset: int) -> Callable[[Counter], CoordinatorResult[int, int]]:
        return lambda state: CoordinatorResult((), offset, min_committed_offset=offset)

    async def scenario() -> None:
        runtime = loaded(GatedLog())
        first, second = start(runtime, add(1)), start(runtime, add(2, 3))
        nothing, one, two, all_ = (start(runtime, read_below(offset)) for offset in (0, 1, 2, 9))
        everything = start(runtime, read)
        await run_pending_tasks()
        assert [each.done() for each in (nothing, one, two, all_, everything)] == [True] + [False] * 4
        runtime.update_committed_offset(1)
        await run_pending_tasks()
        assert [each.done() for each in (first, one, second, two, all_)] == [True, True, False, False, False]
        runtime.update_committed_offset(2)
        await run_pending_tasks()
        assert [each.done() for each in (second, two, all_)] == [False, True, False]
        runtime.update_committed_offset(3)
        assert await asyncio.gather(second, all_, everything) == [[1], 9, [1, 2, 3]]

    run(scenario)


def test_a_failure_to_apply_records_is_reported() -> None:
    async def scenario() -> None:
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

    run(scenario)
