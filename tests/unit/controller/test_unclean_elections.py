"""Unclean elections by the controller: which log ends it queries, how it uses them, and when it retries."""

import asyncio
from collections.abc import Awaitable, Callable

from moldau.controller.background_tasks import LOG_END_ATTEMPTS_MAX
from moldau.controller.requests import ElectionType, IsrChange, NewTopic, OfflineReplica, PartitionResult
from moldau.errors import EligibleLeadersNotAvailableError, PeerUnreachableError, ReplicaNotAvailableError
from moldau.metadata.image import NO_LEADER, PartitionRegistration
from moldau.raft.messages import EpochEndOffset
from support.controller_cluster import ControllerCluster, run_on_virtual_time

ALLOWED = {"unclean.leader.election.enable": "true"}


def orders(cluster: ControllerCluster, index: int = 0) -> PartitionRegistration:
    return cluster.image.topics["orders"].partitions[index]


async def without_leader(
    cluster: ControllerCluster, *replicas: list[int], configs: dict[str, str] | None = None
) -> None:
    """Creates partitions whose only ISR member was node 4, which is killed."""
    await cluster.boot(1, 2, 3, 4)
    await cluster.controller.create_topics(
        [NewTopic("orders", assignment=dict(enumerate(replicas)), configs=configs or {})]
    )
    topic_id, epoch = cluster.image.topics["orders"].topic_id, cluster.image.brokers[4].epoch
    alone = ((4, epoch),)
    for result in await cluster.controller.alter_partition(
        4,
        epoch,
        [
            IsrChange(topic_id, each.index, each.leader_epoch, each.partition_epoch, alone)
            for each in cluster.image.topics["orders"].partitions
        ],
    ):
        assert result.error is None
    await cluster.nodes[4].kill()
    await cluster.until(lambda: all(each.leader == NO_LEADER for each in cluster.image.topics["orders"].partitions))


def answer_by(cluster: ControllerCluster, ask: Callable[[int, str, int], Awaitable[EpochEndOffset]]) -> None:
    tasks = cluster.controller._tasks
    assert tasks is not None
    tasks._fetch_log_end = ask


async def elect(cluster: ControllerCluster, *partitions: int) -> list[PartitionResult]:
    return await cluster.controller.elect_leaders(ElectionType.UNCLEAN, [("orders", index) for index in partitions])


def test_a_replica_that_is_online_again_is_elected_if_it_is_the_last() -> None:
    async def scenario(cluster: ControllerCluster) -> None:
        await cluster.boot(1, 2, 3)
        [created] = await cluster.controller.create_topics(
            [NewTopic("orders", assignment={0: [3, 2]}, configs=ALLOWED)]
        )
        assert created.topic_id is not None
        cluster.log_ends = {2: EpochEndOffset(1, 7)}
        node = cluster.nodes[2]
        node.not_ready = [OfflineReplica(created.topic_id, 0, 2, "No space left")]
        node.lifecycle.report(cluster.end_offset - 1, node.not_ready)
        await cluster.until(lambda: orders(cluster).isr == (3,))
        await cluster.nodes[3].kill()
        await cluster.until(lambda: orders(cluster).leader == NO_LEADER)
        await cluster.pass_ms(5_000)
        assert orders(cluster).leader == NO_LEADER
        node.not_ready = []
        node.lifecycle.report(cluster.end_offset - 1, [])
        await cluster.until(lambda: orders(cluster).leader == 2)

    run_on_virtual_time(scenario)


def test_an_unavailable_log_end_does_not_hide_those_of_other_replicas() -> None:
    async def scenario(cluster: ControllerCluster) -> None:
        await without_leader(cluster, [4, 2, 3], [4, 2, 3])
        asked: list[tuple[int, int]] = []

        async def ask(broker_id: int, topic: str, partition: int) -> EpochEndOffset:
            asked.append((broker_id, partition))
            if (broker_id, partition) == (2, 0):
                raise ReplicaNotAvailableError("node 2 does not say where orders-0 ends")
            return EpochEndOffset(1, 100 if broker_id == 2 else 7)

        answer_by(cluster, ask)
        rejected, elected = await elect(cluster, 0, 1)
        assert isinstance(rejected.error, EligibleLeadersNotAvailableError), "its log may be the longest"
        assert orders(cluster, 0).leader == NO_LEADER
        assert elected.error is None
        assert orders(cluster, 1).leader == 2
        assert asked.count((2, 0)) == LOG_END_ATTEMPTS_MAX
        assert asked.count((2, 1)) == asked.count((3, 0)) == 1, "a broker that responded is not queried again"

    run_on_virtual_time(scenario)


def test_a_requested_unclean_election_waits_for_a_slow_broker() -> None:
    async def scenario(cluster: ControllerCluster) -> None:
        await without_leader(cluster, [4, 2, 3])
        asked = 0

        async def ask(broker_id: int, topic: str, partition: int) -> EpochEndOffset:
            nonlocal asked
            asked += broker_id == 2
            if broker_id == 2 and asked < LOG_END_ATTEMPTS_MAX:
                raise PeerUnreachableError("no answer")
            return EpochEndOffset(1, 100 if broker_id == 2 else 7)

        answer_by(cluster, ask)
        [result] = await elect(cluster, 0)
        assert result.error is None
        assert orders(cluster).leader == 2

    run_on_virtual_time(scenario)


def test_a_broker_that_dies_during_the_query_is_no_longer_a_candidate() -> None:
    async def scenario(cluster: ControllerCluster) -> None:
        await without_leader(cluster, [4, 2, 3])

        async def ask(broker_id: int, topic: str, partition: int) -> EpochEndOffset:
            if broker_id == 2:
                raise PeerUnreachableError("connection refused")
            return EpochEndOffset(1, 7)

        answer_by(cluster, ask)
        electing = asyncio.get_running_loop().create_task(elect(cluster, 0))
        await cluster.pass_ms(50)
        await cluster.nodes[2].kill()
        [result] = await electing
        assert cluster.image.brokers[2].fenced
        assert result.error is None
        assert orders(cluster).leader == 3

    run_on_virtual_time(scenario)


def test_a_broker_that_registered_after_its_response_is_queried_again() -> None:
    async def scenario(cluster: ControllerCluster) -> None:
        await without_leader(cluster, [4, 2, 3])
        ends = {2: 100, 3: 90}

        async def ask(broker_id: int, topic: str, partition: int) -> EpochEndOffset:
            if broker_id == 3:
                await asyncio.sleep(8)
            return EpochEndOffset(1, ends[broker_id])

        async def elect_while_2_begins_anew() -> PartitionResult:
            electing = asyncio.get_running_loop().create_task(elect(cluster, 0))
            await cluster.pass_ms(50)
            await cluster.nodes[2].kill()
            cluster.lives[2] = []
            another_disk = cluster.add(2)
            await another_disk.start()
            await another_disk.lifecycle.wait_until_active()
            assert not electing.done()
            [result] = await electing
            return result

        answer_by(cluster, ask)
        result = await elect_while_2_begins_anew()
        assert isinstance(result.error, EligibleLeadersNotAvailableError)
        assert orders(cluster).leader == NO_LEADER, "neither with the stale log end of 2 nor without it"
        ends[2] = 0
        [result] = await elect(cluster, 0)
        assert result.error is None
        assert orders(cluster).leader == 3

    run_on_virtual_time(scenario)


def test_a_log_end_is_valid_only_for_its_leader_epoch() -> None:
    async def scenario(cluster: ControllerCluster) -> None:
        await without_leader(cluster, [4, 2, 3])
        waits = True

        async def ask(broker_id: int, topic: str, partition: int) -> EpochEndOffset:
            if broker_id == 2 and waits:
                await asyncio.sleep(8)
                return EpochEndOffset(1, 50)
            return EpochEndOffset(1, 40 if broker_id == 2 else 90)

        answer_by(cluster, ask)
        electing = asyncio.get_running_loop().create_task(elect(cluster, 0))
        await cluster.pass_ms(50)
        waits = False
        await elect(cluster, 0)
        assert orders(cluster).leader == 3
        await cluster.nodes[3].kill()
        await cluster.until(lambda: orders(cluster).leader == NO_LEADER)
        assert not electing.done()
        [result] = await electing
        assert isinstance(result.error, EligibleLeadersNotAvailableError)
        assert orders(cluster).leader == NO_LEADER, "3 has led since, so the log end of 2 is stale"

    run_on_virtual_time(scenario)
