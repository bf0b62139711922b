"""Consumers share topics in groups, and come, go and are killed, while their node is under fire.

In the phase with faults no committed offset may be lost or move back and no partition have two owners in a
generation. When all is healed and nobody comes or goes any more, every group must settle, read everything there is and
commit it; and all that is committed must outlast clean restarts, with the groups at work and with nobody there.
"""

import asyncio
import itertools
import random
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from moldau.client.errors import KafkaError
from moldau.groups.offsets_topic import OFFSETS_TOPIC
from moldau.settings.topic import TopicSettings
from moldau.testing.simulation.ablations.groups import ABLATIONS
from moldau.testing.simulation.checkers.groups import check_groups
from moldau.testing.simulation.checkers.history import History, Partition
from moldau.testing.simulation.checkers.history_groups import FinalGroupState, GroupHistory, OperationResult
from moldau.testing.simulation.checkers.records import check_records
from moldau.testing.simulation.platform.process import ClientProcess, ClientProgram
from moldau.testing.simulation.platform.simulation import Host
from moldau.testing.simulation.scenarios.faulty_node import PORT
from moldau.testing.simulation.scenarios.outcome import ScenarioError
from moldau.testing.simulation.scenarios.scenario import NodeScenario
from moldau.testing.simulation.workloads.client import RawClient
from moldau.testing.simulation.workloads.group_requests import describe_group, fetch_offsets
from moldau.testing.simulation.workloads.groups import (
    AbandonedJoin,
    ClusterFactory,
    ClusterProducer,
    ClusterWorkload,
    FencedMember,
    GroupAdminWorkload,
    GroupMember,
    GroupMemberPlan,
    OffsetStoreWorkload,
    PartitionGrower,
)
from moldau.testing.simulation.workloads.recorder import RecordingCluster

T = TypeVar("T")

ASSIGNORS: Sequence[Sequence[str]] = (
    ("range",),
    ("roundrobin",),
    ("sticky",),
    ("cooperative-sticky",),
    ("cooperative-sticky",),
    ("range", "cooperative-sticky"),
)
REQUEST_TIMEOUT_MS = 5_000
METADATA_AGE_MS_MAX = 3_000
"""How long it may take until leaders of groups hear of new partitions."""
FAULT_INTERVAL_S_MAX = 6
"""Between faults: groups need time to come together."""
PROGRESS_MIN = 3


class GroupsScenario(NodeScenario):
    NAME = "groups"
    SYNC_MS_MAX = (3.0, 20.0, 100.0)
    """Slow ones give more time in which an answer would be too early."""
    IGNORED_FSYNCS = {"offsets-fsync": f"*/{OFFSETS_TOPIC}-*.log"}

    def __init__(self, seed: int, ablation: str | None = None, *, keep_trace: bool = False) -> None:
        super().__init__(seed, ablation, keep_trace=keep_trace)
        self.records = History()
        self.history = GroupHistory()
        draw = self._random = self.node.random
        offsets_partitions = draw.choice((1, 2, 5))
        self.node.settings = replace(
            self.node.settings,
            group_min_session_timeout_ms=100,
            group_initial_rebalance_delay_ms=draw.choice((0, 100, 1000)),
            offsets_topic_num_partitions=offsets_partitions,
            offsets_topic_segment_bytes=draw.choice((1024, 2_000, 10_000)),
            # Small segments, compacted all the time, whose tombstones go as soon as they may.
            log_cleaner_backoff_ms=draw.choice((100, 1000)),
            topic_defaults=TopicSettings(
                segment_bytes=draw.choice((10_000, 1_000_000)),
                min_cleanable_dirty_ratio=draw.choice((0.0, 0.5)),
                delete_retention_ms=draw.choice((0, 1000, 86_400_000)),
            ),
        )
        self._topics = {f"topic-{number}": draw.randint(1, 4) for number in range(draw.randint(1, 2))}
        self._partitions = [(topic, index) for topic, count in self._topics.items() for index in range(count)]
        self.node.partitions = [
            *self._partitions,
            *((OFFSETS_TOPIC, index) for index in range(offsets_partitions)),
        ]
        self._groups = [f"group-{number}" for number in range(draw.randint(1, 3))]
        self._assignors = {group: draw.choice(ASSIGNORS) for group in self._groups}
        self._workloads: list[ClusterWorkload] = []
        self._members: list[ClientProcess] = []
        self._sizes: dict[str, int] = {}
        self._is_quiet = False
        self._pauses = self.node.simulation.random_for("pauses")
        self._duplicate_instances: list[ClientProcess] = []
        """They take a static member's instance id while it runs; when all is calm there are none."""

    @classmethod
    def ablations(cls) -> tuple[str, ...]:
        return (*ABLATIONS, *super().ablations())

    def apply_ablation(self) -> AbstractContextManager[object]:
        switch = ABLATIONS.get(self.ablation or "")
        return super().apply_ablation() if switch is None else switch()

    async def main(self) -> None:
        node = self.node
        await node.boot()
        for topic, count in self._topics.items():
            await node.run_client(partial(RawClient.create_topic, name=topic, partitions=count))
        self._build_workloads()
        self._build_members()
        running = [node.clients[0].spawn(worker.run(), name=worker.name) for worker in self._workloads]
        churning = asyncio.create_task(self._churn())
        await node.inject_faults(FAULT_INTERVAL_S_MAX)
        churning.cancel()
        with suppress(asyncio.CancelledError):
            await churning
        node.heal()
        await self._stop_churn()
        await self._check_progress()
        for worker in self._workloads:
            worker.stop()
        await asyncio.gather(*running)
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
        await node.stop()

    def violations(self) -> Iterable[object]:
        return [*check_records(self.records), *check_groups(self.history)]

    def add_counts(self) -> None:
        counts = self.node.outcome.counts
        counts["records acknowledged"] = sum(send.is_acknowledged for send in self.records.sends)
        counts["records read"] = len(self.history.deliveries)
        counts["commits acknowledged"] = sum(
            commit.result is OperationResult.OK for commit in self.history.commits
        )
        counts["generations"] = len({sync.identity[:2] for sync in self.history.syncs})

    # Who takes part

    def _build_workloads(self) -> None:
        draw, here = self._random, self._cluster_factory(self.node.clients[0])

        def parts(name: str) -> tuple[str, ClusterFactory, random.Random]:
            return name, here, self.node.simulation.random_for(name)

        for number in range(draw.randint(1, 2)):
            self._workloads.append(
                ClusterProducer(*parts(f"producer-{number}"), self._partitions, self.records)
            )
        for number in range(draw.randint(1, 2)):
            for clerk in range(draw.randint(1, 2)):
                name = f"clerk-{number}-{clerk}"
                self._workloads.append(OffsetStoreWorkload(*parts(name), f"alone-{number}", self._partitions))
        self._workloads.append(FencedMember(*parts("ghost"), self.history))
        if draw.random() < 0.5:
            self._workloads.append(AbandonedJoin(*parts("passerby"), self._assignors, list(self._topics)))
        if draw.random() < 0.3:
            self._workloads.append(PartitionGrower(*parts("grower"), self._partitions))
        self._workloads.append(GroupAdminWorkload(*parts("keeper"), self._groups, self._partitions))

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
                self._members.append(self._member_process(name, plan))
                if plan.instance_id is not None and draw.random() < 0.3:
                    self._duplicate_instances.append(self._member_process(f"{name}-twin", plan))

    def _pause(self, usual_s: float, long_chance: float) -> float:
        """Between a member's polls: sometimes longer than it may take, and short when all is calm."""
        if self._is_quiet:
            return 0.02
        if self._pauses.random() < long_chance:
            return self._pauses.uniform(0.5, 10)
        return self._pauses.uniform(0, usual_s)

    def _member_process(self, name: str, plan: GroupMemberPlan) -> ClientProcess:
        incarnations = itertools.count()

        def make(host: Host) -> ClientProgram:
            label = f"{name}-{next(incarnations)}"
            randomness = self.node.simulation.random_for(label)
            return GroupMember(label, self._cluster_factory(host), randomness, plan, self.history)

        return ClientProcess(self.node.add_client(name), make)

    def _cluster_factory(self, host: Host) -> ClusterFactory:
        def open_cluster(client_id: str) -> RecordingCluster:
            return RecordingCluster(
                f"{self.node.server.name}:{PORT}",
                self.history,
                client_id=client_id,
                clock=host.platform.clock,
                random=host.platform.random,
                request_timeout_ms=REQUEST_TIMEOUT_MS,
                metadata_max_age_ms=METADATA_AGE_MS_MAX,
            )

        return open_cluster

    async def _churn(self) -> None:
        """Members come, go and are killed, until this is cancelled."""
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

    # The end

    async def _stop_churn(self) -> None:
        """From now on everybody stays who is there, and is quick."""
        self._is_quiet = True
        for twin in self._duplicate_instances:
            twin.kill()

        async def are_all_there() -> bool:
            for member in self._members:
                member.start()
            return all(member.is_active for member in self._members)

        if not await self.node.wait_until(are_all_there):
            raise ScenarioError("a consumer does not close")

    async def _check_progress(self) -> None:
        busy = [worker for worker in self._workloads if worker.MUST_PROGRESS]
        wanted = {worker.name: worker.progress + PROGRESS_MIN for worker in busy}
        stuck: list[str] = []

        async def is_over() -> bool:
            stuck[:] = [name for worker in busy if worker.progress < wanted[name := worker.name]]
            return not stuck

        if not await self.node.wait_until(is_over):
            self.node.outcome.add_violation(f"no progress after healing: {', '.join(stuck)}")

    async def _read_end_offsets(self) -> None:
        """Nobody produces any more. Topics may have grown without anybody having been told."""
        counts = await self.node.run_client(RawClient.topics)
        self._partitions = [(topic, index) for topic in self._topics for index in range(counts[topic])]
        for partition in self._partitions:
            self.history.end_offsets[partition] = await self.node.end_offset(partition)

    async def _wait_groups_stable(self) -> None:
        """Waits until every group is at rest, and at the end of everything."""
        committed: dict[str, dict[Partition, int]] = {}

        async def are_settled() -> bool:
            async with self._cluster_factory(self.node.clients[0])("observer") as cluster:
                for group in self._groups:
                    self.history.final_groups[group] = await describe_group(cluster, group)
                    committed[group] = await fetch_offsets(cluster, group, self._partitions)
            return all(
                self._is_stable(group, self.history.final_groups[group]) and self._is_at_end(committed[group])
                for group in self._groups
            )

        if not await self.node.wait_until(lambda: self._run_client(are_settled())):
            for group in self._groups:
                where = (
                    f"{self.history.final_groups[group]}, at {committed[group]} of {self.history.end_offsets}"
                )
                self.node.outcome.add_violation(f"{group} of {self._sizes[group]} does not settle: {where}")

    def _is_stable(self, group: str, final_groups: FinalGroupState) -> bool:
        owned = sorted(itertools.chain.from_iterable(final_groups.assignments.values()))
        return (
            final_groups.state == "Stable"
            and len(final_groups.assignments) == self._sizes[group]
            and owned == sorted(self._partitions)
        )

    def _is_at_end(self, committed: Mapping[Partition, int]) -> bool:
        return all(committed.get(partition, 0) == end for partition, end in self.history.end_offsets.items())

    async def _read_final_state(self) -> None:
        """The witness keeps what is found: it must agree with all that was seen before."""

        async def fetch_all() -> None:
            async with self._cluster_factory(self.node.clients[0])("observer") as cluster:
                for group in sorted({commit.identity.group for commit in self.history.commits}):
                    await fetch_offsets(cluster, group, self._partitions)

        await self._run_client(fetch_all())

    async def _run_client(self, operation: Coroutine[Any, Any, T]) -> T:
        """Asks a node that must be well."""
        try:
            return await self.node.clients[0].run(operation)
        except KafkaError as error:
            raise ScenarioError(f"a healthy node did not answer: {error!r}") from error
