"""Reads the latest report of every query from the topic of reports."""

from moldau.client.consumer.consumer import Consumer
from moldau.client.net.cluster import Cluster
from moldau.client.record import TopicPartition
from moldau.pipelines.query_report import REPORT_TOPIC, LatestReports, QueryReport


async def read_reports(cluster: Cluster, topic: str = REPORT_TOPIC) -> list[QueryReport]:
    """Returns the reports by pipeline and query; none if the topic does not exist. Raises KafkaError."""
    await cluster.refresh([topic])
    known = cluster.topics.get(topic)
    if known is None:
        return []
    partitions = [TopicPartition(topic, each.index) for each in known.partitions]
    reports = LatestReports()
    async with Consumer(cluster=cluster) as consumer:
        ends = await consumer.end_offsets(partitions)
        consumer.assign(partitions)
        consumer.seek_to_beginning(partitions)
        while any([await consumer.position(each) < ends[each] for each in partitions]):
            for record in await consumer.poll():
                reports.add(record.key, record.value)
    return list(reports)
