"""A cluster as its clients see it: metadata that is kept fresh, leaders, coordinators, and a way to call any node.

Admin, Producer, Fetcher and Consumer stand on one of these, each on its own or on one that they share.
"""

import asyncio
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, NamedTuple, Self

from moldau.client.errors import ErrorCode, KafkaError, RequestTimedOutError, raise_for_code
from moldau.client.net.connection import Connection
from moldau.client.net.connection_pool import Address, ConnectionPool, await_shared
from moldau.client.net.metadata import NO_LEADER, BrokerInfo, Metadata, PartitionInfo, TopicInfo
from moldau.client.net.retry import Retry
from moldau.client.record import TopicPartition
from moldau.client.security.channel_security import ChannelSecurity
from moldau.client.security.config import Security
from moldau.concurrency.backoff import Backoff
from moldau.observe.logging import get_logger
from moldau.platform.clock import Clock, SystemClock
from moldau.wire.api_keys import ApiKey
from moldau.wire.codec import Message

GROUP, TRANSACTION = 0, 1
"""The kinds of coordinators."""

PORT_DEFAULT = 9092

_log = get_logger("client.cluster")


class _InFlightRefresh(NamedTuple):
    """A metadata request under way."""

    topics: tuple[str, ...] | None
    """None asks for all."""
    create: bool
    task: "asyncio.Task[None]"

    def covers(self, topics: tuple[str, ...] | None, create: bool) -> bool:
        if create and not self.create:
            return False
        return self.topics is None or (topics is not None and all(name in self.topics for name in topics))


class Cluster:
    """Start it before use and close it after, or use it in `async with`."""

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        *,
        client_id: str = "moldau",
        clock: Clock | None = None,
        random: random.Random | None = None,
        request_timeout_ms: int = 30_000,
        retry_backoff_ms: int = 100,
        retry_backoff_max_ms: int = 1_000,
        metadata_max_age_ms: int = 300_000,
        security: Security | None = None,
    ) -> None:
        """`bootstrap` is `host:port`, several of them with commas between, or a list. Raises ValueError also where
        `security` names files that are of no use."""
        self.client_id = client_id
        self.clock: Clock = clock or SystemClock()
        self.random = random or _secure_random()
        self.request_timeout_ms = request_timeout_ms
        self.retry_backoff_ms = retry_backoff_ms
        self.retry_backoff_max_ms = retry_backoff_max_ms
        self.metadata_max_age_ms = metadata_max_age_ms
        self._pool = ConnectionPool(
            parse_bootstrap(bootstrap),
            client_id=client_id,
            random=self.random,
            timeout_ms=request_timeout_ms,
            channel_security=None if security is None else ChannelSecurity(security, self.random),
        )
        self._metadata = Metadata()
        self._tracked: dict[str, int] = {}
        """How often each topic is tracked: several parts of a client may share the cluster."""
        self._track_all_count = 0
        self._update_listeners: list[Callable[[], None]] = []
        self._coordinators: dict[tuple[int, str], int] = {}
        self._refresh_in_flight: _InFlightRefresh | None = None
        self._update_requested = asyncio.Event()
        self._refresh_task: asyncio.Task[None] | None = None

    # Life

    async def start(self) -> None:
        """Fetches the first metadata; raises KafkaError when no server answers in request_timeout_ms."""
        if self._refresh_task is not None:
            return
        retry = self.retry()
        failure: KafkaError | None = None
        while True:
            try:
                await self.refresh(timeout_ms=retry.remaining_ms)
                break
            except KafkaError as error:
                # An attempt for which too little time is left knows less than those before it.
                failure = failure if failure and isinstance(error, RequestTimedOutError) else error
                await retry.wait_or_raise(failure)
        if self._refresh_task is not None:
            return
        self._refresh_task = asyncio.get_running_loop().create_task(
            self._refresh_loop(), name=f"{self.client_id} keeps its metadata fresh"
        )

    async def close(self) -> None:
        tasks = [] if self._refresh_task is None else [self._refresh_task]
        if self._refresh_in_flight is not None:
            tasks.append(self._refresh_in_flight.task)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._pool.close()

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def backoff(self) -> Backoff:
        return Backoff(self.random, self.retry_backoff_ms, self.retry_backoff_max_ms)

    def retry(self, timeout_ms: int | None = None) -> Retry:
        """The attempts at one operation, within request_timeout_ms if nothing else is said."""
        return Retry(self.backoff(), self.request_timeout_ms if timeout_ms is None else timeout_ms)

    # Requests

    async def call(
        self,
        node_id: int | None,
        api: ApiKey,
        tree: Mapping[str, Any],
        *,
        timeout_ms: int | None = None,
        version_max: int | None = None,
        lane: str = "",
    ) -> Message:
        """One request, never repeated; None picks the least busy broker. Codes in the answer are the caller's,
        and its `api_version` says in which version it came.

        Raises ConnectionLostError and RequestTimedOutError (both retriable), and UnsupportedVersionError.
        """
        limit = self.retry(timeout_ms)
        connection = await self.connection(node_id, lane, timeout_ms=limit.remaining_ms)
        try:
            return await connection.call(api, tree, timeout_ms=limit.remaining_ms, version_max=version_max)
        except KafkaError:
            if not connection.is_open:
                self.note_failure(connection)
            raise
        except asyncio.CancelledError:
            if api is ApiKey.FETCH:
                # It waits at the broker, and whoever comes next on this connection would wait with it.
                connection.close_if_abandoned()
            raise

    async def connection(
        self, node_id: int | None, lane: str = "", *, timeout_ms: int | None = None
    ) -> Connection:
        """For callers that pipeline: an open connection to a node, or to the least busy one."""
        timeout_ms = self.request_timeout_ms if timeout_ms is None else timeout_ms
        try:
            return await self._pool.connection(node_id, lane, timeout_ms)
        except KafkaError:
            self.refresh_soon()
            raise

    def note_failure(self, connection: Connection) -> None:
        """A connection has ended: leaders may have moved, and other brokers are asked first for a while."""
        self._pool.note_failure(connection)
        self.refresh_soon()

    # Metadata

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
        """What is known of topics that exist. Those that are not tracked are there only for a while after they were
        asked for."""
        return self._metadata.topics

    @property
    def topic_errors(self) -> Mapping[str, ErrorCode]:
        """Why topics that were asked for are not in `topics`, as a broker said last."""
        return self._metadata.topic_errors

    def partition_info(self, partition: TopicPartition) -> PartitionInfo | None:
        return self._metadata.partition(partition)

    def known_leader_of(self, partition: TopicPartition) -> int:
        """The leader as far as is known now, or -1."""
        found = self._metadata.partition(partition)
        return NO_LEADER if found is None else found.leader

    def learn_leader(self, partition: TopicPartition, leader: int, leader_epoch: int) -> None:
        """Takes over a leader that a broker named in an answer, if that is newer than what is known."""
        self._metadata.learn_leader(partition, leader, leader_epoch)

    def track(self, topics: Iterable[str]) -> None:
        """Keeps these topics in the metadata, until `untrack` is called as often."""
        for name in topics:
            self._tracked[name] = self._tracked.get(name, 0) + 1

    def untrack(self, topics: Iterable[str]) -> None:
        for name in topics:
            left = self._tracked.get(name, 0) - 1
            if left > 0:
                self._tracked[name] = left
            else:
                self._tracked.pop(name, None)

    def track_all(self) -> None:
        """Keeps all topics in the metadata, also those to come, until `untrack_all` is called as often."""
        self._track_all_count += 1

    def untrack_all(self) -> None:
        self._track_all_count = max(0, self._track_all_count - 1)

    def on_update(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Calls back whenever brokers or topics have changed; calling what this returns ends that."""
        self._update_listeners.append(callback)
        return lambda: self._update_listeners.remove(callback)

    def refresh_soon(self) -> None:
        """Has the metadata fetched in the background: something in it was found to be out of date."""
        self._update_requested.set()

    async def refresh(
        self,
        topics: Iterable[str] | None = None,
        *,
        all_topics: bool = False,
        create: bool = False,
        timeout_ms: int | None = None,
    ) -> None:
        """Fetches metadata now, of the tracked topics and these; one under way that covers them is joined.

        With `create` a broker that creates topics by itself may do so with the given ones. Raises KafkaError
        when no broker answers, in `timeout_ms` if that is shorter than request_timeout_ms.
        """
        wanted: tuple[str, ...] | None
        if create:
            wanted = tuple(topics or ())
        elif all_topics or self._track_all_count:
            wanted = None
        else:
            wanted = tuple(dict.fromkeys((*self._tracked, *(topics or ()))))
        try:
            async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000):
                await self._join_or_start_refresh(wanted, create)
        except TimeoutError:
            raise RequestTimedOutError(f"no broker told of its metadata within {timeout_ms} ms") from None

    async def _join_or_start_refresh(self, wanted: tuple[str, ...] | None, create: bool) -> None:
        while (under_way := self._refresh_in_flight) is not None:
            if under_way.covers(wanted, create):
                await await_shared(under_way.task)
                return
            await asyncio.gather(asyncio.shield(under_way.task), return_exceptions=True)
        task = asyncio.get_running_loop().create_task(
            self._fetch_metadata(wanted, create), name=f"{self.client_id} fetches metadata"
        )
        self._refresh_in_flight = _InFlightRefresh(wanted, create, task)
        await await_shared(task)

    async def wait_for_topics(
        self, topics: Iterable[str], *, timeout_ms: int | None = None, create: bool = False
    ) -> None:
        """Waits until all these topics are known; raises UNKNOWN_TOPIC_OR_PARTITION when they do not appear."""
        names = list(topics)
        retry = self.retry(timeout_ms)
        while missing := [name for name in names if name not in self.topics]:
            try:
                await self.refresh(missing, create=create, timeout_ms=retry.remaining_ms)
                self._check_topics_exist(missing)
            except KafkaError as error:
                await retry.wait_or_raise(error)

    async def leader_of(self, partition: TopicPartition, *, timeout_ms: int | None = None) -> int:
        """The node that leads a partition, waited for; raises KafkaError when there is none in time."""
        retry = self.retry(timeout_ms)
        while (leader := self.known_leader_of(partition)) == NO_LEADER:
            try:
                await self.refresh([partition.topic], timeout_ms=retry.remaining_ms)
                self._check_topics_exist([partition.topic])
                found = self.partition_info(partition)
                if found is None:
                    raise KafkaError(ErrorCode.unknown_topic_or_partition, f"there is no {partition}")
                if found.leader == NO_LEADER:
                    raise KafkaError(ErrorCode.leader_not_available, f"{partition} has no leader")
            except KafkaError as error:
                await retry.wait_or_raise(error)
        return leader

    def _check_topics_exist(self, topics: Iterable[str]) -> None:
        for name in topics:
            if name not in self.topics:
                code = self.topic_errors.get(name, ErrorCode.unknown_topic_or_partition)
                raise KafkaError(code, f"the topic {name!r}")

    async def _refresh_loop(self) -> None:
        backoff = self.backoff()
        while True:
            try:
                async with asyncio.timeout(self.metadata_max_age_ms / 1000):
                    await self._update_requested.wait()
            except TimeoutError:
                pass
            self._update_requested.clear()
            try:
                await self.refresh()
                backoff.reset()
                if not self._track_all_count:
                    self._metadata.retain_topics(self._tracked)
            except KafkaError as error:
                _log.debug("metadata could not be fetched", error=error)
                self._update_requested.set()
            except Exception:
                # A bug: without fresh metadata all else would slowly come to rest.
                _log.exception("metadata could not be fetched")
                self._update_requested.set()
            # However often it is found to be stale, brokers are not asked more often than this.
            await asyncio.sleep(backoff.next_delay_ms() / 1000)

    async def _fetch_metadata(self, topics: tuple[str, ...] | None, create: bool) -> None:
        try:
            answer = await self._request_metadata(
                {
                    "topics": None
                    if topics is None
                    else [{"topic_id": None, "name": name} for name in topics],
                    "allow_auto_topic_creation": create,
                    "include_cluster_authorized_operations": False,
                    "include_topic_authorized_operations": False,
                }
            )
        finally:
            self._refresh_in_flight = None
        changed = self._metadata.update(answer, all_topics=topics is None)
        self._pool.set_brokers(self._metadata.brokers)
        if changed:
            for callback in list(self._update_listeners):
                try:
                    callback()
                except Exception:
                    _log.exception("somebody could not take in new metadata")

    async def _request_metadata(self, tree: Mapping[str, Any]) -> Message:
        """The first answer with metadata, in request_timeout_ms; each broker is asked once at most."""
        limit = self.retry()
        attempts = self._pool.address_count
        while True:
            connection = await self._pool.connection(None, "", limit.remaining_ms)
            # One that hangs leaves the others their share of the time.
            timeout_ms = max(1, limit.remaining_ms // max(1, attempts))
            attempts -= 1
            try:
                answer = await connection.call(ApiKey.METADATA, tree, timeout_ms=timeout_ms)
                raise_for_code(answer.get("error_code", 0))
                if not answer.brokers:
                    raise KafkaError(ErrorCode.leader_not_available, "the broker knows of no brokers yet")
                return answer
            except KafkaError as error:
                if not connection.is_open:
                    self._pool.note_failure(connection)
                if attempts <= 0 or not error.is_retriable:
                    raise

    # Coordinators

    async def coordinator_of(self, key: str, kind: int = GROUP, *, timeout_ms: int | None = None) -> int:
        """The node that coordinates a group (or transactional id): asked for once, then remembered."""
        retry = self.retry(timeout_ms)
        hung = 0
        while (kind, key) not in self._coordinators:
            try:
                # One that hangs leaves the others their share of the time.
                share_ms = max(1, retry.remaining_ms // max(1, self._pool.address_count - hung))
                limit_ms = min(share_ms, self.request_timeout_ms)
                self._coordinators[kind, key] = await self._find_coordinator(key, kind, limit_ms)
            except KafkaError as error:
                hung += isinstance(error, RequestTimedOutError)
                await retry.wait_or_raise(error)
        return self._coordinators[kind, key]

    def forget_coordinator(self, key: str, kind: int = GROUP) -> None:
        """It has moved or cannot be reached: the next `coordinator_of` asks again."""
        self._coordinators.pop((kind, key), None)

    async def _find_coordinator(self, key: str, kind: int, timeout_ms: int) -> int:
        tree = {"key_type": kind, "coordinator_keys": [key]}
        answer = await self.call(None, ApiKey.FIND_COORDINATOR, tree, timeout_ms=timeout_ms)
        found = answer.coordinators[0]
        raise_for_code(found.error_code, found.error_message or f"the coordinator of {key!r}")
        node_id = int(found.node_id)
        if node_id not in self.brokers:
            await self.refresh(timeout_ms=timeout_ms)
            if node_id not in self.brokers:
                raise KafkaError(
                    ErrorCode.coordinator_not_available, f"node {node_id}, which coordinates {key!r}, is away"
                )
        return node_id


def resolve_cluster(
    given: str | Sequence[str] | Cluster, settings: Mapping[str, Any]
) -> tuple[Cluster, bool]:
    """The cluster that a client stands on, and whether the client has made it, with these settings, and owns it."""
    if not isinstance(given, Cluster):
        return Cluster(given, **settings), True
    if settings:
        raise TypeError(f"a cluster that is shared has settings of its own: {', '.join(settings)}")
    return given, False


def parse_bootstrap(bootstrap: str | Sequence[str]) -> list[Address]:
    """The addresses in `host:port,[ipv6]:port`; raises ValueError for what is none."""
    texts = bootstrap.split(",") if isinstance(bootstrap, str) else list(bootstrap)
    addresses = [_parse_server(text.strip()) for text in texts if text.strip()]
    if not addresses:
        raise ValueError("bootstrap servers are needed, as host:port")
    return addresses


def _parse_server(text: str) -> Address:
    host, colon, port = text.rpartition(":")
    if not colon or port.endswith("]"):
        host, port = text, str(PORT_DEFAULT)
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError(f"a bootstrap server is host:port, not {text!r}")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _secure_random() -> random.Random:
    # Of a kind that nobody can foresee: nonces are made with it.
    return random.SystemRandom()
