"""Elections on the controller's own initiative: unclean ones, preferred leaders, split decisions."""

import pytest

from moldau.controller import cluster_control as broker_decisions
from moldau.controller.background_tasks import LOG_END_ATTEMPTS_MAX
from moldau.controller.requests import ElectionType, IsrChange, TopicRef
from moldau.errors import StorageError
from moldau.raft.messages import EpochEndOffset
from support.controller_cluster import ControllerCluster, run_on_virtual_time
from support.controller_cluster_helpers import is_fenced, orders, with_topic

# Elections


def test_an_unclean_election_takes_the_longest_live_log() -> None:
    async def scenario(cluster: ControllerCluster) -> None:
        await cluster.boot(1, 2, 3, 4)
        await with_topic(cluster, [4, 1, 2, 3], configs={"unclean.leader.election.enable": "true"})
        await fall_out_of_sync(cluster, 1, 2, 3)
        cluster.log_ends = {1: EpochEndOffset(3, 100), 2: EpochEndOffset(4, 50), 3: EpochEndOffset(4, 49)}
        await cluster.nodes[4].kill()
        await cluster.until(lambda: orders(cluster).leader == 2)
        assert orders(cluster).isr == (2,)
        assert orders(cluster).is_recovering
        assert sorted(cluster.asked) == [1, 2, 3]

    run_on_virtual_time(scenario)


def test_a_silent_live_replica_is_queried_again_and_then_skipped() -> None:
    async def scenario(cluster: ControllerCluster) -> None:
        await cluster.boot(1, 2, 3)
        await with_topic(cluster, [3, 1, 2], configs={"unclean.leader.election.enable": "true"})
        await fall_out_of_sync(cluster, 1, 2)
        cluster.log_ends = {2: EpochEndOffset(1, 7)}
        await cluster.nodes[3].kill()
        await cluster.until(lambda: orders(cluster).leader == 2)
        assert cluster.asked.count(1) == LOG_END_ATTEMPTS_MAX

    run_on_virtual_time(scenario)


def test_unclean_elections_need_the_setting_or_a_request() -> None:
    async def scenario(cluster: ControllerCluster) -> None:
        await cluster.boot(1, 2)
        await with_topic(cluster, [2, 1])
        await fall_out_of_sync(cluster, 1)
        cluster.log_ends = {1: EpochEndOffset(1, 7)}
        await cluster.nodes[2].kill()
        await cluster.until(lambda: is_fenced(cluster, 2))
        await cluster.pass_ms(10_000)
        assert orders(cluster).leader == -1
        [result] = await cluster.controller.elect_leaders(ElectionType.UNCLEAN, [("orders", 0)])
        assert result.error is None
        assert orders(cluster).leader == 1

    run_on_virtual_time(scenario)


def test_preferred_leaders_are_restored_automatically() -> None:
    async def scenario(cluster: ControllerCluster) -> None:
        await cluster.boot(1, 2)
        await with_topic(cluster, [2, 1])
        cluster.nodes[2].cut_off()
        await cluster.until(lambda: is_fenced(cluster, 2))
        cluster.nodes[2].heal()
        await cluster.until(lambda: not is_fenced(cluster, 2))
        await join_in_sync(cluster, 1, 2)
        assert orders(cluster).leader == 1
        await cluster.until(lambda: orders(cluster).leader == 2, within_ms=5_000)

    run_on_virtual_time(scenario, leader_imbalance_check_interval_seconds=5)


async def fall_out_of_sync(cluster: ControllerCluster, *broker_ids: int) -> None:
    at = orders(cluster)
    staying = tuple((each, -1) for each in at.isr if each not in broker_ids)
    change = IsrChange(cluster.image.topics["orders"].topic_id, 0, at.leader_epoch, at.partition_epoch, staying)
    leader = cluster.nodes[at.leader].lifecycle
    [result] = await cluster.controller.alter_partition(at.leader, leader.broker_epoch, [change])
    assert result.error is None


async def join_in_sync(cluster: ControllerCluster, *broker_ids: int) -> None:
    at = orders(cluster)
    members = tuple((each, cluster.nodes[each].lifecycle.broker_epoch) for each in broker_ids)
    change = IsrChange(cluster.image.topics["orders"].topic_id, 0, at.leader_epoch, at.partition_epoch, members)
    leader = cluster.nodes[at.leader].lifecycle
    [result] = await cluster.controller.alter_partition(at.leader, leader.broker_epoch, [change])
    assert result.error is None


# Split decisions


def test_a_change_too_large_for_one_decision_is_split(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_decisions, "RECORDS_PER_DECISION_MAX", 3)

    def largest(cluster: ControllerCluster) -> int:
        return max(len(batch.values) for batch in cluster.batches[first:])

    first = 0

    async def scenario(cluster: ControllerCluster) -> None:
        nonlocal first
        await cluster.boot(1, 2)
        await with_topic(cluster, *[[2, 1] for _ in range(10)])
        await with_topic(cluster, *[[2] for _ in range(7)], name="single")
        first = len(cluster.batches)
        await cluster.nodes[2].kill()
        await cluster.until(lambda: not partitions_led_by(cluster, 2))
        assert partitions_led_by(cluster, 1) == 10
        assert partitions_led_by(cluster, -1) == 7
        assert largest(cluster) == 3
        # After an unclean restart it first leaves all ISRs, then registers, then leads again.
        await cluster.add(2).start()
        assert not any(2 in each.isr for each in cluster.image.topics["orders"].partitions)
        await cluster.until(lambda: partitions_led_by(cluster, 2) == 7)
        assert largest(cluster) == 3
        await cluster.nodes[2].lifecycle.shut_down()
        assert partitions_led_by(cluster, 2) == 0
        await cluster.controller.delete_topics([TopicRef("single")])
        await cluster.controller.unregister_broker(2)
        assert largest(cluster) == 3

    run_on_virtual_time(scenario)


def partitions_led_by(cluster: ControllerCluster, broker_id: int) -> int:
    topics = cluster.image.topics.values()
    return sum(each.leader == broker_id for topic in topics for each in topic.partitions)


def test_a_decision_that_could_not_be_appended_is_retried() -> None:
    async def scenario(cluster: ControllerCluster) -> None:
        await cluster.boot(1, 2)
        await with_topic(cluster, [2, 1])
        cluster.nodes[1].quorum.append_error = StorageError("No space left on device")
        await cluster.nodes[2].kill()
        await cluster.pass_ms(5_000)
        assert not is_fenced(cluster, 2)
        cluster.nodes[1].quorum.append_error = None
        await cluster.until(lambda: is_fenced(cluster, 2), within_ms=1_000)
        assert orders(cluster).leader == 1

    run_on_virtual_time(scenario)
