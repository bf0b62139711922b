"""A node that starts on an almost full disk either fails with an error, or waits for space and continues."""

import asyncio

import pytest

from moldau.errors import MoldauError
from moldau.node.node import Node
from moldau.settings.broker import BrokerSettings
from moldau.testing.simulation.platform.disk import DiskSettings
from moldau.testing.simulation.platform.simulation import Simulation

FREE_BYTES_MAX = 1_000
STEP_BYTES = 50
START_TIMEOUT_S = 30


async def restart_with(simulation: Simulation, free_bytes: int) -> str:
    """Restarts a node with this much free space, and adds more after a while; returns what happened."""
    disk = DiskSettings()
    host = simulation.add_host(f"server-{free_bytes}", disk=disk)
    settings = BrokerSettings(listen=(f"{host.address}:9092",), data_dir="/var/moldau")
    node = Node(host.platform, settings)
    await host.run(node.start())
    await host.run(node.stop())
    host.kill()
    host.restart()
    unlimited = disk.capacity_bytes
    disk.capacity_bytes = host.disk.volume.used_bytes() + free_bytes
    node = Node(host.platform, settings)
    starting = asyncio.create_task(host.run(node.start()))
    await asyncio.wait([starting], timeout=START_TIMEOUT_S)
    has_waited = not starting.done()
    disk.capacity_bytes = unlimited
    try:
        await starting
    except (MoldauError, OSError):
        return "failed"
    assert node.broker.ready.is_set()
    assert node.broker.lifecycle.lease.is_valid()
    await host.run(node.stop())
    return "waited" if has_waited else "started"


@pytest.mark.parametrize("seed", range(2))
def test_a_start_on_a_full_disk_fails_or_waits_for_space(seed: int) -> None:
    simulation = Simulation(seed)

    async def main() -> list[str]:
        return [await restart_with(simulation, free_bytes) for free_bytes in range(0, FREE_BYTES_MAX, STEP_BYTES)]

    outcomes = simulation.run(main, 3_600_000)
    assert outcomes[0] == "failed"
    assert "waited" in outcomes
    assert outcomes[-1] == "started"
