"""Which partitions of a fetch are worth another look. It stays with a fetch session, so that a fetch of thousands of
partitions costs no more than those of them that have news."""

from collections.abc import Callable, Iterable
from typing import NamedTuple
from uuid import UUID

from moldau.partitions.partition import Partition
from moldau.partitions.waiting import Listeners

PartitionKey = tuple[UUID | str, int]
"""Of a topic's id, or its name where a fetch goes by names."""
OnNews = Callable[[PartitionKey], None]


class _Followed(NamedTuple):
    partition: Partition
    tickets: list[tuple[Listeners, int]]


class Watch:
    def __init__(self) -> None:
        self.news: dict[PartitionKey, None] = {}
        """Partitions that have changed since they were last read, or were not read to their end; the one that has
        waited longest comes first."""
        self._followed: dict[PartitionKey, _Followed] = {}
        self._fetches: list[OnNews] = []
        self._is_closed = False

    def follow(
        self,
        key: PartitionKey,
        partition: Partition,
        *,
        loud: Iterable[Listeners],
        quiet: Iterable[Listeners] = (),
    ) -> None:
        """From now on notices what happens to the partition: what is loud wakes the fetches that wait."""
        if self._is_closed:
            # Its session has ended while a fetch was reading: nobody would ever let go of the partition again.
            return
        followed = self._followed.get(key)
        if followed is not None:
            if followed.partition is partition:
                return
            self.forget(key)
        tickets = [(each, each.add(lambda: self._tell(key))) for each in loud]
        tickets += [(each, each.add(lambda: self._note(key))) for each in quiet]
        self._followed[key] = _Followed(partition, tickets)

    def forget(self, key: PartitionKey) -> None:
        self.news.pop(key, None)
        followed = self._followed.pop(key, None)
        if followed is not None:
            for listeners, ticket in followed.tickets:
                listeners.remove(ticket)

    def partition(self, key: PartitionKey) -> Partition | None:
        """Where it is followed."""
        followed = self._followed.get(key)
        return None if followed is None else followed.partition

    def close(self) -> None:
        self._is_closed = True
        for key in list(self._followed):
            self.forget(key)

    def attach(self, on_news: OnNews) -> None:
        """A fetch begins that wants to be told of loud news."""
        self._fetches.append(on_news)

    def detach(self, on_news: OnNews) -> None:
        self._fetches.remove(on_news)

    def _note(self, key: PartitionKey) -> None:
        self.news[key] = None

    def _tell(self, key: PartitionKey) -> None:
        self.news[key] = None
        for on_news in self._fetches:
            on_news(key)
