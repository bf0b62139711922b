"""Traffic of the demo: produces orders and consumes the results of the pipeline."""

import asyncio
import json
import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Self

from moldau.client.admin.admin import Admin
from moldau.client.admin.types import NewTopic
from moldau.client.consumer.consumer import Consumer
from moldau.client.net.cluster import Cluster
from moldau.client.producer.producer import Producer
from moldau.client.record import ConsumerRecord, TopicPartition
from moldau.pipelines.templates.generator import orders, send_at_rate

ORDERS, REVENUE, DEAD = "orders", "revenue", "orders.dead"
TOPICS = (NewTopic(ORDERS, 2), NewTopic(REVENUE, 1), NewTopic(DEAD, 1))
POLL_MS = 200


Results = Mapping[datetime, Mapping[str, float]]
"""The revenue by minute and product."""


class DemoTraffic:
    """Produces and consumes in a background thread while the context is open."""

    def __init__(self, bootstrap: str, rate: float, seed: int) -> None:
        self._bootstrap = bootstrap
        self._rate = rate
        self._seed = seed
        self._work: asyncio.Task[None] | None = None
        self._is_started = threading.Event()
        self._thread = threading.Thread(target=self._run, name="moldau demo", daemon=True)
        self.sent = 0
        self.dead = 0
        self.results: Results = {}
        """The mapping is replaced on every change, so that other threads can read it at any time."""
        self.failure: BaseException | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        self._is_started.wait()
        if self.failure is not None:
            raise self.failure
        return self

    def __exit__(self, *exception: object) -> None:
        if self._work is not None:
            with suppress(RuntimeError):
                self._work.get_loop().call_soon_threadsafe(self._work.cancel)
        self._thread.join()

    def _run(self) -> None:
        try:
            asyncio.run(self._run_traffic())
        except asyncio.CancelledError:
            pass
        except BaseException as error:
            self.failure = error
        finally:
            self._is_started.set()

    async def _run_traffic(self) -> None:
        self._work = asyncio.current_task()
        async with Cluster(self._bootstrap, client_id="demo") as cluster:
            for created in (await Admin(cluster).create_topics(TOPICS)).values():
                if isinstance(created, Exception):
                    raise created
            async with Producer(cluster) as producer, Consumer(cluster=cluster, auto_offset_reset="earliest") as reader:
                reader.assign([TopicPartition(REVENUE, 0), TopicPartition(DEAD, 0)])
                generated = orders(self._seed, start_ms=time.time_ns() // 1_000_000, rate=self._rate)
                sending = send_at_rate(producer, ORDERS, generated, self._rate, self._count)
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(sending)
                    tasks.create_task(self._read(reader))

    def _count(self, sent: int) -> None:
        self.sent = sent
        self._is_started.set()

    async def _read(self, reader: Consumer) -> None:
        while True:
            records = await reader.poll(timeout_ms=POLL_MS)
            self.dead += sum(record.topic == DEAD for record in records)
            self.results = merge_records(self.results, (each for each in records if each.topic == REVENUE))


def merge_records(results: Results, records: Iterable[ConsumerRecord]) -> Results:
    """Returns results updated with records. A later record for the same minute and product replaces an earlier one."""
    changed = {minute: dict(products) for minute, products in results.items()}
    for record in records:
        row = json.loads(record.value or b"")
        minute = datetime.fromisoformat(row["minute"]).astimezone(UTC)
        changed.setdefault(minute, {})[row["product"]] = row["revenue"]
    return changed
