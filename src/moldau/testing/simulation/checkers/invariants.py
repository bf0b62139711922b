"""Invariants inside a running cluster, checked between iterations of the event loop.

There is one leader per epoch of the metadata quorum and of each partition. Epochs and high watermarks never decrease.
Leaders and in-sync replicas have all committed records.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from moldau.logs.store import Log
from moldau.metadata.image import EMPTY_IMAGE, MetadataImage, PartitionRegistration
from moldau.partitions.partition import Partition
from moldau.server.api import Broker
from moldau.testing.simulation.scenarios.server import ServerHost

ITERATIONS_PER_CHECK = 12
VIOLATIONS_MAX = 5
COMPARED_RECORDS_MAX = 200
"""The maximum number of records that are compared when the high watermark rises."""

Key = tuple[UUID, int]
"""The topic id and the partition. The name is not enough, because a topic may be deleted and created again."""


@dataclass(eq=False, slots=True)
class _ReplicaObservation:
    """Last observed state of a replica in one incarnation of its node."""

    epoch: int = -1
    high_watermark: int = 0
    end: int = 0
    is_leader: bool = False
    last_stable_offset: int = 0


@dataclass(eq=False)
class _NodeObservation:
    """Last observed state of one incarnation of a node."""

    broker: Broker
    callbacks: int = -1
    """The callbacks that had run on the host. Nothing can have changed until another one has run."""
    image: MetadataImage = EMPTY_IMAGE
    quorum_epoch: int = -1
    quorum_high_watermark: int = 0
    replicas: dict[Partition, _ReplicaObservation] = field(default_factory=dict)


@dataclass(eq=False)
class InvariantChecker:
    servers: Sequence[ServerHost]
    report: Callable[[str], None]
    counts: Counter[str]
    lossy_topics: Mapping[str, str]
    """Topics that may lose committed records, with the reason."""
    trace: Callable[..., None]
    _iterations: int = field(default=0, init=False)
    _violations: int = field(default=0, init=False)
    _observations: dict[str, _NodeObservation] = field(default_factory=dict, init=False)
    _quorum_leaders: dict[int, int] = field(default_factory=dict, init=False)
    """The leader of the metadata quorum by epoch."""
    _leaders: dict[tuple[Key, int], int] = field(default_factory=dict, init=False)
    """The leader by partition and leader epoch. -1 if the epoch has no leader."""
    _committed: dict[Key, dict[int, int]] = field(default_factory=dict, init=False)
    """The latest high watermark of the leader, by partition and leader epoch."""
    _epochs: dict[object, dict[int, int]] = field(default_factory=dict, init=False)
    """Leader epochs of committed records, by log and offset."""
    _metadata_committed: int = field(default=0, init=False)
    _led_quorum: dict[str, int] = field(default_factory=dict, init=False)
    """The last epoch in which each node led the metadata quorum. A node must remember this epoch after a restart."""
    _newest_image: MetadataImage = field(default=EMPTY_IMAGE, init=False)
    _votes: dict[tuple[int, int], int] = field(default_factory=dict, init=False)
    """The candidate that each node has voted for, by node id and epoch."""

    # Queries

    def leaders(self) -> list[int]:
        """Returns the ids of the controller and of all partition leaders in the newest image."""
        image = self._newest_image
        found = dict.fromkeys(
            [image.controller_id, *(each.leader for topic in image.topics.values() for each in topic.partitions)]
        )
        return [node_id for node_id in found if node_id > 0]

    def controller(self) -> int:
        return self._newest_image.controller_id

    def isr_of(self, topic: str) -> list[int]:
        """Returns the ISR of the topic's first partition. The leader is the first element."""
        found = self._newest_image.partition(topic, 0)
        if found is None or found.leader not in found.isr:
            return []
        return [found.leader, *(each for each in found.isr if each != found.leader)]

    def leader_of(self, partition: tuple[str, int]) -> int:
        found = self._newest_image.partition(*partition)
        return -1 if found is None else found.leader

    def is_led_by_controller(self, partition: tuple[str, int]) -> bool:
        """Returns whether the active controller leads the partition, or has no replica of it."""
        image = self._newest_image
        found = image.partition(*partition)
        return found is not None and (found.leader == image.controller_id or image.controller_id not in found.replicas)

    def is_fully_replicated(self) -> bool:
        """Returns whether all nodes have the same image and every replica is in sync."""
        images = [server.broker.metadata.image for server in self.servers if server.broker is not None]
        if len(images) < len(self.servers) or len({image.offset for image in images}) > 1:
            return False
        return all(
            sorted(partition.isr) == sorted(partition.replicas) and not partition.is_reassigning
            for topic in images[0].topics.values()
            for partition in topic.partitions
        )

    def is_converged(self) -> bool:
        """Returns whether the logs of each partition all end at the leader's high watermark."""
        ends: dict[Key, set[int]] = {}
        for server in self.servers:
            for partition in _partitions(server.broker):
                found = ends.setdefault(_key(partition), set())
                found.add(partition.log.end_offset)
                if partition.is_leader:
                    found.add(partition.high_watermark)
        return all(len(each) == 1 for each in ends.values())

    def unstable_partitions(self) -> list[str]:
        """Returns the partitions in which a transaction holds back the last stable offset."""
        return [
            f"{partition.name} at {partition.last_stable_offset} of {partition.high_watermark}"
            for server in self.servers
            for partition in _partitions(server.broker)
            if partition.is_leader and partition.last_stable_offset < partition.high_watermark
        ]

    def unfinished_transactions(self) -> list[str]:
        """Returns the transactions that are ongoing, or whose markers are not written to all partitions."""
        return [
            f"{transactional_id!r} on {server.name}: {metadata}"
            for server in self.servers
            if server.broker is not None
            for shard in server.broker.transactions._shards.shards
            if shard.driver.shard is not None
            for transactional_id, metadata in shard.driver.shard._transactions.items()
            if not metadata.is_idle
        ]

    def replica(self, node_id: int, partition: tuple[str, int]) -> Partition | None:
        """Returns the replica of a partition on a node, or None if the node has no such replica."""
        broker = self._server(node_id).broker
        return None if broker is None else broker.replica_manager._partitions.get(partition)

    def is_registered(self, node_id: int) -> bool:
        """Returns whether the registration of the broker in the newest image is that of its running incarnation."""
        broker, registration = self._server(node_id).broker, self._newest_image.brokers.get(node_id)
        return broker is not None and registration is not None and broker.lifecycle.broker_epoch == registration.epoch

    def _server(self, node_id: int) -> ServerHost:
        return self.servers[node_id - 1]

    # Events from hooks

    def on_vote_granted(self, node_id: int, epoch: int, candidate: int) -> None:
        """Checks that a node votes for one candidate per epoch."""
        if self._votes.setdefault((node_id, epoch), candidate) != candidate:
            both = f"{self._votes[node_id, epoch]} and {candidate}"
            self._report_violation(f"node {node_id} voted for nodes {both} in epoch {epoch}")

    def on_acknowledged(self, node_id: int, partition: str) -> None:
        """Checks that a node still has its lease when it acknowledges records with acks=all."""
        server = self._server(node_id)
        broker = server.broker
        if broker is not None and broker.lifecycle.lease.expires_ms <= server.host.clock.monotonic_ms():
            self._report_violation(f"{server.name} acknowledges records of {partition} after its lease expired")

    # Checks

    def on_iteration(self) -> None:
        self._iterations += 1
        if self._iterations % ITERATIONS_PER_CHECK == 0 and self._violations < VIOLATIONS_MAX:
            self.check()

    def check(self) -> None:
        for server in self.servers:
            broker = server.broker
            if broker is None:
                self._observations.pop(server.name, None)
                continue
            observation = self._observations.get(server.name)
            if observation is None or observation.broker is not broker:
                observation = self._observations[server.name] = _NodeObservation(broker)
            callbacks = server.host.callbacks
            if callbacks == observation.callbacks:
                continue
            observation.callbacks = callbacks
            self._check_quorum(server, observation)
            self._check_image(server, observation)
            self._check_replicas(server, observation)

    def _check_quorum(self, server: ServerHost, observation: _NodeObservation) -> None:
        quorum = observation.broker.quorum
        epoch, high_watermark, before = quorum.epoch, quorum.high_watermark, observation.quorum_high_watermark
        if epoch < max(observation.quorum_epoch, self._led_quorum.get(server.name, -1) if server.is_serving else -1):
            self._report_violation(f"the quorum epoch of {server.name} fell to {epoch}")
        if high_watermark < before:
            self._report_violation(
                f"the metadata high watermark of {server.name} fell from {before} to {high_watermark}"
            )
        elif high_watermark > before:
            self._compare_committed(server, "metadata", "the metadata", quorum._log, before, high_watermark)
        is_new = quorum.is_leader and epoch != observation.quorum_epoch
        observation.quorum_epoch, observation.quorum_high_watermark = epoch, high_watermark
        self._metadata_committed = max(self._metadata_committed, high_watermark)
        if quorum.is_leader:
            self._led_quorum[server.name] = epoch
            if epoch not in self._quorum_leaders:
                self.counts["quorum elections"] += 1
                self.trace("leads", server.name, "metadata", epoch)
            if self._quorum_leaders.setdefault(epoch, server.node_id) != server.node_id:
                both = f"{self._quorum_leaders[epoch]} and {server.node_id}"
                self._report_violation(f"nodes {both} both lead the metadata quorum in epoch {epoch}")
        if is_new and quorum._log.end_offset < self._metadata_committed:
            ends = f"{quorum._log.end_offset}, and {self._metadata_committed} is committed"
            self._report_violation(
                f"{server.name} leads the metadata quorum in epoch {epoch} with a log that ends at {ends}"
            )

    def _check_image(self, server: ServerHost, observation: _NodeObservation) -> None:
        before, image = observation.image, observation.broker.metadata.image
        if image is before:
            return
        observation.image = image
        newest = self._newest_image
        if image.offset > newest.offset:
            self._newest_image = image
            self._on_image_changed(newest, image)
        if image.offset < before.offset:
            self._report_violation(f"the metadata of {server.name} went back from {before.offset} to {image.offset}")
        for name, topic in image.topics.items():
            if before.topics.get(name) is topic:
                continue
            for partition in topic.partitions:
                key = (topic.topic_id, partition.index), partition.leader_epoch
                known = self._leaders.setdefault(key, partition.leader)
                if -1 in (known, partition.leader):
                    # An image without a leader (-1) does not contradict an image with a leader in the same epoch.
                    self._leaders[key] = max(known, partition.leader)
                elif known != partition.leader:
                    where = f"{name}-{partition.index} in epoch {partition.leader_epoch}"
                    self._report_violation(f"nodes {known} and {partition.leader} both lead {where}")

    def _on_image_changed(self, before: MetadataImage, after: MetadataImage) -> None:
        if before.brokers is not after.brokers:
            self._check_lease(before, after)
        for name, topic in after.topics.items():
            old = before.topics.get(name)
            if old is None or old is topic or old.topic_id != topic.topic_id:
                continue
            for earlier, later in zip(old.partitions, topic.partitions, strict=False):
                if later.leader_epoch > earlier.leader_epoch:
                    if later.leader >= 0:
                        self.counts["elections"] += 1
                    self.trace("elected", later.leader, f"{name}-{later.index}", later.leader_epoch)
                if later.isr != earlier.isr:
                    self._on_isr_changed(name, later)
                    self.trace("in-sync", f"{name}-{later.index}", ",".join(map(str, later.isr)))
                if len(later.isr) < len(earlier.isr):
                    self.counts["in-sync shrinks"] += 1

    def _check_lease(self, before: MetadataImage, after: MetadataImage) -> None:
        """Checks that the lease of a fenced broker has expired, because other brokers may now become leaders."""
        for server in self.servers:
            earlier, later = before.brokers.get(server.node_id), after.brokers.get(server.node_id)
            if earlier is None or later is None or server.broker is None or server.is_stopping:
                continue
            lifecycle = server.broker.lifecycle
            if not later.epoch == earlier.epoch == lifecycle.broker_epoch:
                continue
            remaining_ms = lifecycle.lease.expires_ms - server.host.clock.monotonic_ms()
            if later.fenced and not earlier.fenced and remaining_ms > 0:
                self._report_violation(f"{server.name} is fenced {remaining_ms} ms before its lease expires")

    def _on_isr_changed(self, topic: str, image: PartitionRegistration) -> None:
        if topic in self.lossy_topics or image.leader < 0:
            return
        leader = self.replica(image.leader, (topic, image.index))
        if leader is not None and leader.is_leader and leader.leader_epoch == image.leader_epoch:
            self._check_isr(self._server(image.leader), leader, leader.high_watermark)

    def _check_replicas(self, server: ServerHost, observation: _NodeObservation) -> None:
        for partition in _partitions(observation.broker):
            seen = observation.replicas.get(partition)
            if seen is None:
                seen = observation.replicas[partition] = _ReplicaObservation()
            end = partition.log.end_offset
            if end < seen.end:
                self.counts["truncations"] += 1
                self.trace("truncated", server.name, str(partition.name), end)
            seen.end = end
            high_watermark = partition.high_watermark
            if partition.leader.state is not None:
                self._check_leader(server, partition, seen, high_watermark)
            else:
                seen.is_leader = False
            if high_watermark != seen.high_watermark:
                self._on_high_watermark_changed(server, partition, seen.high_watermark, high_watermark)
                seen.high_watermark = high_watermark

    def _check_leader(
        self, server: ServerHost, partition: Partition, seen: _ReplicaObservation, high_watermark: int
    ) -> None:
        name, epoch = partition.name, partition.leader_epoch
        if name.topic not in self.lossy_topics:
            stable = partition.last_stable_offset
            if stable != seen.last_stable_offset or stable > high_watermark:
                self._check_last_stable_offset(server, partition, seen, stable)
        if seen.is_leader and epoch == seen.epoch:
            return
        if seen.is_leader and epoch < seen.epoch:
            self._report_violation(f"the epoch of {name} on {server.name} fell from {seen.epoch} to {epoch}")
        seen.is_leader, seen.epoch = True, epoch
        key = _key(partition)
        if self._leaders.setdefault((key, epoch), server.node_id) not in (server.node_id, -1):
            both = f"{self._leaders[key, epoch]} and {server.node_id}"
            self._report_violation(f"nodes {both} both lead {name} in epoch {epoch}")
        # Ignore epochs after this leader's epoch, because an old leader does not know what was committed in them.
        committed = max((end for each, end in self._committed.get(key, {}).items() if each <= epoch), default=0)
        if name.topic not in self.lossy_topics and seen.end < committed:
            ends = f"{seen.end}, and {committed} is committed"
            self._report_violation(f"{server.name} leads {name} in epoch {epoch} with a log that ends at {ends}")

    def _check_last_stable_offset(
        self, server: ServerHost, partition: Partition, seen: _ReplicaObservation, stable: int
    ) -> None:
        high_watermark, name = partition.high_watermark, partition.name
        if stable > high_watermark:
            self._report_violation(f"the last stable offset of {name} on {server.name} is {stable} of {high_watermark}")
        # If the high watermark has fallen, that is another violation.
        before = min(seen.last_stable_offset, high_watermark)
        if seen.is_leader and partition.leader_epoch == seen.epoch and stable < before:
            fall = f"from {seen.last_stable_offset} to {stable}"
            self._report_violation(f"the last stable offset of {name} on {server.name} fell {fall}")
        seen.last_stable_offset = stable

    def _on_high_watermark_changed(self, server: ServerHost, partition: Partition, before: int, after: int) -> None:
        name, key = partition.name, _key(partition)
        if name.topic not in self.lossy_topics:
            if after < before:
                self._report_violation(f"the high watermark of {name} on {server.name} fell from {before} to {after}")
            if partition.is_leader:
                self._check_isr(server, partition, after)
            # Skip compacted topics. If the first record of an epoch is compacted before a replica fetches it, the epoch
            # starts later on that replica.
            if "compact" not in partition.log.settings.cleanup_policy:
                self._compare_committed(server, key, str(name), partition.log, before, after)
        if partition.is_leader:
            self._committed.setdefault(key, {})[partition.leader_epoch] = after

    def _compare_committed(self, server: ServerHost, key: object, name: str, log: Log, before: int, after: int) -> None:
        """Checks that a committed record has the same leader epoch in every log."""
        committed = self._epochs.setdefault(key, {})
        for offset in range(max(before, after - COMPARED_RECORDS_MAX), after):
            if offset == after - 1 or offset in committed:
                epoch = _epoch_at(log, offset)
                if epoch >= 0 and committed.setdefault(offset, epoch) != epoch:
                    both = f"{committed[offset]} and on {server.name} epoch {epoch}"
                    self._report_violation(f"{name}: the committed record at {offset} had epoch {both}")
                    return

    def _check_isr(self, server: ServerHost, partition: Partition, high_watermark: int) -> None:
        """Checks that every replica in the ISR of the leader or the controller has the committed records on disk."""
        is_cached = partition.log.settings.write_caching
        state = partition.leader.state
        assert state is not None
        isr = dict.fromkeys(state.maximal_isr())
        newest = self._newest_image.partition(*partition.name)
        if (
            newest is not None
            and (newest.leader, newest.leader_epoch) == (server.node_id, partition.leader_epoch)
            # Ignore an image that is older than the leader's state: a node updates its partitions before its image.
            and newest.partition_epoch >= state.image.partition_epoch
        ):
            isr |= dict.fromkeys(newest.isr)
        for node_id in isr:
            other = self.replica(node_id, partition.name)
            if other is None or other.topic_id != partition.topic_id:
                continue
            if is_cached and (not self.is_registered(node_id) or _has_left_isr(node_id, newest, state.image)):
                # Skip this replica. It may have lost unsynced records in a restart, and the controller or the leader is
                # about to remove it from the ISR.
                continue
            has = other.log.end_offset if is_cached else other.log.durable_offset
            if has < high_watermark:
                self._report_violation(
                    f"{partition.name}: node {node_id} is in the ISR of {server.name} and has {has} of "
                    f"{high_watermark} committed records"
                )

    def _report_violation(self, what: str) -> None:
        self._violations += 1
        self.trace("violated", what)
        self.report(f"invariant: {what}")


def _partitions(broker: Broker | None) -> Iterable[Partition]:
    return () if broker is None else broker.replica_manager._partitions.values()


def _key(partition: Partition) -> Key:
    return partition.topic_id, partition.name.partition


def _epoch_at(log: Log, offset: int) -> int:
    """Returns the leader epoch of the record at an offset, or -1 if the log has no epoch for the offset."""
    if offset < log.start_offset:
        return -1
    return max((epoch for epoch, start in log.epochs if start <= offset), default=-1)


def _has_left_isr(node_id: int, newest: PartitionRegistration | None, known: PartitionRegistration) -> bool:
    """Returns whether a replica has left the ISR in a newer image than `known`."""
    return newest is not None and newest.partition_epoch > known.partition_epoch and node_id not in newest.isr
