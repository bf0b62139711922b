"""The consumer against scripted brokers, in virtual time; `tests/support/consumer_behaviours.py` has real ones."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from moldau.client.consumer.consumer import Consumer
from moldau.client.errors import (
    ClientClosedError,
    CommitFailedError,
    ConnectionLostError,
    ErrorCode,
    IllegalStateError,
    KafkaError,
    NoOffsetForPartitionError,
    RebalanceInProgressError,
    RequestTimedOutError,
)
from moldau.client.net.metadata import PartitionInfo, TopicInfo
from moldau.client.record import TopicPartition
from moldau.wire.api_keys import ApiKey
from support.scripted_cluster import HERE, ScriptedCluster, ScriptedResponse, in_group, run, subscribed


def test_a_record_is_committed_when_the_next_is_requested() -> None:
    cluster = ScriptedCluster()
    cluster.log = [b"a", b"b", b"c"]

    async def scenario() -> None:
        async with in_group(cluster, auto_commit_interval_ms=1_000) as consumer:
            consumer.subscribe(["t"])
            assert (await anext(consumer)).value == b"a"
            await asyncio.sleep(2)
            assert cluster.committed == {}
            assert (await anext(consumer)).value == b"b"
            await asyncio.sleep(1)
            assert cluster.committed == {0: 1}
        assert cluster.committed == {0: 2}

    run(scenario)


def test_the_group_s_traffic_does_not_stand_behind_anything_else() -> None:
    cluster = ScriptedCluster()
    cluster.log = [b"a"]

    async def scenario() -> None:
        async with in_group(cluster) as consumer:
            consumer.subscribe(["t"])
            await anext(consumer)
            await asyncio.sleep(4)
            await consumer.commit()

    run(scenario)
    group_lane = cluster.lanes[ApiKey.JOIN_GROUP]
    assert {api for api, lane in cluster.lanes.items() if lane == group_lane} == {
        ApiKey.JOIN_GROUP,
        ApiKey.SYNC_GROUP,
        ApiKey.HEARTBEAT,
    }
    assert cluster.lanes[ApiKey.OFFSET_COMMIT] == cluster.lanes[ApiKey.LEAVE_GROUP] == ""


def test_heartbeats_continue_between_polls() -> None:
    cluster = ScriptedCluster()

    async def scenario() -> None:
        async with in_group(cluster) as consumer:
            await subscribed(consumer)
            before = cluster.sent.count(ApiKey.HEARTBEAT)
            await asyncio.sleep(30.5)
            assert cluster.sent.count(ApiKey.HEARTBEAT) - before == 10

    run(scenario)


def test_a_poll_longer_than_max_poll_interval_is_a_poll_all_the_same() -> None:
    cluster = ScriptedCluster()

    async def scenario() -> None:
        async with in_group(cluster, max_poll_interval_ms=10_000) as consumer:
            await subscribed(consumer)
            await consumer.poll(60_000)
            assert consumer.group_metadata().generation_id == 1
            await asyncio.sleep(11)
            assert consumer.group_metadata().generation_id == -1

    run(scenario)
    assert ApiKey.LEAVE_GROUP in cluster.sent


def test_a_slow_user_does_not_make_the_consumer_hoard() -> None:
    cluster = ScriptedCluster()
    cluster.log = [b"%d" % number for number in range(200)]

    async def scenario() -> None:
        async with Consumer(cluster=cluster, auto_offset_reset="earliest") as consumer:
            consumer.assign([HERE])
            for number in range(100):
                assert (await anext(consumer)).value == b"%d" % number
                cluster.log += [b"%d" % (200 + number)]
                await asyncio.sleep(1)
            # One fetch that is being handed out, and one that waits.
            assert cluster.fetches == 2

    run(scenario)


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (ErrorCode.unknown_member_id, CommitFailedError),
        (ErrorCode.illegal_generation, CommitFailedError),
        (ErrorCode.rebalance_in_progress, RebalanceInProgressError),
        (ErrorCode.offset_metadata_too_large, KafkaError),
    ],
)
def test_a_failed_commit_reports_the_reason(code: ErrorCode, error: type[KafkaError]) -> None:
    cluster = ScriptedCluster()
    cluster.log = [b"a"]

    async def scenario() -> None:
        async with in_group(cluster, enable_auto_commit=False) as consumer:
            consumer.subscribe(["t"])
            await anext(consumer)
            cluster.answers[ApiKey.OFFSET_COMMIT] = lambda _: cluster.commit_response(code)
            with pytest.raises(error) as told:
                await consumer.commit()
            assert told.value.code == code

    run(scenario)


def test_the_poll_after_a_failed_commit_rejoins() -> None:
    cluster = ScriptedCluster()
    cluster.log = [b"a"]
    told: list[str] = []

    async def scenario() -> None:
        async with in_group(cluster, enable_auto_commit=False) as consumer:
            consumer.subscribe(
                ["t"],
                on_assigned=lambda _: told.append("assigned"),
                on_revoked=lambda _: told.append("revoked"),
                on_lost=lambda _: told.append("lost"),
            )
            await anext(consumer)
            cluster.answers[ApiKey.OFFSET_COMMIT] = lambda _: cluster.commit_response(ErrorCode.unknown_member_id)
            with pytest.raises(CommitFailedError):
                await consumer.commit()
            assert (await anext(consumer)).offset == 0
            assert consumer.group_metadata().generation_id == 2

    run(scenario)
    assert told == ["assigned", "lost", "assigned", "revoked"]


def test_a_commit_follows_a_coordinator_that_moves() -> None:
    cluster = ScriptedCluster()
    cluster.log = [b"a"]
    failures: list[Any] = [cluster.commit_response(ErrorCode.not_coordinator), ConnectionLostError("gone")]
    commit = cluster.answers[ApiKey.OFFSET_COMMIT]

    async def scenario() -> None:
        async with in_group(cluster, enable_auto_commit=False) as consumer:
            consumer.subscribe(["t"])
            await anext(consumer)
            cluster.answers[ApiKey.OFFSET_COMMIT] = lambda tree: failures.pop(0) if failures else commit(tree)
            finds = cluster.finds
            await consumer.commit()
            assert cluster.finds == finds + 2
            assert cluster.committed == {0: 1}

    run(scenario)


def test_commits_keep_their_order() -> None:
    """A commit that has to be repeated is not overtaken: the group would be set back."""
    cluster = ScriptedCluster()
    cluster.log = [b"a", b"b"]
    commit = cluster.answers[ApiKey.OFFSET_COMMIT]
    seen: list[int] = []

    async def slow_first(tree: Mapping[str, Any]) -> Any:
        seen.append(tree["topics"][0]["partitions"][0]["committed_offset"])
        if len(seen) == 1:
            await asyncio.sleep(5)
            return cluster.commit_response(ErrorCode.coordinator_load_in_progress)
        return commit(tree)

    async def scenario() -> None:
        async with in_group(cluster, enable_auto_commit=False) as consumer:
            await subscribed(consumer)
            cluster.answers[ApiKey.OFFSET_COMMIT] = slow_first
            await asyncio.gather(consumer.commit({HERE: 1}), consumer.commit({HERE: 2}))

    run(scenario)
    assert seen == [1, 1, 2]
    assert cluster.committed == {0: 2}


def test_a_client_waits_for_an_unreachable_broker() -> None:
    cluster = ScriptedCluster()
    cluster.log = [b"a"]
    listing, fetching = cluster.answers[ApiKey.LIST_OFFSETS], cluster.answers[ApiKey.OFFSET_FETCH]
    away = {"until": 100.0}

    def when_back(answer: ScriptedResponse) -> ScriptedResponse:
        def answered(tree: Mapping[str, Any]) -> Any:
            is_unreachable = asyncio.get_running_loop().time() < away["until"]
            return ConnectionLostError("away") if is_unreachable else answer(tree)

        return answered

    cluster.answers[ApiKey.LIST_OFFSETS] = when_back(listing)
    cluster.answers[ApiKey.OFFSET_FETCH] = when_back(fetching)

    async def scenario() -> None:
        async with in_group(cluster) as consumer:
            await subscribed(consumer)
            while not (records := await consumer.poll(1_000)):
                assert asyncio.get_running_loop().time() < 200
            assert records[0].value == b"a"
            assert asyncio.get_running_loop().time() >= 100

    run(scenario)


def test_a_callback_error_is_raised_from_poll_and_the_partitions_are_revoked() -> None:
    cluster = ScriptedCluster()

    def failing(_: list[TopicPartition]) -> None:
        raise ZeroDivisionError

    async def scenario() -> None:
        async with in_group(cluster, enable_auto_commit=False) as consumer:
            consumer.subscribe(["t"], on_revoked=failing)
            while not consumer.assignment:
                await consumer.poll(100)
            cluster.answers[ApiKey.HEARTBEAT] = lambda _: {"error_code": ErrorCode.rebalance_in_progress.value}
            await asyncio.sleep(4)
            with pytest.raises(ZeroDivisionError):
                await consumer.poll(1_000)
            assert consumer.assignment == []
            cluster.answers[ApiKey.HEARTBEAT] = lambda _: {"error_code": 0}
            consumer.subscribe(["t"])
            await consumer.poll(1_000)
            assert consumer.assignment == [HERE]

    run(scenario)


def test_a_poll_that_is_cancelled_can_be_repeated() -> None:
    cluster = ScriptedCluster()
    cluster.log = [b"a"]

    async def scenario() -> None:
        async with in_group(cluster) as consumer:
            consumer.subscribe(["t"])
            for wait_s in (0.0005, 0.0015, 0.0025, 0.0035, 0.0045):
                polling = asyncio.create_task(consumer.poll(1_000))
                await asyncio.sleep(wait_s)
                if polling.cancel():
                    await asyncio.gather(polling, return_exceptions=True)
                else:
                    assert [record.value for record in polling.result()] == [b"a"]
                    return
            assert [record.value for record in await consumer.poll(1_000)] == [b"a"]

    run(scenario)


def test_fetches_from_an_unreachable_leader_back_off() -> None:
    cluster = ScriptedCluster()
    cluster.is_unreachable = True

    async def scenario() -> None:
        async with Consumer(cluster=cluster, auto_offset_reset="earliest") as consumer:
            consumer.assign([HERE])
            await consumer.poll(60_000)
            assert 40 < cluster.fetches < 100
            cluster.is_unreachable, cluster.log = False, [b"a"]
            assert (await anext(consumer)).value == b"a"

    run(scenario)


def test_failed_position_lookups_back_off() -> None:
    cluster = ScriptedCluster(request_timeout_ms=50)
    cluster.answers[ApiKey.LIST_OFFSETS] = lambda _: ConnectionLostError("away")

    async def scenario() -> None:
        async with Consumer(cluster=cluster) as consumer:
            consumer.assign([HERE])
            await consumer.poll(60_000)
            assert 40 < len(cluster.sent) < 100

    run(scenario)


class Halved(ScriptedCluster):
    """A second partition's offset cannot be had: it has no leader, or one that says nothing, or there is none."""

    def __init__(self, leader: int) -> None:
        super().__init__()
        self.log = [b"a"]
        self.stale = 0
        partitions = (PartitionInfo(0, 1, 0, (1,), (1,)), PartitionInfo(1, leader, 0, (1, 2), (1,)))
        self._known = {"t": TopicInfo("t", None, partitions)}
        tell = self.answers[ApiKey.LIST_OFFSETS]

        async def hang() -> None:
            await asyncio.sleep(100_000)

        self.answers[ApiKey.LIST_OFFSETS] = lambda tree: (
            tell(tree) if tree["topics"][0]["partitions"][0]["partition_index"] == 0 else hang()
        )

    def refresh_soon(self) -> None:
        self.stale += 1


@pytest.mark.parametrize("committed", [{}, {0: 0}])
@pytest.mark.parametrize(
    ("leader", "other"), [(-1, TopicPartition("t", 1)), (2, TopicPartition("t", 1)), (1, TopicPartition("u", 0))]
)
def test_a_failed_offset_lookup_does_not_block_other_partitions(
    leader: int, other: TopicPartition, committed: dict[int, int]
) -> None:
    cluster = Halved(leader)
    cluster.committed = committed

    async def scenario() -> None:
        async with in_group(cluster, enable_auto_commit=False) as consumer:
            consumer.assign([HERE, other])
            assert [record.value for record in await consumer.poll(1_000)] == [b"a"]

    run(scenario)


def test_a_record_that_arrived_between_two_polls_is_returned_at_once() -> None:
    async def scenario() -> None:
        cluster = ScriptedCluster()
        cluster.log = [b"a"]
        async with Consumer(cluster=cluster, auto_offset_reset="earliest") as consumer:
            consumer.assign([HERE])
            assert (await anext(consumer)).value == b"a"
            cluster.log += [b"b"]
            await asyncio.sleep(2)
            async with asyncio.timeout(1):
                assert (await anext(consumer)).value == b"b"

    run(scenario)


def test_unassigned_partitions_are_not_read() -> None:
    async def scenario() -> None:
        cluster, other = Halved(leader=-1), TopicPartition("t", 1)
        cluster.log = [b"a", b"b"]
        async with Consumer(cluster=cluster, auto_offset_reset="earliest", max_poll_records=1) as consumer:
            consumer.assign([HERE])
            assert [record.value for record in await consumer.poll(1_000)] == [b"a"]
            consumer.assign([other])
            assert await consumer.poll(1_000) == []
            consumer.assign([HERE])
            assert [record.value for record in await consumer.poll(1_000)] == [b"a"]

    run(scenario)


def test_partitions_that_stay_assigned_continue() -> None:
    async def scenario() -> None:
        cluster, other = Halved(leader=-1), TopicPartition("t", 1)
        cluster.log = [b"a", b"b"]
        async with Consumer(cluster=cluster, auto_offset_reset="earliest", max_poll_records=1) as consumer:
            consumer.assign([HERE])
            assert [record.value for record in await consumer.poll(1_000)] == [b"a"]
            consumer.pause([HERE])
            consumer.assign([HERE, other])
            assert await consumer.position(HERE) == 1
            assert await consumer.poll(1_000) == []
            consumer.resume([HERE])
            assert [record.value for record in await consumer.poll(1_000)] == [b"b"]

    run(scenario)


@pytest.mark.parametrize(("leader", "other"), [(2, TopicPartition("t", 1)), (1, TopicPartition("u", 0))])
def test_a_position_is_returned_as_soon_as_it_is_found(leader: int, other: TopicPartition) -> None:
    async def scenario() -> None:
        async with Consumer(cluster=Halved(leader), auto_offset_reset="earliest") as consumer:
            consumer.assign([HERE, other])
            assert await consumer.position(HERE, timeout_ms=1_000) == 0

    run(scenario)


def test_a_partition_is_read_soon_after_it_gets_a_leader() -> None:
    cluster = Halved(leader=-1)
    cluster.log = []
    other = TopicPartition("t", 1)

    async def scenario() -> None:
        async with Consumer(cluster=cluster, auto_offset_reset="earliest") as consumer:
            consumer.assign([HERE, other])
            await consumer.poll(60_000)
            assert 40 < cluster.stale < 800
            with pytest.raises(RequestTimedOutError):
                await consumer.position(other, timeout_ms=1)
            at = {"partition_index": 1, "error_code": 0, "offset": 7, "timestamp": -1, "leader_epoch": 0}
            cluster.answers[ApiKey.LIST_OFFSETS] = lambda _: {"topics": [{"name": "t", "partitions": [at]}]}
            partitions = tuple(PartitionInfo(index, 1, 0, (1,), (1,)) for index in (0, 1))
            cluster._known = {"t": TopicInfo("t", None, partitions)}
            assert await consumer.position(other, timeout_ms=2_000) == 7

    run(scenario)


def test_a_fatal_lookup_error_is_raised_although_another_leader_is_unreachable() -> None:
    cluster = Halved(leader=2)
    refused = {"partition_index": 1, "error_code": int(ErrorCode.topic_authorization_failed)}
    cluster.answers[ApiKey.LIST_OFFSETS] = lambda tree: (
        ConnectionLostError("away")
        if tree["topics"][0]["partitions"][0]["partition_index"] == 0
        else {"topics": [{"name": "t", "partitions": [refused]}]}
    )

    async def scenario() -> None:
        async with Consumer(cluster=cluster) as consumer:
            consumer.assign([HERE, TopicPartition("t", 1)])
            with pytest.raises(KafkaError, match="TOPIC_AUTHORIZATION_FAILED"):
                await consumer.poll(10_000)

    run(scenario)


def test_offset_lookups_return_all_offsets_or_raise() -> None:
    cluster = Halved(leader=-1)

    async def scenario() -> None:
        async with Consumer(cluster=cluster) as consumer:
            with pytest.raises(KafkaError) as told:
                await consumer.end_offsets([HERE, TopicPartition("t", 1)])
            assert told.value.code is ErrorCode.leader_not_available

    run(scenario)


@pytest.mark.parametrize("committed", [True, False])
def test_a_position_that_is_looked_up_brings_its_epoch_along(committed: bool) -> None:
    class Recorded(ScriptedCluster):
        async def _fetch(self, tree: Mapping[str, Any]) -> Any:
            each = tree["topics"][0]["partitions"][0]
            received.append((each["fetch_offset"], each["last_fetched_epoch"]))
            return await super()._fetch(tree)

    received: list[tuple[int, int]] = []
    cluster = Recorded()
    cluster.log = [b"a", b"b", b"c"]
    cluster._known = {"t": TopicInfo("t", None, (PartitionInfo(0, 1, 6, (1,), (1,)),))}
    tell_committed, tell_end = cluster.answers[ApiKey.OFFSET_FETCH], cluster.answers[ApiKey.LIST_OFFSETS]

    def with_epoch(tree: Mapping[str, Any]) -> Any:
        answer = tell_committed(tree)
        answer["groups"][0]["topics"][0]["partitions"][0]["committed_leader_epoch"] = 5
        return answer

    def end_with_epoch(tree: Mapping[str, Any]) -> Any:
        answer = tell_end(tree)
        answer["topics"][0]["partitions"][0]["leader_epoch"] = 6
        return answer

    cluster.answers[ApiKey.OFFSET_FETCH] = with_epoch
    cluster.answers[ApiKey.LIST_OFFSETS] = end_with_epoch
    cluster.committed = {0: 2} if committed else {}

    async def scenario() -> None:
        async with in_group(cluster, auto_offset_reset="latest") as consumer:
            consumer.assign([HERE])
            await consumer.poll(1_000)
            assert received[0] == ((2, 5) if committed else (3, 6))

    run(scenario)


def test_a_truncated_log_is_read_from_the_truncation_offset() -> None:
    cluster = ScriptedCluster()
    cluster.log = [b"a", b"b", b"c"]

    async def scenario() -> None:
        async with Consumer(cluster=cluster, auto_offset_reset="latest") as consumer:
            consumer.assign([HERE])
            consumer.seek(HERE, 0)
            assert [record.value for record in await consumer.poll()] == [b"a", b"b", b"c"]
            cluster.log, cluster.truncated_to = [b"a", b"x", b"y", b"z"], 1
            records = await consumer.poll(10_000)
            assert [(record.offset, record.value) for record in records[:1]] == [(1, b"x")]

    run(scenario)


def test_reset_none_raises_on_a_truncated_log() -> None:
    cluster = ScriptedCluster()
    cluster.log = [b"a", b"b", b"c"]

    async def scenario() -> None:
        async with Consumer(cluster=cluster, auto_offset_reset="none") as consumer:
            consumer.assign([HERE])
            consumer.seek(HERE, 0)
            await consumer.poll()
            cluster.truncated_to = 1
            for _ in range(2):
                with pytest.raises(NoOffsetForPartitionError, match="truncated to offset 1"):
                    await consumer.poll(10_000)
            cluster.truncated_to = None
            consumer.seek(HERE, 2)
            assert [record.value for record in await consumer.poll()] == [b"c"]

    run(scenario)


def test_a_position_is_not_looked_for_for_ever() -> None:
    cluster = ScriptedCluster()
    cluster.answers[ApiKey.LIST_OFFSETS] = lambda _: ConnectionLostError("away")

    async def scenario() -> None:
        async with Consumer(cluster=cluster) as consumer:
            consumer.assign([HERE])
            for settings, limit_s in (({}, 30), ({"timeout_ms": 5_000}, 5)):
                began = asyncio.get_running_loop().time()
                with pytest.raises(RequestTimedOutError, match="t-0"):
                    await consumer.position(HERE, **settings)
                assert asyncio.get_running_loop().time() - began == pytest.approx(limit_s, abs=0.1)
            looking = asyncio.create_task(consumer.position(HERE))
            await asyncio.sleep(1)
            await consumer.close()
            with pytest.raises(ClientClosedError):
                await looking

    run(scenario)


def test_a_callback_cannot_poll() -> None:
    cluster = ScriptedCluster()

    async def polling(_: list[TopicPartition]) -> None:
        await consumer.poll()

    consumer = in_group(cluster)

    async def scenario() -> None:
        async with consumer:
            consumer.subscribe(["t"], on_assigned=polling)
            with pytest.raises(IllegalStateError, match="callback cannot poll"):
                await consumer.poll(10_000)

    run(scenario)


def test_a_consumer_takes_the_settings_of_its_cluster() -> None:
    consumer = Consumer("localhost:9092", client_id="c", request_timeout_ms=7, metadata_max_age_ms=8)
    cluster = consumer.cluster
    assert (cluster.client_id, cluster.request_timeout_ms, cluster.metadata_max_age_ms) == ("c", 7, 8)
    with pytest.raises(TypeError, match="request_timeout_ms"):
        Consumer(cluster=cluster, request_timeout_ms=7)
    with pytest.raises(TypeError, match="gruop_id"):
        Consumer("localhost:9092", gruop_id="g")


@pytest.mark.parametrize("name", ["", "\ud800", 5])
def test_invalid_topics_are_rejected(name: Any) -> None:
    cluster = ScriptedCluster()

    async def scenario() -> None:
        async with in_group(cluster) as consumer:
            with pytest.raises(ValueError, match="valid names"):
                consumer.subscribe(["t", name])
            with pytest.raises(ValueError, match="not a partition"):
                consumer.assign([TopicPartition(name, 0)])

    run(scenario)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"group_id": ""}, "group_id is empty"),
        ({"group_instance_id": "a"}, "requires a group_id"),
        ({"auto_offset_reset": "first"}, "auto_offset_reset"),
        ({"isolation_level": "serializable"}, "isolation_level"),
        ({"max_poll_records": 0}, "max_poll_records"),
        ({"heartbeat_interval_ms": 10_000, "session_timeout_ms": 10_000}, "heartbeat_interval_ms"),
        ({"assignors": []}, "at least one assignor"),
        ({"assignors": ["best"]}, "unknown assignor 'best'"),
        ({"bootstrap": None}, "either"),
        ({"bootstrap": "localhost:http"}, "host:port"),
    ],
)
def test_invalid_settings_are_rejected(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        Consumer(**{"bootstrap": "localhost:9092", **settings})
