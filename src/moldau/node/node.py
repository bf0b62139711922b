"""A node put together in boot order: identity, logs, quorum, metadata, partitions, controller, groups, and last
the doors.

A single node goes through all of it: its quorum has one voter, its controller is its own.
"""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import NamedTuple

from moldau.broker_lifecycle.driver import Membership
from moldau.controller.driver import Controller
from moldau.controller.gateway import ControllerGateway
from moldau.controller.ids import new_id
from moldau.groups.coordinator import GroupCoordinator
from moldau.handlers import REGISTRY
from moldau.logs.store import LogStore
from moldau.metadata.image import Endpoint
from moldau.metadata.loader import MetadataLoader
from moldau.metadata.snapshotter import Snapshotter
from moldau.network.admission import Admission
from moldau.network.budget import Budget
from moldau.network.connection import Answer, Connection
from moldau.network.large_frames import LargeFrames
from moldau.network.listener import Listener
from moldau.node import identity
from moldau.node.identity import Identity
from moldau.node.lives import Lives
from moldau.node.log_ends import LogEnds
from moldau.node.voting import bootstrap_servers, check_membership, first_voters
from moldau.observe.logging import get_logger
from moldau.partitions.housekeeping import Housekeeping
from moldau.partitions.table import PartitionTable
from moldau.partitions.waiting import Listeners
from moldau.peers.addresses import PeerAddresses
from moldau.peers.peers import Connect, Peers
from moldau.platform import Platform
from moldau.raft.driver import METADATA_LOG, Quorum, QuorumSettings, open_metadata_log
from moldau.raft.elections import ElectionFile, ElectionMemory
from moldau.raft.messages import NO_LEADER
from moldau.raft.snapshots import SnapshotFiles, SnapshotMemory
from moldau.raft.wire import WireQuorumPeers
from moldau.replication.driver import Replication
from moldau.server.broker import Broker
from moldau.server.dispatch import Dispatcher
from moldau.server.fetch_sessions import FetchSessions
from moldau.server.session import ClientConnection
from moldau.settings.broker import BrokerSettings
from moldau.settings.effective import EffectiveSettings
from moldau.settings.listeners import Listener as Address
from moldau.settings.listeners import advertise
from moldau.transactions.producer_ids import ProducerIds

log = get_logger(__name__)

CLOSE_GRACE_S = 5.0
"""How long clients get to take the answers that are under way when the node stops."""


class Node:
    def __init__(
        self,
        platform: Platform,
        settings: BrokerSettings,
        *,
        store: LogStore | None = None,
        on_fatal: Callable[[BaseException], None] | None = None,
        connect: Connect | None = None,
    ) -> None:
        """`store` takes the place of the one that the settings name; `on_fatal` hears when the node can no
        longer serve (its metadata cannot be kept), and should stop it. `connect` takes the place of the way to other
        nodes."""
        check_membership(settings)
        self._connect = connect
        self._world = platform
        self._static = settings
        self._settings = EffectiveSettings(settings)
        self._store = store or _make_store(platform, settings)
        self._on_fatal = on_fatal
        self._limits = self._make_limits()
        # Clients cannot keep other nodes out where those have a listener to themselves.
        self._limits_of_nodes = self._make_limits() if len(settings.listeners) > 1 else self._limits
        self._listeners: list[Listener] = []
        self._undo = AsyncExitStack()
        """What has to be closed, last first, even where closing one of them fails."""
        self._dispatcher: Dispatcher | None = None
        self.addresses: tuple[Address, ...] = ()
        """What clients are told to connect to, known once the node has started."""
        self.failure: BaseException | None = None

    @property
    def broker(self) -> Broker:
        assert self._dispatcher is not None, "the node has not started"
        return self._broker

    @property
    def bugs(self) -> int:
        """Requests and group timers that ended in an exception nobody planned for."""
        return 0 if self._dispatcher is None else self._dispatcher.bugs + self._groups.bugs

    async def start(self) -> None:
        """Returns when clients are served; what was begun is undone where that fails."""
        try:
            await self._start()
        except BaseException:
            await self._undo.aclose()
            raise

    async def _start(self) -> None:
        await self._store.start()
        self._undo.push_async_callback(self._close_store)
        if not self._store.was_closed_cleanly and self._store.found():
            log.warning("the node did not stop cleanly: logs are checked and what was torn is cut off")
        self.addresses = advertise(await self._bind(), self._static.advertised)
        who = await self._identity()
        await self._put_together(who)
        # Nodes talk to each other from here on. Clients are let in when the cluster has taken this one.
        self._undo.push_async_callback(self._close_listeners)
        for listener in self._listeners:
            await listener.serve()
        await self._controller.start()
        await self._register()
        self._replication.start()
        await self._membership.wait_active()
        # A controller that is here does not wait for this node's own parts when it says so.
        await self._metadata.wait_for(self._metadata.committed.offset)
        self._housekeeping = Housekeeping(self._partitions, self._settings, self._world.clock)
        self._housekeeping.start()
        self._undo.push_async_callback(self._housekeeping.stop)
        self._groups.start()
        self._broker.ready.set()
        self._undo.push_async_callback(self._hand_over)
        log.info(
            "ready",
            addresses=",".join(str(address) for address in self.addresses),
            cluster=who.cluster_id,
            partitions=len(self._partitions),
        )

    async def _register(self) -> None:
        """Where the disk remembers its lives: otherwise nothing of a former one is left."""
        if self._static.store == "memory":
            await self._membership.start()
            return
        lives = Lives(self._world.disk, self._static.data_dir)
        former = await lives.begin(self._incarnation_id)
        node_id = self._static.node_id
        registered = self._metadata.image.brokers.get(node_id)
        if registered is not None and [each.node_id for each in self._quorum.voters] == [node_id]:
            # All that is known of the registered life is known from this disk.
            former = (*former, registered.incarnation_id)
        await self._membership.start(former)
        await lives.settle(self._incarnation_id)

    async def _put_together(self, who: Identity) -> None:
        """All parts, none of them at work yet; what is pushed last is closed first."""
        platform, static, settings = self._world, self._static, self._settings
        node_id, clock = static.node_id, platform.clock
        peers = self._peers = Peers(
            node_id, clock, request_timeout_ms=static.quorum_request_timeout_ms, connect=self._connect
        )
        self._undo.push_async_callback(peers.close)
        metadata = self._metadata = MetadataLoader(who.cluster_id)
        metadata.on_failure(self._fatal)
        table = self._partitions = PartitionTable(
            node_id, self._store, settings, clock, not_ours=(METADATA_LOG,)
        )
        metadata.subscribe(lambda delta, image: settings.apply(image, delta))
        metadata.foresee(PeerAddresses(peers, static.inter_broker_listener).publish)
        metadata.subscribe(table.publish)

        quorum = self._quorum = await self._make_quorum(who)
        self._undo.push_async_callback(quorum.close)
        snapshotter = Snapshotter(
            metadata,
            quorum,
            clock,
            bytes_max=static.metadata_snapshot_bytes,
            interval_ms=static.metadata_snapshot_interval_ms,
        )
        self._undo.push_async_callback(snapshotter.close)
        self._undo.push_async_callback(metadata.close)
        controller = self._controller = Controller(
            node_id,
            quorum,
            metadata,
            settings,
            platform.random,
            clock,
            probe=lambda broker_id: peers.probe(broker_id, static.quorum_request_timeout_ms),
            ask_log_end=LogEnds(node_id, table, peers).ask,
        )
        self._undo.push_async_callback(controller.close)
        # Before the controller is closed: a decision may stand behind what waits for room, and would wait as long.
        self._undo.push_async_callback(quorum.resign)
        gateway = ControllerGateway(node_id, controller, quorum, peers, metadata, clock)
        incarnation_id = self._incarnation_id = new_id(platform.random)
        membership = self._membership = Membership(
            node_id,
            incarnation_id,
            gateway,
            static,
            clock,
            cluster_id=who.cluster_id,
            endpoints=[Endpoint(each.name, each.host, each.port) for each in self.addresses],
            previous_epoch=self._store.previous_broker_epoch,
            on_lease_ended=table.lease_ended,
            on_fatal=self._fatal,
        )
        self._undo.push_async_callback(membership.close)
        table.lease, table.incarnation_id = membership.lease, incarnation_id
        metadata.listen(lambda image: membership.report(image.offset, table.not_ready()))
        table.on_not_ready.append(lambda: membership.report(metadata.image.offset, table.not_ready()))
        self._undo.push_async_callback(table.close)
        groups = self._groups = GroupCoordinator(node_id, table, metadata, gateway, settings, clock)
        metadata.subscribe(groups.publish)
        self._undo.push_async_callback(groups.close)
        self._replication = Replication(
            node_id,
            table,
            peers,
            gateway,
            membership,
            settings,
            clock,
            platform.random,
            cluster_id=who.cluster_id,
        )
        self._undo.push_async_callback(self._replication.close)
        self._broker = Broker(
            broker_id=node_id,
            platform=platform,
            settings=settings,
            metadata=metadata,
            controller=controller,
            partitions=table,
            groups=groups,
            fetch_sessions=FetchSessions(platform.random, static.max_incremental_fetch_session_cache_slots),
            producer_ids=ProducerIds(lambda: gateway.allocate_producer_ids(node_id, membership.broker_epoch)),
            long_polls=Listeners(),
            quorum=quorum,
            gateway=gateway,
            membership=membership,
            peers=peers,
            replication=self._replication,
            ready=asyncio.Event(),
        )
        self._dispatcher = Dispatcher(self._broker, REGISTRY)

    async def _make_quorum(self, who: Identity) -> Quorum:
        static, metadata = self._static, self._metadata
        metadata_log = await open_metadata_log(self._store)
        directory = f"{static.data_dir}/{METADATA_LOG}"
        in_memory = static.store == "memory"
        bootstrap = bootstrap_servers(static)
        return Quorum(
            static.node_id,
            # Who has no disk has no directory, and so can never be added to the voters.
            None if in_memory else who.directory_id,
            metadata_log,
            ElectionMemory() if in_memory else ElectionFile(self._world.disk, directory, who.cluster_id),
            self._world.clock,
            self._world.random,
            first_voters=first_voters(static, who, self.addresses),
            peers=WireQuorumPeers(
                self._peers,
                who.cluster_id,
                listener=static.inter_broker_listener,
                request_timeout_ms=static.quorum_request_timeout_ms,
                bootstrap=bootstrap,
                own_addresses=[(each.host, each.port) for each in self.addresses],
                on_refused=self._fatal,
            ),
            snapshots=SnapshotMemory() if in_memory else SnapshotFiles(self._world.disk, directory),
            settings=QuorumSettings(
                fetch_timeout_ms=static.quorum_fetch_timeout_ms,
                election_timeout_ms=static.quorum_election_timeout_ms,
                request_timeout_ms=static.quorum_request_timeout_ms,
            ),
            bootstrap=tuple(bootstrap),
            on_commit=metadata.commit,
            on_snapshot=metadata.begin_with,
            on_leader_change=self._leader_changed,
            on_fatal=metadata.fail,
        )

    def _leader_changed(self, leader_id: int, epoch: int) -> None:
        self._controller.leader_changed(leader_id, epoch)
        if leader_id != NO_LEADER:
            self._membership.controller_changed()

    async def stop(self) -> None:
        """Hands leadership over, answers what is under way, closes logs so that the next start needs no recovery."""
        await self._undo.aclose()
        log.info("stopped")

    def abort(self) -> None:
        """Closes its doors and what came through them at once, as the end of a process does, and nothing else: for
        tests that kill nodes."""
        for listener in self._listeners:
            listener.abort()

    async def _hand_over(self) -> None:
        """A node that is alone has nobody to hand over to. One that cannot go on does not try: the sooner its process
        is gone, the sooner others lead."""
        if self.failure is not None:
            return
        if self._static.controlled_shutdown_enable and len(self._metadata.image.brokers) > 1:
            await self._membership.shut_down()
        if len(self._quorum.voters) > 1:
            # Before the doors close, so that nobody misses the controller meanwhile.
            await self._quorum.resign()

    async def _close_store(self) -> None:
        await self._store.close(-1 if self.failure is not None else self._clean_epoch())

    def _clean_epoch(self) -> int:
        """The broker epoch that the logs are closed under. A node that never registered has led and followed nobody:
        it is that of its former life still."""
        epoch = -1 if self._dispatcher is None else self._membership.broker_epoch
        return self._store.previous_broker_epoch if epoch == -1 else epoch

    async def _close_listeners(self) -> None:
        for listener in self._listeners:
            listener.stop()
        self._broker.long_polls.end()
        self._groups.stop()
        await asyncio.gather(*(listener.close(CLOSE_GRACE_S) for listener in self._listeners))

    def _make_limits(self) -> "_Limits":
        # Half for requests that are under way, half for large ones that are on their way in.
        half = self._static.queued_max_request_bytes // 2
        return _Limits(Budget(half), LargeFrames(half), Admission(lambda: self._settings.broker))

    async def _bind(self) -> list[Address]:
        bound = []
        for address in self._static.listeners:
            is_of_nodes = address.name == self._static.inter_broker_listener
            limits = self._limits_of_nodes if is_of_nodes else self._limits
            listener = Listener(address.name, lambda: self._settings.broker, *limits, self._opened)
            self._listeners.append(listener)
            self._undo.push_async_callback(listener.close, 0)
            _, port = await listener.bind(address.host, address.port)
            bound.append(address._replace(port=port))
        return bound

    async def _identity(self) -> Identity:
        static = self._static
        if static.store == "memory":
            return identity.new_identity(self._world.random, static.cluster_id, static.node_id)
        return await identity.load_or_create(
            self._world.disk, static.data_dir, self._world.random, static.cluster_id, static.node_id
        )

    def _opened(self, connection: Connection, listener: str) -> Answer:
        assert self._dispatcher is not None
        dispatcher = self._dispatcher
        client = ClientConnection(f"{connection.peer[0]}:{connection.peer[1]}", listener)
        connection.when_closed(lambda: self._closed(client))
        return lambda frame, release: dispatcher.answer(client, frame, release)

    def _closed(self, client: ClientConnection) -> None:
        self._broker.fetch_sessions.end_all(client)
        client.closed.end()

    def _fatal(self, error: BaseException) -> None:
        if self.failure is None:
            self.failure = error
            log.error("the node cannot go on", why=str(error) or type(error).__name__)
            if self._on_fatal is not None:
                self._on_fatal(error)


class _Limits(NamedTuple):
    """What the connections of some listeners share."""

    budget: Budget
    large_frames: LargeFrames
    admission: Admission


def _make_store(platform: Platform, settings: BrokerSettings) -> LogStore:
    # Only the store in use is loaded: a broker in a test is ready sooner.
    if settings.store == "memory":
        from moldau.logs.memory import MemoryStore

        return MemoryStore(settings.producer_id_expiration_ms)
    from moldau.logs.files.store import FilesStore

    return FilesStore(
        platform.disk,
        settings.data_dir,
        platform.clock,
        producer_expiration_ms=settings.producer_id_expiration_ms,
    )
