"""A run of the audit: plan, comparison on Spark, and the details of the differences."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from moldau.client.errors import KafkaError
from moldau.client.net.cluster import Cluster
from moldau.errors import MoldauError
from moldau.spark.audit.batch_difference import describe_difference
from moldau.spark.audit.comparison import ReplicaComparison
from moldau.spark.audit.findings import Difference, PartitionResult, partition_results
from moldau.spark.audit.groups import Group
from moldau.spark.audit.plan import PlannedPartition, last_stable_offsets, log_starts, plan_audit
from moldau.spark.errors import user_facing_errors
from moldau.spark.loop_thread import event_loop_thread
from moldau.spark.source.replica_reader import ReplicaReader, ReplicaReadError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STALL_TIMEOUT_MS = 30_000
_DESCRIBED_MAX = 100
"""How many differing batches are fetched again to describe them."""


@dataclass(frozen=True, slots=True)
class AuditOptions:
    connection: Mapping[str, Any]
    """The arguments of `Cluster`. All values must be hashable."""
    topics: tuple[str, ...] | None = None
    """None for all topics, also internal ones."""
    stall_timeout_ms: int = STALL_TIMEOUT_MS
    """How long a replica may make no progress towards the high watermark."""


def audit(spark: "SparkSession", options: AuditOptions) -> list[PartitionResult]:
    """Compares all replicas of the topics up to the high watermark. Raises KafkaError and SparkSourceError."""
    thread = event_loop_thread()
    cluster = thread.run(thread.cluster(options.connection))
    planned = thread.run(plan_audit(cluster, options.topics))
    comparison = ReplicaComparison(
        spark, [each for each in planned if each.is_readable], options.connection, options.stall_timeout_ms
    )
    starts: Mapping[Any, int] = {}
    groups: list[Group] = []
    if comparison.has_tasks:
        try:
            with user_facing_errors(str(options.connection["bootstrap"])):
                groups = comparison.groups()
                differing = _differing(planned, groups)
                if differing:
                    starts = thread.run(log_starts(cluster, differing))
                    ends = thread.run(last_stable_offsets(cluster, differing))
                    newer = [
                        each._replace(start=each.end, end=ends[each.topic_partition], brokers=(each.leader,))
                        for each in differing
                        if each.by_key
                    ]
                    groups = comparison.regroup(starts, newer)
        finally:
            comparison.close()
    results = partition_results(planned, groups, starts)
    return thread.run(_describe(cluster, results, options))


def _differing(planned: Sequence[PlannedPartition], groups: Sequence[Group]) -> list[PlannedPartition]:
    names = {each.partition for each in groups if not each.is_equal}
    return [each for each in planned if each.topic_partition in names]


async def _describe(
    cluster: Cluster, results: Sequence[PartitionResult], options: AuditOptions
) -> list[PartitionResult]:
    described, count = [], 0
    for result in results:
        differences = []
        for each in result.differences:
            if each.reference is not None and each.key is None and count < _DESCRIBED_MAX:
                count += 1
                each = await _describe_batch(cluster, result.planned, each, options)
            differences.append(each)
        described.append(replace(result, differences=tuple(differences)))
    return described


async def _describe_batch(
    cluster: Cluster, planned: PlannedPartition, difference: Difference, options: AuditOptions
) -> Difference:
    """Fetches both copies of a batch again, and adds what differs in them."""
    assert difference.offset is not None
    assert difference.reference is not None
    batches = []
    for broker in (difference.replica, difference.reference):
        reader = ReplicaReader(
            cluster,
            broker,
            planned.topic_partition,
            difference.offset,
            planned.end,
            stall_timeout_ms=options.stall_timeout_ms,
        )
        try:
            batches.append(await reader.read_batch(difference.offset))
        except (KafkaError, ReplicaReadError, MoldauError):
            # The comparison has found the difference. Its details are optional, and the replica may be unreadable.
            return difference
    if batches[0].base_offset != difference.offset or batches[1].base_offset != difference.offset:
        return difference
    detail = describe_difference(*batches)
    what = f"{difference.what}: {detail}" if detail else f"{difference.what}, but was repaired since"
    return replace(difference, what=what)
