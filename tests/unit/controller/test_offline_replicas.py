"""Offline replicas leave the ISR, are not elected, and return when their broker reports them online."""

from collections.abc import Sequence

from moldau.controller.elections import unclean_election_candidates
from moldau.controller.offline_replicas import remove_offline_replicas
from moldau.controller.requests import BrokerHeartbeat, ElectionType, OfflineReplica
from moldau.errors import IneligibleReplicaError
from moldau.metadata.image import NO_LEADER
from support.partition_decisions import ControlledCluster


class Cluster(ControlledCluster):
    def hears(self, broker_id: int, *failed: int, epoch: int | None = None, is_transient: bool = False) -> None:
        """Processes a heartbeat that reports these partitions of orders offline."""
        topic_id = self.state.image.topics["orders"].topic_id
        heartbeat = BrokerHeartbeat(
            broker_id,
            self.state.image.brokers[broker_id].epoch if epoch is None else epoch,
            self.state.image.offset,
            not_ready=[OfflineReplica(topic_id, index, broker_id, "EIO", is_transient) for index in failed],
        )
        self.state.update_offline_replicas(heartbeat)
        while self.do(remove_offline_replicas(self.state, heartbeat)):
            pass

    def state_of(self, index: int = 0) -> tuple[int, Sequence[int], Sequence[int]]:
        found = self.partition("orders", index)
        return found.leader, found.isr, found.elr


def test_an_offline_leader_is_replaced() -> None:
    cluster = Cluster()
    cluster.create("orders", (1, 2, 3), (1, 2, 3), min_insync_replicas="2")
    cluster.hears(1, 0)
    assert cluster.state_of(0) == (2, (2, 3), ())
    assert cluster.state_of(1) == (1, (1, 2, 3), ()), "its other replicas are online"


def test_an_offline_follower_leaves_the_isr() -> None:
    cluster = Cluster()
    cluster.create("orders", (1, 2, 3))
    cluster.hears(3, 0)
    assert cluster.state_of() == (1, (1, 2), ())
    records = len(cluster.last_records)
    cluster.hears(3, 0)
    assert (len(cluster.last_records), records) == (0, 0), "nothing is left to do"


def test_an_offline_replica_leaves_the_elr() -> None:
    cluster = Cluster()
    cluster.create("orders", (1, 2), min_insync_replicas="2")
    cluster.hears(2, 0)
    assert cluster.state_of() == (1, (1,), ()), "it is not in the ELR either: records may be lost"


def test_the_only_isr_member_stays_without_a_leader_and_leads_when_online_again() -> None:
    cluster = Cluster()
    cluster.create("orders", (1, 2), min_insync_replicas="1")
    cluster.fence(2)
    cluster.hears(1, 0)
    assert cluster.state_of() == (NO_LEADER, (1,), ())
    cluster.unfence(2)
    assert cluster.state_of() == (NO_LEADER, (1,), ()), "neither has all that is committed and a log that works"
    cluster.hears(1)
    assert cluster.state_of() == (1, (1,), ())


def test_offline_replicas_are_not_elected() -> None:
    cluster = Cluster()
    cluster.create("orders", (2, 1, 3), min_insync_replicas="1", unclean_leader_election_enable="true")
    cluster.fence(1)
    cluster.fence(3)
    cluster.hears(2, 0)
    cluster.unfence(3)
    assert cluster.partition().leader == NO_LEADER
    [found] = unclean_election_candidates(cluster.state).values()
    assert found == (3,), "it is no candidate, and others are"
    cluster.elect(ElectionType.PREFERRED, ("orders", 0))
    assert cluster.partition().leader == NO_LEADER


def test_an_offline_replica_cannot_join_the_isr() -> None:
    cluster = Cluster()
    cluster.create("orders", (1, 2, 3))
    cluster.hears(3, 0)
    assert isinstance(cluster.alter((1, 2, 3)).error, IneligibleReplicaError)
    cluster.hears(3)
    assert cluster.alter((1, 2, 3)).error is None


def test_reports_of_a_previous_incarnation_are_ignored() -> None:
    cluster = Cluster()
    cluster.create("orders", (1, 2, 3))
    previous = cluster.state.image.brokers[3].epoch
    cluster.hears(3, 0)
    cluster.register(3)
    cluster.unfence(3)
    assert cluster.alter((1, 2, 3)).error is None, "its new incarnation has reported nothing offline"
    cluster.hears(3, 0, epoch=previous)
    assert cluster.state_of() == (1, (1, 2, 3), ())


def test_a_reassignment_does_not_elect_an_offline_replica() -> None:
    cluster = Cluster((1, 2, 3, 4))
    cluster.create("orders", (1, 2), min_insync_replicas="1")
    cluster.fence(2)
    cluster.hears(1, 0)
    assert cluster.state_of() == (NO_LEADER, (1,), ())
    assert cluster.reassign([1, 3]).error is None
    assert cluster.partition().leader == NO_LEADER
    cluster.hears(1)
    assert cluster.partition().leader == 1


# Transiently offline replicas


def test_a_leader_that_cannot_be_written_is_replaced() -> None:
    cluster = Cluster()
    cluster.create("orders", (1, 2, 3))
    cluster.hears(1, 0, is_transient=True)
    assert cluster.state_of() == (2, (2, 3), ())
    assert isinstance(cluster.alter((1, 2, 3)).error, IneligibleReplicaError), "the high watermark would wait for it"
    cluster.elect(ElectionType.PREFERRED, ("orders", 0))
    assert cluster.partition().leader == 2
    cluster.hears(1)
    assert cluster.alter((1, 2, 3)).error is None
    cluster.elect(ElectionType.PREFERRED, ("orders", 0))
    assert cluster.partition().leader == 1


def test_a_replica_that_cannot_be_written_joins_the_elr() -> None:
    cluster = Cluster()
    cluster.create("orders", (1, 2), min_insync_replicas="2")
    cluster.hears(1, 0, is_transient=True)
    assert cluster.state_of() == (2, (2,), (1,)), "it has all committed records"
    cluster.fence(2)
    assert cluster.partition().leader == 1, "committed records can be read"


def test_the_only_isr_member_keeps_leading_though_it_cannot_be_written() -> None:
    cluster = Cluster()
    cluster.create("orders", (1, 2), min_insync_replicas="1", unclean_leader_election_enable="true")
    cluster.fence(2)
    cluster.hears(1, 0, is_transient=True)
    assert cluster.state_of() == (1, (1,), ())
    cluster.unfence(2)
    assert cluster.state_of() == (1, (1,), ())
    assert unclean_election_candidates(cluster.state) == {}
    cluster.fence(1)
    cluster.unfence(1)
    assert cluster.state_of() == (1, (1,), ()), "it leads again after the restart"
    assert cluster.alter((1, 2)).error is None, "a caught-up replica may join"
    cluster.hears(1, 0, is_transient=True)
    assert cluster.state_of() == (2, (2,), ())


def test_leadership_does_not_alternate_between_replicas_that_cannot_be_written() -> None:
    cluster = Cluster()
    cluster.create("orders", (1, 2), min_insync_replicas="1")
    cluster.hears(1, 0, is_transient=True)
    assert cluster.state_of() == (2, (2,), ())
    cluster.hears(2, 0, is_transient=True)
    cluster.hears(1, 0, is_transient=True)
    assert cluster.state_of() == (2, (2,), ())
    assert isinstance(cluster.alter((1, 2)).error, IneligibleReplicaError)


def test_two_isr_members_that_cannot_be_written_both_stay() -> None:
    cluster = Cluster()
    cluster.create("orders", (1, 2, 3), min_insync_replicas="1")
    cluster.fence(3)
    cluster.fence(1)
    cluster.hears(2, 0, is_transient=True)
    cluster.unfence(1)
    cluster.hears(2)
    assert cluster.alter((1, 2)).error is None
    topic_id = cluster.state.image.topics["orders"].topic_id
    for broker_id in (1, 2):
        # Both report before any decision.
        epoch = cluster.state.image.brokers[broker_id].epoch
        cluster.state.update_offline_replicas(
            BrokerHeartbeat(broker_id, epoch, 0, not_ready=[OfflineReplica(topic_id, 0, broker_id, "full", True)])
        )
    cluster.hears(1, 0, is_transient=True)
    cluster.hears(2, 0, is_transient=True)
    assert cluster.state_of() == (2, (1, 2), ())
    cluster.hears(1)
    cluster.hears(2, 0, is_transient=True)
    assert cluster.state_of() == (1, (1,), ())
