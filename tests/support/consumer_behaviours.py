"""Behaviours of Moldau's consumer that run against every broker. Each is a coroutine that takes a `ConsumerFixture`."""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Self

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewPartitions, NewTopic

from moldau.client.consumer.consumer import Consumer
from moldau.client.consumer.subscription_state import OffsetAndMetadata
from moldau.client.errors import (
    CommitFailedError,
    ErrorCode,
    IllegalStateError,
    KafkaError,
    NoOffsetForPartitionError,
)
from moldau.client.record import ConsumerRecord, TopicPartition, decode_records
from support.topics import QUIET, Topics, unique

DEADLINE_S = 30

ASSIGNORS = ["range", "roundrobin", "sticky", "cooperative-sticky"]


class ConsumerFixture:
    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.topics = Topics(bootstrap)

    def produce(self, topic: str, values: list[bytes], partition: int = 0) -> None:
        producer = Producer({"bootstrap.servers": self.bootstrap, **QUIET})
        for value in values:
            producer.produce(topic, value, partition=partition)
        assert producer.flush(DEADLINE_S) == 0

    def create(self, topic: str) -> None:
        self.topics.admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(DEADLINE_S)

    def grow(self, topic: str, partitions: int) -> None:
        self.topics.admin.create_partitions([NewPartitions(topic, partitions)])[topic].result(DEADLINE_S)

    def consumer(self, **settings: Any) -> Consumer:
        defaults = {
            "auto_offset_reset": "earliest",
            "heartbeat_interval_ms": 100,
            "session_timeout_ms": 10_000,
        }
        return Consumer(self.bootstrap, **{**defaults, **settings})

    def member(self, group_id: str, *topics: str, **settings: Any) -> "RunningConsumer":
        return RunningConsumer(self.consumer(group_id=group_id, **settings), *topics)


class RunningConsumer:
    """A consumer that is polled by a task, with its rebalance events and records."""

    def __init__(self, consumer: Consumer, *topics: str, pattern: str | None = None) -> None:
        self.consumer = consumer
        self.events: list[tuple[str, list[TopicPartition]]] = []
        self.records: list[ConsumerRecord] = []
        self._topics = topics or None
        self._pattern = pattern
        self._happened = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self.consumer.start()
        self.consumer.subscribe(
            self._topics,
            pattern=self._pattern,
            on_assigned=lambda partitions: self._record("assigned", partitions),
            on_revoked=lambda partitions: self._record("revoked", partitions),
            on_lost=lambda partitions: self._record("lost", partitions),
        )
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.pause()
        await self.consumer.close()

    async def pause(self) -> None:
        """Stops polling, like a busy user."""
        if self._task is not None:
            self._task.cancel()
            results = await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
            assert all(isinstance(each, asyncio.CancelledError) for each in results), results

    def resume_polling(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while True:
            self.records += await self.consumer.poll(200)
            self._happened.set()

    def _record(self, what: str, partitions: list[TopicPartition]) -> None:
        self.events.append((what, partitions))
        self._happened.set()

    @property
    def values(self) -> list[bytes | None]:
        return [record.value for record in self.records]

    def partitions_in(self, what: str) -> list[TopicPartition]:
        return [each for event, partitions in self.events for each in partitions if event == what]

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not condition():
                assert self._task is None or not self._task.done(), self._task
                self._happened.clear()
                try:
                    async with asyncio.timeout(0.1):
                        await self._happened.wait()
                except TimeoutError:
                    pass


def shared(members: list[RunningConsumer], topic: str, partitions: int) -> Callable[[], bool]:
    """Returns a condition: the members own all partitions, each one once, as evenly as possible."""
    everything = sorted(TopicPartition(topic, index) for index in range(partitions))

    def holds() -> bool:
        held = [member.consumer.assignment for member in members]
        sizes = [len(each) for each in held]
        return sorted(each for one in held for each in one) == everything and max(sizes) - min(sizes) <= 1

    return holds


async def a_consumer_reads_what_it_is_assigned(scene: ConsumerFixture) -> None:
    topic = scene.topics.create(2)
    scene.produce(topic, [b"a", b"b", b"c"])
    scene.produce(topic, [b"d"], partition=1)
    async with scene.consumer() as consumer:
        consumer.assign([TopicPartition(topic, 0), TopicPartition(topic, 1)])
        read = [record async for record in first(consumer, 4)]
        assert sorted((each.partition, each.offset, each.value) for each in read) == [
            (0, 0, b"a"),
            (0, 1, b"b"),
            (0, 2, b"c"),
            (1, 0, b"d"),
        ]
        assert await consumer.position(TopicPartition(topic, 0)) == 3


async def first(consumer: Consumer, count: int) -> AsyncIterator[ConsumerRecord]:
    async with asyncio.timeout(DEADLINE_S):
        for _ in range(count):
            yield await anext(consumer)


async def positions_can_be_moved(scene: ConsumerFixture) -> None:
    topic = scene.topics.create()
    here = TopicPartition(topic, 0)
    scene.produce(topic, [b"%d" % number for number in range(10)])
    async with scene.consumer(auto_offset_reset="latest") as consumer:
        consumer.assign([here])
        assert await consumer.position(here) == 10
        consumer.seek(here, 7)
        assert [each.value async for each in first(consumer, 2)] == [b"7", b"8"]
        consumer.seek_to_beginning()
        assert [each.value async for each in first(consumer, 1)] == [b"0"]
        assert await consumer.position(here) == 1
        consumer.seek_to_end([here])
        assert await consumer.poll(100) == []
        assert await consumer.position(here) == 10
        assert await consumer.beginning_offsets([here]) == {here: 0}
        assert await consumer.end_offsets([here]) == {here: 10}
        times = await consumer.offsets_for_times({here: 0})
        found = times[here]
        assert found is not None
        assert found.offset == 0
        assert await consumer.offsets_for_times({here: found.timestamp + 10**9}) == {here: None}
        consumer.seek(here, 5)
        consumer.pause([here])
        assert await consumer.poll(300) == []
        assert consumer.paused == [here]
        consumer.resume([here])
        assert [each.value async for each in first(consumer, 1)] == [b"5"]


async def an_offset_out_of_range_follows_the_reset_policy(scene: ConsumerFixture) -> None:
    topic = scene.topics.create()
    here = TopicPartition(topic, 0)
    scene.produce(topic, [b"a", b"b"])
    async with scene.consumer(auto_offset_reset="earliest") as consumer:
        consumer.assign([here])
        consumer.seek(here, 99)
        assert [each.value async for each in first(consumer, 1)] == [b"a"]
    async with scene.consumer(auto_offset_reset="none", group_id=unique("group")) as consumer:
        consumer.assign([here])
        with pytest.raises(NoOffsetForPartitionError, match="no offset is committed"):
            await poll_until_it_fails(consumer)
        consumer.seek(here, 99)
        with pytest.raises(NoOffsetForPartitionError, match="no offset 99"):
            await poll_until_it_fails(consumer)


async def poll_until_it_fails(consumer: Consumer) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while True:
            await consumer.poll(100)


async def raw_batches_come_whole(scene: ConsumerFixture) -> None:
    topic = scene.topics.create()
    here = TopicPartition(topic, 0)
    values = [b"%d" % number for number in range(50)]
    scene.produce(topic, values)
    async with scene.consumer() as consumer:
        consumer.assign([here])
        consumer.seek(here, 20)
        read: list[bytes | None] = []
        async with asyncio.timeout(DEADLINE_S):
            while await consumer.position(here) < 50:
                for fetched in await consumer.raw_poll(1_000):
                    for batch in fetched.batches:
                        read += [each.value for each in decode_records(here, batch, fetched.position)]
        assert read == values[20:]


async def a_poll_hands_out_no_more_than_asked(scene: ConsumerFixture) -> None:
    topic = scene.topics.create()
    scene.produce(topic, [b"%d" % number for number in range(25)])
    async with scene.consumer(group_id=unique("group"), max_poll_records=10) as consumer:
        consumer.subscribe([topic])
        sizes = []
        while sum(sizes) < 25:
            sizes.append(len(await consumer.poll(1_000)))
        assert [size for size in sizes if size] == [10, 10, 5]


async def bad_calls_are_refused_clearly(scene: ConsumerFixture) -> None:
    topic = scene.topics.create()
    consumer = scene.consumer(group_id=unique("group"))
    with pytest.raises(IllegalStateError, match="not started"):
        consumer.subscribe([topic])
    async with consumer:
        with pytest.raises(IllegalStateError, match="nothing to read"):
            await consumer.poll()
        with pytest.raises(ValueError, match="one of the two"):
            consumer.subscribe([topic], pattern="x")
        with pytest.raises(ValueError, match="list of names"):
            consumer.subscribe(topic)
        with pytest.raises(ValueError, match="at least one"):
            consumer.subscribe([])
        with pytest.raises(re.error):
            consumer.subscribe(pattern="(")
        consumer.subscribe([topic])
        with pytest.raises(IllegalStateError, match="unsubscribe"):
            consumer.assign([TopicPartition(topic, 0)])
        with pytest.raises(IllegalStateError, match="not assigned"):
            consumer.seek(TopicPartition(topic, 0), 1)
        with pytest.raises(CommitFailedError, match="not in the group"):
            await consumer.commit({TopicPartition(topic, 0): 1})
        await consumer.unsubscribe()
        consumer.assign([TopicPartition(topic, 0)])
        with pytest.raises(ValueError, match="first one is 0"):
            consumer.seek(TopicPartition(topic, 0), -1)
        with pytest.raises(ValueError, match="to commit"):
            await consumer.commit({TopicPartition(topic, 0): -1})
        with pytest.raises(ValueError, match="max_records"):
            await consumer.poll(0, 0)
    with pytest.raises(IllegalStateError, match="closed"):
        await consumer.poll()
    async with scene.consumer() as alone:
        with pytest.raises(IllegalStateError, match="without a group_id"):
            alone.subscribe([topic])
        with pytest.raises(IllegalStateError, match="without a group_id"):
            await alone.commit()


async def a_partition_that_does_not_exist_is_told_of(scene: ConsumerFixture) -> None:
    topic = scene.topics.create()
    consumer = scene.consumer()
    consumer.cluster.request_timeout_ms = 1_000
    async with consumer:
        consumer.assign([TopicPartition(topic, 7)])
        with pytest.raises(KafkaError) as partitions_in:
            await poll_until_it_fails(consumer)
        assert partitions_in.value.code == ErrorCode.unknown_topic_or_partition


def sharing_with(assignor: str) -> Callable[[ConsumerFixture], Awaitable[None]]:
    async def two_share_and_a_third_joins_and_leaves(scene: ConsumerFixture) -> None:
        topic = scene.topics.create(6)
        group = unique("group")
        settings = {"assignors": [assignor]}
        async with scene.member(group, topic, **settings) as one:
            await one.until(shared([one], topic, 6))
            async with scene.member(group, topic, **settings) as two:
                await one.until(shared([one, two], topic, 6))
                async with scene.member(group, topic, **settings) as three:
                    await one.until(shared([one, two, three], topic, 6))
                    for index in range(6):
                        scene.produce(topic, [b"%d" % index], partition=index)
                    everybody = [one, two, three]
                    await one.until(lambda: sum(len(each.records) for each in everybody) >= 6)
                    for member in everybody:
                        assert sorted(each.partition for each in member.records) == sorted(
                            each.partition for each in member.consumer.assignment
                        )
                await one.until(shared([one, two], topic, 6))
                assert three.partitions_in("revoked") != []
                assert one.partitions_in("lost") == two.partitions_in("lost") == []
            await one.until(shared([one], topic, 6))

    return two_share_and_a_third_joins_and_leaves


async def cooperative_members_keep_what_stays_theirs(scene: ConsumerFixture) -> None:
    topic = scene.topics.create(4)
    group = unique("group")
    async with scene.member(group, topic, assignors=["cooperative-sticky"]) as one:
        await one.until(shared([one], topic, 4))
        assert one.events == [("assigned", [TopicPartition(topic, index) for index in range(4)])]
        async with scene.member(group, topic, assignors=["cooperative-sticky"]) as two:
            await one.until(shared([one, two], topic, 4))
            assert sorted(one.partitions_in("revoked")) == sorted(two.partitions_in("assigned"))
            assert len(one.partitions_in("revoked")) == 2
            assert two.partitions_in("revoked") == []


async def eager_members_give_up_everything_first(scene: ConsumerFixture) -> None:
    topic = scene.topics.create(4)
    group = unique("group")
    everything = [TopicPartition(topic, index) for index in range(4)]
    async with scene.member(group, topic, assignors=["range"]) as one:
        await one.until(shared([one], topic, 4))
        async with scene.member(group, topic, assignors=["range"]) as two:
            await one.until(shared([one, two], topic, 4))
            assert one.events[:2] == [("assigned", everything), ("revoked", everything)]
            assert sorted(one.consumer.assignment + two.consumer.assignment) == everything


async def a_pattern_takes_in_topics_as_they_come(scene: ConsumerFixture) -> None:
    mark = unique("pattern")
    names = [f"{mark}.{letter}" for letter in "ab"]
    scene.create(names[0])
    scene.create(f"not-{names[1]}")
    consumer = scene.consumer(group_id=unique("group"))
    consumer.cluster.metadata_max_age_ms = 300
    async with RunningConsumer(consumer, pattern=rf"{re.escape(mark)}\..") as running:
        await running.until(lambda: consumer.assignment == [TopicPartition(names[0], 0)])
        scene.create(names[1])
        await running.until(lambda: consumer.assignment == [TopicPartition(each, 0) for each in names])
        assert consumer.subscription == tuple(names)


async def more_partitions_are_shared_out(scene: ConsumerFixture) -> None:
    topic = scene.topics.create(1)
    consumer = scene.consumer(group_id=unique("group"))
    consumer.cluster.metadata_max_age_ms = 300
    async with RunningConsumer(consumer, topic) as running:
        await running.until(shared([running], topic, 1))
        scene.grow(topic, 3)
        await running.until(shared([running], topic, 3))


async def a_topic_may_come_later_than_its_subscription(scene: ConsumerFixture) -> None:
    topic = unique("late")
    async with scene.member(unique("group"), topic) as running:
        await running.until(lambda: running.events == [("assigned", [])])
        scene.create(topic)
        await running.until(shared([running], topic, 1))


async def a_changed_subscription_is_a_rebalance(scene: ConsumerFixture) -> None:
    first_topic, second_topic = scene.topics.create(), scene.topics.create()
    async with scene.member(unique("group"), first_topic) as running:
        await running.until(shared([running], first_topic, 1))
        running.consumer.subscribe([second_topic])
        await running.until(shared([running], second_topic, 1))


async def a_static_member_restarts_without_a_rebalance(scene: ConsumerFixture) -> None:
    topic = scene.topics.create(4)
    group = unique("group")
    async with (
        scene.member(group, topic, group_instance_id="a") as one,
        scene.member(group, topic, group_instance_id="b") as two,
    ):
        await one.until(shared([one, two], topic, 4))
        had, generation = two.consumer.assignment, two.consumer.group_metadata().generation_id
        partitions_in = list(one.events)
        await two.pause()
        await two.consumer.close()
        async with scene.member(group, topic, group_instance_id="b") as again:
            await again.until(lambda: again.consumer.assignment == had)
            assert again.consumer.group_metadata().generation_id == generation
            assert one.events == partitions_in


async def a_duplicate_instance_id_is_fenced(scene: ConsumerFixture) -> None:
    topic = scene.topics.create()
    group = unique("group")
    async with scene.consumer(group_id=group, group_instance_id="a") as one:
        one.subscribe([topic])
        async with asyncio.timeout(DEADLINE_S):
            while not one.assignment:
                await one.poll(100)
        async with scene.member(group, topic, group_instance_id="a") as two:
            await two.until(shared([two], topic, 1))
            for _ in range(2):
                with pytest.raises(KafkaError) as fenced:
                    await poll_until_it_fails(one)
                assert fenced.value.code == ErrorCode.fenced_instance_id
            assert one.assignment == []


async def who_does_not_poll_leaves_the_group(scene: ConsumerFixture) -> None:
    topic = scene.topics.create(2)
    group = unique("group")
    async with (
        scene.member(group, topic) as one,
        scene.member(group, topic, max_poll_interval_ms=1_000) as two,
    ):
        await one.until(shared([one, two], topic, 2))
        had = two.consumer.assignment
        await two.pause()
        await one.until(shared([one], topic, 2))
        with pytest.raises(CommitFailedError, match="max_poll_interval_ms"):
            await two.consumer.commit({had[0]: 1})
        two.resume_polling()
        await two.until(shared([one, two], topic, 2))
        assert two.partitions_in("lost") == had


async def offsets_are_committed_and_resumed(scene: ConsumerFixture) -> None:
    topic = scene.topics.create()
    here = TopicPartition(topic, 0)
    group = unique("group")
    scene.produce(topic, [b"%d" % number for number in range(6)])
    async with scene.consumer(group_id=group, enable_auto_commit=False) as consumer:
        consumer.subscribe([topic])
        assert await consumer.committed([here]) == {here: None}
        assert [each.value async for each in first(consumer, 3)] == [b"0", b"1", b"2"]
        await consumer.commit()
        assert [each.value async for each in first(consumer, 1)] == [b"3"]
    async with scene.consumer(group_id=group, enable_auto_commit=False) as consumer:
        consumer.subscribe([topic])
        assert [each.value async for each in first(consumer, 1)] == [b"3"]
        await consumer.commit({here: OffsetAndMetadata(5, "note")})
        [committed] = (await consumer.committed([here])).values()
        assert committed is not None
        assert (committed.offset, committed.metadata) == (5, "note")
    async with scene.consumer(group_id=group) as consumer:
        consumer.assign([here])
        assert [each.value async for each in first(consumer, 1)] == [b"5"]
    async with scene.consumer(group_id=group, enable_auto_commit=False) as consumer:
        [committed] = (await consumer.committed([here])).values()
        assert committed is not None
        assert committed.offset == 6


async def consumed_offsets_are_committed_by_and_by(scene: ConsumerFixture) -> None:
    topic = scene.topics.create()
    here = TopicPartition(topic, 0)
    group = unique("group")
    scene.produce(topic, [b"a", b"b"])
    async with scene.consumer(group_id=group, auto_commit_interval_ms=100) as consumer:
        consumer.subscribe([topic])
        assert len([each async for each in first(consumer, 2)]) == 2
        async with asyncio.timeout(DEADLINE_S):
            while True:
                await consumer.poll(50)
                committed = (await consumer.committed([here]))[here]
                if committed is not None and committed.offset == 2:
                    break


async def an_error_of_the_user_commits_nothing(scene: ConsumerFixture) -> None:
    topic = scene.topics.create()
    group = unique("group")
    scene.produce(topic, [b"a", b"b"])

    async def failing() -> None:
        async with scene.consumer(group_id=group) as consumer:
            consumer.subscribe([topic])
            async for _ in consumer:
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await failing()
    async with scene.consumer(group_id=group) as consumer:
        consumer.subscribe([topic])
        assert [each.value async for each in first(consumer, 2)] == [b"a", b"b"]


async def what_was_consumed_is_committed_before_a_rebalance(scene: ConsumerFixture) -> None:
    topic = scene.topics.create(2)
    group = unique("group")
    for partition in (0, 1):
        scene.produce(topic, [b"%d" % number for number in range(20)], partition)
    settings = {"auto_commit_interval_ms": 3_600_000}
    async with scene.member(group, topic, **settings) as one:
        await one.until(lambda: len(one.records) == 40)
        async with scene.member(group, topic, **settings) as two:
            await two.until(shared([one, two], topic, 2))
            for partition in (0, 1):
                scene.produce(topic, [b"more"], partition)
            await two.until(lambda: len(one.records) + len(two.records) >= 42)
            assert two.values == [b"more"]
            assert one.values[40:] == [b"more"]


async def a_callback_may_commit_and_seek(scene: ConsumerFixture) -> None:
    topic = scene.topics.create()
    here = TopicPartition(topic, 0)
    group = unique("group")
    scene.produce(topic, [b"a", b"b", b"c"])
    async with scene.consumer(group_id=group, enable_auto_commit=False) as consumer:

        async def committing(partitions: list[TopicPartition]) -> None:
            assert partitions == [here]
            await consumer.commit()

        consumer.subscribe(
            [topic], on_assigned=lambda partitions: consumer.seek(partitions[0], 1), on_revoked=committing
        )
        assert [each.value async for each in first(consumer, 1)] == [b"b"]
    async with scene.consumer(group_id=group) as consumer:
        [committed] = (await consumer.committed([here])).values()
        assert committed is not None
        assert committed.offset == 2


async def a_commit_from_outside_the_group_is_refused(scene: ConsumerFixture) -> None:
    topic = scene.topics.create()
    group = unique("group")
    async with scene.member(group, topic) as running:
        await running.until(shared([running], topic, 1))
        async with scene.consumer(group_id=group) as outsider:
            outsider.assign([TopicPartition(topic, 0)])
            with pytest.raises(CommitFailedError, match="has members"):
                await outsider.commit({TopicPartition(topic, 0): 1})


async def closing_ends_an_iteration(scene: ConsumerFixture) -> None:
    topic = scene.topics.create()
    consumer = scene.consumer(group_id=unique("group"))
    await consumer.start()
    consumer.subscribe([topic])

    async def iterate_records() -> list[ConsumerRecord]:
        return [record async for record in consumer]

    iterating = asyncio.create_task(iterate_records())
    scene.produce(topic, [b"a"])
    async with asyncio.timeout(DEADLINE_S):
        while not consumer.assignment or await consumer.position(TopicPartition(topic, 0)) < 1:
            await asyncio.sleep(0.05)
        with pytest.raises(IllegalStateError, match="another task"):
            await consumer.poll()
        await consumer.close()
        assert [record.value for record in await iterating] == [b"a"]


async def resumes_over_a_restart(scene: ConsumerFixture, restart: Callable[[], None]) -> None:
    """`restart` stops the broker and starts it again at the same address."""
    topic = scene.topics.create(2)
    group = unique("group")
    for partition in (0, 1):
        scene.produce(topic, [b"%d" % number for number in range(5)], partition)
    settings = {"auto_commit_interval_ms": 100}
    async with scene.member(group, topic, **settings) as one:
        await one.until(lambda: len(one.records) == 10)
        both = [TopicPartition(topic, index) for index in (0, 1)]
        async with asyncio.timeout(DEADLINE_S):
            while [each and each.offset for each in (await one.consumer.committed(both)).values()] != [5, 5]:
                await asyncio.sleep(0.05)
        await asyncio.to_thread(restart)
        for partition in (0, 1):
            scene.produce(topic, [b"after"], partition)
        await one.until(lambda: len(one.records) >= 12)
        assert sorted(one.values[10:]) == [b"after", b"after"]
        async with scene.member(group, topic, **settings) as two:
            await one.until(shared([one, two], topic, 2))


async def a_kept_position_that_the_log_was_cut_below_is_noticed(
    scene: ConsumerFixture, restart: Callable[[], None]
) -> None:
    """Each restart starts a leader epoch. A position fetched in an epoch without records stays valid. A position beyond
    the end of the epoch that it was read in is truncated."""
    topic, group = scene.topics.create(), unique("group")
    here = TopicPartition(topic, 0)
    scene.produce(topic, [b"%d" % number for number in range(5)])

    async def committed(offset: OffsetAndMetadata | None) -> ConsumerRecord:
        async with scene.consumer(group_id=group, enable_auto_commit=False) as consumer:
            if offset is not None:
                await consumer.commit({here: offset})
            consumer.assign([here])
            return await anext(consumer)

    await asyncio.to_thread(restart)
    async with scene.consumer(group_id=group, auto_offset_reset="latest") as consumer:
        consumer.assign([here])
        assert await consumer.position(here) == 5
        await consumer.commit()
        kept = (await consumer.committed([here]))[here]
        assert kept is not None
    await asyncio.to_thread(restart)
    scene.produce(topic, [b"5", b"6"])
    first = await committed(None)
    assert first.offset == 5
    assert 0 < kept.leader_epoch < first.leader_epoch
    for leader_epoch, offset in ((-1, 6), (first.leader_epoch, 6), (kept.leader_epoch, 5), (0, 5)):
        assert (await committed(OffsetAndMetadata(6, leader_epoch=leader_epoch))).offset == offset


CONSUMER_BEHAVIOURS: dict[str, Callable[[ConsumerFixture], Awaitable[None]]] = {
    **{
        f"two share and a third joins and leaves: {assignor}": sharing_with(assignor)
        for assignor in ASSIGNORS
    },
    **{
        behaviour.__name__.replace("_", " "): behaviour
        for behaviour in (
            a_consumer_reads_what_it_is_assigned,
            positions_can_be_moved,
            an_offset_out_of_range_follows_the_reset_policy,
            raw_batches_come_whole,
            a_poll_hands_out_no_more_than_asked,
            bad_calls_are_refused_clearly,
            a_partition_that_does_not_exist_is_told_of,
            cooperative_members_keep_what_stays_theirs,
            eager_members_give_up_everything_first,
            a_pattern_takes_in_topics_as_they_come,
            more_partitions_are_shared_out,
            a_topic_may_come_later_than_its_subscription,
            a_changed_subscription_is_a_rebalance,
            a_static_member_restarts_without_a_rebalance,
            a_duplicate_instance_id_is_fenced,
            who_does_not_poll_leaves_the_group,
            offsets_are_committed_and_resumed,
            consumed_offsets_are_committed_by_and_by,
            an_error_of_the_user_commits_nothing,
            what_was_consumed_is_committed_before_a_rebalance,
            a_callback_may_commit_and_seek,
            a_commit_from_outside_the_group_is_refused,
            closing_ends_an_iteration,
        )
    },
}
