"""Closing a consumer: within its timeout, whatever hangs, and without leftover tasks. In virtual time."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from moldau.client.consumer.consumer import Consumer
from moldau.client.errors import IllegalStateError
from moldau.client.record import TopicPartition
from moldau.wire.api_keys import ApiKey
from support.scripted_cluster import ScriptedCluster, in_group, run, subscribed


async def never(_: Mapping[str, Any]) -> None:
    await asyncio.Event().wait()


async def reading(cluster: ScriptedCluster, **settings: Any) -> Consumer:
    """One in a group that has been handed a record."""
    cluster.log = [b"a"]
    consumer = in_group(cluster, **settings)
    await consumer.start()
    consumer.subscribe(["t"])
    await anext(consumer)
    return consumer


def now() -> float:
    return asyncio.get_running_loop().time()


def test_close_is_limited_by_its_timeout() -> None:
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
        await consumer.close()

    run(scenario)


def test_a_callback_cannot_close_its_consumer() -> None:
    cluster = ScriptedCluster()

    async def scenario() -> None:
        async with in_group(cluster) as consumer:
            consumer.subscribe(["t"], on_assigned=lambda _: consumer.close())
            with pytest.raises(IllegalStateError, match="callback"):
                await consumer.poll(10_000)

    run(scenario)


def test_closing_a_consumer_leaves_no_task_running() -> None:
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
        assert cluster._update_listeners == []
        assert cluster._tracked == {}

    run(scenario)


def test_a_hanging_broker_uses_only_its_share_of_the_timeout() -> None:
    cluster = ScriptedCluster()

    async def scenario() -> None:
        consumer = await reading(cluster)
        cluster.answers[ApiKey.OFFSET_COMMIT] = cluster.answers[ApiKey.LEAVE_GROUP] = never
        began = now()
        await consumer.close(timeout_ms=2_000)
        assert now() - began == pytest.approx(2, abs=0.1)
        assert len(asyncio.all_tasks()) == 1

    run(scenario)


def test_leaving_the_group_uses_the_remaining_time() -> None:
    cluster = ScriptedCluster()

    async def scenario() -> None:
        consumer = await reading(cluster)
        cluster.answers[ApiKey.LEAVE_GROUP] = never
        began = now()
        await consumer.close(timeout_ms=2_000)
        assert now() - began == pytest.approx(2, abs=0.1)
        assert cluster.committed == {0: 1}
        assert cluster.sent[-1] == ApiKey.LEAVE_GROUP

    run(scenario)


def test_a_callback_that_hangs_does_not_keep_the_consumer_open() -> None:
    cluster = ScriptedCluster()
    entered, go_on = asyncio.Event(), asyncio.Event()

    async def hanging(_: list[TopicPartition]) -> None:
        entered.set()
        await go_on.wait()

    async def scenario() -> None:
        consumer = in_group(cluster)
        await consumer.start()
        consumer.subscribe(["t"], on_assigned=hanging)
        polling = asyncio.create_task(consumer.poll(5_000))
        await entered.wait()
        began = now()
        await consumer.close(timeout_ms=1_000)
        assert now() - began == pytest.approx(1, abs=0.1)
        beats = cluster.sent.count(ApiKey.HEARTBEAT)
        await asyncio.sleep(60)
        assert cluster.sent.count(ApiKey.HEARTBEAT) == beats
        go_on.set()
        with pytest.raises(IllegalStateError, match="closed"):
            await polling
        assert len(asyncio.all_tasks()) == 1
        assert cluster._tracked == {}

    run(scenario)


@pytest.mark.parametrize("hangs", [ApiKey.OFFSET_COMMIT, ApiKey.LEAVE_GROUP])
def test_a_cancelled_close_ends_at_once_and_leaves_no_tasks(hangs: ApiKey) -> None:
    cluster = ScriptedCluster()

    async def scenario() -> None:
        consumer = await reading(cluster)
        cluster.answers[hangs] = never
        closing = asyncio.create_task(consumer.close())
        await asyncio.sleep(1)
        closing.cancel()
        began = now()
        with pytest.raises(asyncio.CancelledError):
            await closing
        assert now() - began == pytest.approx(0, abs=0.1)
        assert len(asyncio.all_tasks()) == 1
        await consumer.close()
        assert cluster._update_listeners == []

    run(scenario)


def test_concurrent_closes_wait_for_the_same_close() -> None:
    cluster = ScriptedCluster()

    async def slowly(_: Mapping[str, Any]) -> Any:
        await asyncio.sleep(1)
        return {"error_code": 0, "members": []}

    async def scenario() -> None:
        consumer = await reading(cluster)
        cluster.answers[ApiKey.LEAVE_GROUP] = slowly
        began = now()
        first = asyncio.create_task(consumer.close())
        await asyncio.sleep(0.5)
        await consumer.close()
        assert now() - began > 1
        assert first.done()
        assert cluster.sent.count(ApiKey.LEAVE_GROUP) == 1

    run(scenario)


def test_a_callback_of_the_closing_cannot_close() -> None:
    cluster = ScriptedCluster()

    async def scenario() -> None:
        consumer = in_group(cluster)
        await consumer.start()
        consumer.subscribe(["t"], on_revoked=lambda _: consumer.close())
        while not consumer.assignment:
            await consumer.poll(100)
        with pytest.raises(IllegalStateError, match="callback"):
            await consumer.close()
        assert len(asyncio.all_tasks()) == 1

    run(scenario)
