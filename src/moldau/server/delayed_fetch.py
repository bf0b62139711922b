"""Reading many partitions for one fetch, again and again as they progress, until there is enough or time is
up."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from moldau.errors import (
    MoldauError,
    NotLeaderOrFollowerError,
    UnknownTopicIdError,
    UnsupportedCompressionError,
)
from moldau.logs.store import FileSlice, RecordSlices
from moldau.partitions.leader_state import FollowerFetch
from moldau.partitions.partition import LogReadInfo, Partition
from moldau.partitions.waiters import CallbackList
from moldau.server.broker import Broker
from moldau.server.fetch_session import FetchPartition, LastSentOffsets
from moldau.server.partition_lookup import find_partition
from moldau.server.partition_watcher import PartitionKey, PartitionWatcher
from moldau.server.replica_selector import select_replica

ZSTD_FETCH_VERSION = 10
FOLLOWER_FETCH_VERSION = 11
"""Consumers of this version know that followers can be read from."""
REPLICA_VERSION = 15
"""The first in which a follower says which life of its broker it fetches in."""

PARTITIONS_PER_ITERATION = 100
"""How many are read before others have a turn on the event loop."""

FetchResult = LogReadInfo | MoldauError


class FetchParams(NamedTuple):
    """Who fetches: a consumer, or a follower."""

    version: int
    listener: str
    rack: str = ""
    replica_id: int = -1
    broker_epoch: int = -1

    @property
    def is_replica(self) -> bool:
        return self.replica_id >= 0


class DelayedFetch:
    """One fetch under way, of the partitions in `wanted`; `read_partitions` and `results` have those that it
    came to."""

    def __init__(
        self,
        broker: Broker,
        wanted: Mapping[PartitionKey, FetchPartition],
        params: FetchParams,
        watcher: PartitionWatcher,
        last_sent: Mapping[PartitionKey, LastSentOffsets] | None,
        *,
        bytes_max: int,
        committed_only: bool,
    ) -> None:
        """`last_sent` is what a session's client knows already; None without a session."""
        self._broker = broker
        self._wanted = wanted
        self._params = params
        self._watcher = watcher
        self._last_sent = last_sent
        self._bytes_max = bytes_max
        self._bytes_left = bytes_max
        self._bytes_min = 0
        self._committed_only = committed_only
        self._is_follower_fetch_enabled = bool(broker.settings.broker.replica_selector_class)
        """Whether consumers read from followers, who then should know at once how far they may."""
        self._immediate: dict[PartitionKey, None] = {}
        """What has something to tell at once besides records."""
        self._incomplete: dict[PartitionKey, None] = {}
        """What has more to read than is in the answer."""
        self._partitions: dict[PartitionKey, Partition] = {}
        self._initial_high_watermarks: dict[PartitionKey, int] = {}
        """High watermarks when a fetch without a session came: what it knew before, nobody remembers."""
        self.read_partitions: dict[PartitionKey, FetchPartition] = {}
        self.results: dict[PartitionKey, FetchResult] = {}

    async def run(
        self, keys: Sequence[PartitionKey], bytes_min: int, wait_ms: int, closed: CallbackList
    ) -> None:
        """Reads these; if that gives too little, waits for news of any partition and reads what has some. `closed`
        tells when the caller has gone."""
        # An answer never holds more than bytes_max: nobody need wait for that.
        self._bytes_min = min(bytes_min, max(self._bytes_max, 1))
        changed = _ChangeQueue()
        self._watcher.add_callback(changed.add)
        try:
            await self._read(keys, is_new_request=True)
            if wait_ms > 0 and self._wanted and not self._is_satisfied():
                await self._wait(changed, wait_ms, closed)
        finally:
            self._watcher.remove_callback(changed.add)
            self._requeue_partitions()
        if self._params.is_replica:
            self._record_throttled_bytes()

    async def _wait(self, changed: "_ChangeQueue", wait_ms: int, closed: CallbackList) -> None:
        timer = asyncio.get_running_loop().call_later(wait_ms / 1000, changed.stop)
        endings = [
            (listeners, listeners.add(changed.stop))
            for listeners in (self._broker.shutdown_callbacks, closed)
        ]
        try:
            while not self._is_satisfied() and await changed.wait():
                await self._read(changed.take(), is_new_request=False)
        finally:
            timer.cancel()
            for listeners, ticket in endings:
                listeners.remove(ticket)

    def _requeue_partitions(self) -> None:
        """What was not read to its end comes first in the next fetch, and behind it what got its share in this one."""
        served = []
        for key, result in self.results.items():
            if isinstance(result, LogReadInfo) and result.records.size:
                served.append(key)
            elif isinstance(result, MoldauError) or self._has_more(key):
                self._watcher.changed.setdefault(key)
        for key in served:
            self._watcher.changed.pop(key, None)
            self._watcher.changed[key] = None

    def _has_more(self, key: PartitionKey) -> bool:
        return self.read_partitions[key].offset < self._end(self._partitions[key])

    def _end(self, partition: Partition) -> int:
        """Where the part of the log ends that the asker may read."""
        if self._params.is_replica:
            return partition.log.end_offset
        return partition.visible_end(committed_only=self._committed_only)

    async def _is_incomplete(self, key: PartitionKey, records: RecordSlices) -> bool:
        """Whether a limit, or the end of a segment, kept back records that could be read. Of interest only where the
        answer has some already, and too few: then there is no point in waiting for others."""
        if not 0 < self._bytes_max - self._bytes_left + records.size < self._bytes_min:
            return False
        partition = self._partitions[key]
        end = self._end(partition)
        if not records.size:
            # Up to its end there may be nothing left, where compaction has taken the last records.
            next_batch = await partition.log.read(self.read_partitions[key].offset, 0, end)
            return self._has_more(key) and next_batch.size > 0
        last_batch = await partition.log.read(end - 1, 0, end)
        return last_batch.size > 0 and not _ends_with(records, last_batch)

    def _watch(self, key: PartitionKey, partition: Partition) -> None:
        """Followers read all of a log, consumers what is committed."""
        if not self._params.is_replica:
            self._watcher.watch(key, partition, wake_on=[partition.delayed.high_watermark_listeners])
        elif self._is_follower_fetch_enabled:
            self._watcher.watch(
                key,
                partition,
                wake_on=[partition.delayed.append_listeners, partition.delayed.high_watermark_listeners],
            )
        else:
            self._watcher.watch(
                key,
                partition,
                wake_on=[partition.delayed.append_listeners],
                mark_on=[partition.delayed.high_watermark_listeners],
            )

    def _is_satisfied(self) -> bool:
        return (
            bool(self._immediate or self._incomplete) or self._bytes_max - self._bytes_left >= self._bytes_min
        )

    def _completes_immediately(self, key: PartitionKey, result: FetchResult) -> bool:
        """What is told at once though there are no records."""
        if isinstance(result, MoldauError):
            return True
        if not self._params.is_replica:
            return result.preferred_read_replica >= 0
        if 0 <= self.read_partitions[key].log_start_offset < result.start_offset:
            return True
        if not self._is_follower_fetch_enabled:
            return False
        if self._last_sent is None:
            return result.high_watermark > self._initial_high_watermarks.setdefault(
                key, result.high_watermark
            )
        last_sent = self._last_sent.get(key)
        return last_sent is None or result.high_watermark > last_sent.high_watermark

    async def _read(self, keys: Sequence[PartitionKey], *, is_new_request: bool) -> None:
        """`is_new_request` the first time: what a follower says of itself counts once."""
        for number, key in enumerate(keys, start=1):
            if number % PARTITIONS_PER_ITERATION == 0:
                await asyncio.sleep(0)
            wanted = self._wanted.get(key)
            if wanted is None:
                continue
            self._watcher.changed.pop(key, None)
            before = self.results.get(key)
            if isinstance(before, LogReadInfo):
                self._bytes_left += before.records.size
            if wanted.topic_id is not None:
                # It may have got its topic, or lost it, since a session was told of it.
                topic = self._broker.metadata.image.topic_names.get(wanted.topic_id)
                if topic != wanted.topic:
                    wanted = wanted._replace(topic=topic)
            self.read_partitions[key] = wanted
            result: FetchResult
            self._incomplete.pop(key, None)
            try:
                result = await self._read_one(key, wanted, is_new_request)
                if await self._is_incomplete(key, result.records):
                    self._incomplete[key] = None
            except MoldauError as error:
                result = error
            else:
                self._bytes_left -= result.records.size
            self.results[key] = result
            if self._completes_immediately(key, result):
                self._immediate[key] = None
            else:
                self._immediate.pop(key, None)

    async def _read_one(self, key: PartitionKey, wanted: FetchPartition, is_new_request: bool) -> LogReadInfo:
        if wanted.topic is None:
            raise UnknownTopicIdError(f"there is no topic with the id {wanted.topic_id}")
        partition = find_partition(self._broker, wanted.topic, wanted.partition, wanted.topic_id)
        self._partitions[key] = partition
        # Before it is read, so that nothing is missed that happens meanwhile.
        self._watch(key, partition)
        # The first batch comes whole even if it is over the limit, or a consumer could never get past it;
        # but only as long as nothing else is in the answer.
        min_one_batch = self._bytes_left == self._bytes_max
        bytes_max = max(0, min(wanted.bytes_max, self._bytes_left))
        if self._params.is_replica:
            return await self._read_for_replica(partition, wanted, bytes_max, min_one_batch, is_new_request)
        return await self._read_for_consumer(partition, wanted, bytes_max, min_one_batch)

    async def _read_for_consumer(
        self, partition: Partition, wanted: FetchPartition, bytes_max: int, min_one_batch: bool
    ) -> LogReadInfo:
        version = self._params.version
        if version < ZSTD_FETCH_VERSION and partition.log.settings.compression_type == "zstd":
            raise UnsupportedCompressionError(
                "the topic is stored in zstd, which this version of DelayedFetch cannot carry"
            )
        nearest = self._select_replica(partition, wanted.offset)
        fetched = await partition.read(
            wanted.offset,
            0 if nearest is not None else bytes_max,
            current_leader_epoch=wanted.current_leader_epoch,
            last_fetched_epoch=wanted.last_fetched_epoch,
            committed_only=self._committed_only,
            min_one_batch=min_one_batch and nearest is None,
            from_follower=version >= FOLLOWER_FETCH_VERSION,
        )
        return fetched if nearest is None else fetched._replace(preferred_read_replica=nearest)

    def _select_replica(self, partition: Partition, offset: int) -> int | None:
        return select_replica(
            partition,
            offset,
            self._params.rack,
            self._broker.metadata.image,
            self._params.listener,
            self._broker.settings.broker.replica_selector_class,
        )

    async def _read_for_replica(
        self,
        partition: Partition,
        wanted: FetchPartition,
        bytes_max: int,
        min_one_batch: bool,
        is_new_request: bool,
    ) -> LogReadInfo:
        params = self._params
        if params.version < REPLICA_VERSION:
            raise NotLeaderOrFollowerError(
                f"a follower of {partition.name} must use Fetch {REPLICA_VERSION} or later"
            )
        if params.listener != self._broker.settings.broker.inter_broker_listener:
            raise NotLeaderOrFollowerError(
                f"followers of {partition.name} are not served on listener {params.listener}"
            )
        if self._is_throttled(partition):
            bytes_max, min_one_batch = 0, False
        fetch = FollowerFetch(
            params.replica_id,
            params.broker_epoch,
            wanted.offset,
            wanted.last_fetched_epoch,
            wanted.current_leader_epoch,
            wanted.log_start_offset,
        )
        fetched = await partition.read_for_follower(
            fetch, bytes_max, min_one_batch=min_one_batch, is_new_request=is_new_request
        )
        if (
            is_new_request
            and self._broker.replication is not None
            and partition.leader.can_join_isr(params.replica_id)
        ):
            # It has caught up by what it has just said.
            self._broker.replication.alter_partition_manager.check_isr(partition.leader)
        return fetched

    # Throttling followers that catch up

    def _is_throttled(self, partition: Partition) -> bool:
        replication = self._broker.replication
        if replication is None or not self._is_out_of_sync(partition):
            return False
        now_ms = self._broker.platform.clock.monotonic_ms()
        return not replication.quota.leader_may_send(partition.name, self._params.replica_id, now_ms)

    def _record_throttled_bytes(self) -> None:
        replication = self._broker.replication
        if replication is None:
            return
        now_ms = self._broker.platform.clock.monotonic_ms()
        for key, result in self.results.items():
            size = result.records.size if isinstance(result, LogReadInfo) else 0
            if size and self._is_out_of_sync(self._partitions[key]):
                replication.quota.record_sent(self._partitions[key].name, size, now_ms)

    def _is_out_of_sync(self, partition: Partition) -> bool:
        if not partition.is_leader or partition.failure is not None:
            return False
        return self._params.replica_id not in partition.require_leader().isr


def _ends_with(records: RecordSlices, last_batch: RecordSlices) -> bool:
    """Whether the last batch of a log is in what was read of it. Both refer to where the log has them."""
    part, last = records.parts[-1], last_batch.parts[-1]
    if isinstance(part, FileSlice) and isinstance(last, FileSlice):
        return part.file is last.file and part.position + part.size >= last.position + last.size
    return part is last


class _ChangeQueue:
    """Which partitions have news since somebody last looked, and a way to wait for the first of them."""

    def __init__(self) -> None:
        self._keys: dict[PartitionKey, None] = {}
        self._waiter: asyncio.Future[bool] | None = None
        self._is_stopped = False

    def add(self, key: PartitionKey) -> None:
        self._keys[key] = None
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(True)

    def stop(self) -> None:
        self._is_stopped = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(False)

    def take(self) -> list[PartitionKey]:
        keys, self._keys = list(self._keys), {}
        return keys

    async def wait(self) -> bool:
        """True when there is news, False when time is up."""
        if self._keys:
            return True
        if self._is_stopped:
            return False
        self._waiter = asyncio.get_running_loop().create_future()
        return await self._waiter
