"""Commits of a consumer: which offsets, for which generation, and how they fail. In virtual time."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from moldau.client.consumer.consumer_coordinator import ConsumerCoordinator
from moldau.client.consumer.fetch_manager import FetchManager
from moldau.client.consumer.subscription_state import OffsetAndMetadata, OffsetResetStrategy, SubscriptionState
from moldau.client.errors import CommitFailedError, ErrorCode, KafkaError
from moldau.client.group.assignors import get_assignor
from moldau.client.group.driver import MembershipDriver
from moldau.client.group.member_state import NO_GENERATION, Generation, GroupRebalanceConfig
from moldau.client.group.offsets import GroupOffsets
from moldau.client.record import TopicPartition
from moldau.wire.api_keys import ApiKey
from support.scripted_cluster import HERE, ScriptedCluster, in_group, run

THERE = TopicPartition("t", 1)


def answer(codes: Mapping[int, ErrorCode]) -> Any:
    partitions = [{"partition_index": index, "error_code": code.value} for index, code in codes.items()]
    return {"topics": [{"name": "t", "partitions": partitions}]}


@pytest.mark.parametrize("code", [ErrorCode.unknown_topic_or_partition, ErrorCode.unknown_topic_id])
def test_a_deleted_partition_is_reported_at_once(code: ErrorCode) -> None:
    cluster = ScriptedCluster()
    cluster.answers[ApiKey.OFFSET_COMMIT] = lambda _: answer({0: ErrorCode.none, 1: code})

    async def scenario() -> None:
        wanted = {HERE: OffsetAndMetadata(1), THERE: OffsetAndMetadata(2)}
        with pytest.raises(KafkaError, match="t-1") as told:
            await GroupOffsets(cluster, "g").commit(wanted, NO_GENERATION)
        assert told.value.code is code
        assert cluster.sent == [ApiKey.OFFSET_COMMIT]

    run(scenario)


def test_a_commit_is_retried_while_the_coordinator_loads_even_if_a_partition_is_missing() -> None:
    cluster = ScriptedCluster()
    gone = ErrorCode.unknown_topic_or_partition
    answers = iter([{0: ErrorCode.coordinator_load_in_progress, 1: gone}, {0: ErrorCode.none, 1: gone}])
    cluster.answers[ApiKey.OFFSET_COMMIT] = lambda _: answer(next(answers))

    async def scenario() -> None:
        wanted = {HERE: OffsetAndMetadata(1), THERE: OffsetAndMetadata(2)}
        outcomes = await GroupOffsets(cluster, "g").commit_each(wanted)
        assert {each: error and error.code for each, error in outcomes.items()} == {HERE: None, THERE: gone}

    run(scenario)


def test_a_deleted_topic_does_not_block_a_rebalance() -> None:
    cluster = ScriptedCluster()
    cluster.log = [b"a"]

    async def scenario() -> None:
        async with in_group(cluster) as consumer:
            consumer.subscribe(["t"])
            await anext(consumer)
            cluster.answers[ApiKey.OFFSET_COMMIT] = lambda _: answer({0: ErrorCode.unknown_topic_or_partition})
            consumer.subscribe(["t", "u"])
            began = asyncio.get_running_loop().time()
            while consumer.group_metadata().generation_id == 1:
                await consumer.poll(100)
            assert asyncio.get_running_loop().time() - began < 1

    run(scenario)


def test_a_cancelled_poll_does_not_cancel_the_commit_before_a_rebalance() -> None:
    cluster = ScriptedCluster()
    cluster.log = [b"a"]
    commit = cluster.answers[ApiKey.OFFSET_COMMIT]
    told: list[str] = []

    async def slowly(tree: Mapping[str, Any]) -> Any:
        await asyncio.sleep(1)
        return commit(tree)

    async def scenario() -> None:
        async with in_group(cluster) as consumer:
            consumer.subscribe(["t"], on_revoked=lambda _: told.append(f"revoked at {cluster.committed}"))
            await anext(consumer)
            cluster.answers[ApiKey.OFFSET_COMMIT] = slowly
            cluster.answers[ApiKey.HEARTBEAT] = lambda _: {"error_code": ErrorCode.rebalance_in_progress.value}
            await asyncio.sleep(4)
            for _ in range(3):
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.3):
                        await consumer.poll(1_000)
                assert told == []
            while not told:
                await consumer.poll(100)
            assert cluster.sent.count(ApiKey.OFFSET_COMMIT) == 1
            assert told == ["revoked at {0: 1}"]

    run(scenario)


def test_offsets_of_one_generation_are_not_committed_in_the_name_of_the_next() -> None:
    cluster = ScriptedCluster()
    go_on = asyncio.Event()
    sent: list[tuple[int, int]] = []

    async def slowly(tree: Mapping[str, Any]) -> Any:
        offset = tree["topics"][0]["partitions"][0]["committed_offset"]
        sent.append((tree["generation_id_or_member_epoch"], offset))
        await go_on.wait()
        return answer({0: ErrorCode.none})

    cluster.answers[ApiKey.OFFSET_COMMIT] = slowly

    async def scenario() -> None:
        member = MembershipDriver(cluster, GroupRebalanceConfig("g", (get_assignor("range"),)), lambda: None)
        positions = SubscriptionState(OffsetResetStrategy.LATEST)
        positions.subscribe(["t"])
        positions.set_assignment([HERE])
        offsets = GroupOffsets(cluster, "g")
        fetch_manager = FetchManager(cluster, positions, offsets, asyncio.Event(), isolation_level=0, fetch_settings={})
        commits = ConsumerCoordinator(offsets, member, positions, fetch_manager, auto_commit_interval_ms=0)
        member.membership.generation = Generation(1, "m1", "range")
        under_way = asyncio.create_task(commits.commit({HERE: OffsetAndMetadata(50)}))
        await asyncio.sleep(1)
        positions.seek(HERE, 100)
        behind_it = asyncio.create_task(commits.commit(positions.all_consumed()))
        commits.maybe_auto_commit()
        await asyncio.sleep(0.1)
        commits.maybe_auto_commit()
        await asyncio.sleep(0.1)
        # Thrown out and back again: others have had the partition meanwhile.
        member.membership.generation = Generation(2, "m1", "range")
        go_on.set()
        await under_way
        with pytest.raises(CommitFailedError, match="has rebalanced since"):
            await behind_it
        await asyncio.sleep(1)
        assert sent == [(1, 50)]
        await commits.close()
        await fetch_manager.close()

    run(scenario)


def test_a_transaction_commits_for_the_generation_that_owns_the_partitions() -> None:
    cluster = ScriptedCluster()
    cluster.log = [b"a"]

    async def scenario() -> None:
        async with in_group(cluster) as consumer:
            consumer.subscribe(["t"])
            with pytest.raises(CommitFailedError, match="not in the group"):
                consumer.commit_metadata([HERE])
            await anext(consumer)
            assert consumer.commit_metadata([HERE]) == consumer.group_metadata()
            assert consumer.group_metadata().generation_id == 1
            with pytest.raises(CommitFailedError, match="t-1 is no longer assigned"):
                consumer.commit_metadata([HERE, THERE])
            cluster.answers[ApiKey.HEARTBEAT] = lambda _: {"error_code": ErrorCode.unknown_member_id.value}
            while consumer.group_metadata().member_id:
                await asyncio.sleep(1)
            with pytest.raises(CommitFailedError, match="not in the group"):
                consumer.commit_metadata([HERE])

    run(scenario)


def test_a_transaction_commits_assigned_partitions_without_a_generation() -> None:
    cluster = ScriptedCluster()

    async def scenario() -> None:
        async with in_group(cluster) as consumer:
            consumer.assign([HERE])
            metadata = consumer.commit_metadata([HERE])
            assert (metadata.generation_id, metadata.member_id, metadata.group_instance_id) == (-1, "", None)

    run(scenario)
