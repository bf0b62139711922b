"""RecordListener: what each ack mode delivers how often if the handler fails or the consumer dies."""

import asyncio
import re
import time
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
    IllegalStateError,
    KafkaError,
    Producer,
    RebalanceInProgressError,
    RecordListener,
    RequestTimedOutError,
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

    async def listen(
        self, handler: Callable[..., Any], stop_after: int = 10, *, client_id: str = "moldau", **options: Any
    ) -> None:
        """Runs a listener until it has called the handler for this many records."""
        async with self.consumer(client_id=client_id) as consumer:
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


def test_manual_mode_pauses_at_the_limit_of_bytes(broker: Broker) -> None:
    async def test(topic: Topic) -> None:
        waiting: list[Acknowledgement] = []

        def handle(record: ConsumerRecord, acknowledgement: Acknowledgement) -> None:
            topic.handle(record)
            waiting.append(acknowledgement)

        # A key of 3 bytes, a value of 1, and a header of 5, all of which one poll returns.
        listening = asyncio.create_task(topic.listen(handle, ack_mode="manual", max_unacked_bytes=2 * 9 + 1))
        while len(topic.handled) < 3:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)
        for count in range(4, 11):
            assert len(topic.handled) == count - 1, "one record is handled for each that is acknowledged"
            waiting.pop(0).acknowledge()
            while len(topic.handled) < count:
                await asyncio.sleep(0.005)
        await listening
        assert topic.handled == list(range(10))

    run(broker, test)


def test_the_window_is_rebuilt_from_the_committed_offset(broker: Broker) -> None:
    async def test(topic: Topic) -> None:
        def handle(record: ConsumerRecord, acknowledgement: Acknowledgement) -> None:
            topic.handle(record)
            if number(record) not in (4, 6):
                acknowledgement.acknowledge()

        await topic.listen(handle, stop_after=8, ack_mode="manual", max_unacked_records=4)
        assert topic.handled == list(range(8)), "record 4 holds back four records"
        assert await topic.committed() == 4
        topic.handled.clear()
        await topic.listen(handle, stop_after=4, ack_mode="manual", max_unacked_records=4)
        assert topic.handled == [4, 5, 6, 7], "also those that were acknowledged out of order"

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

        not_started = DeadLetterTopic(Producer(topic.bootstrap), "never-started")
        with pytest.raises(Exception, match="not open"):
            await topic.listen(fail, retries=0, on_failure=not_started)
        async with Producer(topic.bootstrap, max_request_size=100) as producer:
            # The headers that describe the error make the record too large.
            too_large = DeadLetterTopic(producer, unique("dead"))
            async with Admin(topic.bootstrap) as admin:
                await admin.create_topic(too_large.topic)
            with pytest.raises(KafkaError, match="offset 0 on cannot be written to 'dead"):
                await topic.listen(fail, retries=0, on_failure=too_large)
        assert await topic.committed() is None

    run(broker, test)


def test_an_acknowledged_record_is_not_handled_again_if_its_handler_fails(broker: Broker) -> None:
    async def test(topic: Topic) -> None:
        def acknowledge_and_fail(record: ConsumerRecord, acknowledgement: Acknowledgement) -> None:
            topic.handle(record)
            acknowledgement.acknowledge()
            if number(record) == 3:
                raise ValueError("too late")

        options: dict[str, Any] = {"ack_mode": "manual", "retries": 2}
        with pytest.raises(HandlerFailedError, match="offset 3"):
            await topic.listen(acknowledge_and_fail, **options)
        assert topic.handled == [0, 1, 2, 3]
        assert await topic.committed() == 4
        await topic.listen(acknowledge_and_fail, on_failure="skip", **options)
        assert topic.handled == list(range(10))

    run(broker, test)


def test_a_handler_whose_commit_fails_has_handled_its_record(broker: Broker) -> None:
    async def test(topic: Topic) -> None:
        async def handle(record: ConsumerRecord, acknowledgement: Acknowledgement) -> None:
            topic.handle(record)
            await acknowledgement.commit()

        async with topic.consumer() as consumer:
            errors = [RebalanceInProgressError("the group is rebalancing"), RequestTimedOutError("no response")]
            listener = RecordListener(consumer, [topic.name], handle, ack_mode="manual", **QUICK)
            fail_commits(consumer, errors)
            asyncio.get_running_loop().call_later(0, stop_when, listener, lambda: len(topic.handled) == 10)
            await listener.run()
            assert not errors
        assert topic.handled == list(range(10))
        assert await topic.committed() == 10

    run(broker, test)


def test_a_cancelled_future_fails_the_handler_and_not_the_listener(broker: Broker) -> None:
    async def test(topic: Topic) -> None:
        async def handle(record: ConsumerRecord) -> None:
            if number(record) == 3:
                cancelled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                cancelled.cancel()
                await cancelled
            topic.handle(record)

        await topic.listen(handle, stop_after=9, retries=1, on_failure="skip")
        assert topic.handled == [0, 1, 2, 4, 5, 6, 7, 8, 9]
        with pytest.raises(HandlerFailedError):
            async with topic.consumer(group_id=unique("group")) as consumer:
                await RecordListener(consumer, [topic.name], handle, retries=0).run()

    run(broker, test)


def test_stop_ends_the_delay_before_a_retry(broker: Broker) -> None:
    async def test(topic: Topic) -> None:
        def fail(record: ConsumerRecord) -> None:
            topic.handle(record)
            raise ValueError("cannot handle it")

        async with asyncio.timeout(20):
            await topic.listen(fail, stop_after=1, retries=1, retry_delay_ms=200_000)
        assert topic.handled == [0]
        assert await topic.committed() is None

    run(broker, test)


def test_the_consumer_stays_in_its_group_during_retries(broker: Broker) -> None:
    async def test(topic: Topic) -> None:
        failing = [3, 3, 3, 3]

        def handle(record: ConsumerRecord) -> None:
            if failing and number(record) == failing[0]:
                failing.pop()
                raise ValueError("cannot handle 3 yet")
            topic.handle(record)

        # The retries take longer than the interval in which the consumer must poll.
        async with topic.consumer(max_poll_interval_ms=2_000, heartbeat_interval_ms=50) as consumer:
            generations: set[int] = set()

            def handle_in_generation(record: ConsumerRecord) -> None:
                generations.add(consumer.group_metadata().generation_id)
                handle(record)
                if number(record) == 9:
                    listener.stop()

            listener = RecordListener(
                consumer, [topic.name], handle_in_generation, commit_interval_ms=20, retries=4, retry_delay_ms=700
            )
            await listener.run()
        assert topic.handled == list(range(10))
        assert len(generations) == 1

    run(broker, test)


def test_a_record_that_waits_for_a_retry_moves_with_its_partition(broker: Broker) -> None:
    async def test(topic: Topic) -> None:
        attempts: list[int] = []

        def fail_at_three(record: ConsumerRecord) -> None:
            attempts.append(number(record))
            if number(record) == 3:
                raise ValueError("this process cannot handle 3")
            topic.handle(record)

        settings: dict[str, Any] = {"heartbeat_interval_ms": 50, "group_instance_id": "b"}
        async with (
            topic.consumer(**settings) as consumer,
            topic.consumer(**settings | {"group_instance_id": "a"}) as other,
        ):
            # The assignor "range" gives the only partition to the static member "a".
            failing = RecordListener(consumer, [topic.name], fail_at_three, retries=1, retry_delay_ms=100_000)
            listening = asyncio.create_task(failing.run())
            while attempts != [0, 1, 2, 3]:
                await asyncio.sleep(0.01)
            taking_over = RecordListener(other, [topic.name], topic.handle, **QUICK)
            asyncio.get_running_loop().call_later(0, stop_when, taking_over, lambda: len(topic.handled) == 10)
            async with asyncio.timeout(20):
                await taking_over.run()
            failing.stop()
            await listening
        assert attempts == [0, 1, 2, 3]
        assert topic.handled == list(range(10))
        assert await topic.committed() == 10

    run(broker, test)


def test_a_handler_that_never_returns_loses_its_partition(broker: Broker) -> None:
    async def test(topic: Topic) -> None:
        hanging, release = asyncio.Event(), asyncio.Event()

        async def hang_at_three(record: ConsumerRecord) -> None:
            topic.handle(record)
            if number(record) == 3:
                hanging.set()
                await release.wait()

        settings = {"heartbeat_interval_ms": 50, "max_poll_interval_ms": 500}
        async with topic.consumer(**settings) as consumer:
            listener = RecordListener(consumer, [topic.name], hang_at_three, **QUICK)
            listening = asyncio.create_task(listener.run())
            await hanging.wait()
            committed = await topic.committed() or 0
            await topic.listen(topic.handle, stop_after=4 + 10 - committed)
            assert topic.handled == [0, 1, 2, 3, *range(committed, 10)]
            release.set()
            # It joins the group again, and continues after the records of the other member.
            while not consumer.assignment:
                await asyncio.sleep(0.01)
            listener.stop()
            await listening
        assert topic.handled == [0, 1, 2, 3, *range(committed, 10)]
        assert await topic.committed() == 10, "its acknowledgement of record 3 came too late"

    run(broker, test)


def test_a_poll_that_rebalances_and_returns_records_loses_none(broker: Broker) -> None:
    async def test(topic: Topic) -> None:
        async with topic.consumer() as consumer:
            poll, rebalances = consumer.poll, 0

            async def rebalance_and_poll(timeout_ms: int, max_records: int | None = None) -> list[ConsumerRecord]:
                """Calls the listener's callback with another partition, as a rebalance does."""
                nonlocal rebalances
                records = await poll(timeout_ms, max_records)
                if records:
                    rebalances += 1
                    await listener._on_revoked([TopicPartition("another", 0)])
                return records

            listener = RecordListener(consumer, [topic.name], topic.handle, max_batch_records=4, **QUICK)
            consumer.poll = rebalance_and_poll  # type: ignore[method-assign, assignment]
            asyncio.get_running_loop().call_later(0, stop_when, listener, lambda: 9 in topic.handled)
            await listener.run()
        assert rebalances > 0
        assert topic.handled == list(range(10))

    run(broker, test)


# Commits that fail


def fail_commits(consumer: Consumer, errors: list[Exception]) -> list[dict[TopicPartition, Any]]:
    """Lets the next commits of a consumer fail with these errors. Returns the list of all offsets to commit."""
    commit = consumer.commit
    attempts: list[dict[TopicPartition, Any]] = []

    async def fail_or_commit(offsets: Any, **options: Any) -> None:
        attempts.append(offsets)
        if errors:
            raise errors.pop(0)
        await commit(offsets, **options)

    consumer.commit = fail_or_commit  # type: ignore[method-assign, assignment]
    return attempts


def stop_when(listener: RecordListener, condition: Callable[[], bool]) -> None:
    """Stops a listener as soon as a condition is met."""
    if condition():
        listener.stop()
    else:
        asyncio.get_running_loop().call_later(0.005, stop_when, listener, condition)


@pytest.mark.parametrize(
    ("ack_mode", "error"),
    [
        ("auto", RequestTimedOutError("no response")),
        ("manual", RequestTimedOutError("no response")),
        ("batch", RequestTimedOutError("no response")),
        ("batch", RebalanceInProgressError("the group is rebalancing")),
    ],
)
def test_records_wait_until_a_failed_commit_is_repeated(broker: Broker, ack_mode: Any, error: KafkaError) -> None:
    async def test(topic: Topic) -> None:
        handled_before: list[int] = []
        errors: list[Exception] = [error, error, error]

        def handle(
            given: ConsumerRecord | list[ConsumerRecord], acknowledgement: Acknowledgement | None = None
        ) -> None:
            if errors:
                handled_before.append(len(errors))
            topic.handled += [number(each) for each in (given if isinstance(given, list) else [given])]
            if acknowledgement is not None:
                acknowledgement.acknowledge()

        async with topic.consumer(retry_backoff_ms=20) as consumer:
            listener = RecordListener(
                consumer, [topic.name], handle, ack_mode=ack_mode, commit_interval_ms=1, max_batch_records=2
            )
            attempts = fail_commits(consumer, errors)
            asyncio.get_running_loop().call_later(
                0, stop_when, listener, lambda: len(topic.handled) == 10 and not errors
            )
            await listener.run()
        assert set(handled_before) == {3}, "nothing was handled between the failed commits"
        partition = TopicPartition(topic.name, 0)
        committed = [each[partition].offset for each in attempts]
        assert committed == sorted(committed), "commits never move backwards"
        assert topic.handled == list(range(10))
        assert await topic.committed() == 10

    run(broker, test)


def test_a_commit_that_cannot_succeed_ends_the_listener(broker: Broker) -> None:
    async def test(topic: Topic) -> None:
        async with topic.consumer() as consumer:
            errors: list[Exception] = [KafkaError(30, "no permission")]
            fail_commits(consumer, errors)
            with pytest.raises(KafkaError, match="GROUP_AUTHORIZATION_FAILED"):
                await RecordListener(consumer, [topic.name], topic.handle, **QUICK).run()

    run(broker, test)


# Runs


def test_a_listener_runs_once_at_a_time(broker: Broker) -> None:
    async def test(topic: Topic) -> None:
        async def handle(record: ConsumerRecord) -> None:
            topic.handle(record)
            if number(record) == 3:
                with pytest.raises(IllegalStateError, match="is running"):
                    await listener.run()
            if number(record) == 9:
                listener.stop()

        async with topic.consumer() as consumer:
            listener = RecordListener(consumer, [topic.name], handle, **QUICK)
            await listener.run()
        assert topic.handled == list(range(10))

    run(broker, test)


def test_a_listener_that_ends_leaves_no_partition_paused(broker: Broker) -> None:
    async def test(topic: Topic) -> None:
        async with topic.consumer() as consumer:

            def handle(record: ConsumerRecord, acknowledgement: Acknowledgement) -> None:
                topic.handle(record)

            listener = RecordListener(consumer, [topic.name], handle, ack_mode="manual", max_unacked_records=2)
            asyncio.get_running_loop().call_later(0, stop_when, listener, lambda: consumer.paused != [])
            await listener.run()
            assert consumer.paused == []
            assert [number(each) for each in await consumer.poll(10_000)] == list(range(10))

    run(broker, test)


def test_partitions_that_the_application_pauses_stay_paused(broker: Broker) -> None:
    async def test(topic: Topic) -> None:
        async with topic.consumer() as consumer:

            async def handle(record: ConsumerRecord) -> None:
                topic.handle(record)
                if number(record) == 3:
                    consumer.pause(consumer.assignment)

            options: dict[str, Any] = {"max_batch_records": 4, **QUICK}
            listener = RecordListener(consumer, [topic.name], handle, **options)
            listening = asyncio.create_task(listener.run())
            while len(topic.handled) < 4:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.2)
            assert topic.handled == [0, 1, 2, 3]
            consumer.resume(consumer.assignment)
            while len(topic.handled) < 10:
                await asyncio.sleep(0.01)
            listener.stop()
            await listening

    run(broker, test)


def test_handlers_that_never_suspend_let_other_tasks_run(broker: Broker) -> None:
    async def test(topic: Topic) -> None:
        async with topic.consumer() as consumer:

            def handle(record: ConsumerRecord) -> None:
                topic.handle(record)
                if number(record) == 3:
                    asyncio.get_running_loop().call_soon(listener.stop)
                time.sleep(0.02)

            listener = RecordListener(consumer, [topic.name], handle, commit_interval_ms=60_000)
            await listener.run()
        assert topic.handled == [0, 1, 2, 3]

    run(broker, test)


def test_a_listener_that_is_cancelled_twice_runs_again(broker: Broker) -> None:
    async def test(topic: Topic) -> None:
        async with topic.consumer() as consumer:
            commit = consumer.commit
            blocked = asyncio.Event()

            async def block(offsets: Any, **_: Any) -> None:
                blocked.set()
                await asyncio.Event().wait()

            async def handle(record: ConsumerRecord) -> None:
                topic.handle(record)
                if topic.handled == [0, 1, 2, 3]:
                    consumer.commit = block  # type: ignore[method-assign, assignment]
                    listening.cancel()
                    await asyncio.sleep(1)

            listener = RecordListener(consumer, [topic.name], handle, commit_interval_ms=60_000)
            listening = asyncio.create_task(listener.run())
            await blocked.wait()
            listening.cancel()
            await asyncio.wait([listening])
            assert listening.cancelled()
            consumer.commit = commit  # type: ignore[method-assign]
            asyncio.get_running_loop().call_later(0, stop_when, listener, lambda: topic.handled[-1] == 9)
            await listener.run()
        assert topic.handled == [0, 1, 2, 3, *range(3, 10)], "record 3 was interrupted"
        assert await topic.committed() == 10

    run(broker, test)


def test_a_consumer_that_is_closed_commits_what_was_handled(broker: Broker) -> None:
    async def test(topic: Topic) -> None:
        handling, release = asyncio.Event(), asyncio.Event()

        async def handle(record: ConsumerRecord) -> None:
            topic.handle(record)
            if number(record) == 3:
                handling.set()
                await release.wait()

        async with topic.consumer() as consumer:
            listener = RecordListener(consumer, [topic.name], handle, commit_interval_ms=60_000)
            listening = asyncio.create_task(listener.run())
            await handling.wait()
            await consumer.close()
            release.set()
            with pytest.raises(IllegalStateError, match="closed"):
                await listening
        assert topic.handled == [0, 1, 2, 3]
        assert await topic.committed() == 3, "record 3 was in the handler when its partition was revoked"

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

        # "range" gives the only partition to the member with the lowest id, which begins with the client id.
        async with topic.consumer(client_id="z", session_timeout_ms=10_000, heartbeat_interval_ms=50) as consumer:
            # Committed only because the partition is revoked.
            options = {"ack_mode": "manual", "commit_interval_ms": 60_000}
            listener = RecordListener(consumer, [topic.name], keep, **options)
            listening = asyncio.create_task(listener.run())
            while len(first_acknowledgements) < 10:
                await asyncio.sleep(0.01)
            other = asyncio.create_task(topic.listen(take_over, stop_after=6, client_id="a"))
            await taken_over.wait()
            with pytest.raises(CommitFailedError):
                await first_acknowledgements[4].commit()
            await other
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
                ({"on_failure": DeadLetterTopic(Producer(topic.bootstrap), topic.name)}, "its own dead letters"),
            ):
                with pytest.raises(ValueError, match=message):
                    RecordListener(consumer, [topic.name], topic.handle, **options)  # type: ignore[arg-type]
            dead = DeadLetterTopic(Producer(topic.bootstrap), "orders.dead")
            with pytest.raises(ValueError, match=r"its own dead letters: exclude 'orders\.dead'"):
                RecordListener(consumer, re.compile(r"orders\..*"), topic.handle, on_failure=dead)
            with pytest.raises(ValueError, match="enable_auto_commit"):
                RecordListener(committing, [topic.name], topic.handle)

    run(broker, test)
