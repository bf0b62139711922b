"""Reads the latest report of every query from the topic of reports."""

import asyncio

from moldau.client.consumer.consumer import Consumer
from moldau.client.errors import RequestTimedOutError
from moldau.client.net.cluster import Cluster
from moldau.client.record import TopicPartition
from moldau.pipelines.query_report import REPORT_TOPIC, LatestReports, QueryReport


async def read_reports(cluster: Cluster, topic: str = REPORT_TOPIC) -> list[QueryReport]:
    """Returns the reports by pipeline and query; none if the topic does not exist. Raises KafkaError, also if no
    report arrives for the request timeout."""
    await cluster.refresh([topic])
    known = cluster.topics.get(topic)
    if known is None:
        return []
    partitions = [TopicPartition(topic, each.index) for each in known.partitions]
    reports = LatestReports()
    loop = asyncio.get_running_loop()
    timeout_s = cluster.request_timeout_ms / 1000
    async with Consumer(cluster=cluster) as consumer:
        ends = await consumer.end_offsets(partitions)
        consumer.assign(partitions)
        consumer.seek_to_beginning(partitions)
        deadline = loop.time() + timeout_s
        while any([await consumer.position(each) < ends[each] for each in partitions]):
            records = await consumer.poll()
            for record in records:
                reports.add(record.key, record.value)
            if records:
                deadline = loop.time() + timeout_s
            elif loop.time() >= deadline:
                # The leader is missing, or records were lost after the ends were known.
                raise RequestTimedOutError(f"{topic} could not be read to its end")
    return list(reports)
