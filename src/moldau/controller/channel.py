"""The channel to the active controller, on this or another node (Kafka's NodeToControllerChannelManager).

The requests that a broker makes itself (registration, heartbeat, AlterPartition, producer ids) are sent once. Their
callers decide about retries.

All other requests, from this node or forwarded for clients, use `forward`. `forward` finds the active controller and
retries while the controller moves. It never repeats a request that may have been executed.
"""

import asyncio
import heapq
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from moldau.controller.messages import (
    alter_partition_request,
    alter_partition_results,
    create_topics_request,
    create_topics_results,
    heartbeat_reply,
    heartbeat_request,
    raise_for_code,
    registration_request,
)
from moldau.controller.quorum_controller import QuorumController
from moldau.controller.requests import (
    BrokerHeartbeat,
    BrokerHeartbeatReply,
    BrokerRegistrationRequest,
    CreateTopicResult,
    IsrChange,
    IsrChangeResult,
    NewTopic,
)
from moldau.errors import MoldauError, NotControllerError, PeerUnreachableError, RequestTimedOutError
from moldau.metadata.loader import MetadataLoader
from moldau.peers.client import PeerClient
from moldau.platform.clock import Clock
from moldau.raft.raft_client import RaftClient
from moldau.wire.api_keys import ApiKey
from moldau.wire.client_ids import node_client_id
from moldau.wire.codec import DecodeError, Message, decoder, encoder, has_flexible_header
from moldau.wire.frames import encode_request_header, skip_tagged_fields

LocalHandler = Callable[[memoryview, bytes], Awaitable[bytearray]]
"""Executes a request on this node. The arguments are the whole request and the client's host address. Raises
NotControllerError only if the request had no effect."""

HEARTBEAT_LANE = "controller"
CHANGES_LANE = "changes"
FORWARDING_LANES_MAX = 16

REQUEST_TIMEOUT_MS_DEFAULT = 30_000
"""The timeout of requests that do not contain a timeout."""
CREATE_TOPICS_TIMEOUT_MS = 10_000
RESPONSE_GRACE_MS = 2_000
"""How much longer than the request's timeout to wait for the response. A controller that needs the whole timeout
responds just after it, and its response contains the reason."""
METADATA_WAIT_MS_MAX = 5_000
"""How long a response waits until this node has published the change. The change is made even if this wait times
out."""
RETRY_MS_MIN, RETRY_MS_MAX = 20, 500


class NodeToControllerChannel:
    def __init__(
        self,
        node_id: int,
        controller: QuorumController,
        quorum: RaftClient,
        peers: PeerClient,
        metadata: MetadataLoader,
        clock: Clock,
    ) -> None:
        self._node_id = node_id
        self._controller = controller
        self._quorum = quorum
        self._peers = peers
        self._metadata = metadata
        self._clock = clock
        self._lane_pool = _LanePool()
        self.local_handler: LocalHandler | None = None
        """Must be set before the node serves requests."""

    @property
    def controller_id(self) -> int:
        """The node id of the active controller, -1 if unknown."""
        return self._quorum.leader_id

    # Requests of the broker itself, which are sent once

    async def register_broker(self, broker: BrokerRegistrationRequest) -> int:
        if self._is_local:
            return await self._controller.register_broker(broker)
        response = await self._call(ApiKey.BROKER_REGISTRATION, registration_request(broker), lane=HEARTBEAT_LANE)
        return int(response.broker_epoch)

    async def heartbeat(self, heartbeat: BrokerHeartbeat, timeout_ms: int | None = None) -> BrokerHeartbeatReply:
        if self._is_local:
            return await self._controller.heartbeat(heartbeat)
        tree = heartbeat_request(heartbeat)
        return heartbeat_reply(
            await self._call(ApiKey.BROKER_HEARTBEAT, tree, lane=HEARTBEAT_LANE, timeout_ms=timeout_ms)
        )

    async def alter_partition(
        self, broker_id: int, broker_epoch: int, changes: Sequence[IsrChange]
    ) -> list[IsrChangeResult]:
        """Requests ISR changes. Returns one result per change, in the order of `changes`."""
        if self._is_local:
            return await self._controller.alter_partition(broker_id, broker_epoch, changes)
        tree = alter_partition_request(broker_id, broker_epoch, changes)
        return alter_partition_results(await self._call(ApiKey.ALTER_PARTITION, tree, lane=CHANGES_LANE), changes)

    async def allocate_producer_ids(self, broker_id: int, broker_epoch: int) -> range:
        """Allocates a block of unused producer ids."""
        if self._is_local:
            return await self._controller.allocate_producer_ids(broker_id, broker_epoch)
        tree = {"broker_id": broker_id, "broker_epoch": broker_epoch}
        response = await self._call(ApiKey.ALLOCATE_PRODUCER_IDS, tree, lane=CHANGES_LANE)
        return range(response.producer_id_start, response.producer_id_start + response.producer_id_len)

    @property
    def _is_local(self) -> bool:
        return self.controller_id == self._node_id

    async def _call(self, api: ApiKey, tree: Mapping[str, Any], *, lane: str, timeout_ms: int | None = None) -> Message:
        response = await self._peers.call(self._require_controller_id(), api, tree, lane=lane, timeout_ms=timeout_ms)
        raise_for_code(response.error_code)
        return response

    def _require_controller_id(self) -> int:
        controller_id = self.controller_id
        if controller_id < 0:
            raise NotControllerError("the active controller is unknown")
        return controller_id

    # Requests with retries

    async def create_topics(
        self, topics: Sequence[NewTopic], *, timeout_ms: int = CREATE_TOPICS_TIMEOUT_MS
    ) -> list[CreateTopicResult]:
        """Creates topics that this node needs, in the same way as a client's CreateTopics request."""
        tree = create_topics_request(topics, timeout_ms)
        response = await self.send(ApiKey.CREATE_TOPICS, 7, tree, timeout_ms)
        return create_topics_results(response, topics)

    async def send(
        self, api: ApiKey, version: int, tree: Mapping[str, Any], timeout_ms: int = REQUEST_TIMEOUT_MS_DEFAULT
    ) -> Message:
        """Sends a request from this node itself to the active controller, in the same way as a forwarded client
        request. Raises the same errors as `forward`."""
        request = encode_request_header(api, version, 0, node_client_id(self._node_id))
        encoder(api, version, "request")(request, tree)
        deadline_ms = self._clock.monotonic_ms() + timeout_ms
        data = await self.forward(memoryview(request), b"", deadline_ms)
        try:
            start = skip_tagged_fields(data, 4) if has_flexible_header(api, version) else 4
            return decoder(api, version, "response")(data[start:])
        except DecodeError as error:
            raise MoldauError(f"the controller's response is malformed: {error}") from None

    async def forward(self, frame: memoryview, client_host: bytes, deadline_ms: int) -> memoryview:
        """Sends a whole request, with its header, to the active controller and returns the whole response.

        Retries while the controller moves and nothing was done. Raises RequestTimedOutError at the deadline. Also
        raises RequestTimedOutError if the outcome is unknown, because a retry could execute the request twice.
        """
        delay_ms = RETRY_MS_MIN
        while True:
            try:
                return await self._forward_once(frame, client_host, deadline_ms)
            except PeerUnreachableError as error:
                if error.was_sent:
                    raise RequestTimedOutError(
                        f"the controller did not respond ({error}): the outcome is not known, check it before retrying"
                    ) from error
                reason: MoldauError = error
            except NotControllerError as error:
                reason = error
            if self._clock.monotonic_ms() + delay_ms >= deadline_ms:
                raise RequestTimedOutError(f"the controller could not be reached in time: {reason}") from reason
            await asyncio.sleep(delay_ms / 1000)
            delay_ms = min(2 * delay_ms, RETRY_MS_MAX)

    async def _forward_once(self, frame: memoryview, client_host: bytes, deadline_ms: int) -> memoryview:
        controller_id = self._require_controller_id()
        if controller_id == self._node_id:
            assert self.local_handler is not None, "set before the node serves requests"
            return memoryview(await self.local_handler(frame, client_host))
        left_ms = max(0, deadline_ms - self._clock.monotonic_ms())
        tree = {"request_data": frame, "request_principal": None, "client_host_address": client_host}
        lane = self._lane_pool.acquire()
        try:
            response = await self._peers.call(
                controller_id, ApiKey.ENVELOPE, tree, lane=f"forwarding-{lane}", timeout_ms=left_ms + RESPONSE_GRACE_MS
            )
        finally:
            self._lane_pool.release(lane)
        raise_for_code(response.error_code)
        if response.response_data is None:
            raise MoldauError("the controller's envelope is empty")
        await self._wait_for_metadata(response.metadata_offset)
        return memoryview(response.response_data)

    async def _wait_for_metadata(self, offset: int) -> None:
        """Waits until this node has published the metadata that the controller had when it responded."""
        if self._metadata.image.offset >= offset:
            return
        published = asyncio.get_running_loop().create_task(self._metadata.wait_for_offset(offset))
        try:
            await asyncio.wait([published], timeout=METADATA_WAIT_MS_MAX / 1000)
        finally:
            # After the timeout, stop waiting without an error, because the controller has already made the change.
            published.cancel()
            await asyncio.gather(published, return_exceptions=True)


class _LanePool:
    """Assigns lanes (connections) to forwarded requests. Each request gets a separate lane until all lanes are in use,
    so that a slow request does not delay others."""

    def __init__(self) -> None:
        self._free = list(range(FORWARDING_LANES_MAX))
        self._taken = [0] * FORWARDING_LANES_MAX

    def acquire(self) -> int:
        lane = heapq.heappop(self._free) if self._free else self._taken.index(min(self._taken))
        self._taken[lane] += 1
        return lane

    def release(self, lane: int) -> None:
        self._taken[lane] -= 1
        if not self._taken[lane]:
            heapq.heappush(self._free, lane)
