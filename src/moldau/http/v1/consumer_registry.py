"""The consumers that HTTP clients have created on this node. They live until they are deleted, or idle for too long."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from moldau.client.consumer.consumer import Consumer
from moldau.client.errors import ErrorCode, KafkaError
from moldau.controller.ids import Randomness, random_uuid
from moldau.http.errors import HttpError
from moldau.http.v1.client import HttpClient
from moldau.observe.logging import get_logger

CONSUMERS_MAX = 100
CLOSE_TIMEOUT_MS = 1_000
"""How long a consumer may take to leave its group when the node stops."""
FETCH_BYTES_MAX = 4 * 1024 * 1024
PARTITION_FETCH_BYTES_MAX = 1024 * 1024

log = get_logger("http")


@dataclass(slots=True, eq=False)
class ConsumerInstance:
    consumer_id: str
    group: str
    topics: tuple[str, ...]
    consumer: Consumer
    idle_timeout_ms: int
    in_use: int = field(default=0)
    """The number of requests in progress that use this consumer."""
    is_polling: bool = False
    timer: asyncio.TimerHandle | None = None


class ConsumerRegistry:
    def __init__(self, client: HttpClient, random: Randomness) -> None:
        self._client = client
        self._random = random
        self._instances: dict[str, ConsumerInstance] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._instances)

    async def create(
        self,
        group: str,
        topics: Iterable[str],
        *,
        auto_offset_reset: Literal["earliest", "latest"],
        isolation_level: Literal["read_uncommitted", "read_committed"],
        idle_timeout_ms: int,
    ) -> ConsumerInstance:
        """Creates a consumer that is subscribed to the topics. It joins the group at its first poll."""
        cluster = await self._client.cluster()
        if self._is_closed:
            raise HttpError(503, "the node is shutting down")
        if len(self._instances) >= CONSUMERS_MAX:
            raise HttpError(503, f"this node already has {CONSUMERS_MAX} consumers: delete one, or use another node")
        names = tuple(dict.fromkeys(topics))
        consumer = Consumer(
            cluster=cluster,
            group_id=group,
            auto_offset_reset=auto_offset_reset,
            isolation_level=isolation_level,
            enable_auto_commit=False,
            max_poll_interval_ms=idle_timeout_ms,
            fetch_max_bytes=FETCH_BYTES_MAX,
            max_partition_fetch_bytes=PARTITION_FETCH_BYTES_MAX,
        )
        consumer_id = str(random_uuid(self._random))
        instance = ConsumerInstance(consumer_id, group, names, consumer, idle_timeout_ms)
        self._instances[consumer_id] = instance
        try:
            await consumer.start()
            consumer.subscribe(names)
        except BaseException:
            await self.remove(instance)
            raise
        self._start_timer(instance)
        return instance

    def find(self, group: str, consumer_id: str) -> ConsumerInstance:
        instance = self._instances.get(consumer_id)
        if instance is None or instance.group != group:
            raise KafkaError(
                ErrorCode.unknown_member_id,
                f"group {group} has no consumer {consumer_id} on this node: it expired, was deleted, or is on another "
                "node",
            )
        return instance

    def begin_use(self, instance: ConsumerInstance) -> None:
        """Keeps the consumer from expiring until `end_use`."""
        instance.in_use += 1
        if instance.timer is not None:
            instance.timer.cancel()
            instance.timer = None

    def end_use(self, instance: ConsumerInstance) -> None:
        instance.in_use -= 1
        if not instance.in_use and instance.consumer_id in self._instances:
            self._start_timer(instance)

    async def remove(self, instance: ConsumerInstance, timeout_ms: int = 10_000) -> None:
        """Closes the consumer, which leaves its group. A poll in progress fails."""
        self._instances.pop(instance.consumer_id, None)
        if instance.timer is not None:
            instance.timer.cancel()
            instance.timer = None
        await instance.consumer.close(commit=False, timeout_ms=timeout_ms)

    async def close(self) -> None:
        self._is_closed = True
        removals = [self.remove(each, CLOSE_TIMEOUT_MS) for each in list(self._instances.values())]
        results = await asyncio.gather(*removals, *self._closing, return_exceptions=True)
        for result in results:
            if isinstance(result, Exception):
                log.warning("a consumer of the HTTP API did not close cleanly", error=result)

    def _start_timer(self, instance: ConsumerInstance) -> None:
        loop = asyncio.get_running_loop()
        instance.timer = loop.call_later(instance.idle_timeout_ms / 1000, self._expire, instance)

    def _expire(self, instance: ConsumerInstance) -> None:
        log.info("a consumer of the HTTP API expired", group=instance.group, consumer=instance.consumer_id)
        task = asyncio.get_running_loop().create_task(self.remove(instance), name="expired consumer closes")
        self._closing.add(task)
        task.add_done_callback(self._on_closed)

    def _on_closed(self, task: "asyncio.Task[None]") -> None:
        self._closing.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.warning("an expired consumer did not close cleanly", error=error)
