"""A node of a test cluster in a thread of its own: it can be stopped, killed, and made to stand still."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from moldau.node.node import Node
from moldau.platform.system import system_platform
from moldau.settings.broker import BrokerSettings
from moldau.testing.broker import new_loop

T = TypeVar("T")

_killed_nodes: list[Any] = []
"""Loops and tasks of nodes that were killed. Were they collected, code would run that in a killed process does not."""


class NodeThread:
    def __init__(
        self, settings: BrokerSettings, connect: Callable[..., Any], on_kill: Callable[[], None]
    ) -> None:
        """`connect` is how it reaches other nodes; `on_kill` is called in its loop when it is killed."""
        self._settings = settings
        self._on_kill = on_kill
        self._node = Node(system_platform(), settings, connect=connect)
        self._loop = new_loop()
        self._thread = threading.Thread(target=self._run, name=f"moldau-node-{settings.node_id}", daemon=True)
        self._resumed = threading.Event()
        self._resumed.set()
        self._is_killed = False

    @property
    def node(self) -> Node:
        return self._node

    def start(self) -> "Future[None]":
        """What it gives is done when the node has started, or raises why it has not."""
        self._thread.start()
        return self.submit(self._node.start())

    def submit(self, work: Coroutine[Any, Any, T]) -> "Future[T]":
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def stop(self) -> "Future[None]":
        """As SIGTERM does; `join` when it is done."""
        return self.submit(self._node.stop())

    def join(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def kill(self) -> None:
        """As SIGKILL does: its sockets close, and nothing of it runs any more. What it wrote to files is there."""
        self._is_killed = True
        self._loop.call_soon_threadsafe(self._abort)
        self._resumed.set()
        self._thread.join()
        left = asyncio.all_tasks(self._loop)
        for task in left:
            # Nobody is to be told that they never ended.
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        _killed_nodes.append((self._loop, left, self._node))

    def pause(self) -> None:
        """As SIGSTOP does: it stands still, and its connections stay open."""
        stands_still = threading.Event()
        self._resumed.clear()

        def stand_still() -> None:
            stands_still.set()
            self._resumed.wait()
            if self._is_killed:
                self._abort()

        self._loop.call_soon_threadsafe(stand_still)
        stands_still.wait()

    def resume(self) -> None:
        self._resumed.set()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def _abort(self) -> None:
        self._node.abort()
        self._on_kill()
        # Sockets that were aborted are closed in the next turn of the loop, which is the last.
        self._loop.call_soon(self._loop.call_soon, self._loop.stop)
