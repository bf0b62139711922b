"""Generated data: reproducible by seed, with late and invalid records."""

import asyncio
import json
from datetime import datetime
from itertools import islice

from moldau.client import Consumer, Producer
from moldau.client.record import TopicPartition
from moldau.pipelines.templates.generator import JITTER_MS, LATE_MS, GeneratedRecord, orders, send_at_rate
from moldau.testing import Broker

START_MS = 1_769_860_800_000


def test_the_same_seed_makes_the_same_orders() -> None:
    assert list(islice(orders(7, start_ms=START_MS), 500)) == list(islice(orders(7, start_ms=START_MS), 500))
    assert list(islice(orders(7, start_ms=START_MS), 500)) != list(islice(orders(8, start_ms=START_MS), 500))


def test_some_orders_are_late_and_a_few_are_invalid() -> None:
    made = list(islice(orders(1, start_ms=START_MS, rate=50), 5000))
    late = bad = 0
    for number, each in enumerate(made):
        now_ms = START_MS + number * 20
        try:
            order = json.loads(each.value or b"")
        except ValueError:
            bad += 1
            continue
        if order["price"] <= 0:
            bad += 1
            continue
        age_ms = now_ms - int(datetime.fromisoformat(order["at"]).timestamp() * 1000)
        assert 0 <= age_ms <= JITTER_MS or LATE_MS <= age_ms <= LATE_MS + JITTER_MS
        late += age_ms >= LATE_MS
        assert each.key.decode() == order["product"]
    assert 20 < late < 100
    assert 5 < bad < 60


def test_records_reach_the_topic_at_a_rate() -> None:
    async def run() -> None:
        async with Broker(topics={"orders": 1}) as broker, Producer(broker.bootstrap) as producer:
            counts: list[int] = []
            enough = asyncio.Event()

            def sent(count: int) -> None:
                counts.append(count)
                if count >= 10:
                    enough.set()

            sending = asyncio.create_task(
                send_at_rate(producer, "orders", iter(lambda: GeneratedRecord(b"k", b"v"), None), 1000.0, sent)
            )
            await asyncio.wait_for(enough.wait(), 20)
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
            await producer.flush()
            assert counts == sorted(counts)
            async with Consumer(broker.bootstrap) as consumer:
                end = await consumer.end_offsets([TopicPartition("orders", 0)])
            assert end[TopicPartition("orders", 0)] >= counts[-1]

    asyncio.run(run())
