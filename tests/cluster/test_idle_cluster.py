"""An idle cluster: followers stay in sync and no leader changes."""

import asyncio

from moldau.client import Admin, Producer
from moldau.testing import Cluster

LAG_MS = 2_000
LAGS = 2.5
"""The test lasts this many times the lag after which a follower leaves the ISR."""


def test_followers_of_idle_partitions_stay_in_sync_and_leaders_stay_leaders() -> None:
    settings = {"replica.lag.time.max.ms": str(LAG_MS), "replica.fetch.wait.max.ms": "100"}

    async def main(cluster: Cluster) -> None:
        def seen() -> list[tuple[int, int, tuple[int, ...]]]:
            topic = cluster.nodes[1].broker.metadata.image.topics["orders"]
            return [(each.leader_epoch, each.partition_epoch, each.isr) for each in topic.partitions]

        async with Admin(cluster.bootstrap) as admin, Producer(cluster.bootstrap) as producer:
            await admin.create_topic("orders", 6, 3)
            for partition in range(6):
                await (await producer.send("orders", b"one", partition=partition))
            before, epoch = seen(), cluster.nodes[1].broker.quorum.epoch
            await asyncio.sleep(LAGS * LAG_MS / 1000)
            assert seen() == before
            assert all(len(isr) == 3 for _, _, isr in before)
            assert cluster.nodes[1].broker.quorum.epoch == epoch

    with Cluster(3, settings=settings) as running:
        asyncio.run(main(running))
