"""The group coordinator: async methods that request handlers call.

A method returns its response when the records on which the response depends are committed. Each partition of
`__consumer_offsets` that this node leads is a shard. The hash of a group id selects the partition.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from moldau.coordinator import CoordinatorResult
from moldau.coordinator.java_hash import partition_for
from moldau.coordinator.result import CompletedRequest
from moldau.coordinator.runtime import OperationWrite
from moldau.coordinator.shard_driver import WriteOperation
from moldau.coordinator.shard_manager import ShardManager
from moldau.coordinator.state_topic import StateTopic, TopicCreator
from moldau.errors import (
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    InvalidCommitOffsetSizeError,
    InvalidGroupIdError,
    MoldauError,
    NotCoordinatorError,
    NotLeaderOrFollowerError,
    RecordTooLargeError,
    StorageError,
)
from moldau.groups.group_shard import GroupShard
from moldau.groups.offsets_topic import OFFSETS_TOPIC, new_offsets_topic
from moldau.groups.requests import (
    EMPTY_RESPONSE,
    CommitRequest,
    EmptyResponse,
    GroupDescription,
    GroupSnapshot,
    JoinRequest,
    JoinResponse,
    LeaveResult,
    LeavingMember,
    ListedGroup,
    MemberIdentity,
    PartitionErrors,
    PartitionOffsets,
    SyncRequest,
    SyncResponse,
    TopicKey,
    TopicPartition,
    TransactionalCommitRequest,
)
from moldau.groups.shard import GroupCoordinatorShard
from moldau.groups.transactional_writes import MarkerWrite, TransactionalWrite
from moldau.metadata.image import MetadataDelta, MetadataImage, PartitionRegistration, TopicImage
from moldau.metadata.loader import MetadataLoader
from moldau.observe.logging import get_logger
from moldau.partitions.partition import Partition
from moldau.partitions.replica_manager import ReplicaManager
from moldau.platform.clock import Clock
from moldau.records.batch import NO_SEQUENCE
from moldau.settings.effective import EffectiveSettings
from moldau.transactions.marker_writer import EndTransactionMarker
from moldau.transactions.transaction_metadata import TV2

log = get_logger(__name__)

T = TypeVar("T")

VerifyTransaction = Callable[[Partition], Awaitable[None]]
"""Checks with the transaction coordinator that a producer may write to this partition in its transaction."""


class GroupCoordinator:
    def __init__(
        self,
        node_id: int,
        partitions: ReplicaManager,
        metadata: MetadataLoader,
        controller: TopicCreator,
        settings: EffectiveSettings,
        clock: Clock,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._topic = StateTopic(
            OFFSETS_TOPIC,
            metadata,
            controller,
            new_topic=lambda: new_offsets_topic(settings.broker),
            replication_factor_setting="offsets.topic.replication.factor",
        )
        self._shards: ShardManager[GroupShard] = ShardManager(
            node_id,
            OFFSETS_TOPIC,
            partitions,
            clock,
            contents="groups",
            create=self._create_shard,
            new_state=lambda: GroupCoordinatorShard(settings.static),
            load_buffer_size=settings.static.offsets_load_buffer_size,
        )
        self._cleanup_timer: asyncio.TimerHandle | None = None
        self.on_loaded: Callable[[], None] | None = None
        """Called when this node has become the coordinator of groups and has loaded them."""

    def _create_shard(self, partition: Partition, previous: GroupShard | None) -> GroupShard:
        return GroupShard(
            partition,
            self._clock,
            commit_timeout_ms=self._settings.static.offsets_commit_timeout_ms,
            existing_topics=lambda: self._shards.image.topics,
            deleted_topics=None if previous is None else previous.deleted_topics,
            on_loaded=self._on_shard_loaded,
        )

    def _on_shard_loaded(self) -> None:
        if self.on_loaded is not None:
            self.on_loaded()

    def publish(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Loads the shards of partitions that this node leads now, and unloads all other shards."""
        self._shards.publish(delta, image)
        deleted: list[TopicKey] = []
        for topic in delta.topics_deleted:
            if topic.name != OFFSETS_TOPIC:
                deleted += (topic.name, topic.topic_id), (topic.name, None)
        if deleted:
            for shard in self._shards.shards:
                shard.on_topics_deleted(deleted)

    # Lifecycle

    def start(self) -> None:
        """Schedules the next cleanup of offsets."""
        interval_s = self._settings.static.offsets_retention_check_interval_ms / 1000
        self._cleanup_timer = asyncio.get_running_loop().call_later(interval_s, self._run_cleanup)

    def _run_cleanup(self) -> None:
        self.start()
        self._shards.retry_unopened()
        for shard in self._shards.shards:
            shard.cleanup()

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

    @property
    def unexpected_errors(self) -> int:
        """The number of background operations that failed with an unexpected exception."""
        return self._shards.unexpected_errors

    # Lookup of coordinators

    async def ensure_topic(self) -> TopicImage:
        """Returns `__consumer_offsets` and creates it if needed. Raises CoordinatorNotAvailableError."""
        return await self._topic.ensure()

    async def coordinator_partition(self, group_id: str) -> PartitionRegistration:
        """Returns the partition whose leader coordinates a group."""
        topic = await self.ensure_topic()
        return topic.partitions[partition_for(group_id, len(topic.partitions))]

    def _shard(self, group_id: str) -> GroupShard:
        return self._shards.shard_of(group_id)

    def _check_size(self, request: JoinRequest | SyncRequest) -> None:
        """Raises RecordTooLargeError if the request alone makes the group's record too large.

        Kafka detects this when the leader syncs, and fails all members with UNKNOWN_SERVER_ERROR. Here only the sender
        of the request gets MESSAGE_TOO_LARGE.
        """
        bytes_max = self._shard(request.group_id).driver.partition.log.settings.max_message_bytes
        if request.size_bytes > bytes_max:
            raise RecordTooLargeError(f"member of {request.size_bytes} bytes; a group's maximum is {bytes_max} bytes")

    # Membership

    async def join(self, request: JoinRequest) -> JoinResponse:
        if request.reason:
            log.debug("member joins group", group=request.group_id, member=request.member_id, reason=request.reason)
        _check_group_id(request.group_id)
        self._check_size(request)
        return await _submit(
            self._shard(request.group_id), JoinResponse, lambda shard, now, id_: shard.groups.join(now, request, id_)
        )

    async def sync(self, request: SyncRequest) -> SyncResponse:
        _check_group_id(request.group_id)
        self._check_size(request)
        return await _submit(
            self._shard(request.group_id), SyncResponse, lambda shard, now, id_: shard.groups.sync(now, request, id_)
        )

    async def heartbeat(self, identity: MemberIdentity) -> None:
        _check_group_id(identity.group_id)
        # As in Kafka, a heartbeat succeeds while groups are loading, so that clients keep their coordinator.
        with suppress(CoordinatorLoadInProgressError):
            await _submit(
                self._shard(identity.group_id),
                EmptyResponse,
                lambda shard, now, id_: shard.groups.heartbeat(now, identity, id_),
            )

    async def leave(self, group_id: str, members: Sequence[LeavingMember]) -> tuple[LeaveResult, ...]:
        for each in members:
            if each.reason:
                log.debug("member leaves group", group=group_id, member=each.member_id, reason=each.reason)
        _check_group_id(group_id)
        return await _submit(
            self._shard(group_id), tuple, lambda shard, now, id_: shard.groups.leave(now, group_id, members, id_)
        )

    # Offsets

    async def commit(self, request: CommitRequest) -> PartitionErrors:
        group_id = request.identity.group_id
        return await _submit(
            self._shard(group_id),
            dict,
            lambda shard, now, id_: shard.commit(now, request, id_),
            too_large_error=InvalidCommitOffsetSizeError,
        )

    async def commit_transactional(
        self, request: TransactionalCommitRequest, verify: VerifyTransaction
    ) -> PartitionErrors:
        """Commits offsets in a transaction. They stay pending until the transaction ends.

        `verify` is called if the transaction is not open in the group's partition, and raises an error if the partition
        is not in the transaction.
        """
        group_id = request.identity.group_id
        _check_group_id(group_id)
        shard = self._shard(group_id)
        partition = shard.driver.partition
        try:
            guard = partition.begin_verification(
                request.producer_id,
                request.producer_epoch,
                NO_SEQUENCE,
                supports_epoch_bump=request.client_version >= TV2,
                owner=request.owner,
            )
        except (NotLeaderOrFollowerError, StorageError) as error:
            raise NotCoordinatorError(str(error)) from error
        try:
            if guard is not None:
                await verify(partition)
            return await _submit(
                shard,
                dict,
                lambda state, now, id_: state.commit_transactional(now, request, id_),
                too_large_error=InvalidCommitOffsetSizeError,
                write=TransactionalWrite(shard.driver.writer, request.producer_id, request.producer_epoch, guard),
            )
        finally:
            if guard is not None:
                partition.log.producers.end_verification(guard)

    async def fetch_offsets(
        self, group_id: str, partitions: Sequence[TopicPartition] | None, *, require_stable: bool = False
    ) -> PartitionOffsets:
        return await _submit(
            self._shard(group_id),
            dict,
            lambda shard, now, id_: shard.fetch_offsets(group_id, partitions, id_, require_stable=require_stable),
        )

    async def delete_offsets(self, group_id: str, partitions: Sequence[TopicPartition]) -> PartitionErrors:
        _check_group_id(group_id)
        return await _submit(
            self._shard(group_id), dict, lambda shard, now, id_: shard.delete_offsets(group_id, partitions, id_)
        )

    # Transactions

    async def append_marker(self, partition: Partition, marker: EndTransactionMarker) -> None:
        """Appends a marker to a partition of `__consumer_offsets`, and applies or drops the pending offsets of the
        transaction. Returns when the marker is committed.

        Markers go through the shard, so that it applies them in the order of the log. Raises NotLeaderOrFollowerError
        while the shard cannot write, after which the transaction coordinator tries again.
        """
        try:
            shard = self._shards.shard_of_partition(partition.name.partition)
            await _submit(
                shard,
                EmptyResponse,
                lambda state, now, id_: CoordinatorResult((marker,), [CompletedRequest(id_, EMPTY_RESPONSE)]),
                write=MarkerWrite(shard.driver.partition, shard.driver.leader_epoch),
            )
        except (CoordinatorLoadInProgressError, CoordinatorNotAvailableError, NotCoordinatorError) as error:
            raise NotLeaderOrFollowerError(str(error)) from error

    # Descriptions and deletion

    async def describe(self, group_id: str) -> GroupDescription:
        return await _submit(
            self._shard(group_id), GroupDescription, lambda shard, now, id_: shard.groups.describe(group_id, id_)
        )

    def group_ids(self) -> list[str]:
        """Returns the ids of all groups that this node coordinates, without those that are loading."""
        return [group_id for shard in self._readable_shards() for group_id in shard.groups.groups]

    def coordinates(self, group_id: str) -> bool:
        """Returns whether this node coordinates the group and has loaded it."""
        try:
            driver = self._shard(group_id).driver
        except NotCoordinatorError:
            return False
        return driver.is_active and driver.partition.has_lease

    def read_group(self, group_id: str) -> GroupSnapshot | None:
        """Returns what this node knows of a group now; None if it does not coordinate it or the group does not exist.

        Unlike a request, this does not wait until the latest changes are committed.
        """
        if not self.coordinates(group_id):
            return None
        shard = self._shard(group_id).driver.shard
        group = None if shard is None else shard.groups.groups.get(group_id)
        if shard is None or group is None:
            return None
        members = tuple((each.client_id, each.client_host) for each in group.metadata.members)
        return GroupSnapshot(group.metadata.state, members, tuple(shard.offsets.offsets_of_group(group_id)))

    def _readable_shards(self) -> Iterator[GroupCoordinatorShard]:
        for each in self._shards.shards:
            if each.driver.shard is not None and each.driver.partition.has_lease:
                yield each.driver.shard

    async def delete_group(self, group_id: str) -> None:
        await _submit(self._shard(group_id), EmptyResponse, lambda shard, now, id_: shard.delete_group(group_id, id_))

    async def list_groups(self, states: Sequence[str] = (), types: Sequence[str] = ()) -> list[ListedGroup]:
        """Returns this node's groups. Raises CoordinatorLoadInProgressError while groups are loading."""
        requests = [
            _submit(shard, tuple, lambda shard, now, id_: shard.groups.list_groups(states, types, id_))
            for shard in self._shards.active_shards
        ]
        listed: list[ListedGroup] = []
        for response in await asyncio.gather(*requests, return_exceptions=True):
            if isinstance(response, NotCoordinatorError):
                # The shard was unloaded during this call. The new coordinator lists these groups.
                continue
            if isinstance(response, BaseException):
                raise response
            listed += response
        return listed


def _check_group_id(group_id: str) -> None:
    if not group_id:
        raise InvalidGroupIdError("the group id is empty")


async def _submit(
    shard: GroupShard,
    kind: type[T],
    operation: WriteOperation[GroupCoordinatorShard, Any],
    *,
    too_large_error: type[MoldauError] = MoldauError,
    write: OperationWrite[GroupCoordinatorShard, Any] | None = None,
) -> T:
    response = await shard.driver.submit(operation, too_large_error=too_large_error, write=write)
    assert isinstance(response, kind), f"expected {kind.__name__}, got {type(response).__name__}"
    return response
