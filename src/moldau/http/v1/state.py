"""What all routes under `/v1` share: the clients, the consumers that HTTP clients have created, and lookups."""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Request

from moldau.client.errors import ErrorCode, KafkaError
from moldau.client.net.metadata import NO_LEADER, TopicInfo
from moldau.client.record import TopicPartition
from moldau.concurrency.tasks import cancel_and_wait
from moldau.http.context import HttpContext
from moldau.http.errors import HttpError
from moldau.http.v1.client import HttpClient
from moldau.http.v1.consumer_registry import ConsumerRegistry

NEW_TOPIC_WAIT_MS = 200
"""How long other nodes may take to learn of a new topic. Until then they respond that it does not exist."""
STREAMS_MAX = 200

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class V1State:
    context: HttpContext
    client: HttpClient
    consumers: ConsumerRegistry
    stream_count: int = 0
    """The number of open event streams."""

    @classmethod
    def create(cls, context: HttpContext) -> "V1State":
        client = HttpClient(context.broker)
        state = cls(context, client, ConsumerRegistry(client, context.broker.platform.random))
        context.close_callbacks.append(state.close)
        return state

    async def close(self) -> None:
        await self.consumers.close()
        await self.client.close()

    async def find_topic(self, name: str) -> TopicInfo:
        """Returns the current metadata of a topic. Raises KafkaError if the topic does not exist."""
        admin = await self.client.admin()
        try:
            return await admin.describe_topic(name)
        except KafkaError as error:
            if error.code is not ErrorCode.unknown_topic_or_partition:
                raise
            if len(admin.cluster.brokers) > 1:
                await self._wait_for_topic(name)
                return admin.cluster.topics[name]
            raise _missing_topic(name) from None

    async def _wait_for_topic(self, name: str) -> None:
        cluster = await self.client.cluster()
        try:
            await cluster.wait_for_topics([name], timeout_ms=NEW_TOPIC_WAIT_MS)
        except KafkaError as error:
            raise _missing_topic(name) from error

    async def find_leader(self, topic: str, partition: int) -> TopicPartition:
        """Returns the partition. Raises KafkaError if it does not exist or has no leader."""
        found = (await self.find_topic(topic)).partition(partition)
        if found is None:
            raise missing_partition(topic, partition)
        if found.leader == NO_LEADER:
            raise missing_leader(topic, partition)
        return TopicPartition(topic, partition)

    async def until_stopping(self, work: Coroutine[Any, Any, T], grace_s: float = 0.0) -> T:
        """Awaits the work. When the node stops, cancels it after `grace_s` and raises HttpError with status 503."""
        task = asyncio.ensure_future(work)
        stopping = asyncio.ensure_future(self.context.stopping.wait())
        try:
            await asyncio.wait([task, stopping], return_when=asyncio.FIRST_COMPLETED)
            if grace_s and not task.done():
                await asyncio.wait([task], timeout=grace_s)
            if task.done():
                return task.result()
            raise HttpError(503, "the node is shutting down")
        finally:
            await cancel_and_wait(task, stopping)


async def wait_for_disconnect(request: Request) -> bool:
    while (await request.receive())["type"] != "http.disconnect":
        pass
    return True


def missing_partition(topic: str, partition: int) -> KafkaError:
    return KafkaError(ErrorCode.unknown_topic_or_partition, f"partition {topic}-{partition} does not exist")


def missing_leader(topic: str, partition: int) -> KafkaError:
    return KafkaError(ErrorCode.leader_not_available, f"partition {topic}-{partition} has no leader at the moment")


def _missing_topic(name: str) -> KafkaError:
    return KafkaError(ErrorCode.unknown_topic_or_partition, f"topic {name} does not exist")


async def get_state(request: Request) -> V1State:
    """The dependency. FastAPI would run a plain function in a thread."""
    state: V1State = request.app.state.v1
    return state


State = Annotated[V1State, Depends(get_state)]
