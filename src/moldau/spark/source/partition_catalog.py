"""The partitions of a subscription and their offsets, queried by the driver."""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

from moldau.client.consumer.offset_lookup import EARLIEST, LATEST, list_offsets
from moldau.client.errors import ErrorCode, KafkaError
from moldau.client.net.cluster import Cluster
from moldau.client.record import TopicPartition
from moldau.settings.option_parser import did_you_mean
from moldau.spark.errors import OptionError, SparkSourceError
from moldau.spark.loop_thread import event_loop_thread
from moldau.spark.source.offsets import (
    EarliestOrLatest,
    GlobalTimestamp,
    OffsetRangeLimit,
    Offsets,
    SpecificOffsets,
    SpecificTimestamps,
    check_complete,
    format_partitions,
)
from moldau.spark.source.options import SourceOptions

STREAM_METADATA_AGE_MS = 1_000
"""The interval at which a stream looks for new partitions, unless kafka.metadata.max.age.ms is set."""

_FIRST_ATTEMPT_MS = 1_000
"""The timeout of the first ListOffsets attempt. The timeout doubles with each retry."""

_UNKNOWN_TOPIC_CODES = (ErrorCode.unknown_topic_or_partition, ErrorCode.unknown_topic_id)


class PartitionCatalog:
    """The partitions of one subscription. The coroutines run in the event loop thread."""

    def __init__(self, options: SourceOptions, *, is_stream: bool) -> None:
        self._options = options
        self._subscription = options.subscription
        self._settings: dict[str, Any] = dict(options.connection)
        if is_stream:
            self._settings.setdefault("metadata_max_age_ms", STREAM_METADATA_AGE_MS)
        self._cluster: Cluster | None = None

    async def cluster(self) -> Cluster:
        if self._cluster is None:
            self._cluster = cluster = await event_loop_thread().cluster(self._settings)
            if self._subscription.pattern is not None:
                cluster.track_all()
            else:
                cluster.track(self._topics())
            try:
                await self._refresh(cluster)
            except BaseException:
                self.close()
                raise
        return self._cluster

    def close(self) -> None:
        """Stops tracking the topics in the cluster's metadata."""
        cluster, self._cluster = self._cluster, None
        if cluster is None:
            return
        if self._subscription.pattern is not None:
            cluster.untrack_all()
        else:
            cluster.untrack(self._topics())

    async def list_partitions(self, *, refresh_metadata: bool) -> list[TopicPartition]:
        """Returns the existing partitions of the subscription. Uses cached metadata unless `refresh_metadata`."""
        refresh_metadata = refresh_metadata and self._cluster is not None
        cluster = await self.cluster()
        if refresh_metadata:
            await self._refresh(cluster)
        found = (
            TopicPartition(topic.name, each.index)
            for topic in cluster.topics.values()
            if self._subscription.pattern is None or not topic.is_internal
            for each in topic.partitions
        )
        return sorted(each for each in found if self._subscription.has(each))

    async def topic_ids(self, partitions: Iterable[TopicPartition]) -> dict[str, str]:
        """Returns the ids of the partitions' topics by topic name, from cached metadata."""
        cluster = await self.cluster()
        found = {}
        for name in {partition.topic: None for partition in partitions}:
            topic = cluster.topics.get(name)
            if topic is not None and topic.topic_id:
                found[name] = str(topic.topic_id)
        return found

    async def require_partitions(self) -> list[TopicPartition]:
        """Returns all partitions. Raises SparkSourceError if a named topic or partition does not exist."""
        partitions = await self.list_partitions(refresh_metadata=True)
        cluster = await self.cluster()
        for name in self._topics():
            if name not in cluster.topics:
                await self._wait_for_topic(cluster, name)
                return await self.require_partitions()
        missing = [each for each in self._subscription.partitions if each not in partitions]
        if missing:
            count = len(cluster.topics[missing[0].topic].partitions)
            raise SparkSourceError(
                f"assign names {format_partitions(missing)}, and the topic {missing[0].topic!r} at "
                f"{self._options.bootstrap} has {count} partitions, counted from 0"
            )
        return partitions

    async def check_replica(self, partitions: Iterable[TopicPartition]) -> None:
        """Raises OptionError if the broker of the option `replica` has no replica of one of the partitions."""
        broker = self._options.fetch_options.replica
        if broker is None:
            return
        cluster = await self.cluster()
        for partition in partitions:
            known = cluster.partition_info(partition)
            if known is not None and broker not in known.replicas:
                brokers = ", ".join(str(each) for each in sorted(known.replicas))
                raise OptionError(
                    f"replica is {broker}, and {partition} at {self._options.bootstrap} has no replica there, but on "
                    f"the brokers {brokers}"
                )

    async def earliest_offsets(self, partitions: Iterable[TopicPartition]) -> Offsets:
        """Returns the earliest offsets. Omits partitions that were deleted in the meantime."""
        return await self._list_offsets(dict.fromkeys(partitions, EARLIEST))

    async def latest_offsets(self, partitions: Iterable[TopicPartition]) -> Offsets:
        """Returns the end offsets that are visible at the query's isolation level."""
        return await self._list_offsets(dict.fromkeys(partitions, LATEST))

    async def resolve(self, side: str, limit: OffsetRangeLimit, partitions: list[TopicPartition]) -> Offsets:
        """Returns the offset of each partition for a starting or ending limit. An offset may be EARLIEST or LATEST.

        Raises OptionError if the limit names other partitions than these, or if no record matches a starting time.
        """
        match limit:
            case EarliestOrLatest(offset):
                return dict.fromkeys(partitions, offset)
            case SpecificOffsets(offsets):
                check_complete(f"{side}Offsets", offsets, partitions)
                return dict(offsets)
            case GlobalTimestamp(time_ms):
                return await self._offsets_at_times(side, dict.fromkeys(partitions, time_ms))
            case SpecificTimestamps(times_ms):
                check_complete(f"{side}OffsetsByTimestamp", times_ms, partitions)
                return await self._offsets_at_times(side, times_ms)

    async def _offsets_at_times(self, side: str, times_ms: Mapping[TopicPartition, int]) -> Offsets:
        found = await self._list_offsets(times_ms)
        for partition, time_ms in times_ms.items():
            if partition not in found and side == "starting" and not self._options.starts_at_latest_without_match:
                raise OptionError(
                    f"{partition} has no record at or after the starting time {time_ms}. To start "
                    'at its end, set startingOffsetsByTimestampStrategy to "latest"'
                )
        return {partition: found.get(partition, LATEST) for partition in times_ms}

    async def _list_offsets(self, times: Mapping[TopicPartition, int]) -> Offsets:
        """Calls list_offsets until the call succeeds, the timeout expires or all partitions are deleted."""
        cluster = await self.cluster()
        level = self._options.fetch_options.isolation_level
        remaining = dict(times)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._options.fetch_options.timeout_ms / 1000
        attempt_ms = _FIRST_ATTEMPT_MS
        while remaining:
            remaining_time_ms = max(1, round((deadline - loop.time()) * 1000))
            # If the time does not suffice for another attempt after this one, this attempt gets all the remaining time.
            is_last = remaining_time_ms < 2 * attempt_ms
            try:
                found = await list_offsets(
                    cluster, remaining, isolation_level=level, timeout_ms=remaining_time_ms if is_last else attempt_ms
                )
                return {partition: each.offset for partition, each in found.items()}
            except KafkaError as error:
                if not error.is_retriable:
                    raise
                if error.code in _UNKNOWN_TOPIC_CODES:
                    existing = set(await self.list_partitions(refresh_metadata=True))
                    deleted = [partition for partition in remaining if partition not in existing]
                    if deleted:
                        # The request failed because of the deleted partitions, so retry without them.
                        remaining = {partition: time for partition, time in remaining.items() if partition in existing}
                        deadline = max(deadline, loop.time() + _FIRST_ATTEMPT_MS / 1000)
                        continue
                if is_last:
                    raise
            attempt_ms = min(2 * attempt_ms, max(_FIRST_ATTEMPT_MS, cluster.request_timeout_ms))
        return {}

    async def _refresh(self, cluster: Cluster) -> None:
        """Refreshes the metadata, with retries while a broker restarts."""
        retry = cluster.retry(self._options.fetch_options.timeout_ms)
        while True:
            try:
                await cluster.refresh(timeout_ms=retry.remaining_ms)
                return
            except KafkaError as error:
                await retry.wait_or_raise(error)

    def _topics(self) -> list[str]:
        names = self._subscription.topics or (each.topic for each in self._subscription.partitions)
        return sorted(dict.fromkeys(names))

    async def _wait_for_topic(self, cluster: Cluster, name: str) -> None:
        """Waits for a topic that is being created. Raises SparkSourceError for a topic that does not exist."""
        code = cluster.topic_errors.get(name, ErrorCode.unknown_topic_or_partition)
        if code not in _UNKNOWN_TOPIC_CODES:
            await cluster.wait_for_topics([name])
            return
        await cluster.refresh(all_topics=True)
        known = sorted(each.name for each in cluster.topics.values() if not each.is_internal)
        hint = did_you_mean(name, known) or f". Create it: moldau topic create {name}"
        raise SparkSourceError(f"there is no topic {name!r} at {self._options.bootstrap}{hint}")
