"""One-node scenario: clients produce, consume, create and delete topics while their node has faults.

During the faults, no acknowledged record may be lost. After healing, every workload must make progress. At the end, the
logs are compared with the acknowledged records. A clean restart must not change the logs.
"""

import asyncio
import random
from collections.abc import Iterable
from dataclasses import replace
from functools import partial

from moldau.settings.topic import TopicSettings
from moldau.testing.simulation.checkers.history import History, TopicChange
from moldau.testing.simulation.checkers.records import check_records
from moldau.testing.simulation.scenarios.faulty_node import FaultyNode
from moldau.testing.simulation.scenarios.scenario import Scenario
from moldau.testing.simulation.workloads.client import RawClient
from moldau.testing.simulation.workloads.records import (
    ClientFactory,
    ClientWorkload,
    IdempotentProducer,
    PartitionConsumer,
    PlainProducer,
    TopicChurn,
)

SYNC_MS_MAX = (0.5, 3.0, 20.0)


class OneNodeScenario(Scenario):
    NAME = "one-node"
    IGNORED_FSYNCS = {
        "fsync": "*/topic-*.log",
        "directory-sync": "*/topic-?-?",
        "metadata-fsync": "*/__cluster_metadata-0/*.log",
    }

    def __init__(self, seed: int, ablation: str | None = None) -> None:
        super().__init__(seed, ablation)
        self.node = self.system = FaultyNode(
            self.NAME, seed, sync_ms_max=SYNC_MS_MAX, ignored_fsync_glob=self._ignored_fsync_glob
        )
        self.history = History()
        draw = self._random = self.node.random
        self.node.server.settings = replace(
            self.node.server.settings,
            topic_defaults=TopicSettings(
                segment_bytes=draw.choice((10_000, 50_000, 1_000_000)), index_interval_bytes=draw.choice((100, 4096))
            ),
        )
        self._topics = {f"topic-{number}": draw.randint(1, 3) for number in range(draw.randint(1, 3))}
        self._partitions = [(topic, index) for topic, count in self._topics.items() for index in range(count)]
        self.node.partitions = self._partitions
        self._workloads: list[ClientWorkload] = []

    async def main(self) -> None:
        node = self.node
        await node.server.boot_and_wait()
        await self._create_topics()
        self._workloads = self._build_workloads()
        workload_tasks = self._spawn(self._workloads)
        await node.inject_faults()
        node.heal()
        await self._check_progress(self._workloads, lambda: bool(self.history.unexpected_errors))
        for workload in self._workloads:
            workload.stop()
        await asyncio.gather(*workload_tasks)
        if not node.outcome.violations and not self.history.unexpected_errors:
            await self._catch_up()
        before = await node.read_logs(self._partitions)
        await node.restart()
        self.history.logs = await node.read_logs(self._partitions)
        for partition, log in before.items():
            # Compare only the records from before the restart. The log may be longer now, because the node may have
            # processed requests that were still in flight.
            if list(self.history.logs.get(partition, ()))[: len(log)] != log:
                node.outcome.add_violation(f"a clean restart changed {partition[0]}-{partition[1]}")
        self.history.topics = list(await node.run_client(RawClient.topics))
        await node.server.stop()

    def check(self) -> Iterable[object]:
        return check_records(self.history)

    def add_counts(self) -> None:
        counts = self.node.outcome.counts
        counts["records acknowledged"] = sum(
            len(send.values) for send in self.history.sends if send.is_acknowledged and send.acks == -1
        )
        counts["records read"] = sum(len(poll.records) for poll in self.history.polls)

    async def _create_topics(self) -> None:
        for topic, partitions in self._topics.items():
            await self.node.run_client(partial(RawClient.create_topic, name=topic, partitions=partitions))
            self.history.topic_changes.append(TopicChange(topic, is_creation=True, is_acknowledged=True))

    def _build_workloads(self) -> list[ClientWorkload]:
        draw = self._random

        def common(name: str) -> tuple[str, random.Random, ClientFactory, History]:
            return name, self.node.simulation.random_for(name), self.node.connect, self.history

        workloads: list[ClientWorkload] = [TopicChurn(*common("admin"))]
        for number in range(draw.randint(1, 4)):
            workloads.append(IdempotentProducer(*common(f"idempotent-{number}"), draw.choice(self._partitions)))
        for number, acks in enumerate(draw.sample((-1, -1, 1, 0), draw.randint(1, 3))):
            workloads.append(PlainProducer(*common(f"plain-{number}-acks-{acks}"), self._partitions, acks))
        for number in range(draw.randint(1, 3)):
            workloads.append(PartitionConsumer(*common(f"consumer-{number}"), draw.choice(self._partitions)))
        return workloads

    async def _catch_up(self) -> None:
        """Makes the consumers read their partitions to the end, so that the checker finds missed records."""
        for workload in self._workloads:
            if isinstance(workload, PartitionConsumer):
                workload.reads_large_fetches = True
                end = await self.node.end_offset(workload.partition)
                while (workload.position or 0) < end:
                    await self.node.clients[0].run(workload.run_once())
