"""Asks partitions' leaders for offsets: of the log's start and end, or of the first record at or after a time."""

import asyncio
from collections.abc import Mapping
from typing import Any, NamedTuple

from moldau.client.cluster import Cluster
from moldau.client.errors import ErrorCode, KafkaError
from moldau.client.record import TopicPartition
from moldau.client.retries import Retry
from moldau.wire.api_keys import ApiKey

EARLIEST, LATEST, MAX_TIMESTAMP = -2, -1, -3
"""What `list_offsets` takes in the place of a time."""


class OffsetAndTimestamp(NamedTuple):
    offset: int
    timestamp: int
    """Of the record found, in milliseconds since 1970."""
    leader_epoch: int = -1


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
    while left:
        by_leader, failure = await _by_leader(cluster, left, retry)
        asked = [_ask(cluster, leader, each, isolation_level, retry) for leader, each in by_leader.items()]
        # A list in the order of the leaders, so that a simulated run can be repeated.
        for answer in await asyncio.gather(*asked, return_exceptions=True):
            if isinstance(answer, KafkaError):
                failure = answer
            elif isinstance(answer, BaseException):
                raise answer
            else:
                answered, failed = answer
                failure = failed or failure
                for partition, offset in answered.items():
                    del left[partition]
                    if offset.offset >= 0:
                        found[partition] = offset
        if failure is not None:
            await retry.after(failure)
            cluster.refresh_soon()
    return found


async def _by_leader(
    cluster: Cluster, times: Mapping[TopicPartition, int], retry: Retry
) -> tuple[dict[int, dict[TopicPartition, int]], KafkaError | None]:
    failure: KafkaError | None = None
    by_leader: dict[int, dict[TopicPartition, int]] = {}
    for partition, time in times.items():
        try:
            leader = await cluster.leader_of(partition, timeout_ms=retry.left_ms)
        except KafkaError as error:
            failure = error
        else:
            by_leader.setdefault(leader, {})[partition] = time
    return by_leader, failure


async def _ask(
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
        "timeout": retry.left_ms,
    }
    timeout_ms = min(retry.left_ms, cluster.request_timeout_ms)
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
