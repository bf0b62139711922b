"""Connection limits of a node for clients and for other nodes."""

import asyncio
from collections.abc import Awaitable, Callable

from moldau.node.node import Node
from moldau.platform.system import system_platform
from moldau.settings.sources import build_settings
from moldau.wire.api_keys import ApiKey
from moldau.wire.frames import encode_request_header

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def with_node(listen: str, scenario: Callable[[list[int]], Awaitable[None]]) -> None:
    """Passes the ports of the listeners to the scenario."""

    async def main() -> None:
        settings = {"store": "memory", "listen": listen, "max.connections": "1"}
        node = Node(system_platform(1), build_settings(flags=settings))
        await node.start()
        try:
            await scenario([address.port for address in node.addresses])
        finally:
            await node.stop()

    asyncio.run(asyncio.wait_for(main(), 20))


async def is_served(streams: Streams) -> bool:
    reader, writer = streams
    request = encode_request_header(ApiKey.API_VERSIONS, 0, 7, "test")
    try:
        writer.write(len(request).to_bytes(4, "big") + request)
        size = int.from_bytes(await reader.readexactly(4), "big")
        return (await reader.readexactly(size))[:4] == (7).to_bytes(4, "big")
    except (asyncio.IncompleteReadError, ConnectionError):
        return False


def test_clients_do_not_use_up_the_inter_broker_limits() -> None:
    async def scenario(ports: list[int]) -> None:
        nodes, clients = ports
        client = await asyncio.open_connection("127.0.0.1", clients)
        assert await is_served(client)
        assert not await is_served(await asyncio.open_connection("127.0.0.1", clients))
        node = await asyncio.open_connection("127.0.0.1", nodes)
        assert await is_served(node)
        for _, writer in (client, node):
            writer.close()

    with_node("NODES://127.0.0.1:0,CLIENTS://127.0.0.1:0", scenario)
