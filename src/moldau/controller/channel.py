"""The active controller, wherever it is: here, or at another node that is asked in Kafka's own messages.

Brokers' own calls (register, heartbeat, in-sync sets, producer ids) are made once: whoever makes them knows best when
to try again. What is asked for a client is tried again while the controller moves, and only where it is certain that
it has not been done.
"""

import asyncio
import contextlib
import heapq
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from moldau.controller import messages as wire
from moldau.controller.driver import QuorumController
from moldau.controller.requests import (
    BrokerHeartbeat,
    BrokerHeartbeatReply,
    BrokerRegistrationRequest,
    ConfigChange,
    ConfigResult,
    CreateTopicResult,
    IsrChange,
    IsrChangeResult,
    NewTopic,
)
from moldau.errors import MoldauError, NotControllerError, PeerUnreachableError, RequestTimedOutError
from moldau.metadata.image import ConfigResource
from moldau.metadata.loader import MetadataLoader
from moldau.peers.client import PeerClient
from moldau.platform.clock import Clock
from moldau.raft.driver import RaftClient
from moldau.wire.api_keys import ApiKey
from moldau.wire.codec import DecodeError, Message, decoder, encoder, has_flexible_header
from moldau.wire.frames import encode_request_header, skip_tagged_fields

T = TypeVar("T")

HEARTBEAT_LANE = "controller"
CHANGES_LANE = "changes"
FORWARDING_LANES_MAX = 16

REQUEST_TIMEOUT_MS_DEFAULT = 30_000
"""How long is tried for a request that does not say how long it has."""
CREATE_TOPICS_TIMEOUT_MS = 10_000
"""How long the creation of a topic may hold up who needs it to be there."""
READY_TIMEOUT_MS = 1_000
"""How long of that for its replicas. Some may be down for long, and whoever needs the topic can do without them."""
RESPONSE_GRACE_MS = 2_000
"""A controller that used all of a request's time answers at its end, and that answer says why."""
METADATA_WAIT_MS_MAX = 5_000
"""How long an answer waits for this node to see the change. It is made in any case."""
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

    @property
    def controller_id(self) -> int:
        """The node to ask, -1 while none is known."""
        return self._quorum.leader_id

    # What this broker asks for itself

    async def register_broker(self, broker: BrokerRegistrationRequest) -> int:
        """The broker's epoch."""
        if self._is_local:
            return await self._controller.register_broker(broker)
        tree = wire.registration_request(broker)
        answer = await self._call(ApiKey.BROKER_REGISTRATION, tree, HEARTBEAT_LANE)
        wire.raise_for_code(answer.error_code)
        return int(answer.broker_epoch)

    async def heartbeat(
        self, heartbeat: BrokerHeartbeat, timeout_ms: int | None = None
    ) -> BrokerHeartbeatReply:
        if self._is_local:
            return await self._controller.heartbeat(heartbeat)
        tree = wire.heartbeat_request(heartbeat)
        answer = await self._call(ApiKey.BROKER_HEARTBEAT, tree, HEARTBEAT_LANE, timeout_ms)
        wire.raise_for_code(answer.error_code)
        return wire.heartbeat_reply(answer)

    async def alter_partition(
        self, broker_id: int, broker_epoch: int, changes: Sequence[IsrChange]
    ) -> list[IsrChangeResult]:
        """One result for each change, in their order."""
        if self._is_local:
            return await self._controller.alter_partition(broker_id, broker_epoch, changes)
        tree = wire.alter_partition_request(broker_id, broker_epoch, changes)
        answer = await self._call(ApiKey.ALTER_PARTITION, tree, CHANGES_LANE)
        wire.raise_for_code(answer.error_code)
        return wire.alter_partition_results(answer, changes)

    async def allocate_producer_ids(self, broker_id: int, broker_epoch: int) -> range:
        """A block of producer ids that nobody has had before."""
        if self._is_local:
            return await self._controller.allocate_producer_ids(broker_id, broker_epoch)
        tree = {"broker_id": broker_id, "broker_epoch": broker_epoch}
        answer = await self._call(ApiKey.ALLOCATE_PRODUCER_IDS, tree, CHANGES_LANE)
        wire.raise_for_code(answer.error_code)
        return range(answer.producer_id_start, answer.producer_id_start + answer.producer_id_len)

    # What is asked for clients

    async def create_topics(
        self, topics: Sequence[NewTopic], *, timeout_ms: int = CREATE_TOPICS_TIMEOUT_MS
    ) -> list[CreateTopicResult]:
        """For what this node needs itself, and clients that only use it: returns when the topics are there and, if that
        does not take long, ready."""
        deadline_ms = self._clock.monotonic_ms() + timeout_ms

        async def local() -> list[CreateTopicResult]:
            created = await self._controller.create_topics(topics)
            names = [each.name for each in created if each.error is None]
            # A controller that moves now has made them all the same.
            with contextlib.suppress(NotControllerError):
                await self._controller.wait_replicas_ready(
                    names, self._clock.monotonic_ms() + READY_TIMEOUT_MS
                )
            return created

        async def remote(node_id: int) -> list[CreateTopicResult]:
            tree = wire.create_topics_request(topics, READY_TIMEOUT_MS)
            answer = await self._send_in_envelope(node_id, ApiKey.CREATE_TOPICS, 7, tree, deadline_ms)
            return [self._ignore_ready_timeout(each) for each in wire.create_topics_results(answer, topics)]

        return await self.send(local, remote, deadline_ms)

    def _ignore_ready_timeout(self, outcome: CreateTopicResult) -> CreateTopicResult:
        """A topic that was not ready in time is there all the same."""
        found = self._metadata.image.topics.get(outcome.name)
        if found is None or not isinstance(outcome.error, RequestTimedOutError):
            return outcome
        replicas = len(found.partitions[0].replicas)
        return CreateTopicResult(outcome.name, found.topic_id, len(found.partitions), replicas)

    async def alter_configs(
        self,
        changes: Mapping[ConfigResource, Sequence[ConfigChange]],
        *,
        incremental: bool,
        validate_only: bool = False,
        timeout_ms: int = REQUEST_TIMEOUT_MS_DEFAULT,
    ) -> list[ConfigResult]:
        deadline_ms = self._clock.monotonic_ms() + timeout_ms

        async def local() -> list[ConfigResult]:
            return await self._controller.alter_configs(
                changes, incremental=incremental, validate_only=validate_only
            )

        async def remote(node_id: int) -> list[ConfigResult]:
            tree = wire.alter_configs_request(changes, validate_only=validate_only)
            api, version = (ApiKey.INCREMENTAL_ALTER_CONFIGS, 1) if incremental else (ApiKey.ALTER_CONFIGS, 2)
            answer = await self._send_in_envelope(node_id, api, version, tree, deadline_ms)
            return wire.alter_configs_results(answer, changes)

        return await self.send(local, remote, deadline_ms)

    async def send(
        self,
        local: Callable[[], Awaitable[T]],
        remote: Callable[[int], Awaitable[T]],
        deadline_ms: int,
    ) -> T:
        """Asks the active controller, and the next one where it moves before it has done anything. `local` asks this
        node's own, `remote` another node's; NotControllerError from either says that nothing was done.

        Raises RequestTimedOutError where no controller could be asked in time, and where it is not known whether
        the one that was asked did it: to ask again could do it twice.
        """
        pause_ms = RETRY_MS_MIN
        while True:
            try:
                controller_id = self.controller_id
                if controller_id == self._node_id:
                    return await local()
                if controller_id < 0:
                    raise NotControllerError("no controller is known at the moment")
                return await remote(controller_id)
            except PeerUnreachableError as error:
                if error.was_sent:
                    raise RequestTimedOutError(
                        f"the controller did not answer ({error}): whether it was done is not known, "
                        f"look before trying again"
                    ) from error
                reason: MoldauError = error
            except NotControllerError as error:
                reason = error
            if self._clock.monotonic_ms() + pause_ms >= deadline_ms:
                raise RequestTimedOutError(f"no controller could be asked in time: {reason}") from reason
            await asyncio.sleep(pause_ms / 1000)
            pause_ms = min(2 * pause_ms, RETRY_MS_MAX)

    async def forward(
        self, node_id: int, request: bytes | memoryview, client_host: bytes, deadline_ms: int
    ) -> memoryview:
        """Hands a node, as the controller, a client's whole request (its header too); gives the whole answer, once
        this node sees what was changed by it."""
        left_ms = max(0, deadline_ms - self._clock.monotonic_ms())
        tree = {"request_data": request, "request_principal": None, "client_host_address": client_host}
        lane = self._lane_pool.acquire()
        try:
            answer = await self._peers.call(
                node_id,
                ApiKey.ENVELOPE,
                tree,
                lane=f"forwarding-{lane}",
                timeout_ms=left_ms + RESPONSE_GRACE_MS,
            )
        finally:
            self._lane_pool.release(lane)
        wire.raise_for_code(answer.error_code)
        if answer.response_data is None:
            raise MoldauError("the controller's envelope is empty")
        await self._wait_for_metadata(answer.metadata_offset)
        return memoryview(answer.response_data)

    async def _send_in_envelope(
        self, node_id: int, api: ApiKey, version: int, tree: Mapping[str, Any], deadline_ms: int
    ) -> Message:
        """A request of this node's own, forwarded as a client's is: who gets it in an envelope does not pass it on."""
        request = encode_request_header(api, version, 0, f"node-{self._node_id}")
        encoder(api, version, "request")(request, tree)
        data = await self.forward(node_id, bytes(request), b"", deadline_ms)
        try:
            start = skip_tagged_fields(data, 4) if has_flexible_header(api, version) else 4
            return decoder(api, version, "response")(data[start:])
        except DecodeError as error:
            raise MoldauError(f"the controller's answer cannot be read: {error}") from None

    async def _wait_for_metadata(self, offset: int) -> None:
        """Waits until this node has come as far as the controller was when it answered."""
        if self._metadata.image.offset >= offset:
            return
        seen = asyncio.get_running_loop().create_task(self._metadata.wait_for_offset(offset))
        try:
            await asyncio.wait([seen], timeout=METADATA_WAIT_MS_MAX / 1000)
        finally:
            # Late or failed, the change is made all the same; a loader that fails tells the node itself.
            seen.cancel()
            await asyncio.gather(seen, return_exceptions=True)

    # Calling

    @property
    def _is_local(self) -> bool:
        return self.controller_id == self._node_id

    async def _call(
        self, api: ApiKey, tree: Mapping[str, Any], lane: str, timeout_ms: int | None = None
    ) -> Message:
        controller_id = self.controller_id
        if controller_id < 0:
            raise NotControllerError("no controller is known at the moment")
        return await self._peers.call(controller_id, api, tree, lane=lane, timeout_ms=timeout_ms)


class _LanePool:
    """Numbers of connections that no request waits on: one that takes long must not hold up the others. Beyond the
    limit they share."""

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
