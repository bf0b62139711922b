"""All partitions that this node has a replica of, kept as the metadata says they should be."""

import asyncio
import itertools
from collections.abc import Callable, Container, Coroutine, Iterable, Iterator
from uuid import UUID

from moldau.controller.requests import NotReady
from moldau.errors import StorageError
from moldau.logs.store import Log, LogName, LogStore
from moldau.metadata.image import (
    EMPTY_IMAGE,
    TOPIC_RESOURCE,
    ClusterDelta,
    ClusterImage,
    PartitionImage,
    TopicImage,
)
from moldau.observe.logging import get_logger
from moldau.partitions.partition import Partition
from moldau.partitions.replica import Lease
from moldau.settings.effective import EffectiveSettings
from moldau.world.clock import Clock

log = get_logger(__name__)

SIDE_BY_SIDE_MAX = 64


class PartitionTable:
    def __init__(
        self,
        node_id: int,
        store: LogStore,
        settings: EffectiveSettings,
        clock: Clock,
        *,
        not_ours: Container[LogName],
        lease: Lease | None = None,
    ) -> None:
        """`not_ours` are logs in the store that are no partitions of topics. Without a lease this node leads
        whatever the metadata says it leads."""
        self.store = store
        self.on_roles_changed: list[Callable[[], None]] = []
        """Called when partitions were opened or closed here, or have other leaders."""
        self.lease = lease
        self.incarnation_id: UUID | None = None
        """What the node registers with in this life. Nothing is opened before the metadata shows it; None opens at
        once, for a table whose first image is the newest."""
        self._is_current = False
        self._not_ours = not_ours
        self._node_id = node_id
        self._settings = settings
        self._clock = clock
        self._partitions: dict[tuple[str, int], Partition] = {}
        self._in_order: list[Partition] | None = None
        """All of them, sorted; None where some have come or gone since."""
        self._image = EMPTY_IMAGE
        self._damaged: dict[tuple[str, int], StorageError] = {}

    def get(self, topic: str, index: int) -> Partition | None:
        """None where there is no such partition here; raises StorageError where its log could not be
        opened."""
        partition = self._partitions.get((topic, index))
        if partition is None and self._damaged and (topic, index) in self._damaged:
            raise self._damaged[topic, index]
        return partition

    def __iter__(self) -> Iterator[Partition]:
        if self._in_order is None:
            self._in_order = [self._partitions[key] for key in sorted(self._partitions)]
        return iter(self._in_order)

    def __len__(self) -> int:
        return len(self._partitions)

    @property
    def damaged(self) -> dict[tuple[str, int], StorageError]:
        """Partitions whose logs could not be opened, and why."""
        return self._damaged

    def not_ready(self) -> tuple[NotReady, ...]:
        """The same, as the controller is told of them."""
        return tuple(
            NotReady(
                self._image.topics[topic].topic_id, index, self._node_id, str(self._damaged[topic, index])
            )
            for topic, index in sorted(self._damaged)
            if topic in self._image.topics
        )

    def led(self) -> list[Partition]:
        return [partition for partition in self if partition.is_leader]

    def followed(self) -> dict[int, list[Partition]]:
        """The partitions that this node follows, by the broker that leads them."""
        followed: dict[int, list[Partition]] = {}
        for partition in self:
            if partition.is_follower and partition.failure is None:
                followed.setdefault(partition.leader_id, []).append(partition)
        return followed

    def lease_ended(self) -> None:
        """This node may not lead anything any more, until it is told otherwise."""
        for partition in self.led():
            partition.lease_ended()

    # Taking metadata

    async def publish(self, delta: ClusterDelta, image: ClusterImage) -> None:
        """Makes the table what the image says; a partition is open for clients when this returns."""
        self._image = image
        changed: Iterable[tuple[str, int]] = delta.partitions_changed
        if not self._is_current:
            if not self._shows_this_life(image):
                return
            self._is_current = True
            if self.incarnation_id is not None:
                await self.set_strays_aside()
            changed = [
                (name, each.index) for name, topic in image.topics.items() for each in topic.partitions
            ]
        await _side_by_side(self._remove_topic(topic) for topic in delta.topics_deleted)
        await _side_by_side(
            self._take_partition(image.topics[name], image.topics[name].partitions[index])
            for name, index in changed
            if name in image.topics
        )
        if delta.brokers_changed:
            for partition in self.led():
                partition.on_brokers(image.brokers)
        self._configure(delta)
        if delta.topics_deleted or changed:
            for callback in self.on_roles_changed:
                callback()

    def _shows_this_life(self, image: ClusterImage) -> bool:
        """A node that starts is shown the past first: roles it had, topics under former ids, replicas that left and
        came back. What is on its disk is newer than all of that, up to its own registration."""
        if self.incarnation_id is None:
            return True
        broker = image.brokers.get(self._node_id)
        return broker is not None and broker.incarnation_id == self.incarnation_id

    async def set_strays_aside(self) -> None:
        """Logs that are in the store and in no image: of topics that were deleted, or replicas that were moved, while
        this node did not know; or of another cluster. Done by itself where the table knows which life it is in."""
        for name, topic_id in self.store.found():
            topic = self._image.topics.get(name.topic)
            is_known = (
                topic is not None
                and topic.topic_id == topic_id
                and name.partition < len(topic.partitions)
                and self._node_id in topic.partitions[name.partition].replicas
            )
            if not is_known and name not in self._not_ours and name not in self._partitions:
                await self.store.set_aside(name)

    async def _take_partition(self, topic: TopicImage, image: PartitionImage) -> None:
        key = (topic.name, image.index)
        if self._node_id not in image.replicas:
            await self._leave_partition(key)
            return
        partition = self._partitions.get(key)
        if partition is None:
            opened = await self._open(LogName(*key), topic.topic_id)
            if opened is None:
                return
            # Somebody else may have opened it meanwhile; the store then gave both the same log.
            partition = self._partitions.get(key)
            if partition is None:
                partition = self._partitions[key] = Partition(
                    opened.name, topic.topic_id, self._node_id, opened, self._clock, self.lease
                )
                self._in_order = None
                partition.on_followable = self.on_roles_changed
        await partition.take_role(image, brokers=self._image.brokers)

    async def _leave_partition(self, key: tuple[str, int]) -> None:
        """The replica was moved elsewhere, and others have all of it."""
        self._damaged.pop(key, None)
        partition = self._partitions.pop(key, None)
        if partition is not None:
            self._in_order = None
            log.info("replica is removed: it has been moved to other nodes", partition=str(partition.name))
            await partition.close()
            await self._remove_log(partition.name)

    async def _open(self, name: LogName, topic_id: UUID) -> Log | None:
        try:
            return await self.store.open(name, topic_id, self._settings.topic(name.topic))
        except StorageError as error:
            # One damaged log must not keep the others from being served.
            log.error("partition is offline: its log cannot be opened", partition=str(name), why=str(error))
            self._damaged[name.topic, name.partition] = error
            return None

    async def _remove_topic(self, topic: TopicImage) -> None:
        for each in topic.partitions:
            key = (topic.name, each.index)
            self._damaged.pop(key, None)
            partition = self._partitions.get(key)
            if partition is None or partition.topic_id == topic.topic_id:
                if partition is not None:
                    del self._partitions[key]
                    self._in_order = None
                    await partition.close()
                await self._remove_log(LogName(*key))

    async def _remove_log(self, name: LogName) -> None:
        try:
            await self.store.remove(name)
        except StorageError as error:
            # It is gone for everybody; what is left of it on disk is set aside at the next start.
            log.error("the log of a removed partition is not deleted", partition=str(name), why=str(error))

    async def open_again(self) -> None:
        """Tries the partitions once more whose logs could not be opened for want of room or descriptors."""
        for (topic, index), error in list(self._damaged.items()):
            found = self._image.topics.get(topic)
            if found is not None and isinstance(error.__cause__, OSError):
                del self._damaged[topic, index]
                await self._take_partition(found, found.partitions[index])

    def _configure(self, delta: ClusterDelta) -> None:
        everything = any(resource.type != TOPIC_RESOURCE for resource in delta.configs_changed)
        topics = {resource.name for resource in delta.configs_changed if resource.type == TOPIC_RESOURCE}
        if not everything and not topics:
            return
        for partition in self:
            if everything or partition.name.topic in topics:
                partition.configure(self._settings.topic(partition.name.topic))

    async def save_high_watermarks(self) -> None:
        """So that after a restart what was committed is shown at once."""
        for partition in self._partitions.values():
            partition.log.saved_high_watermark = partition.high_watermark
        await self.store.save_high_watermarks()

    async def close(self) -> None:
        for partition in self:
            await partition.close()
        self._partitions.clear()
        self._in_order = None
        try:
            await self.store.save_high_watermarks()
        except StorageError as error:
            log.warning("high watermarks are not saved", why=str(error))


async def _side_by_side(work: Iterable[Coroutine[object, object, None]]) -> None:
    """Many logs are opened or removed at a time: each waits for several syncs, and those of many can be shared."""
    waiting = iter(work)
    while some := list(itertools.islice(waiting, SIDE_BY_SIDE_MAX)):
        for outcome in await asyncio.gather(*some, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome
