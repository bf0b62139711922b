"""Metrics of the partitions of a node. A node can have tens of thousands, so they are written in slices."""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import NamedTuple

from moldau.metrics.exposition import MetricFamily, SampleBlock, counter, format_labels, gauge
from moldau.partitions.leader_state import PartitionLeaderState
from moldau.partitions.partition import Partition

PARTITIONS_PER_SLICE = 200


class PartitionSlice(NamedTuple):
    """Some hundred partitions, with their labels as text, and those of them that this node leads."""

    labels: list[str]
    partitions: list[Partition]
    led_labels: list[str]
    led: list[Partition]
    states: list[PartitionLeaderState]
    """Of the partitions that this node leads."""


def partition_slices(partitions: Iterable[Partition]) -> Iterator[PartitionSlice]:
    remaining = iter(list(partitions))
    while part := list(islice(remaining, PARTITIONS_PER_SLICE)):
        labels = [_partition_labels(each) for each in part]
        led = [
            (text, each, each.leader.state)
            for text, each in zip(labels, part, strict=True)
            if each.leader.state is not None
        ]
        yield PartitionSlice(
            labels, part, [text for text, _, _ in led], [each for _, each, _ in led], [state for _, _, state in led]
        )


def _partition_labels(partition: Partition) -> str:
    # Names of topics contain no characters that `format_labels` would escape, and it takes longer.
    topic, index = partition.name
    return f'{{topic="{topic}",partition="{index}"}}'


class PartitionTotals:
    """Counts of the partitions that this node leads."""

    def __init__(self) -> None:
        self.led = 0
        self.under_replicated = 0
        self.under_min_isr = 0
        self.at_min_isr = 0
        self.lag_ms: dict[int, int] = {}
        """For how long each follower has lacked records, in its worst partition."""

    def add(self, part: PartitionSlice, now_ms: int) -> None:
        self.led += len(part.led)
        for state in part.states:
            in_sync = len(state.image.isr)
            self.under_replicated += _is_under_replicated(state)
            self.under_min_isr += in_sync < state.min_isr
            self.at_min_isr += in_sync == state.min_isr
            for replica_id, follower in state.followers.items():
                lag_ms = follower.lag_ms(state.end_offset, now_ms)
                self.lag_ms[replica_id] = max(lag_ms, self.lag_ms.get(replica_id, 0))


def _is_under_replicated(state: PartitionLeaderState) -> int:
    image = state.image
    return int(len(image.isr) < len(image.replicas) - len(image.adding_replicas))


def partition_families(slices: list[PartitionSlice]) -> Iterator[MetricFamily]:
    def led(value: Callable[[Partition, PartitionLeaderState], int]) -> Iterator[SampleBlock]:
        for part in slices:
            yield SampleBlock(part.led_labels, list(map(value, part.led, part.states)))

    def states(value: Callable[[PartitionLeaderState], int]) -> Iterator[SampleBlock]:
        for part in slices:
            yield SampleBlock(part.led_labels, list(map(value, part.states)))

    def stored(value: Callable[[Partition], int]) -> Iterator[SampleBlock]:
        for part in slices:
            yield SampleBlock(part.labels, list(map(value, part.partitions)))

    prefix = "kafka_topic_partition"
    yield gauge(f"{prefix}_current_offset", "High watermark.", states(lambda state: state.high_watermark))
    yield counter(
        "moldau_partition_high_watermark_updates_total",
        "How often the high watermark has advanced since the leader was elected.",
        states(lambda state: state.high_watermark_updates),
    )
    yield gauge(f"{prefix}_oldest_offset", "Log start offset.", led(lambda each, state: each.log.start_offset))
    yield gauge(
        "moldau_partition_last_stable_offset", "Last stable offset.", led(lambda each, state: each.last_stable_offset)
    )
    yield gauge(f"{prefix}_leader", "Broker id of the leader.", states(lambda state: state.replica_id))
    yield gauge(f"{prefix}_replicas", "Number of replicas.", states(lambda state: len(state.image.replicas)))
    yield gauge(f"{prefix}_in_sync_replica", "Number of in-sync replicas.", states(lambda state: len(state.image.isr)))
    yield gauge(
        f"{prefix}_leader_is_preferred",
        "Whether the leader is the preferred one.",
        states(lambda state: int(state.image.replicas[0] == state.replica_id)),
    )
    yield gauge(
        f"{prefix}_under_replicated_partition",
        "Whether the partition lacks in-sync replicas.",
        states(_is_under_replicated),
    )
    yield gauge(
        "kafka_cluster_partition_underminisr",
        "Whether the partition has fewer in-sync replicas than min.insync.replicas.",
        states(lambda state: int(len(state.image.isr) < state.min_isr)),
    )
    yield gauge(
        "kafka_cluster_partition_atminisr",
        "Whether the partition has exactly min.insync.replicas in-sync replicas.",
        states(lambda state: int(len(state.image.isr) == state.min_isr)),
    )
    yield gauge("moldau_replica_lag_records", "Records that a follower lacks.", _replica_lag(slices))
    yield gauge("kafka_log_log_size", "Bytes of the replica's log on this broker.", stored(lambda each: each.log.size))
    yield gauge("kafka_log_log_logendoffset", "End of the replica's log.", stored(lambda each: each.log.end_offset))


def _replica_lag(slices: list[PartitionSlice]) -> Iterator[SampleBlock]:
    for part in slices:
        labels, values = [], []
        for partition, state in zip(part.led, part.states, strict=True):
            if len(state.image.replicas) == 1:
                continue
            for broker_id, end_offset in state.log_end_offsets().items():
                if broker_id != state.replica_id and end_offset >= 0:
                    labels.append(format_labels({**partition.name._asdict(), "replica": broker_id}))
                    values.append(max(0, state.end_offset - end_offset))
        yield SampleBlock(labels, values)
