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
from moldau.server.api import ClientConnection, RequestContext
from moldau.testing import Broker
from moldau.wire.api_keys import ApiKey
from support.admin_broker import FakeAvailability, decoded_request
from support.replicas import batch

OFFSET_OUT_OF_RANGE, NOT_LEADER, REQUEST_TIMED_OUT = 1, 6, 7
FENCED, UNKNOWN_EPOCH, STALE_BROKER, NOT_AVAILABLE = 74, 75, 77, 78
EPOCH = 50
RACK_AWARE = "org.apache.kafka.common.replica.RackAwareReplicaSelector"


class LeaderHarness:
    """A node that leads orders-0; the test acts as the follower on node 2."""

    def __init__(self, broker: Broker) -> None:
        self.node = broker.node.broker
        found = self.node.replica_manager.get("orders", 0)
        assert found is not None
        self.partition: Partition = found
        self.brokers = {
            node: BrokerRegistration(
                node, 100 * node, UUID(int=node), (Endpoint("PLAINTEXT", f"host-{node}", 9092),), f"r{node}", False
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
        self.node.metadata.image = replace(known, topics={**known.topics, "orders": orders}, brokers=self.brokers)
        await self.partition.apply_image(image, brokers=self.brokers)

    async def append(self, *values: bytes) -> None:
        await self.partition.append([batch(*values)])
        await asyncio.sleep(0)

    def session(self, version: int | None = None) -> RequestContext:
        connection = ClientConnection("127.0.0.1:5", self.listener)
        return RequestContext(connection, self.version if version is None else version, "test")

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
        response: dict[str, Any] = await fetch(request, self.session(version), self.node)
        return response

    async def follow(self, offset: int, **more: Any) -> dict[str, Any]:
        fields = {"replica_id": 2, "broker_epoch": 200, "epoch": EPOCH, "last_epoch": EPOCH, **more}
        [result] = (await self.fetch(offset, **fields))["responses"][0]["partitions"]
        return {"error_code": 0, **result}

    async def consume(self, offset: int, **more: Any) -> dict[str, Any]:
        [result] = (await self.fetch(offset, **more))["responses"][0]["partitions"]
        return {"error_code": 0, **result}


def with_harness(scenario: Callable[[LeaderHarness], Awaitable[None]], **settings: str) -> None:
    async def main() -> None:
        async with Broker(topics={"orders": 1}, settings=settings) as broker:
            harness = LeaderHarness(broker)
            metadata = broker.node.broker.metadata
            image = metadata.image
            try:
                await harness.role()
                await scenario(harness)
            finally:
                # The node stops in the cluster that it is really in.
                metadata.image = image

    asyncio.run(asyncio.wait_for(main(), 20))


def test_followers_read_all_records_and_consumers_only_replicated_ones() -> None:
    async def scenario(harness: LeaderHarness) -> None:
        await harness.append(b"a")
        result = await harness.follow(0)
        assert result["records"].size > 0
        assert result["high_watermark"] == 0
        assert (await harness.consume(0))["records"].size == 0
        assert (await harness.follow(1))["high_watermark"] == 1
        assert (await harness.consume(0))["records"].size > 0

    with_harness(scenario)


def test_delayed_fetches_complete_on_append_for_followers_and_on_commit_for_consumers() -> None:
    async def scenario(harness: LeaderHarness) -> None:
        follower = asyncio.ensure_future(harness.follow(0, max_wait=60_000))
        consumer = asyncio.ensure_future(harness.consume(0, max_wait=60_000))
        await asyncio.sleep(0)
        assert not follower.done()
        await harness.append(b"a")
        assert (await follower)["records"].size > 0
        assert not consumer.done()
        await harness.follow(1)
        assert (await consumer)["records"].size > 0

    with_harness(scenario)


def test_a_follower_without_session_waits_with_follower_fetching_enabled() -> None:
    async def scenario(harness: LeaderHarness) -> None:
        await harness.append(b"a")
        follower = asyncio.ensure_future(harness.follow(1, max_wait=60_000))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not follower.done(), "it has learned the high watermark, and would ask again at once"
        await harness.append(b"b")
        assert (await follower)["records"].size > 0

    with_harness(scenario, **{"replica.selector.class": "RackAwareReplicaSelector"})


def test_a_delayed_follower_fetch_completes_when_leadership_is_lost() -> None:
    async def scenario(harness: LeaderHarness) -> None:
        follower = asyncio.ensure_future(harness.follow(0, max_wait=60_000))
        await asyncio.sleep(0)
        await harness.role(leader=2, epoch=EPOCH + 1)
        assert (await follower)["error_code"] in (NOT_LEADER, FENCED)

    with_harness(scenario)


def test_delete_records_waits_for_the_follower() -> None:
    async def scenario(harness: LeaderHarness) -> None:
        await harness.append(b"a", b"b", b"c")
        await harness.follow(3)
        follower = asyncio.ensure_future(harness.follow(3, max_wait=60_000))
        await asyncio.sleep(0)
        topic = {"name": "orders", "partitions": [{"partition_index": 0, "offset": 2}]}
        request = decoded_request(ApiKey.DELETE_RECORDS, 2, topics=[topic], timeout=60_000)
        low_watermark_future = asyncio.ensure_future(delete_records(request, harness.session(2), harness.node))
        assert (await follower)["log_start_offset"] == 2, "it is told at once"
        assert not low_watermark_future.done()
        await harness.follow(3, start=2)
        [result] = (await low_watermark_future)["topics"][0]["partitions"]
        assert (result.get("error_code", 0), result["low_watermark"]) == (0, 2)
        topic = {"name": "orders", "partitions": [{"partition_index": 0, "offset": 3}]}
        late = decoded_request(ApiKey.DELETE_RECORDS, 2, topics=[topic], timeout=1)
        [result] = (await delete_records(late, harness.session(2), harness.node))["topics"][0]["partitions"]
        assert result["error_code"] == REQUEST_TIMED_OUT

    with_harness(scenario)


@pytest.mark.parametrize(
    ("fields", "code"),
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
def test_an_unknown_follower_is_rejected(fields: dict[str, int], code: int) -> None:
    async def scenario(harness: LeaderHarness) -> None:
        await harness.append(b"a")
        result = await harness.follow(1, **fields)
        assert result["error_code"] == code
        assert result["records"].size == 0
        assert harness.partition.high_watermark == 0

    with_harness(scenario)


def test_followers_are_served_on_the_inter_broker_listener_only() -> None:
    async def scenario(harness: LeaderHarness) -> None:
        harness.listener = "OUTSIDE"
        assert (await harness.follow(0))["error_code"] == NOT_LEADER
        assert (await harness.consume(0))["error_code"] == 0

    with_harness(scenario)


def test_an_out_of_range_follower_gets_the_log_start_offset() -> None:
    async def scenario(harness: LeaderHarness) -> None:
        await harness.append(b"a", b"b")
        await harness.follow(2)
        await harness.partition.delete_records(1)
        result = await harness.follow(0, last_epoch=-1)
        assert (result["error_code"], result["log_start_offset"]) == (OFFSET_OUT_OF_RANGE, 1)

    with_harness(scenario)


def test_a_diverging_follower_gets_the_end_of_its_epoch() -> None:
    async def scenario(harness: LeaderHarness) -> None:
        await harness.append(b"a")
        await harness.role(epoch=EPOCH + 3)
        result = await harness.follow(4, epoch=EPOCH + 3, last_epoch=EPOCH + 1)
        assert (result["error_code"], result["diverging_epoch"]) == (0, {"epoch": EPOCH, "end_offset": 1})

    with_harness(scenario)


def test_a_request_to_a_non_leader_returns_the_leader_and_its_endpoint() -> None:
    async def scenario(harness: LeaderHarness) -> None:
        await harness.role(leader=2, epoch=EPOCH + 1)
        response = await harness.fetch(0, version=10)
        [result] = response["responses"][0]["partitions"]
        assert (result["error_code"], response["node_endpoints"]) == (NOT_LEADER, [])
        assert "current_leader" not in result, "only from version 16 on, as in Kafka"
        response = await harness.fetch(0, version=16, epoch=EPOCH)
        [result] = response["responses"][0]["partitions"]
        assert result["error_code"] == FENCED
        assert result["current_leader"] == {"leader_id": 2, "leader_epoch": EPOCH + 1}
        assert response["node_endpoints"] == [{"node_id": 2, "host": "host-2", "port": 9092, "rack": "r2"}]
        data = {"index": 0, "records": batch(b"a").to_bytes()}
        written = decoded_request(
            ApiKey.PRODUCE, 10, acks=-1, timeout=1000, topic_data=[{"name": "orders", "partition_data": [data]}]
        )
        response = await produce(written, harness.session(10), harness.node)
        [result] = response["responses"][0]["partition_responses"]
        assert result["error_code"] == NOT_LEADER
        assert result["current_leader"] == {"leader_id": 2, "leader_epoch": EPOCH + 1}
        assert [each["node_id"] for each in response["node_endpoints"]] == [2]

    with_harness(scenario)


def test_a_fenced_reader_gets_the_leader_that_the_partition_knows_before_the_image_is_published() -> None:
    async def scenario(harness: LeaderHarness) -> None:
        image = PartitionRegistration(0, (1, 2), (1, 2), 2, EPOCH + 1, EPOCH + 1)
        await harness.partition.apply_image(image, brokers=harness.brokers)
        response = await harness.fetch(0, version=16, epoch=EPOCH)
        [result] = response["responses"][0]["partitions"]
        assert (result["error_code"], result["current_leader"]) == (FENCED, {"leader_id": 2, "leader_epoch": EPOCH + 1})

    with_harness(scenario)


def test_a_leader_whose_process_has_probably_ended_is_not_named() -> None:
    async def scenario(harness: LeaderHarness) -> None:
        await harness.role(leader=2, epoch=EPOCH + 1)
        fake: Any = FakeAvailability(harness.node.metadata)
        fake.suspected = {2}
        harness.node.availability = fake
        for more in ({"version": 10}, {"version": 16, "epoch": EPOCH}):
            response = await harness.fetch(0, **more)
            [result] = response["responses"][0]["partitions"]
            assert result["error_code"] in (NOT_LEADER, FENCED)
            assert (result.get("current_leader"), response["node_endpoints"]) == (None, [])
        data = {"index": 0, "records": batch(b"a").to_bytes()}
        for topic in ({"name": "orders"}, {"topic_id": harness.partition.topic_id}):
            version = 10 if "name" in topic else 13
            written = decoded_request(
                ApiKey.PRODUCE, version, acks=-1, timeout=1000, topic_data=[{**topic, "partition_data": [data]}]
            )
            fake.waited_for = ()
            response = await produce(written, harness.session(version), harness.node)
            assert fake.waited_for == {2}
            [result] = response["responses"][0]["partition_responses"]
            assert (result["error_code"], result["current_leader"]) == (NOT_LEADER, None)

    with_harness(scenario)


def test_a_follower_serves_consumers_from_version_11_on() -> None:
    async def scenario(harness: LeaderHarness) -> None:
        await harness.append(b"a")
        await harness.follow(1)
        await harness.role(leader=2, epoch=EPOCH + 1)
        assert (await harness.consume(0, version=11))["records"].size > 0
        assert (await harness.consume(0, version=10))["error_code"] == NOT_LEADER

    with_harness(scenario)


def test_a_consumer_gets_the_replica_in_its_rack() -> None:
    async def scenario(harness: LeaderHarness) -> None:
        await harness.append(b"a")
        assert (await harness.consume(0, rack="r2"))["preferred_read_replica"] == -1, "it has not shown up yet"
        await harness.follow(1)
        sent = await harness.consume(0, rack="r2")
        assert (sent["preferred_read_replica"], sent["records"].size) == (2, 0)
        for rack in ("", "r1", "r3"):
            stays = await harness.consume(0, rack=rack)
            assert stays["preferred_read_replica"] == -1
            assert stays["records"].size > 0
        await harness.role(isr=(1,), epoch=EPOCH + 1)
        await harness.follow(1, epoch=EPOCH + 1)
        assert (await harness.consume(0, rack="r2"))["preferred_read_replica"] == -1, "it is not in sync"

    with_harness(scenario, **{"replica.selector.class": RACK_AWARE})


def test_without_a_selector_consumers_read_from_the_leader() -> None:
    async def scenario(harness: LeaderHarness) -> None:
        await harness.append(b"a")
        await harness.follow(1)
        assert (await harness.consume(0, rack="r2"))["records"].size > 0

    with_harness(scenario)


def test_a_new_leader_has_no_latest_offset_until_its_follower_fetches() -> None:
    async def scenario(harness: LeaderHarness) -> None:
        await harness.append(b"a")
        await harness.role(epoch=EPOCH + 1)

        async def latest(version: int) -> tuple[int, int]:
            partition = {"partition_index": 0, "timestamp": -1}
            topic = {"name": "orders", "partitions": [partition]}
            request = decoded_request(ApiKey.LIST_OFFSETS, version, replica_id=-1, isolation_level=0, topics=[topic])
            response = await list_offsets(request, harness.session(version), harness.node)
            [result] = response["topics"][0]["partitions"]
            return result["error_code"], result["offset"]

        assert await latest(7) == (NOT_AVAILABLE, -1)
        assert await latest(4) == (5, -1)
        await harness.follow(1, epoch=EPOCH + 1)
        assert await latest(7) == (0, 1)

    with_harness(scenario)


def test_any_replica_returns_its_log_end_to_the_controller() -> None:
    async def scenario(harness: LeaderHarness) -> None:
        await harness.append(b"a", b"b")
        await harness.role(leader=-1, epoch=EPOCH + 1)

        async def end_of(replica_id: int, epoch: int) -> tuple[int, int, int]:
            partition = {"partition": 0, "current_leader_epoch": -1, "leader_epoch": epoch}
            topic = {"topic": "orders", "partitions": [partition]}
            request = decoded_request(ApiKey.OFFSET_FOR_LEADER_EPOCH, 4, replica_id=replica_id, topics=[topic])
            response = await offset_for_leader_epoch(request, harness.session(4), harness.node)
            [result] = response["topics"][0]["partitions"]
            return result["error_code"], result["leader_epoch"], result["end_offset"]

        assert await end_of(-2, 2**31 - 1) == (0, EPOCH, 2)
        assert await end_of(-1, 2**31 - 1) == (NOT_LEADER, -1, -1)
        assert await end_of(-2, EPOCH) == (NOT_LEADER, -1, -1)

    with_harness(scenario)
