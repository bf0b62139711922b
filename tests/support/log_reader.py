"""Reads topics to their end."""

import asyncio

from moldau.client.consumer.consumer import Consumer
from moldau.client.net.cluster import Cluster
from moldau.client.record import ConsumerRecord, TopicPartition


def all_records(bootstrap: str, topic: str, timeout_s: float | None = None) -> list[ConsumerRecord]:
    """Returns all records by partition and offset; none if the topic does not exist."""
    return asyncio.run(asyncio.wait_for(_all_records(bootstrap, topic), timeout_s))


async def _all_records(bootstrap: str, topic: str) -> list[ConsumerRecord]:
    async with Cluster(bootstrap) as cluster, Consumer(cluster=cluster) as consumer:
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
