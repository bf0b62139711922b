"""The plan of an audit: which partitions to compare, up to which offsets, and how."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from moldau.client.admin.admin import Admin
from moldau.client.admin.types import ConfigResource, ResourceType
from moldau.client.consumer.offset_lookup import EARLIEST, LATEST, list_offsets
from moldau.client.errors import KafkaError
from moldau.client.net.cluster import Cluster
from moldau.client.net.metadata import NO_LEADER, PartitionInfo, TopicInfo
from moldau.client.record import TopicPartition

READ_COMMITTED = 1
_CLEANUP_POLICY = "cleanup.policy"


class PlannedPartition(NamedTuple):
    """A partition to compare."""

    topic: str
    partition: int
    leader: int
    """The id of the leader; NO_LEADER if there is none."""
    brokers: tuple[int, ...]
    """The brokers whose replicas are compared, the leader first."""
    out_of_sync: tuple[int, ...]
    """Those of `brokers` that are not in the ISR."""
    down: tuple[int, ...]
    """The brokers with a replica that cannot be read, because they are down."""
    start: int
    end: int
    """The high watermark, or the last stable offset if the latest values of the keys are compared."""
    by_key: bool
    """Whether to compare the latest value of each key instead of the batches, because each replica compacts its log
    on its own."""

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    @property
    def is_readable(self) -> bool:
        return self.leader != NO_LEADER


async def plan_audit(cluster: Cluster, topics: Sequence[str] | None = None) -> list[PlannedPartition]:
    """Returns the partitions of `topics` (None: of all topics, also internal ones). Raises KafkaError."""
    admin = Admin(cluster)
    if topics is None:
        described = await admin.list_topics(internal=True)
    else:
        described = [await admin.describe_topic(each) for each in dict.fromkeys(topics)]
    compacted = await _compacted_topics(admin, [each.name for each in described])
    # A node is among the brokers of the metadata until its death is noticed, but is offline at once.
    live = set(cluster.brokers)
    led: dict[bool, list[TopicPartition]] = {False: [], True: []}
    for topic in described:
        for each in topic.partitions:
            if each.leader != NO_LEADER:
                led[topic.name in compacted].append(TopicPartition(topic.name, each.index))
    partitions = led[False] + led[True]
    starts, ends, stable_ends = await asyncio.gather(
        list_offsets(cluster, dict.fromkeys(partitions, EARLIEST)),
        list_offsets(cluster, dict.fromkeys(led[False], LATEST)),
        list_offsets(cluster, dict.fromkeys(led[True], LATEST), isolation_level=READ_COMMITTED),
    )
    ends |= stable_ends
    return [
        _plan_partition(
            topic,
            each,
            live,
            start=starts[partition].offset if partition in starts else 0,
            end=ends[partition].offset if partition in ends else 0,
            by_key=topic.name in compacted,
        )
        for topic in described
        for each in topic.partitions
        for partition in [TopicPartition(topic.name, each.index)]
    ]


def _plan_partition(
    topic: TopicInfo, partition: PartitionInfo, live: set[int], *, start: int, end: int, by_key: bool
) -> PlannedPartition:
    readable = [each for each in partition.replicas if each in live and each not in partition.offline]
    readable.sort(key=lambda broker: (broker != partition.leader, broker))
    return PlannedPartition(
        topic.name,
        partition.index,
        partition.leader,
        tuple(readable),
        tuple(each for each in readable if each not in partition.in_sync),
        tuple(sorted(set(partition.replicas) - set(readable))),
        min(start, end),
        end,
        by_key,
    )


async def _compacted_topics(admin: Admin, topics: Iterable[str]) -> set[str]:
    resources = [ConfigResource(ResourceType.TOPIC, each) for each in topics]
    compacted = set()
    for resource, configs in (await admin.describe_configs(resources, names=[_CLEANUP_POLICY])).items():
        if isinstance(configs, KafkaError):
            raise configs
        policy = configs[_CLEANUP_POLICY].value or ""
        if "compact" in policy.split(","):
            compacted.add(resource.name)
    return compacted


async def log_starts(cluster: Cluster, partitions: Iterable[PlannedPartition]) -> Mapping[TopicPartition, int]:
    """Returns the current log start offsets of the leaders: retention may have advanced them during the audit."""
    found = await list_offsets(cluster, {each.topic_partition: EARLIEST for each in partitions})
    return {partition: each.offset for partition, each in found.items()}


async def last_stable_offsets(cluster: Cluster, partitions: Iterable[PlannedPartition]) -> Mapping[TopicPartition, int]:
    """Returns the current last stable offsets of the partitions."""
    times = {each.topic_partition: LATEST for each in partitions}
    found = await list_offsets(cluster, times, isolation_level=READ_COMMITTED)
    return {partition: each.offset for partition, each in found.items()}
