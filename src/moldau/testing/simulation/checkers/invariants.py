"""What must hold inside a cluster at every moment, whatever clients see: looked at between callbacks, as cheaply as can
be, while the cluster runs.

One leader per epoch, of the metadata quorum and of each partition; epochs and high watermarks never fall; who leads has
all that is committed, and so has every replica in sync.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from uuid import UUID

from moldau.metadata.image import ClusterImage, PartitionImage
from moldau.testing.simulation.checkers.history import Partition
from moldau.testing.simulation.scenarios.server import Server

TURNS_PER_LOOK = 12
KEEPS_REPORTS = 5
COMPARED_MAX = 200
"""How far back committed records are compared when a high watermark has jumped."""

Key = tuple[UUID, int]
"""A partition for good: a topic that is made anew has another id."""


class _Seen:
    """What was last seen of one replica in one life of its node."""

    __slots__ = ("end", "epoch", "high_watermark", "is_leader")

    def __init__(self) -> None:
        self.epoch = -1
        self.high_watermark = 0
        self.end = 0
        self.is_leader = False


class _View:
    """What was last seen of one life of one node."""

    def __init__(self, node: Any) -> None:
        self.node = node
        self.image: ClusterImage | None = None
        self.quorum_epoch = -1
        self.quorum_high_watermark = 0
        self.replicas: dict[Any, _Seen] = {}


class Invariants:
    def __init__(
        self,
        servers: Sequence[Server],
        report: Callable[[str], None],
        counts: Counter[str],
        lossy: Mapping[str, str],
        note: Callable[..., None],
    ) -> None:
        """`lossy` topics may lose what was committed; `note` takes what belongs into the story of the run."""
        self._servers = servers
        self._report = report
        self._counts = counts
        self._lossy = lossy
        self._note = note
        self._turns = 0
        self._reports = 0
        self._views: dict[str, _View] = {}
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
        self._newest_image: ClusterImage | None = None
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

    def in_sync_of(self, topic: str) -> list[int]:
        image = self._newest_image
        found = None if image is None else image.partition(topic, 0)
        if found is None or found.leader not in found.in_sync:
            return []
        return [found.leader, *(each for each in found.in_sync if each != found.leader)]

    def leader_of(self, partition: Partition) -> int:
        image = self._newest_image
        found = None if image is None else image.partition(*partition)
        return -1 if found is None else found.leader

    def is_whole(self) -> bool:
        """Whether all nodes serve and agree that every replica is in sync."""
        images = [self._image_of(server) for server in self._servers]
        if any(image is None or image.offset != images[0].offset for image in images):  # type: ignore[union-attr]
            return False
        image = images[0]
        assert image is not None
        return all(
            sorted(partition.in_sync) == sorted(partition.replicas) and not partition.is_reassigning
            for topic in image.topics.values()
            for partition in topic.partitions
        )

    def is_at_rest(self) -> bool:
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

    def voted(self, node_id: int, epoch: int, candidate: int) -> None:
        """A candidate has a vote."""
        if self._votes.setdefault((node_id, epoch), candidate) != candidate:
            both = f"{self._votes[node_id, epoch]} and {candidate}"
            self._violated(f"node {node_id} voted for nodes {both} in epoch {epoch}")

    def acknowledged(self, node_id: int, partition: str) -> None:
        """A node lets an acknowledgement of acks=all go, just now."""
        server = next(each for each in self._servers if each.node_id == node_id)
        lease = getattr(getattr(server.node, "_membership", None), "lease", None)
        if lease is not None and lease.ends_ms <= server.host.clock.monotonic_ms():
            self._violated(f"{server.name} acknowledges records of {partition} without a lease")

    def _check_lease(self, before: ClusterImage, after: ClusterImage) -> None:
        """Who is fenced has no lease any more: others may lead in its place from now on."""
        for server in self._servers:
            earlier, later = before.brokers.get(server.node_id), after.brokers.get(server.node_id)
            membership = getattr(server.node, "_membership", None)
            if earlier is None or later is None or membership is None or not server.host.is_up:
                continue
            if server.is_stopping:
                continue
            if later.epoch != earlier.epoch or later.epoch != membership.broker_epoch:
                continue
            now_ms = server.host.clock.monotonic_ms()
            if later.fenced and not earlier.fenced and membership.lease.ends_ms > now_ms:
                left_ms = membership.lease.ends_ms - now_ms
                self._violated(f"{server.name} is fenced {left_ms} ms before its lease ends")

    # Looking

    def on_turn(self) -> None:
        self._turns += 1
        if self._turns % TURNS_PER_LOOK == 0 and self._reports < KEEPS_REPORTS:
            self.look()

    def look(self) -> None:
        for server in self._servers:
            node = server.node
            if node is None or not server.host.is_up:
                self._views.pop(server.name, None)
                continue
            view = self._views.get(server.name)
            if view is None or view.node is not node:
                view = self._views[server.name] = _View(node)
            self._look_at_quorum(server, view)
            self._look_at_image(server, view)
            self._look_at_replicas(server, view)

    def _look_at_quorum(self, server: Server, view: _View) -> None:
        quorum = getattr(view.node, "_quorum", None)
        if quorum is None:
            return
        epoch, high_watermark = quorum.epoch, quorum.high_watermark
        if epoch < max(view.quorum_epoch, self._led_quorum.get(server.name, -1) if server.is_serving else -1):
            self._violated(f"the quorum epoch of {server.name} fell to {epoch}")
        if high_watermark < view.quorum_high_watermark:
            fell = f"{view.quorum_high_watermark} to {high_watermark}"
            self._violated(f"the metadata's high watermark of {server.name} fell from {fell}")
        if high_watermark > view.quorum_high_watermark:
            log, before = quorum._log, view.quorum_high_watermark
            self._compare(server, "metadata", "the metadata", log, before, high_watermark)
        is_new = quorum.is_leader and epoch != view.quorum_epoch
        view.quorum_epoch, view.quorum_high_watermark = epoch, high_watermark
        if high_watermark > self._metadata_committed:
            self._metadata_committed = high_watermark
        if quorum.is_leader:
            self._led_quorum[server.name] = epoch
            if epoch not in self._quorum_leaders:
                self._counts["quorum elections"] += 1
                self._note("leads", server.name, "metadata", epoch)
        if quorum.is_leader and self._quorum_leaders.setdefault(epoch, server.node_id) != server.node_id:
            both = f"{self._quorum_leaders[epoch]} and {server.node_id}"
            self._violated(f"nodes {both} both lead the metadata quorum in epoch {epoch}")
        if is_new and quorum._log.end_offset < self._metadata_committed:
            ends = f"{quorum._log.end_offset}, and {self._metadata_committed} is committed"
            self._violated(
                f"{server.name} leads the metadata quorum in epoch {epoch} with a log that ends at {ends}"
            )

    def _look_at_image(self, server: Server, view: _View) -> None:
        image = self._image_of(server)
        if image is None or image is view.image:
            return
        before, view.image = view.image, image
        newest = self._newest_image
        if newest is None or image.offset > newest.offset:
            self._newest_image = image
            self._image_changed(newest, image)
        if before is not None and image.offset < before.offset:
            self._violated(f"the metadata of {server.name} went back from {before.offset} to {image.offset}")
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
                        self._violated(
                            f"nodes {both} both lead {name}-{partition.index} in epoch {partition.leader_epoch}"
                        )

    def _image_changed(self, before: ClusterImage | None, after: ClusterImage) -> None:
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
                    self._note("elected", later.leader, f"{name}-{later.index}", later.leader_epoch)
                if later.in_sync != earlier.in_sync:
                    self._in_sync_changed(name, later)
                    self._note("in-sync", f"{name}-{later.index}", ",".join(map(str, later.in_sync)))
                if len(later.in_sync) < len(earlier.in_sync):
                    self._counts["in-sync shrinks"] += 1

    def _in_sync_changed(self, topic: str, image: PartitionImage) -> None:
        if topic in self._lossy or image.leader < 0:
            return
        server = self._servers[image.leader - 1]
        leader = self.replica(image.leader, (topic, image.index))
        if leader is not None and leader.is_leader and leader.leader_epoch == image.leader_epoch:
            self._check_in_sync(server, leader, leader.high_watermark)

    def _look_at_replicas(self, server: Server, view: _View) -> None:
        for partition in _partitions(view.node):
            seen = view.replicas.get(partition)
            if seen is None:
                seen = view.replicas[partition] = _Seen()
            end = partition.log.end_offset
            if end < seen.end:
                self._counts["truncations"] += 1
                self._note("truncated", server.name, str(partition.name), end)
            seen.end = end
            if partition.is_leader:
                self._look_at_leader(server, partition, seen)
            else:
                seen.is_leader = False
            high_watermark = partition.high_watermark
            if high_watermark != seen.high_watermark:
                self._high_watermark_moved(server, partition, seen.high_watermark, high_watermark)
                seen.high_watermark = high_watermark

    def _look_at_leader(self, server: Server, partition: Any, seen: _Seen) -> None:
        name, epoch = partition.name, partition.leader_epoch
        if seen.is_leader and epoch == seen.epoch:
            return
        if seen.is_leader and epoch < seen.epoch:
            self._violated(f"the epoch of {name} on {server.name} fell from {seen.epoch} to {epoch}")
        seen.is_leader, seen.epoch = True, epoch
        key = partition.topic_id, name.partition
        if self._leaders.setdefault((key, epoch), server.node_id) not in (server.node_id, -1):
            both = f"{self._leaders[key, epoch]} and {server.node_id}"
            self._violated(f"nodes {both} both lead {name} in epoch {epoch}")
        committed = self._committed_until(key, epoch)
        if name.topic not in self._lossy and seen.end < committed:
            ends = f"{seen.end}, and {committed} is committed"
            self._violated(f"{server.name} leads {name} in epoch {epoch} with a log that ends at {ends}")

    def _high_watermark_moved(self, server: Server, partition: Any, before: int, after: int) -> None:
        name = partition.name
        if name.topic not in self._lossy:
            if after < before:
                self._violated(f"the high watermark of {name} on {server.name} fell from {before} to {after}")
            if partition.is_leader:
                self._check_in_sync(server, partition, after)
            if "compact" not in partition.log.settings.cleanup_policy:
                # The first record of an epoch may be compacted away before another replica hears of the epoch.
                key = partition.topic_id, name.partition
                self._compare(server, key, str(name), partition.log, before, after)
        if partition.is_leader:
            committed = self._committed.setdefault((partition.topic_id, name.partition), {})
            committed[partition.leader_epoch] = after

    def _compare(self, server: Server, key: object, name: str, log: Any, before: int, after: int) -> None:
        """Two logs are the same up to their high watermarks: records of one offset are of one epoch."""
        committed = self._epochs.setdefault(key, {})
        for offset in range(max(before, after - COMPARED_MAX), after):
            if offset == after - 1 or offset in committed:
                epoch = _epoch_at(log, offset)
                if epoch >= 0 and committed.setdefault(offset, epoch) != epoch:
                    both = f"{committed[offset]} and on {server.name} of epoch {epoch}"
                    self._violated(f"{name}: what is committed at {offset} was of epoch {both}")
                    return

    def _committed_until(self, key: Key, epoch: int) -> int:
        """What was committed up to an epoch. A leader of the past does not know what came later."""
        return max((end for each, end in self._committed.get(key, {}).items() if each <= epoch), default=0)

    def _check_in_sync(self, server: Server, partition: Any, high_watermark: int) -> None:
        """The committed prefix is on every replica in sync, and safe there: on those that the leader counts, and on
        those that the controller would elect."""
        topic = partition.name.topic
        is_cached = partition.log.settings.write_caching
        state = partition._leader
        in_sync = dict.fromkeys(state.maximal_in_sync())
        newest = None if self._newest_image is None else self._newest_image.partition(*partition.name)
        if (
            newest is not None
            and (newest.leader, newest.leader_epoch) == (server.node_id, partition.leader_epoch)
            # A node's parts know of a change a moment before its image shows it.
            and newest.partition_epoch >= state.image.partition_epoch
        ):
            in_sync |= dict.fromkeys(newest.in_sync)
        for node_id in in_sync:
            other = self.replica(node_id, (topic, partition.name.partition))
            if other is None or other.topic_id != partition.topic_id:
                continue
            if is_cached and (not self.is_registered(node_id) or _is_dropped(node_id, newest, state.image)):
                # It has lost what was not synced, and the cluster, or the leader, is about to hear of it.
                continue
            has = other.log.end_offset if is_cached else other.log.durable_offset
            if has < high_watermark:
                self._violated(
                    f"{partition.name}: node {node_id} is in sync for {server.name} and has {has} of "
                    f"{high_watermark} that are committed"
                )

    def is_registered(self, node_id: int) -> bool:
        node: Any = self._servers[node_id - 1].node
        membership = getattr(node, "_membership", None)
        broker = None if self._newest_image is None else self._newest_image.brokers.get(node_id)
        return membership is not None and broker is not None and membership.broker_epoch == broker.epoch

    def _image_of(self, server: Server) -> ClusterImage | None:
        metadata = getattr(server.node, "_metadata", None)
        return None if metadata is None else metadata.image

    def _violated(self, what: str) -> None:
        self._reports += 1
        self._note("violated", what)
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


def _is_dropped(node_id: int, newest: PartitionImage | None, known: PartitionImage) -> bool:
    """Whether a replica is in sync no more, and who knows this state has not heard of it yet."""
    return (
        newest is not None
        and newest.partition_epoch > known.partition_epoch
        and node_id not in newest.in_sync
    )
