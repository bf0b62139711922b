"""The replica manager: opens, changes and deletes the partitions of this broker as the metadata says."""

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
from moldau.metrics.component_metrics import IsrMetrics
from moldau.observe.logging import get_logger
from moldau.partitions.partition import Lease, Partition
from moldau.platform.clock import Clock
from moldau.settings.effective import EffectiveSettings

log = get_logger(__name__)

CONCURRENT_LOGS_MAX = 64
"""How many logs are opened or deleted at the same time. Concurrent operations can share their fsyncs."""
FREE_BYTES_MIN, FREE_FRACTION_MIN = 64 * 1024 * 1024, 100
"""A full disk is writable again when FREE_BYTES_MIN bytes or 1/FREE_FRACTION_MIN of it are free, whichever is less."""


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
        """`internal_logs` are logs in the store that belong to no topic.

        If `lease` is None, this broker leads as the metadata says and never checks a lease.
        """
        self.store = store
        self.on_roles_changed: list[Callable[[Sequence[Partition]], None]] = []
        """Called with the partitions that were opened, changed or closed."""
        self.on_offline_replicas_changed: list[Callable[[], None]] = []
        """Called when `offline_replicas` has changed outside of `publish`."""
        self._defers_notification = False
        """True while several partitions change, so that listeners are notified once for all of them."""
        self.lease = lease
        self.incarnation_id: UUID | None = None
        """The incarnation id with which this broker registers. No log is opened before the metadata contains this
        registration. With None, which only tests use, logs are opened immediately."""
        self._is_current = False
        """Whether the metadata has ever contained the registration of this incarnation."""
        self._internal_logs = internal_logs
        self._node_id = node_id
        self._settings = settings
        self._clock = clock
        self._partitions: dict[tuple[str, int], Partition] = {}
        self._sorted_partitions: list[Partition] | None = None
        """A cache of all partitions in sorted order; None after a partition was added or removed."""
        self._image = EMPTY_IMAGE
        self.unopened_logs: dict[tuple[str, int], StorageError] = {}
        """Partitions whose logs cannot be opened."""
        self._offline: dict[tuple[str, int], StorageError] = {}
        """Partitions whose logs have failed since they were opened."""
        self._unwritable: dict[tuple[str, int], StorageError] = {}
        """Partitions with a transient error."""
        self.isr_metrics = IsrMetrics()
        self.late_transaction_count = 0
        """The number of partitions that this broker leads with a transaction that is open for too long."""
        self._change_lock = asyncio.Lock()
        """Held by `publish` and by retries of logs that could not be opened."""

    def get(self, topic: str, index: int) -> Partition | None:
        """Returns the partition; None if this broker has no replica. Raises StorageError if the log cannot be
        opened."""
        partition = self._partitions.get((topic, index))
        if partition is None and (topic, index) in self.unopened_logs:
            raise copy_error(self.unopened_logs[topic, index])
        return partition

    def __iter__(self) -> Iterator[Partition]:
        if self._sorted_partitions is None:
            self._sorted_partitions = [self._partitions[key] for key in sorted(self._partitions)]
        return iter(self._sorted_partitions)

    def __len__(self) -> int:
        return len(self._partitions)

    @property
    def has_errors(self) -> bool:
        return bool(self.unopened_logs or self._unwritable)

    def offline_replicas(self) -> tuple[OfflineReplica, ...]:
        """Returns the replicas that cannot be opened, read or written, for the broker's heartbeat."""
        reasons = {**self._unwritable, **self.unopened_logs, **self._offline}
        topics, unwritable = self._image.topics, self._unwritable
        return tuple(
            OfflineReplica(topics[key[0]].topic_id, key[1], self._node_id, str(reasons[key]), key in unwritable)
            for key in sorted(reasons)
            if key[0] in topics
        )

    def leader_partitions(self) -> list[Partition]:
        return [partition for partition in self if partition.is_leader]

    def on_lease_lost(self) -> None:
        """Fails all pending acks of the partitions that this broker leads."""
        for partition in self.leader_partitions():
            partition.on_lease_lost()

    # Metadata

    async def publish(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Applies the image. New partitions serve clients when this method returns."""
        async with self._change_lock:
            self._image = image
            changed: Iterable[tuple[str, int]] = delta.partitions_changed
            if not self._is_current:
                if not self._shows_current_incarnation(image):
                    return
                self._is_current = True
                if self.incarnation_id is not None:
                    await self.move_stray_logs()
                changed = [(name, each.index) for name, topic in image.topics.items() for each in topic.partitions]
            changed_partitions = await _run_concurrently(self._partition_deletions(delta.topics_deleted))
            changed_partitions += await _run_concurrently(
                self._apply_partition(image.topics[name], image.topics[name].partitions[index])
                for name, index in changed
                if name in image.topics
            )
            if delta.brokers_changed:
                for partition in self.leader_partitions():
                    partition.leader.on_brokers(image.brokers)
            self._configure(delta)
            self._notify_changed(changed_partitions)

    def _notify_changed(self, changed_partitions: Sequence[Partition]) -> None:
        if changed_partitions:
            for callback in self.on_roles_changed:
                callback(changed_partitions)

    def _shows_current_incarnation(self, image: MetadataImage) -> bool:
        """Returns whether the image contains the registration of this incarnation.

        A starting broker first replays old metadata, which must not change the newer logs on the disk.
        """
        if self.incarnation_id is None:
            return True
        broker = image.brokers.get(self._node_id)
        return broker is not None and broker.incarnation_id == self.incarnation_id

    async def move_stray_logs(self) -> None:
        """Renames the logs that belong to no replica in the image.

        The topic was deleted or the replica was reassigned while this broker was down, or the log is from another
        cluster.
        """
        for name, topic_id in self.store.list_logs():
            topic = self._image.topics.get(name.topic)
            is_known = (
                topic is not None
                and topic.topic_id == topic_id
                and name.partition < len(topic.partitions)
                and self._node_id in topic.partitions[name.partition].replicas
            )
            if not is_known and name not in self._internal_logs and name not in self._partitions:
                try:
                    await self.store.move_to_stray(name)
                except StorageError as error:
                    if not is_transient(error):
                        raise
                    # Until the next start renames it, `open` does so for another topic of this name.
                    log.error("a stray log was not moved away", partition=str(name), reason=str(error))

    async def _apply_partition(self, topic: TopicImage, image: PartitionRegistration) -> Partition | None:
        """Opens, changes or deletes a replica as the image says. Returns its partition, if there is one."""
        key = (topic.name, image.index)
        partition = self._partitions.get(key)
        if self._node_id not in image.replicas:
            if partition is None:
                self._discard(key)
                return None
            log.info("deleting a replica that was reassigned", partition=str(partition.name))
            return await self._delete_partition(key)
        if partition is None:
            opened = await self._open_log(LogName(*key), topic.topic_id)
            if opened is None:
                return None
            partition = self._partitions[key] = Partition(
                opened.name, topic.topic_id, self._node_id, opened, self._clock, self.lease, self.isr_metrics
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
        self._notify_offline_replicas()

    def _notify_offline_replicas(self) -> None:
        if not self._defers_notification:
            for callback in self.on_offline_replicas_changed:
                callback()

    def _discard(self, key: tuple[str, int]) -> Partition | None:
        self.unopened_logs.pop(key, None)
        self._offline.pop(key, None)
        self._unwritable.pop(key, None)
        self._sorted_partitions = None
        return self._partitions.pop(key, None)

    async def _open_log(self, name: LogName, topic_id: UUID) -> Log | None:
        key = (name.topic, name.partition)
        try:
            opened = await self.store.open(name, topic_id, self._settings.topic(name.topic))
        except StorageError as error:
            # Do not raise the error, because the other partitions must be served even if one log is damaged.
            if str(self.unopened_logs.get(key)) != str(error):
                log.error("partition is offline: its log cannot be opened", partition=str(name), reason=str(error))
            self.unopened_logs[key] = copy_error(error)
            return None
        self.unopened_logs.pop(key, None)
        return opened

    def _partition_deletions(
        self, topics: Sequence[TopicImage]
    ) -> Iterator[Coroutine[object, object, Partition | None]]:
        on_disk = dict(self.store.list_logs()) if topics else {}
        for topic in topics:
            for each in topic.partitions:
                key = (topic.name, each.index)
                if on_disk.get(LogName(*key)) == topic.topic_id:
                    yield self._delete_partition(key)
                elif key not in self._partitions:
                    # If a log of this name exists, it belongs to another topic and must not be deleted.
                    self.unopened_logs.pop(key, None)

    async def _delete_partition(self, key: tuple[str, int]) -> Partition | None:
        partition = self._discard(key)
        if partition is not None:
            await partition.close()
        name = LogName(*key)
        try:
            await self.store.remove(name)
        except StorageError as error:
            # No client can access this log any more. The next start of the broker renames it to a stray log.
            log.error("the log of a deleted partition was not deleted", partition=str(name), reason=str(error))
        return partition

    async def retry_offline_logs(self, *, transient_only: bool = False) -> None:
        """Tries again to open the logs that could not be opened because of a disk error or an unreachable store.

        With `transient_only` it retries only after errors that may have passed, such as a full disk.
        """
        changed_partitions: list[Partition] = []
        for (topic, index), error in list(self.unopened_logs.items()):
            is_disk_error = isinstance(error.__cause__, OSError)
            if not is_transient(error) and (transient_only or not is_disk_error):
                continue
            async with self._change_lock:
                found = self._image.topics.get(topic)
                if found is not None and (topic, index) in self.unopened_logs:
                    opened = await self._apply_partition(found, found.partitions[index])
                    if opened is not None:
                        changed_partitions.append(opened)
        if changed_partitions:
            self._notify_changed(changed_partitions)
            self._notify_offline_replicas()

    def probe_disk_space(self) -> bool:
        """Returns whether the disk has free space. If so, clears the transient errors of all partitions, because a
        partition without appends would not detect that it is writable again."""
        total, usable = self.store.space()
        if usable < min(FREE_BYTES_MIN, total // FREE_FRACTION_MIN):
            return False
        unwritable = sorted(self._unwritable)
        self._defers_notification = True
        for key in unwritable:
            self._partitions[key].guarded_log.clear_transient_error()
        self._defers_notification = False
        if unwritable:
            self._notify_offline_replicas()
        return True

    def _configure(self, delta: MetadataDelta) -> None:
        is_broker_change = any(resource.type != TOPIC_RESOURCE for resource in delta.configs_changed)
        topics = {resource.name for resource in delta.configs_changed if resource.type == TOPIC_RESOURCE}
        if not is_broker_change and not topics:
            return
        for partition in self:
            if is_broker_change or partition.name.topic in topics:
                partition.configure(self._settings.topic(partition.name.topic))

    async def checkpoint_high_watermarks(self) -> None:
        """Checkpoints the high watermarks, so that consumers can read committed records right after a restart."""
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
            log.warning("high watermarks were not checkpointed", reason=str(error))


async def _run_concurrently(work: Iterable[Coroutine[object, object, Partition | None]]) -> list[Partition]:
    """Runs the coroutines, up to CONCURRENT_LOGS_MAX at a time. Returns the partitions that they changed."""
    changed = []
    pending = iter(work)
    while batch := list(itertools.islice(pending, CONCURRENT_LOGS_MAX)):
        for outcome in await asyncio.gather(*batch, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome
            if outcome is not None:
                changed.append(outcome)
    return changed
