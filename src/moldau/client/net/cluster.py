"""The client's view of a cluster: metadata, leaders, coordinators, and requests to any node."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from random import Random, SystemRandom
from typing import Any, NamedTuple, Self, TypeVar

from moldau.client.errors import COORDINATOR_ERRORS, ErrorCode, KafkaError, RequestTimedOutError, raise_for_code
from moldau.client.net.connection import Connection
from moldau.client.net.connection_pool import Address, BrokerConnections, await_shared
from moldau.client.net.metadata import NO_LEADER, BrokerInfo, Metadata, PartitionInfo, TopicInfo
from moldau.client.record import TopicPartition
from moldau.client.security.channel_security import ChannelSecurity
from moldau.client.security.config import Security
from moldau.concurrency.backoff import Backoff
from moldau.concurrency.tasks import cancel_and_wait, wait_until
from moldau.observe.logging import get_logger
from moldau.platform.clock import Clock, SystemClock
from moldau.wire.api_keys import ApiKey
from moldau.wire.codec import Message

GROUP, TRANSACTION = 0, 1
"""Coordinator types of FindCoordinator."""

PORT_DEFAULT = 9092

CREATION_BACKOFF_MS = 5
"""The first backoff while a broker creates a topic. Brokers respond before the topic exists, and most create it within
a few milliseconds."""

T = TypeVar("T")

_log = get_logger("client.cluster")


class Retry:
    """The attempts at one operation until a deadline. After each failed attempt the caller awaits `wait_or_raise`."""

    def __init__(self, backoff: Backoff, timeout_ms: int) -> None:
        self._backoff = backoff
        self._cause: KafkaError | None = None
        self._deadline = asyncio.get_running_loop().time() + timeout_ms / 1000

    @property
    def remaining_ms(self) -> int:
        """The remaining time, at least one millisecond, so that it can be used as a timeout."""
        return max(1, round((self._deadline - asyncio.get_running_loop().time()) * 1000))

    async def wait_or_raise(self, error: KafkaError) -> None:
        """Waits for the backoff. Raises `error` if it is not retriable or the deadline would pass in the meantime."""
        if not error.is_retriable:
            raise error
        delay_s = self._backoff.next_delay_ms() / 1000
        if asyncio.get_running_loop().time() + delay_s >= self._deadline:
            raise error
        await asyncio.sleep(delay_s)

    def cause(self, error: KafkaError) -> KafkaError:
        """Returns the error of an earlier attempt if this attempt timed out, because it shows the cause better.

        This is for queries. The outcome of a change that timed out is unknown, and its caller must be told so.
        """
        if self._cause is None or not isinstance(error, RequestTimedOutError):
            self._cause = error
        return self._cause


class _InFlightRefresh(NamedTuple):
    topics: tuple[str, ...] | None
    """The requested topics; None for all topics."""
    create: bool
    task: "asyncio.Task[None]"

    def covers(self, topics: tuple[str, ...] | None, create: bool) -> bool:
        if create and not self.create:
            return False
        return self.topics is None or (topics is not None and all(name in self.topics for name in topics))


class Cluster:
    """The metadata of a cluster and the connections to its brokers. Call `start` and `close`, or use `async with`."""

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        *,
        client_id: str = "moldau",
        clock: Clock | None = None,
        random: Random | None = None,
        request_timeout_ms: int = 30_000,
        retry_backoff_ms: int = 100,
        retry_backoff_max_ms: int = 1_000,
        metadata_max_age_ms: int = 300_000,
        security: Security | None = None,
    ) -> None:
        """`bootstrap` is a comma-separated string or a list of `host:port`.

        Raises ValueError for invalid bootstrap servers, or if a file named in `security` is unusable.
        """
        self.client_id = client_id
        self.clock: Clock = clock or SystemClock()
        # The default generator is cryptographically secure, because SASL nonces come from it.
        self.random = random or SystemRandom()
        self.request_timeout_ms = request_timeout_ms
        self.retry_backoff_ms = retry_backoff_ms
        self.retry_backoff_max_ms = retry_backoff_max_ms
        self.metadata_max_age_ms = metadata_max_age_ms
        self._connections = BrokerConnections(
            parse_bootstrap(bootstrap),
            client_id=client_id,
            random=self.random,
            timeout_ms=request_timeout_ms,
            channel_security=None if security is None else ChannelSecurity(security, self.random),
        )
        self._metadata = Metadata()
        self._tracked: dict[str, int] = {}
        """How many users of the cluster track each topic."""
        self._track_all_count = 0
        self._update_listeners: list[Callable[[], None]] = []
        self._coordinators: dict[tuple[int, str], int] = {}
        self._lane_count = 0
        self._refresh_in_flight: _InFlightRefresh | None = None
        self._update_requested = asyncio.Event()
        self._refresh_task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Fetches the first metadata; raises KafkaError when no server responds within request_timeout_ms."""
        if self._refresh_task is not None:
            return
        retry = self.retry()
        while True:
            try:
                await self.refresh(timeout_ms=retry.remaining_ms)
                break
            except KafkaError as error:
                await retry.wait_or_raise(retry.cause(error))
        if self._refresh_task is not None:
            return
        self._refresh_task = asyncio.get_running_loop().create_task(
            self._refresh_loop(), name=f"{self.client_id} refreshes its metadata"
        )

    async def close(self) -> None:
        in_flight = self._refresh_in_flight
        await cancel_and_wait(self._refresh_task, None if in_flight is None else in_flight.task)
        await self._connections.close()

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def backoff(self) -> Backoff:
        return Backoff(self.random, self.retry_backoff_ms, self.retry_backoff_max_ms)

    def retry(self, timeout_ms: int | None = None, *, backoff_ms: int | None = None) -> Retry:
        """Returns a `Retry` for one operation with this timeout (default: request_timeout_ms) and this first backoff
        (default: retry_backoff_ms)."""
        backoff = self.backoff() if backoff_ms is None else Backoff(self.random, backoff_ms, self.retry_backoff_max_ms)
        return Retry(backoff, self.request_timeout_ms if timeout_ms is None else timeout_ms)

    # Requests

    async def call(
        self,
        node_id: int | None,
        api: ApiKey,
        tree: Mapping[str, Any],
        *,
        timeout_ms: int | None = None,
        version_max: int | None = None,
        version: int | None = None,
        lane: str = "",
    ) -> Message:
        """Sends one request without retries to a node. If `node_id` is None, sends to the least loaded node.

        Requests with the same `lane` share a connection to a broker. The caller must check error codes in the response.
        `version_max` limits the version of the request, and `version` sets it.
        `api_version` of the response is the version that was used. Raises ConnectionLostError and RequestTimedOutError
        (both retriable), and UnsupportedVersionError.
        """
        limit = self.retry(timeout_ms)
        connection = await self.connection(node_id, lane, timeout_ms=limit.remaining_ms)
        try:
            return await connection.call(
                api, tree, timeout_ms=limit.remaining_ms, version_max=version_max, version=version
            )
        except KafkaError:
            if not connection.is_open:
                self.note_failure(connection)
            raise
        except asyncio.CancelledError:
            if api is ApiKey.FETCH:
                # Later requests on this connection would wait for the response to the cancelled fetch.
                connection.close_if_abandoned()
            raise

    async def connection(self, node_id: int | None, lane: str = "", *, timeout_ms: int | None = None) -> Connection:
        """Returns an open connection to a node (None: the least loaded node), for callers that pipeline requests."""
        timeout_ms = self.request_timeout_ms if timeout_ms is None else timeout_ms
        try:
            return await self._connections.connection(node_id, lane, timeout_ms)
        except KafkaError:
            self.refresh_soon()
            raise

    def new_lane(self, name: str) -> str:
        """Returns a lane for one user of the cluster, who calls `close_lane` at the end.

        Users whose requests wait long at the broker need different lanes, because otherwise they wait for each other.
        """
        self._lane_count += 1
        return f"{name}-{self._lane_count}"

    def close_lane(self, lane: str) -> None:
        """Closes the connections of a lane. Requests in flight fail."""
        self._connections.close_lane(lane)

    def note_failure(self, connection: Connection) -> None:
        """Refreshes the metadata after a lost connection and prefers other brokers for a while."""
        self._connections.note_failure(connection)
        self.refresh_soon()

    # Metadata

    def feature_level(self, name: str) -> int:
        """Returns the finalized level of a feature such as transaction.version; 0 if the cluster does not have it."""
        return self._connections.finalized_features.levels.get(name, 0)

    @property
    def cluster_id(self) -> str | None:
        return self._metadata.cluster_id

    @property
    def controller_id(self) -> int:
        return self._metadata.controller_id

    @property
    def brokers(self) -> Mapping[int, BrokerInfo]:
        return self._metadata.brokers

    @property
    def topics(self) -> Mapping[str, TopicInfo]:
        """The tracked topics that exist. Until the next background refresh, also other topics that were requested."""
        return self._metadata.topics

    @property
    def topic_errors(self) -> Mapping[str, ErrorCode]:
        """The latest error of each requested topic that is not in `topics`."""
        return self._metadata.topic_errors

    def partition_info(self, partition: TopicPartition) -> PartitionInfo | None:
        return self._metadata.partition(partition)

    def known_leader_of(self, partition: TopicPartition) -> int:
        """Returns the leader in the current metadata, or -1 if none is known."""
        found = self._metadata.partition(partition)
        return NO_LEADER if found is None else found.leader

    def learn_leader(self, partition: TopicPartition, leader: Message | None, endpoints: Iterable[Message]) -> None:
        """Sets the leader that a broker named in a response (KIP-951), if its epoch is newer than the known epoch.

        `leader` is the field `current_leader` and `endpoints` the field `node_endpoints` of the response.
        """
        if leader is None or leader.leader_id == NO_LEADER:
            return
        known = self._metadata.brokers
        infos = [BrokerInfo(each.node_id, each.host, each.port, each.rack) for each in endpoints]
        self._metadata.learn_leader(partition, leader.leader_id, leader.leader_epoch, infos)
        if self._metadata.brokers is not known:
            self._connections.set_brokers(self._metadata.brokers)

    def has_newer_leader(self, partition: TopicPartition, leader_epoch: int) -> bool:
        """Returns whether a leader with a newer epoch than this one is known."""
        found = self._metadata.partition(partition)
        return found is not None and found.leader != NO_LEADER and found.leader_epoch > leader_epoch

    def track(self, topics: Iterable[str]) -> None:
        """Keeps these topics in the metadata until `untrack` is called once for each call of `track`."""
        for name in topics:
            self._tracked[name] = self._tracked.get(name, 0) + 1

    def untrack(self, topics: Iterable[str]) -> None:
        for name in topics:
            count = self._tracked.get(name, 0) - 1
            if count > 0:
                self._tracked[name] = count
            else:
                self._tracked.pop(name, None)

    def track_all(self) -> None:
        """Keeps all topics, also new ones, in the metadata until `untrack_all` is called once for each `track_all`."""
        self._track_all_count += 1

    def untrack_all(self) -> None:
        self._track_all_count = max(0, self._track_all_count - 1)

    def on_update(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Adds a listener for changes of brokers or topics. Returns a function that removes the listener."""
        self._update_listeners.append(callback)
        return lambda: self._update_listeners.remove(callback)

    def refresh_soon(self) -> None:
        self._update_requested.set()

    async def refresh(
        self,
        topics: Iterable[str] | None = None,
        *,
        all_topics: bool = False,
        create: bool = False,
        timeout_ms: int | None = None,
    ) -> None:
        """Fetches the metadata of `topics` and all tracked topics, or awaits a request in flight that includes them.

        With `create`, fetches only the metadata of `topics`, and brokers with automatic topic creation may create them.
        Raises KafkaError if no broker responds within `timeout_ms` or request_timeout_ms, whichever is shorter.
        """
        requested: tuple[str, ...] | None
        if create:
            requested = tuple(topics or ())
        elif all_topics or self._track_all_count:
            requested = None
        else:
            requested = tuple(dict.fromkeys((*self._tracked, *(topics or ()))))
        try:
            async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000):
                while (in_flight := self._refresh_in_flight) is not None and not in_flight.covers(requested, create):
                    await asyncio.gather(asyncio.shield(in_flight.task), return_exceptions=True)
                if in_flight is None:
                    task = asyncio.get_running_loop().create_task(
                        self._fetch_metadata(requested, create), name=f"{self.client_id} fetches metadata"
                    )
                    self._refresh_in_flight = in_flight = _InFlightRefresh(requested, create, task)
                await await_shared(in_flight.task)
        except TimeoutError:
            raise RequestTimedOutError(f"no broker returned metadata within {timeout_ms} ms") from None

    async def wait_for_topics(
        self, topics: Iterable[str], *, timeout_ms: int | None = None, create: bool = False
    ) -> None:
        """Waits until all these topics exist; raises KafkaError when they do not appear in time.

        With `create`, brokers with automatic topic creation may create them.
        """
        names = list(topics)
        retry = self.retry(timeout_ms, backoff_ms=min(CREATION_BACKOFF_MS, self.retry_backoff_ms) if create else None)
        while missing := [name for name in names if name not in self.topics]:
            try:
                await self.refresh(missing, create=create, timeout_ms=retry.remaining_ms)
                self._check_topics_exist(missing)
            except KafkaError as error:
                await retry.wait_or_raise(retry.cause(error))

    async def leader_of(self, partition: TopicPartition, *, timeout_ms: int | None = None) -> int:
        """Waits until a partition has a leader and returns the leader. Raises KafkaError after the timeout."""
        retry = self.retry(timeout_ms)
        while (leader := self.known_leader_of(partition)) == NO_LEADER:
            try:
                await self.refresh([partition.topic], timeout_ms=retry.remaining_ms)
                self._check_topics_exist([partition.topic])
                found = self.partition_info(partition)
                if found is None:
                    raise KafkaError(ErrorCode.unknown_topic_or_partition, f"{partition} does not exist")
                if found.leader == NO_LEADER:
                    raise KafkaError(ErrorCode.leader_not_available, f"{partition} has no leader")
            except KafkaError as error:
                await retry.wait_or_raise(retry.cause(error))
        return leader

    def _check_topics_exist(self, topics: Iterable[str]) -> None:
        for name in topics:
            if name not in self.topics:
                code = self.topic_errors.get(name, ErrorCode.unknown_topic_or_partition)
                raise KafkaError(code, f"the topic {name!r}")

    async def _refresh_loop(self) -> None:
        backoff = self.backoff()
        while True:
            max_age_s = self.metadata_max_age_ms / 1000
            await wait_until(self._update_requested, asyncio.get_running_loop().time() + max_age_s)
            self._update_requested.clear()
            try:
                await self.refresh()
                backoff.reset()
                if not self._track_all_count:
                    self._metadata.retain_topics(self._tracked)
            except KafkaError as error:
                _log.debug("metadata refresh failed", error=error)
                self._update_requested.set()
            except Exception:
                # This is a bug. The loop continues, because a client whose metadata is never refreshed stops working.
                _log.exception("metadata refresh failed")
                self._update_requested.set()
            # Limit the rate of refreshes even if they are requested often.
            await asyncio.sleep(backoff.next_delay_ms() / 1000)

    async def _fetch_metadata(self, topics: tuple[str, ...] | None, create: bool) -> None:
        try:
            response = await self._request_metadata(
                {
                    "topics": None if topics is None else [{"topic_id": None, "name": name} for name in topics],
                    "allow_auto_topic_creation": create,
                    "include_cluster_authorized_operations": False,
                    "include_topic_authorized_operations": False,
                }
            )
        finally:
            self._refresh_in_flight = None
        changed = self._metadata.update(response, all_topics=topics is None)
        self._connections.set_brokers(self._metadata.brokers)
        if changed:
            for callback in list(self._update_listeners):
                try:
                    callback()
                except Exception:
                    _log.exception("a metadata listener failed")

    async def _request_metadata(self, tree: Mapping[str, Any]) -> Message:
        """Sends Metadata to one broker after another until one succeeds. Raises KafkaError after request_timeout_ms."""
        limit = self.retry()
        attempts = self._connections.address_count
        while True:
            connection = await self._connections.connection(None, "", limit.remaining_ms)
            # Divide the remaining time among the brokers, because one of them may hang.
            timeout_ms = max(1, limit.remaining_ms // max(1, attempts))
            attempts -= 1
            try:
                response = await connection.call(ApiKey.METADATA, tree, timeout_ms=timeout_ms)
                raise_for_code(response.get("error_code", 0))
                if not response.brokers:
                    raise KafkaError(ErrorCode.leader_not_available, "the broker knows no brokers yet")
                return response
            except KafkaError as error:
                if not connection.is_open:
                    self._connections.note_failure(connection)
                if attempts <= 0 or not error.is_retriable:
                    raise

    # Coordinators

    async def coordinator_of(self, key: str, kind: int = GROUP, *, timeout_ms: int | None = None) -> int:
        """Returns the coordinator of a group (or transactional id), from the cache after the first lookup."""
        retry = self.retry(timeout_ms)
        timed_out_count = 0
        while (kind, key) not in self._coordinators:
            try:
                # Divide the remaining time among the brokers, because one of them may hang.
                share_ms = max(1, retry.remaining_ms // max(1, self._connections.address_count - timed_out_count))
                limit_ms = min(share_ms, self.request_timeout_ms)
                self._coordinators[kind, key] = await self._find_coordinator(key, kind, limit_ms)
            except KafkaError as error:
                timed_out_count += isinstance(error, RequestTimedOutError)
                await retry.wait_or_raise(retry.cause(error))
        return self._coordinators[kind, key]

    def forget_coordinator(self, key: str, kind: int = GROUP) -> None:
        """Removes the cached coordinator when it has moved or failed, so that `coordinator_of` looks it up again."""
        self._coordinators.pop((kind, key), None)

    async def call_coordinator(
        self,
        key: str,
        api: ApiKey,
        tree: Mapping[str, Any],
        parse: Callable[[Message], T],
        timeout_ms: int | None,
        *,
        kind: int = GROUP,
        backoff_ms: int | None = None,
        version_max: int | None = None,
        version: int | None = None,
    ) -> T:
        """Sends a request to the coordinator of a group (or transactional id) and returns `parse(response)`.

        Retries if either fails.
        """
        retry = self.retry(timeout_ms, backoff_ms=backoff_ms)
        while True:
            try:
                coordinator = await self.coordinator_of(key, kind, timeout_ms=retry.remaining_ms)
                attempt_timeout_ms = min(retry.remaining_ms, self.request_timeout_ms)
                response = await self.call(
                    coordinator, api, tree, timeout_ms=attempt_timeout_ms, version_max=version_max, version=version
                )
                return parse(response)
            except KafkaError as error:
                if error.code in COORDINATOR_ERRORS:
                    self.forget_coordinator(key, kind)
                await retry.wait_or_raise(error)

    async def _find_coordinator(self, key: str, kind: int, timeout_ms: int) -> int:
        tree = {"key_type": kind, "coordinator_keys": [key]}
        response = await self.call(None, ApiKey.FIND_COORDINATOR, tree, timeout_ms=timeout_ms)
        found = response.coordinators[0]
        raise_for_code(found.error_code, found.error_message or f"the coordinator of {key!r}")
        node_id = int(found.node_id)
        if node_id not in self.brokers:
            await self.refresh(timeout_ms=timeout_ms)
            if node_id not in self.brokers:
                raise KafkaError(
                    ErrorCode.coordinator_not_available,
                    f"node {node_id}, the coordinator of {key!r}, is not in the cluster",
                )
        return node_id


def resolve_cluster(cluster: str | Sequence[str] | Cluster, settings: Mapping[str, Any]) -> tuple[Cluster, bool]:
    """Returns the cluster for a client, and whether this function created it, so that the client must close it."""
    if not isinstance(cluster, Cluster):
        return Cluster(cluster, **settings), True
    if settings:
        raise TypeError(f"a shared cluster has its own settings; not allowed here: {', '.join(settings)}")
    return cluster, False


def parse_bootstrap(bootstrap: str | Sequence[str]) -> list[Address]:
    """Returns the addresses in `host:port,[ipv6]:port`. Raises ValueError if an address is invalid or there is none."""
    texts = bootstrap.split(",") if isinstance(bootstrap, str) else list(bootstrap)
    addresses = [_parse_server(text.strip()) for text in texts if text.strip()]
    if not addresses:
        raise ValueError("no bootstrap server is given: name one as host:port")
    return addresses


def _parse_server(text: str) -> Address:
    host, colon, port = text.rpartition(":")
    if not colon or port.endswith("]"):
        host, port = text, str(PORT_DEFAULT)
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError(f"a bootstrap server is host:port, not {text!r}")
    return host.removeprefix("[").removesuffix("]"), int(port)
