"""The fetch manager: updates a consumer's fetcher when the subscription changes, and looks up missing positions."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ParamSpec, TypeVar

from moldau.client.consumer.completed_fetch import CompletedFetch, FetchBuffer, LogTruncationError, PartitionFetchError
from moldau.client.consumer.fetcher import Fetcher
from moldau.client.consumer.offset_lookup import OffsetAndTimestamp, list_offsets_once
from moldau.client.consumer.subscription_state import (
    OffsetAndMetadata,
    OffsetResetStrategy,
    SubscriptionState,
    SubscriptionType,
)
from moldau.client.errors import ErrorCode, KafkaError, RequestTimedOutError
from moldau.client.group.offsets import GroupOffsets
from moldau.client.net.cluster import Cluster
from moldau.client.net.connection_pool import await_shared
from moldau.client.record import ConsumerRecord, TopicPartition
from moldau.concurrency.tasks import cancel_and_wait
from moldau.observe.logging import get_logger

P = ParamSpec("P")
T = TypeVar("T")

_log = get_logger("client.consumer")


class FetchManager:
    """The fetcher, its buffer and the position lookups of one consumer."""

    def __init__(
        self,
        cluster: Cluster,
        subscriptions: SubscriptionState,
        offsets: GroupOffsets | None,
        wakeup: asyncio.Event,
        *,
        isolation_level: int,
        fetch_settings: Mapping[str, Any],
    ) -> None:
        """`wakeup` is set when there may be more records. `offsets` is None without a group."""
        self._cluster = cluster
        self._subscriptions = subscriptions
        self._group_offsets = offsets
        self._wakeup = wakeup
        self._isolation_level = isolation_level
        self._fetcher = Fetcher(cluster, isolation_level=isolation_level, news=wakeup, **fetch_settings)
        self._buffer = FetchBuffer(subscriptions.is_paused, subscriptions.update_position)
        self._backoff = cluster.backoff()
        self._lookup_task: asyncio.Task[None] | None = None
        self._positions_found = asyncio.Event()
        """Set when a lookup has found some positions. A new event then replaces it for the next waiters."""
        self._lookup_error: Exception | None = None
        self._last_logged_error = ""
        """The last logged lookup error, so that a repeated error is logged only once."""

    async def close(self) -> None:
        await cancel_and_wait(self._lookup_task)
        await self._fetcher.close()

    # Changing the assignment and positions

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        before = self._subscriptions.assigned
        self._subscriptions.set_assignment(partitions)
        self._discard(each for each in before if not self._subscriptions.is_assigned(each))
        self._sync_fetcher()

    def revoke(self, partitions: Iterable[TopicPartition]) -> None:
        revoked = list(partitions)
        self._subscriptions.revoke(revoked)
        self._discard(revoked)

    def seek(self, partition: TopicPartition, offset: int, leader_epoch: int = -1) -> None:
        self._subscriptions.seek(partition, offset, leader_epoch)
        self._discard([partition])
        self._sync_fetcher()

    def request_offset_reset(self, partition: TopicPartition, reset: OffsetResetStrategy) -> None:
        self._subscriptions.request_offset_reset(partition, reset)
        self._discard([partition])

    def request_committed(self, partition: TopicPartition, default_offset: int) -> None:
        self._subscriptions.request_committed(partition, default_offset)
        self._discard([partition])

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        paused = list(partitions)
        self._subscriptions.pause(paused)
        fetched = self._fetcher.partitions
        self._fetcher.pause(each for each in paused if each in fetched)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        resumed = list(partitions)
        self._subscriptions.resume(resumed)
        fetched = self._fetcher.partitions
        self._fetcher.resume(each for each in resumed if each in fetched)
        self._wakeup.set()

    def _discard(self, partitions: Iterable[TopicPartition]) -> None:
        revoked = list(partitions)
        self._fetcher.remove(revoked)
        self._buffer.drop(revoked)

    def _sync_fetcher(self) -> None:
        """Fetches every partition that has a position and no error."""
        excluded = {*self._fetcher.partitions, *self._buffer.failed_partitions}
        known = {each: at for each, at in self._subscriptions.all_consumed().items() if each not in excluded}
        self._fetcher.add(
            {each: at.offset for each, at in known.items()},
            leader_epochs={each: at.leader_epoch for each, at in known.items()},
        )
        fetched = set(self._fetcher.partitions)
        self._fetcher.pause(each for each in self._subscriptions.paused if each in fetched)

    # Returning records

    def take_records(self, records_max: int) -> list[ConsumerRecord]:
        """Returns records. If no records are left, raises the error of a failed partition."""
        return self._take(self._buffer.take_records, records_max)

    def take_batches(self) -> list[CompletedFetch]:
        return self._take(self._buffer.take_batches)

    def _take(self, take: Callable[P, list[T]], *args: P.args, **kwargs: P.kwargs) -> list[T]:
        while True:
            # Refill the buffer only if it has no records to return, because it has no memory limit, unlike the fetcher.
            is_refilled = not self._buffer.has_readable()
            if is_refilled:
                self._buffer.add(self._fetcher.take())
            try:
                taken = take(*args, **kwargs)
            except PartitionFetchError as failure:
                self._handle_partition_error(failure)
                return []
            if taken or is_refilled:
                return taken
            # The last record of the buffer was already taken. The fetcher may have more, and will not signal it again.

    def _handle_partition_error(self, failure: PartitionFetchError) -> None:
        partition, error = failure.partition, failure.error
        if error.code != ErrorCode.offset_out_of_range:
            self._fetcher.remove([partition])
            raise error
        _log.info("position is out of range", partition=str(partition), error=error)
        if isinstance(error, LogTruncationError):
            self._subscriptions.reset_to_truncation_offset(partition, error.offset, error.leader_epoch)
        else:
            self._subscriptions.reset_out_of_range(partition)
        self._discard([partition])
        self._sync_fetcher()
        self.start_lookup()

    # Looking up positions

    def start_lookup(self) -> None:
        """Starts a lookup of missing positions. Raises the error of the previous lookup if that error is fatal."""
        failure, self._lookup_error = self._lookup_error, None
        if failure is not None:
            raise failure
        if self._lookup_task is None and self._subscriptions.has_missing_positions:
            self._lookup_task = asyncio.get_running_loop().create_task(
                self._look_up_positions(), name="consumer looks up positions"
            )

    async def position(self, partition: TopicPartition, timeout_ms: int) -> int:
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                while (offset := self._subscriptions.position(partition)) is None:
                    self.start_lookup()
                    await self._wait_for_lookup()
                return offset
        except TimeoutError:
            raise RequestTimedOutError(f"no position of {partition} was found within {timeout_ms} ms") from None

    async def _wait_for_lookup(self) -> None:
        lookup = self._lookup_task
        if lookup is not None:
            found = asyncio.ensure_future(self._positions_found.wait())
            try:
                await asyncio.wait([lookup, found], return_when=asyncio.FIRST_COMPLETED)
            finally:
                found.cancel()
            if lookup.done():
                await await_shared(lookup)

    def _publish_found(self) -> None:
        self._sync_fetcher()
        self._positions_found.set()
        self._positions_found = asyncio.Event()

    async def _look_up_positions(self) -> None:
        try:
            requested = self._subscriptions.initializing_partitions()
            if requested:
                found = {} if self._group_offsets is None else await self._group_offsets.committed(requested)
                self._subscriptions.apply_committed(requested, found)
            self._publish_found()
            await self._look_up_reset_offsets()
            self._backoff.reset()
            self._last_logged_error = ""
        except KafkaError as error:
            if self._is_fatal(error):
                self._lookup_error = error
            else:
                if str(error) != self._last_logged_error:
                    self._last_logged_error = str(error)
                    _log.info("position lookup failed and is retried", error=error)
                await asyncio.sleep(self._backoff.next_delay_ms() / 1000)
        finally:
            self._lookup_task = None
            self._wakeup.set()
        self._sync_fetcher()

    async def _look_up_reset_offsets(self) -> None:
        requested = self._subscriptions.partitions_needing_reset()
        times = {each: state.reset.value for each, state in requested.items() if state.reset is not None}

        def on_offsets(offsets: dict[TopicPartition, OffsetAndTimestamp]) -> None:
            found = {
                each: OffsetAndMetadata(at.offset, leader_epoch=at.leader_epoch)
                for each, at in offsets.items()
                if at.offset >= 0
            }
            self._subscriptions.apply_reset_offsets(requested, found)
            self._publish_found()

        if times:
            await list_offsets_once(self._cluster, times, on_offsets, isolation_level=self._isolation_level)

    def _is_fatal(self, error: KafkaError) -> bool:
        """Returns whether to raise an error to the user instead of retrying.

        That a partition is missing is fatal only if the user assigned it. In a group, the next assignment omits it.
        """
        if error.code == ErrorCode.unknown_topic_or_partition:
            return self._subscriptions.subscription_type is SubscriptionType.USER_ASSIGNED
        return not error.is_retriable
