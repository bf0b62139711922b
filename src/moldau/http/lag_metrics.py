"""The metrics of consumer groups, from the node that coordinates them.

Names are those of kafka_exporter, and for seconds those of kafka-lag-exporter, which calls the label `group`.
"""

from collections.abc import Callable, Iterator

from moldau.lag.sampler import GroupLagSample, LagSampler
from moldau.lag.state import LagState, PartitionLag
from moldau.metrics.exposition import MetricFamily, Sample, format_labels, gauge

_LABEL = "{consumergroup="
_LABEL_OF_SECONDS = "{group="


class _Labels:
    """The labels of partitions of groups as text, which several families need."""

    def __init__(self) -> None:
        self._texts: dict[tuple[str, str, int], str] = {}

    def of(self, group: str, topic: str, partition: int) -> str:
        key = (group, topic, partition)
        text = self._texts.get(key)
        if text is None:
            labels = {"consumergroup": group, "topic": topic, "partition": partition}
            text = self._texts[key] = format_labels(labels)
        return text


def lag_families(sampler: LagSampler) -> Iterator[MetricFamily]:
    """Yields the latest sample of each group, and keeps the sampler running. The first scrape finds no sample yet."""
    sampler.request()
    labels = _Labels()

    def by_partition(read: Callable[[PartitionLag], float | None], label: str = _LABEL) -> Iterator[Sample]:
        """Yields the value of each partition of each group, without unknown values."""
        for name, group in sampler.read_all():
            for topic, partition, lag in _partitions(group):
                value = read(lag)
                if value is not None:
                    text = labels.of(name, topic, partition)
                    yield Sample(value, label + text[len(_LABEL) :])

    prefix = "kafka_consumergroup"
    for name, text, read in (
        ("current_offset", "Committed offset.", _committed_offset),
        ("lag", "Records between the committed offset and the end.", _lag_records),
    ):
        yield gauge(f"{prefix}_{name}", text, by_partition(read))
        yield gauge(f"{prefix}_{name}_sum", f"{text} Sum of a topic.", _sums(sampler, read))
    yield gauge(
        f"{prefix}_members",
        "Members of the group.",
        (Sample(group.member_count, format_labels({"consumergroup": name})) for name, group in sampler.read_all()),
    )
    yield gauge(
        f"{prefix}_group_lag_seconds",
        "How long ago the first unread record was appended.",
        by_partition(_lag_s, _LABEL_OF_SECONDS),
    )
    yield gauge(f"{prefix}_group_max_lag_seconds", "The largest lag in seconds of the group.", _max_lag(sampler))
    prefix = "moldau_consumergroup"
    for name, text, read_rate in (
        ("commit_rate", "Offsets per second by which the committed offset grows.", lambda lag: lag.commit_rate),
        ("produce_rate", "Offsets per second by which the high watermark grows.", lambda lag: lag.produce_rate),
        ("catch_up_seconds", "Estimated time until the lag is 0; +Inf if the lag grows.", lambda lag: lag.catch_up_s),
    ):
        yield gauge(f"{prefix}_{name}", text, by_partition(read_rate))
    yield gauge(f"{prefix}_state", f"1 for the current state: {', '.join(LagState)}.", _states(sampler, labels))
    yield gauge(
        f"{prefix}_read_committed",
        "Whether the lag is relative to the last stable offset.",
        by_partition(lambda lag: lag.is_read_committed),
    )


def _committed_offset(lag: PartitionLag) -> int:
    return lag.committed_offset


def _lag_records(lag: PartitionLag) -> int:
    return lag.lag_records


def _lag_s(lag: PartitionLag) -> float | None:
    return None if lag.lag_ms is None else lag.lag_ms / 1000


def _partitions(group: GroupLagSample) -> Iterator[tuple[str, int, PartitionLag]]:
    for (topic, partition), tracker in group.partitions.items():
        if tracker.lag is not None:
            yield topic, partition, tracker.lag


def _sums(sampler: LagSampler, read: Callable[[PartitionLag], int]) -> Iterator[Sample]:
    for name, group in sampler.read_all():
        sums: dict[str, int] = {}
        for topic, _, lag in _partitions(group):
            sums[topic] = sums.get(topic, 0) + read(lag)
        for topic, value in sums.items():
            yield Sample(value, format_labels({"consumergroup": name, "topic": topic}))


def _max_lag(sampler: LagSampler) -> Iterator[Sample]:
    for name, group in sampler.read_all():
        lags = [lag.lag_ms for _, _, lag in _partitions(group) if lag.lag_ms is not None]
        if lags:
            yield Sample(max(lags) / 1000, format_labels({"group": name}))


def _states(sampler: LagSampler, labels: _Labels) -> Iterator[Sample]:
    for name, group in sampler.read_all():
        for topic, partition, lag in _partitions(group):
            yield Sample(1, f'{labels.of(name, topic, partition)[:-1]},state="{lag.state}"}}')
