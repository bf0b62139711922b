"""Which partitions of a fetch are worth another look. It stays with a fetch session, so that a fetch of thousands of
partitions costs no more than those of them that have news."""

from collections.abc import Callable, Iterable
from typing import NamedTuple
from uuid import UUID

from moldau.partitions.partition import Partition
from moldau.partitions.waiters import CallbackList

PartitionKey = tuple[UUID | str, int]
"""Of a topic's id, or its name where a fetch goes by names."""
OnChange = Callable[[PartitionKey], None]


class _WatchedPartition(NamedTuple):
    partition: Partition
    tickets: list[tuple[CallbackList, int]]


class PartitionWatcher:
    def __init__(self) -> None:
        self.changed: dict[PartitionKey, None] = {}
        """Partitions that have changed since they were last read, or were not read to their end; the one that has
        waited longest comes first."""
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
        """From now on notices what happens to the partition: what is loud wakes the fetches that wait."""
        if self._is_closed:
            # Its session has ended while a fetch was reading: nobody would ever let go of the partition again.
            return
        followed = self._watched.get(key)
        if followed is not None:
            if followed.partition is partition:
                return
            self.forget(key)
        tickets = [(each, each.add(lambda: self._mark_and_wake(key))) for each in wake_on]
        tickets += [(each, each.add(lambda: self._mark(key))) for each in mark_on]
        self._watched[key] = _WatchedPartition(partition, tickets)

    def forget(self, key: PartitionKey) -> None:
        self.changed.pop(key, None)
        followed = self._watched.pop(key, None)
        if followed is not None:
            for listeners, ticket in followed.tickets:
                listeners.remove(ticket)

    def partition(self, key: PartitionKey) -> Partition | None:
        """Where it is followed."""
        followed = self._watched.get(key)
        return None if followed is None else followed.partition

    def close(self) -> None:
        self._is_closed = True
        for key in list(self._watched):
            self.forget(key)

    def add_callback(self, on_news: OnChange) -> None:
        """A fetch begins that wants to be told of loud news."""
        self._callbacks.append(on_news)

    def remove_callback(self, on_news: OnChange) -> None:
        self._callbacks.remove(on_news)

    def _mark(self, key: PartitionKey) -> None:
        self.changed[key] = None

    def _mark_and_wake(self, key: PartitionKey) -> None:
        self.changed[key] = None
        for on_news in self._callbacks:
            on_news(key)
