"""An in-process broker for tests: real TCP on a free port, records in memory.

with Broker(topics={"orders": 3}) as broker:
    producer = Producer({"bootstrap.servers": broker.bootstrap})

async with Broker() as broker: ...

Two settings differ from a node's defaults: `group.initial.rebalance.delay.ms` is 0, so that consumers start at once,
and `offsets.topic.num.partitions` is 4. The `settings` argument overrides them.
"""

from collections.abc import Iterable, Mapping
from types import TracebackType

from moldau.controller.requests import NewTopic
from moldau.node.node import Node
from moldau.platform.system import system_platform
from moldau.settings.sources import build_settings
from moldau.testing.node_thread import NodeThread

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
        self._topics = topics if isinstance(topics, str | Mapping) else tuple(topics)
        self._settings = build_settings(flags={**DEFAULTS, **(settings or {})})
        self._node: Node | None = None
        self._thread: NodeThread | None = None

    @property
    def bootstrap(self) -> str:
        """The bootstrap address, `host:port`."""
        return self.node.addresses[0].address

    @property
    def node(self) -> Node:
        assert self._node is not None, "the broker is not running"
        return self._node

    # In the caller's event loop

    async def __aenter__(self) -> "Broker":
        node = Node(system_platform(), self._settings)
        await node.start()
        try:
            await create_topics(node, self._topics)
        except BaseException:
            await node.stop()
            raise
        self._node = node
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        node, self._node = self.node, None
        await node.stop()
        if kind is None:
            _check(node)

    # In a thread

    def __enter__(self) -> "Broker":
        thread = NodeThread(self._settings)
        try:
            thread.start().result()
            try:
                thread.submit(create_topics(thread.node, self._topics)).result()
            except BaseException:
                thread.stop().result()
                raise
        except BaseException:
            thread.join()
            raise
        self._thread, self._node = thread, thread.node
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._thread is not None
        node, self._node = self.node, None
        try:
            self._thread.stop().result()
        finally:
            self._thread.join()
        if kind is None:
            _check(node)


async def create_topics(node: Node, topics: Iterable[str] | Mapping[str, int]) -> None:
    """Creates topics by name, or by name and partition count. Raises the first error."""
    if isinstance(topics, str):
        topics = [topics]
    counts = topics if isinstance(topics, Mapping) else dict.fromkeys(topics, -1)
    if counts:
        new = [NewTopic(name, partitions) for name, partitions in counts.items()]
        for created in await node.broker.controller_channel.create_topics(new):
            if created.error is not None:
                raise created.error


def _check(node: Node) -> None:
    if node.unexpected_errors:
        raise AssertionError(f"{node.unexpected_errors} requests failed with an unexpected error: see the broker's log")
