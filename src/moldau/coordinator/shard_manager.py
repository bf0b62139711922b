"""The shards of one coordinator on this node: one for each partition of its state topic that this node leads."""

import asyncio
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from moldau.coordinator.java_hash import partition_for
from moldau.coordinator.shard_driver import ShardDriver
from moldau.errors import CoordinatorLoadInProgressError, NotCoordinatorError
from moldau.metadata.image import EMPTY_IMAGE, MetadataDelta, MetadataImage, PartitionRegistration
from moldau.observe.logging import get_logger
from moldau.partitions.partition import Partition
from moldau.partitions.replica_manager import ReplicaManager
from moldau.platform.clock import Clock

log = get_logger(__name__)

LOAD_RETRY_BACKOFF_S = 5.0
"""Backoff after a transient error while a shard is loaded."""


class Shard(Protocol):
    """A shard with the parts that only its coordinator knows."""

    @property
    def driver(self) -> ShardDriver[Any, Any]: ...


H = TypeVar("H", bound=Shard)


class ShardManager(Generic[H]):
    def __init__(
        self,
        node_id: int,
        topic: str,
        partitions: ReplicaManager,
        clock: Clock,
        *,
        contents: str,
        create: Callable[[Partition, H | None], H],
        new_state: Callable[[], Any],
        load_buffer_size: int,
    ) -> None:
        """`create` makes the shard of a partition; its second argument is the shard of the previous leader epoch, if
        this node has just unloaded it. `new_state` makes the empty state of a shard. `contents` says in log lines what
        shards have, for example "groups"."""
        self.image = EMPTY_IMAGE
        self._node_id = node_id
        self._topic = topic
        self._partitions = partitions
        self._clock = clock
        self._contents = contents
        self._create = create
        self._new_state = new_state
        self._load_buffer_size = load_buffer_size
        self._shards: dict[int, H] = {}
        self._closing_drivers: dict[ShardDriver[Any, Any], asyncio.Task[None]] = {}
        """The tasks that close unloaded shards. Such a shard may still be appending."""
        self._load_tasks: dict[ShardDriver[Any, Any], asyncio.Task[None]] = {}
        self._load_lock = asyncio.Lock()
        """Held while a partition is loaded. Partitions are loaded one at a time, so that requests are still served."""
        self._load_start_ms = 0
        self._is_closed = False
        self._past_unexpected_errors = 0

    # Lookup

    @property
    def shards(self) -> list[H]:
        """All shards, in the order of their partitions."""
        return [self._shards[index] for index in sorted(self._shards)]

    @property
    def active_shards(self) -> list[H]:
        """The shards that serve requests. Raises CoordinatorLoadInProgressError if any shard is loading."""
        if any(shard.driver.is_loading for shard in self._shards.values()):
            raise CoordinatorLoadInProgressError(f"{self._contents} are loading")
        return [shard for shard in self.shards if shard.driver.is_active]

    def shard_of(self, key: str) -> H:
        """Returns the shard of a group id or transactional id. Raises NotCoordinatorError."""
        topic = self.image.topics.get(self._topic)
        shard = None if topic is None else self._shards.get(partition_for(key, len(topic.partitions)))
        if shard is None:
            raise NotCoordinatorError(f"this node does not coordinate {key!r}")
        return shard

    def shard_of_partition(self, index: int) -> H:
        """Returns the shard of a partition of the state topic. Raises NotCoordinatorError."""
        shard = self._shards.get(index)
        if shard is None:
            raise NotCoordinatorError(f"this node does not coordinate the {self._contents} of {self._topic}-{index}")
        return shard

    @property
    def unexpected_errors(self) -> int:
        """The number of background operations that failed with an unexpected exception."""
        drivers = [shard.driver for shard in self._shards.values()]
        return self._past_unexpected_errors + sum(each.unexpected_errors for each in (*drivers, *self._closing_drivers))

    # Metadata changes

    def publish(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Loads the shards of partitions that this node leads now, and unloads all other shards."""
        self.image = image
        if self._is_closed:
            return
        for topic in delta.topics_deleted:
            if topic.name == self._topic:
                for index in list(self._shards):
                    self._on_resignation(index)
        for name, index in delta.partitions_changed:
            partition = image.partition(name, index)
            if name == self._topic and partition is not None:
                self._on_partition_changed(partition)

    def retry_unopened(self) -> None:
        """Tries again to load shards whose log could not be opened, for lack of disk space or file descriptors."""
        topic = self.image.topics.get(self._topic)
        for partition in topic.partitions if topic is not None else ():
            if partition.index not in self._shards:
                self._on_partition_changed(partition)

    def _on_partition_changed(self, image: PartitionRegistration) -> None:
        shard = self._shards.get(image.index)
        partition = None
        if image.leader == self._node_id and (self._topic, image.index) not in self._partitions.unopened_logs:
            partition = self._partitions.get(self._topic, image.index)
        if shard is not None:
            if partition is shard.driver.partition and partition.leader_epoch == shard.driver.leader_epoch:
                return
            # This node no longer leads the partition, or leads it in a new epoch. Before the new epoch, another broker
            # may have written to the partition, so the shard must be loaded again.
            self._on_resignation(image.index)
        if partition is not None and partition.is_leader:
            self._on_election(image.index, partition, shard)

    def _on_election(self, index: int, partition: Partition, previous: H | None) -> None:
        shard = self._shards[index] = self._create(partition, previous)
        driver = shard.driver
        if driver.is_empty and not any(each.partition is partition for each in self._closing_drivers):
            driver.activate(self._new_state(), partition.log.end_offset)
            return
        if not self._load_tasks:
            self._load_start_ms = self._clock.monotonic_ms()
        self._load_tasks[driver] = asyncio.get_running_loop().create_task(self._load(driver))

    def _on_resignation(self, index: int) -> None:
        driver = self._shards.pop(index).driver
        loading = self._load_tasks.pop(driver, None)
        if loading is not None:
            loading.cancel()
        driver.unload(NotCoordinatorError(f"this node does not coordinate {driver.partition.name} any more"))
        self._closing_drivers[driver] = asyncio.get_running_loop().create_task(self._close(driver, loading))

    async def _load(self, driver: ShardDriver[Any, Any]) -> None:
        try:
            for closing, task in list(self._closing_drivers.items()):
                if closing.partition is driver.partition:
                    # Appends of the previous leader epoch must be in the log before the log is loaded.
                    await asyncio.wait([task])
            while driver.is_loading:
                await driver.load(self._new_state(), self._load_buffer_size, self._load_lock)
                if driver.is_loading:
                    await asyncio.sleep(LOAD_RETRY_BACKOFF_S)
        except Exception:
            self._log_unexpected_error(f"loading {self._contents} failed unexpectedly", driver)
        finally:
            self._load_tasks.pop(driver, None)
        if not self._load_tasks:
            log.info(f"loaded {self._contents}", took_ms=self._clock.monotonic_ms() - self._load_start_ms)

    async def _close(self, driver: ShardDriver[Any, Any], loading: "asyncio.Task[None] | None") -> None:
        if loading is not None:
            await asyncio.gather(loading, return_exceptions=True)
        try:
            await driver.close()
        except Exception:
            self._log_unexpected_error(f"unloading {self._contents} failed unexpectedly", driver)
        finally:
            del self._closing_drivers[driver]
            self._past_unexpected_errors += driver.unexpected_errors

    def _log_unexpected_error(self, message: str, driver: ShardDriver[Any, Any]) -> None:
        self._past_unexpected_errors += 1
        log.exception(message, partition=str(driver.partition.name))

    # Shutdown

    def stop(self) -> None:
        """Unloads all shards, which fails pending requests with NOT_COORDINATOR."""
        self._is_closed = True
        for index in list(self._shards):
            self._on_resignation(index)

    async def close(self) -> None:
        """Unloads all shards and waits until no append is in progress."""
        self.stop()
        await asyncio.gather(*self._closing_drivers.values())
