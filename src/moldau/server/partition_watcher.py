"""Tracks which partitions of a fetch have changed since they were last read.

It belongs to a fetch session, so that a fetch of thousands of partitions costs no more than those that changed.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple
from uuid import UUID

from moldau.partitions.delayed_operations import CallbackList
from moldau.partitions.partition import Partition

PartitionKey = tuple[UUID | str, int]
"""Topic id, or topic name if the fetch uses names, and partition index."""
OnChange = Callable[[PartitionKey], None]


class _WatchedPartition(NamedTuple):
    partition: Partition
    tickets: list[tuple[CallbackList, int]]


class PartitionWatcher:
    def __init__(self) -> None:
        self.changed: dict[PartitionKey, None] = {}
        """Partitions that changed since their last read or were not read to their end, longest waiting first."""
        self._watched: dict[PartitionKey, _WatchedPartition] = {}
        self._callbacks: list[OnChange] = []
        self._is_closed = False

    def watch(
        self,
        key: PartitionKey,
        partition: Partition,
        *,
        wake_on: Iterable[CallbackList],
        mark_on: Iterable[CallbackList] = (),
    ) -> None:
        """Marks the partition as changed on all these events; those in `wake_on` also wake pending fetches."""
        if self._is_closed:
            # The session ended during a fetch: nothing would ever remove the callbacks again.
            return
        watched = self._watched.get(key)
        if watched is not None:
            if watched.partition is partition:
                return
            self.forget(key)
        tickets = [(each, each.add(lambda: self._mark_and_wake(key))) for each in wake_on]
        tickets += [(each, each.add(lambda: self._mark(key))) for each in mark_on]
        self._watched[key] = _WatchedPartition(partition, tickets)

    def forget(self, key: PartitionKey) -> None:
        self.changed.pop(key, None)
        watched = self._watched.pop(key, None)
        if watched is not None:
            for callbacks, ticket in watched.tickets:
                callbacks.remove(ticket)

    def partition(self, key: PartitionKey) -> Partition | None:
        """Returns the watched partition, if there is one."""
        watched = self._watched.get(key)
        return None if watched is None else watched.partition

    def close(self) -> None:
        self._is_closed = True
        for key in list(self._watched):
            self.forget(key)

    def add_callback(self, on_change: OnChange) -> None:
        """Calls `on_change` on every waking event, until it is removed."""
        self._callbacks.append(on_change)

    def remove_callback(self, on_change: OnChange) -> None:
        self._callbacks.remove(on_change)

    def _mark(self, key: PartitionKey) -> None:
        self.changed[key] = None

    def _mark_and_wake(self, key: PartitionKey) -> None:
        self.changed[key] = None
        for on_change in self._callbacks:
            on_change(key)
