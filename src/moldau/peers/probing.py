"""Whether a process runs at an address: only a refused connection says that none does.

Silence says nothing: the process may be paused, the network cut, or packets lost.
"""

import asyncio
import errno
from enum import Enum


class Probe(Enum):
    ALIVE = "alive"
    """It takes connections, or its operating system does for it."""
    GONE = "gone"
    """Nobody listens at its address."""
    SILENT = "silent"
    """Nothing is known."""


_NOT_FROM_HERE = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
"""This machine has no such kind of address, as localhost's IPv6 one in many containers: that says nothing about the
other side."""


async def probe_address(host: str, port: int, timeout_ms: int) -> Probe:
    """Connects and hangs up at once."""
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            return await _probe(host, port)
    except TimeoutError:
        return Probe.SILENT


async def _probe(host: str, port: int) -> Probe:
    code = await _connect(host, port)
    if code == 0:
        return Probe.ALIVE
    if code == errno.ECONNREFUSED:
        return Probe.GONE
    if code is not None:
        return Probe.SILENT
    # A name with several addresses: the failures of all came as one.
    codes = []
    for address in await _resolve(host, port):
        code = await _connect(address, port)
        if code == 0:
            return Probe.ALIVE
        if code not in _NOT_FROM_HERE:
            codes.append(code)
    refused = bool(codes) and all(code == errno.ECONNREFUSED for code in codes)
    return Probe.GONE if refused else Probe.SILENT


async def _resolve(host: str, port: int) -> list[str]:
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port)
    except OSError:
        return []
    return list(dict.fromkeys(str(each[4][0]) for each in found))


async def _connect(host: str, port: int) -> int | None:
    """The error number of the attempt, 0 for success."""
    try:
        transport, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, host, port)
    except OSError as error:
        return error.errno
    own = transport.get_extra_info("sockname")
    to_itself = own is not None and own == transport.get_extra_info("peername")
    transport.abort()
    # A port that nobody listens on may be the one the attempt itself was given: TCP then connects it to itself.
    return errno.ECONNREFUSED if to_itself else 0
