"""What must hold inside a cluster at every moment, whatever clients see: looked at between callbacks, as cheaply as can
be, while the cluster runs.

One leader per epoch, of the metadata quorum and of each partition; epochs and high watermarks never fall; who leads has
all that is committed, and so has every replica in sync.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from uuid import UUID

from moldau.metadata.image import MetadataImage, PartitionRegistration
from moldau.testing.simulation.checkers.history import Partition
from moldau.testing.simulation.scenarios.server import ServerHost

ITERATIONS_PER_CHECK = 12
VIOLATIONS_MAX = 5
COMPARED_RECORDS_MAX = 200
"""How far back committed records are compared when a high watermark has jumped."""

Key = tuple[UUID, int]
"""A partition for good: a topic that is made anew has another id."""


class _ReplicaObservation:
    """What was last seen of one replica in one life of its node."""

    __slots__ = ("end", "epoch", "high_watermark", "is_leader")

    def __init__(self) -> None:
        self.epoch = -1
        self.high_watermark = 0
        self.end = 0
        self.is_leader = False


class _NodeObservation:
    """What was last seen of one life of one node."""

    def __init__(self, node: Any) -> None:
        self.node = node
        self.image: MetadataImage | None = None
        self.quorum_epoch = -1
        self.quorum_high_watermark = 0
        self.replicas: dict[Any, _ReplicaObservation] = {}


class InvariantChecker:
    def __init__(
        self,
        servers: Sequence[ServerHost],
        report: Callable[[str], None],
        counts: Counter[str],
        lossy_topics: Mapping[str, str],
        trace: Callable[..., None],
    ) -> None:
        """`lossy_topics` topics may lose what was committed; `trace` takes what belongs into the story of the run."""
        self._servers = servers
        self._report = report
        self._counts = counts
        self._lossy_topics = lossy_topics
        self._trace = trace
        self._iterations = 0
        self._violations = 0
        self._observations: dict[str, _NodeObservation] = {}
        self._quorum_leaders: dict[int, int] = {}
        """Who led the metadata quorum, by epoch."""
        self._leaders: dict[tuple[Key, int], int] = {}
        """Who led a partition, by epoch."""
        self._committed: dict[Key, dict[int, int]] = {}
        """The highest high watermark in each epoch."""
        self._epochs: dict[object, dict[int, int]] = {}
        """The leader epochs of records that were committed, by log and offset."""
        self._metadata_committed = 0
        self._led_quorum: dict[str, int] = {}
        """The last epoch in which each node led the metadata quorum; no restart may take it back."""
        self._newest_image: MetadataImage | None = None
        self._votes: dict[tuple[int, int], int] = {}
        """Whom each node has voted for in each epoch, as candidates were told."""

    # What is asked of it

    def leaders(self) -> list[int]:
        """The ids of those who lead the quorum or a partition, as the newest image says."""
        image = self._newest_image
        if image is None:
            return []
        found = {image.controller_id: None}
        for topic in image.topics.values():
            for partition in topic.partitions:
                found[partition.leader] = None
        return [node_id for node_id in found if node_id > 0]

    def controller(self) -> int:
        return -1 if self._newest_image is None else self._newest_image.controller_id

    def isr_of(self, topic: str) -> list[int]:
        image = self._newest_image
        found = None if image is None else image.partition(topic, 0)
        if found is None or found.leader not in found.isr:
            return []
        return [found.leader, *(each for each in found.isr if each != found.leader)]

    def leader_of(self, partition: Partition) -> int:
        image = self._newest_image
        found = None if image is None else image.partition(*partition)
        return -1 if found is None else found.leader

    def is_fully_replicated(self) -> bool:
        """Whether all nodes serve and agree that every replica is in sync."""
        images = [self._image_of(server) for server in self._servers]
        if any(image is None or image.offset != images[0].offset for image in images):  # type: ignore[union-attr]
            return False
        image = images[0]
        assert image is not None
        return all(
            sorted(partition.isr) == sorted(partition.replicas) and not partition.is_reassigning
            for topic in image.topics.values()
            for partition in topic.partitions
        )

    def is_converged(self) -> bool:
        """Whether all replicas of all partitions end at the same offset, which is committed."""
        ends: dict[Key, set[int]] = {}
        for server in self._servers:
            for partition in _partitions(server.node):
                key = partition.topic_id, partition.name.partition
                ends.setdefault(key, set()).add(partition.log.end_offset)
                if partition.is_leader:
                    ends[key].add(partition.high_watermark)
        return all(len(each) == 1 for each in ends.values())

    def replica(self, node_id: int, partition: Partition) -> Any:
        """The partition's object on a node, or None."""
        node: Any = next(server.node for server in self._servers if server.node_id == node_id)
        table = getattr(node, "_partitions", None)
        return None if table is None else table._partitions.get(partition)

    # What is seen to happen

    def on_vote_granted(self, node_id: int, epoch: int, candidate: int) -> None:
        """A candidate has a vote."""
        if self._votes.setdefault((node_id, epoch), candidate) != candidate:
            both = f"{self._votes[node_id, epoch]} and {candidate}"
            self._report_violation(f"node {node_id} voted for nodes {both} in epoch {epoch}")

    def on_acknowledged(self, node_id: int, partition: str) -> None:
        """A node lets an acknowledgement of acks=all go, just now."""
        server = next(each for each in self._servers if each.node_id == node_id)
        lease = getattr(getattr(server.node, "_lifecycle", None), "lease", None)
        if lease is not None and lease.expires_ms <= server.host.clock.monotonic_ms():
            self._report_violation(f"{server.name} acknowledges records of {partition} without a lease")

    def _check_lease(self, before: MetadataImage, after: MetadataImage) -> None:
        """Who is fenced has no lease any more: others may lead in its place from now on."""
        for server in self._servers:
            earlier, later = before.brokers.get(server.node_id), after.brokers.get(server.node_id)
            lifecycle = getattr(server.node, "_lifecycle", None)
            if earlier is None or later is None or lifecycle is None or not server.host.is_up:
                continue
            if server.is_stopping:
                continue
            if later.epoch != earlier.epoch or later.epoch != lifecycle.broker_epoch:
                continue
            now_ms = server.host.clock.monotonic_ms()
            if later.fenced and not earlier.fenced and lifecycle.lease.expires_ms > now_ms:
                left_ms = lifecycle.lease.expires_ms - now_ms
                self._report_violation(f"{server.name} is fenced {left_ms} ms before its lease ends")

    # Looking

    def on_iteration(self) -> None:
        self._iterations += 1
        if self._iterations % ITERATIONS_PER_CHECK == 0 and self._violations < VIOLATIONS_MAX:
            self.check()

    def check(self) -> None:
        for server in self._servers:
            node = server.node
            if node is None or not server.host.is_up:
                self._observations.pop(server.name, None)
                continue
            observation = self._observations.get(server.name)
            if observation is None or observation.node is not node:
                observation = self._observations[server.name] = _NodeObservation(node)
            self._check_quorum(server, observation)
            self._check_image(server, observation)
            self._check_replicas(server, observation)

    def _check_quorum(self, server: ServerHost, observation: _NodeObservation) -> None:
        quorum = getattr(observation.node, "_quorum", None)
        if quorum is None:
            return
        epoch, high_watermark = quorum.epoch, quorum.high_watermark
        if epoch < max(
            observation.quorum_epoch, self._led_quorum.get(server.name, -1) if server.is_serving else -1
        ):
            self._report_violation(f"the quorum epoch of {server.name} fell to {epoch}")
        if high_watermark < observation.quorum_high_watermark:
            fell = f"{observation.quorum_high_watermark} to {high_watermark}"
            self._report_violation(f"the metadata's high watermark of {server.name} fell from {fell}")
        if high_watermark > observation.quorum_high_watermark:
            log, before = quorum._log, observation.quorum_high_watermark
            self._compare_committed(server, "metadata", "the metadata", log, before, high_watermark)
        is_new = quorum.is_leader and epoch != observation.quorum_epoch
        observation.quorum_epoch, observation.quorum_high_watermark = epoch, high_watermark
        if high_watermark > self._metadata_committed:
            self._metadata_committed = high_watermark
        if quorum.is_leader:
            self._led_quorum[server.name] = epoch
            if epoch not in self._quorum_leaders:
                self._counts["quorum elections"] += 1
                self._trace("leads", server.name, "metadata", epoch)
        if quorum.is_leader and self._quorum_leaders.setdefault(epoch, server.node_id) != server.node_id:
            both = f"{self._quorum_leaders[epoch]} and {server.node_id}"
            self._report_violation(f"nodes {both} both lead the metadata quorum in epoch {epoch}")
        if is_new and quorum._log.end_offset < self._metadata_committed:
            ends = f"{quorum._log.end_offset}, and {self._metadata_committed} is committed"
            self._report_violation(
                f"{server.name} leads the metadata quorum in epoch {epoch} with a log that ends at {ends}"
            )

    def _check_image(self, server: ServerHost, observation: _NodeObservation) -> None:
        image = self._image_of(server)
        if image is None or image is observation.image:
            return
        before, observation.image = observation.image, image
        newest = self._newest_image
        if newest is None or image.offset > newest.offset:
            self._newest_image = image
            self._on_image_changed(newest, image)
        if before is not None and image.offset < before.offset:
            self._report_violation(
                f"the metadata of {server.name} went back from {before.offset} to {image.offset}"
            )
        for name, topic in image.topics.items():
            old = None if before is None else before.topics.get(name)
            if old is topic:
                continue
            for partition in topic.partitions:
                key = (topic.topic_id, partition.index), partition.leader_epoch
                if self._leaders.setdefault(key, partition.leader) != partition.leader:
                    # Nobody leading is no second leader: an epoch may end without a new one.
                    if -1 in (partition.leader, self._leaders[key]):
                        self._leaders[key] = max(partition.leader, self._leaders[key])
                    else:
                        both = f"{self._leaders[key]} and {partition.leader}"
                        self._report_violation(
                            f"nodes {both} both lead {name}-{partition.index} in epoch {partition.leader_epoch}"
                        )

    def _on_image_changed(self, before: MetadataImage | None, after: MetadataImage) -> None:
        if before is None:
            return
        if before.brokers is not after.brokers:
            self._check_lease(before, after)
        for name, topic in after.topics.items():
            old = before.topics.get(name)
            if old is None or old is topic or old.topic_id != topic.topic_id:
                continue
            for earlier, later in zip(old.partitions, topic.partitions, strict=False):
                if later.leader_epoch > earlier.leader_epoch and later.leader >= 0:
                    self._counts["elections"] += 1
                if later.leader_epoch > earlier.leader_epoch:
                    self._trace("elected", later.leader, f"{name}-{later.index}", later.leader_epoch)
                if later.isr != earlier.isr:
                    self._on_isr_changed(name, later)
                    self._trace("in-sync", f"{name}-{later.index}", ",".join(map(str, later.isr)))
                if len(later.isr) < len(earlier.isr):
                    self._counts["in-sync shrinks"] += 1

    def _on_isr_changed(self, topic: str, image: PartitionRegistration) -> None:
        if topic in self._lossy_topics or image.leader < 0:
            return
        server = self._servers[image.leader - 1]
        leader = self.replica(image.leader, (topic, image.index))
        if leader is not None and leader.is_leader and leader.leader_epoch == image.leader_epoch:
            self._check_isr(server, leader, leader.high_watermark)

    def _check_replicas(self, server: ServerHost, observation: _NodeObservation) -> None:
        for partition in _partitions(observation.node):
            seen = observation.replicas.get(partition)
            if seen is None:
                seen = observation.replicas[partition] = _ReplicaObservation()
            end = partition.log.end_offset
            if end < seen.end:
                self._counts["truncations"] += 1
                self._trace("truncated", server.name, str(partition.name), end)
            seen.end = end
            if partition.is_leader:
                self._check_leader(server, partition, seen)
            else:
                seen.is_leader = False
            high_watermark = partition.high_watermark
            if high_watermark != seen.high_watermark:
                self._on_high_watermark_changed(server, partition, seen.high_watermark, high_watermark)
                seen.high_watermark = high_watermark

    def _check_leader(self, server: ServerHost, partition: Any, seen: _ReplicaObservation) -> None:
        name, epoch = partition.name, partition.leader_epoch
        if seen.is_leader and epoch == seen.epoch:
            return
        if seen.is_leader and epoch < seen.epoch:
            self._report_violation(f"the epoch of {name} on {server.name} fell from {seen.epoch} to {epoch}")
        seen.is_leader, seen.epoch = True, epoch
        key = partition.topic_id, name.partition
        if self._leaders.setdefault((key, epoch), server.node_id) not in (server.node_id, -1):
            both = f"{self._leaders[key, epoch]} and {server.node_id}"
            self._report_violation(f"nodes {both} both lead {name} in epoch {epoch}")
        committed = self._committed_up_to(key, epoch)
        if name.topic not in self._lossy_topics and seen.end < committed:
            ends = f"{seen.end}, and {committed} is committed"
            self._report_violation(
                f"{server.name} leads {name} in epoch {epoch} with a log that ends at {ends}"
            )

    def _on_high_watermark_changed(self, server: ServerHost, partition: Any, before: int, after: int) -> None:
        name = partition.name
        if name.topic not in self._lossy_topics:
            if after < before:
                self._report_violation(
                    f"the high watermark of {name} on {server.name} fell from {before} to {after}"
                )
            if partition.is_leader:
                self._check_isr(server, partition, after)
            if "compact" not in partition.log.settings.cleanup_policy:
                # The first record of an epoch may be compacted away before another replica hears of the epoch.
                key = partition.topic_id, name.partition
                self._compare_committed(server, key, str(name), partition.log, before, after)
        if partition.is_leader:
            committed = self._committed.setdefault((partition.topic_id, name.partition), {})
            committed[partition.leader_epoch] = after

    def _compare_committed(
        self, server: ServerHost, key: object, name: str, log: Any, before: int, after: int
    ) -> None:
        """Two logs are the same up to their high watermarks: records of one offset are of one epoch."""
        committed = self._epochs.setdefault(key, {})
        for offset in range(max(before, after - COMPARED_RECORDS_MAX), after):
            if offset == after - 1 or offset in committed:
                epoch = _epoch_at(log, offset)
                if epoch >= 0 and committed.setdefault(offset, epoch) != epoch:
                    both = f"{committed[offset]} and on {server.name} of epoch {epoch}"
                    self._report_violation(f"{name}: what is committed at {offset} was of epoch {both}")
                    return

    def _committed_up_to(self, key: Key, epoch: int) -> int:
        """What was committed up to an epoch. A leader of the past does not know what came later."""
        return max((end for each, end in self._committed.get(key, {}).items() if each <= epoch), default=0)

    def _check_isr(self, server: ServerHost, partition: Any, high_watermark: int) -> None:
        """The committed prefix is on every replica in sync, and safe there: on those that the leader counts, and on
        those that the controller would elect."""
        topic = partition.name.topic
        is_cached = partition.log.settings.write_caching
        state = partition.leader.state
        isr = dict.fromkeys(state.maximal_isr())
        newest = None if self._newest_image is None else self._newest_image.partition(*partition.name)
        if (
            newest is not None
            and (newest.leader, newest.leader_epoch) == (server.node_id, partition.leader_epoch)
            # A node's parts know of a change a moment before its image shows it.
            and newest.partition_epoch >= state.image.partition_epoch
        ):
            isr |= dict.fromkeys(newest.isr)
        for node_id in isr:
            other = self.replica(node_id, (topic, partition.name.partition))
            if other is None or other.topic_id != partition.topic_id:
                continue
            if is_cached and (not self.is_registered(node_id) or _has_left_isr(node_id, newest, state.image)):
                # It has lost what was not synced, and the cluster, or the leader, is about to hear of it.
                continue
            has = other.log.end_offset if is_cached else other.log.durable_offset
            if has < high_watermark:
                self._report_violation(
                    f"{partition.name}: node {node_id} is in sync for {server.name} and has {has} of "
                    f"{high_watermark} that are committed"
                )

    def is_registered(self, node_id: int) -> bool:
        node: Any = self._servers[node_id - 1].node
        lifecycle = getattr(node, "_lifecycle", None)
        broker = None if self._newest_image is None else self._newest_image.brokers.get(node_id)
        return lifecycle is not None and broker is not None and lifecycle.broker_epoch == broker.epoch

    def _image_of(self, server: ServerHost) -> MetadataImage | None:
        metadata = getattr(server.node, "_metadata", None)
        return None if metadata is None else metadata.image

    def _report_violation(self, what: str) -> None:
        self._violations += 1
        self._trace("violated", what)
        self._report(f"invariant: {what}")


def _partitions(node: Any) -> Sequence[Any]:
    table = getattr(node, "_partitions", None)
    return () if table is None else list(table._partitions.values())


def _epoch_at(log: Any, offset: int) -> int:
    """The leader epoch of the record at an offset; -1 where the log does not know."""
    found = -1
    if offset < log.start_offset:
        return found
    for epoch, start in log.epochs:
        if start > offset:
            break
        found = epoch
    return int(found)


def _has_left_isr(node_id: int, newest: PartitionRegistration | None, known: PartitionRegistration) -> bool:
    """Whether a replica is in sync no more, and who knows this state has not heard of it yet."""
    return newest is not None and newest.partition_epoch > known.partition_epoch and node_id not in newest.isr
