"""Whether a process runs at an address: only a refused connection says that none does.

Silence says nothing: the process may be paused, the network cut, or packets lost.
"""

import asyncio
import errno
from enum import Enum


class ProbeResult(Enum):
    REACHABLE = "alive"
    """It takes connections, or its operating system does for it."""
    REFUSED = "gone"
    """Nobody listens at its address."""
    UNKNOWN = "silent"
    """Nothing is known."""


_LOCAL_ADDRESS_ERRORS = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
"""This machine has no such kind of address, as localhost's IPv6 one in many containers: that says nothing about the
other side."""


async def probe_address(host: str, port: int, timeout_ms: int) -> ProbeResult:
    """Connects and hangs up at once."""
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            return await _probe(host, port)
    except TimeoutError:
        return ProbeResult.UNKNOWN


async def _probe(host: str, port: int) -> ProbeResult:
    code = await _try_connect(host, port)
    if code == 0:
        return ProbeResult.REACHABLE
    if code == errno.ECONNREFUSED:
        return ProbeResult.REFUSED
    if code is not None:
        return ProbeResult.UNKNOWN
    # A name with several addresses: the failures of all came as one.
    codes = []
    for address in await _resolve(host, port):
        code = await _try_connect(address, port)
        if code == 0:
            return ProbeResult.REACHABLE
        if code not in _LOCAL_ADDRESS_ERRORS:
            codes.append(code)
    refused = bool(codes) and all(code == errno.ECONNREFUSED for code in codes)
    return ProbeResult.REFUSED if refused else ProbeResult.UNKNOWN


async def _resolve(host: str, port: int) -> list[str]:
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port)
    except OSError:
        return []
    return list(dict.fromkeys(str(each[4][0]) for each in found))


async def _try_connect(host: str, port: int) -> int | None:
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
