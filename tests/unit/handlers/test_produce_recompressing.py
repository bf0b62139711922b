"""Recompression of batches on topics with their own codec shares the event loop with other work."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from moldau.handlers.a00_produce import produce
from moldau.records import validator as validating
from moldau.records.batch import Batch, split
from moldau.records.batch_builder import build_batch, recompress
from moldau.records.compression import GZIP, LZ4
from moldau.records.record import Record, iterate_records
from moldau.server import cpu_budget as sharing
from moldau.server.api import ClientConnection, RequestContext
from moldau.testing import Broker
from moldau.wire.api_keys import ApiKey
from moldau.wire.codec import Message
from support.admin_broker import decoded_request

PARTITIONS = 3
LONG_OVER_S, NEVER_OVER_S = 0.0, 3600.0
"""How much of a turn may go to recompressing: then every batch takes too long, or none."""


class CpuBudget:
    """Counts iterations of the event loop and records those with a recompression."""

    def __init__(self) -> None:
        self.noted: list[int] = []
        self._now = 0

    def note(self, batch: Batch, compression: int, **more: Any) -> Batch:
        self.noted.append(self._now)
        return recompress(batch, compression, **more)

    async def count(self) -> None:
        while True:
            self._now += 1
            await asyncio.sleep(0)


def to_all_partitions(value: bytes, codec: int) -> Message:
    records = build_batch([Record(value=value)], compression=codec)
    data = [{"index": index, "records": records} for index in range(PARTITIONS)]
    topic = {"name": "orders", "partition_data": data}
    return decoded_request(ApiKey.PRODUCE, 12, acks=1, timeout=1000, topic_data=[topic])


def on_gzip_topic(
    monkeypatch: pytest.MonkeyPatch, scenario: Callable[[Broker], Awaitable[None]], share_s: float = LONG_OVER_S
) -> list[int]:
    """Returns the iterations with a recompression."""
    cpu_budget = CpuBudget()
    monkeypatch.setattr(validating, "recompress", cpu_budget.note)
    monkeypatch.setattr(sharing, "BUDGET_PER_ITERATION_S", share_s)

    async def main() -> None:
        async with Broker(topics={"orders": PARTITIONS}, settings={"compression.type": "gzip"}) as broker:
            counting = asyncio.create_task(cpu_budget.count())
            await scenario(broker)
            counting.cancel()

    asyncio.run(asyncio.wait_for(main(), 20))
    return cpu_budget.noted


async def send(broker: Broker, connection: ClientConnection, request: Message) -> list[int]:
    response = await produce(request, RequestContext(connection, 12, "test"), broker.node.broker)
    return [each.get("error_code", 0) for each in response["responses"][0]["partition_responses"]]


async def from_three_clients(broker: Broker) -> None:
    clients = [ClientConnection(f"127.0.0.1:{port}", "PLAINTEXT") for port in range(3)]
    responses = await asyncio.gather(*(send(broker, each, to_all_partitions(b"x", LZ4)) for each in clients))
    assert responses == [[0] * PARTITIONS] * 3


def test_slow_recompression_handles_one_batch_per_iteration(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu_budget = on_gzip_topic(monkeypatch, from_three_clients)
    assert len(cpu_budget) == len(set(cpu_budget)) == 3 * PARTITIONS


def test_fast_recompression_runs_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu_budget = on_gzip_topic(monkeypatch, from_three_clients, share_s=NEVER_OVER_S)
    assert len(cpu_budget) == 3 * PARTITIONS
    assert len(set(cpu_budget)) == 1


def test_batches_in_the_topics_codec_are_not_recompressed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(broker: Broker) -> None:
        client = ClientConnection("127.0.0.1:1", "PLAINTEXT")
        assert await send(broker, client, to_all_partitions(b"x", GZIP)) == [0] * PARTITIONS

    assert on_gzip_topic(monkeypatch, scenario) == []


def test_batches_of_one_connection_keep_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(broker: Broker) -> None:
        client = ClientConnection("127.0.0.1:1", "PLAINTEXT")
        sent = [(b"0", LZ4), (b"1", GZIP), (b"2", LZ4)]
        await asyncio.gather(*(send(broker, client, to_all_partitions(*each)) for each in sent))
        for index in range(PARTITIONS):
            partition = broker.node.broker.replica_manager.get("orders", index)
            assert partition is not None
            found = (await partition.log.read(0, 1_000_000, 3)).read()
            assert [record.value for batch in split(found) for record in iterate_records(batch)] == [b"0", b"1", b"2"]

    on_gzip_topic(monkeypatch, scenario)
