"""The event loop thread of a process, for calls from Spark's threads to the asyncio client.

Spark calls readers and writers from threads of several processes, and reuses forked workers for many tasks. Connections
are cached by settings within a process. A forked process starts without connections.
"""

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from typing import Any, TypeVar

from moldau.client.net.cluster import Cluster
from moldau.spark.errors import OptionError

T = TypeVar("T")
SettingsKey = tuple[tuple[str, Any], ...]


class EventLoopThread:
    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._clusters: dict[SettingsKey, Cluster] = {}
        self._connect_lock = asyncio.Lock()
        self._on_close: list[Callable[[], Coroutine[Any, Any, None]]] = []
        self.process_id = os.getpid()
        self.is_closed = False
        # Use a daemon thread, because the process may exit at any time.
        self._thread = threading.Thread(target=self._loop.run_forever, name="moldau client", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine in the event loop and returns its result. Cancels the coroutine if the caller is
        interrupted."""
        future = self.start(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def start(self, work: Coroutine[Any, Any, T]) -> "Future[T]":
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def cluster(self, settings: Mapping[str, Any]) -> Cluster:
        """Returns a connected cluster. `settings` are the arguments of `Cluster`; all values must be hashable.

        Call this coroutine in the event loop. The cluster stays open for later callers.
        """
        key = settings_key(settings)
        async with self._connect_lock:
            cluster = self._clusters.get(key)
            if cluster is None:
                try:
                    cluster = Cluster(**settings)
                except ValueError as error:
                    raise OptionError(f"the options kafka.*: {error}") from None
                try:
                    await cluster.start()
                except BaseException:
                    await cluster.close()
                    raise
                self._clusters[key] = cluster
        return cluster

    def on_close(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Registers a callback to run before the clusters are closed."""
        self._on_close.append(work)

    def close(self) -> None:
        """Closes all clusters and the event loop. Use this in a process that continues without Spark."""
        self.is_closed = True
        self.run(self._close_all())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _close_all(self) -> None:
        for work in reversed(self._on_close):
            await work()
        for cluster in self._clusters.values():
            await cluster.close()
        self._on_close.clear()
        self._clusters.clear()


def settings_key(settings: Mapping[str, Any]) -> SettingsKey:
    """Returns a hashable key for objects cached by settings."""
    return tuple(sorted(settings.items()))


_process_instance: EventLoopThread | None = None
_instance_lock = threading.Lock()


def event_loop_thread() -> EventLoopThread:
    """Returns the event loop thread of this process. Creates the thread if needed."""
    global _process_instance
    with _instance_lock:
        if _process_instance is None or _process_instance.is_closed or _process_instance.process_id != os.getpid():
            _process_instance = EventLoopThread()
        return _process_instance
