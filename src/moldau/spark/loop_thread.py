"""From Spark's threads to the client's event loop: one loop per process, in a thread of its own, and the clusters that
were reached through it.

Spark calls readers and writers from plain threads of several processes, and its workers are forked and used again for
many tasks. So connections are kept per process and settings, and a process that was forked begins with none.
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
        # A daemon: nothing here outlives the task it was started for, and the process may end at any time.
        self._thread = threading.Thread(target=self._loop.run_forever, name="moldau client", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """What the coroutine gives, waited for; when the caller is interrupted the coroutine is cancelled."""
        future = self.start(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def start(self, work: Coroutine[Any, Any, T]) -> "Future[T]":
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def cluster(self, settings: Mapping[str, Any]) -> Cluster:
        """The cluster with these settings (those of `Cluster`, all hashable), reached before or now. Call it inside
        `run`. It stays open for whoever comes next."""
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
        """Has this done before the clusters are closed, by who keeps something that lives on them."""
        self._on_close.append(work)

    def close(self) -> None:
        """For a process that goes on without Spark; others just end."""
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
    """By which what was opened with the same settings is found again."""
    return tuple(sorted(settings.items()))


_process_instance: EventLoopThread | None = None
_instance_lock = threading.Lock()


def event_loop_thread() -> EventLoopThread:
    """The one of this process."""
    global _process_instance
    with _instance_lock:
        if (
            _process_instance is None
            or _process_instance.is_closed
            or _process_instance.process_id != os.getpid()
        ):
            _process_instance = EventLoopThread()
        return _process_instance
