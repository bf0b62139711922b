"""Offset lookup at the partition leaders (ListOffsets): log start, log end, or the first record at or after a time."""

import asyncio
from collections.abc import Callable, Mapping
from typing import NamedTuple

from moldau.client.errors import ErrorCode, KafkaError
from moldau.client.net.cluster import Cluster, Retry
from moldau.client.net.metadata import NO_LEADER
from moldau.client.record import TopicPartition, iterate_partitions, nest_by_topic
from moldau.wire.api_keys import ApiKey

EARLIEST, LATEST, MAX_TIMESTAMP = -2, -1, -3
"""Special times of `list_offsets`: the log start, the log end, and the record with the largest timestamp."""


class OffsetAndTimestamp(NamedTuple):
    offset: int
    timestamp: int
    """The timestamp of the record, in milliseconds since 1970."""
    leader_epoch: int = -1


OffsetsCallback = Callable[[dict[TopicPartition, OffsetAndTimestamp]], None]


async def list_offsets(
    cluster: Cluster,
    times: Mapping[TopicPartition, int],
    *,
    isolation_level: int = 0,
    timeout_ms: int | None = None,
    without_leader: set[TopicPartition] | None = None,
) -> dict[TopicPartition, OffsetAndTimestamp]:
    """Returns the offset of each partition's first record at or after its time in `times`.

    A time is in milliseconds since 1970, or EARLIEST, LATEST or MAX_TIMESTAMP. Partitions without such a record are
    left out. Raises KafkaError if a partition cannot be queried. If `without_leader` is set, partitions that have no
    leader are added to it, and are neither waited for nor an error.
    """
    found: dict[TopicPartition, OffsetAndTimestamp] = {}
    remaining = dict(times)
    retry = cluster.retry(timeout_ms)

    def on_offsets(offsets: dict[TopicPartition, OffsetAndTimestamp]) -> None:
        for partition, offset in offsets.items():
            del remaining[partition]
            if offset.offset >= 0:
                found[partition] = offset

    while remaining:
        failure: KafkaError | None = None
        by_leader: dict[int, dict[TopicPartition, int]] = {}
        for partition, time in list(remaining.items()):
            if without_leader is not None and _has_no_leader(cluster, partition):
                without_leader.add(partition)
                del remaining[partition]
                continue
            try:
                leader = await cluster.leader_of(partition, timeout_ms=retry.remaining_ms)
            except KafkaError as error:
                failure = error
            else:
                by_leader.setdefault(leader, {})[partition] = time
        failure = await _query_leaders(cluster, by_leader, isolation_level, retry, on_offsets) or failure
        if failure is not None:
            await retry.wait_or_raise(retry.cause(failure))
            cluster.refresh_soon()
    return found


def _has_no_leader(cluster: Cluster, partition: TopicPartition) -> bool:
    """Returns whether a partition exists and has no leader, according to the current metadata."""
    known = cluster.partition_info(partition)
    return known is not None and known.leader == NO_LEADER


async def list_offsets_once(
    cluster: Cluster, times: Mapping[TopicPartition, int], on_offsets: OffsetsCallback, *, isolation_level: int = 0
) -> None:
    """Makes one attempt at `list_offsets`. Calls `on_offsets` when a leader returns offsets. Raises KafkaError."""
    retry = cluster.retry()
    unknown = dict.fromkeys(each.topic for each in times if cluster.partition_info(each) is None)
    if unknown:
        await cluster.refresh(unknown, timeout_ms=retry.remaining_ms)
    by_leader: dict[int, dict[TopicPartition, int]] = {}
    for partition, time in times.items():
        by_leader.setdefault(cluster.known_leader_of(partition), {})[partition] = time
    without_leader = by_leader.pop(NO_LEADER, {})
    failure = await _query_leaders(cluster, by_leader, isolation_level, retry, on_offsets)
    if failure is None and without_leader:
        for partition in without_leader:
            if cluster.partition_info(partition) is None:
                # The partition may be new. `leader_of` raises an error if it does not appear in time.
                await cluster.leader_of(partition, timeout_ms=retry.remaining_ms)
        names = ", ".join(map(str, without_leader))
        failure = KafkaError(ErrorCode.leader_not_available, f"no leader to look up an offset of {names}")
    if failure is not None:
        cluster.refresh_soon()
        raise failure


async def _query_leaders(
    cluster: Cluster,
    by_leader: Mapping[int, Mapping[TopicPartition, int]],
    isolation_level: int,
    retry: Retry,
    on_offsets: OffsetsCallback,
) -> KafkaError | None:
    """Queries all leaders concurrently. Returns a failure if there was any, preferably one that is not retriable."""

    async def query(leader: int, times: Mapping[TopicPartition, int]) -> KafkaError | None:
        entries = []
        for partition, time in times.items():
            known = cluster.partition_info(partition)
            epoch = -1 if known is None else known.leader_epoch
            entry = {"partition_index": partition.partition, "current_leader_epoch": epoch, "timestamp": time}
            entries.append((partition, entry))
        tree = {
            "replica_id": -1,
            "isolation_level": isolation_level,
            "topics": nest_by_topic(entries),
            "timeout": retry.remaining_ms,
        }
        timeout_ms = min(retry.remaining_ms, cluster.request_timeout_ms)
        try:
            response = await cluster.call(leader, ApiKey.LIST_OFFSETS, tree, timeout_ms=timeout_ms)
        except KafkaError as error:
            return error
        responses = dict(iterate_partitions(response.topics))
        found: dict[TopicPartition, OffsetAndTimestamp] = {}
        failure: KafkaError | None = None
        for partition in times:
            each = responses.get(partition)
            if each is None:
                failure = KafkaError(ErrorCode.network_exception, f"the response lacks {partition}")
            elif each.error_code != ErrorCode.none:
                failure = KafkaError(each.error_code, f"offset lookup of {partition}")
            else:
                found[partition] = OffsetAndTimestamp(each.offset, each.timestamp, each.leader_epoch)
        on_offsets(found)
        return failure

    failures = await asyncio.gather(*(query(leader, times) for leader, times in by_leader.items()))
    failed = [each for each in failures if each is not None]
    return min(failed, key=lambda each: each.is_retriable, default=None)
