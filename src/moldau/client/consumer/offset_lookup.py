"""Asks partitions' leaders for offsets: of the log's start and end, or of the first record at or after a time."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from moldau.client.errors import ErrorCode, KafkaError
from moldau.client.net.cluster import Cluster, Retry
from moldau.client.net.metadata import NO_LEADER
from moldau.client.record import TopicPartition
from moldau.wire.api_keys import ApiKey

EARLIEST, LATEST, MAX_TIMESTAMP = -2, -1, -3
"""What `list_offsets` takes in the place of a time."""


class OffsetAndTimestamp(NamedTuple):
    offset: int
    timestamp: int
    """Of the record found, in milliseconds since 1970."""
    leader_epoch: int = -1


OffsetsCallback = Callable[[dict[TopicPartition, OffsetAndTimestamp]], None]
"""Hears what a leader has answered, as soon as it has."""


async def list_offsets(
    cluster: Cluster,
    times: Mapping[TopicPartition, int],
    *,
    isolation_level: int = 0,
    timeout_ms: int | None = None,
) -> dict[TopicPartition, OffsetAndTimestamp]:
    """For each partition the offset of its time, which may be EARLIEST, LATEST or MAX_TIMESTAMP. Those are left out
    that have no record at or after theirs. Raises KafkaError when some partition cannot be asked in time."""
    found: dict[TopicPartition, OffsetAndTimestamp] = {}
    left = dict(times)
    retry = cluster.retry(timeout_ms)

    def take(answered: dict[TopicPartition, OffsetAndTimestamp]) -> None:
        for partition, offset in answered.items():
            del left[partition]
            if offset.offset >= 0:
                found[partition] = offset

    while left:
        by_leader, failure = await _group_by_leader(cluster, left, retry)
        failure = await _query_leaders(cluster, by_leader, isolation_level, retry, take) or failure
        if failure is not None:
            await retry.wait_or_raise(failure)
            cluster.refresh_soon()
    return found


async def list_offsets_once(
    cluster: Cluster, times: Mapping[TopicPartition, int], take: OffsetsCallback, *, isolation_level: int = 0
) -> None:
    """One attempt at what `list_offsets` does, for those who go on with the partitions that can be asked: none of
    them waits for another's leader. Raises KafkaError at the end if there were some that could not."""
    retry = cluster.retry()
    unknown = dict.fromkeys(each.topic for each in times if cluster.partition_info(each) is None)
    if unknown:
        await cluster.refresh(unknown, timeout_ms=retry.remaining_ms)
    by_leader: dict[int, dict[TopicPartition, int]] = {}
    for partition, time in times.items():
        by_leader.setdefault(cluster.known_leader_of(partition), {})[partition] = time
    without = by_leader.pop(NO_LEADER, {})
    failure = await _query_leaders(cluster, by_leader, isolation_level, retry, take)
    if failure is None and without:
        for partition in without:
            if cluster.partition_info(partition) is None:
                # It may be on its way: that there is none is said only when it has not come in time.
                await cluster.leader_of(partition, timeout_ms=retry.remaining_ms)
        names = ", ".join(map(str, without))
        failure = KafkaError(ErrorCode.leader_not_available, f"no leader to ask for an offset of {names}")
    if failure is not None:
        cluster.refresh_soon()
        raise failure


async def _group_by_leader(
    cluster: Cluster, times: Mapping[TopicPartition, int], retry: Retry
) -> tuple[dict[int, dict[TopicPartition, int]], KafkaError | None]:
    failure: KafkaError | None = None
    by_leader: dict[int, dict[TopicPartition, int]] = {}
    for partition, time in times.items():
        try:
            leader = await cluster.leader_of(partition, timeout_ms=retry.remaining_ms)
        except KafkaError as error:
            failure = error
        else:
            by_leader.setdefault(leader, {})[partition] = time
    return by_leader, failure


async def _query_leaders(
    cluster: Cluster,
    by_leader: Mapping[int, Mapping[TopicPartition, int]],
    isolation_level: int,
    retry: Retry,
    take: OffsetsCallback,
) -> KafkaError | None:
    """Asks all leaders at the same time. Returns a failure if there was any, first of all one that no retry helps."""

    async def ask(leader: int, times: Mapping[TopicPartition, int]) -> KafkaError | None:
        try:
            answered, failure = await _query_leader(cluster, leader, times, isolation_level, retry)
        except KafkaError as error:
            return error
        take(answered)
        return failure

    failures = await asyncio.gather(*(ask(leader, times) for leader, times in by_leader.items()))
    failed = [each for each in failures if each is not None]
    return min(failed, key=lambda each: each.is_retriable, default=None)


async def _query_leader(
    cluster: Cluster, leader: int, times: Mapping[TopicPartition, int], isolation_level: int, retry: Retry
) -> tuple[dict[TopicPartition, OffsetAndTimestamp], KafkaError | None]:
    topics: dict[str, list[dict[str, Any]]] = {}
    for partition, time in times.items():
        known = cluster.partition_info(partition)
        topics.setdefault(partition.topic, []).append(
            {
                "partition_index": partition.partition,
                "current_leader_epoch": -1 if known is None else known.leader_epoch,
                "timestamp": time,
            }
        )
    tree = {
        "replica_id": -1,
        "isolation_level": isolation_level,
        "topics": [{"name": name, "partitions": each} for name, each in topics.items()],
        "timeout": retry.remaining_ms,
    }
    timeout_ms = min(retry.remaining_ms, cluster.request_timeout_ms)
    answer = await cluster.call(leader, ApiKey.LIST_OFFSETS, tree, timeout_ms=timeout_ms)
    found: dict[TopicPartition, OffsetAndTimestamp] = {}
    failure: KafkaError | None = None
    told = {
        TopicPartition(topic.name, each.partition_index): each
        for topic in answer.topics
        for each in topic.partitions
    }
    for partition in times:
        each = told.get(partition)
        if each is None:
            failure = KafkaError(ErrorCode.network_exception, f"an answer without {partition}")
        elif each.error_code != ErrorCode.none:
            failure = KafkaError(each.error_code, f"{partition} was asked for an offset")
        else:
            found[partition] = OffsetAndTimestamp(each.offset, each.timestamp, each.leader_epoch)
    return found, failure
