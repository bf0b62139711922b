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
from moldau.client.errors import CommitFailedError, ErrorCode, IllegalStateError, KafkaError, NoOffsetForPartitionError
from moldau.client.net.cluster import Cluster
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
        defaults = {"auto_offset_reset": "earliest", "heartbeat_interval_ms": 100, "session_timeout_ms": 10_000}
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


async def members_of_a_group_may_share_a_cluster(fixture: ConsumerFixture) -> None:
    topic, group_id = fixture.topics.create(2), unique("group")

    def member(cluster: Cluster) -> RunningConsumer:
        return RunningConsumer(Consumer(cluster=cluster, group_id=group_id, heartbeat_interval_ms=100), topic)

    async with Cluster(fixture.bootstrap) as cluster, member(cluster) as first_member:
        await first_member.until(shared([first_member], topic, 2))
        async with member(cluster) as second_member:
            await second_member.until(shared([first_member, second_member], topic, 2))
        await first_member.until(shared([first_member], topic, 2))


async def an_assigned_consumer_reads_its_partitions(fixture: ConsumerFixture) -> None:
    topic = fixture.topics.create(2)
    fixture.produce(topic, [b"a", b"b", b"c"])
    fixture.produce(topic, [b"d"], partition=1)
    async with fixture.consumer() as consumer:
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


async def a_consumer_seeks_and_pauses(fixture: ConsumerFixture) -> None:
    topic = fixture.topics.create()
    partition = TopicPartition(topic, 0)
    fixture.produce(topic, [b"%d" % number for number in range(10)])
    async with fixture.consumer(auto_offset_reset="latest") as consumer:
        consumer.assign([partition])
        assert await consumer.position(partition) == 10
        consumer.seek(partition, 7)
        assert [each.value async for each in first(consumer, 2)] == [b"7", b"8"]
        consumer.seek_to_beginning()
        assert [each.value async for each in first(consumer, 1)] == [b"0"]
        assert await consumer.position(partition) == 1
        consumer.seek_to_end([partition])
        assert await consumer.poll(100) == []
        assert await consumer.position(partition) == 10
        assert await consumer.beginning_offsets([partition]) == {partition: 0}
        assert await consumer.end_offsets([partition]) == {partition: 10}
        times = await consumer.offsets_for_times({partition: 0})
        found = times[partition]
        assert found is not None
        assert found.offset == 0
        assert await consumer.offsets_for_times({partition: found.timestamp + 10**9}) == {partition: None}
        consumer.seek(partition, 5)
        consumer.pause([partition])
        assert await consumer.poll(300) == []
        assert consumer.paused == [partition]
        consumer.resume([partition])
        assert [each.value async for each in first(consumer, 1)] == [b"5"]


async def an_offset_out_of_range_follows_the_reset_policy(fixture: ConsumerFixture) -> None:
    topic = fixture.topics.create()
    partition = TopicPartition(topic, 0)
    fixture.produce(topic, [b"a", b"b"])
    async with fixture.consumer(auto_offset_reset="earliest") as consumer:
        consumer.assign([partition])
        consumer.seek(partition, 99)
        assert [each.value async for each in first(consumer, 1)] == [b"a"]
    async with fixture.consumer(auto_offset_reset="none", group_id=unique("group")) as consumer:
        consumer.assign([partition])
        with pytest.raises(NoOffsetForPartitionError, match="no offset is committed"):
            await poll_until_error(consumer)
        consumer.seek(partition, 99)
        with pytest.raises(NoOffsetForPartitionError, match="no offset 99"):
            await poll_until_error(consumer)


async def poll_until_error(consumer: Consumer) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while True:
            await consumer.poll(100)


async def raw_poll_returns_whole_batches(fixture: ConsumerFixture) -> None:
    topic = fixture.topics.create()
    partition = TopicPartition(topic, 0)
    values = [b"%d" % number for number in range(50)]
    fixture.produce(topic, values)
    async with fixture.consumer() as consumer:
        consumer.assign([partition])
        consumer.seek(partition, 20)
        read: list[bytes | None] = []
        async with asyncio.timeout(DEADLINE_S):
            while await consumer.position(partition) < 50:
                for fetched in await consumer.raw_poll(1_000):
                    for batch in fetched.batches:
                        read += [each.value for each in decode_records(partition, batch, fetched.position)]
        assert read == values[20:]


async def a_poll_returns_at_most_max_poll_records(fixture: ConsumerFixture) -> None:
    topic = fixture.topics.create()
    fixture.produce(topic, [b"%d" % number for number in range(25)])
    async with fixture.consumer(group_id=unique("group"), max_poll_records=10) as consumer:
        consumer.subscribe([topic])
        sizes = []
        while sum(sizes) < 25:
            sizes.append(len(await consumer.poll(1_000)))
        assert [size for size in sizes if size] == [10, 10, 5]


async def invalid_calls_raise_clear_errors(fixture: ConsumerFixture) -> None:
    topic = fixture.topics.create()
    consumer = fixture.consumer(group_id=unique("group"))
    with pytest.raises(IllegalStateError, match="not started"):
        consumer.subscribe([topic])
    async with consumer:
        with pytest.raises(IllegalStateError, match="nothing to read"):
            await consumer.poll()
        with pytest.raises(ValueError, match="either topics or a pattern"):
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
        with pytest.raises(ValueError, match="offsets start at 0"):
            consumer.seek(TopicPartition(topic, 0), -1)
        with pytest.raises(ValueError, match="to commit"):
            await consumer.commit({TopicPartition(topic, 0): -1})
        with pytest.raises(ValueError, match="max_records"):
            await consumer.poll(0, 0)
    with pytest.raises(IllegalStateError, match="closed"):
        await consumer.poll()
    async with fixture.consumer() as alone:
        with pytest.raises(IllegalStateError, match="without a group_id"):
            alone.subscribe([topic])
        with pytest.raises(IllegalStateError, match="without a group_id"):
            await alone.commit()


async def an_unknown_partition_is_an_error(fixture: ConsumerFixture) -> None:
    topic = fixture.topics.create()
    consumer = fixture.consumer()
    consumer.cluster.request_timeout_ms = 3_000
    async with consumer:
        consumer.assign([TopicPartition(topic, 7)])
        with pytest.raises(KafkaError) as raised:
            await poll_until_error(consumer)
        assert raised.value.code == ErrorCode.unknown_topic_or_partition


def sharing_with(assignor: str) -> Callable[[ConsumerFixture], Awaitable[None]]:
    async def two_members_share_and_a_third_joins_and_leaves(fixture: ConsumerFixture) -> None:
        topic = fixture.topics.create(6)
        group = unique("group")
        settings = {"assignors": [assignor]}
        async with fixture.member(group, topic, **settings) as one:
            await one.until(shared([one], topic, 6))
            async with fixture.member(group, topic, **settings) as two:
                await one.until(shared([one, two], topic, 6))
                async with fixture.member(group, topic, **settings) as three:
                    await one.until(shared([one, two, three], topic, 6))
                    for index in range(6):
                        fixture.produce(topic, [b"%d" % index], partition=index)
                    members = [one, two, three]
                    await one.until(lambda: sum(len(each.records) for each in members) >= 6)
                    for member in members:
                        assert sorted(each.partition for each in member.records) == sorted(
                            each.partition for each in member.consumer.assignment
                        )
                await one.until(shared([one, two], topic, 6))
                assert three.partitions_in("revoked") != []
                assert one.partitions_in("lost") == two.partitions_in("lost") == []
            await one.until(shared([one], topic, 6))

    return two_members_share_and_a_third_joins_and_leaves


async def cooperative_members_keep_their_partitions(fixture: ConsumerFixture) -> None:
    topic = fixture.topics.create(4)
    group = unique("group")
    async with fixture.member(group, topic, assignors=["cooperative-sticky"]) as one:
        await one.until(shared([one], topic, 4))
        assert one.events == [("assigned", [TopicPartition(topic, index) for index in range(4)])]
        async with fixture.member(group, topic, assignors=["cooperative-sticky"]) as two:
            await one.until(shared([one, two], topic, 4))
            assert sorted(one.partitions_in("revoked")) == sorted(two.partitions_in("assigned"))
            assert len(one.partitions_in("revoked")) == 2
            assert two.partitions_in("revoked") == []


async def eager_members_revoke_everything_first(fixture: ConsumerFixture) -> None:
    topic = fixture.topics.create(4)
    group = unique("group")
    everything = [TopicPartition(topic, index) for index in range(4)]
    async with fixture.member(group, topic, assignors=["range"]) as one:
        await one.until(shared([one], topic, 4))
        async with fixture.member(group, topic, assignors=["range"]) as two:
            await one.until(shared([one, two], topic, 4))
            assert one.events[:2] == [("assigned", everything), ("revoked", everything)]
            assert sorted(one.consumer.assignment + two.consumer.assignment) == everything


async def a_pattern_matches_topics_created_later(fixture: ConsumerFixture) -> None:
    mark = unique("pattern")
    names = [f"{mark}.{letter}" for letter in "ab"]
    fixture.create(names[0])
    fixture.create(f"not-{names[1]}")
    consumer = fixture.consumer(group_id=unique("group"))
    consumer.cluster.metadata_max_age_ms = 300
    async with RunningConsumer(consumer, pattern=rf"{re.escape(mark)}\..") as running:
        await running.until(lambda: consumer.assignment == [TopicPartition(names[0], 0)])
        fixture.create(names[1])
        await running.until(lambda: consumer.assignment == [TopicPartition(each, 0) for each in names])
        assert consumer.subscription == tuple(names)


async def added_partitions_are_assigned(fixture: ConsumerFixture) -> None:
    topic = fixture.topics.create(1)
    consumer = fixture.consumer(group_id=unique("group"))
    consumer.cluster.metadata_max_age_ms = 300
    async with RunningConsumer(consumer, topic) as running:
        await running.until(shared([running], topic, 1))
        fixture.grow(topic, 3)
        await running.until(shared([running], topic, 3))


async def a_topic_may_be_created_after_its_subscription(fixture: ConsumerFixture) -> None:
    topic = unique("late")
    async with fixture.member(unique("group"), topic) as running:
        await running.until(lambda: running.events == [("assigned", [])])
        fixture.create(topic)
        await running.until(shared([running], topic, 1))


async def a_changed_subscription_causes_a_rebalance(fixture: ConsumerFixture) -> None:
    first_topic, second_topic = fixture.topics.create(), fixture.topics.create()
    async with fixture.member(unique("group"), first_topic) as running:
        await running.until(shared([running], first_topic, 1))
        running.consumer.subscribe([second_topic])
        await running.until(shared([running], second_topic, 1))


async def a_static_member_restarts_without_a_rebalance(fixture: ConsumerFixture) -> None:
    topic = fixture.topics.create(4)
    group = unique("group")
    async with (
        fixture.member(group, topic, group_instance_id="a") as one,
        fixture.member(group, topic, group_instance_id="b") as two,
    ):
        await one.until(shared([one, two], topic, 4))
        had, generation = two.consumer.assignment, two.consumer.group_metadata().generation_id
        events = list(one.events)
        await two.pause()
        await two.consumer.close()
        async with fixture.member(group, topic, group_instance_id="b") as again:
            await again.until(lambda: again.consumer.assignment == had)
            assert again.consumer.group_metadata().generation_id == generation
            assert one.events == events


async def a_duplicate_instance_id_is_fenced(fixture: ConsumerFixture) -> None:
    topic = fixture.topics.create()
    group = unique("group")
    async with fixture.consumer(group_id=group, group_instance_id="a") as one:
        one.subscribe([topic])
        async with asyncio.timeout(DEADLINE_S):
            while not one.assignment:
                await one.poll(100)
        async with fixture.member(group, topic, group_instance_id="a") as two:
            await two.until(shared([two], topic, 1))
            for _ in range(2):
                with pytest.raises(KafkaError) as fenced:
                    await poll_until_error(one)
                assert fenced.value.code == ErrorCode.fenced_instance_id
            assert one.assignment == []


async def a_member_that_does_not_poll_leaves_the_group(fixture: ConsumerFixture) -> None:
    topic = fixture.topics.create(2)
    group = unique("group")
    async with fixture.member(group, topic) as one, fixture.member(group, topic, max_poll_interval_ms=3_000) as two:
        await one.until(shared([one, two], topic, 2))
        had = two.consumer.assignment
        await two.pause()
        await one.until(shared([one], topic, 2))
        with pytest.raises(CommitFailedError, match="max_poll_interval_ms"):
            await two.consumer.commit({had[0]: 1})
        two.resume_polling()
        await two.until(shared([one, two], topic, 2))
        assert two.partitions_in("lost") == had


async def offsets_are_committed_and_resumed(fixture: ConsumerFixture) -> None:
    topic = fixture.topics.create()
    partition = TopicPartition(topic, 0)
    group = unique("group")
    fixture.produce(topic, [b"%d" % number for number in range(6)])
    async with fixture.consumer(group_id=group, enable_auto_commit=False) as consumer:
        consumer.subscribe([topic])
        assert await consumer.committed([partition]) == {partition: None}
        assert [each.value async for each in first(consumer, 3)] == [b"0", b"1", b"2"]
        await consumer.commit()
        assert [each.value async for each in first(consumer, 1)] == [b"3"]
    async with fixture.consumer(group_id=group, enable_auto_commit=False) as consumer:
        consumer.subscribe([topic])
        assert [each.value async for each in first(consumer, 1)] == [b"3"]
        await consumer.commit({partition: OffsetAndMetadata(5, "note")})
        [committed] = (await consumer.committed([partition])).values()
        assert committed is not None
        assert (committed.offset, committed.metadata) == (5, "note")
    async with fixture.consumer(group_id=group) as consumer:
        consumer.assign([partition])
        assert [each.value async for each in first(consumer, 1)] == [b"5"]
    async with fixture.consumer(group_id=group, enable_auto_commit=False) as consumer:
        [committed] = (await consumer.committed([partition])).values()
        assert committed is not None
        assert committed.offset == 6


async def consumed_offsets_are_auto_committed(fixture: ConsumerFixture) -> None:
    topic = fixture.topics.create()
    partition = TopicPartition(topic, 0)
    group = unique("group")
    fixture.produce(topic, [b"a", b"b"])
    async with fixture.consumer(group_id=group, auto_commit_interval_ms=100) as consumer:
        consumer.subscribe([topic])
        assert len([each async for each in first(consumer, 2)]) == 2
        async with asyncio.timeout(DEADLINE_S):
            while True:
                await consumer.poll(50)
                committed = (await consumer.committed([partition]))[partition]
                if committed is not None and committed.offset == 2:
                    break


async def an_error_in_user_code_commits_nothing(fixture: ConsumerFixture) -> None:
    topic = fixture.topics.create()
    group = unique("group")
    fixture.produce(topic, [b"a", b"b"])

    async def failing() -> None:
        async with fixture.consumer(group_id=group) as consumer:
            consumer.subscribe([topic])
            async for _ in consumer:
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await failing()
    async with fixture.consumer(group_id=group) as consumer:
        consumer.subscribe([topic])
        assert [each.value async for each in first(consumer, 2)] == [b"a", b"b"]


async def consumed_offsets_are_committed_before_a_rebalance(fixture: ConsumerFixture) -> None:
    topic = fixture.topics.create(2)
    group = unique("group")
    for partition in (0, 1):
        fixture.produce(topic, [b"%d" % number for number in range(20)], partition)
    settings = {"auto_commit_interval_ms": 3_600_000}
    async with fixture.member(group, topic, **settings) as one:
        await one.until(lambda: len(one.records) == 40)
        async with fixture.member(group, topic, **settings) as two:
            await two.until(shared([one, two], topic, 2))
            for partition in (0, 1):
                fixture.produce(topic, [b"more"], partition)
            await two.until(lambda: len(one.records) + len(two.records) >= 42)
            assert two.values == [b"more"]
            assert one.values[40:] == [b"more"]


async def a_callback_may_commit_and_seek(fixture: ConsumerFixture) -> None:
    topic = fixture.topics.create()
    partition = TopicPartition(topic, 0)
    group = unique("group")
    fixture.produce(topic, [b"a", b"b", b"c"])
    async with fixture.consumer(group_id=group, enable_auto_commit=False) as consumer:

        async def committing(partitions: list[TopicPartition]) -> None:
            assert partitions == [partition]
            await consumer.commit()

        consumer.subscribe(
            [topic], on_assigned=lambda partitions: consumer.seek(partitions[0], 1), on_revoked=committing
        )
        assert [each.value async for each in first(consumer, 1)] == [b"b"]
    async with fixture.consumer(group_id=group) as consumer:
        [committed] = (await consumer.committed([partition])).values()
        assert committed is not None
        assert committed.offset == 2


async def a_commit_outside_of_a_membership_is_rejected(fixture: ConsumerFixture) -> None:
    topic = fixture.topics.create()
    group = unique("group")
    async with fixture.member(group, topic) as running:
        await running.until(shared([running], topic, 1))
        async with fixture.consumer(group_id=group) as outsider:
            outsider.assign([TopicPartition(topic, 0)])
            with pytest.raises(CommitFailedError, match="has members"):
                await outsider.commit({TopicPartition(topic, 0): 1})


async def close_ends_an_iteration(fixture: ConsumerFixture) -> None:
    topic = fixture.topics.create()
    consumer = fixture.consumer(group_id=unique("group"))
    await consumer.start()
    consumer.subscribe([topic])

    async def iterate_records() -> list[ConsumerRecord]:
        return [record async for record in consumer]

    iterating = asyncio.create_task(iterate_records())
    fixture.produce(topic, [b"a"])
    async with asyncio.timeout(DEADLINE_S):
        while not consumer.assignment or await consumer.position(TopicPartition(topic, 0)) < 1:
            await asyncio.sleep(0.05)
        with pytest.raises(IllegalStateError, match="another task"):
            await consumer.poll()
        await consumer.close()
        assert [record.value for record in await iterating] == [b"a"]


async def a_group_resumes_after_a_broker_restart(fixture: ConsumerFixture, restart: Callable[[], None]) -> None:
    """`restart` stops the broker and starts it again at the same address."""
    topic = fixture.topics.create(2)
    group = unique("group")
    for partition in (0, 1):
        fixture.produce(topic, [b"%d" % number for number in range(5)], partition)
    settings = {"auto_commit_interval_ms": 100}
    async with fixture.member(group, topic, **settings) as one:
        await one.until(lambda: len(one.records) == 10)
        both = [TopicPartition(topic, index) for index in (0, 1)]
        async with asyncio.timeout(DEADLINE_S):
            while [each and each.offset for each in (await one.consumer.committed(both)).values()] != [5, 5]:
                await asyncio.sleep(0.05)
        await asyncio.to_thread(restart)
        for partition in (0, 1):
            fixture.produce(topic, [b"after"], partition)
        await one.until(lambda: len(one.records) >= 12)
        assert sorted(one.values[10:]) == [b"after", b"after"]
        async with fixture.member(group, topic, **settings) as two:
            await one.until(shared([one, two], topic, 2))


async def a_position_beyond_a_truncation_is_detected(fixture: ConsumerFixture, restart: Callable[[], None]) -> None:
    """Each restart starts a leader epoch. A position fetched in an epoch without records stays valid. A position beyond
    the end of the epoch that it was read in is truncated."""
    topic, group = fixture.topics.create(), unique("group")
    partition = TopicPartition(topic, 0)
    fixture.produce(topic, [b"%d" % number for number in range(5)])

    async def committed(offset: OffsetAndMetadata | None) -> ConsumerRecord:
        async with fixture.consumer(group_id=group, enable_auto_commit=False) as consumer:
            if offset is not None:
                await consumer.commit({partition: offset})
            consumer.assign([partition])
            return await anext(consumer)

    await asyncio.to_thread(restart)
    async with fixture.consumer(group_id=group, auto_offset_reset="latest") as consumer:
        consumer.assign([partition])
        assert await consumer.position(partition) == 5
        await consumer.commit()
        kept = (await consumer.committed([partition]))[partition]
        assert kept is not None
    await asyncio.to_thread(restart)
    fixture.produce(topic, [b"5", b"6"])
    first = await committed(None)
    assert first.offset == 5
    assert 0 < kept.leader_epoch < first.leader_epoch
    for leader_epoch, offset in ((-1, 6), (first.leader_epoch, 6), (kept.leader_epoch, 5), (0, 5)):
        assert (await committed(OffsetAndMetadata(6, leader_epoch=leader_epoch))).offset == offset


CONSUMER_BEHAVIOURS: dict[str, Callable[[ConsumerFixture], Awaitable[None]]] = {
    **{f"a group rebalances as members join and leave: {assignor}": sharing_with(assignor) for assignor in ASSIGNORS},
    **{
        behaviour.__name__.replace("_", " "): behaviour
        for behaviour in (
            members_of_a_group_may_share_a_cluster,
            an_assigned_consumer_reads_its_partitions,
            a_consumer_seeks_and_pauses,
            an_offset_out_of_range_follows_the_reset_policy,
            raw_poll_returns_whole_batches,
            a_poll_returns_at_most_max_poll_records,
            invalid_calls_raise_clear_errors,
            an_unknown_partition_is_an_error,
            cooperative_members_keep_their_partitions,
            eager_members_revoke_everything_first,
            a_pattern_matches_topics_created_later,
            added_partitions_are_assigned,
            a_topic_may_be_created_after_its_subscription,
            a_changed_subscription_causes_a_rebalance,
            a_static_member_restarts_without_a_rebalance,
            a_duplicate_instance_id_is_fenced,
            a_member_that_does_not_poll_leaves_the_group,
            offsets_are_committed_and_resumed,
            consumed_offsets_are_auto_committed,
            an_error_in_user_code_commits_nothing,
            consumed_offsets_are_committed_before_a_rebalance,
            a_callback_may_commit_and_seek,
            a_commit_outside_of_a_membership_is_rejected,
            close_ends_an_iteration,
        )
    },
}
