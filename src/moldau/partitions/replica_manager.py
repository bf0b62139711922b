"""All partitions that this node has a replica of, kept as the metadata says they should be."""

import asyncio
import functools
import itertools
from collections.abc import Callable, Container, Coroutine, Iterable, Iterator, Sequence
from uuid import UUID

from moldau.controller.requests import OfflineReplica
from moldau.errors import StorageError
from moldau.logs.store import Log, LogName, LogStore, copy_error, is_transient
from moldau.metadata.image import (
    EMPTY_IMAGE,
    TOPIC_RESOURCE,
    MetadataDelta,
    MetadataImage,
    PartitionRegistration,
    TopicImage,
)
from moldau.observe.logging import get_logger
from moldau.partitions.partition import Lease, Partition
from moldau.platform.clock import Clock
from moldau.settings.effective import EffectiveSettings

log = get_logger(__name__)

CONCURRENT_LOGS_MAX = 64
FREE_BYTES_MIN, FREE_FRACTION = 64 * 1024 * 1024, 100
"""How much of a disk that was full has to be free before it counts as writable again, or which part of a small one:
enough not to be full again at once."""


class ReplicaManager:
    def __init__(
        self,
        node_id: int,
        store: LogStore,
        settings: EffectiveSettings,
        clock: Clock,
        *,
        internal_logs: Container[LogName],
        lease: Lease | None = None,
    ) -> None:
        """`internal_logs` are logs in the store that are no partitions of topics. Without a lease this node leads
        whatever the metadata says it leads."""
        self.store = store
        self.on_roles_changed: list[Callable[[Sequence[Partition]], None]] = []
        """Told of partitions that were opened or closed here, or have changed."""
        self.on_not_ready: list[Callable[[], None]] = []
        """Called when `not_ready` is another one by something else than a publication."""
        self._defers_notification = False
        """Several are about to change, and will be told of together."""
        self.lease = lease
        self.incarnation_id: UUID | None = None
        """What the node registers with in this life. Nothing is opened before the metadata shows it; None opens at
        once, for a table whose first image is the newest."""
        self._is_current = False
        self._internal_logs = internal_logs
        self._node_id = node_id
        self._settings = settings
        self._clock = clock
        self._partitions: dict[tuple[str, int], Partition] = {}
        self._sorted_partitions: list[Partition] | None = None
        """All of them, sorted; None where some have come or gone since."""
        self._image = EMPTY_IMAGE
        self._unopened: dict[tuple[str, int], StorageError] = {}
        self._offline: dict[tuple[str, int], StorageError] = {}
        self._unwritable: dict[tuple[str, int], StorageError] = {}
        self._change_lock = asyncio.Lock()
        """Publications and attempts to open logs again go one after the other."""

    def get(self, topic: str, index: int) -> Partition | None:
        """None where there is no such partition here; raises StorageError where its log could not be
        opened."""
        partition = self._partitions.get((topic, index))
        if partition is None and self._unopened and (topic, index) in self._unopened:
            raise copy_error(self._unopened[topic, index])
        return partition

    def __iter__(self) -> Iterator[Partition]:
        if self._sorted_partitions is None:
            self._sorted_partitions = [self._partitions[key] for key in sorted(self._partitions)]
        return iter(self._sorted_partitions)

    def __len__(self) -> int:
        return len(self._partitions)

    @property
    def unopened_logs(self) -> dict[tuple[str, int], StorageError]:
        """Partitions whose logs could not be opened, and why."""
        return self._unopened

    @property
    def has_errors(self) -> bool:
        return bool(self._unopened or self._unwritable)

    def not_ready(self) -> tuple[OfflineReplica, ...]:
        """The same, those whose logs have failed since, and those that cannot be written for the moment, as the
        controller is told of them."""
        reasons = {**self._unwritable, **self._unopened, **self._offline}
        return tuple(
            OfflineReplica(
                self._image.topics[key[0]].topic_id,
                key[1],
                self._node_id,
                str(reasons[key]),
                is_transient=key in self._unwritable,
            )
            for key in sorted(reasons)
            if key[0] in self._image.topics
        )

    def leader_partitions(self) -> list[Partition]:
        return [partition for partition in self if partition.is_leader]

    def on_lease_lost(self) -> None:
        """This node may not lead anything any more, until it is told otherwise."""
        for partition in self.leader_partitions():
            partition.on_lease_lost()

    # Taking metadata

    async def publish(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Makes the table what the image says; a partition is open for clients when this returns."""
        async with self._change_lock:
            await self._publish(delta, image)

    async def _publish(self, delta: MetadataDelta, image: MetadataImage) -> None:
        self._image = image
        changed: Iterable[tuple[str, int]] = delta.partitions_changed
        if not self._is_current:
            if not self._shows_current_incarnation(image):
                return
            self._is_current = True
            if self.incarnation_id is not None:
                await self.move_stray_logs()
            changed = [
                (name, each.index) for name, topic in image.topics.items() for each in topic.partitions
            ]
        touched = await _run_concurrently(self._partition_deletions(delta.topics_deleted))
        touched += await _run_concurrently(
            self._apply_partition(image.topics[name], image.topics[name].partitions[index])
            for name, index in changed
            if name in image.topics
        )
        if delta.brokers_changed:
            for partition in self.leader_partitions():
                partition.leader.on_brokers(image.brokers)
        self._configure(delta)
        self._notify_changed(touched)

    def _notify_changed(self, touched: Sequence[Partition]) -> None:
        if touched:
            for callback in self.on_roles_changed:
                callback(touched)

    def _shows_current_incarnation(self, image: MetadataImage) -> bool:
        """A node that starts is shown the past first: roles it had, topics under former ids, replicas that left and
        came back. What is on its disk is newer than all of that, up to its own registration."""
        if self.incarnation_id is None:
            return True
        broker = image.brokers.get(self._node_id)
        return broker is not None and broker.incarnation_id == self.incarnation_id

    async def move_stray_logs(self) -> None:
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
            if not is_known and name not in self._internal_logs and name not in self._partitions:
                await self.store.move_to_stray(name)

    async def _apply_partition(self, topic: TopicImage, image: PartitionRegistration) -> Partition | None:
        """The partition that was opened, changed or closed."""
        key = (topic.name, image.index)
        if self._node_id not in image.replicas:
            return await self._delete_replica(key)
        partition = self._partitions.get(key)
        if partition is None:
            opened = await self._open_log(LogName(*key), topic.topic_id)
            if opened is None:
                return None
            partition = self._partitions[key] = Partition(
                opened.name, topic.topic_id, self._node_id, opened, self._clock, self.lease
            )
            self._sorted_partitions = None
            partition.guarded_log.on_error_changed = functools.partial(self._on_error_changed, key, partition)
        await partition.apply_image(image, brokers=self._image.brokers)
        return partition

    def _on_error_changed(self, key: tuple[str, int], partition: Partition) -> None:
        if self._partitions.get(key) is not partition:
            return
        self._unwritable.pop(key, None)
        if partition.failure is not None:
            self._offline[key] = partition.failure
        elif partition.guarded_log.transient_error is not None:
            self._unwritable[key] = partition.guarded_log.transient_error
        self._notify_not_ready()

    def _notify_not_ready(self) -> None:
        if not self._defers_notification:
            for callback in self.on_not_ready:
                callback()

    async def _delete_replica(self, key: tuple[str, int]) -> Partition | None:
        """The replica was moved elsewhere, and others have all of it."""
        partition = self._discard(key)
        if partition is not None:
            log.info("replica is removed: it has been moved to other nodes", partition=str(partition.name))
            await partition.close()
            await self._delete_log(partition.name)
        return partition

    def _discard(self, key: tuple[str, int]) -> Partition | None:
        self._unopened.pop(key, None)
        self._offline.pop(key, None)
        self._unwritable.pop(key, None)
        self._sorted_partitions = None
        return self._partitions.pop(key, None)

    async def _open_log(self, name: LogName, topic_id: UUID) -> Log | None:
        key = (name.topic, name.partition)
        try:
            opened = await self.store.open(name, topic_id, self._settings.topic(name.topic))
        except StorageError as error:
            # One damaged log must not keep the others from being served.
            if str(self._unopened.get(key)) != str(error):
                log.error(
                    "partition is offline: its log cannot be opened", partition=str(name), why=str(error)
                )
            self._unopened[key] = copy_error(error)
            return None
        self._unopened.pop(key, None)
        return opened

    def _partition_deletions(
        self, topics: Sequence[TopicImage]
    ) -> Iterator[Coroutine[object, object, Partition | None]]:
        on_disk = dict(self.store.found()) if topics else {}
        for topic in topics:
            for each in topic.partitions:
                key = (topic.name, each.index)
                if on_disk.get(LogName(*key)) == topic.topic_id:
                    yield self._delete_partition(key)
                elif key not in self._partitions:
                    # What is there under this name is of another topic, if it is anything.
                    self._unopened.pop(key, None)

    async def _delete_partition(self, key: tuple[str, int]) -> Partition | None:
        partition = self._discard(key)
        if partition is not None:
            await partition.close()
        await self._delete_log(LogName(*key))
        return partition

    async def _delete_log(self, name: LogName) -> None:
        try:
            await self.store.remove(name)
        except StorageError as error:
            # It is gone for everybody; what is left of it on disk is set aside at the next start.
            log.error("the log of a removed partition is not deleted", partition=str(name), why=str(error))

    async def retry_offline_logs(self, *, transient_only: bool = False) -> None:
        """Tries the partitions once more whose logs could not be opened because the disk did not let them;
        `transient_only` those that were short of room or descriptors, which is soon told."""
        touched: list[Partition] = []
        for (topic, index), error in list(self._unopened.items()):
            if not isinstance(error.__cause__, OSError) or (transient_only and not is_transient(error)):
                continue
            async with self._change_lock:
                found = self._image.topics.get(topic)
                if found is not None and (topic, index) in self._unopened:
                    opened = await self._apply_partition(found, found.partitions[index])
                    if opened is not None:
                        touched.append(opened)
        if touched:
            self._notify_changed(touched)
            self._notify_not_ready()

    def probe_disk_space(self) -> bool:
        """Whether the disk can be written to again, as far as it says. Replicas that could not be for the moment are
        counted on again then: those of them that nobody writes to would never find out themselves."""
        total, usable = self.store.space()
        if usable < min(FREE_BYTES_MIN, total // FREE_FRACTION):
            return False
        refusing = sorted(self._unwritable)
        self._defers_notification = True
        for key in refusing:
            self._partitions[key].guarded_log.clear_transient_error()
        self._defers_notification = False
        if refusing:
            self._notify_not_ready()
        return True

    def _configure(self, delta: MetadataDelta) -> None:
        everything = any(resource.type != TOPIC_RESOURCE for resource in delta.configs_changed)
        topics = {resource.name for resource in delta.configs_changed if resource.type == TOPIC_RESOURCE}
        if not everything and not topics:
            return
        for partition in self:
            if everything or partition.name.topic in topics:
                partition.configure(self._settings.topic(partition.name.topic))

    async def checkpoint_high_watermarks(self) -> None:
        """So that after a restart what was committed is shown at once."""
        for partition in self._partitions.values():
            partition.log.checkpointed_high_watermark = partition.high_watermark
        await self.store.checkpoint_high_watermarks()

    async def close(self) -> None:
        for partition in self:
            await partition.close()
        self._partitions.clear()
        self._sorted_partitions = None
        try:
            await self.store.checkpoint_high_watermarks()
        except StorageError as error:
            log.warning("high watermarks are not saved", why=str(error))


async def _run_concurrently(work: Iterable[Coroutine[object, object, Partition | None]]) -> list[Partition]:
    """Many logs are opened or removed at a time: each waits for several syncs, and those of many can be shared. Gives
    the partitions that were touched."""
    touched = []
    waiting = iter(work)
    while some := list(itertools.islice(waiting, CONCURRENT_LOGS_MAX)):
        for outcome in await asyncio.gather(*some, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome
            if outcome is not None:
                touched.append(outcome)
    return touched
