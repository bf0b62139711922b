"""RecordListener: what each ack mode delivers how often if the handler fails or the consumer dies."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from moldau.client import (
    Acknowledgement,
    Admin,
    CommitFailedError,
    Consumer,
    ConsumerRecord,
    DeadLetterTopic,
    HandlerFailedError,
    Producer,
    RecordListener,
    TopicPartition,
)
from moldau.pipelines.records.redrive import original_record
from moldau.testing import Broker
from support.topics import unique

TIMEOUT_S = 60
QUICK = {"commit_interval_ms": 20, "retry_delay_ms": 1}


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(settings={"group.initial.rebalance.delay.ms": "0"}) as broker:
        yield broker


class Topic:
    """A topic with the records 0 to 9, and a group that reads it."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.name = unique("listened")
        self.group = unique("group")
        self.handled: list[int] = []

    @asynccontextmanager
    async def consumer(self, **settings: Any) -> AsyncIterator[Consumer]:
        options = {"group_id": self.group, "auto_offset_reset": "earliest", "enable_auto_commit": False}
        async with Consumer(self.bootstrap, **(options | settings)) as consumer:
            yield consumer

    async def listen(self, handler: Callable[..., Any], stop_after: int = 10, **options: Any) -> None:
        """Runs a listener until it has called the handler for this many records."""
        async with self.consumer() as consumer:
            listener = RecordListener(consumer, [self.name], handler, **(QUICK | options))

            async def watch() -> None:
                while len(self.handled) < stop_after:
                    await asyncio.sleep(0.005)
                listener.stop()

            watcher = asyncio.create_task(watch())
            try:
                await listener.run()
            finally:
                watcher.cancel()

    def handle(self, record: ConsumerRecord) -> None:
        self.handled.append(number(record))

    async def committed(self) -> int | None:
        partition = TopicPartition(self.name, 0)
        async with self.consumer() as consumer:
            found = (await consumer.committed([partition]))[partition]
        return None if found is None else found.offset


def number(record: ConsumerRecord) -> int:
    assert record.value is not None
    return int(record.value)


def run(broker: Broker, test: Callable[[Topic], Coroutine[Any, Any, None]]) -> None:
    async def prepare() -> None:
        topic = Topic(broker.bootstrap)
        async with Admin(broker.bootstrap) as admin, Producer(broker.bootstrap) as producer:
            await admin.create_topic(topic.name)
            for value in range(10):
                await producer.send(topic.name, str(value).encode(), key=b"key", headers=[("kept", b"1")])
        async with asyncio.timeout(TIMEOUT_S):
            await test(topic)

    asyncio.run(prepare())


# Every mode without errors


def test_auto_mode_commits_what_was_handled(broker: Broker) -> None:
    async def test(topic: Topic) -> None:
        await topic.listen(topic.handle, stop_after=10)
        assert topic.handled == list(range(10))
        assert await topic.committed() == 10

    run(broker, test)


def test_auto_mode_commits_in_intervals(broker: Broker) -> None:
    async def test(topic: Topic) -> None:
        release = asyncio.Event()

        async def handle(record: ConsumerRecord) -> None:
            topic.handle(record)
            await asyncio.sleep(0.03)
            if number(record) == 5:
                await release.wait()

        listening = asyncio.create_task(topic.listen(handle))
        while await topic.committed() != 5:
            await asyncio.sleep(0.02)
        release.set()
        await listening
        assert await topic.committed() == 10

    run(broker, test)


def test_batch_mode_commits_after_every_batch(broker: Broker) -> None:
    async def test(topic: Topic) -> None:
        batches: list[list[int]] = []
        committed: list[int | None] = []

        async def handle(records: list[ConsumerRecord]) -> None:
            committed.append(await topic.committed())
            batches.append([number(each) for each in records])
            topic.handled += batches[-1]

        await topic.listen(handle, ack_mode="batch", max_batch_records=4, commit_interval_ms=60_000)
        assert topic.handled == list(range(10))
        assert max(map(len, batches)) <= 4
        starts = [batch[0] for batch in batches]
        assert committed == [None, *starts[1:]], "each batch was committed before the next one"

    run(broker, test)


def test_manual_mode_commits_in_any_order(broker: Broker) -> None:
    async def test(topic: Topic) -> None:
        acknowledgements: list[Acknowledgement] = []

        def handle(record: ConsumerRecord, acknowledgement: Acknowledgement) -> None:
            topic.handle(record)
            acknowledgements.append(acknowledgement)

        listening = asyncio.create_task(topic.listen(handle, stop_after=11, ack_mode="manual"))
        while len(acknowledgements) < 10:
            await asyncio.sleep(0.01)
        await acknowledgements[1].commit()
        assert await topic.committed() is None, "the first record is not acknowledged"
        await acknowledgements[0].commit()
        assert await topic.committed() == 2
        acknowledgements[2].acknowledge()
        while await topic.committed() != 3:
            await asyncio.sleep(0.01)
        await acknowledgements[2].commit()
        topic.handled.append(-1)
        await listening
        with pytest.raises(CommitFailedError):
            await acknowledgements[0].commit()

    run(broker, test)


def test_manual_mode_pauses_at_the_limit_and_resumes_on_acknowledgement(broker: Broker) -> None:
    async def test(topic: Topic) -> None:
        waiting: list[Acknowledgement] = []

        def handle(record: ConsumerRecord, acknowledgement: Acknowledgement) -> None:
            topic.handle(record)
            waiting.append(acknowledgement)

        listening = asyncio.create_task(topic.listen(handle, ack_mode="manual", max_unacked_records=3))
        while len(topic.handled) < 3:
            await asyncio.sleep(0.01)
        # Long enough for several commits and polls.
        await asyncio.sleep(0.3)
        assert topic.handled == [0, 1, 2]
        while len(topic.handled) < 10:
            if waiting:
                waiting.pop(0).acknowledge()
            await asyncio.sleep(0.01)
        await listening
        assert topic.handled == list(range(10))

    run(broker, test)


# Handlers that fail


@pytest.mark.parametrize("ack_mode", ["auto", "batch"])
def test_a_handler_is_called_again_until_it_succeeds(broker: Broker, ack_mode: str) -> None:
    async def test(topic: Topic) -> None:
        failures = [3, 3]

        def handle(given: ConsumerRecord | list[ConsumerRecord]) -> None:
            numbers = [number(each) for each in (given if isinstance(given, list) else [given])]
            if failures and failures[0] in numbers:
                raise ValueError(f"cannot handle {failures.pop()}")
            topic.handled += numbers

        await topic.listen(handle, ack_mode=ack_mode, retries=2)
        assert topic.handled == list(range(10))
        assert await topic.committed() == 10

    run(broker, test)


def test_stop_raises_an_error_and_keeps_the_record_for_the_next_run(broker: Broker) -> None:
    async def test(topic: Topic) -> None:
        def fail_at_three(record: ConsumerRecord) -> None:
            if number(record) == 3:
                raise ValueError("cannot handle 3")
            topic.handle(record)

        with pytest.raises(HandlerFailedError, match="offset 3") as failure:
            await topic.listen(fail_at_three, retries=1)
        assert isinstance(failure.value.__cause__, ValueError)
        assert await topic.committed() == 3
        await topic.listen(topic.handle)
        assert topic.handled == list(range(10))

    run(broker, test)


@pytest.mark.parametrize(("commit", "handled_again"), [("after", [3]), ("before", [])])
def test_a_listener_runs_again_where_it_has_stopped(broker: Broker, commit: Any, handled_again: list[int]) -> None:
    async def test(topic: Topic) -> None:
        def fail_once_at_three(record: ConsumerRecord) -> None:
            topic.handle(record)
            if topic.handled == [0, 1, 2, 3]:
                raise ValueError("cannot handle 3 yet")
            if number(record) == 9:
                listener.stop()

        async with topic.consumer() as consumer:
            listener = RecordListener(consumer, [topic.name], fail_once_at_three, commit=commit, retries=0)
            with pytest.raises(HandlerFailedError, match="offset 3"):
                await listener.run()
            await listener.run()
        assert topic.handled == [0, 1, 2, 3, *handled_again, 4, 5, 6, 7, 8, 9]
        assert await topic.committed() == 10

    run(broker, test)


def test_skip_continues_after_the_record(broker: Broker) -> None:
    async def test(topic: Topic) -> None:
        def fail_at_three(record: ConsumerRecord) -> None:
            if number(record) == 3:
                raise ValueError("cannot handle 3")
            topic.handle(record)

        await topic.listen(fail_at_three, stop_after=9, retries=0, on_failure="skip")
        assert topic.handled == [0, 1, 2, 4, 5, 6, 7, 8, 9]
        assert await topic.committed() == 10

    run(broker, test)


def test_dead_letters_have_the_record_and_the_error(broker: Broker) -> None:
    async def test(topic: Topic) -> None:
        def fail_at_three(record: ConsumerRecord) -> None:
            if number(record) == 3:
                raise ValueError("cannot handle 3")
            topic.handle(record)

        dead = unique("dead")
        async with Admin(topic.bootstrap) as admin, Producer(topic.bootstrap) as producer:
            await admin.create_topic(dead)
            await topic.listen(fail_at_three, stop_after=9, retries=0, on_failure=DeadLetterTopic(producer, dead))
        assert await topic.committed() == 10
        async with Consumer(topic.bootstrap) as consumer:
            consumer.assign([TopicPartition(dead, 0)])
            consumer.seek_to_beginning()
            [letter] = await consumer.poll(10_000)
        headers = dict(letter.headers)
        assert (letter.key, letter.value, headers["kept"]) == (b"key", b"3", b"1")
        assert headers["moldau.error.reason"] == b"handler_failed"
        assert headers["moldau.error.detail"] == b"ValueError: cannot handle 3"
        assert headers["moldau.error.pipeline"] == topic.group.encode()
        original = original_record(letter)
        assert original is not None, "`moldau pipeline redrive` understands it"
        assert (original.topic, original.partition, original.value) == (topic.name, 0, b"3")

    run(broker, test)


def test_a_record_whose_retries_are_interrupted_by_stop_is_kept(broker: Broker) -> None:
    async def test(topic: Topic) -> None:
        async with topic.consumer() as consumer:

            def fail_at_three(record: ConsumerRecord) -> None:
                if number(record) == 3:
                    listener.stop()
                    raise ValueError("the application stops")
                topic.handle(record)

            listener = RecordListener(consumer, [topic.name], fail_at_three, retries=3, on_failure="skip")
            await listener.run()
        assert topic.handled == [0, 1, 2]
        assert await topic.committed() == 3

    run(broker, test)


def test_a_dead_letter_that_cannot_be_written_is_not_acknowledged(broker: Broker) -> None:
    async def test(topic: Topic) -> None:
        def fail(record: ConsumerRecord) -> None:
            raise ValueError("cannot handle it")

        missing = DeadLetterTopic(Producer(topic.bootstrap), "never-started")
        with pytest.raises(Exception, match="not open"):
            await topic.listen(fail, retries=0, on_failure=missing)
        assert await topic.committed() is None

    run(broker, test)


# Consumers that die


async def die(topic: Topic, handler: Callable[..., Any], **options: Any) -> None:
    """Runs a listener whose process dies when the handler says so: nothing is committed after that."""
    async with topic.consumer() as consumer:
        listener = RecordListener(consumer, [topic.name], handler, **(QUICK | options))
        listener._commit_at_end = no_commit  # type: ignore[method-assign]
        with pytest.raises(Died):
            await listener.run()


async def no_commit() -> None:
    """A process that dies commits nothing."""


class Died(BaseException):
    pass


@pytest.mark.parametrize("ack_mode", ["auto", "batch"])
def test_records_that_were_handled_but_not_committed_are_handled_twice(broker: Broker, ack_mode: str) -> None:
    async def test(topic: Topic) -> None:
        def handle(given: ConsumerRecord | list[ConsumerRecord]) -> None:
            topic.handled += [number(each) for each in (given if isinstance(given, list) else [given])]
            if topic.handled[-1] >= 5:
                raise Died

        options = {"ack_mode": ack_mode, "commit_interval_ms": 60_000, "max_batch_records": 3}
        await die(topic, handle, **options)
        died_at = len(topic.handled)
        committed = await topic.committed() or 0
        assert committed < died_at
        await topic.listen(topic.handle, stop_after=died_at + 10 - committed)
        assert topic.handled == [*range(died_at), *range(committed, 10)], "at least once"

    run(broker, test)


def test_commit_before_handling_delivers_at_most_once(broker: Broker) -> None:
    async def test(topic: Topic) -> None:
        def handle(record: ConsumerRecord) -> None:
            topic.handle(record)
            if number(record) == 4:
                raise Died

        await die(topic, handle, commit="before", max_batch_records=7)
        committed = await topic.committed()
        assert committed is not None
        assert committed > 4
        await topic.listen(topic.handle, stop_after=5 + 10 - committed, commit="before")
        assert topic.handled == [*range(5), *range(committed, 10)], "each record at most once"

    run(broker, test)


def test_a_listener_that_stops_handles_what_it_has_committed(broker: Broker) -> None:
    async def test(topic: Topic) -> None:
        await topic.listen(topic.handle, stop_after=1, commit="before", max_batch_records=10)
        assert len(topic.handled) == await topic.committed()

    run(broker, test)


def test_a_revoked_partition_is_committed_and_its_window_forgotten(broker: Broker) -> None:
    async def test(topic: Topic) -> None:
        first_acknowledgements: list[Acknowledgement] = []
        taken_over = asyncio.Event()

        def keep(record: ConsumerRecord, acknowledgement: Acknowledgement) -> None:
            first_acknowledgements.append(acknowledgement)
            if number(record) < 4:
                acknowledgement.acknowledge()

        def take_over(record: ConsumerRecord) -> None:
            topic.handle(record)
            taken_over.set()

        async with topic.consumer(session_timeout_ms=10_000, heartbeat_interval_ms=50) as consumer:
            # Committed only because the partition is revoked.
            options = {"ack_mode": "manual", "commit_interval_ms": 60_000}
            listener = RecordListener(consumer, [topic.name], keep, **options)
            listening = asyncio.create_task(listener.run())
            while len(first_acknowledgements) < 10:
                await asyncio.sleep(0.01)
            # The assignor "range" gives the only partition to the member with the lowest id, so add members until it
            # moves.
            others = []
            while not taken_over.is_set():
                others.append(asyncio.create_task(topic.listen(take_over, stop_after=6)))
                await asyncio.wait([asyncio.create_task(taken_over.wait())], timeout=2)
            with pytest.raises(CommitFailedError):
                await first_acknowledgements[4].commit()
            await asyncio.gather(*others)
            listener.stop()
            await listening
        assert topic.handled == list(range(4, 10))

    run(broker, test)


# Arguments


def test_invalid_arguments_are_rejected(broker: Broker) -> None:
    async def test(topic: Topic) -> None:
        async with topic.consumer() as consumer, topic.consumer(enable_auto_commit=True) as committing:
            for options, message in (
                ({"ack_mode": "never"}, "never"),
                ({"commit": "during"}, "during"),
                ({"commit": "before", "retries": 1}, "no retries"),
                ({"commit": "before", "ack_mode": "manual"}, "no manual"),
                ({"on_failure": "ignore"}, "ignore"),
                ({"max_unacked_records": 0}, "at least 1"),
                ({"retry_delay_ms": -1}, "not negative"),
                ({"commit_interval_ms": 0}, "at least 1"),
                ({"retry_delay_ms": 200_000}, "max_poll_interval_ms"),
                ({"retries": 10, "retry_delay_ms": 60_000}, "max_poll_interval_ms"),
            ):
                with pytest.raises(ValueError, match=message):
                    RecordListener(consumer, [topic.name], topic.handle, **options)  # type: ignore[arg-type]
            with pytest.raises(ValueError, match="enable_auto_commit"):
                RecordListener(committing, [topic.name], topic.handle)

    run(broker, test)
