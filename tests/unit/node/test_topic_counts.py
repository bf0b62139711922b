"""Counts of topics on a node that is never scraped."""

import asyncio

from moldau.client import Admin, Producer
from moldau.testing import Broker


def test_counts_of_a_deleted_topic_are_not_kept() -> None:
    async def main() -> None:
        async with Broker(topics={"kept": 1, "deleted": 1}) as broker:
            counts = broker.node.broker.topic_metrics._topics
            async with Admin(broker.bootstrap) as admin, Producer(admin.cluster) as producer:
                for topic in ("kept", "deleted"):
                    await (await producer.send(topic, b"value"))
                assert set(counts) == {"kept", "deleted"}
                await admin.delete_topics(["deleted"])
            while "deleted" in counts:
                await asyncio.sleep(0.01)
            assert set(counts) == {"kept"}

    asyncio.run(asyncio.wait_for(main(), 10))
