"""A process that copies a topic exactly once, on three nodes: the process, leaders and coordinators are killed in turn.
It uses Moldau's client (TV2) or librdkafka (TV1). MOLDAU_EXACTLY_ONCE_KILLS sets the number of kills (6)."""

import asyncio
import os
import random
from pathlib import Path
from types import ModuleType

import pytest

from clients.test_moldau_transactions import Worker, check_copy, fill, read_all, run, values, with_topics
from support import exactly_once_confluent_worker, exactly_once_worker
from support.broker_process_cluster import BrokerProcessCluster
from support.topics import unique

pytestmark = pytest.mark.clients

KILLS = int(os.environ.get("MOLDAU_EXACTLY_ONCE_KILLS", "6"))
DEADLINE_S = 60 + 30 * KILLS
RECORDS_PER_KILL = 1_200


@pytest.mark.parametrize(
    ("module", "options"),
    [(exactly_once_worker, ["--static"]), (exactly_once_confluent_worker, [])],
    ids=["moldau.client", "librdkafka"],
)
def test_nothing_is_lost_or_doubled_when_workers_and_nodes_are_killed(
    tmp_path: Path, module: ModuleType, options: list[str]
) -> None:
    async def test(nodes: BrokerProcessCluster) -> None:
        generator = random.Random(3)
        async with with_topics(nodes.bootstrap, 2) as (cluster, [source, target]):
            sent: list[bytes] = []
            arguments = (nodes.bootstrap, source, target, unique("group"), unique("worker"), *options)
            worker = Worker(*arguments, module=module)
            try:
                for number in range(KILLS):
                    # More than the worker copies in one round, so that it never waits for input.
                    sent += await fill(cluster, source, RECORDS_PER_KILL, first=len(sent))
                    if number % 2:
                        await worker.commits(generator.randint(1, 10))
                        await asyncio.sleep(generator.uniform(0, 0.05))
                        worker.kill()
                        worker = Worker(*arguments, module=module)
                    else:
                        await kill_node(nodes, 1 + number // 2 % len(nodes.nodes), worker, source, target)
                while await values(cluster, target) != sent:
                    await asyncio.sleep(0.5)
            finally:
                worker.kill()
            check_copy(await read_all(cluster, target), sent)

    async def kill_node(nodes: BrokerProcessCluster, victim: int, worker: Worker, *topics: str) -> None:
        """Kills a node and starts it again when the worker has continued without it."""
        await worker.commits(3)
        nodes.kill(victim)
        await worker.commits(20)
        await asyncio.to_thread(nodes.start, victim)
        for topic in (*topics, "__consumer_offsets", "__transaction_state"):
            await asyncio.to_thread(nodes.wait_in_sync, topic)

    with BrokerProcessCluster(tmp_path, settings={"transaction.state.log.num.partitions": "4"}) as nodes:
        run(test(nodes), DEADLINE_S)
