"""Parking of client requests until the cluster has accepted this node.

Before that, only the requests that nodes need from each other to get there are served. Other clients are disconnected
if it takes too long: when they reconnect they may find another node.
"""

import asyncio

from moldau.network.connection import CloseConnectionError
from moldau.wire.api_keys import ApiKey

READY_TIMEOUT_S = 30.0
PARKED_BYTES_MAX = 16 * 1024 * 1024
"""Limit on the frames of parked requests, so that they leave memory for requests between nodes."""


def requires_ready_broker(api_key: int, *, inter_broker: bool) -> bool:
    return not inter_broker and api_key != ApiKey.API_VERSIONS


class StartupGate:
    def __init__(self, ready: asyncio.Event) -> None:
        self._ready = ready
        self._parked_bytes = 0

    async def wait(self, frame_bytes: int) -> None:
        """Waits until the node is ready; raises CloseConnectionError after a timeout or if too much is parked."""
        if self._parked_bytes + frame_bytes > PARKED_BYTES_MAX:
            raise CloseConnectionError("the node is starting and has too many pending requests")
        self._parked_bytes += frame_bytes
        try:
            # Makes this a task, which a timeout needs.
            await asyncio.sleep(0)
            async with asyncio.timeout(READY_TIMEOUT_S):
                await self._ready.wait()
        except TimeoutError:
            raise CloseConnectionError(
                f"the node could not join its cluster within {READY_TIMEOUT_S:.0f} s"
            ) from None
        finally:
            self._parked_bytes -= frame_bytes
