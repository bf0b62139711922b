"""The metrics of consumer groups, from the node that coordinates them.

Names are those of kafka_exporter, and for seconds those of kafka-lag-exporter, which calls the label `group`. As with
kafka_exporter, a partition whose lag is unknown, for example without a leader, has a committed offset and no lag.
Groups can have many thousand partitions together, so they are written in slices.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import NamedTuple

from moldau.lag.sampler import GroupLagSample, LagSampler
from moldau.lag.state import LagState, PartitionLag
from moldau.metrics.exposition import PAUSE, MetricFamily, SampleBlock, escape_label, format_value, gauge

ROWS_PER_SLICE = 200


class _Row(NamedTuple):
    """A partition of a group."""

    labels: str
    """The values of the labels and the names of all but the first: `"billing",topic="orders",partition="0"`."""
    lag: PartitionLag


Slice = list[_Row]


class _Sums:
    """The sums of a topic, and the largest lag of a group."""

    def __init__(self) -> None:
        self.offsets: dict[str, int] = {}
        self.records: dict[str, int] = {}
        """Without topics of which a part of the lag is unknown: a sum of the others would look as if the lag fell."""
        self._unknown_topics: set[str] = set()
        self.lag_ms: dict[str, int] = {}

    def add(self, group: str, topic: str, lag: PartitionLag) -> None:
        self.offsets[topic] = self.offsets.get(topic, 0) + lag.committed_offset
        if lag.lag_records is None:
            self._unknown_topics.add(topic)
            self.records.pop(topic, None)
        elif topic not in self._unknown_topics:
            self.records[topic] = self.records.get(topic, 0) + lag.lag_records
        if lag.lag_ms is not None:
            self.lag_ms[group] = max(lag.lag_ms, self.lag_ms.get(group, 0))


def lag_families(sampler: LagSampler) -> Iterator[MetricFamily | None]:
    """Yields the latest sample of each group, and keeps the sampler running. The first scrape finds no sample yet."""
    sampler.request()
    members: dict[str, int] = {}
    sums = _Sums()
    slices: list[Slice] = []
    remaining = _rows(sampler.read_all(), members, sums)
    while part := list(islice(remaining, ROWS_PER_SLICE)):
        # A PAUSE is a row without a partition.
        slices.append([row for row in part if row is not None])
        yield PAUSE

    def integers(read: Callable[[PartitionLag], int | None]) -> Iterator[SampleBlock]:
        """Yields the values that are not unknown."""
        for rows in slices:
            found = [(row.labels, value) for row in rows if (value := read(row.lag)) is not None]
            yield SampleBlock([f"{{consumergroup={labels}}}" for labels, _ in found], [value for _, value in found])

    def known(read: Callable[[PartitionLag], float | None], label: str = "consumergroup") -> Iterator[SampleBlock]:
        """Yields the values that are not unknown."""
        for rows in slices:
            found = [(row.labels, value) for row in rows if (value := read(row.lag)) is not None]
            yield SampleBlock(
                [f"{{{label}={labels}}}" for labels, _ in found], [format_value(value) for _, value in found]
            )

    prefix = "kafka_consumergroup"
    for name, text, read, of_topics in (
        ("current_offset", "Committed offset.", _committed_offset, sums.offsets),
        ("lag", "Records between the committed offset and the end.", _lag_records, sums.records),
    ):
        yield gauge(f"{prefix}_{name}", text, integers(read))
        yield gauge(f"{prefix}_{name}_sum", f"{text} Sum of a topic.", _values("consumergroup", of_topics))
    yield gauge(f"{prefix}_members", "Members of the group.", _values("consumergroup", members))
    yield gauge(
        f"{prefix}_group_lag_seconds", "How long ago the first unread record was appended.", known(_lag_s, "group")
    )
    yield gauge(
        f"{prefix}_group_max_lag_seconds",
        "The largest lag in seconds of the group.",
        _values("group", {group: lag_ms / 1000 for group, lag_ms in sums.lag_ms.items()}),
    )
    prefix = "moldau_consumergroup"
    for name, text, read_rate in (
        ("commit_rate", "Offsets per second by which the committed offset grows.", lambda lag: lag.commit_rate),
        ("produce_rate", "Offsets per second by which the high watermark grows.", lambda lag: lag.produce_rate),
        ("catch_up_seconds", "Estimated time until the lag is 0; +Inf if the lag grows.", lambda lag: lag.catch_up_s),
    ):
        yield gauge(f"{prefix}_{name}", text, known(read_rate))
    yield gauge(f"{prefix}_state", f"1 for the current state: {', '.join(LagState)}.", _states(slices))
    yield gauge(
        f"{prefix}_read_committed",
        "Whether the lag is relative to the last stable offset.",
        integers(lambda lag: None if lag.lag_records is None else int(lag.is_read_committed)),
    )


def _rows(groups: Iterable[tuple[str, GroupLagSample]], members: dict[str, int], sums: _Sums) -> Iterator[_Row | None]:
    """Yields the partitions of all groups, and None after each group. Adds to `members` and `sums`, whose keys are
    labels."""
    for name, group in groups:
        text = f'"{escape_label(name)}"'
        members[text] = group.member_count
        for (topic, partition), tracker in group.partitions.items():
            if tracker.lag is not None:
                of_topic = f'{text},topic="{topic}"'
                sums.add(text, of_topic, tracker.lag)
                yield _Row(f'{of_topic},partition="{partition}"', tracker.lag)
        yield None


def _committed_offset(lag: PartitionLag) -> int | None:
    return lag.committed_offset


def _lag_records(lag: PartitionLag) -> int | None:
    return lag.lag_records


def _lag_s(lag: PartitionLag) -> float | None:
    return None if lag.lag_ms is None else lag.lag_ms / 1000


def _values(label: str, values: dict[str, int] | dict[str, float]) -> Iterator[SampleBlock]:
    remaining = iter(values.items())
    while part := list(islice(remaining, ROWS_PER_SLICE)):
        yield SampleBlock([f"{{{label}={text}}}" for text, _ in part], [format_value(value) for _, value in part])


def _states(slices: list[Slice]) -> Iterator[SampleBlock]:
    for rows in slices:
        labels = [f'{{consumergroup={row.labels},state="{row.lag.state}"}}' for row in rows]
        yield SampleBlock(labels, [1] * len(rows))
