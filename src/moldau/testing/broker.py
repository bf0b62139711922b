"""An in-process broker for tests: real TCP on a free port, records in memory.

with Broker(topics={"orders": 3}) as broker:
    producer = Producer({"bootstrap.servers": broker.bootstrap})

async with Broker() as broker: ...

Two settings differ from a node's defaults: `group.initial.rebalance.delay.ms` is 0, so that consumers start at once,
and `offsets.topic.num.partitions` is 4. The `settings` argument overrides them.
"""

import asyncio
import threading
from collections.abc import Iterable, Mapping
from types import TracebackType

from moldau.controller.requests import NewTopic
from moldau.node.node import Node
from moldau.platform.system import system_platform
from moldau.settings.sources import build_settings

DEFAULTS = {
    "listen": "127.0.0.1:0",
    "store": "memory",
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "4",
}


class Broker:
    """A single node. `with` runs the node in its own thread, so that blocking clients do not block the node. `async
    with` runs the node in the caller's event loop."""

    def __init__(
        self, topics: Iterable[str] | Mapping[str, int] = (), settings: Mapping[str, str] | None = None
    ) -> None:
        """`topics` are names, or a mapping of names to partition counts. `settings` use Kafka's names."""
        if isinstance(topics, str):
            topics = [topics]
        self._topics = topics if isinstance(topics, Mapping) else dict.fromkeys(topics, -1)
        overrides = {**DEFAULTS, **(settings or {})}
        self._settings = build_settings(flags=overrides)
        self._node: Node | None = None
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def bootstrap(self) -> str:
        """The bootstrap address, `host:port`."""
        assert self._node is not None, "the broker is not running"
        return self._node.addresses[0].address

    @property
    def node(self) -> Node:
        assert self._node is not None, "the broker is not running"
        return self._node

    # In the caller's event loop

    async def __aenter__(self) -> "Broker":
        await self._start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stop(check=kind is None)

    async def _start(self) -> None:
        node = Node(system_platform(), self._settings)
        await node.start()
        self._node = node
        try:
            await self._create_topics(node)
        except BaseException:
            await self._stop(check=False)
            raise

    async def _create_topics(self, node: Node) -> None:
        new = [NewTopic(name, partitions) for name, partitions in self._topics.items()]
        if new:
            for created in await node.broker.controller.create_topics(new):
                if created.error is not None:
                    raise created.error

    async def _stop(self, *, check: bool) -> None:
        node, self._node = self._node, None
        if node is None:
            return
        await node.stop()
        if check and node.unexpected_errors:
            raise AssertionError(
                f"{node.unexpected_errors} requests failed with an unexpected error: see the broker's log"
            )

    # In a thread

    def __enter__(self) -> "Broker":
        started = threading.Event()
        failure: list[BaseException] = []

        def run() -> None:
            try:
                with asyncio.Runner(loop_factory=new_loop) as runner:
                    self._loop = runner.get_loop()
                    runner.run(self._start())
                    started.set()
                    self._loop.run_forever()
            except BaseException as error:
                failure.append(error)
            finally:
                started.set()

        self._thread = threading.Thread(target=run, name="moldau-broker", daemon=True)
        self._thread.start()
        started.wait()
        if failure:
            self._thread.join()
            raise failure[0]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._loop is not None
        assert self._thread is not None
        try:
            asyncio.run_coroutine_threadsafe(self._stop(check=kind is None), self._loop).result()
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()


def new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
