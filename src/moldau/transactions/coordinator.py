"""The transaction coordinator: async methods that request handlers call.

A method returns its response when the records on which the response depends are committed. Each partition of
`__transaction_state` that this node leads is a shard. The hash of a transactional id selects the partition.
"""

import asyncio
from collections.abc import Sequence
from typing import TypeVar

from moldau.controller.features import TRANSACTION_VERSION
from moldau.coordinator.java_hash import partition_for
from moldau.coordinator.shard_manager import ShardManager
from moldau.coordinator.state_topic import StateTopic, TopicCreator
from moldau.errors import (
    ConcurrentTransactionsError,
    InvalidRequestError,
    InvalidTransactionTimeoutError,
    NotCoordinatorError,
)
from moldau.metadata.image import MetadataDelta, MetadataImage, PartitionRegistration, TopicImage
from moldau.metadata.loader import MetadataLoader
from moldau.partitions.partition import Partition
from moldau.partitions.replica_manager import ReplicaManager
from moldau.platform.clock import Clock
from moldau.settings.effective import EffectiveSettings
from moldau.transactions.id_pattern import IdPattern
from moldau.transactions.marker_sender import MarkerSender
from moldau.transactions.producer_id_manager import ProducerIdManager
from moldau.transactions.requests import (
    AddPartitionsRequest,
    BatchCommitted,
    EndGroupRequest,
    EndTransactionRequest,
    InitGroupMemberRequest,
    InitProducerIdRequest,
    ListedTransaction,
    PartitionErrors,
    ProducerIdAndEpoch,
    TransactionDescription,
    TransactionFilter,
)
from moldau.transactions.shard import TransactionCoordinatorShard
from moldau.transactions.state_topic import TRANSACTION_STATE_TOPIC, new_transaction_state_topic
from moldau.transactions.timeout_log import TimeoutLog
from moldau.transactions.transaction_metadata import TV0
from moldau.transactions.transaction_shard import Operation, TransactionShard
from moldau.wire.transaction_group_id import coordinator_key, group_coordinator_key

COMPLETION_WAIT_MS = 20
"""How long a request waits for the end of the previous transaction. Clients retry after the same time."""
PATTERN_STATES_PER_ITERATION = 10_000
"""The number of states of a pattern that are followed in one iteration of the event loop."""

T = TypeVar("T")


class TransactionCoordinator:
    def __init__(
        self,
        node_id: int,
        partitions: ReplicaManager,
        metadata: MetadataLoader,
        controller: TopicCreator,
        settings: EffectiveSettings,
        clock: Clock,
        producer_ids: ProducerIdManager,
        marker_sender: MarkerSender,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._producer_ids = producer_ids
        self._marker_sender = marker_sender
        self._timeout_log = TimeoutLog(clock)
        self._topic = StateTopic(
            TRANSACTION_STATE_TOPIC,
            metadata,
            controller,
            new_topic=lambda: new_transaction_state_topic(settings.broker),
            replication_factor_setting="transaction.state.log.replication.factor",
        )
        self._shards: ShardManager[TransactionShard] = ShardManager(
            node_id,
            TRANSACTION_STATE_TOPIC,
            partitions,
            clock,
            contents="transactions",
            create=self._create_shard,
            new_state=self._new_state,
            load_buffer_size=settings.static.transaction_state_log_load_buffer_size,
        )
        self._cleanup_timer: asyncio.TimerHandle | None = None

    def _create_shard(self, partition: Partition, previous: TransactionShard | None) -> TransactionShard:
        return TransactionShard(
            partition, self._clock, self._marker_sender, self._producer_ids.generate_producer_id, self._timeout_log
        )

    def _new_state(self) -> TransactionCoordinatorShard:
        return TransactionCoordinatorShard(
            id_expiration_ms=self._settings.static.transactional_id_expiration_ms,
            transaction_version=lambda: self._shards.image.features.get(TRANSACTION_VERSION, TV0),
        )

    def publish(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Loads the shards of partitions that this node leads now, and unloads all other shards."""
        self._marker_sender.publish(delta, image)
        self._shards.publish(delta, image)

    # Lifecycle

    def start(self) -> None:
        """Schedules the next expiration of transactional ids."""
        interval_s = self._settings.static.transaction_remove_expired_transaction_cleanup_interval_ms / 1000
        self._cleanup_timer = asyncio.get_running_loop().call_later(interval_s, self._run_cleanup)

    def _run_cleanup(self) -> None:
        self.start()
        self._shards.retry_unopened()
        for shard in self._shards.shards:
            shard.driver.run_repeatedly(lambda state, now: state.expire_ids(now))

    def stop(self) -> None:
        """Unloads all shards, which fails pending requests with NOT_COORDINATOR."""
        if self._cleanup_timer is not None:
            self._cleanup_timer.cancel()
            self._cleanup_timer = None
        self._shards.stop()

    async def close(self) -> None:
        """Unloads all shards and waits until no append is in progress."""
        self.stop()
        await self._shards.close()
        await self._marker_sender.close()

    @property
    def unexpected_errors(self) -> int:
        """The number of background operations that failed with an unexpected exception."""
        return self._shards.unexpected_errors + self._marker_sender.unexpected_errors

    # Lookup of coordinators

    async def ensure_topic(self) -> TopicImage:
        """Returns `__transaction_state` and creates it if needed. Raises CoordinatorNotAvailableError."""
        return await self._topic.ensure()

    async def coordinator_partition(self, transactional_id: str) -> PartitionRegistration:
        """Returns the partition whose leader coordinates a transactional id."""
        topic = await self.ensure_topic()
        return topic.partitions[partition_for(coordinator_key(transactional_id), len(topic.partitions))]

    def _shard(self, transactional_id: str) -> TransactionShard:
        if not transactional_id:
            raise InvalidRequestError("a transactional id must not be empty")
        return self._shards.shard_of(coordinator_key(transactional_id))

    # Transactions

    async def init_producer_id(self, request: InitProducerIdRequest) -> ProducerIdAndEpoch:
        """Starts a producer. Raises ConcurrentTransactionsError while an earlier transaction is being aborted."""
        transactional_id = request.transactional_id
        if transactional_id:
            self._check_timeout(request.timeout_ms)
        response = await self._shard(transactional_id).submit_with_producer_id(
            lambda shard, now, producer_id: shard.init_producer_id(now, request, producer_id)
        )
        assert isinstance(response, ProducerIdAndEpoch)
        return response

    async def add_partitions(self, request: AddPartitionsRequest) -> None:
        """Adds partitions to a transaction, and starts the transaction if none is ongoing.

        A producer often starts its next transaction while the markers of the previous one are being written. So this
        method waits for their completion for a moment. Then it raises ConcurrentTransactionsError.
        """
        shard = self._shard(request.transactional_id)
        deadline_ms: int | None = None
        while True:
            completions = shard.completions.count
            try:
                await shard.submit(lambda state, now: state.add_partitions(now, request))
                return
            except ConcurrentTransactionsError:
                now_ms = self._clock.monotonic_ms()
                deadline_ms = now_ms + COMPLETION_WAIT_MS if deadline_ms is None else deadline_ms
                if now_ms >= deadline_ms:
                    raise
                await shard.completions.wait(deadline_ms - now_ms, since_count=completions)

    async def verify_partitions(self, request: AddPartitionsRequest) -> PartitionErrors:
        """Checks that partitions are in a transaction."""
        return await self._submit(request.transactional_id, dict, lambda shard, now: shard.verify_partitions(request))

    async def end_transaction(self, request: EndTransactionRequest) -> ProducerIdAndEpoch:
        """Commits or aborts a transaction. Returns when the outcome is decided; markers are written afterwards."""
        response = await self._shard(request.transactional_id).submit_with_producer_id(
            lambda shard, now, producer_id: shard.end_transaction(now, request, producer_id)
        )
        assert isinstance(response, ProducerIdAndEpoch)
        return response

    def _check_timeout(self, timeout_ms: int) -> None:
        timeout_max_ms = self._settings.static.transaction_max_timeout_ms
        if not 0 < timeout_ms <= timeout_max_ms:
            raise InvalidTransactionTimeoutError(
                f"a transaction timeout of {timeout_ms} ms is not within 1 and {timeout_max_ms} ms "
                "(transaction.max.timeout.ms)"
            )

    # Transaction groups

    async def init_group_member(self, request: InitGroupMemberRequest) -> ProducerIdAndEpoch | BatchCommitted:
        """Starts a member's transaction in a batch, unless the batch is committed. Raises ConcurrentTransactionsError
        while an earlier transaction of the member is being completed."""
        self._check_timeout(request.timeout_ms)
        response = await self._group_shard(request.group_id, request.batch_id, request.run_id).submit_with_producer_id(
            lambda shard, now, producer_id: shard.groups.init_member(now, request, producer_id),
            too_large_error=InvalidRequestError,
        )
        assert isinstance(response, ProducerIdAndEpoch | BatchCommitted)
        return response

    async def end_group(self, request: EndGroupRequest) -> None:
        """Commits or aborts the transactions of a batch by one decision. Markers are written afterwards."""
        await self._group_shard(request.group_id, request.batch_id, request.run_id).submit(
            lambda shard, now: shard.groups.end(now, request), too_large_error=InvalidRequestError
        )

    def _group_shard(self, group_id: str, batch_id: int, run_id: str) -> TransactionShard:
        if not group_id or "/" in group_id or not run_id or batch_id < 0:
            raise InvalidRequestError("a group needs an id without a slash, a run id, and batches from 0 on")
        return self._shards.shard_of(group_coordinator_key(group_id))

    # Descriptions

    async def describe(self, transactional_id: str) -> TransactionDescription:
        """Describes a transaction. Of a decided transaction it returns the partitions that do not have the marker."""
        shard = self._shard(transactional_id)
        description = await self._submit(
            transactional_id, TransactionDescription, lambda state, now: state.describe(transactional_id)
        )
        pending = shard.pending_markers.get(transactional_id)
        if pending is None or pending.markers.producer_epoch != description.producer_epoch:
            return description
        return description._replace(partitions=description.partitions & pending.remaining)

    async def list_transactions(
        self, filter_: TransactionFilter, id_pattern: str | None = None
    ) -> list[ListedTransaction]:
        """Returns this node's transactions. Raises CoordinatorLoadInProgressError while transactions are loading, and
        InvalidRegularExpressionError."""
        shards = self._shards.active_shards
        pattern = IdPattern(id_pattern) if id_pattern else None
        requests = [shard.submit(lambda state, now: state.list_transactions(now, filter_)) for shard in shards]
        listed: list[ListedTransaction] = []
        for response in await asyncio.gather(*requests, return_exceptions=True):
            if isinstance(response, NotCoordinatorError):
                # The shard was unloaded during this call. The new coordinator lists these transactions.
                continue
            if isinstance(response, BaseException):
                raise response
            listed += response
        return listed if pattern is None else await _matching(listed, pattern)

    async def _submit(self, transactional_id: str, kind: type[T], operation: Operation) -> T:
        response = await self._shard(transactional_id).submit(operation)
        assert isinstance(response, kind), f"expected {kind.__name__}, got {type(response).__name__}"
        return response


async def _matching(transactions: Sequence[ListedTransaction], pattern: IdPattern) -> list[ListedTransaction]:
    matching = []
    followed_states = 0
    for each in transactions:
        is_match = False
        for is_match_so_far in pattern.steps(each.transactional_id):
            is_match = is_match_so_far
            followed_states += pattern.size
            if followed_states >= PATTERN_STATES_PER_ITERATION:
                followed_states = 0
                await asyncio.sleep(0)
        if is_match:
            matching.append(each)
    return matching
