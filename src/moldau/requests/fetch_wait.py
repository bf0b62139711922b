"""Reading many partitions for one fetch, again and again as they progress, until there is enough or time is
up."""

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from moldau.errors import MoldauError, NotLeaderError, UnknownTopicIdError, UnsupportedCompressionError
from moldau.logs.store import NOTHING
from moldau.partitions.partition import Fetched, Partition
from moldau.partitions.state import ReplicaFetch
from moldau.partitions.waiting import Listeners
from moldau.requests.broker import Broker
from moldau.requests.fetch_sessions import FetchSession, Wanted
from moldau.requests.lookup import find_partition
from moldau.requests.nearest import nearest_replica

ZSTD_FETCH_VERSION = 10
FROM_FOLLOWER_VERSION = 11
"""Consumers of this version know that followers can be read from."""
REPLICA_VERSION = 15
"""The first in which a follower says which life of its broker it fetches in."""

Result = Fetched | MoldauError

_NOTHING_YET = Fetched(NOTHING, -1, -1, -1)


class Asker(NamedTuple):
    """Who fetches: a consumer, or a follower."""

    version: int
    listener: str
    rack: str = ""
    replica_id: int = -1
    broker_epoch: int = -1

    @property
    def is_replica(self) -> bool:
        return self.replica_id >= 0


class Fetch:
    """One fetch under way. `results` stands beside `wanted`, place by place."""

    def __init__(
        self,
        broker: Broker,
        wanted: Sequence[Wanted],
        asker: Asker,
        session: FetchSession | None,
        *,
        bytes_max: int,
        committed_only: bool,
    ) -> None:
        self._broker = broker
        self._wanted = wanted
        self._asker = asker
        self._session = session
        self._bytes_max = bytes_max
        self._committed_only = committed_only
        self._is_asked = True
        """Until all partitions were looked at once: what a follower says of itself counts once."""
        self._partitions: list[Partition | None] = [None] * len(wanted)
        self.results: list[Result] = [_NOTHING_YET] * len(wanted)

    async def run(self, bytes_min: int, wait_ms: int, closed: Listeners) -> None:
        """Reads; if that gives too little, waits for progress and reads again what progressed. `closed`
        tells when the caller has gone."""
        await self._run(bytes_min, wait_ms, closed)
        if self._asker.is_replica:
            self._count_sent()

    async def _run(self, bytes_min: int, wait_ms: int, closed: Listeners) -> None:
        await self._read(range(len(self._wanted)))
        self._is_asked = False
        if wait_ms <= 0 or not self._wanted or self._is_enough(bytes_min):
            return
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_ms / 1000
        news = _News()
        tickets = [
            (listeners, listeners.add(lambda place=place: news.tell(place)))  # type: ignore[misc]
            for place, partition in enumerate(self._partitions)
            if partition is not None
            for listeners in self._news_of(partition)
        ]
        timer = loop.call_at(deadline, news.stop)
        tickets += [(listeners, listeners.add(news.stop)) for listeners in (self._broker.long_polls, closed)]
        try:
            # Progress between the read and the listening would be missed: look once more before waiting.
            await self._read(range(len(self._wanted)))
            while not self._is_enough(bytes_min) and await news.come():
                await self._read(news.take())
        finally:
            timer.cancel()
            for listeners, ticket in tickets:
                listeners.remove(ticket)

    def _news_of(self, partition: Partition) -> list[Listeners]:
        """Followers read all of a log, consumers what is committed."""
        if not self._asker.is_replica:
            return [partition.progress]
        return [partition.growth, partition.progress] if self._followers_serve else [partition.growth]

    @property
    def _followers_serve(self) -> bool:
        """Whether consumers read from followers, who then should know at once how far they may."""
        return bool(self._broker.settings.broker.replica_selector_class)

    def _is_enough(self, bytes_min: int) -> bool:
        total = 0
        for wanted, result in zip(self._wanted, self.results, strict=True):
            if isinstance(result, MoldauError) or self._is_news(wanted, result):
                return True
            total += result.records.size
        return total >= bytes_min

    def _is_news(self, wanted: Wanted, result: Fetched) -> bool:
        """What is told at once though there are no records."""
        if not self._asker.is_replica:
            return result.nearest_replica >= 0
        if 0 <= wanted.start_offset < result.start_offset:
            return True
        if not self._followers_serve:
            return False
        told = None if self._session is None else self._session.told.get(wanted.key)
        return told is None or result.high_watermark > told.high_watermark

    async def _read(self, places: Sequence[int]) -> None:
        room = self._bytes_max - sum(
            result.records.size for result in self.results if not isinstance(result, MoldauError)
        )
        for place in places:
            before = self.results[place]
            if not isinstance(before, MoldauError):
                room += before.records.size
            try:
                result: Result = await self._read_one(place, room)
            except MoldauError as error:
                result = error
            else:
                room -= result.records.size  # type: ignore[union-attr]
            self.results[place] = result

    async def _read_one(self, place: int, room: int) -> Fetched:
        wanted = self._wanted[place]
        if wanted.topic is None:
            raise UnknownTopicIdError(f"there is no topic with the id {wanted.topic_id}")
        partition = find_partition(self._broker, wanted.topic, wanted.partition, wanted.topic_id)
        self._partitions[place] = partition
        # The first batch comes whole even if it is over the limit, or a consumer could never get past it;
        # but only as long as nothing else is in the answer.
        whole_first = room == self._bytes_max
        bytes_max = max(0, min(wanted.bytes_max, room))
        if self._asker.is_replica:
            return await self._read_for_replica(partition, wanted, bytes_max, whole_first)
        return await self._read_for_consumer(partition, wanted, bytes_max, whole_first)

    async def _read_for_consumer(
        self, partition: Partition, wanted: Wanted, bytes_max: int, whole_first: bool
    ) -> Fetched:
        version = self._asker.version
        if version < ZSTD_FETCH_VERSION and partition.log.settings.compression_type == "zstd":
            raise UnsupportedCompressionError(
                "the topic is stored in zstd, which this version of Fetch cannot carry"
            )
        nearest = self._nearest(partition, wanted.offset)
        fetched = await partition.read(
            wanted.offset,
            0 if nearest is not None else bytes_max,
            known_epoch=wanted.known_epoch,
            last_fetched_epoch=wanted.last_fetched_epoch,
            committed_only=self._committed_only,
            whole_first=whole_first and nearest is None,
            from_follower=version >= FROM_FOLLOWER_VERSION,
        )
        return fetched if nearest is None else fetched._replace(nearest_replica=nearest)

    def _nearest(self, partition: Partition, offset: int) -> int | None:
        return nearest_replica(
            partition,
            offset,
            self._asker.rack,
            self._broker.metadata.image,
            self._asker.listener,
            self._broker.settings.broker.replica_selector_class,
        )

    async def _read_for_replica(
        self, partition: Partition, wanted: Wanted, bytes_max: int, whole_first: bool
    ) -> Fetched:
        asker = self._asker
        if asker.version < REPLICA_VERSION:
            raise NotLeaderError(f"a follower of {partition.name} must use Fetch {REPLICA_VERSION} or later")
        if asker.listener != self._broker.settings.broker.inter_broker_listener:
            raise NotLeaderError(f"followers of {partition.name} are not served on listener {asker.listener}")
        if self._is_held_back(partition):
            bytes_max, whole_first = 0, False
        fetch = ReplicaFetch(
            asker.replica_id,
            asker.broker_epoch,
            wanted.offset,
            wanted.last_fetched_epoch,
            wanted.known_epoch,
            wanted.start_offset,
        )
        fetched = await partition.read_for_replica(
            fetch, bytes_max, whole_first=whole_first, is_asked=self._is_asked
        )
        if self._is_asked and self._broker.replication is not None and self._is_out_of_sync(partition):
            # It may have caught up by what it has just said.
            self._broker.replication.in_sync.look_at(partition)
        return fetched

    # Throttling followers that catch up

    def _is_held_back(self, partition: Partition) -> bool:
        replication = self._broker.replication
        if replication is None or not self._is_out_of_sync(partition):
            return False
        now_ms = self._broker.world.clock.monotonic_ms()
        return not replication.throttle.allows(partition.name, self._asker.replica_id, now_ms)

    def _count_sent(self) -> None:
        replication = self._broker.replication
        if replication is None:
            return
        now_ms = self._broker.world.clock.monotonic_ms()
        for partition, result in zip(self._partitions, self.results, strict=True):
            size = result.records.size if isinstance(result, Fetched) else 0
            if size and partition is not None and self._is_out_of_sync(partition):
                replication.throttle.note(partition.name, size, now_ms)

    def _is_out_of_sync(self, partition: Partition) -> bool:
        if not partition.is_leader or partition.failure is not None:
            return False
        return self._asker.replica_id not in partition.leader().in_sync


class _News:
    """Which partitions progressed since somebody last looked, and a way to wait for the first of them."""

    def __init__(self) -> None:
        self._places: dict[int, None] = {}
        self._waiter: asyncio.Future[bool] | None = None
        self._stopped = False

    def tell(self, place: int) -> None:
        self._places[place] = None
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(True)

    def stop(self) -> None:
        self._stopped = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(False)

    def take(self) -> list[int]:
        places, self._places = list(self._places), {}
        return places

    async def come(self) -> bool:
        """True when there is news, False when time is up."""
        if self._places:
            return True
        if self._stopped:
            return False
        self._waiter = asyncio.get_running_loop().create_future()
        return await self._waiter
