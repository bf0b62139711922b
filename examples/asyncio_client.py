"""Produces and consumes with the asyncio client.

Start a broker first: moldau serve
Run: python examples/asyncio_client.py [bootstrap servers]
"""

import asyncio
import sys

from moldau.client import Admin, Consumer, Producer

BOOTSTRAP = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9092"
ORDERS = [b"tea", b"coffee", b"cocoa"]


async def main() -> None:
    async with Admin(BOOTSTRAP) as admin:
        existing = [topic.name for topic in await admin.list_topics()]
        if "async-orders" not in existing:
            await admin.create_topic("async-orders", partitions=3)

    async with Producer(BOOTSTRAP) as producer:
        deliveries = [await producer.send("async-orders", order, key=order) for order in ORDERS]
        for delivery in deliveries:
            metadata = await delivery
            print(f"stored in partition {metadata.partition} at offset {metadata.offset}")

    async with Consumer(BOOTSTRAP, group_id="async-billing", auto_offset_reset="earliest") as consumer:
        consumer.subscribe(["async-orders"])
        received = 0
        async for record in consumer:
            print(f"received {record.value!r}")
            received += 1
            if received == len(ORDERS):
                break


asyncio.run(main())
