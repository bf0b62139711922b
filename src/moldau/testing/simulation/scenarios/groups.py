"""Groups scenario: consumers join, leave and are killed while their node has faults.

During the faults, no committed offset may be lost or move back, and no partition may have two owners in a generation.
After healing, every group must become stable, read all records and commit its offsets. Committed offsets must survive
clean restarts, both with active and with empty groups.
"""

import asyncio
import itertools
import random
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from moldau.groups.offsets_topic import OFFSETS_TOPIC
from moldau.settings.topic import TopicSettings
from moldau.testing.simulation.ablations.groups import ABLATIONS
from moldau.testing.simulation.checkers.groups import check_groups
from moldau.testing.simulation.checkers.history import History, Partition
from moldau.testing.simulation.checkers.history_groups import FinalGroupState, GroupHistory, OperationResult
from moldau.testing.simulation.checkers.records import check_records
from moldau.testing.simulation.scenarios.client_process import ClientProcess, GroupClients, run_client
from moldau.testing.simulation.scenarios.faulty_node import FaultyNode
from moldau.testing.simulation.scenarios.outcome import ScenarioError
from moldau.testing.simulation.scenarios.scenario import Scenario
from moldau.testing.simulation.scenarios.server import PORT
from moldau.testing.simulation.workloads.client import RawClient
from moldau.testing.simulation.workloads.group_requests import describe_group, fetch_all_offsets, fetch_offsets
from moldau.testing.simulation.workloads.groups import (
    AbandonedJoin,
    ClusterFactory,
    ClusterProducer,
    ClusterWorkload,
    FencedMember,
    GroupAdminWorkload,
    GroupMemberPlan,
    OffsetStoreWorkload,
    PartitionGrower,
)

ASSIGNORS: Sequence[Sequence[str]] = (
    *(("range",), ("roundrobin",), ("sticky",), ("cooperative-sticky",), ("cooperative-sticky",)),
    ("range", "cooperative-sticky"),
)
METADATA_AGE_MS_MAX = 3_000
"""The maximum age of client metadata. It limits how long group leaders take to see new partitions."""
FAULT_INTERVAL_S_MAX = 6
"""The maximum interval between faults. It is long, because groups need time to become stable between faults."""
SYNC_MS_MAX = (3.0, 20.0, 100.0)
"""Maximum durations of a sync, for the seed to choose from. Slow syncs make a crash before a sync likely."""


class GroupsScenario(Scenario):
    NAME = "groups"
    IGNORED_FSYNCS = {"offsets-fsync": f"*/{OFFSETS_TOPIC}-*.log"}
    SWITCHES = ABLATIONS

    def __init__(self, seed: int, ablation: str | None = None) -> None:
        super().__init__(seed, ablation)
        self.node = self.system = FaultyNode(
            self.NAME, seed, sync_ms_max=SYNC_MS_MAX, ignored_fsync_glob=self._ignored_fsync_glob
        )
        self.records = History()
        self.history = GroupHistory()
        draw = self._random = self.node.random
        offsets_partitions = draw.choice((1, 2, 5))
        self.node.server.settings = replace(
            self.node.server.settings,
            group_min_session_timeout_ms=100,
            group_initial_rebalance_delay_ms=draw.choice((0, 100, 1000)),
            offsets_topic_num_partitions=offsets_partitions,
            offsets_topic_segment_bytes=draw.choice((1024, 2_000, 10_000)),
            # Compact often, so that coordinators also load groups from compacted logs.
            log_cleaner_backoff_ms=draw.choice((100, 1000)),
            topic_defaults=TopicSettings(
                segment_bytes=draw.choice((10_000, 1_000_000)),
                min_cleanable_dirty_ratio=draw.choice((0.0, 0.5)),
                delete_retention_ms=draw.choice((0, 1000, 86_400_000)),
            ),
        )
        self._topics = {f"topic-{number}": draw.randint(1, 4) for number in range(draw.randint(1, 2))}
        self._partitions = [(topic, index) for topic, count in self._topics.items() for index in range(count)]
        self.node.partitions = [*self._partitions, *((OFFSETS_TOPIC, index) for index in range(offsets_partitions))]
        self._groups = [f"group-{number}" for number in range(draw.randint(1, 3))]
        self._assignors = {group: draw.choice(ASSIGNORS) for group in self._groups}
        self._workloads: list[ClusterWorkload] = []
        self._members: list[ClientProcess] = []
        self._clients = GroupClients(
            self.node.simulation,
            self.node.clients,
            f"{self.node.server.name}:{PORT}",
            self.history,
            metadata_max_age_ms=METADATA_AGE_MS_MAX,
        )
        self._sizes: dict[str, int] = {}
        self._is_quiet = False
        self._pauses = self.node.simulation.random_for("pauses")
        self._duplicate_instances: list[ClientProcess] = []
        """Members with the instance id of another member. They are killed before groups must become stable."""

    async def main(self) -> None:
        node = self.node
        await node.server.boot_and_wait()
        for topic, count in self._topics.items():
            await node.run_client(partial(RawClient.create_topic, name=topic, partitions=count))
        self._build_workloads()
        self._build_members()
        workload_tasks = self._spawn(self._workloads)
        churn = asyncio.create_task(self._churn())
        await node.inject_faults(FAULT_INTERVAL_S_MAX)
        churn.cancel()
        with suppress(asyncio.CancelledError):
            await churn
        node.heal()
        await self._stop_churn()
        await self._check_progress(self._workloads)
        for workload in self._workloads:
            workload.stop()
        await asyncio.gather(*workload_tasks)
        await self._read_end_offsets()
        await self._wait_groups_stable()
        await node.restart()
        await self._wait_groups_stable()
        for member in self._members:
            member.stop()
        for member in self._members:
            await member.wait_stopped()
        await self._read_final_state()
        await node.restart()
        await self._read_final_state()
        self.records.logs = await node.read_logs(self._partitions)
        await node.server.stop()

    def check(self) -> Iterable[object]:
        return [*check_records(self.records), *check_groups(self.history)]

    def add_counts(self) -> None:
        counts = self.node.outcome.counts
        counts["records acknowledged"] = sum(send.is_acknowledged for send in self.records.sends)
        counts["records read"] = len(self.history.deliveries)
        counts["commits acknowledged"] = sum(commit.result is OperationResult.OK for commit in self.history.commits)
        counts["generations"] = len({sync.identity[:2] for sync in self.history.syncs})

    # Clients

    def _build_workloads(self) -> None:
        draw, open_cluster = self._random, self._clients.open_cluster

        def common(name: str) -> tuple[str, random.Random, ClusterFactory]:
            return name, self.node.simulation.random_for(name), open_cluster

        for number in range(draw.randint(1, 2)):
            self._workloads.append(ClusterProducer(*common(f"producer-{number}"), self._partitions, self.records))
        for number in range(draw.randint(1, 2)):
            for index in range(draw.randint(1, 2)):
                name = f"clerk-{number}-{index}"
                self._workloads.append(OffsetStoreWorkload(*common(name), f"alone-{number}", self._partitions))
        self._workloads.append(FencedMember(*common("ghost"), self.history))
        if draw.random() < 0.5:
            self._workloads.append(AbandonedJoin(*common("passerby"), self._assignors, list(self._topics)))
        if draw.random() < 0.3:
            self._workloads.append(PartitionGrower(*common("grower"), self._partitions))
        self._workloads.append(GroupAdminWorkload(*common("keeper"), self._groups, self._partitions))

    def _build_members(self) -> None:
        draw = self._random
        for group in self._groups:
            is_static = draw.random() < 0.5
            self._sizes[group] = draw.randint(1, 4)
            for number in range(self._sizes[group]):
                plan = GroupMemberPlan(
                    group,
                    list(self._topics),
                    self._assignors[group],
                    f"instance-{number}" if is_static and draw.random() < 0.8 else None,
                    session_timeout_ms=draw.choice((1500, 3000, 6000)),
                    poll_interval_max_ms=draw.choice((1000, 2000, 5000)),
                    auto_commit=draw.random() < 0.5,
                    pause=partial(self._pause, draw.choice((0.01, 0.01, 0.2)), draw.choice((0, 0.02))),
                )
                name = f"{group}-member-{number}"
                self._members.append(self._clients.member_process(name, plan))
                if plan.instance_id is not None and draw.random() < 0.3:
                    self._duplicate_instances.append(self._clients.member_process(f"{name}-twin", plan))

    def _pause(self, usual_s: float, long_chance: float) -> float:
        """Returns the pause between a member's polls. During churn, it sometimes exceeds the member's poll interval."""
        if self._is_quiet:
            return 0.02
        if self._pauses.random() < long_chance:
            return self._pauses.uniform(0.5, 10)
        return self._pauses.uniform(0, usual_s)

    async def _churn(self) -> None:
        """Starts, stops and kills members until cancelled."""
        draw = self.node.simulation.random_for("churn")
        for member in self._members:
            member.start()
            await asyncio.sleep(draw.expovariate(1 / 0.1))
        while True:
            await asyncio.sleep(draw.uniform(0.1, 1.5))
            process = draw.choice([*self._members, *self._duplicate_instances])
            if not process.is_running:
                process.start()
            elif draw.random() < 0.5:
                process.stop()
            else:
                process.kill()
                await asyncio.sleep(draw.choice((0.01, 0.5, 3)))
                process.start()

    # After healing

    async def _stop_churn(self) -> None:
        """Kills duplicate instances, starts all members, and ends long pauses."""
        self._is_quiet = True
        for duplicate in self._duplicate_instances:
            duplicate.kill()

        def are_all_active() -> bool:
            for member in self._members:
                member.start()
            return all(member.is_active for member in self._members)

        if not await self.node.outcome.poll_until(are_all_active):
            raise ScenarioError("a consumer did not stop")

    async def _read_end_offsets(self) -> None:
        """Reads the end offsets of all partitions, including partitions that were added during the run."""
        counts = await self.node.run_client(RawClient.topics)
        self._partitions = [(topic, index) for topic in self._topics for index in range(counts[topic])]
        for partition in self._partitions:
            self.history.end_offsets[partition] = await self.node.end_offset(partition)

    async def _wait_groups_stable(self) -> None:
        """Waits until every group is stable and has committed the end of every partition."""
        committed: dict[str, dict[Partition, int]] = {}

        async def are_stable() -> bool:
            async with self._clients.open_cluster("observer") as cluster:
                for group in self._groups:
                    self.history.final_groups[group] = await describe_group(cluster, group)
                    committed[group] = await fetch_offsets(cluster, group, self._partitions)
            return all(
                self._is_stable(group, self.history.final_groups[group]) and self._is_at_end(committed[group])
                for group in self._groups
            )

        if not await self.node.outcome.poll_until(lambda: run_client(self.node.clients[0], are_stable())):
            for group in self._groups:
                where = f"{self.history.final_groups[group]}, at {committed[group]} of {self.history.end_offsets}"
                self.node.outcome.add_violation(f"{group} of {self._sizes[group]} does not become stable: {where}")

    def _is_stable(self, group: str, final: FinalGroupState) -> bool:
        owned = sorted(itertools.chain.from_iterable(final.assignments.values()))
        has_all_members = len(final.assignments) == self._sizes[group]
        return final.state == "Stable" and has_all_members and owned == sorted(self._partitions)

    def _is_at_end(self, committed: Mapping[Partition, int]) -> bool:
        return all(committed.get(partition, 0) == end for partition, end in self.history.end_offsets.items())

    async def _read_final_state(self) -> None:
        async def fetch() -> None:
            async with self._clients.open_cluster("observer") as cluster:
                await fetch_all_offsets(cluster, self._partitions)

        await run_client(self.node.clients[0], fetch())
