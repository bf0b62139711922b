"""The consumer against brokers whose every answer the test writes, in virtual time. What it does with real ones is in
`tests/support/consuming.py`."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

import pytest

from moldau.client.cluster import Cluster
from moldau.client.consumer import Consumer
from moldau.client.consumer_errors import CommitFailedError, IllegalStateError, RebalanceInProgressError
from moldau.client.errors import ConnectionLostError, ErrorCode, KafkaError
from moldau.client.metadata import PartitionInfo, TopicInfo
from moldau.client.record import TopicPartition
from moldau.records.build import build_batch
from moldau.records.record import Record
from moldau.testing.simulation.loop import SimulatedLoop
from moldau.wire.api_keys import ApiKey
from moldau.wire.codec import Message
from moldau.wire.consumer_protocol import Assignment, encode_assignment

HERE = TopicPartition("t", 0)
Answer = Callable[[Mapping[str, Any]], Any]


def message(value: Any) -> Any:
    if isinstance(value, dict):
        return Message(**{name: message(each) for name, each in value.items()})
    return [message(each) for each in value] if isinstance(value, list) else value


class ScriptedCluster(Cluster):
    """One node that leads the topic `t` and coordinates every group. A test replaces the answers it is about; all
    requests but fetches are in `sent`."""

    def __init__(self) -> None:
        super().__init__("nowhere:1")
        partitions = (PartitionInfo(0, 1, 0, (1,), (1,)),)
        self._known = {"t": TopicInfo("t", None, partitions)}
        self.sent: list[ApiKey] = []
        self.lanes: dict[ApiKey, str] = {}
        self.log: list[bytes] = []
        self.committed: dict[int, int] = {}
        self.finds = 0
        self.fetches = 0
        self.generation = 0
        self.answers: dict[ApiKey, Answer] = {
            ApiKey.JOIN_GROUP: self._join,
            ApiKey.SYNC_GROUP: lambda _: {
                "error_code": 0,
                "assignment": encode_assignment(Assignment((("t", 0),))),
            },
            ApiKey.HEARTBEAT: lambda _: {"error_code": 0},
            ApiKey.LEAVE_GROUP: lambda _: {"error_code": 0, "members": []},
            ApiKey.OFFSET_COMMIT: self._commit,
            ApiKey.OFFSET_FETCH: self._committed,
            ApiKey.LIST_OFFSETS: lambda tree: {
                "topics": [
                    {
                        "name": "t",
                        "partitions": [
                            {
                                "partition_index": 0,
                                "error_code": 0,
                                "offset": 0
                                if tree["topics"][0]["partitions"][0]["timestamp"] == -2
                                else len(self.log),
                                "timestamp": -1,
                                "leader_epoch": 0,
                            }
                        ],
                    }
                ]
            },
        }

    async def start(self) -> None:
        pass

    @property
    def topics(self) -> Mapping[str, TopicInfo]:
        return self._known

    def partition_info(self, partition: TopicPartition) -> PartitionInfo | None:
        topic = self._known.get(partition.topic)
        return None if topic is None else topic.partition(partition.partition)

    def known_leader_of(self, partition: TopicPartition) -> int:
        found = self.partition_info(partition)
        return -1 if found is None else found.leader

    async def refresh(self, topics: Iterable[str] | None = None, **_: bool) -> None:
        await asyncio.sleep(0)

    async def _find_coordinator(self, key: str, kind: int) -> int:
        self.finds += 1
        return 1

    async def call(
        self,
        node_id: int | None,
        api: ApiKey,
        tree: Mapping[str, Any],
        *,
        timeout_ms: int | None = None,
        version_max: int | None = None,
        lane: str = "",
    ) -> Message:
        await asyncio.sleep(0.001)
        self.lanes[api] = lane
        if api == ApiKey.FETCH:
            self.fetches += 1
            return message(await self._fetch(tree))
        self.sent.append(api)
        answer = self.answers[api](tree)
        if asyncio.iscoroutine(answer):
            answer = await answer
        if isinstance(answer, Exception):
            raise answer
        return message(answer)

    async def _fetch(self, tree: Mapping[str, Any]) -> Any:
        offset = tree["topics"][0]["partitions"][0]["fetch_offset"]
        code = ErrorCode.offset_out_of_range if offset > len(self.log) else ErrorCode.none
        if offset == len(self.log):
            await asyncio.sleep(tree["max_wait"] / 1000)
        records = [Record(value=value) for value in self.log[offset:]]
        batch = build_batch(records, base_offset=offset) if records else b""
        partition = {
            "partition_index": 0,
            "error_code": code.value,
            "high_watermark": len(self.log),
            "last_stable_offset": len(self.log),
            "log_start_offset": 0,
            "aborted_transactions": None,
            "records": memoryview(batch),
        }
        return {"error_code": 0, "responses": [{"topic": "t", "partitions": [partition]}]}

    def _join(self, tree: Mapping[str, Any]) -> Any:
        self.generation += 1
        return {
            "error_code": 0,
            "generation_id": self.generation,
            "protocol_name": "range",
            "leader": "somebody else",
            "member_id": "m1",
            "members": [],
        }

    def _commit(self, tree: Mapping[str, Any]) -> Any:
        for each in tree["topics"][0]["partitions"]:
            self.committed[each["partition_index"]] = each["committed_offset"]
        return self.commit_answer(ErrorCode.none)

    def commit_answer(self, code: ErrorCode) -> Any:
        return {"topics": [{"name": "t", "partitions": [{"partition_index": 0, "error_code": code.value}]}]}

    def _committed(self, tree: Mapping[str, Any]) -> Any:
        partition = {
            "partition_index": 0,
            "committed_offset": self.committed.get(0, -1),
            "committed_leader_epoch": -1,
            "metadata": "",
            "error_code": 0,
        }
        group = {"group_id": "g", "error_code": 0, "topics": [{"name": "t", "partitions": [partition]}]}
        return {"groups": [group]}


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
        runner.run(scenario())  # type: ignore[arg-type]


def in_group(cluster: Cluster, **settings: Any) -> Consumer:
    return Consumer(cluster=cluster, group_id="g", **{"auto_offset_reset": "earliest", **settings})


async def subscribed(consumer: Consumer) -> None:
    """For a log without records: this would swallow them."""
    consumer.subscribe(["t"])
    while not consumer.assignment:
        await consumer.poll(100)


def test_a_record_is_committed_when_the_next_is_asked_for() -> None:
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
    assert {api for api, lane in cluster.lanes.items() if lane == "group"} == {
        ApiKey.JOIN_GROUP,
        ApiKey.SYNC_GROUP,
        ApiKey.HEARTBEAT,
    }
    assert cluster.lanes[ApiKey.OFFSET_COMMIT] == cluster.lanes[ApiKey.LEAVE_GROUP] == ""


def test_heartbeats_go_on_while_the_user_works() -> None:
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
def test_a_commit_that_is_refused_says_why(code: ErrorCode, error: type[KafkaError]) -> None:
    cluster = ScriptedCluster()
    cluster.log = [b"a"]

    async def scenario() -> None:
        async with in_group(cluster, enable_auto_commit=False) as consumer:
            consumer.subscribe(["t"])
            await anext(consumer)
            cluster.answers[ApiKey.OFFSET_COMMIT] = lambda _: cluster.commit_answer(code)
            with pytest.raises(error) as told:
                await consumer.commit()
            assert told.value.code == code

    run(scenario)


def test_the_next_poll_after_a_commit_that_was_refused_joins_again() -> None:
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
            cluster.answers[ApiKey.OFFSET_COMMIT] = lambda _: cluster.commit_answer(
                ErrorCode.unknown_member_id
            )
            with pytest.raises(CommitFailedError):
                await consumer.commit()
            assert (await anext(consumer)).offset == 0
            assert consumer.group_metadata().generation_id == 2

    run(scenario)
    assert told == ["assigned", "lost", "assigned", "revoked"]


def test_a_commit_follows_a_coordinator_that_moves() -> None:
    cluster = ScriptedCluster()
    cluster.log = [b"a"]
    failures: list[Any] = [cluster.commit_answer(ErrorCode.not_coordinator), ConnectionLostError("gone")]
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
            return cluster.commit_answer(ErrorCode.coordinator_load_in_progress)
        return commit(tree)

    async def scenario() -> None:
        async with in_group(cluster, enable_auto_commit=False) as consumer:
            await subscribed(consumer)
            cluster.answers[ApiKey.OFFSET_COMMIT] = slow_first
            await asyncio.gather(consumer.commit({HERE: 1}), consumer.commit({HERE: 2}))

    run(scenario)
    assert seen == [1, 1, 2]
    assert cluster.committed == {0: 2}


def test_a_broker_that_is_away_is_waited_for() -> None:
    cluster = ScriptedCluster()
    cluster.log = [b"a"]
    listing, fetching = cluster.answers[ApiKey.LIST_OFFSETS], cluster.answers[ApiKey.OFFSET_FETCH]
    away = {"until": 100.0}

    def when_back(answer: Answer) -> Answer:
        def answered(tree: Mapping[str, Any]) -> Any:
            is_away = asyncio.get_running_loop().time() < away["until"]
            return ConnectionLostError("away") if is_away else answer(tree)

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


def test_a_callback_s_error_comes_out_of_the_poll_and_the_partitions_go_all_the_same() -> None:
    cluster = ScriptedCluster()

    def failing(_: list[TopicPartition]) -> None:
        raise ZeroDivisionError

    async def scenario() -> None:
        async with in_group(cluster, enable_auto_commit=False) as consumer:
            consumer.subscribe(["t"], on_revoked=failing)
            while not consumer.assignment:
                await consumer.poll(100)
            cluster.answers[ApiKey.HEARTBEAT] = lambda _: {
                "error_code": ErrorCode.rebalance_in_progress.value
            }
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


def test_closing_does_not_wait_for_ever() -> None:
    cluster = ScriptedCluster()
    cluster.log = [b"a"]

    async def never(_: Mapping[str, Any]) -> None:
        await asyncio.Event().wait()

    async def scenario() -> None:
        consumer = in_group(cluster)
        await consumer.start()
        consumer.subscribe(["t"])
        await anext(consumer)
        cluster.answers[ApiKey.OFFSET_COMMIT] = never
        began = asyncio.get_running_loop().time()
        await consumer.close(timeout_ms=5_000)
        assert asyncio.get_running_loop().time() - began < 6
        assert len(asyncio.all_tasks()) == 1

    run(scenario)


def test_a_callback_that_fails_does_not_keep_the_consumer_from_leaving() -> None:
    cluster = ScriptedCluster()

    def failing(_: list[TopicPartition]) -> None:
        raise ZeroDivisionError

    async def scenario() -> None:
        consumer = in_group(cluster)
        await consumer.start()
        consumer.subscribe(["t"], on_revoked=failing)
        while not consumer.assignment:
            await consumer.poll(100)
        with pytest.raises(ZeroDivisionError):
            await consumer.close()
        assert cluster.sent[-1] == ApiKey.LEAVE_GROUP
        assert len(asyncio.all_tasks()) == 1

    run(scenario)


def test_a_callback_cannot_close_its_consumer() -> None:
    cluster = ScriptedCluster()

    async def scenario() -> None:
        async with in_group(cluster) as consumer:
            consumer.subscribe(["t"], on_assigned=lambda _: consumer.close())
            with pytest.raises(IllegalStateError, match="callback"):
                await consumer.poll(10_000)

    run(scenario)


def test_nothing_is_left_running_behind_a_consumer() -> None:
    cluster = ScriptedCluster()

    async def scenario() -> None:
        async with in_group(cluster) as consumer:
            await subscribed(consumer)
            await asyncio.sleep(1)
        sent = list(cluster.sent)
        assert len(asyncio.all_tasks()) == 1
        await asyncio.sleep(100)
        assert cluster.sent == sent
        assert sent[-1] == ApiKey.LEAVE_GROUP
        assert cluster._callbacks == []
        assert cluster._tracked == {}

    run(scenario)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"group_id": ""}, "group id is empty"),
        ({"group_instance_id": "a"}, "group_id is missing"),
        ({"auto_offset_reset": "first"}, "auto_offset_reset"),
        ({"isolation_level": "serializable"}, "isolation_level"),
        ({"max_poll_records": 0}, "max_poll_records"),
        ({"heartbeat_interval_ms": 10_000, "session_timeout_ms": 10_000}, "heartbeat_interval_ms"),
        ({"assignors": []}, "at least one assignor"),
        ({"assignors": ["best"]}, "no assignor 'best'"),
        ({"bootstrap": None}, "either"),
        ({"bootstrap": "localhost:http"}, "host:port"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        Consumer(**{"bootstrap": "localhost:9092", **settings})
