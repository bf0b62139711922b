"""A delayed fetch. It reads changed partitions again until it has enough bytes or its wait time is over."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from moldau.errors import MoldauError, NotLeaderOrFollowerError, UnknownTopicIdError, UnsupportedCompressionError
from moldau.logs.store import FileSlice, RecordSlices
from moldau.partitions.delayed_operations import CallbackList
from moldau.partitions.leader_state import FollowerFetch
from moldau.partitions.partition import LogReadInfo, Partition
from moldau.server.api import Broker
from moldau.server.fetch_session import FetchPartition, LastSentOffsets
from moldau.server.partition_lookup import find_partition
from moldau.server.partition_watcher import PartitionKey, PartitionWatcher

ZSTD_FETCH_VERSION = 10
FOLLOWER_FETCH_VERSION = 11
"""Since this version consumers can fetch from followers."""
REPLICA_VERSION = 15
"""The first version that contains the broker epoch of the follower."""

RACK_AWARE_SELECTOR = "RackAwareReplicaSelector"

PARTITIONS_PER_ITERATION = 100
"""The maximum number of partitions that are read in one iteration of the event loop."""

FetchResult = LogReadInfo | MoldauError


class FetchParams(NamedTuple):
    """Parameters of the consumer or follower that fetches. `replica_id` and `broker_epoch` are -1 for consumers."""

    version: int
    listener: str
    rack: str = ""
    replica_id: int = -1
    broker_epoch: int = -1

    @property
    def is_replica(self) -> bool:
        return self.replica_id >= 0


class DelayedFetch:
    """One fetch of `partitions`. `results` has the last result of each partition in `read_partitions`."""

    def __init__(
        self,
        broker: Broker,
        partitions: Mapping[PartitionKey, FetchPartition],
        params: FetchParams,
        watcher: PartitionWatcher,
        last_sent: Mapping[PartitionKey, LastSentOffsets] | None,
        *,
        bytes_max: int,
        committed_only: bool,
    ) -> None:
        """`last_sent` contains the offsets that the last responses of the fetch session had; None without a session."""
        self._broker = broker
        self._requested = partitions
        self._params = params
        self._is_replica = params.is_replica
        self._watcher = watcher
        self._last_sent = last_sent
        self._bytes_max = bytes_max
        self._bytes_left = bytes_max
        self._bytes_min = 0
        self._committed_only = committed_only
        self._is_follower_fetch_enabled = bool(broker.settings.broker.replica_selector_class)
        """Whether consumers may fetch from followers. If so, followers must get a new high watermark immediately."""
        self._immediate: dict[PartitionKey, None] = {}
        """Partitions that require an immediate response, even without records."""
        self._incomplete: dict[PartitionKey, None] = {}
        """Partitions that have more records than fit into the response."""
        self._partitions: dict[PartitionKey, Partition] = {}
        self._initial_high_watermarks: dict[PartitionKey, int] = {}
        """The high watermark of each partition at its first read. Used by fetches without a session, because the broker
        does not know the high watermark that the client received last."""
        self.read_partitions: dict[PartitionKey, FetchPartition] = {}
        self.results: dict[PartitionKey, FetchResult] = {}

    async def run(
        self, keys: Sequence[PartitionKey], bytes_min: int, wait_ms: int, close_callbacks: CallbackList
    ) -> None:
        """Reads `keys`, then changed partitions until there are enough bytes. The wait also ends when the connection
        closes, which calls `close_callbacks`."""
        # Do not wait for more than bytes_max, because reading stops at that limit.
        self._bytes_min = min(bytes_min, max(self._bytes_max, 1))
        changed = _ChangeQueue()
        self._watcher.callbacks.append(changed.add)
        try:
            await self._read(keys, is_new_request=True)
            if wait_ms > 0 and self._requested and not self._is_satisfied():
                await self._wait(changed, wait_ms, close_callbacks)
        finally:
            self._watcher.callbacks.remove(changed.add)
            self._requeue_partitions()
        if self._is_replica:
            self._record_throttled_bytes()

    async def _wait(self, changed: "_ChangeQueue", wait_ms: int, close_callbacks: CallbackList) -> None:
        timer = asyncio.get_running_loop().call_later(wait_ms / 1000, changed.stop)
        tickets = [
            (callbacks, callbacks.add(changed.stop)) for callbacks in (self._broker.shutdown_callbacks, close_callbacks)
        ]
        try:
            while not self._is_satisfied() and await changed.wait():
                await self._read(changed.take(), is_new_request=False)
        finally:
            timer.cancel()
            for callbacks, ticket in tickets:
                callbacks.remove(ticket)

    def _requeue_partitions(self) -> None:
        """Orders the partitions for the next fetch.

        Partitions that still have unread records, or had an error, are read again. Partitions with records in this
        response go to the end of the queue.
        """
        sent = []
        for key, result in self.results.items():
            if isinstance(result, LogReadInfo) and result.records.size:
                sent.append(key)
            elif isinstance(result, MoldauError) or self._has_more(key):
                self._watcher.changed.setdefault(key)
        for key in sent:
            self._watcher.changed.pop(key, None)
            self._watcher.changed[key] = None

    def _has_more(self, key: PartitionKey) -> bool:
        return self.read_partitions[key].offset < self._end(self._partitions[key])

    def _end(self, partition: Partition) -> int:
        """Returns the offset up to which the consumer or follower may read."""
        if self._is_replica:
            return partition.log.end_offset
        return partition.visible_end(committed_only=self._committed_only)

    async def _is_incomplete(self, key: PartitionKey, records: RecordSlices) -> bool:
        """Returns whether the partition has more records that a byte limit or the end of a segment excluded.

        In that case the fetch must not wait for more bytes. This is checked only if the response has some bytes, but
        fewer than min_bytes.
        """
        if not 0 < self._bytes_max - self._bytes_left + records.size < self._bytes_min:
            return False
        partition = self._partitions[key]
        end = self._end(partition)
        if not records.size:
            # Check that a batch exists, because compaction may have removed the last records before the end.
            next_batch = await partition.log.read(self.read_partitions[key].offset, 0, end)
            return self._has_more(key) and next_batch.size > 0
        last_batch = await partition.log.read(end - 1, 0, end)
        # Compaction may have removed the batch before `end`. Then do not wait, because there may be more records.
        return not last_batch.size or not _ends_with(records, last_batch)

    def _watch(self, key: PartitionKey, partition: Partition) -> None:
        """Watches a partition, so that appends wake followers and a new high watermark wakes consumers."""
        appends, high_watermark = partition.delayed.append_listeners, partition.delayed.high_watermark_listeners
        if not self._is_replica:
            self._watcher.watch(key, partition, wake_on=[high_watermark])
        elif self._is_follower_fetch_enabled:
            self._watcher.watch(key, partition, wake_on=[appends, high_watermark])
        else:
            self._watcher.watch(key, partition, wake_on=[appends], mark_on=[high_watermark])

    def _is_satisfied(self) -> bool:
        return bool(self._immediate or self._incomplete) or self._bytes_max - self._bytes_left >= self._bytes_min

    def _completes_immediately(self, key: PartitionKey, result: FetchResult) -> bool:
        """Returns whether the response must be sent immediately, even without records."""
        if isinstance(result, MoldauError):
            return True
        if not self._is_replica:
            return result.preferred_read_replica >= 0
        if 0 <= self.read_partitions[key].log_start_offset < result.start_offset:
            return True
        if not self._is_follower_fetch_enabled:
            return False
        if self._last_sent is None:
            return result.high_watermark > self._initial_high_watermarks.setdefault(key, result.high_watermark)
        last_sent = self._last_sent.get(key)
        return last_sent is None or result.high_watermark > last_sent.high_watermark

    async def _read(self, keys: Sequence[PartitionKey], *, is_new_request: bool) -> None:
        """Reads partitions. Only the first read of a request (`is_new_request`) records the progress of a follower."""
        for number, key in enumerate(keys, start=1):
            if number % PARTITIONS_PER_ITERATION == 0:
                await asyncio.sleep(0)
            partition = self._requested.get(key)
            if partition is None:
                continue
            self._watcher.changed.pop(key, None)
            previous = self.results.get(key)
            if isinstance(previous, LogReadInfo):
                self._bytes_left += previous.records.size
            if partition.topic_id is not None:
                # The topic may have been created or deleted since the fetch session was created.
                topic = self._broker.metadata.image.topic_names.get(partition.topic_id)
                if topic != partition.topic:
                    partition = partition._replace(topic=topic)
            self.read_partitions[key] = partition
            result: FetchResult
            self._incomplete.pop(key, None)
            try:
                result = await self._read_one(key, partition, is_new_request)
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

    async def _read_one(self, key: PartitionKey, requested: FetchPartition, is_new_request: bool) -> LogReadInfo:
        if requested.topic is None:
            raise UnknownTopicIdError(f"no topic has the id {requested.topic_id}")
        partition = find_partition(self._broker, requested.topic, requested.partition, requested.topic_id)
        self._partitions[key] = partition
        # Watch before the read, so that no change during the read is missed.
        self._watch(key, partition)
        # The first batch of a response is always complete, even above the limit. Otherwise a consumer could never
        # read a batch that is larger than its limit.
        min_one_batch = self._bytes_left == self._bytes_max
        bytes_max = max(0, min(requested.bytes_max, self._bytes_left))
        if self._is_replica:
            return await self._read_for_replica(partition, requested, bytes_max, min_one_batch, is_new_request)
        return await self._read_for_consumer(partition, requested, bytes_max, min_one_batch)

    async def _read_for_consumer(
        self, partition: Partition, requested: FetchPartition, bytes_max: int, min_one_batch: bool
    ) -> LogReadInfo:
        version = self._params.version
        if version < ZSTD_FETCH_VERSION and partition.log.settings.compression_type == "zstd":
            raise UnsupportedCompressionError(
                "the topic is stored in zstd, which this version of Fetch does not support"
            )
        preferred = self._select_replica(partition, requested.offset)
        fetched = await partition.read(
            requested.offset,
            0 if preferred is not None else bytes_max,
            current_leader_epoch=requested.current_leader_epoch,
            last_fetched_epoch=requested.last_fetched_epoch,
            committed_only=self._committed_only,
            min_one_batch=min_one_batch and preferred is None,
            from_follower=version >= FOLLOWER_FETCH_VERSION,
        )
        if preferred is None:
            return fetched
        return fetched._replace(preferred_read_replica=preferred, aborted_transactions=None)

    def _select_replica(self, partition: Partition, offset: int) -> int | None:
        """Returns the follower in the consumer's rack to read from (KIP-392); None to read from the leader."""
        rack, listener = self._params.rack, self._params.listener
        selector = self._broker.settings.broker.replica_selector_class
        if not rack or not partition.is_leader or not selector.endswith(RACK_AWARE_SELECTOR):
            return None
        leader = partition.require_leader()
        brokers = self._broker.metadata.image.brokers
        own = brokers.get(leader.replica_id)
        if own is not None and own.rack == rack:
            return None
        candidates = [
            (-progress.durable_offset, replica)
            for replica, progress in leader.followers.items()
            if (broker := brokers.get(replica)) is not None
            and broker.rack == rack
            and not broker.fenced
            and any(endpoint.listener == listener for endpoint in broker.endpoints)
            and replica in leader.isr
            and progress.start_offset <= offset <= progress.durable_offset
        ]
        return min(candidates)[1] if candidates else None

    async def _read_for_replica(
        self, partition: Partition, requested: FetchPartition, bytes_max: int, min_one_batch: bool, is_new_request: bool
    ) -> LogReadInfo:
        params = self._params
        if params.version < REPLICA_VERSION:
            raise NotLeaderOrFollowerError(f"a follower of {partition.name} must use Fetch {REPLICA_VERSION} or later")
        if params.listener != self._broker.settings.broker.inter_broker_listener:
            raise NotLeaderOrFollowerError(
                f"followers of {partition.name} are not served on listener {params.listener}"
            )
        if self._is_throttled(partition):
            bytes_max, min_one_batch = 0, False
        fetch = FollowerFetch(
            params.replica_id,
            params.broker_epoch,
            requested.offset,
            requested.last_fetched_epoch,
            requested.current_leader_epoch,
            requested.log_start_offset,
        )
        fetched = await partition.read_for_follower(
            fetch, bytes_max, min_one_batch=min_one_batch, is_new_request=is_new_request
        )
        if is_new_request and partition.leader.can_join_isr(params.replica_id):
            # This fetch shows that the follower has caught up, so propose a larger ISR now.
            self._broker.replication.alter_partition_manager.check_isr(partition.leader)
        return fetched

    # Throttling of followers that are not in the ISR

    def _is_throttled(self, partition: Partition) -> bool:
        if not self._is_out_of_sync(partition):
            return False
        quota, now_ms = self._broker.replication.quota, self._broker.platform.clock.monotonic_ms()
        return not quota.leader_may_send(partition.name, now_ms)

    def _record_throttled_bytes(self) -> None:
        now_ms = self._broker.platform.clock.monotonic_ms()
        for key, result in self.results.items():
            size = result.records.size if isinstance(result, LogReadInfo) else 0
            if size and self._is_out_of_sync(self._partitions[key]):
                self._broker.replication.quota.record_sent(self._partitions[key].name, size, now_ms)

    def _is_out_of_sync(self, partition: Partition) -> bool:
        if not partition.is_leader or partition.failure is not None:
            return False
        return self._params.replica_id not in partition.require_leader().isr


def _ends_with(records: RecordSlices, last_batch: RecordSlices) -> bool:
    """Returns whether `records` end with `last_batch`, the last batch of the log."""
    part, last = records.parts[-1], last_batch.parts[-1]
    if isinstance(part, FileSlice) and isinstance(last, FileSlice):
        return part.file is last.file and part.position + part.size >= last.position + last.size
    return part is last


class _ChangeQueue:
    """The keys of partitions that have changed. A fetch can wait until the queue is not empty."""

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
        """Waits until a partition has changed. Returns False if the wait was stopped."""
        if self._keys:
            return True
        if self._is_stopped:
            return False
        self._waiter = asyncio.get_running_loop().create_future()
        return await self._waiter
