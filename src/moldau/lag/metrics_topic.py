"""Writes the lag of groups and the state of partitions to the topic `moldau.metrics`, as JSON records.

Each node writes the groups that it coordinates and the partitions that it leads, once per sample. Records that cannot
be written are kept for the next sample, and dropped after that.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from moldau.client.producer.partitioner import partition_of_key
from moldau.concurrency.time_slice import TimeSlice
from moldau.controller.requests import NewTopic
from moldau.controller.topic_names import is_internal
from moldau.coordinator.state_topic import TopicCreator
from moldau.errors import MoldauError, TopicExistsError
from moldau.groups.requests import TopicPartition
from moldau.lag.sampler import METRICS_TOPIC, LagSampler
from moldau.lag.state import PartitionLag
from moldau.metadata.image import NO_LEADER
from moldau.metadata.loader import MetadataLoader
from moldau.observe.logging import get_logger
from moldau.partitions.partition import Partition
from moldau.partitions.replica_manager import ReplicaManager
from moldau.peers.client import PeerClient
from moldau.platform.clock import Clock
from moldau.records.batch_builder import build_batch
from moldau.records.record import Record
from moldau.settings.effective import EffectiveSettings
from moldau.wire.api_keys import ApiKey

log = get_logger(__name__)

LANE = "metrics"
RECORDS_PER_BATCH_MAX = 200
"""Building a batch of this size takes about a millisecond."""
UNWRITTEN_BATCHES_MAX = 100
_ACKS_LEADER = 1
_PRODUCE_TIMEOUT_MS = 1_000


class _Batch(NamedTuple):
    partition: int
    """A partition of the metrics topic."""
    data: bytes
    is_retry: bool = False


class _Progress(NamedTuple):
    now_ms: int
    high_watermark: int


class MetricsTopicWriter:
    def __init__(
        self,
        node_id: int,
        sampler: LagSampler,
        replicas: ReplicaManager,
        metadata: MetadataLoader,
        controller: TopicCreator,
        peers: PeerClient,
        settings: EffectiveSettings,
        clock: Clock,
    ) -> None:
        self._node_id = node_id
        self._sampler = sampler
        self._replicas = replicas
        self._metadata = metadata
        self._controller = controller
        self._peers = peers
        self._settings = settings
        self._clock = clock
        self._written_ms = -1
        """The monotonic time of the latest call."""
        self._progress: dict[TopicPartition, _Progress] = {}
        self._unwritten: list[_Batch] = []
        self._last_failure = ""

    async def write(self) -> None:
        """Writes what was sampled since the previous call, if metrics.topic.enable is set."""
        if not self._settings.broker.metrics_topic_enable:
            self._progress, self._unwritten = {}, []
            return
        try:
            partition_count = await self._ensure_topic()
            if not partition_count:
                return
            batches = self._unwritten + await self._build_batches(partition_count)
            self._unwritten = await self._send(batches)
        except MoldauError as error:
            self._log_failure(str(error))

    async def _ensure_topic(self) -> int:
        """Returns the number of partitions of the metrics topic; 0 while it is being created."""
        topic = self._metadata.image.topics.get(METRICS_TOPIC)
        if topic is None:
            (created,) = await self._controller.create_topics([NewTopic(METRICS_TOPIC)])
            if created.error is not None and not isinstance(created.error, TopicExistsError):
                raise created.error
            topic = self._metadata.image.topics.get(METRICS_TOPIC)
        return 0 if topic is None else len(topic.partitions)

    # Records

    async def _build_batches(self, partition_count: int) -> list[_Batch]:
        time_slice = TimeSlice(self._clock)
        records: dict[int, list[Record]] = {}
        batches = []
        for key, fields in self._rows():
            value = json.dumps(fields, separators=(",", ":")).encode()
            record = Record(timestamp=fields["time_ms"], key=key.encode(), value=value)
            index = partition_of_key(key.encode(), partition_count)
            records.setdefault(index, []).append(record)
            if len(records[index]) >= RECORDS_PER_BATCH_MAX:
                batches.append(_Batch(index, build_batch(records.pop(index))))
            await time_slice.yield_if_used()
        for index, left in records.items():
            batches.append(_Batch(index, build_batch(left)))
            await time_slice.yield_if_used()
        return batches

    def _rows(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yields keys and fields."""
        previous_ms, self._written_ms = self._written_ms, self._clock.monotonic_ms()
        for group, sample in self._sampler.read_all():
            for (topic, index), tracker in sample.partitions.items():
                if tracker.lag is not None and tracker.sampled_ms is not None and tracker.sampled_ms > previous_ms:
                    yield f"{group}/{topic}/{index}", group_row(group, topic, index, tracker.lag)
        progress = {}
        for partition in self._replicas.leader_partitions():
            name = partition.name
            if partition.is_leader and not is_internal(name.topic) and name.topic != METRICS_TOPIC:
                now = _Progress(self._clock.monotonic_ms(), partition.high_watermark)
                progress[name.topic, name.partition] = now
                rate = _rate(self._progress.get((name.topic, name.partition)), now)
                yield f"{name.topic}/{name.partition}", partition_row(partition, self._clock.wall_ms(), rate)
        self._progress = progress

    # Requests to leaders

    async def _send(self, batches: Sequence[_Batch]) -> list[_Batch]:
        """Sends batches to the leaders of their partitions. Returns those to send again with the next sample."""
        failed = []
        for batch in batches:
            try:
                await self._produce(batch)
            except MoldauError as error:
                self._log_failure(str(error))
                if not batch.is_retry:
                    failed.append(batch._replace(is_retry=True))
            else:
                self._last_failure = ""
        return failed[:UNWRITTEN_BATCHES_MAX]

    async def _produce(self, batch: _Batch) -> None:
        image = self._metadata.image.partition(METRICS_TOPIC, batch.partition)
        if image is None or image.leader == NO_LEADER:
            raise MoldauError(f"{METRICS_TOPIC}-{batch.partition} has no leader")
        tree = {
            "transactional_id": None,
            "acks": _ACKS_LEADER,
            "timeout": _PRODUCE_TIMEOUT_MS,
            "topic_data": [
                {"name": METRICS_TOPIC, "partition_data": [{"index": batch.partition, "records": batch.data}]}
            ],
        }
        response = await self._peers.call(image.leader, ApiKey.PRODUCE, tree, lane=LANE)
        result = response.responses[0].partition_responses[0]
        if result.error_code:
            reason = result.error_message or f"error {result.error_code}"
            raise MoldauError(f"{METRICS_TOPIC}-{batch.partition} was not written: {reason}")

    def _log_failure(self, reason: str) -> None:
        """Logs each new reason once, because every sample can fail with the same one."""
        if reason != self._last_failure:
            self._last_failure = reason
            log.warning("metrics were not written to the topic", topic=METRICS_TOPIC, reason=reason)


def group_row(group: str, topic: str, partition: int, lag: PartitionLag) -> dict[str, Any]:
    """Returns the fields of a partition of a group. Unknown values are None."""
    return {
        "time_ms": lag.sampled_ms,
        "kind": "group-lag",
        "group": group,
        "topic": topic,
        "partition": partition,
        "committed_offset": lag.committed_offset,
        "high_watermark": lag.high_watermark,
        "log_start_offset": lag.log_start_offset,
        "lag_records": lag.lag_records,
        "lag_ms": lag.lag_ms,
        "commit_rate": lag.commit_rate,
        "produce_rate": lag.produce_rate,
        "state": lag.state,
    }


def partition_row(partition: Partition, wall_ms: int, produce_rate: float | None) -> dict[str, Any]:
    """Returns the fields of a partition that this node leads."""
    return {
        "time_ms": wall_ms,
        "kind": "partition",
        "topic": partition.name.topic,
        "partition": partition.name.partition,
        "high_watermark": partition.high_watermark,
        "log_start_offset": partition.log.start_offset,
        "size_bytes": partition.log.size,
        "produce_rate": produce_rate,
    }


def _rate(previous: _Progress | None, now: _Progress) -> float | None:
    if previous is None or now.now_ms <= previous.now_ms:
        return None
    return max(0, now.high_watermark - previous.high_watermark) * 1000 / (now.now_ms - previous.now_ms)
