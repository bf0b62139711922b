"""Generated orders of a coffee house, for the template orders-revenue."""

import asyncio
import json
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from moldau.client.producer.producer import Producer
from moldau.pipelines.runtime.times import iso

PRICES = {"espresso": 2.4, "cappuccino": 3.6, "filter": 3.1, "tea": 2.9, "cake": 4.5, "croissant": 2.2}
JITTER_MS = 2_000
"""The maximum random delay of an order, so that orders arrive slightly out of order."""
LATE_MS = 180_000
LATE_SHARE = 0.01
BAD_SHARE = 0.005


@dataclass(frozen=True, slots=True)
class GeneratedRecord:
    key: bytes
    value: bytes | None


def orders(seed: int = 1, *, start_ms: int, rate: float = 50.0) -> Iterator[GeneratedRecord]:
    """Yields `rate` orders per second, starting at `start_ms`. A few orders are minutes late, and a few are invalid."""
    random_ = random.Random(seed)
    products = list(PRICES)
    number = 0
    while True:
        now_ms = start_ms + int(number * 1000 / rate)
        number += 1
        product = random_.choices(products, weights=(6, 5, 3, 2, 2, 3))[0]
        at_ms = now_ms - random_.randrange(JITTER_MS)
        if random_.random() < LATE_SHARE:
            at_ms -= LATE_MS
        order = {
            "order_id": f"o-{seed}-{number:07}",
            "product": product,
            "quantity": random_.choice((1, 1, 1, 2, 2, 3)),
            "price": PRICES[product],
            "at": iso(datetime.fromtimestamp(at_ms / 1000, UTC)),
        }
        value = json.dumps(order).encode()
        if random_.random() < BAD_SHARE:
            value = random_.choice((value[: len(value) // 2], json.dumps({**order, "price": -1.0}).encode()))
        yield GeneratedRecord(product.encode(), value)


async def send_at_rate(
    producer: Producer, topic: str, records: Iterator[GeneratedRecord], rate: float, on_sent: Callable[[int], None]
) -> None:
    """Sends `rate` records per second until cancelled. Passes the number of records sent so far to `on_sent`."""
    start_s = time.monotonic()
    sent = 0
    while True:
        due = int((time.monotonic() - start_s) * rate) + 1
        for _ in range(due - sent):
            await producer.send(topic, (each := next(records)).value, key=each.key)
        sent = max(sent, due)
        on_sent(sent)
        await asyncio.sleep(max(0.02, 1 / rate))
