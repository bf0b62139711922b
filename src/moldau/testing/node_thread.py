"""A node of a test cluster in its own thread. The node can be stopped, killed and paused."""

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
"""The event loops, tasks and nodes of killed nodes. They are kept in memory, because garbage collection would run
cleanup code that a killed process never runs."""


class NodeThread:
    def __init__(self, settings: BrokerSettings, connect: Callable[..., Any], on_kill: Callable[[], None]) -> None:
        """`connect` opens connections to other nodes. `on_kill` is called in the node's event loop when the node is
        killed."""
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
        """Starts the thread and the node. The future completes when the node has started, or fails with the error of
        the start."""
        self._thread.start()
        return self.submit(self._node.start())

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> "Future[T]":
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def stop(self) -> "Future[None]":
        """Shuts the node down as SIGTERM would. Call `join` when the future is done."""
        return self.submit(self._node.stop())

    def join(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def kill(self) -> None:
        """Ends the node as SIGKILL would. The node's sockets close, and its code no longer runs."""
        self._is_killed = True
        self._loop.call_soon_threadsafe(self._abort)
        self._resumed.set()
        self._thread.join()
        pending = asyncio.all_tasks(self._loop)
        for task in pending:
            # Suppresses asyncio's warning about destroyed pending tasks.
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        _killed_nodes.append((self._loop, pending, self._node))

    def pause(self) -> None:
        """Suspends the node as SIGSTOP would. Connections stay open."""
        is_paused = threading.Event()
        self._resumed.clear()

        def wait_for_resume() -> None:
            is_paused.set()
            self._resumed.wait()
            if self._is_killed:
                self._abort()

        self._loop.call_soon_threadsafe(wait_for_resume)
        is_paused.wait()

    def resume(self) -> None:
        self._resumed.set()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def _abort(self) -> None:
        self._node.abort()
        self._on_kill()
        # Stop the loop after one more iteration, because aborted sockets are closed in the next iteration.
        self._loop.call_soon(self._loop.call_soon, self._loop.stop)
