"""A node: creates its components, starts them in order, and closes them in reverse order."""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING

from moldau.broker_lifecycle.manager import BrokerLifecycleManager
from moldau.controller.channel import NodeToControllerChannel
from moldau.controller.ids import random_uuid
from moldau.controller.quorum_controller import QuorumController
from moldau.groups.coordinator import GroupCoordinator
from moldau.groups.offsets_topic import OFFSETS_TOPIC
from moldau.handlers import REGISTRY
from moldau.lag.isolation_levels import ConsumerIsolationLevels
from moldau.lag.metrics_topic import MetricsTopicWriter
from moldau.lag.sampler import LagSampler
from moldau.metadata.image import Endpoint
from moldau.metadata.loader import MetadataLoader
from moldau.metadata.snapshot_generator import SnapshotGenerator
from moldau.network.connection import Connection, RequestProcessor
from moldau.network.limits import ConnectionQuotas, MemoryPool, PartialFrameLimiter
from moldau.network.socket_server import SocketServer
from moldau.node.incarnations import IncarnationStore
from moldau.node.log_end import fetch_log_end
from moldau.node.meta_properties import MetaProperties, load_or_create
from moldau.node.quorum_bootstrap import bootstrap_servers, check_quorum_settings, initial_voters
from moldau.node.storage import make_storage
from moldau.observe.logging import get_logger
from moldau.partitions.delayed_operations import CallbackList
from moldau.partitions.log_maintenance import LogMaintenance
from moldau.partitions.replica_manager import ReplicaManager
from moldau.peers.client import Connect, PeerClient, publish_broker_endpoints
from moldau.platform import Platform
from moldau.raft.kafka_network_channel import KafkaNetworkChannel
from moldau.raft.messages import NO_LEADER
from moldau.raft.quorum_config import QuorumConfig
from moldau.raft.quorum_state_store import FileQuorumStateStore, MemoryQuorumStateStore, QuorumStateStore
from moldau.raft.raft_client import METADATA_LOG, RaftClient, open_metadata_log
from moldau.raft.snapshot_store import FileSnapshotStore, MemorySnapshotStore
from moldau.replication.driver import ReplicaFetcherManager
from moldau.server.api import Broker, ClientConnection
from moldau.server.auto_topic_creation import AutoTopicCreationManager
from moldau.server.broker_availability import BrokerAvailability
from moldau.server.dispatcher import Dispatcher
from moldau.server.fetch_session import FetchSessionCache
from moldau.server.forwarding import execute_forwarded
from moldau.server.late_requests import LateRequestFilter
from moldau.settings.broker import BrokerSettings
from moldau.settings.effective import ALL_BROKERS, EffectiveSettings
from moldau.settings.listeners import ListenerEndpoint as Address
from moldau.settings.listeners import advertised_endpoints
from moldau.transactions.coordinator import TransactionCoordinator
from moldau.transactions.marker_sender import MarkerSender
from moldau.transactions.marker_writer import MarkerWriter, append_marker
from moldau.transactions.producer_id_manager import ProducerIdManager
from moldau.transactions.state_topic import TRANSACTION_STATE_TOPIC
from moldau.transactions.verification import TransactionVerifier

if TYPE_CHECKING:
    from moldau.http.server import HttpServer
    from moldau.node.outbox_relay import OutboxRelay

log = get_logger(__name__)

CLOSE_GRACE_S = 5.0
"""How long clients may take to receive pending responses when the node stops."""


class Node:
    def __init__(
        self,
        platform: Platform,
        settings: BrokerSettings,
        *,
        on_fatal: Callable[[BaseException], None] | None = None,
        connect: Connect | None = None,
    ) -> None:
        """`on_fatal` must stop a node that cannot continue. `connect` replaces the connections to other nodes."""
        check_quorum_settings(settings)
        self._connect = connect
        self._platform = platform
        self._broker_settings = settings
        self._settings = EffectiveSettings(settings)
        self._storage = make_storage(platform, settings)
        self._store = self._storage.logs
        self._on_fatal = on_fatal
        self._limits = self._make_limits()
        # A separate listener for other nodes has its own limits, so that load from clients does not affect other nodes.
        self._inter_broker_limits = self._make_limits() if len(settings.listeners) > 1 else self._limits
        self._listeners: list[SocketServer] = []
        self._connection_count = 0
        """The number of connections that clients and other nodes have opened."""
        self._exit_stack = AsyncExitStack()
        """Closes all components in reverse order, even if closing one of them fails."""
        self._dispatcher: Dispatcher | None = None
        self.addresses: tuple[Address, ...] = ()
        """The advertised addresses; empty before the node starts."""
        self._outbox_relay: OutboxRelay | None = None
        self._http: HttpServer | None = None
        self.http_address: str | None = None
        """The address of the HTTP server as host:port; None if it is off or the node has not started."""
        self.failure: BaseException | None = None

    @property
    def broker(self) -> Broker:
        assert self._dispatcher is not None, "the node has not started"
        return self._broker

    @property
    def unexpected_errors(self) -> int:
        """The number of requests and background operations that ended in an unexpected exception."""
        if self._dispatcher is None:
            return 0
        counters = (
            self._dispatcher,
            self._groups,
            self._transactions,
            self._transaction_verifier,
            self._auto_topic_creation,
            self._lag_sampler,
        )
        optional = (each for each in (self._http, self._outbox_relay) if each is not None)
        return sum(each.unexpected_errors for each in (*counters, *optional))

    async def start(self) -> None:
        """Starts the node and returns when clients are served. If the start fails, closes everything again."""
        try:
            await self._start()
        except BaseException:
            self.begin_stop()
            await self._exit_stack.aclose()
            raise

    async def _start(self) -> None:
        self._warn_of_unusable_batch_size()
        self._files = await self._storage.start()
        self._exit_stack.push_async_callback(self._close_store)
        if not self._store.had_clean_shutdown and self._store.list_logs():
            log.warning("unclean shutdown: recovering logs and truncating incomplete batches")
        self.addresses = advertised_endpoints(await self._bind(), self._broker_settings.advertised)
        await self._bind_http()
        meta = await load_or_create(self._files, self._platform.random, self._broker_settings)
        await self._create_components(meta)
        self._exit_stack.push_async_callback(self._close_listeners)
        # From now on other nodes can connect. Clients are served only after this broker is unfenced.
        for listener in self._listeners:
            await listener.serve()
        await self._serve_http()
        await self._controller.start()
        await self._register()
        self._replication.start()
        await self._lifecycle.wait_until_active()
        # Wait until all metadata publishers have handled the image. If the controller runs in this process, the broker
        # can become active earlier than that.
        await self._metadata.wait_for_offset(self._metadata.committed_image.offset)
        self._log_maintenance = LogMaintenance(self._partitions, self._settings, self._platform.clock)
        self._log_maintenance.start()
        self._exit_stack.push_async_callback(self._log_maintenance.stop)
        self._groups.start()
        self._transactions.start()
        self._lag_sampler.start()
        self._broker.ready.set()
        self._exit_stack.push_async_callback(self._begin_shutdown)
        self._start_outbox_relay()
        log.info(
            "ready",
            addresses=",".join(str(address) for address in self.addresses),
            cluster=meta.cluster_id,
            partitions=len(self._partitions),
            **({} if self.http_address is None else {"http": self.http_address}),
        )
        self._warn_of_overridden_min_isr()

    def _start_outbox_relay(self) -> None:
        if self._broker_settings.postgres_outbox_schema:
            # Other nodes do not load the client and psycopg.
            from moldau.node.outbox_relay import OutboxRelay

            address = self.addresses[0]
            relay = self._outbox_relay = OutboxRelay(self._broker_settings, f"{address.host}:{address.port}")
            self._exit_stack.push_async_callback(relay.close)

    def _warn_of_unusable_batch_size(self) -> None:
        settings = self._broker_settings
        message_bytes_max = settings.topic_defaults.max_message_bytes
        if message_bytes_max > settings.socket_request_max_bytes:
            log.warning(
                "message.max.bytes is greater than socket.request.max.bytes: larger requests close their connection",
                message_max_bytes=message_bytes_max,
                socket_request_max_bytes=settings.socket_request_max_bytes,
            )

    def _warn_of_overridden_min_isr(self) -> None:
        name, static = "min.insync.replicas", self._broker_settings
        stored = self._metadata.image.config(ALL_BROKERS).get(name)
        if name in static.explicitly_set and stored not in (None, str(static.topic_defaults.min_insync_replicas)):
            log.warning(
                "min.insync.replicas is stored in the metadata and overrides the setting of this node; alter the "
                "config of all brokers to change it",
                stored=stored,
                setting=static.topic_defaults.min_insync_replicas,
            )

    async def _register(self) -> None:
        """Registers the broker and reports the earlier incarnations that are saved on its disk."""
        if self._broker_settings.store == "memory":
            await self._lifecycle.start()
            return
        incarnations = IncarnationStore(self._files, self._broker_settings.log_dir)
        previous_incarnations = await incarnations.add(self._incarnation_id)
        node_id = self._broker_settings.node_id
        registered = self._metadata.image.brokers.get(node_id)
        if registered is not None and [each.node_id for each in self._quorum.voters] == [node_id]:
            # This node is the only voter, so the registration is in the metadata log on this disk. The registered
            # incarnation therefore used this disk.
            previous_incarnations = (*previous_incarnations, registered.incarnation_id)
        await self._lifecycle.start(previous_incarnations)
        await incarnations.mark_registered(self._incarnation_id)

    async def _create_components(self, meta: MetaProperties) -> None:
        """Creates all components without starting them."""
        platform, broker_settings, settings = self._platform, self._broker_settings, self._settings
        node_id, clock = broker_settings.node_id, platform.clock
        peers = self._peers = PeerClient(
            node_id, clock, request_timeout_ms=broker_settings.quorum_request_timeout_ms, connect=self._connect
        )
        self._exit_stack.push_async_callback(peers.close)
        metadata = self._metadata = MetadataLoader(meta.cluster_id)
        metadata.on_failure(self._fail)
        replica_manager = self._partitions = ReplicaManager(
            node_id, self._store, settings, clock, internal_logs=(METADATA_LOG,)
        )
        metadata.add_publisher(lambda delta, image: settings.apply(image, delta))
        metadata.add_commit_listener(partial(publish_broker_endpoints, peers, broker_settings.inter_broker_listener))
        metadata.add_publisher(replica_manager.publish)

        quorum = self._quorum = await self._create_raft_client(meta)
        self._exit_stack.push_async_callback(quorum.close)
        snapshot_generator = SnapshotGenerator(
            metadata,
            quorum.write_snapshot,
            clock,
            bytes_max=broker_settings.metadata_snapshot_bytes,
            interval_ms=broker_settings.metadata_snapshot_interval_ms,
        )
        self._exit_stack.push_async_callback(snapshot_generator.close)
        self._exit_stack.push_async_callback(metadata.close)
        probe = partial(peers.probe, timeout_ms=broker_settings.quorum_request_timeout_ms)
        controller = self._controller = QuorumController(
            node_id,
            quorum,
            metadata,
            settings,
            platform.random,
            clock,
            probe=probe,
            fetch_log_end=partial(fetch_log_end, node_id, replica_manager, peers),
        )
        self._exit_stack.push_async_callback(controller.close)
        # Resign before the controller closes, because `close` waits for the append in progress, and a full disk can
        # block that append until the node resigns.
        self._exit_stack.push_async_callback(quorum.resign)
        controller_channel = NodeToControllerChannel(node_id, controller, quorum, peers, metadata, clock)
        incarnation_id = self._incarnation_id = random_uuid(platform.random)
        lifecycle = self._lifecycle = BrokerLifecycleManager(
            node_id,
            incarnation_id,
            controller_channel,
            broker_settings,
            clock,
            cluster_id=meta.cluster_id,
            endpoints=[Endpoint(each.name, each.host, each.port) for each in self.addresses],
            previous_epoch=self._store.previous_broker_epoch,
            on_lease_expired=replica_manager.on_lease_lost,
            on_fatal=self._fail,
        )
        self._exit_stack.push_async_callback(lifecycle.close)
        quorum.set_stalled_callback(lifecycle.on_metadata_stalled)
        self._storage.watch(on_unavailable=self._on_storage_unavailable, on_failure=self._fail)
        replica_manager.lease, replica_manager.incarnation_id = lifecycle.lease, incarnation_id
        metadata.add_image_listener(lambda image: lifecycle.report(image.offset, replica_manager.offline_replicas()))
        replica_manager.on_offline_replicas_changed.append(
            lambda: lifecycle.report(metadata.image.offset, replica_manager.offline_replicas())
        )
        self._exit_stack.push_async_callback(replica_manager.close)
        groups = self._groups = GroupCoordinator(
            node_id, replica_manager, metadata, controller_channel, settings, clock
        )
        metadata.add_publisher(groups.publish)
        self._exit_stack.push_async_callback(groups.close)
        producer_ids = ProducerIdManager(
            lambda: controller_channel.allocate_producer_ids(node_id, lifecycle.broker_epoch)
        )
        marker_writer = MarkerWriter(replica_manager, append_marker, {OFFSETS_TOPIC: groups.append_marker})
        transactions = self._transactions = TransactionCoordinator(
            node_id,
            replica_manager,
            metadata,
            controller_channel,
            settings,
            clock,
            producer_ids,
            MarkerSender(node_id, peers, marker_writer),
        )
        metadata.add_publisher(transactions.publish)
        self._exit_stack.push_async_callback(transactions.close)
        verifier = self._transaction_verifier = TransactionVerifier(node_id, metadata, peers, transactions)
        metadata.add_publisher(verifier.publish)
        self._exit_stack.push_async_callback(verifier.close)
        auto_topic_creation = self._auto_topic_creation = AutoTopicCreationManager(
            controller_channel,
            {OFFSETS_TOPIC: groups.ensure_topic, TRANSACTION_STATE_TOPIC: transactions.ensure_topic},
            clock,
        )
        self._exit_stack.push_async_callback(auto_topic_creation.close)
        self._replication = ReplicaFetcherManager(
            node_id,
            replica_manager,
            peers,
            controller_channel,
            lifecycle,
            settings,
            clock,
            platform.random,
            cluster_id=meta.cluster_id,
        )
        self._exit_stack.push_async_callback(self._replication.close)
        handshake = partial(peers.handshake, timeout_ms=broker_settings.quorum_request_timeout_ms)
        availability = BrokerAvailability(metadata, clock, probe=handshake)
        self._exit_stack.push_async_callback(availability.close)
        peers.on_disconnect = availability.on_disconnect
        isolation_levels = ConsumerIsolationLevels()
        lag_sampler = self._lag_sampler = LagSampler(
            node_id, groups, replica_manager, metadata, peers, isolation_levels, settings, clock
        )
        groups.on_loaded = lag_sampler.on_groups_loaded
        metadata.add_publisher(lambda delta, image: lag_sampler.on_settings_changed())
        lag_sampler.on_sampled = MetricsTopicWriter(
            node_id, lag_sampler, replica_manager, metadata, controller_channel, peers, settings, clock
        ).write
        self._exit_stack.push_async_callback(lag_sampler.close)
        self._broker = Broker(
            broker_id=node_id,
            platform=platform,
            settings=settings,
            metadata=metadata,
            controller=controller,
            replica_manager=replica_manager,
            groups=groups,
            transactions=transactions,
            transaction_verifier=verifier,
            marker_writer=marker_writer,
            late_requests=LateRequestFilter(clock, lambda: settings.broker.connections_max_idle_ms),
            fetch_session_cache=FetchSessionCache(
                platform.random, broker_settings.max_incremental_fetch_session_cache_slots
            ),
            producer_ids=producer_ids,
            shutdown_callbacks=CallbackList(),
            quorum=quorum,
            controller_channel=controller_channel,
            auto_topic_creation=auto_topic_creation,
            lifecycle=lifecycle,
            peers=peers,
            replication=self._replication,
            availability=availability,
            lag_sampler=lag_sampler,
            isolation_levels=isolation_levels,
            ready=asyncio.Event(),
            listeners=self._listeners,
        )
        # A scrape also drops the counts of deleted topics, but a node may never be scraped.
        metadata.add_publisher(
            lambda delta, image: self._broker.topic_metrics.keep_only(image.topics) if delta.topics_deleted else None
        )
        controller_channel.local_handler = partial(execute_forwarded, broker=self._broker)
        self._dispatcher = Dispatcher(self._broker, REGISTRY)

    async def _create_raft_client(self, meta: MetaProperties) -> RaftClient:
        broker_settings, metadata = self._broker_settings, self._metadata
        metadata_log = await open_metadata_log(self._store)
        directory = f"{broker_settings.log_dir}/{METADATA_LOG}"
        in_memory = broker_settings.store == "memory"
        bootstrap = bootstrap_servers(broker_settings)
        state_store: QuorumStateStore = MemoryQuorumStateStore()
        if not in_memory:
            state_store = FileQuorumStateStore(self._files, directory, meta.cluster_id)
            if metadata_log.end_offset == 0:
                await state_store.create_if_missing()
        return RaftClient(
            broker_settings.node_id,
            # A node that stores nothing has no directory id, so it cannot be added to the voters.
            None if in_memory else meta.directory_id,
            metadata_log,
            state_store,
            self._platform.clock,
            self._platform.random,
            initial_voters=initial_voters(broker_settings, meta, self.addresses),
            channel=KafkaNetworkChannel(
                self._peers,
                meta.cluster_id,
                listener=broker_settings.inter_broker_listener,
                request_timeout_ms=broker_settings.quorum_request_timeout_ms,
                bootstrap=bootstrap,
                own_addresses=[(each.host, each.port) for each in self.addresses],
                on_rejected=self._fail,
            ),
            snapshots=MemorySnapshotStore() if in_memory else FileSnapshotStore(self._files, directory),
            config=QuorumConfig(
                fetch_timeout_ms=broker_settings.quorum_fetch_timeout_ms,
                election_timeout_ms=broker_settings.quorum_election_timeout_ms,
                request_timeout_ms=broker_settings.quorum_request_timeout_ms,
            ),
            bootstrap_ids=tuple(bootstrap),
            on_commit=metadata.commit,
            on_load_snapshot=metadata.load_snapshot,
            on_leader_change=self._on_leader_change,
            on_fatal=metadata.fail,
        )

    def _on_leader_change(self, leader_id: int, epoch: int) -> None:
        self._controller.leader_changed(leader_id, epoch)
        if leader_id != NO_LEADER:
            self._lifecycle.on_controller_change()

    def _on_storage_unavailable(self) -> None:
        """Gives up leadership if there are other brokers. A single broker only waits for its storage."""
        if len(self._metadata.image.brokers) > 1:
            self._lifecycle.on_metadata_stalled()

    def begin_stop(self) -> None:
        """Lets storage that does not respond delay `stop`, or a `start` in progress, only shortly."""
        self._storage.begin_close()

    async def stop(self) -> None:
        """Moves leadership to other nodes, completes pending requests, and closes the logs cleanly."""
        self.begin_stop()
        await self._exit_stack.aclose()
        log.info("stopped")

    def abort(self) -> None:
        """Closes all sockets and nothing else, as if the process had ended. Tests use this to kill nodes."""
        for listener in self._listeners:
            listener.abort()
        if self._http is not None:
            self._http.abort()

    async def _begin_shutdown(self) -> None:
        """Moves leadership to other nodes."""
        if self.failure is not None:
            # Skip the handover after a failure. Other nodes take over as soon as this process has ended.
            return
        if self._broker_settings.controlled_shutdown_enable and len(self._metadata.image.brokers) > 1:
            await self._lifecycle.shut_down()
        if len(self._quorum.voters) > 1:
            # Resign while the listeners are still open, so that the next controller takes over without a gap.
            await self._quorum.resign()

    async def _close_store(self) -> None:
        """Closes the logs and saves the broker epoch with which they were closed cleanly; -1 after a failure."""
        epoch = -1 if self._dispatcher is None else self._lifecycle.broker_epoch
        if self.failure is not None:
            epoch = -1
        elif epoch == -1:
            # This node was not registered, so it has changed no log, and the previous epoch is still valid.
            epoch = self._store.previous_broker_epoch
        await self._storage.close(epoch)

    async def _close_listeners(self) -> None:
        if len(self._metadata.image.brokers) > 1:
            # The controller fences a broker that refuses connections, so the lease must end first. A node that failed,
            # or that failed to start, has no controlled shutdown that would end it.
            self._lifecycle.stop()
        for listener in self._listeners:
            listener.stop()
        if self._http is not None:
            self._http.stop()
        self._broker.shutdown_callbacks.close()
        self._groups.stop()
        self._transactions.stop()
        self._transaction_verifier.stop()
        closing = [listener.close(CLOSE_GRACE_S) for listener in self._listeners]
        if self._http is not None:
            closing.append(self._http.close(CLOSE_GRACE_S))
        await asyncio.gather(*closing)

    def _make_limits(self) -> tuple[MemoryPool, PartialFrameLimiter, ConnectionQuotas]:
        """Returns limits for the connections of one listener or several listeners."""
        # One half of the memory is for requests in progress, the other half for large requests that are being received.
        half = self._broker_settings.queued_max_request_bytes // 2
        return MemoryPool(half), PartialFrameLimiter(half), ConnectionQuotas(lambda: self._settings.broker)

    async def _bind(self) -> list[Address]:
        bound = []
        for address in self._broker_settings.listeners:
            is_inter_broker = address.name == self._broker_settings.inter_broker_listener
            limits = self._inter_broker_limits if is_inter_broker else self._limits
            listener = SocketServer(
                address.name,
                lambda: self._settings.broker,
                *limits,
                REGISTRY.pipelined_api_keys(),
                self._on_connection_opened,
            )
            self._listeners.append(listener)
            self._exit_stack.push_async_callback(listener.close, 0)
            _, port = await listener.bind(address.host, address.port)
            bound.append(address._replace(port=port))
        return bound

    async def _bind_http(self) -> None:
        settings = self._broker_settings
        if settings.http_port < 0:
            return
        # A node without an HTTP server does not load this module.
        from moldau.http.server import HttpServer

        self._http = HttpServer()
        self._exit_stack.push_async_callback(self._http.close, 0)
        host, port = await self._http.bind(settings.http_host, settings.http_port)
        self.http_address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    async def _serve_http(self) -> None:
        """Opens the HTTP server. It responds to health requests before the node is ready."""
        if self._http is not None:
            from moldau.http.context import HttpContext

            await self._http.serve(HttpContext(self._broker))

    def _on_connection_opened(self, connection: Connection, listener: str) -> RequestProcessor:
        assert self._dispatcher is not None
        self._connection_count += 1
        client = ClientConnection(f"{connection.peer[0]}:{connection.peer[1]}", listener, self._connection_count)

        def on_closed() -> None:
            self._broker.fetch_session_cache.remove_all(client)
            client.close_callbacks.close()

        connection.close_callbacks.append(on_closed)
        return partial(self._dispatcher.handle, client)

    def _fail(self, error: BaseException) -> None:
        if self.failure is None:
            self.failure = error
            log.error("fatal error, the node must stop", reason=str(error) or type(error).__name__)
            if self._on_fatal is not None:
                self._on_fatal(error)
