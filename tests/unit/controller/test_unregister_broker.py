"""Unregistering a broker, except the last one known to have all records."""

import pytest

from moldau.controller.cluster_control import unregister_broker
from moldau.controller.partition_index import PartitionName
from moldau.controller.requests import ElectionType, NewTopic, TopicRef
from moldau.controller.topics import delete_topics
from moldau.errors import InvalidRequestError
from moldau.metadata.image import NO_LEADER
from moldau.raft.messages import EpochEndOffset
from support.controller_cluster import ControllerCluster, run_on_virtual_time
from support.partition_decisions import ControlledCluster


def assert_rejected(cluster: ControlledCluster, *words: str) -> None:
    with pytest.raises(InvalidRequestError) as raised:
        unregister_broker(cluster.state, 2)
    assert [word for word in words if word not in str(raised.value)] == []


def give_up(cluster: ControlledCluster, broker_id: int = 2) -> None:
    assert cluster.do(unregister_broker(cluster.state, broker_id))
    assert broker_id not in cluster.state.image.brokers


def test_the_last_isr_member_cannot_be_unregistered_until_its_topics_are_deleted() -> None:
    cluster = ControlledCluster()
    cluster.create("orders", *[[2]] * 5)
    assert_rejected(cluster, "orders-0, orders-1, orders-2 and 2 more", "Reassign them", "--unclean", "delete")
    cluster.fence(2)
    assert_rejected(cluster, "orders-0")
    cluster.do(delete_topics(cluster.state, [TopicRef("orders")]))
    give_up(cluster)


def test_the_last_isr_member_can_be_unregistered_after_an_unclean_election() -> None:
    cluster = ControlledCluster()
    cluster.create("orders", [2, 3], min_insync_replicas="1")
    cluster.alter([2])
    cluster.fence(2)
    assert cluster.partition().leader == NO_LEADER
    assert_rejected(cluster, "orders-0")
    cluster.elect(ElectionType.UNCLEAN, ("orders", 0), log_ends={PartitionName("orders", 0): {3: EpochEndOffset(0, 5)}})
    assert cluster.partition().isr == (3,)
    give_up(cluster)


def test_a_broker_with_other_isr_members_is_unregistered_at_once() -> None:
    cluster = ControlledCluster()
    cluster.create("orders", [2, 3], min_insync_replicas="2")
    cluster.fence(3)
    assert (cluster.partition().isr, cluster.partition().elr) == ((2,), (3,))
    give_up(cluster)
    cluster.unfence(3)
    assert (cluster.partition().leader, cluster.partition().isr) == (3, (3,))


def test_an_unregistered_broker_does_not_count_as_a_replica() -> None:
    cluster = ControlledCluster()
    cluster.create("orders", [2, 3], min_insync_replicas="2")
    cluster.fence(3)
    give_up(cluster, 3)
    assert (cluster.partition().isr, cluster.partition().elr) == ((2,), (3,))
    assert_rejected(cluster, "orders-0")


def test_a_live_last_isr_member_keeps_leading() -> None:
    async def scenario(stage: ControllerCluster) -> None:
        await stage.boot(1, 2)
        await stage.controller.create_topics([NewTopic("orders", assignment={0: [2]})])
        with pytest.raises(InvalidRequestError):
            await stage.controller.unregister_broker(2)
        await stage.pass_ms(60_000)
        assert stage.image.topics["orders"].partitions[0].leader == 2
        assert stage.nodes[2].lifecycle.lease.is_valid()

    run_on_virtual_time(scenario)
