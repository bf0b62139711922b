"""How many of the records that `moldau consume` will print are printed."""

from collections.abc import Iterable, Mapping

from moldau.cli.progress import ProgressBar
from moldau.client.record import ConsumerRecord, TopicPartition


class CountProgress:
    """The share of a number of records."""

    def __init__(self, bar: ProgressBar, total: int) -> None:
        self._bar = bar
        self._total = total
        self._printed = 0

    def add(self, records: list[ConsumerRecord]) -> None:
        self._printed += len(records)
        self._bar.update(self._printed, self._total, f"{self._printed:,} of {self._total:,} records")


class OffsetProgress:
    """The share of the offsets between the first positions and the ends."""

    def __init__(
        self, bar: ProgressBar, starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
    ) -> None:
        self._bar = bar
        self._left = {each: max(0, end - starts[each]) for each, end in ends.items()}
        self._ends = ends
        self._total = sum(self._left.values())

    def add(self, records: Iterable[ConsumerRecord]) -> None:
        latest = {(each.topic, each.partition): each.offset for each in records}
        for (topic, partition), offset in latest.items():
            key = TopicPartition(topic, partition)
            if key in self._left:
                self._left[key] = max(0, self._ends[key] - offset - 1)
        done = self._total - sum(self._left.values())
        self._bar.update(done, self._total, f"{done:,} of {self._total:,} offsets")
