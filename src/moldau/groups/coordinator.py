"""The group coordinator: async methods that request handlers call.

A method returns its response when the records on which the response depends are committed. Each partition of
`__consumer_offsets` that this node leads is a shard. The hash of a group id selects the partition.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TypeVar

from moldau.errors import CoordinatorLoadInProgressError, InvalidGroupIdError, NotCoordinatorError, RecordTooLargeError
from moldau.groups.offsets_topic import OFFSETS_TOPIC, OffsetsTopic, TopicCreator, partition_for
from moldau.groups.requests import (
    CommitRequest,
    EmptyResponse,
    GroupDescription,
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
)
from moldau.groups.shard import GroupCoordinatorShard
from moldau.groups.shard_driver import ShardDriver, WriteOperation
from moldau.metadata.image import EMPTY_IMAGE, MetadataDelta, MetadataImage, PartitionRegistration, TopicImage
from moldau.metadata.loader import MetadataLoader
from moldau.observe.logging import get_logger
from moldau.partitions.partition import Partition
from moldau.partitions.replica_manager import ReplicaManager
from moldau.platform.clock import Clock
from moldau.settings.effective import EffectiveSettings

log = get_logger(__name__)

LOAD_RETRY_BACKOFF_S = 5.0
"""Backoff after a transient error while loading groups."""

T = TypeVar("T")


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
        self._node_id = node_id
        self._partitions = partitions
        self._settings = settings
        self._clock = clock
        self._topic = OffsetsTopic(metadata, controller, settings)
        self._image = EMPTY_IMAGE
        self._shards: dict[int, ShardDriver] = {}
        self._closing_shards: dict[ShardDriver, asyncio.Task[None]] = {}
        """The tasks that close unloaded shards. Such a shard may still be appending."""
        self._load_tasks: dict[ShardDriver, asyncio.Task[None]] = {}
        self._load_lock = asyncio.Lock()
        """Held while a partition is loaded. Partitions are loaded one at a time, so that requests are still served."""
        self._load_start_ms = 0
        self._cleanup_timer: asyncio.TimerHandle | None = None
        self._is_closed = False
        self._past_unexpected_errors = 0

    # Metadata changes

    def publish(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Loads the shards of partitions that this node leads now, and unloads all other shards."""
        self._image = image
        if self._is_closed:
            return
        for topic in delta.topics_deleted:
            if topic.name == OFFSETS_TOPIC:
                for index in list(self._shards):
                    self._on_resignation(index)
        for name, index in delta.partitions_changed:
            partition = image.partition(name, index)
            if name == OFFSETS_TOPIC and partition is not None:
                self._on_partition_changed(partition)
        deleted: list[TopicKey] = []
        for topic in delta.topics_deleted:
            if topic.name != OFFSETS_TOPIC:
                deleted += (topic.name, topic.topic_id), (topic.name, None)
        if deleted:
            for shard in self._shards.values():
                shard.on_topics_deleted(deleted)

    def _on_partition_changed(self, image: PartitionRegistration) -> None:
        shard = self._shards.get(image.index)
        partition = None
        if image.leader == self._node_id and (OFFSETS_TOPIC, image.index) not in self._partitions.unopened_logs:
            partition = self._partitions.get(OFFSETS_TOPIC, image.index)
        if shard is not None:
            if partition is shard.partition and partition.leader_epoch == shard.leader_epoch:
                return
            # This node no longer leads the partition, or leads it in a new epoch. Before the new epoch, another broker
            # may have written to the partition, so the shard must be loaded again.
            self._on_resignation(image.index)
        if partition is not None and partition.is_leader:
            self._on_election(image.index, partition, {} if shard is None else shard.deleted_topics)

    def _on_election(self, index: int, partition: Partition, deleted_topics: Mapping[TopicKey, int]) -> None:
        settings = self._settings.static
        shard = ShardDriver(partition, self._clock, commit_timeout_ms=settings.offsets_commit_timeout_ms)
        shard.deleted_topics.update(deleted_topics)
        self._shards[index] = shard
        if shard.is_empty and not any(each.partition is partition for each in self._closing_shards):
            shard.activate(GroupCoordinatorShard(self._settings.static), partition.log.end_offset)
            return
        if not self._load_tasks:
            self._load_start_ms = self._clock.monotonic_ms()
        self._load_tasks[shard] = asyncio.get_running_loop().create_task(self._load(shard))

    def _on_resignation(self, index: int) -> None:
        shard = self._shards.pop(index)
        loading = self._load_tasks.pop(shard, None)
        if loading is not None:
            loading.cancel()
        shard.unload(_not_coordinator())
        self._closing_shards[shard] = asyncio.get_running_loop().create_task(self._close_shard(shard, loading))

    async def _load(self, shard: ShardDriver) -> None:
        try:
            for closing, task in list(self._closing_shards.items()):
                if closing.partition is shard.partition:
                    # Appends of the previous leader epoch must be in the log before the log is loaded.
                    await asyncio.wait([task])
            while shard.is_loading:
                await shard.load(
                    GroupCoordinatorShard(self._settings.static),
                    self._settings.static.offsets_load_buffer_size,
                    self._load_lock,
                )
                if shard.is_loading:
                    await asyncio.sleep(LOAD_RETRY_BACKOFF_S)
            if shard.is_active:
                # The metadata image of this node is at least as new as the image of any earlier leader of the partition
                # while it led. A topic that has offsets here but is missing in the image was therefore deleted.
                shard.delete_offsets_of_missing_topics(self._image.topics)
        except Exception:
            self._log_unexpected_error("loading groups failed unexpectedly", shard)
        finally:
            self._load_tasks.pop(shard, None)
        if not self._load_tasks:
            log.info("loaded groups", took_ms=self._clock.monotonic_ms() - self._load_start_ms)

    async def _close_shard(self, shard: ShardDriver, loading: "asyncio.Task[None] | None") -> None:
        if loading is not None:
            await asyncio.gather(loading, return_exceptions=True)
        try:
            await shard.close()
        except Exception:
            self._log_unexpected_error("unloading groups failed unexpectedly", shard)
        finally:
            del self._closing_shards[shard]
            self._past_unexpected_errors += shard.unexpected_errors

    def _log_unexpected_error(self, message: str, shard: ShardDriver) -> None:
        self._past_unexpected_errors += 1
        log.exception(message, partition=str(shard.partition.name))

    # Lifecycle

    def start(self) -> None:
        """Schedules the next cleanup of offsets."""
        interval_s = self._settings.static.offsets_retention_check_interval_ms / 1000
        self._cleanup_timer = asyncio.get_running_loop().call_later(interval_s, self._run_cleanup)

    def _run_cleanup(self) -> None:
        topic = self._image.topics.get(OFFSETS_TOPIC)
        for partition in topic.partitions if topic is not None else ():
            # Try again to load a shard whose log could not be opened, for lack of disk space or file descriptors.
            if partition.index not in self._shards:
                self._on_partition_changed(partition)
        for shard in self._shards.values():
            shard.cleanup()
        self.start()

    def stop(self) -> None:
        """Unloads all shards, which fails pending requests with NOT_COORDINATOR."""
        self._is_closed = True
        if self._cleanup_timer is not None:
            self._cleanup_timer.cancel()
            self._cleanup_timer = None
        for index in list(self._shards):
            self._on_resignation(index)

    async def close(self) -> None:
        """Unloads all shards and waits until no append is in progress."""
        self.stop()
        await asyncio.gather(*self._closing_shards.values())

    @property
    def unexpected_errors(self) -> int:
        """The number of background operations that failed with an unexpected exception."""
        return self._past_unexpected_errors + sum(
            shard.unexpected_errors for shard in (*self._shards.values(), *self._closing_shards)
        )

    # Lookup of coordinators

    async def ensure_topic(self) -> TopicImage:
        """Returns `__consumer_offsets` and creates it if needed. Raises CoordinatorNotAvailableError."""
        return await self._topic.ensure()

    async def coordinator_partition(self, group_id: str) -> PartitionRegistration:
        """Returns the partition whose leader coordinates a group."""
        topic = await self.ensure_topic()
        return topic.partitions[partition_for(group_id, len(topic.partitions))]

    def _shard(self, group_id: str) -> ShardDriver:
        topic = self._image.topics.get(OFFSETS_TOPIC)
        shard = None
        if topic is not None:
            shard = self._shards.get(partition_for(group_id, len(topic.partitions)))
        if shard is None:
            raise _not_coordinator()
        return shard

    def _check_size(self, request: JoinRequest | SyncRequest) -> None:
        """Raises RecordTooLargeError if the request alone makes the group's record too large.

        Kafka detects this when the leader syncs, and fails all members with UNKNOWN_SERVER_ERROR. Here only the sender
        of the request gets MESSAGE_TOO_LARGE.
        """
        bytes_max = self._shard(request.group_id).partition.log.settings.max_message_bytes
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
            self._shard(group_id), dict, lambda shard, now, id_: shard.commit(now, request, id_), is_commit=True
        )

    async def fetch_offsets(self, group_id: str, partitions: Sequence[TopicPartition] | None) -> PartitionOffsets:
        return await _submit(
            self._shard(group_id), dict, lambda shard, now, id_: shard.fetch_offsets(group_id, partitions, id_)
        )

    async def delete_offsets(self, group_id: str, partitions: Sequence[TopicPartition]) -> PartitionErrors:
        _check_group_id(group_id)
        return await _submit(
            self._shard(group_id), dict, lambda shard, now, id_: shard.delete_offsets(group_id, partitions, id_)
        )

    # Descriptions and deletion

    async def describe(self, group_id: str) -> GroupDescription:
        return await _submit(
            self._shard(group_id), GroupDescription, lambda shard, now, id_: shard.groups.describe(group_id, id_)
        )

    async def delete_group(self, group_id: str) -> None:
        await _submit(self._shard(group_id), EmptyResponse, lambda shard, now, id_: shard.delete_group(group_id, id_))

    async def list_groups(self, states: Sequence[str] = (), types: Sequence[str] = ()) -> list[ListedGroup]:
        """Returns this node's groups. Raises CoordinatorLoadInProgressError while groups are loading."""
        shards = [self._shards[index] for index in sorted(self._shards)]
        if any(shard.is_loading for shard in shards):
            raise CoordinatorLoadInProgressError("groups are loading")
        requests = [
            _submit(shard, tuple, lambda shard, now, id_: shard.groups.list_groups(states, types, id_))
            for shard in shards
            if shard.is_active
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


async def _submit(shard: ShardDriver, kind: type[T], operation: WriteOperation, *, is_commit: bool = False) -> T:
    response = await shard.submit(operation, is_commit=is_commit)
    assert isinstance(response, kind), f"expected {kind.__name__}, got {type(response).__name__}"
    return response


def _not_coordinator() -> NotCoordinatorError:
    return NotCoordinatorError("this node does not coordinate the group")
