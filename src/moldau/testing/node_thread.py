"""A node of a test cluster in its own thread. The node can be stopped, killed and paused."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from moldau.node.node import Node
from moldau.platform.system import system_platform
from moldau.settings.broker import BrokerSettings

T = TypeVar("T")


class NodeThread:
    def __init__(
        self,
        settings: BrokerSettings,
        connect: Callable[..., Any] | None = None,
        on_kill: Callable[[], None] = lambda: None,
    ) -> None:
        """`connect` opens connections to other nodes. A kill calls `on_kill` in the node's event loop."""
        self.node = Node(system_platform(), settings, connect=connect)
        self._on_kill = on_kill
        self._loop = _new_loop()
        self._thread = threading.Thread(target=self._run, name=f"moldau-node-{settings.node_id}", daemon=True)
        self._resumed = threading.Event()
        self._resumed.set()
        self._is_killed = False
        self._killed = threading.Event()

    def start(self) -> "Future[None]":
        """Starts the thread and the node. Returns a future that is done when the node has started or failed."""
        self._thread.start()
        return self.submit(self.node.start())

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> "Future[T]":
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def stop(self) -> "Future[None]":
        """Shuts the node down as SIGTERM would. Returns a future; call `join` when it is done."""
        return self.submit(self.node.stop())

    def join(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def kill(self) -> None:
        """Ends the node as SIGKILL would. The node's sockets close, and its code no longer runs."""
        self._is_killed = True
        self._loop.call_soon_threadsafe(self._abort)
        self._resumed.set()
        self._killed.wait()

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
        self._loop.run_forever()
        if self._is_killed:
            pending_tasks = asyncio.all_tasks(self._loop)
            for task in pending_tasks:
                # Suppress asyncio's warning about destroyed pending tasks.
                task._log_destroy_pending = False  # type: ignore[attr-defined]
            self._killed.set()
            # Suspend this thread until the process exits, so that the tasks stay referenced. Garbage collection of the
            # tasks would run cleanup code that a killed process never runs.
            threading.Event().wait()

    def _abort(self) -> None:
        self.node.abort()
        self._on_kill()
        # Stop the loop after one more iteration, because aborted sockets are closed in the next iteration.
        self._loop.call_soon(self._loop.call_soon, self._loop.stop)


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
