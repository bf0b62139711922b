"""The event loop thread of a process, for calls from Spark's threads to the asyncio client.

Spark calls readers and writers from threads of several processes, and reuses forked workers for many tasks. So the
event loop thread keeps connections, producers and fetchers open for later tasks. A forked process starts without them.
"""

import asyncio
import os
import threading
from collections import defaultdict
from collections.abc import Coroutine, Mapping
from concurrent.futures import Future
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from moldau.client.net.cluster import Cluster
from moldau.spark.errors import OptionError

if TYPE_CHECKING:
    from moldau.client.consumer.fetcher import Fetcher
    from moldau.client.producer.producer import Producer
    from moldau.spark.source.options import FetchOptions

T = TypeVar("T")
SettingsKey = tuple[tuple[str, Any], ...]


class EventLoopThread:
    """An event loop in a thread, and the owner of what a process keeps open between tasks."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._clusters: dict[SettingsKey, Cluster] = {}
        self._connect_lock = asyncio.Lock()
        self.producers: dict[tuple[SettingsKey, SettingsKey], Producer] = {}
        """Producers by the settings of their connection and their own settings."""
        self.fetchers: list[Fetcher] = []
        self.idle_fetchers: defaultdict[tuple[Cluster, FetchOptions], list[Fetcher]] = defaultdict(list)
        """The fetchers that no reader uses now."""
        self.is_closed = False
        # Use a daemon thread, so that a running event loop does not keep the process from exiting.
        self._thread = threading.Thread(target=self._loop.run_forever, name="moldau client", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine in the event loop and returns its result. Cancels it if the caller is interrupted."""
        future = self.start(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def start(self, work: Coroutine[Any, Any, T]) -> "Future[T]":
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def cluster(self, settings: Mapping[str, Any]) -> Cluster:
        """Returns a connected cluster, which stays open for later callers. Must run in the event loop.

        `settings` are the arguments of `Cluster`; all values must be hashable.
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

    def close(self) -> None:
        """Closes everything that is open, and the event loop. Use this in a process that continues without Spark."""
        self.is_closed = True
        self.run(self._close_all())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _close_all(self) -> None:
        for producer in list(self.producers.values()):
            await producer.abort()
        for fetcher in self.fetchers:
            await fetcher.close()
        for cluster in self._clusters.values():
            await cluster.close()


def settings_key(settings: Mapping[str, Any]) -> SettingsKey:
    """Returns a hashable key for objects cached by settings."""
    return tuple(sorted(settings.items()))


_creation_lock = threading.Lock()


def event_loop_thread() -> EventLoopThread:
    """Returns the event loop thread of this process. Creates the thread if there is none or if it was closed."""
    with _creation_lock:
        thread = _event_loop_thread_of(os.getpid())
        if thread.is_closed:
            _event_loop_thread_of.cache_clear()
            thread = _event_loop_thread_of(os.getpid())
        return thread


@cache
def _event_loop_thread_of(process_id: int) -> EventLoopThread:
    # The process id is the key, because a forked process inherits this cache but not the running thread.
    return EventLoopThread()
