"""Reads topics to their end."""

import asyncio
from typing import Literal

from moldau.client.consumer.consumer import Consumer
from moldau.client.net.cluster import Cluster
from moldau.client.record import ConsumerRecord, TopicPartition

IsolationLevel = Literal["read_uncommitted", "read_committed"]


def all_records(
    bootstrap: str, topic: str, timeout_s: float | None = None, isolation_level: IsolationLevel = "read_uncommitted"
) -> list[ConsumerRecord]:
    """Returns all records by partition and offset; none if the topic does not exist."""
    return asyncio.run(asyncio.wait_for(_all_records(bootstrap, topic, isolation_level), timeout_s))


def committed_records(bootstrap: str, topic: str, timeout_s: float = 30) -> list[ConsumerRecord]:
    """Waits until no transaction is open, and returns all committed records by partition and offset."""
    return asyncio.run(asyncio.wait_for(_committed_records(bootstrap, topic), timeout_s))


async def _committed_records(bootstrap: str, topic: str) -> list[ConsumerRecord]:
    async with (
        Cluster(bootstrap) as cluster,
        Consumer(cluster=cluster) as reader,
        Consumer(cluster=cluster, isolation_level="read_committed") as committed_reader,
    ):
        await cluster.wait_for_topics([topic], timeout_ms=10_000)
        partitions = [TopicPartition(topic, each.index) for each in cluster.topics[topic].partitions]
        while await committed_reader.end_offsets(partitions) != await reader.end_offsets(partitions):
            await asyncio.sleep(0.02)
    return await _all_records(bootstrap, topic, "read_committed")


async def _all_records(bootstrap: str, topic: str, isolation_level: IsolationLevel) -> list[ConsumerRecord]:
    async with Cluster(bootstrap) as cluster, Consumer(cluster=cluster, isolation_level=isolation_level) as consumer:
        await cluster.refresh([topic])
        if topic not in cluster.topics:
            return []
        partitions = [TopicPartition(topic, each.index) for each in cluster.topics[topic].partitions]
        ends = await consumer.end_offsets(partitions)
        consumer.assign(partitions)
        consumer.seek_to_beginning(partitions)
        found: list[ConsumerRecord] = []
        while any([await consumer.position(each) < ends[each] for each in partitions]):
            found += await consumer.poll()
    return sorted(found, key=lambda each: (each.partition, each.offset))
