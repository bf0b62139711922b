"""Moldau's transactional producer, read_committed and exactly_once. The same tests run against Apache Kafka."""

import asyncio
import random
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from types import ModuleType
from typing import Any

import pytest

from moldau.client import (
    Admin,
    Cluster,
    Consumer,
    IllegalStateError,
    KafkaError,
    Producer,
    ProducerFencedError,
    RequestTimedOutError,
    TopicPartition,
    TransactionAbortableError,
    exactly_once,
)
from moldau.client.consumer.offset_lookup import LATEST, list_offsets
from support import exactly_once_worker
from support.topics import unique

DEADLINE_S = 60
PARTITIONS = 3
KILLS = 10
KILL_DEADLINE_S = 240


@pytest.fixture(scope="module")
def transaction_version() -> int:
    """The finalized level of the feature."""
    return 2


def run(test: Coroutine[Any, Any, None], deadline_s: float = DEADLINE_S) -> None:
    async def limited() -> None:
        async with asyncio.timeout(deadline_s):
            await test

    asyncio.run(limited())


@asynccontextmanager
async def with_topics(bootstrap: str, count: int = 1) -> AsyncIterator[tuple[Cluster, list[str]]]:
    async with Cluster(bootstrap) as cluster, Admin(cluster) as admin:
        names = [unique() for _ in range(count)]
        for name in names:
            await admin.create_topic(name, PARTITIONS)
            for index in range(PARTITIONS):
                await cluster.leader_of(TopicPartition(name, index))
        yield cluster, names


def transactional(cluster: Cluster, **settings: Any) -> Producer:
    return Producer(cluster, **{"transactional_id": unique("billing"), "linger_ms": 0, **settings})


def group_consumer(cluster: Cluster, group: str, **settings: Any) -> Consumer:
    defaults = {"isolation_level": "read_committed", "enable_auto_commit": False, "auto_offset_reset": "earliest"}
    return Consumer(cluster=cluster, group_id=group, **{**defaults, **settings})


async def read_all(cluster: Cluster, topic: str, isolation_level: Any = "read_committed") -> list[list[bytes | None]]:
    """Returns the values of each partition. Waits for transactions that are open or being completed."""
    partitions = [TopicPartition(topic, index) for index in range(PARTITIONS)]
    found: list[list[bytes | None]] = [[] for _ in partitions]
    async with Consumer(cluster=cluster, isolation_level=isolation_level, auto_offset_reset="earliest") as consumer:
        consumer.assign(partitions)
        ends = await list_offsets(cluster, dict.fromkeys(partitions, LATEST))
        while any([await consumer.position(each) < ends[each].offset for each in partitions]):
            for record in await consumer.poll(100):
                found[record.partition].append(record.value)
    return found


async def values(cluster: Cluster, topic: str, isolation_level: Any = "read_committed") -> list[bytes | None]:
    return sorted(value for each in await read_all(cluster, topic, isolation_level) for value in each if value)


async def send_all(producer: Producer, topic: str, *sent: bytes) -> None:
    for number, value in enumerate(sent):
        await producer.send(topic, value, partition=number % PARTITIONS)


# Transactions


def test_only_committed_records_are_read(bootstrap: str) -> None:
    async def test() -> None:
        async with with_topics(bootstrap) as (cluster, [topic]), transactional(cluster) as producer:
            async with producer.transaction():
                await send_all(producer, topic, b"a1", b"a2", b"a3", b"a4")
            transaction = producer.transaction()
            await transaction.begin()
            await send_all(producer, topic, b"b1", b"b2", b"b3")
            await producer.flush()
            await transaction.abort()
            async with producer.transaction():
                await send_all(producer, topic, b"c1")
            assert await values(cluster, topic) == [b"a1", b"a2", b"a3", b"a4", b"c1"]
            assert await values(cluster, topic, "read_uncommitted") == [
                b"a1", b"a2", b"a3", b"a4", b"b1", b"b2", b"b3", b"c1",
            ]  # fmt: skip

    run(test())


def test_many_transactions_follow_each_other(bootstrap: str) -> None:
    async def test() -> None:
        async with with_topics(bootstrap) as (cluster, [topic]), transactional(cluster) as producer:
            expected = []
            for number in range(60):
                transaction = producer.transaction()
                await transaction.begin()
                sent = [b"%03d-%d" % (number, each) for each in range(number % 5)]
                await send_all(producer, topic, *sent)
                if number % 3:
                    await transaction.commit()
                    expected += sent
                else:
                    if number % 2:
                        await producer.flush()
                    await transaction.abort()
            assert await values(cluster, topic) == expected

    run(test())


def test_concurrent_transactions_on_the_same_partitions(bootstrap: str) -> None:
    async def test() -> None:
        async def write(cluster: Cluster, topic: str, name: int, committed: list[bytes]) -> None:
            generator = random.Random(name)
            async with transactional(cluster) as producer:
                for number in range(15):
                    transaction = producer.transaction()
                    await transaction.begin()
                    sent = [b"%d-%02d-%d" % (name, number, each) for each in range(4)]
                    for value in sent:
                        await (await producer.send(topic, value, partition=generator.randrange(PARTITIONS)))
                    if generator.random() < 0.5:
                        await transaction.commit()
                        committed += sent
                    else:
                        await transaction.abort()

        async with with_topics(bootstrap) as (cluster, [topic]):
            committed: list[bytes] = []
            await asyncio.gather(*(write(cluster, topic, name, committed) for name in range(4)))
            assert await values(cluster, topic) == sorted(committed)

    run(test())


def test_an_open_transaction_holds_readers_back(bootstrap: str) -> None:
    async def test() -> None:
        async with (
            with_topics(bootstrap) as (cluster, [topic]),
            transactional(cluster) as producer,
            Producer(cluster) as plain,
        ):
            partition = TopicPartition(topic, 0)
            await (await plain.send(topic, b"before", partition=0))
            async with producer.transaction():
                await (await producer.send(topic, b"open", partition=0))
                await (await plain.send(topic, b"after", partition=0))
                async with Consumer(
                    cluster=cluster, isolation_level="read_committed", auto_offset_reset="earliest"
                ) as consumer:
                    consumer.assign([partition])
                    assert (await consumer.end_offsets([partition]))[partition] == 1
                    assert [record.value for record in await consumer.poll(5_000)] == [b"before"]
                    assert await consumer.poll(500) == []
            assert (await read_all(cluster, topic))[0] == [b"before", b"open", b"after"]

    run(test())


def test_large_transactions_with_several_batches_in_flight(bootstrap: str) -> None:
    async def test() -> None:
        async with with_topics(bootstrap) as (cluster, [topic]), transactional(cluster, batch_size=2_000) as producer:
            expected = [b"%06d" % number for number in range(5_000)]
            async with producer.transaction():
                await send_all(producer, topic, *expected)
            assert await values(cluster, topic) == expected
            for each in await read_all(cluster, topic):
                assert each == sorted(each)  # type: ignore[type-var]

    run(test())


def test_a_second_producer_fences_the_first(bootstrap: str) -> None:
    async def test() -> None:
        async with with_topics(bootstrap) as (cluster, [topic]):
            first, second = (transactional(cluster, transactional_id=topic) for _ in range(2))
            await first.start()
            transaction = first.transaction()
            await transaction.begin()
            await (await first.send(topic, b"lost", partition=0))
            async with second:
                with pytest.raises(ProducerFencedError, match="another producer"):
                    await transaction.commit()
                with pytest.raises(ProducerFencedError):
                    await first.send(topic, b"lost", partition=0)
                with pytest.raises(ProducerFencedError):
                    await first.transaction().begin()
                async with second.transaction():
                    await second.send(topic, b"kept", partition=0)
            await first.close()
            assert await values(cluster, topic) == [b"kept"]

    run(test())


def test_a_fenced_producer_cannot_write(bootstrap: str) -> None:
    async def write(producer: Producer, topic: str) -> None:
        async with producer.transaction():
            await send_all(producer, topic, b"lost")

    async def test() -> None:
        async with with_topics(bootstrap) as (cluster, [topic]):
            first, second = (transactional(cluster, transactional_id=topic) for _ in range(2))
            await first.start()
            async with second:
                with pytest.raises(ProducerFencedError):
                    await write(first, topic)
            await first.close()
            assert await values(cluster, topic) == []

    run(test())


def test_a_transaction_beyond_its_timeout_is_aborted(bootstrap: str, transaction_version: int) -> None:
    async def write(producer: Producer, topic: str) -> None:
        async with producer.transaction():
            await (await producer.send(topic, b"late", partition=0))
            async with Consumer(cluster=producer._cluster, isolation_level="read_committed") as consumer:
                partition = TopicPartition(topic, 0)
                # Wait until the coordinator has aborted: readers are no longer held back.
                while (await consumer.end_offsets([partition]))[partition] == 0:
                    await asyncio.sleep(0.1)

    async def test() -> None:
        async with with_topics(bootstrap) as (cluster, [topic]):
            producer = transactional(cluster, transaction_timeout_ms=2_000)
            await producer.start()
            if transaction_version < 2:
                with pytest.raises(ProducerFencedError, match="transaction_timeout_ms"):
                    await write(producer, topic)
            else:
                with pytest.raises(TransactionAbortableError, match="transaction_timeout_ms"):
                    await write(producer, topic)
                async with producer.transaction():
                    await producer.send(topic, b"next", partition=0)
            await producer.close()
            assert await values(cluster, topic) == ([b"next"] if transaction_version >= 2 else [])

    run(test())


def test_a_closed_producer_leaves_no_open_transaction(bootstrap: str) -> None:
    async def test() -> None:
        async with with_topics(bootstrap) as (cluster, [topic]):
            producer = transactional(cluster)
            await producer.start()
            await producer.transaction().begin()
            await (await producer.send(topic, b"lost", partition=0))
            await producer.close()
            async with Producer(cluster) as plain:
                await plain.send(topic, b"plain", partition=0)
            assert await values(cluster, topic) == [b"plain"]

    run(test())


# Offsets


def test_offsets_are_committed_with_the_transaction(bootstrap: str) -> None:
    async def test() -> None:
        async with with_topics(bootstrap) as (cluster, [topic]), transactional(cluster) as producer:
            group, partition = unique("group"), TopicPartition(topic, 0)
            async with group_consumer(cluster, group) as consumer, producer.transaction() as transaction:
                await transaction.send_offsets({partition: 5}, group)
                await transaction.send_offsets({partition: 7}, consumer_of(consumer, partition))
            async with group_consumer(cluster, group) as consumer:
                found = (await consumer.committed([partition]))[partition]
                assert found is not None
                assert found.offset == 7
                transaction = producer.transaction()
                await transaction.begin()
                await transaction.send_offsets({partition: 9}, group)
                await transaction.abort()
                found = (await consumer.committed([partition]))[partition]
                assert found is not None
                assert found.offset == 7

    def consumer_of(consumer: Consumer, partition: TopicPartition) -> Consumer:
        consumer.assign([partition])
        return consumer

    run(test())


def test_a_consumer_that_was_replaced_cannot_commit_offsets(bootstrap: str) -> None:
    async def test() -> None:
        async with with_topics(bootstrap) as (cluster, [topic]), transactional(cluster) as producer:
            group, instance = unique("group"), unique("instance")
            async with Producer(cluster) as plain:
                await send_all(plain, topic, b"1", b"2", b"3")
            first = group_consumer(cluster, group, group_instance_id=instance)
            await first.start()
            first.subscribe([topic])
            while not (records := await first.poll(1_000)):
                pass
            partition = TopicPartition(topic, records[0].partition)
            transaction = producer.transaction()
            await transaction.begin()
            async with group_consumer(cluster, group, group_instance_id=instance) as second:
                second.subscribe([topic])
                while not await second.poll(1_000):
                    pass
                with pytest.raises(TransactionAbortableError) as raised:
                    await transaction.send_offsets({partition: 1}, first)
                assert raised.value.is_retriable
                await transaction.abort()
                assert (await second.committed([partition]))[partition] is None
            await first.close(commit=False)

    run(test())


# Exactly once


async def fill(cluster: Cluster, topic: str, count: int, first: int = 0) -> list[bytes]:
    sent = [b"%06d" % number for number in range(first, first + count)]
    async with Producer(cluster) as producer:
        await send_all(producer, topic, *sent)
    return sent


async def copy(consumer: Consumer, producer: Producer, target: str, **settings: Any) -> int:
    async with exactly_once(consumer, producer, **settings) as records:
        for record in records:
            await producer.send(target, record.value, key=record.key, partition=record.partition)
    return len(records)


def check_copy(found: Sequence[Sequence[bytes | None]], sent: Sequence[bytes]) -> None:
    """Checks that every record was copied once, and in order."""
    assert Counter(value for each in found for value in each) == Counter(sent)
    for each in found:
        assert list(each) == sorted(each)  # type: ignore[type-var]


def test_a_topic_is_copied(bootstrap: str) -> None:
    async def test() -> None:
        async with with_topics(bootstrap, 2) as (cluster, [source, target]):
            sent = await fill(cluster, source, 1_000)
            group = unique("group")
            async with transactional(cluster) as producer, group_consumer(cluster, group) as consumer:
                consumer.subscribe([source])
                copied = 0
                while copied < len(sent):
                    copied += await copy(consumer, producer, target)
                committed = await consumer.committed([TopicPartition(source, each) for each in range(PARTITIONS)])
            assert sum(each.offset for each in committed.values() if each is not None) == len(sent)
            check_copy(await read_all(cluster, target), sent)

    run(test())


def test_an_error_rewinds_the_consumer(bootstrap: str) -> None:
    async def fail(consumer: Consumer, producer: Producer, target: str) -> None:
        async with exactly_once(consumer, producer, max_records=50) as records:
            for record in records[: len(records) // 2]:
                await producer.send(target, record.value, partition=record.partition)
            await producer.flush()
            raise ZeroDivisionError

    async def test() -> None:
        async with with_topics(bootstrap, 2) as (cluster, [source, target]):
            sent = await fill(cluster, source, 300)
            async with transactional(cluster) as producer, group_consumer(cluster, unique("group")) as consumer:
                consumer.subscribe([source])
                copied = 0
                while copied < len(sent):
                    copied += await copy(consumer, producer, target, max_records=50)
                    if copied < len(sent):
                        with pytest.raises(ZeroDivisionError):
                            await fail(consumer, producer, target)
            check_copy(await read_all(cluster, target), sent)

    run(test())


def test_a_closed_producer_does_not_move_the_consumer(bootstrap: str) -> None:
    async def test() -> None:
        async with with_topics(bootstrap, 2) as (cluster, [source, target]):
            sent = await fill(cluster, source, 100)
            async with group_consumer(cluster, unique("group")) as consumer:
                consumer.subscribe([source])
                async with transactional(cluster) as closed:
                    copied = await copy(consumer, closed, target, max_records=10)
                with pytest.raises(IllegalStateError):
                    await copy(consumer, closed, target, max_records=10)
                async with transactional(cluster) as producer:
                    while copied < len(sent):
                        copied += await copy(consumer, producer, target)
            check_copy(await read_all(cluster, target), sent)

    run(test())


def test_a_transaction_that_cannot_be_committed_is_repeated(bootstrap: str) -> None:
    async def test() -> None:
        async with with_topics(bootstrap, 2) as (cluster, [source, target]):
            sent = await fill(cluster, source, 300)
            async with transactional(cluster) as producer, group_consumer(cluster, unique("group")) as consumer:
                consumer.subscribe([source])
                repeated = 0
                assert producer._transactions is not None
                send_offsets = producer._transactions.send_offsets

                async def refuse_some(*arguments: Any) -> None:
                    nonlocal repeated
                    if repeated < 3:
                        repeated += 1
                        arguments = (*arguments[:2], Outsider())
                    await send_offsets(*arguments)

                producer._transactions.send_offsets = refuse_some  # type: ignore[method-assign]
                while await values(cluster, target) != sent:
                    await copy(consumer, producer, target, max_records=50)
            assert repeated == 3
            check_copy(await read_all(cluster, target), sent)

    class Outsider:
        """A consumer that its group has removed."""

        def commit_metadata(self, partitions: Any) -> Any:
            raise KafkaError(25, "removed")

    run(test())


@pytest.mark.parametrize("is_sent", [True, False])
def test_a_commit_of_unknown_outcome_is_resolved_in_the_next_round(bootstrap: str, is_sent: bool) -> None:
    async def test() -> None:
        async with with_topics(bootstrap, 2) as (cluster, [source, target]):
            sent = await fill(cluster, source, 300)
            async with transactional(cluster) as producer, group_consumer(cluster, unique("group")) as consumer:
                consumer.subscribe([source])
                assert producer._transactions is not None
                send_end = producer._transactions._send_end
                lost = 0

                async def lose_some(committed: bool) -> Any:
                    nonlocal lost
                    if lost < 3 and committed:
                        lost += 1
                        if is_sent:
                            await send_end(committed)
                        raise KafkaError(13, "lost")
                    return await send_end(committed)

                producer._transactions._send_end = lose_some  # type: ignore[method-assign]
                while lost < 3:
                    with suppress(RequestTimedOutError):
                        await copy(consumer, producer, target, max_records=50)
                await producer.resolve_commit()
                while await values(cluster, target) != sent:
                    await copy(consumer, producer, target)
            check_copy(await read_all(cluster, target), sent)

    run(test())


def test_consumers_come_and_go(bootstrap: str) -> None:
    async def work(bootstrap: str, group: str, source: str, target: str, lifetime_s: float) -> None:
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + lifetime_s
        async with (
            Cluster(bootstrap) as cluster,
            transactional(cluster) as producer,
            group_consumer(cluster, group) as consumer,
        ):
            consumer.subscribe([source])
            while loop.time() < ends_at:
                await copy(consumer, producer, target, timeout_ms=100, max_records=20)

    async def test() -> None:
        async with with_topics(bootstrap, 2) as (cluster, [source, target]):
            sent = await fill(cluster, source, 3_000)
            group = unique("group")
            generator = random.Random(7)

            async def keep_working() -> None:
                for _ in range(4):
                    await work(bootstrap, group, source, target, generator.uniform(0.2, 2))

            await asyncio.gather(*(keep_working() for _ in range(3)))
            while await values(cluster, target) != sent:
                await work(bootstrap, group, source, target, 1)
            check_copy(await read_all(cluster, target), sent)

    run(test(), 120)


def test_the_consumer_must_be_transactional(bootstrap: str) -> None:
    async def test() -> None:
        async with with_topics(bootstrap) as (cluster, [topic]), transactional(cluster) as producer:
            for settings in ({"isolation_level": "read_uncommitted"}, {"enable_auto_commit": True}):
                async with group_consumer(cluster, "group", **settings) as consumer:
                    consumer.subscribe([topic])
                    with pytest.raises(ValueError, match="enable_auto_commit=False"):
                        await copy(consumer, producer, topic)

    run(test())


def test_a_killed_process_loses_and_doubles_nothing(bootstrap: str) -> None:
    """Kills the only worker again and again; each successor has the same transactional id."""

    async def test() -> None:
        generator = random.Random(15)
        async with with_topics(bootstrap, 2) as (cluster, [source, target]):
            sent = await fill(cluster, source, 6_000)
            arguments = (bootstrap, source, target, unique("group"), unique("worker"), "--static")
            copied = 0
            for _ in range(KILLS):
                worker = Worker(*arguments)
                try:
                    await worker.commits(generator.randint(1, 10))
                    await asyncio.sleep(generator.uniform(0, 0.05))
                finally:
                    worker.kill()
                copied += worker.copied
            assert copied < len(sent), "the worker was too fast for the kills"
            worker = Worker(*arguments)
            try:
                while await values(cluster, target) != sent:
                    await asyncio.sleep(0.5)
            finally:
                worker.kill()
            check_copy(await read_all(cluster, target), sent)

    run(test(), KILL_DEADLINE_S)


class Worker:
    """A process that copies a topic, how many transactions it has committed, and how many records."""

    def __init__(self, *arguments: str, module: ModuleType = exactly_once_worker) -> None:
        command = [sys.executable, str(module.__file__), *arguments]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE)
        self.committed = self.copied = 0
        self._reader = threading.Thread(target=self._count)
        self._reader.start()

    def _count(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.committed += 1
            self.copied += int(line)

    async def commits(self, count: int) -> None:
        """Waits until the process has committed this many transactions more."""
        wanted = self.committed + count
        while self.committed < wanted:
            assert self.process.poll() is None, "the worker ended by itself"
            await asyncio.sleep(0.005)

    def kill(self) -> None:
        """Kills the process with SIGKILL."""
        self.process.kill()
        self.process.wait()
        self._reader.join()
        assert self.process.stdout is not None
        self.process.stdout.close()
