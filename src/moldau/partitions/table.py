"""All partitions that this node has a replica of, kept as the metadata says they should be."""

import asyncio
import itertools
from collections.abc import Container, Coroutine, Iterable, Iterator
from uuid import UUID

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
from moldau.settings.effective import EffectiveSettings

log = get_logger(__name__)

SIDE_BY_SIDE_MAX = 64


class PartitionTable:
    def __init__(
        self, node_id: int, store: LogStore, settings: EffectiveSettings, *, not_ours: Container[LogName]
    ) -> None:
        """`not_ours` are logs in the store that are no partitions of topics."""
        self.store = store
        self._not_ours = not_ours
        self._node_id = node_id
        self._settings = settings
        self._partitions: dict[tuple[str, int], Partition] = {}
        self._is_first_image = True
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
        return iter([self._partitions[key] for key in sorted(self._partitions)])

    def __len__(self) -> int:
        return len(self._partitions)

    @property
    def damaged(self) -> dict[tuple[str, int], StorageError]:
        """Partitions whose logs could not be opened, and why."""
        return self._damaged

    # Taking metadata

    async def publish(self, delta: ClusterDelta, image: ClusterImage) -> None:
        """Makes the table what the image says; a partition is open for clients when this returns."""
        self._image = image
        if self._is_first_image:
            self._is_first_image = False
            await self._remove_strays(image)
        await _side_by_side(self._remove_topic(topic) for topic in delta.topics_deleted)
        await _side_by_side(
            self._take_partition(image.topics[name], image.topics[name].partitions[index])
            for name, index in delta.partitions_changed
            if name in image.topics
        )
        self._configure(delta)

    async def _take_partition(self, topic: TopicImage, image: PartitionImage) -> None:
        if self._node_id not in image.replicas:
            return
        key = (topic.name, image.index)
        partition = self._partitions.get(key)
        if partition is None:
            opened = await self._open(LogName(*key), topic.topic_id)
            if opened is None:
                return
            # Somebody else may have opened it meanwhile; the store then gave both the same log.
            partition = self._partitions.get(key)
            if partition is None:
                partition = self._partitions[key] = Partition(
                    opened.name, topic.topic_id, self._node_id, opened
                )
        await partition.take_role(image)

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
                    await partition.close()
                await self._remove_log(LogName(*key))

    async def _remove_strays(self, image: ClusterImage) -> None:
        """Logs of topics that were deleted while this node did not know: found on disk, in no image."""
        for name, topic_id in self.store.found():
            topic = image.topics.get(name.topic)
            if name not in self._not_ours and (topic is None or topic.topic_id != topic_id):
                log.info("removing the log of a deleted topic", partition=str(name))
                await self._remove_log(name)

    async def _remove_log(self, name: LogName) -> None:
        try:
            await self.store.remove(name)
        except StorageError as error:
            # The topic is gone for everybody; what is left of it on disk goes with the next start.
            log.error("the log of a deleted topic is not removed", partition=str(name), why=str(error))

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

    async def close(self) -> None:
        for partition in self:
            await partition.close()
        self._partitions.clear()


async def _side_by_side(work: Iterable[Coroutine[object, object, None]]) -> None:
    """Many logs are opened or removed at a time: each waits for several syncs, and those of many can be shared."""
    waiting = iter(work)
    while some := list(itertools.islice(waiting, SIDE_BY_SIDE_MAX)):
        for outcome in await asyncio.gather(*some, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome
