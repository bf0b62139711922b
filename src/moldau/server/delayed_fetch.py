"""Reading many partitions for one fetch, again and again as they progress, until there is enough or time is
up."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from moldau.errors import MoldauError, NotLeaderError, UnknownTopicIdError, UnsupportedCompressionError
from moldau.logs.store import FileSlice, Slices
from moldau.partitions.partition import Fetched, Partition
from moldau.partitions.state import ReplicaFetch
from moldau.partitions.waiting import Listeners
from moldau.server.broker import Broker
from moldau.server.fetch_sessions import Told, Wanted
from moldau.server.fetch_watch import PartitionKey, Watch
from moldau.server.lookup import find_partition
from moldau.server.replica_selector import nearest_replica

ZSTD_FETCH_VERSION = 10
FROM_FOLLOWER_VERSION = 11
"""Consumers of this version know that followers can be read from."""
REPLICA_VERSION = 15
"""The first in which a follower says which life of its broker it fetches in."""

PARTITIONS_PER_TURN = 100
"""How many are read before others have a turn on the event loop."""

Result = Fetched | MoldauError


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
    """One fetch under way, of the partitions in `wanted`; `looked_at` and `results` have those that it came to."""

    def __init__(
        self,
        broker: Broker,
        wanted: Mapping[PartitionKey, Wanted],
        asker: Asker,
        watch: Watch,
        told: Mapping[PartitionKey, Told] | None,
        *,
        bytes_max: int,
        committed_only: bool,
    ) -> None:
        """`told` is what a session's client knows already; None without a session."""
        self._broker = broker
        self._wanted = wanted
        self._asker = asker
        self._watch = watch
        self._told = told
        self._bytes_max = bytes_max
        self._room = bytes_max
        self._bytes_min = 0
        self._committed_only = committed_only
        self._followers_serve = bool(broker.settings.broker.replica_selector_class)
        """Whether consumers read from followers, who then should know at once how far they may."""
        self._telling: dict[PartitionKey, None] = {}
        """What has something to tell at once besides records."""
        self._left_behind: dict[PartitionKey, None] = {}
        """What has more to read than is in the answer."""
        self._partitions: dict[PartitionKey, Partition] = {}
        self._first_seen: dict[PartitionKey, int] = {}
        """High watermarks when a fetch without a session came: what it knew before, nobody remembers."""
        self.looked_at: dict[PartitionKey, Wanted] = {}
        self.results: dict[PartitionKey, Result] = {}

    async def run(
        self, keys: Sequence[PartitionKey], bytes_min: int, wait_ms: int, closed: Listeners
    ) -> None:
        """Reads these; if that gives too little, waits for news of any partition and reads what has some. `closed`
        tells when the caller has gone."""
        # An answer never holds more than bytes_max: nobody need wait for that.
        self._bytes_min = min(bytes_min, max(self._bytes_max, 1))
        news = _News()
        self._watch.attach(news.tell)
        try:
            await self._read(keys, is_asked=True)
            if wait_ms > 0 and self._wanted and not self._is_enough():
                await self._wait(news, wait_ms, closed)
        finally:
            self._watch.detach(news.tell)
            self._look_again_at_what_is_left()
        if self._asker.is_replica:
            self._count_sent()

    async def _wait(self, news: "_News", wait_ms: int, closed: Listeners) -> None:
        timer = asyncio.get_running_loop().call_later(wait_ms / 1000, news.stop)
        endings = [(listeners, listeners.add(news.stop)) for listeners in (self._broker.long_polls, closed)]
        try:
            while not self._is_enough() and await news.come():
                await self._read(news.take(), is_asked=False)
        finally:
            timer.cancel()
            for listeners, ticket in endings:
                listeners.remove(ticket)

    def _look_again_at_what_is_left(self) -> None:
        """What was not read to its end comes first in the next fetch, and behind it what got its share in this one."""
        served = []
        for key, result in self.results.items():
            if isinstance(result, Fetched) and result.records.size:
                served.append(key)
            elif isinstance(result, MoldauError) or self._has_more(key):
                self._watch.news.setdefault(key)
        for key in served:
            self._watch.news.pop(key, None)
            self._watch.news[key] = None

    def _has_more(self, key: PartitionKey) -> bool:
        return self.looked_at[key].offset < self._end(self._partitions[key])

    def _end(self, partition: Partition) -> int:
        """Where the part of the log ends that the asker may read."""
        if self._asker.is_replica:
            return partition.log.end_offset
        return partition.visible_end(committed_only=self._committed_only)

    async def _leaves_behind(self, key: PartitionKey, records: Slices) -> bool:
        """Whether a limit, or the end of a segment, kept back records that could be read. Of interest only where the
        answer has some already, and too few: then there is no point in waiting for others."""
        if not 0 < self._bytes_max - self._room + records.size < self._bytes_min:
            return False
        partition = self._partitions[key]
        end = self._end(partition)
        if not records.size:
            # Up to its end there may be nothing left, where compaction has taken the last records.
            next_batch = await partition.log.read(self.looked_at[key].offset, 0, end)
            return self._has_more(key) and next_batch.size > 0
        last_batch = await partition.log.read(end - 1, 0, end)
        return last_batch.size > 0 and not _ends_with(records, last_batch)

    def _follow(self, key: PartitionKey, partition: Partition) -> None:
        """Followers read all of a log, consumers what is committed."""
        if not self._asker.is_replica:
            self._watch.follow(key, partition, loud=[partition.progress])
        elif self._followers_serve:
            self._watch.follow(key, partition, loud=[partition.growth, partition.progress])
        else:
            self._watch.follow(key, partition, loud=[partition.growth], quiet=[partition.progress])

    def _is_enough(self) -> bool:
        return bool(self._telling or self._left_behind) or self._bytes_max - self._room >= self._bytes_min

    def _is_news(self, key: PartitionKey, result: Result) -> bool:
        """What is told at once though there are no records."""
        if isinstance(result, MoldauError):
            return True
        if not self._asker.is_replica:
            return result.nearest_replica >= 0
        if 0 <= self.looked_at[key].start_offset < result.start_offset:
            return True
        if not self._followers_serve:
            return False
        if self._told is None:
            return result.high_watermark > self._first_seen.setdefault(key, result.high_watermark)
        told = self._told.get(key)
        return told is None or result.high_watermark > told.high_watermark

    async def _read(self, keys: Sequence[PartitionKey], *, is_asked: bool) -> None:
        """`is_asked` the first time: what a follower says of itself counts once."""
        for number, key in enumerate(keys, start=1):
            if number % PARTITIONS_PER_TURN == 0:
                await asyncio.sleep(0)
            wanted = self._wanted.get(key)
            if wanted is None:
                continue
            self._watch.news.pop(key, None)
            before = self.results.get(key)
            if isinstance(before, Fetched):
                self._room += before.records.size
            if wanted.topic_id is not None:
                # It may have got its topic, or lost it, since a session was told of it.
                topic = self._broker.metadata.image.topic_names.get(wanted.topic_id)
                if topic != wanted.topic:
                    wanted = wanted._replace(topic=topic)
            self.looked_at[key] = wanted
            result: Result
            self._left_behind.pop(key, None)
            try:
                result = await self._read_one(key, wanted, is_asked)
                if await self._leaves_behind(key, result.records):
                    self._left_behind[key] = None
            except MoldauError as error:
                result = error
            else:
                self._room -= result.records.size
            self.results[key] = result
            if self._is_news(key, result):
                self._telling[key] = None
            else:
                self._telling.pop(key, None)

    async def _read_one(self, key: PartitionKey, wanted: Wanted, is_asked: bool) -> Fetched:
        if wanted.topic is None:
            raise UnknownTopicIdError(f"there is no topic with the id {wanted.topic_id}")
        partition = find_partition(self._broker, wanted.topic, wanted.partition, wanted.topic_id)
        self._partitions[key] = partition
        # Before it is read, so that nothing is missed that happens meanwhile.
        self._follow(key, partition)
        # The first batch comes whole even if it is over the limit, or a consumer could never get past it;
        # but only as long as nothing else is in the answer.
        whole_first = self._room == self._bytes_max
        bytes_max = max(0, min(wanted.bytes_max, self._room))
        if self._asker.is_replica:
            return await self._read_for_replica(partition, wanted, bytes_max, whole_first, is_asked)
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
        self, partition: Partition, wanted: Wanted, bytes_max: int, whole_first: bool, is_asked: bool
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
            fetch, bytes_max, whole_first=whole_first, is_asked=is_asked
        )
        if is_asked and self._broker.replication is not None and partition.may_join(asker.replica_id):
            # It has caught up by what it has just said.
            self._broker.replication.in_sync.look_at(partition)
        return fetched

    # Throttling followers that catch up

    def _is_held_back(self, partition: Partition) -> bool:
        replication = self._broker.replication
        if replication is None or not self._is_out_of_sync(partition):
            return False
        now_ms = self._broker.platform.clock.monotonic_ms()
        return not replication.throttle.allows(partition.name, self._asker.replica_id, now_ms)

    def _count_sent(self) -> None:
        replication = self._broker.replication
        if replication is None:
            return
        now_ms = self._broker.platform.clock.monotonic_ms()
        for key, result in self.results.items():
            size = result.records.size if isinstance(result, Fetched) else 0
            if size and self._is_out_of_sync(self._partitions[key]):
                replication.throttle.note(self._partitions[key].name, size, now_ms)

    def _is_out_of_sync(self, partition: Partition) -> bool:
        if not partition.is_leader or partition.failure is not None:
            return False
        return self._asker.replica_id not in partition.leader().in_sync


def _ends_with(records: Slices, last_batch: Slices) -> bool:
    """Whether the last batch of a log is in what was read of it. Both refer to where the log has them."""
    part, last = records.parts[-1], last_batch.parts[-1]
    if isinstance(part, FileSlice) and isinstance(last, FileSlice):
        return part.file is last.file and part.position + part.size >= last.position + last.size
    return part is last


class _News:
    """Which partitions have news since somebody last looked, and a way to wait for the first of them."""

    def __init__(self) -> None:
        self._keys: dict[PartitionKey, None] = {}
        self._waiter: asyncio.Future[bool] | None = None
        self._stopped = False

    def tell(self, key: PartitionKey) -> None:
        self._keys[key] = None
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(True)

    def stop(self) -> None:
        self._stopped = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(False)

    def take(self) -> list[PartitionKey]:
        keys, self._keys = list(self._keys), {}
        return keys

    async def come(self) -> bool:
        """True when there is news, False when time is up."""
        if self._keys:
            return True
        if self._stopped:
            return False
        self._waiter = asyncio.get_running_loop().create_future()
        return await self._waiter
