"""The invariant checker finds double leaders, decreasing epochs and watermarks, incomplete in-sync replicas, double
votes and expired leases."""

from collections import Counter
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from moldau.logs.store import LogName
from moldau.metadata.image import BrokerRegistration, MetadataImage, PartitionRegistration, TopicImage
from moldau.testing.simulation.checkers.invariants import InvariantChecker

TOPIC_ID = UUID(int=7)


class FakeLog:
    def __init__(self, end: int) -> None:
        self.start_offset = 0
        self.end_offset = self.durable_offset = end
        self.settings = SimpleNamespace(write_caching=False, cleanup_policy=("delete",))
        self.epochs = [(0, 0)]


class FakePartition:
    """The part of a replica that the invariant checker reads."""

    def __init__(self, end: int) -> None:
        self.name = LogName("orders", 0)
        self.topic_id = TOPIC_ID
        self.log = FakeLog(end)
        self.leader: Any = SimpleNamespace(state=None)
        self.leader_epoch = -1
        self.high_watermark = 0
        self.first_unstable_offset: int | None = None

    @property
    def last_stable_offset(self) -> int:
        return self.high_watermark if self.first_unstable_offset is None else self.first_unstable_offset

    @property
    def is_leader(self) -> bool:
        return self.leader.state is not None

    def lead(self, epoch: int, high_watermark: int, isr: tuple[int, ...] = (1, 2)) -> None:
        self.leader_epoch, self.high_watermark = epoch, high_watermark
        self.leader.state = SimpleNamespace(
            high_watermark=high_watermark, maximal_isr=lambda: isr, image=SimpleNamespace(partition_epoch=0)
        )

    def follow(self) -> None:
        self.leader.state = None


class FakeServer:
    def __init__(self, node_id: int) -> None:
        self.node_id = node_id
        self.name = f"node-{node_id}"
        self.is_serving = True
        self.is_stopping = False
        self.now_ms = 0
        self.host = SimpleNamespace(clock=SimpleNamespace(monotonic_ms=lambda: self.now_ms), callbacks=0)
        self.boot()

    def boot(self) -> None:
        self.partition = FakePartition(10)
        self.quorum = SimpleNamespace(
            epoch=1,
            high_watermark=5,
            is_leader=False,
            _log=SimpleNamespace(start_offset=0, end_offset=5, epochs=[(1, 0)]),
        )
        self.metadata = SimpleNamespace(image=MetadataImage())
        self.lifecycle = SimpleNamespace(broker_epoch=1, lease=SimpleNamespace(expires_ms=1000))
        self.broker = SimpleNamespace(
            replica_manager=SimpleNamespace(_partitions={("orders", 0): self.partition}),
            quorum=self.quorum,
            metadata=self.metadata,
            lifecycle=self.lifecycle,
        )


def image(
    offset: int, *, leader: int = 1, epoch: int = 0, isr: tuple[int, ...] = (1, 2), fenced: bool = False
) -> MetadataImage:
    partition = PartitionRegistration(0, (1, 2), isr, leader, epoch, offset)
    broker = BrokerRegistration(2, 1, UUID(int=2), (), None, fenced)
    return MetadataImage(
        offset=offset, brokers={2: broker}, topics={"orders": TopicImage("orders", TOPIC_ID, (partition,))}
    )


class Cluster:
    def __init__(self, lossy_topics: dict[str, str] | None = None) -> None:
        self.servers = [FakeServer(1), FakeServer(2)]
        self.found: list[str] = []
        self.counts: Counter[str] = Counter()
        self.events: list[tuple[Any, ...]] = []
        self.checker = InvariantChecker(
            self.servers,  # type: ignore[arg-type]
            self.found.append,
            self.counts,
            lossy_topics or {},
            lambda *event: self.events.append(event),
        )

    def check(self) -> list[str]:
        for server in self.servers:
            server.host.callbacks += 1
        self.checker.check()
        return self.found


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def test_a_correct_cluster_has_no_violations(cluster: Cluster) -> None:
    one, two = cluster.servers
    one.partition.lead(0, 4)
    one.quorum.is_leader = True
    for each in (one, two):
        each.metadata.image = image(1)
    assert cluster.check() == []
    one.partition.lead(0, 10)
    assert cluster.check() == []


def test_two_leaders_of_a_partition_in_one_epoch(cluster: Cluster) -> None:
    for each in cluster.servers:
        each.partition.lead(3, 4)
    assert "both lead orders-0 in epoch 3" in cluster.check()[0]


def test_two_leaders_of_the_quorum_in_one_epoch_even_one_after_the_other(cluster: Cluster) -> None:
    one, two = cluster.servers
    one.quorum.is_leader = True
    assert cluster.check() == []
    one.quorum.is_leader, two.quorum.is_leader = False, True
    assert "both lead the metadata quorum in epoch 1" in cluster.check()[0]
    assert cluster.counts["quorum elections"] == 1


def test_a_high_watermark_that_falls(cluster: Cluster) -> None:
    one = cluster.servers[0]
    one.partition.lead(0, 8)
    cluster.check()
    one.partition.lead(0, 7)
    assert "high watermark of orders-0 on node-1 fell from 8 to 7" in cluster.check()[0]


def test_a_quorum_epoch_that_falls_over_a_restart(cluster: Cluster) -> None:
    one = cluster.servers[0]
    one.quorum.is_leader, one.quorum.epoch = True, 4
    cluster.check()
    one.boot()
    one.quorum.epoch = 3
    assert "the quorum epoch of node-1 fell to 3" in cluster.check()[0]


def test_a_last_stable_offset_that_falls(cluster: Cluster) -> None:
    partition = cluster.servers[0].partition
    partition.lead(epoch=0, high_watermark=4)
    assert cluster.check() == []
    partition.first_unstable_offset = 3
    assert cluster.check() == ["invariant: the last stable offset of orders-0 on node-1 fell from 4 to 3"]


def test_a_last_stable_offset_may_fall_with_a_new_leader_epoch(cluster: Cluster) -> None:
    partition = cluster.servers[0].partition
    partition.lead(epoch=0, high_watermark=4)
    assert cluster.check() == []
    partition.lead(epoch=1, high_watermark=4)
    partition.first_unstable_offset = 3
    assert cluster.check() == []


def test_a_last_stable_offset_above_the_high_watermark(cluster: Cluster) -> None:
    partition = cluster.servers[0].partition
    partition.lead(epoch=0, high_watermark=4)
    partition.first_unstable_offset = 5
    assert cluster.check() == ["invariant: the last stable offset of orders-0 on node-1 is 5 of 4"]


def test_a_leader_that_lacks_committed_records(cluster: Cluster) -> None:
    one, two = cluster.servers
    one.partition.lead(0, 9, isr=(1,))
    cluster.check()
    one.partition.follow()
    two.partition.log.end_offset = 8
    two.partition.lead(1, 8, isr=(2,))
    assert "node-2 leads orders-0 in epoch 1 with a log that ends at 8, and 9 is committed" in cluster.check()[0]


def test_a_leader_of_an_old_epoch_may_lack_later_commits(cluster: Cluster) -> None:
    one, two = cluster.servers
    one.partition.lead(5, 9, isr=(1,))
    cluster.check()
    two.partition.log.end_offset = two.partition.log.durable_offset = 2
    two.partition.lead(4, 2, isr=(2,))
    assert cluster.check() == []


def test_logs_that_differ_below_their_high_watermarks(cluster: Cluster) -> None:
    one, two = cluster.servers
    one.partition.log.epochs = [(0, 0), (1, 4)]
    one.partition.lead(1, 6)
    assert cluster.check() == []
    two.partition.log.epochs = [(0, 0), (1, 7)]
    two.partition.high_watermark = 8
    assert "orders-0: the committed record at 5 had epoch 1 and on node-2 epoch 0" in cluster.check()[0]


def test_metadata_that_is_committed_in_two_epochs(cluster: Cluster) -> None:
    one, two = cluster.servers
    one.quorum.high_watermark = 9
    assert cluster.check() == []
    two.quorum.high_watermark, two.quorum._log.epochs = 9, [(1, 0), (2, 6)]
    assert "the metadata: the committed record at 8 had epoch 1 and on node-2 epoch 2" in cluster.check()[0]


def test_a_lossy_topic_may_have_a_leader_that_lacks_committed_records() -> None:
    cluster = Cluster({"orders": "unclean elections"})
    one, two = cluster.servers
    one.partition.lead(0, 9, isr=(1,))
    cluster.check()
    one.partition.follow()
    two.partition.log.end_offset = 8
    two.partition.lead(1, 8, isr=(2,))
    assert cluster.check() == []


def test_an_in_sync_replica_with_unsynced_committed_records(cluster: Cluster) -> None:
    one, two = cluster.servers
    two.partition.log.durable_offset = 6
    one.partition.lead(0, 7)
    assert "node 2 is in the ISR of node-1 and has 6 of 7" in cluster.check()[0]


def test_a_replica_that_joins_the_isr_without_committed_records(cluster: Cluster) -> None:
    one, two = cluster.servers
    one.metadata.image = image(1, isr=(1,))
    one.partition.lead(0, 10, isr=(1,))
    two.partition.log.durable_offset = 3
    assert cluster.check() == []
    one.metadata.image = image(2, isr=(1, 2))
    assert "node 2 is in the ISR of node-1 and has 3 of 10" in cluster.check()[0]


def test_metadata_that_goes_back(cluster: Cluster) -> None:
    one = cluster.servers[0]
    one.metadata.image = image(5)
    cluster.check()
    one.metadata.image = image(4)
    assert "the metadata of node-1 went back from 5 to 4" in cluster.check()[0]


def test_elections_shrinks_and_truncations_are_counted(cluster: Cluster) -> None:
    one = cluster.servers[0]
    one.metadata.image = image(1)
    cluster.check()
    one.metadata.image = image(2, leader=2, epoch=1, isr=(2,))
    one.partition.log.end_offset = 7
    assert cluster.check() == []
    assert cluster.counts["elections"] == 1
    assert cluster.counts["in-sync shrinks"] == 1
    assert cluster.counts["truncations"] == 1
    assert ("elected", 2, "orders-0", 1) in cluster.events


def test_a_node_that_votes_twice(cluster: Cluster) -> None:
    cluster.checker.on_vote_granted(1, 4, 2)
    cluster.checker.on_vote_granted(1, 4, 2)
    cluster.checker.on_vote_granted(1, 5, 3)
    assert cluster.found == []
    cluster.checker.on_vote_granted(1, 4, 3)
    assert "node 1 voted for nodes 2 and 3 in epoch 4" in cluster.found[0]


def test_an_acknowledgement_without_a_lease(cluster: Cluster) -> None:
    cluster.checker.on_acknowledged(1, "orders-0")
    assert cluster.found == []
    cluster.servers[0].now_ms = 1000
    cluster.checker.on_acknowledged(1, "orders-0")
    assert "after its lease expired" in cluster.found[0]


@pytest.mark.parametrize(("now_ms", "is_sound"), [(999, False), (1000, True)])
def test_a_broker_that_is_fenced_before_its_lease_expires(cluster: Cluster, now_ms: int, is_sound: bool) -> None:
    one, two = cluster.servers
    one.metadata.image = image(1)
    cluster.check()
    two.now_ms = now_ms
    one.metadata.image = image(2, fenced=True)
    assert (cluster.check() == []) is is_sound
