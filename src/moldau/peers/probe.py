"""Probes whether a process listens at an address. Only a refused connection proves that no process listens.

A timeout proves nothing, because the process may be paused, the network partitioned, or packets lost.
"""

import asyncio
import errno
from enum import Enum


class ProbeResult(Enum):
    REACHABLE = "reachable"
    """The process accepts connections, or its operating system does so for the process."""
    REFUSED = "refused"
    """No process listens at the address."""
    CLOSED = "closed"
    """The connection was accepted and then closed without a response, for example because the process is ending."""
    UNKNOWN = "unknown"


_LOCAL_ADDRESS_ERRORS = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
"""Errors of a machine without the address family, such as IPv6. They prove nothing about the peer."""


async def probe_address(host: str, port: int, timeout_ms: int) -> ProbeResult:
    """Connects to the address and closes the connection at once. Returns UNKNOWN if that takes too long."""
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
    # There is no single errno for a host name with several addresses, so try each address.
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
    """Returns the errno of the attempt to connect: 0 for success, None if there is no single errno."""
    try:
        transport, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, host, port)
    except OSError as error:
        return error.errno
    local = transport.get_extra_info("sockname")
    is_self_connect = local is not None and local == transport.get_extra_info("peername")
    transport.abort()
    # Treat a self-connection as refused. If the kernel chooses the unused destination port as the local port, TCP
    # connects the socket to itself.
    return errno.ECONNREFUSED if is_self_connect else 0
