"""The gate that parks client requests until the cluster has accepted this node.

Before that, a node serves only ApiVersions and requests of other nodes, because nodes need each other to start. Clients
that wait too long are disconnected, so that they can connect to another node.
"""

import asyncio

from moldau.network.connection import CloseConnectionError
from moldau.wire.api_keys import ApiKey

READY_TIMEOUT_S = 30.0
PARKED_BYTES_MAX = 16 * 1024 * 1024
"""The maximum total size of parked request frames. The limit leaves memory for requests between nodes."""


def requires_ready_broker(api_key: int, *, inter_broker: bool) -> bool:
    return not inter_broker and api_key != ApiKey.API_VERSIONS


class StartupGate:
    def __init__(self, ready: asyncio.Event) -> None:
        self._ready = ready
        self._parked_bytes = 0

    async def wait(self, frame_bytes: int) -> None:
        """Waits until the node is ready.

        Raises CloseConnectionError after `READY_TIMEOUT_S`, or if too many bytes are already parked.
        """
        if self._parked_bytes + frame_bytes > PARKED_BYTES_MAX:
            raise CloseConnectionError("the node is starting and has too many pending requests")
        self._parked_bytes += frame_bytes
        try:
            # The first suspension turns this coroutine into a task. asyncio.timeout needs a task.
            await asyncio.sleep(0)
            async with asyncio.timeout(READY_TIMEOUT_S):
                await self._ready.wait()
        except TimeoutError:
            raise CloseConnectionError(f"the node could not join its cluster within {READY_TIMEOUT_S:.0f} s") from None
        finally:
            self._parked_bytes -= frame_bytes
