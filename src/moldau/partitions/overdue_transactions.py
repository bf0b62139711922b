"""Detection of transactions that hold back the last stable offset for longer than any transaction may be open. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from moldau.logs.store import LogName


class OverdueTransaction(NamedTuple):
    producer_id: int
    partitions: list[LogName]
    """The partitions in which it is overdue, and was not before."""
    open_ms: int
    """For how long it has been open at least."""


@dataclass(slots=True)
class _FirstOpen:
    start_offset: int
    seen_ms: int
    """When this transaction was first seen as the first open one."""
    is_reported: bool = False


class OverdueTransactions:
    """The first open transaction of each partition, as of the latest check."""

    def __init__(self) -> None:
        self._first_open: dict[LogName, _FirstOpen] = {}

    @property
    def partition_count(self) -> int:
        """The number of partitions with an overdue transaction."""
        return sum(each.is_reported for each in self._first_open.values())

    def update(
        self, now_ms: int, first_open: Mapping[LogName, tuple[int, int]], open_ms_max: int
    ) -> list[OverdueTransaction]:
        """Takes first offset and producer id of the first open transaction of each partition that has one.

        Returns each transaction that was seen for longer than `open_ms_max`, once for each of its partitions.
        """
        previous, self._first_open = self._first_open, {}
        overdue: dict[int, OverdueTransaction] = {}
        for partition, (start_offset, producer_id) in first_open.items():
            seen = previous.get(partition)
            if seen is None or seen.start_offset != start_offset:
                seen = _FirstOpen(start_offset, now_ms)
            self._first_open[partition] = seen
            if now_ms - seen.seen_ms > open_ms_max and not seen.is_reported:
                seen.is_reported = True
                found = overdue.setdefault(producer_id, OverdueTransaction(producer_id, [], now_ms - seen.seen_ms))
                found.partitions.append(partition)
        return list(overdue.values())
