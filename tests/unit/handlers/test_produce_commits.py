"""Produce to several partitions while leaders and leases change."""

import asyncio
from collections.abc import Sequence
from typing import Any, cast

from moldau.broker_lifecycle.manager import BrokerLease
from moldau.client.errors import ErrorCode
from moldau.error_codes import error_code
from moldau.handlers import REGISTRY
from moldau.handlers.a00_produce import _check_leases, _PartitionResult, _wait_until_committed
from moldau.metadata.image import PartitionRegistration
from moldau.partitions.leader_state import FollowerFetch
from moldau.server.api import Broker as NodeBroker
from moldau.server.api import ClientConnection
from moldau.server.dispatcher import Dispatcher
from moldau.testing import Broker
from moldau.wire.api_keys import ApiKey
from moldau.wire.codec import Message, decoder, encoder
from moldau.wire.frames import encode_request_header
from support.replicas import Replicas, batch, broker_image

PATIENCE_S = 20


async def append(index: int, replicas: Replicas, value: bytes) -> _PartitionResult:
    appended = await replicas.produce(1, value)
    return _PartitionResult(index, replicas[1], appended)


async def run_pending_callbacks() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def run(main: Any) -> None:
    asyncio.run(asyncio.wait_for(main, PATIENCE_S))


def test_records_truncated_during_the_wait_for_another_partition_are_not_acknowledged() -> None:
    async def main() -> None:
        slow, other = Replicas((1, 2)), Replicas((1, 2, 3))
        await slow.begin()
        await other.begin()
        waiting = [await append(0, slow, b"slow"), await append(1, other, b"lost")]
        handling = asyncio.ensure_future(_wait_until_committed(waiting, 30_000))
        await run_pending_callbacks()
        # Another node leads for a while, and the records that only this one has are truncated.
        other.elect(2)
        await other.publish_image()
        await other.produce(2, b"instead")
        await other.replicate(1, 3)
        other.elect(1)
        await other.publish_image()
        await other.replicate(2, 3)
        await slow.replicate(2)
        await handling
        assert [error_code(each.error) for each in waiting] == [0, ErrorCode.not_leader_or_follower]

    run(main())


def test_a_lease_that_expires_during_another_append_fails_the_partition() -> None:
    async def main() -> None:
        first, second = Replicas((1, 2)), Replicas((1, 2))
        await first.begin()
        await second.begin()
        appended = [await append(0, first, b"a")]
        first.leases[1].valid = False
        appended.append(await append(1, second, b"b"))
        _check_leases(appended)
        assert [error_code(each.error) for each in appended] == [ErrorCode.not_leader_or_follower, 0]

    run(main())


def produce_frame(*topics: str, timeout_ms: int = 30_000, records: bytes | None = None) -> bytearray:
    frame = encode_request_header(ApiKey.PRODUCE, 9, 7, "test")
    tree = {
        "transactional_id": None,
        "acks": -1,
        "timeout": timeout_ms,
        "topic_data": [
            {"name": name, "partition_data": [{"index": 0, "records": records or batch(bytes(1000)).to_bytes()}]}
            for name in topics
        ],
    }
    encoder(ApiKey.PRODUCE, 9, "request")(frame, tree)
    return frame


async def handle(node: NodeBroker, frame: bytearray) -> Message:
    connection = ClientConnection("127.0.0.1:5", "PLAINTEXT")
    parts = await Dispatcher(node, REGISTRY).handle(connection, memoryview(frame), lambda: None)
    assert parts is not None
    return decode(parts)


def decode(parts: Sequence[Any]) -> Message:
    response: Message = decoder(ApiKey.PRODUCE, 9, "response")(memoryview(b"".join(map(bytes, parts)))[9:])
    return response


def test_a_produce_releases_its_frame_before_it_waits_for_the_commit() -> None:
    """Otherwise pending produces could exhaust the memory that reading the followers' fetches needs."""

    async def main() -> None:
        async with Broker(topics={"orders": 1, "visits": 1}) as broker:
            node = broker.node.broker
            orders, visits = node.replica_manager.get("orders", 0), node.replica_manager.get("visits", 0)
            assert orders is not None
            assert visits is not None
            brokers = {each: broker_image(each) for each in (1, 2)}
            await orders.apply_image(PartitionRegistration(0, (1, 2), (1, 2), 1, 50, 50), brokers=brokers)
            await visits.apply_image(PartitionRegistration(0, (1, 2), (1, 2), 2, 50, 50), brokers=brokers)
            frame, released = produce_frame("visits", "unknown", "orders"), asyncio.Event()

            def release() -> None:
                # Fails while a view of it exists.
                frame.clear()
                released.set()

            handling = asyncio.ensure_future(
                Dispatcher(node, REGISTRY).handle(
                    ClientConnection("127.0.0.1:5", "PLAINTEXT"), memoryview(frame), release
                )
            )
            await released.wait()
            await run_pending_callbacks()
            assert not handling.done()
            await orders.read_for_follower(FollowerFetch(2, 200, 1, 50, 50, 0), 1000)
            parts = await handling
            assert parts is not None
            response = decode(parts)
            codes = [each.error_code for topic in response.responses for each in topic.partition_responses]
            assert codes == [ErrorCode.not_leader_or_follower, ErrorCode.unknown_topic_or_partition, ErrorCode.none]

    run(main())


class HandoverThatEndsTheLease:
    """A broker that is shutting down. Its lease ends while a response waits for the handover."""

    is_handing_over = True

    def __init__(self, lease: BrokerLease) -> None:
        self._lease = lease

    async def wait_for_handover(self) -> None:
        self._lease.end()


def test_a_lease_that_ends_during_the_handover_fails_the_partition() -> None:
    async def main() -> None:
        async with Broker(topics={"orders": 1}) as broker:
            node = broker.node.broker
            orders = node.replica_manager.get("orders", 0)
            assert orders is not None
            brokers = {each: broker_image(each) for each in (1, 2)}
            await orders.apply_image(PartitionRegistration(0, (1, 2), (1,), 1, 50, 50), brokers=brokers)
            orders._lease = lease = BrokerLease(node.platform.clock)
            lease.extend(node.platform.clock.monotonic_ms() + 60_000)
            lifecycle, node.lifecycle = node.lifecycle, cast(Any, HandoverThatEndsTheLease(lease))
            frame = produce_frame("unknown", "orders")
            response = await handle(node, frame)
            node.lifecycle = lifecycle
            codes = [each.error_code for topic in response.responses for each in topic.partition_responses]
            assert codes == [ErrorCode.unknown_topic_or_partition, ErrorCode.not_leader_or_follower]

    run(main())


def test_records_that_were_appended_but_not_committed_have_offsets() -> None:
    async def main() -> None:
        async with Broker(topics={"orders": 1}) as broker:
            node = broker.node.broker
            orders = node.replica_manager.get("orders", 0)
            assert orders is not None
            brokers = {each: broker_image(each) for each in (1, 2)}
            await orders.apply_image(PartitionRegistration(0, (1, 2), (1, 2), 1, 50, 50), brokers=brokers)
            frame = produce_frame("orders", timeout_ms=1)
            response = await handle(node, frame)
            (partition,) = response.responses[0].partition_responses
            assert partition.error_code == ErrorCode.request_timed_out
            assert (partition.base_offset, partition.log_start_offset) == (0, 0)

    run(main())


def test_a_follower_names_the_leader_also_to_an_invalid_batch() -> None:
    async def main() -> None:
        async with Broker(topics={"orders": 1}) as broker:
            node = broker.node.broker
            orders = node.replica_manager.get("orders", 0)
            assert orders is not None
            brokers = {each: broker_image(each) for each in (1, 2)}
            await orders.apply_image(PartitionRegistration(0, (1, 2), (1, 2), 2, 50, 50), brokers=brokers)
            damaged = bytearray(batch(bytes(1000)).to_bytes())
            damaged[-1] ^= 1
            frame = produce_frame("orders", records=bytes(damaged))
            response = await handle(node, frame)
            (partition,) = response.responses[0].partition_responses
            assert (partition.error_code, partition.log_start_offset) == (ErrorCode.not_leader_or_follower, -1)

    run(main())
