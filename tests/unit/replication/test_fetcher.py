"""A replica fetcher against a scripted leader: requests, appends and failures."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, cast
from uuid import UUID

import pytest

from moldau.client.errors import ErrorCode
from moldau.errors import CorruptRecordError, FencedLeaderEpochError, MoldauError, PeerUnreachableError, StorageError
from moldau.logs.store import LogName
from moldau.metadata.image import TOPIC_RESOURCE, ConfigResource, MetadataImage
from moldau.partitions.follower_state import FollowerFetchPosition
from moldau.platform.clock import SystemClock
from moldau.raft.messages import EpochEndOffset
from moldau.replication import fetcher
from moldau.replication.fetch_session import PartitionKey
from moldau.replication.fetcher import FetcherContext, ReplicaFetcher
from moldau.replication.quota import ReplicationQuotaManager
from moldau.settings.broker import BrokerSettings
from moldau.settings.effective import EffectiveSettings
from moldau.wire.codec import Message
from support.replication_nodes import DirectPeers

LEADER, FOLLOWER = 1, 2
PATIENCE_S = 20


def run(test: "Coroutine[Any, Any, None]") -> None:
    asyncio.run(asyncio.wait_for(test, PATIENCE_S))


class FakePartition:
    """Counts one byte as one record."""

    def __init__(self, topic: str, index: int = 0, *, offset: int = 0, leader_epoch: int = 1) -> None:
        self.name = LogName(topic, index)
        self.topic_id = UUID(bytes=topic.encode().ljust(16, b"\0"))
        self.failure: MoldauError | None = None
        self.offset = offset
        self.start_offset = 0
        self.last_epoch = 0
        self.leader_epoch = leader_epoch
        self.is_in_sync = False
        self.high_watermark = 0
        self.calls: list[tuple[Any, ...]] = []
        self.errors: list[Exception] = []
        self.gate: asyncio.Event | None = None
        self.is_safe = True

    def fetch_position(self) -> FollowerFetchPosition | None:
        if not self.is_safe:
            return None
        return FollowerFetchPosition(self.offset, self.last_epoch, self.leader_epoch, self.start_offset)

    async def append_as_follower(
        self, data: memoryview, leader_epoch: int, high_watermark: int, leader_start_offset: int
    ) -> None:
        self.calls.append(("append", bytes(data), leader_epoch, high_watermark))
        if self.gate is not None:
            await self.gate.wait()
        self._check(leader_epoch)
        self.offset += len(data)
        self.high_watermark = high_watermark
        self.start_offset = max(self.start_offset, leader_start_offset)

    async def truncate_to_divergence(self, diverging: EpochEndOffset, leader_epoch: int) -> None:
        self.calls.append(("truncate", diverging, leader_epoch))
        self._check(leader_epoch)
        self.offset = diverging.offset
        self.last_epoch = diverging.epoch

    async def reset_to(self, offset: int, leader_epoch: int) -> None:
        self.calls.append(("begin at", offset, leader_epoch))
        self._check(leader_epoch)
        self.offset = self.start_offset = offset

    def _check(self, leader_epoch: int) -> None:
        if self.errors:
            raise self.errors.pop(0)
        if leader_epoch != self.leader_epoch:
            raise FencedLeaderEpochError("another epoch")


class ScriptedLeader:
    """Passes each request to the test and waits for its response; keeps the session as a leader does."""

    def __init__(self) -> None:
        self.requests: asyncio.Queue[tuple[Message, asyncio.Future[Any]]] = asyncio.Queue()

    async def serve(self, request: Message) -> Any:
        response: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.requests.put_nowait((request, response))
        return await response

    async def asked(self) -> "Fetch":
        return Fetch(*await self.requests.get())


class Fetch:
    def __init__(self, request: Message, response: "asyncio.Future[Any]") -> None:
        self.request = request
        self._answer = response

    @property
    def to_send(self) -> dict[tuple[UUID, int], int]:
        """Offsets."""
        return {
            (topic.topic_id, each.partition): each.fetch_offset
            for topic in self.request.topics
            for each in topic.partitions
        }

    @property
    def forgotten(self) -> list[tuple[UUID, int]]:
        return [(topic.topic_id, index) for topic in self.request.forgotten_topics_data for index in topic.partitions]

    def fail(self, error: Exception) -> None:
        self._answer.set_exception(error)

    def response(self, *parts: tuple[FakePartition, dict[str, Any]], session_id: int = 7, code: int = 0) -> None:
        self._answer.set_result(
            {
                "throttle_time": 0,
                "error_code": code,
                "session_id": session_id,
                "responses": [
                    {
                        "topic_id": partition.topic_id,
                        "partitions": [
                            {
                                "partition_index": partition.name.partition,
                                "error_code": 0,
                                "high_watermark": -1,
                                "last_stable_offset": -1,
                                "log_start_offset": 0,
                                "aborted_transactions": None,
                                "records": b"",
                                **part,
                            }
                        ],
                    }
                    for partition, part in parts
                ],
            }
        )


class World:
    def __init__(self, image: MetadataImage | None = None, **settings: Any) -> None:
        broker = BrokerSettings(**{"replica_fetch_backoff_ms": 20, **settings})
        self.settings = EffectiveSettings(broker, image or MetadataImage())
        self.peers = DirectPeers()
        self.leader = ScriptedLeader()
        self.peers.nodes[LEADER] = self.leader.serve
        self.broker_epoch = 40
        self._fetch_states: list[PartitionKey] = []
        clock = SystemClock()
        self.fetcher = ReplicaFetcher(
            LEADER,
            FetcherContext(
                node_id=FOLLOWER,
                cluster_id="c",
                broker_epoch=lambda: self.broker_epoch,
                peers=self.peers,  # type: ignore[arg-type]
                quota=ReplicationQuotaManager(FOLLOWER, self.settings),
                settings=self.settings,
                clock=clock,
                random=random.Random(1),
            ),
        )

    def follow(self, *partitions: FakePartition) -> None:
        """Follows these partitions and no others."""
        keys = [PartitionKey(each.topic_id, each.name.partition) for each in partitions]
        removed = [key for key in self._fetch_states if key not in keys]
        self._fetch_states = keys
        self.fetcher.follow(cast(Any, partitions), removed)

    async def asked(self) -> Fetch:
        return await self.leader.asked()


def with_world(test: Callable[[World], Awaitable[None]], **settings: Any) -> None:
    async def whole() -> None:
        harness = World(**settings)
        try:
            await test(harness)
        finally:
            await harness.fetcher.close()

    run(whole())


def key(partition: FakePartition) -> tuple[UUID, int]:
    return partition.topic_id, partition.name.partition


def test_fetched_records_are_appended_before_the_next_fetch() -> None:
    async def test(harness: World) -> None:
        orders, visits = FakePartition("orders", offset=3), FakePartition("visits")
        orders.gate = asyncio.Event()
        harness.follow(orders, visits)
        fetch = await harness.asked()
        request = fetch.request
        assert (request.replica_state.replica_id, request.replica_state.replica_epoch) == (FOLLOWER, 40)
        assert (request.cluster_id, request.session_id, request.session_epoch) == ("c", 0, 0)
        assert fetch.to_send == {key(orders): 3, key(visits): 0}
        fetch.response(
            (orders, {"records": b"abc", "high_watermark": 4}), (visits, {"records": b"x", "high_watermark": 0})
        )
        while not orders.calls or not visits.calls:
            await asyncio.sleep(0)
        assert visits.offset == 1, "a slow disk of one partition does not delay another"
        assert harness.leader.requests.empty(), "no fetch is sent before the append"
        orders.gate.set()
        fetch = await harness.asked()
        assert (fetch.request.session_id, fetch.request.session_epoch) == (7, 1)
        assert fetch.to_send == {key(orders): 6, key(visits): 1}
        assert orders.calls == [("append", b"abc", 1, 4)]
        fetch.response((visits, {"high_watermark": 1}))
        fetch = await harness.asked()
        assert fetch.to_send == {}, "no position changed"
        assert visits.high_watermark == 1

    with_world(test)


def test_a_diverging_log_is_truncated_and_fetched_from_there() -> None:
    async def test(harness: World) -> None:
        orders = FakePartition("orders", offset=9)
        harness.follow(orders)
        fetch = await harness.asked()
        fetch.response((orders, {"diverging_epoch": {"epoch": 3, "end_offset": 5}}))
        fetch = await harness.asked()
        assert orders.calls == [("truncate", EpochEndOffset(3, 5), 1)]
        assert fetch.to_send == {key(orders): 5}
        assert fetch.request.topics[0].partitions[0].last_fetched_epoch == 3

    with_world(test)


def test_a_replica_behind_the_leaders_log_start_resets_its_log() -> None:
    async def test(harness: World) -> None:
        orders = FakePartition("orders", offset=9)
        harness.follow(orders)
        out_of_range = {"error_code": int(ErrorCode.offset_out_of_range)}
        (await harness.asked()).response((orders, {**out_of_range, "log_start_offset": 20}))
        fetch = await harness.asked()
        assert orders.calls == [("begin at", 20, 1)]
        assert fetch.to_send == {key(orders): 20}
        orders.calls.clear()
        fetch.response((orders, {**out_of_range, "log_start_offset": 3}))
        await harness.asked()
        assert orders.calls == [], "a log with records of a known epoch is not reset"

    with_world(test)


@pytest.mark.parametrize("code", [ErrorCode.unknown_topic_id, ErrorCode.kafka_storage_error])
def test_a_partition_with_an_error_is_delayed_while_others_continue(code: ErrorCode) -> None:
    async def test(harness: World) -> None:
        orders, visits = FakePartition("orders"), FakePartition("visits")
        harness.follow(orders, visits)
        (await harness.asked()).response((orders, {"error_code": int(code)}), (visits, {"records": b"x"}))
        fetch = await harness.asked()
        assert fetch.forgotten == [key(orders)]
        assert fetch.to_send == {key(visits): 1}
        assert fetch.request.max_wait < 500, "the long poll ends when the delay is over"
        while key(orders) not in fetch.to_send:
            await asyncio.sleep(0.001)
            fetch.response()
            fetch = await harness.asked()
        assert fetch.to_send == {key(orders): 0}

    with_world(test)


def test_a_new_leader_epoch_is_fetched_at_once_and_stale_responses_are_dropped() -> None:
    async def test(harness: World) -> None:
        orders, visits = FakePartition("orders"), FakePartition("visits")
        harness.follow(orders, visits)
        fetch = await harness.asked()
        orders.leader_epoch = 2
        harness.follow(orders, visits)
        fetch.response((orders, {"records": b"old"}), (visits, {"records": b"x"}))
        fetch = await harness.asked()
        assert orders.calls == [("append", b"old", 1, -1)], "it is appended with the epoch of the request"
        assert orders.offset == 0
        assert fetch.to_send == {key(orders): 0, key(visits): 1}
        assert fetch.request.topics[0].partitions[0].current_leader_epoch == 2

    with_world(test)


def test_a_removed_partition_is_not_fetched() -> None:
    async def test(harness: World) -> None:
        orders, visits = FakePartition("orders"), FakePartition("visits")
        harness.follow(orders, visits)
        fetch = await harness.asked()
        harness.follow(visits)
        fetch.response((orders, {"records": b"late"}), (visits, {"records": b"x"}))
        fetch = await harness.asked()
        assert orders.calls == []
        assert fetch.forgotten == [key(orders)]

    with_world(test)


@pytest.mark.parametrize(
    "error", [CorruptRecordError("damaged on its way"), StorageError("no room"), ZeroDivisionError()]
)
def test_a_partition_whose_append_fails_is_delayed_while_others_continue(error: Exception) -> None:
    async def test(harness: World) -> None:
        orders, visits = FakePartition("orders"), FakePartition("visits")
        orders.errors = [error]
        harness.follow(orders, visits)
        (await harness.asked()).response((orders, {"records": b"a"}), (visits, {"records": b"x"}))
        fetch = await harness.asked()
        assert fetch.forgotten == [key(orders)]
        assert fetch.to_send == {key(visits): 1}
        for _ in range(20):
            await asyncio.sleep(0.005)
            fetch.response()
            fetch = await harness.asked()
            if fetch.to_send:
                break
        assert fetch.to_send == {key(orders): 0}

    with_world(test)


def test_a_partition_with_a_failed_log_is_not_fetched_until_its_role_changes() -> None:
    async def test(harness: World) -> None:
        orders, visits = FakePartition("orders"), FakePartition("visits")
        harness.follow(orders, visits)
        fetch = await harness.asked()
        orders.errors = [StorageError("gone")]
        orders.failure = StorageError("gone")
        fetch.response((orders, {"records": b"a"}), (visits, {"records": b"x"}))
        fetch = await harness.asked()
        assert fetch.forgotten == [key(orders)]
        orders.failure = None
        await asyncio.sleep(0.05)
        fetch.response()
        fetch = await harness.asked()
        assert fetch.to_send == {}
        orders.leader_epoch = 2
        harness.follow(orders, visits)
        fetch.response()
        fetch = await harness.asked()
        assert fetch.to_send == {key(orders): 0}

    with_world(test)


def test_a_response_without_progress_delays_the_partition() -> None:
    async def test(harness: World) -> None:
        orders, visits = FakePartition("orders", offset=5), FakePartition("visits")
        harness.follow(orders, visits)
        (await harness.asked()).response((orders, {"diverging_epoch": {"epoch": 0, "end_offset": 5}}))
        fetch = await harness.asked()
        assert fetch.forgotten == [key(orders)]

    with_world(test, replica_fetch_backoff_ms=60_000)


def test_a_partition_with_unsynced_records_is_not_fetched() -> None:
    async def test(harness: World) -> None:
        orders, visits = FakePartition("orders", offset=5), FakePartition("visits")
        orders.is_safe = False
        harness.follow(orders, visits)
        fetch = await harness.asked()
        assert fetch.to_send == {key(visits): 0}
        orders.is_safe = True
        while key(orders) not in fetch.to_send:
            await asyncio.sleep(0.001)
            fetch.response()
            fetch = await harness.asked()
        assert fetch.to_send[key(orders)] == 5

    with_world(test)


@pytest.mark.parametrize(
    "code",
    [ErrorCode.fetch_session_id_not_found, ErrorCode.invalid_fetch_session_epoch, ErrorCode.inconsistent_cluster_id],
)
def test_after_a_fetch_error_the_next_fetch_is_full(code: ErrorCode) -> None:
    async def test(harness: World) -> None:
        orders, visits = FakePartition("orders"), FakePartition("visits")
        harness.follow(orders, visits)
        (await harness.asked()).response((orders, {"records": b"a"}))
        fetch = await harness.asked()
        assert fetch.to_send == {key(orders): 1}
        fetch.response(session_id=0, code=int(code))
        fetch = await harness.asked()
        assert fetch.request.session_epoch == 0
        assert fetch.to_send == {key(visits): 0, key(orders): 1}

    with_world(test)


def test_repeated_session_errors_are_backed_off() -> None:
    async def test(harness: World) -> None:
        harness.follow(FakePartition("orders"))
        (await harness.asked()).response(session_id=0, code=int(ErrorCode.fetch_session_id_not_found))
        await asyncio.sleep(0.02)
        assert harness.leader.requests.empty()

    with_world(test, replica_fetch_backoff_ms=60_000)


def test_an_unreachable_leader_is_retried_with_a_full_fetch() -> None:
    async def test(harness: World) -> None:
        orders = FakePartition("orders")
        harness.follow(orders)
        (await harness.asked()).response((orders, {"records": b"a"}))
        fetch = await harness.asked()
        bytes_before = fetch.request.max_bytes
        fetch.fail(PeerUnreachableError("lost"))
        fetch = await harness.asked()
        assert fetch.request.session_epoch == 0
        assert fetch.to_send == {key(orders): 1}
        assert fetch.request.max_bytes == bytes_before // 2, "responses may be too large for a slow network"
        fetch.response((orders, {}))
        fetch = await harness.asked()
        assert fetch.request.max_bytes == bytes_before
        fetch.fail(PeerUnreachableError("refused", is_connection_refused=True))
        assert (await harness.asked()).request.max_bytes == bytes_before

    with_world(test)


def test_a_new_partition_interrupts_a_long_poll() -> None:
    async def test(harness: World) -> None:
        orders, visits = FakePartition("orders"), FakePartition("visits")
        harness.follow(orders)
        await harness.asked()
        harness.follow(orders, visits)
        fetch = await harness.asked()
        assert harness.peers.drops == 1
        assert fetch.to_send == {key(orders): 0, key(visits): 0}
        bytes_max = harness.settings.broker.replica_fetch_response_max_bytes
        assert fetch.request.max_bytes == bytes_max, "an interrupt is no failure"

    with_world(test, replica_fetch_backoff_ms=60_000)


def test_partitions_added_one_by_one_do_not_interrupt_each_fetch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetcher, "INTERRUPT_INTERVAL_MS", 60_000)

    async def test(harness: World) -> None:
        partitions = [FakePartition("orders", index) for index in range(5)]
        harness.follow(partitions[0])
        await harness.asked()
        harness.follow(*partitions[:2])
        await harness.asked()
        for count in range(3, 6):
            harness.follow(*partitions[:count])
            await asyncio.sleep(0.02)
        assert harness.peers.drops == 1

    with_world(test)


def test_a_leader_without_partitions_is_disconnected_and_reconnected_later() -> None:
    async def test(harness: World) -> None:
        orders = FakePartition("orders")
        harness.follow(orders)
        fetch = await harness.asked()
        harness.follow()
        fetch.response((orders, {"records": b"late"}))
        while not harness.peers.drops:
            await asyncio.sleep(0.001)
        assert orders.calls == []
        assert harness.leader.requests.empty()
        harness.follow(orders)
        fetch = await harness.asked()
        assert fetch.request.session_epoch == 0
        assert fetch.to_send == {key(orders): 0}

    with_world(test)


def test_closing_waits_for_the_append_in_progress() -> None:
    async def test(harness: World) -> None:
        orders = FakePartition("orders")
        orders.gate = asyncio.Event()
        harness.follow(orders)
        (await harness.asked()).response((orders, {"records": b"abc"}))
        while not orders.calls:
            await asyncio.sleep(0)
        closing = asyncio.create_task(harness.fetcher.close())
        await asyncio.sleep(0.01)
        assert not closing.done()
        orders.gate.set()
        await closing
        assert orders.offset == 3
        assert harness.leader.requests.empty()

    with_world(test)


def test_a_throttled_partition_is_delayed_and_in_sync_ones_are_not() -> None:
    configs = {"follower.replication.throttled.replicas": "*"}
    image = MetadataImage(configs={ConfigResource(TOPIC_RESOURCE, "orders"): configs})

    async def test(harness: World) -> None:
        orders, visits = FakePartition("orders"), FakePartition("visits")
        harness.follow(orders, visits)
        # It exceeds its rate at once; the other partition is not throttled.
        (await harness.asked()).response(
            (orders, {"records": b"a" * 200, "high_watermark": 1_000}),
            (visits, {"records": b"x" * 200, "high_watermark": 1_000}),
        )
        fetch = await harness.asked()
        assert fetch.forgotten == [key(orders)]
        assert fetch.to_send == {key(visits): 200}
        while key(orders) not in fetch.to_send:
            await asyncio.sleep(0.01)
            fetch.response()
            fetch = await harness.asked()
        fetch.response((orders, {"records": b"a" * 800, "high_watermark": 1_000}))
        fetch = await harness.asked()
        assert fetch.to_send == {key(orders): 1_000}, "it has reached the high watermark"

    with_world(test, image=image, follower_replication_throttled_rate=100)


def test_appending_a_large_response_yields_to_other_tasks() -> None:
    async def test(harness: World) -> None:
        partitions = [FakePartition("orders", index) for index in range(6)]
        turns: list[int] = []

        async def other() -> None:
            while True:
                turns.append(sum(len(each.calls) for each in partitions))
                await asyncio.sleep(0)

        harness.follow(*partitions)
        fetch = await harness.asked()
        fetch.response(*((each, {"records": bytes(1_048_576)}) for each in partitions))
        busy = asyncio.create_task(other())
        await harness.asked()
        busy.cancel()
        assert {1, 2, 3, 4, 5} <= set(turns)

    with_world(test)
