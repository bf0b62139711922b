"""RecordListener on three nodes: leaders and coordinators are killed, and every record is handled once."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from moldau.client import Acknowledgement, Admin, Consumer, ConsumerRecord, Producer, RecordListener, TopicPartition
from support.broker_process_cluster import BrokerProcessCluster
from support.topics import unique

pytestmark = pytest.mark.clients

RECORDS = 600
TIMEOUT_S = 120


@pytest.mark.parametrize(
    "options",
    [
        {"ack_mode": "auto"},
        {"ack_mode": "batch", "max_batch_records": 20},
        {"ack_mode": "manual", "max_unacked_records": 50},
        {"ack_mode": "auto", "commit": "before", "max_batch_records": 20},
    ],
    ids=["auto", "batch", "manual", "before"],
)
def test_every_record_is_handled_once_over_failovers(tmp_path: Path, options: dict[str, Any]) -> None:
    topic, group = unique("failover"), unique("group")
    handled: list[bytes | None] = []

    def on_records(records: list[ConsumerRecord]) -> None:
        handled.extend(each.value for each in records)

    def on_acknowledged_record(record: ConsumerRecord, acknowledgement: Acknowledgement) -> None:
        handled.append(record.value)
        asyncio.get_running_loop().call_later(0.01, acknowledgement.acknowledge)

    async def on_record(record: ConsumerRecord) -> None:
        handled.append(record.value)

    handlers = {"auto": on_record, "batch": on_records, "manual": on_acknowledged_record}

    async def produce(nodes: BrokerProcessCluster) -> None:
        async with Producer(nodes.bootstrap) as producer:
            for number in range(RECORDS):
                await producer.send(topic, str(number).encode(), partition=0)
                await asyncio.sleep(0.01)

    async def kill_nodes(nodes: BrokerProcessCluster) -> None:
        """Kills the leader of the topic, and then the coordinator of the group."""
        for victim_of in (topic, "__consumer_offsets"):
            await asyncio.to_thread(nodes.wait_in_sync, topic)
            await asyncio.to_thread(nodes.wait_in_sync, "__consumer_offsets")
            victim = await asyncio.to_thread(nodes.leader_of, victim_of)
            count = len(handled)
            nodes.kill(victim)
            while len(handled) < min(RECORDS, count + 50):
                await asyncio.sleep(0.05)
            await asyncio.to_thread(nodes.start, victim)

    async def test(nodes: BrokerProcessCluster) -> None:
        async with Admin(nodes.bootstrap) as admin:
            await admin.create_topic(topic, partitions=1)
        settings = {"group_id": group, "auto_offset_reset": "earliest", "enable_auto_commit": False}
        async with Consumer(nodes.bootstrap, **settings) as consumer:  # type: ignore[arg-type]
            listener = RecordListener(
                consumer, [topic], handlers[options["ack_mode"]], commit_interval_ms=100, **options
            )
            listening = asyncio.create_task(listener.run())
            producing = asyncio.create_task(produce(nodes))
            while not handled:
                await asyncio.sleep(0.05)
            await kill_nodes(nodes)
            await producing
            partition = TopicPartition(topic, 0)
            committed = None
            while committed is None or committed.offset < RECORDS:
                await asyncio.sleep(0.1)
                assert not listening.done()
                committed = (await consumer.committed([partition]))[partition]
            listener.stop()
            await listening
        assert handled == [str(number).encode() for number in range(RECORDS)]

    async def limited(nodes: BrokerProcessCluster) -> None:
        async with asyncio.timeout(TIMEOUT_S):
            await test(nodes)

    with BrokerProcessCluster(tmp_path, settings={"offsets.topic.num.partitions": "1"}) as nodes:
        asyncio.run(limited(nodes))
