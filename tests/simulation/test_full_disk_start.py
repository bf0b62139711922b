"""A node that starts where there is hardly any room either says that it cannot, or waits and goes on by itself."""

import asyncio

import pytest

from moldau.errors import MoldauError
from moldau.node.node import Node
from moldau.settings.broker import BrokerSettings
from moldau.testing.simulation.platform.disk import DiskSettings
from moldau.testing.simulation.platform.simulation import Simulation

ROOM_MAX_BYTES = 1_000
STEP_BYTES = 50
PATIENCE_S = 30


async def start_with(simulation: Simulation, room_bytes: int) -> str:
    """How the second start of a node goes that finds so much room; what it needs more is there after a while."""
    disk = DiskSettings()
    host = simulation.add_host(f"server-{room_bytes}", disk=disk)
    settings = BrokerSettings(listen=(f"{host.address}:9092",), data_dir="/var/moldau")
    node = Node(host.platform, settings)
    await host.run(node.start())
    await host.run(node.stop())
    host.kill()
    host.restart()
    unlimited = disk.capacity_bytes
    disk.capacity_bytes = host.disk.volume.used_bytes() + room_bytes
    node = Node(host.platform, settings)
    starting = asyncio.create_task(host.run(node.start()))
    await asyncio.wait([starting], timeout=PATIENCE_S)
    has_waited = not starting.done()
    disk.capacity_bytes = unlimited
    try:
        await starting
    except (MoldauError, OSError):
        return "refused"
    assert node.broker.ready.is_set()
    assert node.broker.lifecycle.lease.is_valid()
    await host.run(node.stop())
    return "waited" if has_waited else "started"


@pytest.mark.parametrize("seed", range(2))
def test_it_is_refused_or_it_waits_for_room(seed: int) -> None:
    simulation = Simulation(seed)

    async def main() -> list[str]:
        return [await start_with(simulation, room) for room in range(0, ROOM_MAX_BYTES, STEP_BYTES)]

    ways = simulation.run(main, 3_600_000)
    assert ways[0] == "refused"
    assert "waited" in ways
    assert ways[-1] == "started"
