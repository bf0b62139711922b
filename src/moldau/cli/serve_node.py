"""The process of `moldau serve`. It runs a node on an event loop until a signal or a fatal error stops it."""

import asyncio
import gc
import os
import resource
import signal
import sys
from collections.abc import Callable
from contextlib import nullcontext

from moldau.cli.data_lock import data_lock
from moldau.errors import InvalidConfigError
from moldau.node.node import Node
from moldau.observe.logging import configure
from moldau.platform import Platform
from moldau.platform.system import system_platform
from moldau.settings.broker import BrokerSettings


def run(settings: BrokerSettings) -> None:
    platform = system_platform()
    configure(level=settings.log_level, style=settings.log_format, clock=platform.clock.wall_ms)
    _raise_file_limit()
    with (
        data_lock(settings.data_dir) if settings.store == "files" else nullcontext(),
        asyncio.Runner(loop_factory=loop_factory(settings.event_loop)) as runner,
    ):
        runner.run(_run_until_stopped(platform, settings))


async def _run_until_stopped(platform: Platform, settings: BrokerSettings) -> None:
    stop = asyncio.Event()
    is_signalled = False

    def on_signal(number: int) -> None:
        """Stops the node on the first signal. Exits the process at once on the second signal."""
        nonlocal is_signalled
        if is_signalled:
            os._exit(128 + number)
        is_signalled = True
        stop.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number)
    node = Node(platform, settings, on_fatal=lambda _: stop.set())
    if not await _start_unless_stopped(node, stop):
        return
    # The node's objects exist until the node stops, so the garbage collector does not need to scan them.
    gc.collect()
    gc.freeze()
    sys.stdout.write(ready_line([each.address for each in node.addresses], settings, node.http_address))
    sys.stdout.flush()
    await stop.wait()
    await node.stop()
    if node.failure is not None:
        raise node.failure


async def _start_unless_stopped(node: Node, stop: asyncio.Event) -> bool:
    """Starts the node, which may have to wait for other nodes. Returns False if a stop is requested meanwhile."""
    starting = asyncio.create_task(node.start())
    stopped = asyncio.create_task(stop.wait())
    await asyncio.wait([starting, stopped], return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if not starting.done():
        node.begin_stop()
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        if node.failure is not None:
            raise node.failure
        return False
    starting.result()
    return True


def ready_line(addresses: list[str], settings: BrokerSettings, http_address: str | None = None) -> str:
    storage = "data in memory only" if settings.store == "memory" else f"data in {settings.log_dir}"
    http = "" if http_address is None else f"HTTP on http://{http_address}, "
    return (
        f"Moldau is ready on {', '.join(addresses)}, {http}{storage}. "
        f"Try it: echo hello | kcat -P -b {addresses[0]} -t greetings\n"
    )


def loop_factory(choice: str) -> Callable[[], asyncio.AbstractEventLoop]:
    factory: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
    if choice != "asyncio":
        try:
            from uvloop import new_event_loop as factory
        except ImportError:
            if choice == "uvloop":
                raise InvalidConfigError("event.loop is uvloop, but uvloop is not installed") from None
    return factory


def _raise_file_limit() -> None:
    """Raises the soft limit of open files to the hard limit, because each segment and connection uses a descriptor."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
