"""Reading many partitions for one fetch, again and again as they progress, until there is enough or time is
up."""

import asyncio
from collections.abc import Sequence

from moldau.errors import (
    MoldauError,
    NotLeaderError,
    OffsetOutOfRangeError,
    UnknownTopicIdError,
    UnsupportedCompressionError,
)
from moldau.logs.store import NOTHING
from moldau.partitions.partition import Fetched, Partition
from moldau.partitions.waiting import Listeners
from moldau.requests.broker import Broker
from moldau.requests.fetch_sessions import Wanted
from moldau.requests.lookup import find_partition

ZSTD_FETCH_VERSION = 10


class Diverged(MoldauError):
    """The caller's last fetched epoch ended earlier here: it has records that this log has not."""

    def __init__(self, epoch: int, end_offset: int) -> None:
        super().__init__(f"epoch {epoch} ended at {end_offset}")
        self.epoch = epoch
        self.end_offset = end_offset


Result = Fetched | MoldauError

_NOTHING_YET = Fetched(NOTHING, -1, -1, -1)


class Fetch:
    """One fetch under way. `results` stands beside `wanted`, place by place."""

    def __init__(
        self,
        broker: Broker,
        wanted: Sequence[Wanted],
        *,
        bytes_max: int,
        committed_only: bool,
        replica_id: int,
        version: int,
    ) -> None:
        self._broker = broker
        self._wanted = wanted
        self._bytes_max = bytes_max
        self._committed_only = committed_only
        self._replica_id = replica_id
        self._version = version
        self._partitions: list[Partition | None] = [None] * len(wanted)
        self.results: list[Result] = [_NOTHING_YET] * len(wanted)

    async def run(self, bytes_min: int, wait_ms: int, closed: Listeners) -> None:
        """Reads; if that gives too little, waits for progress and reads again what progressed. `closed`
        tells when the caller has gone."""
        await self._read(range(len(self._wanted)))
        if wait_ms <= 0 or not self._wanted or self._is_enough(bytes_min):
            return
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_ms / 1000
        news = _News()
        tickets = [
            (partition, partition.progress.add(lambda place=place: news.tell(place)))  # type: ignore[misc]
            for place, partition in enumerate(self._partitions)
            if partition is not None
        ]
        timer = loop.call_at(deadline, news.stop)
        endings = [(listeners, listeners.add(news.stop)) for listeners in (self._broker.long_polls, closed)]
        try:
            # Progress between the read and the listening would be missed: look once more before waiting.
            await self._read(range(len(self._wanted)))
            while not self._is_enough(bytes_min) and await news.come():
                await self._read(news.take())
        finally:
            timer.cancel()
            for listeners, ticket in endings:
                listeners.remove(ticket)
            for partition, ticket in tickets:
                partition.progress.remove(ticket)

    def _is_enough(self, bytes_min: int) -> bool:
        total = 0
        for result in self.results:
            if isinstance(result, MoldauError):
                return True
            total += result.records.size
        return total >= bytes_min

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
        if self._replica_id >= 0:
            raise NotLeaderError(f"node {self._replica_id} has no replica of {partition.name}")
        log = partition.log
        if self._version < ZSTD_FETCH_VERSION and log.settings.compression_type == "zstd":
            raise UnsupportedCompressionError(
                "the topic is stored in zstd, which this version of Fetch cannot carry"
            )
        if wanted.last_fetched_epoch >= 0:
            partition.leader(wanted.known_epoch)
            epoch, end_offset = log.epochs.epoch_end(wanted.last_fetched_epoch, log.end_offset)
            if epoch < 0:
                raise OffsetOutOfRangeError(
                    f"nothing is known here of leader epoch {wanted.last_fetched_epoch}"
                )
            if epoch < wanted.last_fetched_epoch or end_offset < wanted.offset:
                raise Diverged(epoch, end_offset)
        # The first batch comes whole even if it is over the limit, or a consumer could never get past it;
        # but only as long as nothing else is in the answer.
        return await partition.read(
            wanted.offset,
            max(0, min(wanted.bytes_max, room)),
            known_epoch=wanted.known_epoch,
            committed_only=self._committed_only,
            whole_first=room == self._bytes_max,
        )


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
