"""The notifier wakes current waiters only; the serial executor runs jobs in order, each to its end."""

import asyncio

import pytest

from moldau.concurrency.backoff import exponential_backoff_ms
from moldau.concurrency.notifier import Notifier
from moldau.concurrency.serial_executor import SerialExecutor


class ClosedError(Exception):
    pass


def test_a_notification_wakes_all_current_waiters_and_no_later_one() -> None:
    async def main() -> None:
        notifier = Notifier()
        early = [asyncio.ensure_future(notifier.wait()) for _ in range(2)]
        await asyncio.sleep(0)
        notifier.notify_all()
        late = asyncio.ensure_future(notifier.wait())
        await asyncio.gather(*early)
        await asyncio.sleep(0)
        assert not late.done()
        late.cancel()

    asyncio.run(main())


def test_a_wait_ends_at_its_timeout() -> None:
    async def main() -> None:
        notifier = Notifier()
        await asyncio.wait_for(notifier.wait(1), 10)
        notifier.notify_all()

    asyncio.run(main())


def test_jobs_run_one_at_a_time_in_the_order_of_submission() -> None:
    async def main() -> None:
        events: list[str] = []
        executor = SerialExecutor(ClosedError, lambda: events.append("after"))

        async def job(name: str) -> str:
            events.append(f"{name} starts")
            await asyncio.sleep(0)
            events.append(f"{name} ends")
            return name

        results = [executor.submit(lambda name=name: job(name)) for name in ("first", "second")]
        assert await asyncio.gather(*results) == ["first", "second"]
        assert events == ["first starts", "first ends", "after", "second starts", "second ends", "after"]

    asyncio.run(main())


def test_a_cancelled_caller_does_not_interrupt_its_job() -> None:
    async def main() -> None:
        finished = asyncio.Event()
        executor = SerialExecutor(ClosedError, lambda: None)

        async def job() -> None:
            await asyncio.sleep(0)
            finished.set()

        result = executor.submit(job)
        await asyncio.sleep(0)
        result.cancel()
        await asyncio.wait_for(finished.wait(), 10)

    asyncio.run(main())


def test_a_closed_executor_fails_queued_jobs_and_finishes_the_running_one() -> None:
    async def main() -> None:
        executor = SerialExecutor(ClosedError, lambda: None)
        release = asyncio.Event()

        async def job() -> str:
            await release.wait()
            return "done"

        running, queued = executor.submit(job), executor.submit(job)
        await asyncio.sleep(0)
        closing = asyncio.ensure_future(executor.close())
        await asyncio.sleep(0)
        assert isinstance(queued.exception(), ClosedError)
        assert not closing.done()
        release.set()
        await closing
        assert running.result() == "done"
        with pytest.raises(ClosedError):
            await executor.submit(job)

    asyncio.run(main())


@pytest.mark.parametrize(("failures", "delay_ms"), [(1, 100), (2, 200), (4, 800), (5, 1000), (1000, 1000)])
def test_a_backoff_doubles_up_to_its_limit(failures: int, delay_ms: int) -> None:
    assert exponential_backoff_ms(failures, 100, 1000) == delay_ms
