"""Replicas whose logs have failed: they leave the in-sync sets, nobody elects them, and they come back when their
brokers have them again."""

from collections.abc import Sequence

from moldau.controller.elections import unclean_election_candidates
from moldau.controller.offline_replicas import remove_offline_replicas
from moldau.controller.requests import BrokerHeartbeat, ElectionType, OfflineReplica
from moldau.errors import IneligibleReplicaError
from moldau.metadata.image import NO_LEADER
from support.controlled import ControlledCluster


class Cluster(ControlledCluster):
    def hears(
        self, broker_id: int, *failed: int, epoch: int | None = None, is_transient: bool = False
    ) -> None:
        """A heartbeat that says of these partitions of orders that they have failed."""
        topic_id = self.state.image.topics["orders"].topic_id
        beat = BrokerHeartbeat(
            broker_id,
            self.state.image.brokers[broker_id].epoch if epoch is None else epoch,
            self.state.image.offset,
            not_ready=[OfflineReplica(topic_id, index, broker_id, "EIO", is_transient) for index in failed],
        )
        self.state.update_offline_replicas(beat)
        while self.do(remove_offline_replicas(self.state, self.settings, beat)):
            pass

    def state_of(self, index: int = 0) -> tuple[int, Sequence[int], Sequence[int]]:
        found = self.partition("orders", index)
        return found.leader, found.isr, found.elr


def test_another_leads_in_the_place_of_a_leader_whose_log_has_failed() -> None:
    cluster = Cluster()
    cluster.create("orders", (1, 2, 3), (1, 2, 3), min_insync_replicas="2")
    cluster.hears(1, 0)
    assert cluster.state_of(0) == (2, (2, 3), ())
    assert cluster.state_of(1) == (1, (1, 2, 3), ()), "its other logs are whole"


def test_a_follower_whose_log_has_failed_is_not_waited_for() -> None:
    cluster = Cluster()
    cluster.create("orders", (1, 2, 3))
    cluster.hears(3, 0)
    assert cluster.state_of() == (1, (1, 2), ())
    records = len(cluster.last_records)
    cluster.hears(3, 0)
    assert (len(cluster.last_records), records) == (0, 0), "there is nothing more to do"


def test_a_failed_replica_vouches_for_nothing() -> None:
    cluster = Cluster()
    cluster.create("orders", (1, 2), min_insync_replicas="2")
    cluster.hears(2, 0)
    assert cluster.state_of() == (1, (1,), ()), "it is not eligible either: records may be gone"


def test_a_replica_that_is_in_sync_alone_stays_so_without_a_leader_and_leads_when_it_is_whole_again() -> None:
    cluster = Cluster()
    cluster.create("orders", (1, 2), min_insync_replicas="1")
    cluster.fence(2)
    cluster.hears(1, 0)
    assert cluster.state_of() == (NO_LEADER, (1,), ())
    cluster.unfence(2)
    assert cluster.state_of() == (NO_LEADER, (1,), ()), (
        "neither has all that is committed and a log that works"
    )
    cluster.hears(1)
    assert cluster.state_of() == (1, (1,), ())


def test_no_election_takes_a_failed_replica() -> None:
    cluster = Cluster()
    cluster.create("orders", (2, 1, 3), min_insync_replicas="1", unclean_leader_election_enable="true")
    cluster.fence(1)
    cluster.fence(3)
    cluster.hears(2, 0)
    cluster.unfence(3)
    assert cluster.partition().leader == NO_LEADER
    [found] = unclean_election_candidates(cluster.state, cluster.settings).values()
    assert found == (3,), "it is not asked, and does not keep others from being asked"
    cluster.elect(ElectionType.PREFERRED, ("orders", 0))
    assert cluster.partition().leader == NO_LEADER


def test_a_failed_replica_does_not_join_while_its_broker_says_so() -> None:
    cluster = Cluster()
    cluster.create("orders", (1, 2, 3))
    cluster.hears(3, 0)
    assert isinstance(cluster.alter((1, 2, 3)).error, IneligibleReplicaError)
    cluster.hears(3)
    assert cluster.alter((1, 2, 3)).error is None


def test_what_a_former_life_of_a_broker_says_does_not_count() -> None:
    cluster = Cluster()
    cluster.create("orders", (1, 2, 3))
    former = cluster.state.image.brokers[3].epoch
    cluster.hears(3, 0)
    cluster.register(3)
    cluster.unfence(3)
    assert cluster.alter((1, 2, 3)).error is None, "it has started anew, and has not complained since"
    cluster.hears(3, 0, epoch=former)
    assert cluster.state_of() == (1, (1, 2, 3), ())


def test_a_reassignment_does_not_elect_a_failed_replica() -> None:
    cluster = Cluster((1, 2, 3, 4))
    cluster.create("orders", (1, 2), min_insync_replicas="1")
    cluster.fence(2)
    cluster.hears(1, 0)
    assert cluster.state_of() == (NO_LEADER, (1,), ())
    assert cluster.reassign([1, 3]).error is None
    assert cluster.partition().leader == NO_LEADER
    cluster.hears(1)
    assert cluster.partition().leader == 1


# Replicas that cannot be written for the moment


def test_another_leads_in_the_place_of_a_leader_that_cannot_be_written() -> None:
    cluster = Cluster()
    cluster.create("orders", (1, 2, 3))
    cluster.hears(1, 0, is_transient=True)
    assert cluster.state_of() == (2, (2, 3), ())
    assert isinstance(cluster.alter((1, 2, 3)).error, IneligibleReplicaError), "it would be waited for"
    cluster.elect(ElectionType.PREFERRED, ("orders", 0))
    assert cluster.partition().leader == 2
    cluster.hears(1)
    assert cluster.alter((1, 2, 3)).error is None
    cluster.elect(ElectionType.PREFERRED, ("orders", 0))
    assert cluster.partition().leader == 1


def test_a_replica_that_cannot_be_written_stays_eligible() -> None:
    cluster = Cluster()
    cluster.create("orders", (1, 2), min_insync_replicas="2")
    cluster.hears(1, 0, is_transient=True)
    assert cluster.state_of() == (2, (2,), (1,)), "it has lost nothing"
    cluster.fence(2)
    assert cluster.partition().leader == 1, "what is committed can be read"


def test_a_leader_that_is_in_sync_alone_leads_on_though_it_cannot_be_written() -> None:
    cluster = Cluster()
    cluster.create("orders", (1, 2), min_insync_replicas="1", unclean_leader_election_enable="true")
    cluster.fence(2)
    cluster.hears(1, 0, is_transient=True)
    assert cluster.state_of() == (1, (1,), ())
    cluster.unfence(2)
    assert cluster.state_of() == (1, (1,), ())
    assert unclean_election_candidates(cluster.state, cluster.settings) == {}
    cluster.fence(1)
    cluster.unfence(1)
    assert cluster.state_of() == (1, (1,), ()), "it comes back and leads as before"
    assert cluster.alter((1, 2)).error is None, "who has caught up may join it"
    cluster.hears(1, 0, is_transient=True)
    assert cluster.state_of() == (2, (2,), ())


def test_leadership_does_not_go_back_and_forth_between_replicas_that_cannot_be_written() -> None:
    cluster = Cluster()
    cluster.create("orders", (1, 2), min_insync_replicas="1")
    cluster.hears(1, 0, is_transient=True)
    assert cluster.state_of() == (2, (2,), ())
    cluster.hears(2, 0, is_transient=True)
    cluster.hears(1, 0, is_transient=True)
    assert cluster.state_of() == (2, (2,), ())
    assert isinstance(cluster.alter((1, 2)).error, IneligibleReplicaError)


def test_of_two_in_sync_that_cannot_be_written_neither_gives_way() -> None:
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
        # Both say so before anything is decided on it.
        epoch = cluster.state.image.brokers[broker_id].epoch
        cluster.state.update_offline_replicas(
            BrokerHeartbeat(
                broker_id, epoch, 0, not_ready=[OfflineReplica(topic_id, 0, broker_id, "full", True)]
            )
        )
    cluster.hears(1, 0, is_transient=True)
    cluster.hears(2, 0, is_transient=True)
    assert cluster.state_of() == (2, (1, 2), ())
    cluster.hears(1)
    cluster.hears(2, 0, is_transient=True)
    assert cluster.state_of() == (1, (1,), ())
