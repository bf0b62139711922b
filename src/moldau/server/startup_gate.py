"""Which requests a node takes before the cluster has taken the node: what nodes need of each other to get there.

Everybody else waits, and is sent away where that takes too long: a client that begins anew may find another node.
"""

import asyncio
from typing import Any

from moldau.network.connection import CloseConnectionError
from moldau.server.metadata_fetch import is_metadata_fetch
from moldau.wire.api_keys import ApiKey

READY_TIMEOUT_S = 30.0
PARKED_BYTES_MAX = 16 * 1024 * 1024
"""Bytes of records that may wait with their requests: more would keep the nodes' own requests out."""


def requires_ready_broker(api_key: int, *, inter_broker: bool) -> bool:
    """Whether requests of this API wait until the node is ready."""
    return not inter_broker and api_key != ApiKey.API_VERSIONS


def is_metadata_log_fetch(api_key: int, request: Any) -> bool:
    """How the metadata log is copied, without which no node gets ready."""
    return api_key == ApiKey.FETCH and is_metadata_fetch(request)


class StartupGate:
    """Requests that came too early."""

    def __init__(self, ready: asyncio.Event) -> None:
        self._ready = ready
        self._parked_bytes = 0

    async def wait(self, frame_bytes: int) -> None:
        """`frame_bytes` is what the request keeps in memory meanwhile."""
        if self._parked_bytes + frame_bytes > PARKED_BYTES_MAX:
            raise CloseConnectionError("the node is starting, and too many requests wait for it")
        self._parked_bytes += frame_bytes
        try:
            # From here on there is a task, which a timeout needs.
            await asyncio.sleep(0)
            async with asyncio.timeout(READY_TIMEOUT_S):
                await self._ready.wait()
        except TimeoutError:
            raise CloseConnectionError(
                f"the node could not join its cluster within {READY_TIMEOUT_S:.0f} s"
            ) from None
        finally:
            self._parked_bytes -= frame_bytes
