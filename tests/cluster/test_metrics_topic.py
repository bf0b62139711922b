"""The topic `moldau.metrics`: a setting starts and stops it, and each row comes from one node, also after a kill."""

import asyncio
import json
from collections import Counter
from typing import Any

from moldau.client import Admin, Consumer, Producer, TopicPartition
from moldau.client.admin.types import ConfigChange, ConfigResource, ResourceType
from moldau.lag.sampler import METRICS_TOPIC
from moldau.testing import Cluster

SETTING = "metrics.topic.enable"
INTERVAL_MS = 200
RECORDS = 30
PATIENCE_S = 60


async def enable(admin: Admin, value: str) -> None:
    all_brokers = ConfigResource(ResourceType.BROKER, "")
    results = await admin.alter_configs({all_brokers: [ConfigChange(SETTING, value)]})
    assert results == {all_brokers: None}


class Rows:
    """Reads the metrics topic in order."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self.read: list[tuple[str, dict[str, Any]]] = []

    async def wait_for(self, **fields: Any) -> dict[str, Any]:
        """Returns the next row with these fields."""
        async for record in self._consumer:
            row = json.loads(record.value or b"")
            self.read.append(((record.key or b"").decode(), dict(row)))
            if all(row.get(name) == value for name, value in fields.items()):
                return row
        raise AssertionError("the consumer has ended")


async def run(cluster: Cluster) -> None:
    async with (
        asyncio.timeout(PATIENCE_S),
        Admin(cluster.bootstrap) as admin,
        Producer(cluster.bootstrap) as producer,
        Consumer(cluster.bootstrap, auto_offset_reset="earliest") as consumer,
    ):
        for number in range(RECORDS):
            await producer.send("orders", b"v", partition=number % 2)
        await producer.flush()
        partitions = {TopicPartition("orders", 0): 5, TopicPartition("orders", 1): RECORDS // 2}
        await admin.alter_group_offsets("readers", partitions)
        await admin.alter_group_offsets("sink/1", partitions)
        assert all(node.broker.lag_sampler._task is None for node in cluster.nodes.values()), "nothing reads lag"
        await enable(admin, "true")
        while METRICS_TOPIC not in [each.name for each in await admin.list_topics()]:
            await asyncio.sleep(0.05)
        consumer.assign([TopicPartition(METRICS_TOPIC, 0)])
        # Groups of the metrics topic itself are left out.
        await admin.alter_group_offsets("readers", {TopicPartition(METRICS_TOPIC, 0): 0})
        rows = Rows(consumer)
        for group in ("readers", "sink/1"):
            row = await rows.wait_for(kind="group-lag", group=group, topic="orders", partition=0, commit_rate=0)
            assert row.pop("time_ms") > 0
            assert row.pop("lag_ms") > 0
            assert row == {
                "kind": "group-lag",
                "group": group,
                "topic": "orders",
                "partition": 0,
                "committed_offset": 5,
                "high_watermark": RECORDS // 2,
                "log_start_offset": 0,
                "lag_records": RECORDS // 2 - 5,
                "commit_rate": 0,
                "produce_rate": 0,
                "state": "ok",
            }
        row = await rows.wait_for(kind="partition", topic="orders", partition=1, produce_rate=0)
        assert row.pop("time_ms") > 0
        assert row.pop("size_bytes") > RECORDS // 2
        assert row == {
            "kind": "partition",
            "topic": "orders",
            "partition": 1,
            "high_watermark": RECORDS // 2,
            "log_start_offset": 0,
            "produce_rate": 0,
        }
        assert {row["topic"] for _, row in rows.read} == {"orders"}
        for key, row in rows.read:
            name = f"{row['topic']}/{row['partition']}"
            assert key == (f"{row['group']}/{name}" if row["kind"] == "group-lag" else name)
        repeated = Counter((key, row["time_ms"]) for key, row in rows.read)
        assert set(repeated.values()) == {1}
        # Every node goes on writing with the next leader.
        await asyncio.to_thread(cluster.kill, cluster.leader_of(METRICS_TOPIC))
        await admin.alter_group_offsets("readers", {TopicPartition("orders", 0): 6})
        await admin.alter_group_offsets("sink/1", {TopicPartition("orders", 0): 7})
        await rows.wait_for(group="readers", committed_offset=6)
        await rows.wait_for(group="sink/1", committed_offset=7)
        await enable(admin, "false")
        previous, end = {}, await consumer.end_offsets([TopicPartition(METRICS_TOPIC, 0)])
        while previous != end:
            # The nodes would write several times in between.
            await asyncio.sleep(5 * INTERVAL_MS / 1_000)
            previous, end = end, await consumer.end_offsets([TopicPartition(METRICS_TOPIC, 0)])


def test_each_row_is_written_once_per_sample() -> None:
    with Cluster(3, topics={"orders": 2}, settings={"lag.sample.interval.ms": str(INTERVAL_MS)}) as cluster:
        asyncio.run(run(cluster))
