"""Redrive of dead letters over a real broker."""

import asyncio
from collections import Counter
from dataclasses import replace

import pytest

from moldau.client import Consumer, Producer, TopicPartition
from moldau.client.record import ConsumerRecord
from moldau.pipelines.definition import BadRecordPolicy, PipelineDefinition, PipelineError, Sink, SinkKind, Source
from moldau.pipelines.records.redrive import RedriveResult, redrive
from moldau.testing import Broker

DEAD = "orders.dead"


def pipeline(broker: Broker) -> PipelineDefinition:
    return PipelineDefinition(
        "p",
        (Source("orders", ("orders",)),),
        (),
        (Sink("screen", SinkKind.CONSOLE, view="orders"),),
        bootstrap=broker.bootstrap,
        on_bad=BadRecordPolicy.DEAD_LETTER,
        dead_letter_topic=DEAD,
    )


async def bury(broker: Broker, count: int, *, topic: str = "orders", partition: int = 0, pipeline: str = "p") -> None:
    async with Producer(broker.bootstrap) as producer:
        for number in range(count):
            headers = [
                ("mine", b"x"),
                ("moldau.error.topic", topic.encode()),
                ("moldau.error.partition", b"1"),
                ("moldau.error.timestamp", str(1000 + number).encode()),
                ("moldau.error.detail", b"because"),
                ("moldau.error.pipeline", pipeline.encode()),
            ]
            value = f"v{number}".encode()
            await producer.send(DEAD, value, key=b"k", partition=partition, headers=headers)
        await producer.flush()


async def records(broker: Broker, topic: str, partitions: int) -> list[ConsumerRecord]:
    async with Consumer(broker.bootstrap, auto_offset_reset="earliest") as consumer:
        locations = [TopicPartition(topic, each) for each in range(partitions)]
        consumer.assign(locations)
        ends = await consumer.end_offsets(locations)
        found: list[ConsumerRecord] = []
        while len(found) < sum(ends.values()):
            found += await consumer.poll(1_000)
        return found


def test_dead_letters_are_sent_back_with_key_value_timestamp_and_headers() -> None:
    async def run() -> None:
        async with Broker(topics={"orders": 3, DEAD: 2}) as broker:
            await bury(broker, 2)
            await bury(broker, 1, partition=1)
            assert await redrive(pipeline(broker)) == RedriveResult(Counter(orders=3))
            back = await records(broker, "orders", 3)
            assert sorted(each.value or b"" for each in back) == [b"v0", b"v0", b"v1"]
            assert {(each.key, each.partition) for each in back} == {(b"k", 1)}
            assert {each.timestamp for each in back} == {1000, 1001}
            assert {each.headers for each in back} == {(("mine", b"x"), ("moldau.redriven", b"1"))}

    asyncio.run(run())


def test_dead_letters_are_sent_back_once() -> None:
    async def run() -> None:
        async with Broker(topics={"orders": 2, DEAD: 1}) as broker:
            await bury(broker, 3)
            assert (await redrive(pipeline(broker), limit=2)).count == 2
            assert (await redrive(pipeline(broker))).count == 1
            assert (await redrive(pipeline(broker))).count == 0
            await bury(broker, 1)
            assert (await redrive(pipeline(broker))).count == 1
            assert len(await records(broker, "orders", 2)) == 4

    asyncio.run(run())


def test_a_dry_run_sends_and_commits_nothing() -> None:
    async def run() -> None:
        async with Broker(topics={"orders": 2, DEAD: 1}) as broker:
            await bury(broker, 3)
            expected = RedriveResult(Counter(orders=3))
            assert await redrive(pipeline(broker), dry_run=True) == expected
            assert await records(broker, "orders", 2) == []
            assert await redrive(pipeline(broker)) == expected

    asyncio.run(run())


def test_other_records_are_skipped_and_counted() -> None:
    async def run() -> None:
        async with Broker(topics={"orders": 2, DEAD: 1}) as broker:
            async with Producer(broker.bootstrap) as producer:
                await (await producer.send(DEAD, b"stray"))
            await bury(broker, 1)
            assert await redrive(pipeline(broker)) == RedriveResult(Counter(orders=1), skipped=1)

    asyncio.run(run())


def test_pipelines_that_share_a_topic_send_back_their_own_dead_letters_only() -> None:
    async def run() -> None:
        async with Broker(topics={"orders": 2, DEAD: 1}) as broker:
            await bury(broker, 2, pipeline="other")
            await bury(broker, 1)
            await bury(broker, 1, pipeline="other")
            mine, other = pipeline(broker), replace(pipeline(broker), name="other")
            assert await redrive(mine, limit=1) == RedriveResult(Counter(orders=1), others=2)
            assert await redrive(mine) == RedriveResult(others=1)
            assert await redrive(other) == RedriveResult(Counter(orders=3), others=1)

    asyncio.run(run())


def test_without_its_partition_a_record_is_partitioned_by_key() -> None:
    async def run() -> None:
        async with Broker(topics={"orders": 1, DEAD: 1}) as broker:
            await bury(broker, 1)
            assert (await redrive(pipeline(broker))).count == 1
            assert [each.partition for each in await records(broker, "orders", 1)] == [0]

    asyncio.run(run())


def test_a_missing_dead_letter_topic_is_named() -> None:
    async def run() -> None:
        async with Broker(topics={"orders": 1}) as broker:
            with pytest.raises(PipelineError, match="the topic none does not exist: no dead letter was written yet"):
                await redrive(replace(pipeline(broker), dead_letter_topic="none"))

    asyncio.run(run())


def test_an_unreachable_cluster_is_named() -> None:
    one = PipelineDefinition(
        "p", (), (), (), bootstrap="127.0.0.1:1", kafka={"request.timeout.ms": "300"}, dead_letter_topic=DEAD
    )
    with pytest.raises(PipelineError, match=r"not all dead letters of .* were sent back.*127\.0\.0\.1:1"):
        asyncio.run(redrive(one))
