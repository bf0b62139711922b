"""A node put together in boot order: identity, logs, quorum, metadata, partitions, controller, groups, and last
the doors.

A single node goes through all of it: its quorum has one voter, its controller is its own.
"""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack

from moldau.connections.admission import Admission
from moldau.connections.budget import Budget
from moldau.connections.connection import Answer, Connection
from moldau.connections.large_frames import LargeFrames
from moldau.connections.listener import Listener
from moldau.controller.brokers import Registration
from moldau.controller.driver import Controller
from moldau.controller.ids import new_id
from moldau.groups.coordinator import GroupCoordinator
from moldau.logs.store import LogStore
from moldau.metadata.image import Endpoint
from moldau.metadata.loader import MetadataLoader
from moldau.node import identity
from moldau.node.identity import Identity
from moldau.observe.logging import get_logger
from moldau.partitions.housekeeping import Housekeeping
from moldau.partitions.table import PartitionTable
from moldau.partitions.waiting import Listeners
from moldau.quorum.driver import METADATA_LOG, Quorum, open_metadata_log
from moldau.quorum.elections import ElectionFile, ElectionMemory, Elections
from moldau.requests import REGISTRY
from moldau.requests.broker import Broker
from moldau.requests.dispatch import Dispatcher
from moldau.requests.fetch_sessions import FetchSessions
from moldau.requests.session import ClientConnection
from moldau.settings.broker import BrokerSettings
from moldau.settings.effective import EffectiveSettings
from moldau.settings.listeners import Listener as Address
from moldau.settings.listeners import advertise
from moldau.transactions.producer_ids import ProducerIds
from moldau.world import World

log = get_logger(__name__)

CLOSE_GRACE_S = 5.0
"""How long clients get to take the answers that are under way when the node stops."""


class Node:
    def __init__(
        self,
        world: World,
        settings: BrokerSettings,
        *,
        store: LogStore | None = None,
        on_fatal: Callable[[BaseException], None] | None = None,
    ) -> None:
        """`store` takes the place of the one that the settings name; `on_fatal` hears when the node can no
        longer serve (its metadata cannot be kept), and should stop it."""
        self._world = world
        self._static = settings
        self._settings = EffectiveSettings(settings)
        self._store = store or _make_store(world, settings)
        self._on_fatal = on_fatal
        # Half for requests that are under way, half for large ones that are on their way in.
        self._budget = Budget(settings.queued_max_request_bytes // 2)
        self._large_frames = LargeFrames(settings.queued_max_request_bytes // 2)
        self._admission = Admission(lambda: self._settings.broker)
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
        world, static = self._world, self._static
        await self._store.start()
        self._undo.push_async_callback(self._store.close)
        if not self._store.was_closed_cleanly and self._store.found():
            log.warning("the node did not stop cleanly: logs are checked and what was torn is cut off")
        bound = await self._bind()
        who = await self._identity()
        self._metadata = MetadataLoader(who.cluster_id)
        self._metadata.on_failure(self._fatal)
        self._partitions = PartitionTable(
            static.node_id, self._store, self._settings, not_ours=(METADATA_LOG,)
        )
        self._metadata.subscribe(lambda delta, image: self._settings.apply(image, delta))
        self._metadata.subscribe(self._partitions.publish)
        self._undo.push_async_callback(self._partitions.close)

        voters = [static.node_id]
        metadata_log = await open_metadata_log(self._store)
        self._quorum = Quorum(
            static.node_id,
            voters,
            metadata_log,
            self._elections(voters),
            world.clock,
            on_commit=self._metadata.commit,
            on_fatal=self._metadata.fail,
        )
        self._undo.push_async_callback(self._quorum.close)
        self._undo.push_async_callback(self._metadata.close)
        self._controller = Controller(
            static.node_id, self._quorum, self._metadata, self._settings, world.random
        )
        self._undo.push_async_callback(self._controller.close)
        self._groups = GroupCoordinator(
            static.node_id, self._partitions, self._metadata, self._controller, self._settings, world.clock
        )
        self._metadata.subscribe(self._groups.publish)
        self._undo.push_async_callback(self._groups.close)
        await self._controller.start()
        self.addresses = advertise(bound, static.advertised)
        await self._controller.register_broker(self._registration())

        self._broker = Broker(
            broker_id=static.node_id,
            world=world,
            settings=self._settings,
            metadata=self._metadata,
            controller=self._controller,
            partitions=self._partitions,
            groups=self._groups,
            fetch_sessions=FetchSessions(world.random, static.max_incremental_fetch_session_cache_slots),
            producer_ids=ProducerIds(self._controller.allocate_producer_ids),
            long_polls=Listeners(),
        )
        self._dispatcher = Dispatcher(self._broker, REGISTRY)
        self._housekeeping = Housekeeping(self._partitions, self._settings, world.clock)
        self._housekeeping.start()
        self._groups.start()
        self._undo.push_async_callback(self._housekeeping.stop)
        self._undo.push_async_callback(self._close_listeners)
        for listener in self._listeners:
            await listener.serve()
        log.info(
            "ready",
            addresses=",".join(str(address) for address in self.addresses),
            cluster=who.cluster_id,
            partitions=len(self._partitions),
        )

    async def stop(self) -> None:
        """Answers what is under way, closes logs so that the next start needs no recovery."""
        await self._undo.aclose()
        log.info("stopped")

    async def _close_listeners(self) -> None:
        for listener in self._listeners:
            listener.stop()
        self._broker.long_polls.end()
        self._groups.stop()
        await asyncio.gather(*(listener.close(CLOSE_GRACE_S) for listener in self._listeners))

    async def _bind(self) -> list[Address]:
        bound = []
        for address in self._static.listeners:
            listener = Listener(
                address.name,
                lambda: self._settings.broker,
                self._budget,
                self._large_frames,
                self._admission,
                self._opened,
            )
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

    def _registration(self) -> Registration:
        return Registration(
            broker_id=self._static.node_id,
            incarnation_id=new_id(self._world.random),
            endpoints=[Endpoint(each.name, each.host, each.port) for each in self.addresses],
            clean_shutdown=self._store.was_closed_cleanly,
        )

    def _elections(self, voters: list[int]) -> Elections:
        if self._static.store == "memory":
            return ElectionMemory()
        return ElectionFile(self._world.disk, f"{self._static.data_dir}/{METADATA_LOG}", voters)

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


def _make_store(world: World, settings: BrokerSettings) -> LogStore:
    # Only the store in use is loaded: a broker in a test is ready sooner.
    if settings.store == "memory":
        from moldau.logs.memory import MemoryStore

        return MemoryStore(settings.producer_id_expiration_ms)
    from moldau.logs.files.store import FilesStore

    return FilesStore(
        world.disk,
        settings.data_dir,
        world.clock,
        producer_expiration_ms=settings.producer_id_expiration_ms,
    )
