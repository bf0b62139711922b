"""Fetches of followers, and of consumers with preferred read replicas.

The handlers of a real in-memory node are called, whose metadata image has other brokers.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from moldau.handlers.a00_produce import produce
from moldau.handlers.a01_fetch import fetch
from moldau.handlers.a02_list_offsets import list_offsets
from moldau.handlers.a21_delete_records import delete_records
from moldau.handlers.a23_offset_for_leader_epoch import offset_for_leader_epoch
from moldau.metadata.image import BrokerRegistration, Endpoint, PartitionRegistration
from moldau.partitions.partition import Partition
from moldau.server.session import ClientConnection, Session
from moldau.testing import Broker
from moldau.wire.api_keys import ApiKey
from support.admin_broker import decoded_request
from support.replicas import batch

OFFSET_OUT_OF_RANGE, NOT_LEADER, REQUEST_TIMED_OUT = 1, 6, 7
FENCED, UNKNOWN_EPOCH, STALE_BROKER, NOT_AVAILABLE = 74, 75, 77, 78
EPOCH = 50
RACK_AWARE = "org.apache.kafka.common.replica.RackAwareReplicaSelector"


class Stage:
    """A node that leads orders-0; the test acts as the follower on node 2."""

    def __init__(self, broker: Broker) -> None:
        self.node = broker.node.broker
        found = self.node.partitions.get("orders", 0)
        assert found is not None
        self.partition: Partition = found
        self.brokers = {
            node: BrokerRegistration(
                node,
                100 * node,
                UUID(int=node),
                (Endpoint("PLAINTEXT", f"host-{node}", 9092),),
                f"r{node}",
                False,
            )
            for node in (1, 2, 3)
        }
        self.version = 17
        self.listener = "PLAINTEXT"

    async def role(self, leader: int = 1, isr: tuple[int, ...] = (1, 2), epoch: int = EPOCH) -> None:
        image = PartitionRegistration(0, (1, 2), isr, leader, epoch, epoch)
        # The node's own metadata shows the same, as if it had been published.
        known = self.node.metadata.image
        orders = replace(known.topics["orders"], partitions=(image,))
        self.node.metadata._image = replace(
            known, topics={**known.topics, "orders": orders}, brokers=self.brokers
        )
        await self.partition.apply_image(image, brokers=self.brokers)

    async def append(self, *values: bytes) -> None:
        await self.partition.append([batch(*values)])
        await asyncio.sleep(0)

    def session(self, version: int | None = None) -> Session:
        connection = ClientConnection("127.0.0.1:5", self.listener)
        return Session(connection, self.version if version is None else version, "test")

    async def fetch(
        self, offset: int, *, max_wait: int = 0, rack: str = "", version: int | None = None, **more: Any
    ) -> dict[str, Any]:
        replica_id = more.pop("replica_id", -1)
        partition = {
            "partition": 0,
            "fetch_offset": offset,
            "partition_max_bytes": 1_000_000,
            "current_leader_epoch": more.pop("epoch", -1),
            "last_fetched_epoch": more.pop("last_epoch", -1),
            "log_start_offset": more.pop("start", 0),
        }
        request = decoded_request(
            ApiKey.FETCH,
            self.version if version is None else version,
            replica_id=replica_id,
            replica_state={"replica_id": replica_id, "replica_epoch": more.pop("broker_epoch", -1)},
            max_wait=max_wait,
            min_bytes=1,
            max_bytes=1_000_000,
            isolation_level=0,
            session_id=0,
            session_epoch=-1,
            topics=[{"topic": "orders", "topic_id": self.partition.topic_id, "partitions": [partition]}],
            forgotten_topics_data=[],
            rack_id=rack,
        )
        answer: dict[str, Any] = await fetch(request, self.session(version), self.node)
        return answer

    async def follow(self, offset: int, **more: Any) -> dict[str, Any]:
        asked = {"replica_id": 2, "broker_epoch": 200, "epoch": EPOCH, "last_epoch": EPOCH, **more}
        [told] = (await self.fetch(offset, **asked))["responses"][0]["partitions"]
        return {"error_code": 0, **told}

    async def consume(self, offset: int, **more: Any) -> dict[str, Any]:
        [told] = (await self.fetch(offset, **more))["responses"][0]["partitions"]
        return {"error_code": 0, **told}


def on_stage(scene: Callable[[Stage], Awaitable[None]], **settings: str) -> None:
    async def main() -> None:
        async with Broker(topics={"orders": 1}, settings=settings) as broker:
            stage = Stage(broker)
            metadata = broker.node.broker.metadata
            image = metadata.image
            try:
                await stage.role()
                await scene(stage)
            finally:
                # The node stops in the cluster that it is really in.
                metadata._image = image

    asyncio.run(asyncio.wait_for(main(), 20))


def test_followers_read_all_records_and_consumers_only_replicated_ones() -> None:
    async def scene(stage: Stage) -> None:
        await stage.append(b"a")
        told = await stage.follow(0)
        assert told["records"].size > 0
        assert told["high_watermark"] == 0
        assert (await stage.consume(0))["records"].size == 0
        assert (await stage.follow(1))["high_watermark"] == 1
        assert (await stage.consume(0))["records"].size > 0

    on_stage(scene)


def test_delayed_fetches_complete_on_append_for_followers_and_on_commit_for_consumers() -> None:
    async def scene(stage: Stage) -> None:
        follower = asyncio.ensure_future(stage.follow(0, max_wait=60_000))
        consumer = asyncio.ensure_future(stage.consume(0, max_wait=60_000))
        await asyncio.sleep(0)
        assert not follower.done()
        await stage.append(b"a")
        assert (await follower)["records"].size > 0
        assert not consumer.done()
        await stage.follow(1)
        assert (await consumer)["records"].size > 0

    on_stage(scene)


def test_a_follower_without_session_waits_with_follower_fetching_enabled() -> None:
    async def scene(stage: Stage) -> None:
        await stage.append(b"a")
        follower = asyncio.ensure_future(stage.follow(1, max_wait=60_000))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not follower.done(), "it has learned the high watermark, and would ask again at once"
        await stage.append(b"b")
        assert (await follower)["records"].size > 0

    on_stage(scene, **{"replica.selector.class": "RackAwareReplicaSelector"})


def test_a_delayed_follower_fetch_completes_when_leadership_is_lost() -> None:
    async def scene(stage: Stage) -> None:
        follower = asyncio.ensure_future(stage.follow(0, max_wait=60_000))
        await asyncio.sleep(0)
        await stage.role(leader=2, epoch=EPOCH + 1)
        assert (await follower)["error_code"] in (NOT_LEADER, FENCED)

    on_stage(scene)


def test_delete_records_waits_for_the_follower() -> None:
    async def scene(stage: Stage) -> None:
        await stage.append(b"a", b"b", b"c")
        await stage.follow(3)
        follower = asyncio.ensure_future(stage.follow(3, max_wait=60_000))
        await asyncio.sleep(0)
        topic = {"name": "orders", "partitions": [{"partition_index": 0, "offset": 2}]}
        request = decoded_request(ApiKey.DELETE_RECORDS, 2, topics=[topic], timeout=60_000)
        low_watermark_future = asyncio.ensure_future(delete_records(request, stage.session(2), stage.node))
        assert (await follower)["log_start_offset"] == 2, "it is told at once"
        assert not low_watermark_future.done()
        await stage.follow(3, start=2)
        [told] = (await low_watermark_future)["topics"][0]["partitions"]
        assert (told.get("error_code", 0), told["low_watermark"]) == (0, 2)
        topic = {"name": "orders", "partitions": [{"partition_index": 0, "offset": 3}]}
        late = decoded_request(ApiKey.DELETE_RECORDS, 2, topics=[topic], timeout=1)
        [told] = (await delete_records(late, stage.session(2), stage.node))["topics"][0]["partitions"]
        assert told["error_code"] == REQUEST_TIMED_OUT

    on_stage(scene)


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        ({"replica_id": 3, "broker_epoch": 300}, UNKNOWN_EPOCH),
        ({"replica_id": 9, "broker_epoch": 300}, UNKNOWN_EPOCH),
        ({"broker_epoch": 199}, STALE_BROKER),
        ({"broker_epoch": -1}, STALE_BROKER),
        ({"broker_epoch": 201}, UNKNOWN_EPOCH),
        ({"epoch": EPOCH - 1}, FENCED),
        ({"epoch": EPOCH + 1}, UNKNOWN_EPOCH),
        ({"epoch": -1}, FENCED),
        ({"version": 14}, NOT_LEADER),
    ],
)
def test_an_unknown_follower_is_rejected(asked: dict[str, int], code: int) -> None:
    async def scene(stage: Stage) -> None:
        await stage.append(b"a")
        told = await stage.follow(1, **asked)
        assert told["error_code"] == code
        assert told["records"].size == 0
        assert stage.partition.high_watermark == 0

    on_stage(scene)


def test_followers_are_served_on_the_inter_broker_listener_only() -> None:
    async def scene(stage: Stage) -> None:
        stage.listener = "OUTSIDE"
        assert (await stage.follow(0))["error_code"] == NOT_LEADER
        assert (await stage.consume(0))["error_code"] == 0

    on_stage(scene)


def test_an_out_of_range_follower_gets_the_log_start_offset() -> None:
    async def scene(stage: Stage) -> None:
        await stage.append(b"a", b"b")
        await stage.follow(2)
        await stage.partition.delete_records(1)
        told = await stage.follow(0, last_epoch=-1)
        assert (told["error_code"], told["log_start_offset"]) == (OFFSET_OUT_OF_RANGE, 1)

    on_stage(scene)


def test_a_diverging_follower_gets_the_end_of_its_epoch() -> None:
    async def scene(stage: Stage) -> None:
        await stage.append(b"a")
        await stage.role(epoch=EPOCH + 3)
        told = await stage.follow(4, epoch=EPOCH + 3, last_epoch=EPOCH + 1)
        assert (told["error_code"], told["diverging_epoch"]) == (0, {"epoch": EPOCH, "end_offset": 1})

    on_stage(scene)


def test_a_request_to_a_non_leader_returns_the_leader_and_its_endpoint() -> None:
    async def scene(stage: Stage) -> None:
        await stage.role(leader=2, epoch=EPOCH + 1)
        answer = await stage.fetch(0, version=10)
        [told] = answer["responses"][0]["partitions"]
        assert told["error_code"] == NOT_LEADER
        assert told["current_leader"] == {"leader_id": 2, "leader_epoch": EPOCH + 1}
        assert answer["node_endpoints"] == [{"node_id": 2, "host": "host-2", "port": 9092, "rack": "r2"}]
        stale = await stage.fetch(0, epoch=EPOCH)
        [told] = stale["responses"][0]["partitions"]
        assert (told["error_code"], told["current_leader"]["leader_id"]) == (FENCED, 2)
        data = {"index": 0, "records": batch(b"a").to_bytes()}
        written = decoded_request(
            ApiKey.PRODUCE,
            10,
            acks=-1,
            timeout=1000,
            topic_data=[{"name": "orders", "partition_data": [data]}],
        )
        answer = await produce(written, stage.session(10), stage.node)
        [told] = answer["responses"][0]["partition_responses"]
        assert told["error_code"] == NOT_LEADER
        assert told["current_leader"] == {"leader_id": 2, "leader_epoch": EPOCH + 1}
        assert [each["node_id"] for each in answer["node_endpoints"]] == [2]

    on_stage(scene)


def test_a_follower_serves_consumers_from_version_11_on() -> None:
    async def scene(stage: Stage) -> None:
        await stage.append(b"a")
        await stage.follow(1)
        await stage.role(leader=2, epoch=EPOCH + 1)
        assert (await stage.consume(0, version=11))["records"].size > 0
        assert (await stage.consume(0, version=10))["error_code"] == NOT_LEADER

    on_stage(scene)


def test_a_consumer_gets_the_replica_in_its_rack() -> None:
    async def scene(stage: Stage) -> None:
        await stage.append(b"a")
        assert (await stage.consume(0, rack="r2"))["preferred_read_replica"] == -1, "it has not shown up yet"
        await stage.follow(1)
        sent = await stage.consume(0, rack="r2")
        assert (sent["preferred_read_replica"], sent["records"].size) == (2, 0)
        for rack in ("", "r1", "r3"):
            stays = await stage.consume(0, rack=rack)
            assert stays["preferred_read_replica"] == -1
            assert stays["records"].size > 0
        await stage.role(isr=(1,), epoch=EPOCH + 1)
        await stage.follow(1, epoch=EPOCH + 1)
        assert (await stage.consume(0, rack="r2"))["preferred_read_replica"] == -1, "it is not in sync"

    on_stage(scene, **{"replica.selector.class": RACK_AWARE})


def test_without_a_selector_consumers_read_from_the_leader() -> None:
    async def scene(stage: Stage) -> None:
        await stage.append(b"a")
        await stage.follow(1)
        assert (await stage.consume(0, rack="r2"))["records"].size > 0

    on_stage(scene)


def test_a_new_leader_has_no_latest_offset_until_its_follower_fetches() -> None:
    async def scene(stage: Stage) -> None:
        await stage.append(b"a")
        await stage.role(epoch=EPOCH + 1)

        async def latest(version: int) -> tuple[int, int]:
            partition = {"partition_index": 0, "timestamp": -1}
            topic = {"name": "orders", "partitions": [partition]}
            request = decoded_request(
                ApiKey.LIST_OFFSETS, version, replica_id=-1, isolation_level=0, topics=[topic]
            )
            answer = await list_offsets(request, stage.session(version), stage.node)
            [told] = answer["topics"][0]["partitions"]
            return told["error_code"], told["offset"]

        assert await latest(7) == (NOT_AVAILABLE, -1)
        assert await latest(4) == (5, -1)
        await stage.follow(1, epoch=EPOCH + 1)
        assert await latest(7) == (0, 1)

    on_stage(scene)


def test_any_replica_returns_its_log_end_to_the_controller() -> None:
    async def scene(stage: Stage) -> None:
        await stage.append(b"a", b"b")
        await stage.role(leader=-1, epoch=EPOCH + 1)

        async def end_of(replica_id: int, epoch: int) -> tuple[int, int, int]:
            partition = {"partition": 0, "current_leader_epoch": -1, "leader_epoch": epoch}
            topic = {"topic": "orders", "partitions": [partition]}
            request = decoded_request(
                ApiKey.OFFSET_FOR_LEADER_EPOCH, 4, replica_id=replica_id, topics=[topic]
            )
            answer = await offset_for_leader_epoch(request, stage.session(4), stage.node)
            [told] = answer["topics"][0]["partitions"]
            return told["error_code"], told["leader_epoch"], told["end_offset"]

        assert await end_of(-2, 2**31 - 1) == (0, EPOCH, 2)
        assert await end_of(-1, 2**31 - 1) == (NOT_LEADER, -1, -1)
        assert await end_of(-2, EPOCH) == (NOT_LEADER, -1, -1)

    on_stage(scene)
