"""`moldau serve`: runs one node until it is stopped."""

import dataclasses
import errno
import gc
import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from moldau.cli.serve_flags import parse_flags
from moldau.errors import InvalidConfigError, MoldauError
from moldau.settings.broker import BrokerSettings
from moldau.settings.sources import build_settings

if TYPE_CHECKING:
    import asyncio

    from moldau.node.node import Node
    from moldau.platform import Platform

EXIT_FAILURE = 1
EXIT_USAGE = 2


def serve(arguments: Sequence[str]) -> int:
    """Runs a node with these flags and returns the exit code."""
    try:
        flags = parse_flags(arguments)
        if flags.wants_help:
            from moldau.cli.serve_help import serve_help

            sys.stdout.write(serve_help())
            return 0
        settings = build_settings(file=flags.config, environment=os.environ, flags=flags.settings)
        settings = dataclasses.replace(settings, data_dir=os.path.abspath(settings.data_dir))
        return _run_and_report_errors(settings)
    except InvalidConfigError as error:
        return _print_error(str(error), EXIT_USAGE)


def _run_and_report_errors(settings: BrokerSettings) -> int:
    try:
        run(settings)
    except InvalidConfigError:
        raise
    except MoldauError as error:
        return _print_error(str(error), EXIT_FAILURE)
    except OSError as error:
        return _print_error(_describe_os_error(error, settings), EXIT_FAILURE)
    return 0


def run(settings: BrokerSettings) -> None:
    import asyncio
    from contextlib import nullcontext

    from moldau.cli.data_lock import data_lock
    from moldau.observe.logging import configure
    from moldau.platform.system import system_platform

    platform = system_platform()
    configure(level=settings.log_level, style=settings.log_format, clock=platform.clock.wall_ms)
    _raise_file_limit()
    with (
        data_lock(settings.data_dir) if settings.store == "files" else nullcontext(),
        asyncio.Runner(loop_factory=loop_factory(settings.event_loop)) as runner,
    ):
        runner.run(_run_until_stopped(platform, settings))


async def _run_until_stopped(platform: "Platform", settings: BrokerSettings) -> None:
    import asyncio
    import signal

    from moldau.node.node import Node

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
    sys.stdout.write(ready_line([each.address for each in node.addresses], settings))
    sys.stdout.flush()
    await stop.wait()
    await node.stop()
    if node.failure is not None:
        raise node.failure


async def _start_unless_stopped(node: "Node", stop: "asyncio.Event") -> bool:
    """Starts the node, which may have to wait for other nodes. Returns False if a stop is requested meanwhile."""
    import asyncio

    starting = asyncio.create_task(node.start())
    stopped = asyncio.create_task(stop.wait())
    await asyncio.wait([starting, stopped], return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if not starting.done():
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        if node.failure is not None:
            raise node.failure
        return False
    starting.result()
    return True


def ready_line(addresses: list[str], settings: BrokerSettings) -> str:
    storage = f"data in {settings.data_dir}" if settings.store == "files" else "data in memory only"
    return (
        f"Moldau is ready on {', '.join(addresses)}, {storage}. "
        f"Try it: echo hello | kcat -P -b {addresses[0]} -t greetings\n"
    )


def loop_factory(choice: str) -> "Callable[[], asyncio.AbstractEventLoop]":
    import asyncio

    if choice != "asyncio":
        try:
            import uvloop
        except ImportError:
            if choice == "uvloop":
                raise InvalidConfigError("event.loop is uvloop, but uvloop is not installed") from None
        else:
            new_uvloop: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
            return new_uvloop
    return asyncio.new_event_loop


def _raise_file_limit() -> None:
    """Raises the soft limit of open files to the hard limit, because each segment and connection uses a descriptor."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _describe_os_error(error: OSError, settings: BrokerSettings) -> str:
    import socket

    listen = ", ".join(listener.address for listener in settings.listeners)
    if isinstance(error, socket.gaierror):
        return f"cannot listen on {listen}: unknown host"
    match error.errno:
        case errno.EADDRINUSE:
            return f"cannot listen on {listen}: the port is in use; choose another with --listen"
        case errno.EADDRNOTAVAIL:
            return f"cannot listen on {listen}: not an address of this machine"
    where = f"{error.filename}: " if error.filename else ""
    return f"{where}{error.strerror or error}"


def _print_error(message: str, code: int) -> int:
    sys.stderr.write(f"moldau: {message}\n")
    return code
