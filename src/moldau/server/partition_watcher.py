"""Tracks which partitions of a fetch have changed since they were last read.

A fetch session keeps its watcher between requests, so that a fetch of thousands of partitions only reads those that
changed.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple
from uuid import UUID

from moldau.partitions.delayed_operations import CallbackList
from moldau.partitions.partition import Partition

PartitionKey = tuple[UUID | str, int]
"""The topic id (or the topic name if the fetch uses names) and the partition index."""
OnChange = Callable[[PartitionKey], None]


class _WatchedPartition(NamedTuple):
    partition: Partition
    tickets: list[tuple[CallbackList, int]]


class PartitionWatcher:
    def __init__(self) -> None:
        self.changed: dict[PartitionKey, None] = {}
        """Partitions that changed since their last read or have unread records, longest waiting partition first."""
        self._watched: dict[PartitionKey, _WatchedPartition] = {}
        self.callbacks: list[OnChange] = []
        """Called with the partition's key on each `wake_on` event (see `watch`). Waiting fetches add callbacks."""
        self._is_closed = False

    def watch(
        self,
        key: PartitionKey,
        partition: Partition,
        *,
        wake_on: Iterable[CallbackList],
        mark_on: Iterable[CallbackList] = (),
    ) -> None:
        """Marks the partition as changed on each event of `mark_on` and `wake_on`. An event of `wake_on` also wakes the
        waiting fetch."""
        if self._is_closed:
            # The fetch session ended during this fetch. Add no callbacks, because nothing would remove them later.
            return
        watched = self._watched.get(key)
        if watched is not None:
            if watched.partition is partition:
                return
            self.forget(key)
        tickets = [(each, each.add(lambda: self._mark_and_wake(key))) for each in wake_on]
        tickets += [(each, each.add(partial(self.changed.setdefault, key))) for each in mark_on]
        self._watched[key] = _WatchedPartition(partition, tickets)

    def forget(self, key: PartitionKey) -> None:
        self.changed.pop(key, None)
        watched = self._watched.pop(key, None)
        if watched is not None:
            for callbacks, ticket in watched.tickets:
                callbacks.remove(ticket)

    def partition(self, key: PartitionKey) -> Partition | None:
        """Returns the watched partition, or None if the partition is not watched."""
        watched = self._watched.get(key)
        return None if watched is None else watched.partition

    def close(self) -> None:
        self._is_closed = True
        for key in list(self._watched):
            self.forget(key)

    def _mark_and_wake(self, key: PartitionKey) -> None:
        self.changed[key] = None
        for on_change in self.callbacks:
            on_change(key)
