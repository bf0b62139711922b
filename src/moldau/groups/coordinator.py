"""The group coordinator as request handlers see it: awaitable calls that return when the answer is safe to give.

Every partition of `__consumer_offsets` that this node leads is a shard of its own; a group belongs to one of them
by the hash of its id.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import TypeVar

from moldau.errors import (
    CoordinatorLoadInProgressError,
    InvalidGroupIdError,
    NotCoordinatorError,
    RecordTooLargeError,
)
from moldau.groups.requests import (
    CommitReply,
    CommitRequest,
    DeleteOffsetsReply,
    Done,
    GroupDescription,
    GroupLimits,
    JoinReply,
    JoinRequest,
    LeaveReply,
    LeavingMember,
    ListedGroup,
    ListReply,
    MemberClaim,
    OffsetsReply,
    Reply,
    SyncReply,
    SyncRequest,
    TopicKey,
    TopicPartition,
)
from moldau.groups.shard import Shard, Step
from moldau.groups.state import GroupsState
from moldau.groups.topic import OFFSETS_TOPIC, OffsetsTopic, TopicCreator, partition_for
from moldau.metadata.image import EMPTY_IMAGE, ClusterDelta, ClusterImage, PartitionImage, TopicImage
from moldau.metadata.loader import MetadataLoader
from moldau.observe.logging import get_logger
from moldau.partitions.partition import Partition
from moldau.partitions.table import PartitionTable
from moldau.platform.clock import Clock
from moldau.settings.broker import BrokerSettings
from moldau.settings.effective import EffectiveSettings

log = get_logger(__name__)

LOAD_AGAIN_S = 5.0
"""When groups that could not be loaded are tried again."""

T = TypeVar("T")


def limits_of(settings: BrokerSettings) -> GroupLimits:
    return GroupLimits(
        session_timeout_ms_min=settings.group_min_session_timeout_ms,
        session_timeout_ms_max=settings.group_max_session_timeout_ms,
        initial_rebalance_delay_ms=settings.group_initial_rebalance_delay_ms,
        size_max=settings.group_max_size,
        offset_metadata_length_max=settings.offset_metadata_max_bytes,
        offsets_retention_ms=settings.offsets_retention_minutes * 60_000,
    )


class GroupCoordinator:
    def __init__(
        self,
        node_id: int,
        partitions: PartitionTable,
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
        self._limits = limits_of(settings.static)
        self._image = EMPTY_IMAGE
        self._shards: dict[int, Shard] = {}
        self._ending: dict[Shard, asyncio.Task[None]] = {}
        """Shards that are over, and may still be writing what they had begun."""
        self._loading: dict[Shard, asyncio.Task[None]] = {}
        self._reading = asyncio.Lock()
        """One log is read after the other: a node that loads must also serve."""
        self._loading_since_ms = 0
        self._next_upkeep: asyncio.TimerHandle | None = None
        self._is_closed = False
        self._past_bugs = 0

    # Following the metadata

    def publish(self, delta: ClusterDelta, image: ClusterImage) -> None:
        """Takes up the groups of partitions that this node leads now, and lets go of the others."""
        self._image = image
        if self._is_closed:
            return
        for topic in delta.topics_deleted:
            if topic.name == OFFSETS_TOPIC:
                for index in list(self._shards):
                    self._let_go(index)
        for name, index in delta.partitions_changed:
            partition = image.partition(name, index)
            if name == OFFSETS_TOPIC and partition is not None:
                self._follow(partition)
        deleted: list[TopicKey] = []
        for topic in delta.topics_deleted:
            if topic.name != OFFSETS_TOPIC:
                deleted += (topic.name, topic.topic_id), (topic.name, None)
        if deleted:
            for shard in self._shards.values():
                shard.forget(deleted)

    def _follow(self, image: PartitionImage) -> None:
        shard = self._shards.get(image.index)
        partition = None
        if image.leader == self._node_id and (OFFSETS_TOPIC, image.index) not in self._partitions.damaged:
            partition = self._partitions.get(OFFSETS_TOPIC, image.index)
        if shard is not None:
            if partition is shard.partition and partition.leader_epoch == shard.leader_epoch:
                return
            # Another may have led it in between and written to it: what is loaded is not to be trusted.
            self._let_go(image.index)
        if partition is not None and partition.is_leader:
            self._take_up(image.index, partition, {} if shard is None else shard.deleted_topics)

    def _take_up(self, index: int, partition: Partition, deleted_topics: Mapping[TopicKey, int]) -> None:
        settings = self._settings.static
        shard = Shard(partition, self._clock, commit_timeout_ms=settings.offsets_commit_timeout_ms)
        shard.deleted_topics.update(deleted_topics)
        self._shards[index] = shard
        if shard.is_empty and not any(each.partition is partition for each in self._ending):
            shard.serve(GroupsState(self._limits), partition.log.end_offset)
            return
        if not self._loading:
            self._loading_since_ms = self._clock.monotonic_ms()
        self._loading[shard] = asyncio.get_running_loop().create_task(self._load(shard))

    def _let_go(self, index: int) -> None:
        shard = self._shards.pop(index)
        loading = self._loading.pop(shard, None)
        if loading is not None:
            loading.cancel()
        shard.unload(_not_coordinator())
        self._ending[shard] = asyncio.get_running_loop().create_task(self._end(shard, loading))

    async def _load(self, shard: Shard) -> None:
        """Each waits by itself for its log to be committed."""
        try:
            for former, ending in list(self._ending.items()):
                if former.partition is shard.partition:
                    # What it had begun to write belongs to what this one has to read.
                    await asyncio.wait([ending])
            while shard.is_loading:
                await shard.load(
                    GroupsState(self._limits), self._settings.static.offsets_load_buffer_size, self._reading
                )
                if shard.is_loading:
                    await asyncio.sleep(LOAD_AGAIN_S)
            if shard.is_serving:
                # No leader of this partition went by a newer image than this one, in which it is led here.
                shard.forget_former(self._image.topics)
        except Exception:
            self._bug("loading groups failed", shard)
        finally:
            self._loading.pop(shard, None)
        if not self._loading:
            log.info("groups are loaded", took_ms=self._clock.monotonic_ms() - self._loading_since_ms)

    async def _end(self, shard: Shard, loading: "asyncio.Task[None] | None") -> None:
        if loading is not None:
            await asyncio.gather(loading, return_exceptions=True)
        try:
            await shard.close()
        except Exception:
            self._bug("groups were not let go of as they should be", shard)
        finally:
            del self._ending[shard]
            self._past_bugs += shard.bugs

    def _bug(self, message: str, shard: Shard) -> None:
        self._past_bugs += 1
        log.exception(message, partition=str(shard.partition.name))

    # Beginning and ending

    def start(self) -> None:
        """Begins its upkeep, round after round."""
        interval_s = self._settings.static.offsets_retention_check_interval_ms / 1000
        self._next_upkeep = asyncio.get_running_loop().call_later(interval_s, self._upkeep)

    def _upkeep(self) -> None:
        topic = self._image.topics.get(OFFSETS_TOPIC)
        for partition in topic.partitions if topic is not None else ():
            # Its log may have been opened since, if it was for want of room or descriptors that it was not.
            if partition.index not in self._shards:
                self._follow(partition)
        for shard in self._shards.values():
            shard.upkeep()
        self.start()

    def stop(self) -> None:
        """From now on this node coordinates nothing; who waits is told so, and need not be waited for."""
        self._is_closed = True
        if self._next_upkeep is not None:
            self._next_upkeep.cancel()
            self._next_upkeep = None
        for index in list(self._shards):
            self._let_go(index)

    async def close(self) -> None:
        """Returns when nothing is being written any more."""
        self.stop()
        await asyncio.gather(*self._ending.values())

    @property
    def bugs(self) -> int:
        """Decisions of its own that ended in an exception nobody planned for."""
        return self._past_bugs + sum(shard.bugs for shard in (*self._shards.values(), *self._ending))

    # Who coordinates what

    async def ensure_topic(self) -> TopicImage:
        """The topic that groups live in, made where there is none yet; raises CoordinatorNotAvailableError."""
        return await self._topic.ensure()

    async def coordinator_of(self, group_id: str) -> PartitionImage:
        """The partition whose leader is a group's coordinator."""
        topic = await self.ensure_topic()
        return topic.partitions[partition_for(group_id, len(topic.partitions))]

    def _shard(self, group_id: str) -> Shard:
        topic = self._image.topics.get(OFFSETS_TOPIC)
        shard = None
        if topic is not None:
            shard = self._shards.get(partition_for(group_id, len(topic.partitions)))
        if shard is None:
            raise _not_coordinator()
        return shard

    async def _ask(self, group_id: str, kind: type[T], step: Step, *, is_commit: bool = False) -> T:
        reply = await self._shard(group_id).ask(step, is_commit=is_commit)
        assert isinstance(reply, kind), f"asked for {kind.__name__}, answered {type(reply).__name__}"
        return reply

    async def _ask_member(self, group_id: str, kind: type[T], step: Step, *, size: int = 0) -> T:
        """Offsets can be kept without a group's name, but nobody can be a member of it."""
        if not group_id:
            raise InvalidGroupIdError("a group needs a name")
        bytes_max = self._shard(group_id).record_bytes_max
        if size > bytes_max:
            # It could never be written, so it is not kept until the group comes to that. Kafka learns it only at
            # the leader's sync, and then fails all members with UNKNOWN_SERVER_ERROR; here the one whose fault
            # it is hears MESSAGE_TOO_LARGE, on which clients give up, and which its operator understands.
            raise RecordTooLargeError(f"{size} bytes of a member; a group's record has at most {bytes_max}")
        return await self._ask(group_id, kind, step)

    # Membership

    async def join(self, request: JoinRequest) -> JoinReply:
        if request.reason:
            log.debug("member joins", group=request.group_id, member=request.member_id, why=request.reason)
        return await self._ask_member(
            request.group_id,
            JoinReply,
            lambda state, now, ticket: state.join(now, request, ticket),
            size=request.size,
        )

    async def sync(self, request: SyncRequest) -> SyncReply:
        return await self._ask_member(
            request.group_id,
            SyncReply,
            lambda state, now, ticket: state.sync(now, request, ticket),
            size=request.size,
        )

    async def heartbeat(self, claim: MemberClaim) -> None:
        try:
            await self._ask_member(
                claim.group_id, Done, lambda state, now, ticket: state.heartbeat(now, claim, ticket)
            )
        except CoordinatorLoadInProgressError:
            # As Kafka has it: who is heard while the groups are being read need not look for another coordinator.
            return

    async def leave(self, group_id: str, members: Sequence[LeavingMember]) -> LeaveReply:
        for each in members:
            if each.reason:
                log.debug("member leaves", group=group_id, member=each.member_id, why=each.reason)
        return await self._ask_member(
            group_id, LeaveReply, lambda state, now, ticket: state.leave(now, group_id, members, ticket)
        )

    # Offsets

    async def commit(self, request: CommitRequest) -> CommitReply:
        return await self._ask(
            request.claim.group_id,
            CommitReply,
            lambda state, now, ticket: state.commit(now, request, ticket),
            is_commit=True,
        )

    async def fetch_offsets(self, group_id: str, partitions: Sequence[TopicPartition] | None) -> OffsetsReply:
        return await self._ask(
            group_id,
            OffsetsReply,
            lambda state, now, ticket: state.fetch_offsets(now, group_id, partitions, ticket),
        )

    async def delete_offsets(self, group_id: str, partitions: Sequence[TopicPartition]) -> DeleteOffsetsReply:
        return await self._ask_member(
            group_id,
            DeleteOffsetsReply,
            lambda state, now, ticket: state.delete_offsets(now, group_id, partitions, ticket),
        )

    # Looking at groups

    async def describe(self, group_id: str) -> GroupDescription:
        return await self._ask(
            group_id, GroupDescription, lambda state, now, ticket: state.describe(group_id, ticket)
        )

    async def delete_group(self, group_id: str) -> None:
        await self._ask(group_id, Done, lambda state, now, ticket: state.delete_group(now, group_id, ticket))

    async def list_groups(self, states: Sequence[str] = (), types: Sequence[str] = ()) -> list[ListedGroup]:
        """All groups that this node coordinates; raises CoordinatorLoadInProgressError where some are not known
        yet."""
        shards = [self._shards[index] for index in sorted(self._shards)]
        if any(shard.is_loading for shard in shards):
            raise CoordinatorLoadInProgressError("some groups are being loaded")
        asked = [self._list(shard, states, types) for shard in shards if shard.is_serving]
        listed: list[ListedGroup] = []
        for reply in await asyncio.gather(*asked, return_exceptions=True):
            if isinstance(reply, NotCoordinatorError):
                # Given up by now: whoever has these groups lists them.
                continue
            if isinstance(reply, BaseException):
                raise reply
            assert isinstance(reply, ListReply)
            listed += reply.groups
        return listed

    async def _list(self, shard: Shard, states: Sequence[str], types: Sequence[str]) -> Reply:
        return await shard.ask(lambda state, now, ticket: state.list_groups(states, types, ticket))


def _not_coordinator() -> NotCoordinatorError:
    return NotCoordinatorError("this node does not coordinate the group")
