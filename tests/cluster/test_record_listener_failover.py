"""Each ack mode through the kill of its coordinator and its leaders: every record is handled once."""

import asyncio
from pathlib import Path

import pytest

from ack_modes.modes import MODES
from ack_modes.run import SETTINGS, Result, run_node_kills
from support.broker_process_cluster import BrokerProcessCluster

pytestmark = pytest.mark.clients

KILLS = 2
TIMEOUT_S = 180


def test_every_record_is_handled_once_over_failovers(tmp_path: Path) -> None:
    async def measure(nodes: BrokerProcessCluster) -> list[Result]:
        async with asyncio.timeout(TIMEOUT_S):
            return await run_node_kills(nodes, KILLS, list(MODES.values()))

    with BrokerProcessCluster(tmp_path, settings=SETTINGS) as nodes:
        results = asyncio.run(measure(nodes))
    for result in results:
        assert result.violations() == [], result.mode.name
        assert result.deliveries.completed(1, 1) == result.deliveries.records, result.mode.name
