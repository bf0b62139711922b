"""Clients produce, consume alone and in groups, and operate a cluster while it is under fire.

First a phase with faults, in which nothing acknowledged may be lost, doubled or reordered; then all is healed, and
everybody must get on with their work; then every replica is read, and compared with what was acknowledged and seen.
"""

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from typing import ClassVar

from moldau.client.errors import KafkaError
from moldau.groups.topic import OFFSETS_TOPIC
from moldau.settings.broker import BrokerSettings
from moldau.settings.topic import TopicSettings
from moldau.testing.simulation.ablations.cluster import ABLATIONS
from moldau.testing.simulation.checkers.cluster import check_cluster
from moldau.testing.simulation.checkers.groups import check_groups
from moldau.testing.simulation.checkers.history import Partition, TopicChange
from moldau.testing.simulation.checkers.history_cluster import ClusterHistory, Log
from moldau.testing.simulation.checkers.history_groups import Fate, GroupHistory
from moldau.testing.simulation.checkers.hooks import no_packets, watched
from moldau.testing.simulation.checkers.invariants import Invariants
from moldau.testing.simulation.checkers.replica_logs import read_replica
from moldau.testing.simulation.platform.process import Process, Program
from moldau.testing.simulation.platform.simulation import Host
from moldau.testing.simulation.scenarios.faulty_cluster import PORT, ClusterUnderFire, Plan
from moldau.testing.simulation.scenarios.outcome import Broken
from moldau.testing.simulation.scenarios.scenario import Scenario
from moldau.testing.simulation.workloads.cluster import Latecomer, Operator, Reader, TopicAdmin
from moldau.testing.simulation.workloads.group_calls import look
from moldau.testing.simulation.workloads.groups import (
    Clerk,
    GroupProducer,
    GroupWorker,
    Keeper,
    Member,
    MemberPlan,
    Open,
)
from moldau.testing.simulation.workloads.recorder import WitnessedCluster
from moldau.testing.simulation.workloads.topics import draw_topics
from moldau.testing.simulation.workloads.voters import VoterAdmin

REPLICATION = 3
MIN_IN_SYNC = 2
FAULTS_MIN = 20
OPERATIONS_MIN = 1_000
PROGRESS_WANTED = 3
REQUEST_TIMEOUT_MS = 5_000
ANSWER_TIMEOUT_MS = 30_000
METADATA_AGE_MS_MAX = 5_000
VOTERS_CHANGE = 0.3
"""In this part of the seeds."""
PROFILES = (
    *("power cuts", "kills", "network", "pauses", "bad disks", "everything") * 3,
    *("elections", "flapping", "rejoins", "one at a time"),
)
GROUP = "readers"


class Cluster(Scenario):
    NAME = "cluster"
    NODES: ClassVar[Sequence[int]] = (3, 3, 3, 3, 5)

    cluster: ClusterUnderFire

    def _set_up(self, seed: int, syncs_lie: str, keep_trace: bool) -> ClusterUnderFire:
        draw = self._random = random.Random(f"{seed}/plan")
        self.records = ClusterHistory()
        self.groups = GroupHistory()
        ablation = ABLATIONS.get(self.ablation or "")
        plan = Plan(
            nodes=draw.choice(self.NODES),
            profile=draw.choice(PROFILES),
            faults=draw.randint(FAULTS_MIN, FAULTS_MIN + 5),
            sync_ms_max=draw.choice((0.5, 3.0, 20.0)),
        )
        if ablation is not None:
            plan = ablation.plan(plan)
        self._topics = draw_topics(draw, is_cached=plan.profile == "one at a time")
        self._replication = min(REPLICATION, plan.nodes)
        self._partitions = [each for topic in self._topics for each in topic.partitions]
        self.records.lossy = {
            topic.name: why
            for topic in self._topics
            if (why := topic.why_lossy(plan.one_at_a_time)) is not None
        }
        self.cluster = ClusterUnderFire(
            self.NAME,
            seed,
            plan,
            self._settings(draw, plan.profile),
            syncs_lie=syncs_lie,
            keep_trace=keep_trace,
        )
        self.invariants = Invariants(
            self.cluster.servers,
            self.cluster.outcome.violated,
            self.cluster.outcome.counts,
            self.records.lossy,
            self.cluster.note,
        )
        self.cluster.eyes = self.invariants
        self.cluster.squeezed = [topic.name for topic in self._topics if topic.name not in self.records.lossy]
        self.cluster.simulation.loop.on_turn = self.invariants.on_turn
        self._workers: list[GroupWorker] = []
        self._readers: list[Reader] = []
        self._packets = no_packets()
        self._members: list[Process] = []
        return self.cluster

    def _settings(self, draw: random.Random, profile: str) -> BrokerSettings:
        return BrokerSettings(
            listen=("127.0.0.1:9092",),
            default_replication_factor=self._replication,
            offsets_topic_replication_factor=self._replication,
            offsets_topic_num_partitions=draw.choice((1, 2)),
            offsets_topic_segment_bytes=10_000,
            group_min_session_timeout_ms=100,
            group_initial_rebalance_delay_ms=0,
            replica_lag_time_max_ms=1_000 if profile == "flapping" else draw.choice((1_000, 3_000)),
            leader_imbalance_check_interval_seconds=5,
            metadata_snapshot_bytes=draw.choice((3_000, 20_000, 20_971_520)),
            topic_defaults=TopicSettings(
                min_insync_replicas=min(MIN_IN_SYNC, self._replication),
                segment_bytes=draw.choice((10_000, 1_000_000)),
                index_interval_bytes=draw.choice((100, 4096)),
            ),
        )

    @classmethod
    def ablations(cls) -> tuple[str, ...]:
        return (*super().ablations(), *ABLATIONS)

    def switched_off(self) -> AbstractContextManager[object]:
        ablation = ABLATIONS.get(self.ablation or "")
        stack = ExitStack()
        stack.enter_context(super().switched_off() if ablation is None else ablation.switch())
        stack.enter_context(watched(self.invariants, self._packets))
        return stack

    # The story

    async def play(self) -> None:
        cluster = self.cluster
        await cluster.boot()
        await self._create_topics()
        self._make_workers()
        self._make_members()
        running = self._run(self._workers)
        reading = self._run(self._readers)
        for member in self._members:
            member.start()
        elections = cluster.outcome.counts["quorum elections"]
        await cluster.endure()
        if cluster.plan.profile == "rejoins" and cluster.outcome.counts["quorum elections"] > elections:
            cluster.outcome.violated("nodes that were away for a while have caused elections")
        if cluster.outcome.violations:
            # What comes after it proves nothing.
            return
        await cluster.heal()
        await self._see_progress()
        for worker in self._workers:
            worker.stop()
        for member in self._members:
            member.stop()
            await member.ended()
        await asyncio.gather(*running)
        await self._read_to_the_end()
        for reader in self._readers:
            reader.stop()
        await asyncio.gather(*reading)
        await self._look_at_everything()
        await cluster.stop()

    def _run(self, workers: Sequence[GroupWorker]) -> list["asyncio.Task[None]"]:
        host = self.cluster.clients[0]
        return [host.spawn(worker.run(), name=worker.name) for worker in workers]

    def violations(self) -> Iterable[object]:
        return [*check_cluster(self.records), *check_groups(self.groups)]

    def count(self) -> None:
        counts, records = self.cluster.outcome.counts, self.records
        counts["records acknowledged"] = sum(send.is_acknowledged for send in records.sends)
        counts["records read"] = sum(len(poll.records) for poll in records.polls)
        counts["commits acknowledged"] = sum(commit.fate is Fate.DONE for commit in self.groups.commits)
        counts["operations"] = self._operations()
        counts["torn writes"] = sum(server.host.disk.volume.torn_writes for server in self.cluster.servers)
        counts += self.cluster.simulation.network.counts

    def _operations(self) -> int:
        groups = self.groups
        asked = len(groups.commits) + len(groups.looks) + len(groups.beats) + len(groups.syncs)
        return self.records.operations + len(self.records.sends) + asked

    # Who takes part

    async def _create_topics(self) -> None:
        for topic in self._topics:
            await self._ask(partial(topic.create, replication=self._replication))
            self.records.topic_changes.append(TopicChange(topic.name, is_creation=True, is_acknowledged=True))

    def _make_workers(self) -> None:
        draw, here = self._random, self._opener(self.cluster.clients[0])

        def parts(name: str) -> tuple[str, Open, random.Random]:
            return name, here, self.cluster.simulation.random_for(name)

        for number in range(2):
            self._workers.append(GroupProducer(*parts(f"producer-{number}"), self._partitions, self.records))
        if draw.random() < 0.3:
            self._workers.append(GroupProducer(*parts("leader-only"), self._partitions, self.records, acks=1))
        for number in range(2):
            reader = Reader(*parts(f"reader-{number}"), self._partitions, self.records)
            self._readers.append(reader)
            self.records.readers[reader.name] = self._partitions
        self._workers.append(TopicAdmin(*parts("topics"), self._replication, self.records))
        self._workers.append(Clerk(*parts("clerk"), "alone", self._partitions[:2]))
        self._workers.append(Keeper(*parts("keeper"), ["alone"], self._partitions[:2]))
        if self.cluster.plan.nodes > 1:
            nodes = self.cluster.plan.nodes
            moved = [*self._partitions, (OFFSETS_TOPIC, 0)]
            self._workers.append(Operator(*parts("operator"), moved, nodes, self.records))
        if self.cluster.plan.profile != "rejoins":
            addresses = {server.node_id: (server.name, PORT) for server in self.cluster.servers}
            voters = parts("voters")
            if voters[-1].random() < VOTERS_CHANGE:
                self._workers.append(VoterAdmin(*voters, addresses, self.cluster.outcome.counts))
            late = parts("latecomer")
            self._workers.append(Latecomer(*late, self._packets, addresses, self.invariants.controller))

    def _make_members(self) -> None:
        draw = self._random
        for number in range(2):
            plan = MemberPlan(
                GROUP,
                [topic.name for topic in self._topics if topic.name not in self.records.lossy],
                ("cooperative-sticky",),
                f"instance-{number}" if draw.random() < 0.5 else None,
                session_timeout_ms=6_000,
                poll_interval_max_ms=5_000,
                commits_by_itself=draw.random() < 0.5,
                pause=lambda: 0.1,
            )
            if plan.topics:
                self._members.append(self._process(f"member-{number}", plan))

    def _process(self, name: str, plan: MemberPlan) -> Process:
        lives = itertools.count()

        def make(host: Host) -> Program:
            label = f"{name}-{next(lives)}"
            randomness = self.cluster.simulation.random_for(label)
            return Member(label, self._opener(host), randomness, plan, self.groups)

        return Process(self.cluster.add_client(name), make)

    def _opener(self, host: Host) -> Open:
        def open_cluster(client_id: str) -> WitnessedCluster:
            return WitnessedCluster(
                self.cluster.bootstrap,
                self.groups,
                client_id=client_id,
                clock=host.platform.clock,
                random=host.platform.random,
                request_timeout_ms=REQUEST_TIMEOUT_MS,
                metadata_max_age_ms=METADATA_AGE_MS_MAX,
            )

        return open_cluster

    # The end

    async def _see_progress(self) -> None:
        """Everybody gets on, and there is enough to look at."""
        busy = [worker for worker in self._workers if worker.IS_BUSY]
        wanted = {worker.name: worker.made + PROGRESS_WANTED for worker in busy}

        def stuck() -> list[str]:
            return [worker.name for worker in busy if worker.made < wanted[worker.name]]

        await self.cluster.wait_until(lambda: not stuck(), lambda: f"progress of {', '.join(stuck())}")
        await self.cluster.wait_until(
            lambda: self._operations() >= OPERATIONS_MIN, lambda: f"{OPERATIONS_MIN} operations"
        )

    async def _read_to_the_end(self) -> None:
        """All replicas come to be in sync and the same; readers have read all of it."""
        cluster = self.cluster
        await cluster.wait_until(self.invariants.is_whole, lambda: "all replicas are in sync")
        await cluster.wait_until(self.invariants.is_at_rest, lambda: "all replicas are the same")
        for each in self._partitions:
            await self._read_replicas(each)
        await cluster.wait_until(self._readers_are_done, lambda: "readers come to the end")

    async def _read_replicas(self, partition: Partition) -> None:
        replicas: dict[int, Log] = {}
        for server in self.cluster.servers:
            found = self.invariants.replica(server.node_id, partition)
            if found is not None:
                replicas[server.node_id] = await server.host.run(read_replica(found.log))
        leader = self.invariants.leader_of(partition)
        if leader in replicas:
            self.records.replicas[partition] = replicas
            self.records.logs[partition] = replicas[leader]
        else:
            self.cluster.outcome.violated(f"{partition[0]}-{partition[1]} has no leader after healing")

    def _readers_are_done(self) -> bool:
        ends = {partition: len(log) for partition, log in self.records.logs.items() if log}
        return all(
            reader.positions[partition] >= end
            for reader in self._readers
            for partition, end in ends.items()
            if partition[0] not in self.records.lossy
        )

    async def _look_at_everything(self) -> None:
        """What is there in the end must agree with all that was confirmed: topics, and committed offsets."""

        async def look_at_all(cluster: WitnessedCluster) -> None:
            for group in sorted({commit.claim.group for commit in self.groups.commits}):
                await look(cluster, group, self._partitions)
            await cluster.refresh(all_topics=True)
            self.records.topics = sorted(cluster.topics)

        await self._ask(look_at_all)

    async def _ask(self, question: Callable[[WitnessedCluster], Awaitable[None]]) -> None:
        """Asks a cluster that must be well; what moves to another node meanwhile is asked for again."""

        async def ask() -> None:
            async with self._opener(self.cluster.clients[0])("observer") as cluster:
                retry = cluster.retry(ANSWER_TIMEOUT_MS)
                while True:
                    try:
                        await question(cluster)
                        return
                    except KafkaError as error:
                        await retry.after(error)

        try:
            await self.cluster.clients[0].run(ask())
        except KafkaError as error:
            raise Broken(f"a healthy cluster did not answer: {error!r}") from error
