"""The clients with which the HTTP API uses its own cluster. They connect at the first request that needs them."""

import asyncio

from moldau.client.admin.admin import Admin
from moldau.client.errors import ErrorCode, KafkaError
from moldau.client.net.cluster import Cluster
from moldau.client.producer.producer import ACKS_ALL, Producer
from moldau.server.api import Broker
from moldau.settings.listeners import ListenerEndpoint
from moldau.wire.client_ids import HTTP_CLIENT_ID

REQUEST_TIMEOUT_MS = 10_000
DELIVERY_TIMEOUT_MS = 25_000
"""How long a record may take to be written. Most HTTP clients wait for 30 s or longer."""
BUFFER_BYTES_MIN = 32 * 1024 * 1024


class HttpClient:
    """One connection pool to the cluster, and the admin client and producers that share it."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._starting = asyncio.Lock()
        self._cluster: Cluster | None = None
        self._producers: dict[int, Producer] = {}
        self._is_closed = False

    async def cluster(self) -> Cluster:
        """Returns the started cluster. Raises KafkaError if this node does not respond."""
        if self._cluster is None:
            async with self._starting:
                if self._cluster is None:
                    self._cluster = await self._connect()
        return self._cluster

    async def admin(self) -> Admin:
        return Admin(await self.cluster(), timeout_ms=REQUEST_TIMEOUT_MS)

    async def producer(self, acks: int) -> Producer:
        """Returns the producer for this value of acks. Only the one with acks=all is idempotent.

        A producer that cannot send records any more is replaced.
        """
        cluster = await self.cluster()
        if self._usable_producer(acks) is None:
            async with self._starting:
                if self._usable_producer(acks) is None:
                    if acks in self._producers:
                        await self._producers.pop(acks).abort()
                    self._producers[acks] = await self._start_producer(cluster, acks)
        return self._producers[acks]

    def _usable_producer(self, acks: int) -> Producer | None:
        producer = self._producers.get(acks)
        return None if producer is None or producer.failure is not None else producer

    async def _start_producer(self, cluster: Cluster, acks: int) -> Producer:
        request_bytes_max = self._broker.settings.broker.http_request_max_bytes
        producer = Producer(
            cluster,
            acks=acks,
            idempotent=acks == ACKS_ALL,
            linger_ms=0,
            # The topic's max.message.bytes decides, not the producer.
            max_request_size=request_bytes_max,
            buffer_memory=max(BUFFER_BYTES_MIN, 2 * request_bytes_max),
            max_block_ms=REQUEST_TIMEOUT_MS,
            delivery_timeout_ms=DELIVERY_TIMEOUT_MS,
        )
        try:
            await producer.start()
        except BaseException:
            await producer.abort()
            raise
        return producer

    async def close(self) -> None:
        self._is_closed = True
        for producer in self._producers.values():
            await producer.abort()
        if self._cluster is not None:
            await self._cluster.close()

    async def _connect(self) -> Cluster:
        if self._is_closed:
            raise KafkaError(ErrorCode.broker_not_available, "the node is shutting down")
        platform = self._broker.platform
        cluster = Cluster(
            self._own_address(),
            client_id=HTTP_CLIENT_ID,
            clock=platform.clock,
            random=platform.random,
            request_timeout_ms=REQUEST_TIMEOUT_MS,
        )
        try:
            await cluster.start()
        except BaseException:
            await cluster.close()
            raise
        return cluster

    def _own_address(self) -> str:
        """Returns the address at which other nodes reach this node, because clients' addresses may not be reachable
        from the node itself."""
        registration = self._broker.metadata.image.brokers.get(self._broker.broker_id)
        endpoints = () if registration is None else registration.endpoints
        name = self._broker.settings.broker.inter_broker_listener
        for each in endpoints:
            if each.listener == name:
                return ListenerEndpoint(name, each.host, each.port).address
        raise KafkaError(ErrorCode.broker_not_available, "the node is not registered yet")
