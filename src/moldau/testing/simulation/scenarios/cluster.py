"""Cluster scenario: clients produce, consume with and without groups, and administer a cluster under faults.

During the faults, no acknowledged record may be lost, duplicated or reordered. After healing, every workload must make
progress. At the end, all replicas are compared with each other, and with the records that were acknowledged or read.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import ClassVar

from moldau.client.errors import KafkaError
from moldau.groups.offsets_topic import OFFSETS_TOPIC
from moldau.logs.store import Log
from moldau.records.record import iterate_records
from moldau.settings.broker import BrokerSettings
from moldau.settings.topic import TopicSettings
from moldau.testing.simulation.ablations.cluster import ABLATIONS, Ablation
from moldau.testing.simulation.checkers.groups import check_groups
from moldau.testing.simulation.checkers.history import ClusterHistory, LogContent, Partition, TopicChange
from moldau.testing.simulation.checkers.history_groups import GroupHistory, OperationResult
from moldau.testing.simulation.checkers.hooks import install_hooks, new_request_buffers
from moldau.testing.simulation.checkers.records import check_cluster
from moldau.testing.simulation.scenarios.client_process import ClientProcess, GroupClients, run_client
from moldau.testing.simulation.scenarios.faulty_cluster import FaultPlan, FaultyCluster
from moldau.testing.simulation.scenarios.outcome import SimulationOutcome
from moldau.testing.simulation.scenarios.scenario import Scenario
from moldau.testing.simulation.scenarios.server import PORT
from moldau.testing.simulation.workloads.client import split_batches
from moldau.testing.simulation.workloads.cluster import (
    ClusterTopicChurn,
    PartitionReader,
    ReplicaMover,
    RequestReplayer,
    VoterChurn,
    draw_topics,
)
from moldau.testing.simulation.workloads.group_requests import fetch_all_offsets
from moldau.testing.simulation.workloads.groups import (
    ClusterFactory,
    ClusterProducer,
    ClusterWorkload,
    GroupAdminWorkload,
    GroupMemberPlan,
    OffsetStoreWorkload,
)
from moldau.testing.simulation.workloads.recorder import RecordingCluster

REPLICATION = 3
MIN_IN_SYNC = 2
FAULTS_MIN = 20
OPERATIONS_MIN = 1_000
RESPONSE_TIMEOUT_MS = 30_000
METADATA_AGE_MS_MAX = 5_000
VOTER_CHANGES_CHANCE = 0.3
"""Share of the seeds that change voters."""
PROFILES = (
    *("power cuts", "kills", "network", "pauses", "bad disks", "everything") * 3,
    *("elections", "flapping", "rejoins", "one at a time"),
)
GROUP = "readers"
READ_BYTES = 1 << 20


class ClusterScenario(Scenario):
    NAME = "cluster"
    NODES: ClassVar[Sequence[int]] = (3, 3, 3, 3, 5)
    ABLATIONS: ClassVar[Mapping[str, Ablation]] = ABLATIONS
    SWITCHES = {name: ablation.switch for name, ablation in ABLATIONS.items()}

    def __init__(self, seed: int, ablation: str | None = None) -> None:
        super().__init__(seed, ablation)
        draw = self._random = random.Random(f"{seed}/plan")
        self.records = ClusterHistory()
        self.groups = GroupHistory()
        plan = FaultPlan(
            nodes=draw.choice(self.NODES),
            profile=draw.choice(PROFILES),
            faults=draw.randint(FAULTS_MIN, FAULTS_MIN + 5),
            sync_ms_max=draw.choice((0.5, 3.0, 20.0)),
        )
        if self.ablation:
            plan = self.ABLATIONS[self.ablation].plan(plan)
        self._topics = draw_topics(draw, is_cached=plan.profile == "one at a time")
        self._replication = min(REPLICATION, plan.nodes)
        self._partitions = [each for topic in self._topics for each in topic.partitions]
        self.records.lossy_topics = {
            topic.name: why for topic in self._topics if (why := topic.loss_reason(plan.is_one_at_a_time)) is not None
        }
        self._durable_topics = [topic.name for topic in self._topics if topic.name not in self.records.lossy_topics]
        self.cluster = self.system = FaultyCluster(
            self.NAME, seed, plan, self._settings(draw, plan.profile), self.records.lossy_topics, self._durable_topics
        )
        self.invariants = self.cluster.invariants
        self._workloads: list[ClusterWorkload] = []
        self._readers: list[PartitionReader] = []
        self._recorded_requests = new_request_buffers()
        self._members: list[ClientProcess] = []
        self._clients = GroupClients(
            self.cluster.simulation,
            self.cluster.clients,
            self.cluster.bootstrap,
            self.groups,
            metadata_max_age_ms=METADATA_AGE_MS_MAX,
        )

    def _settings(self, draw: random.Random, profile: str) -> BrokerSettings:
        return BrokerSettings(
            listen=("127.0.0.1:9092",),
            default_replication_factor=self._replication,
            offsets_topic_replication_factor=self._replication,
            transaction_state_log_replication_factor=self._replication,
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

    def run(self) -> SimulationOutcome:
        with install_hooks(self.invariants, self._recorded_requests):
            return super().run()

    # Phases of a run

    async def main(self) -> None:
        cluster = self.cluster
        await cluster.boot()
        await self._create_topics()
        self._build_workloads()
        self._build_members()
        workload_tasks = self._spawn(self._workloads)
        reader_tasks = self._spawn(self._readers)
        for member in self._members:
            member.start()
        elections = cluster.outcome.counts["quorum elections"]
        await self._inject_faults()
        if cluster.plan.profile == "rejoins" and cluster.outcome.counts["quorum elections"] > elections:
            cluster.outcome.add_violation("rejoining nodes caused elections")
        if cluster.outcome.violations:
            # Return here, because later phases prove nothing after a violation.
            return
        await cluster.heal()
        await self._check_progress(self._workloads)
        await cluster.outcome.wait_until(
            lambda: self._operations() >= OPERATIONS_MIN, lambda: f"{OPERATIONS_MIN} operations"
        )
        for workload in self._workloads:
            workload.stop()
        for member in self._members:
            member.stop()
            await member.wait_stopped()
        await asyncio.gather(*workload_tasks)
        await self._wait_converged()
        for reader in self._readers:
            reader.stop()
        await asyncio.gather(*reader_tasks)
        await self._read_final_state()
        await cluster.stop()

    async def _inject_faults(self) -> None:
        await self.cluster.inject_faults()

    def check(self) -> Iterable[object]:
        return [*check_cluster(self.records), *check_groups(self.groups)]

    def add_counts(self) -> None:
        counts, records = self.cluster.outcome.counts, self.records
        counts["records acknowledged"] = sum(send.is_acknowledged for send in records.sends)
        counts["records read"] = sum(len(poll.records) for poll in records.polls)
        counts["commits acknowledged"] = sum(commit.result is OperationResult.OK for commit in self.groups.commits)
        counts["operations"] = self._operations()
        counts["torn writes"] = sum(server.host.disk.volume.torn_writes for server in self.cluster.servers)
        counts += self.cluster.simulation.network.counts

    def _operations(self) -> int:
        groups = self.groups
        group_operations = len(groups.commits) + len(groups.offset_fetches) + len(groups.heartbeats) + len(groups.syncs)
        return self.records.operations + len(self.records.sends) + group_operations

    # Clients

    async def _create_topics(self) -> None:
        for topic in self._topics:
            await self._run_client(partial(topic.create, replication=self._replication))
            self.records.topic_changes.append(TopicChange(topic.name, is_creation=True, is_acknowledged=True))

    def _build_workloads(self) -> None:
        draw, open_cluster = self._random, self._clients.open_cluster

        def common(name: str) -> tuple[str, random.Random, ClusterFactory]:
            return name, self.cluster.simulation.random_for(name), open_cluster

        for number in range(2):
            self._workloads.append(ClusterProducer(*common(f"producer-{number}"), self._partitions, self.records))
        if draw.random() < 0.3:
            self._workloads.append(ClusterProducer(*common("leader-only"), self._partitions, self.records, acks=1))
        for number in range(2):
            reader = PartitionReader(*common(f"reader-{number}"), dict.fromkeys(self._partitions, 0), self.records)
            self._readers.append(reader)
            self.records.readers[reader.name] = self._partitions
        self._workloads.append(ClusterTopicChurn(*common("topics"), self._replication, self.records))
        self._workloads.append(OffsetStoreWorkload(*common("clerk"), "alone", self._partitions[:2]))
        self._workloads.append(GroupAdminWorkload(*common("keeper"), ["alone"], self._partitions[:2]))
        if self.cluster.plan.nodes > 1:
            nodes = self.cluster.plan.nodes
            partitions = [*self._partitions, (OFFSETS_TOPIC, 0)]
            self._workloads.append(ReplicaMover(*common("operator"), partitions, nodes, self.records))
        if self.cluster.plan.profile != "rejoins":
            addresses = {server.node_id: (server.name, PORT) for server in self.cluster.servers}
            voters = common("voters")
            if voters[1].random() < VOTER_CHANGES_CHANCE:
                self._workloads.append(VoterChurn(*voters, addresses, self.cluster.outcome.counts))
            replay = common("latecomer")
            self._workloads.append(
                RequestReplayer(*replay, self._recorded_requests, addresses, self.invariants.controller)
            )

    def _build_members(self) -> None:
        draw = self._random
        for number in range(2):
            plan = GroupMemberPlan(
                GROUP,
                self._durable_topics,
                ("cooperative-sticky",),
                f"instance-{number}" if draw.random() < 0.5 else None,
                session_timeout_ms=6_000,
                poll_interval_max_ms=5_000,
                auto_commit=draw.random() < 0.5,
                pause=lambda: 0.1,
            )
            if plan.topics:
                self._members.append(self._clients.member_process(f"member-{number}", plan))

    # After healing

    async def _wait_converged(self) -> None:
        """Waits until all replicas are in sync and equal, and the readers have read all records."""
        outcome = self.cluster.outcome
        await outcome.wait_until(self.invariants.is_fully_replicated, lambda: "all replicas are in sync")
        await outcome.wait_until(self._is_controller_leading, lambda: "the controller leads the topic that follows it")
        await outcome.wait_until(self.invariants.is_converged, lambda: "all replicas are equal")
        for each in self._partitions:
            await self._read_replicas(each)
        await outcome.wait_until(self._have_readers_finished, lambda: "readers have read everything")

    def _is_controller_leading(self) -> bool:
        """Returns whether the active controller leads all partitions that follow it and of which it has a replica. It
        has none if the operator workload moved the replica elsewhere."""
        partitions = [each for topic in self._topics if topic.follows_controller for each in topic.partitions]
        return all(self.invariants.is_led_by_controller(each) for each in partitions)

    async def _read_replicas(self, partition: Partition) -> None:
        replicas: dict[int, LogContent] = {}
        for server in self.cluster.servers:
            found = self.invariants.replica(server.node_id, partition)
            if found is not None:
                replicas[server.node_id] = await server.host.run(_read_replica(found.log))
        leader = self.invariants.leader_of(partition)
        if leader in replicas:
            self.records.replicas[partition] = replicas
            self.records.logs[partition] = replicas[leader]
        else:
            self.cluster.outcome.add_violation(f"{partition[0]}-{partition[1]} has no leader after healing")

    def _have_readers_finished(self) -> bool:
        ends = {partition: len(log) for partition, log in self.records.logs.items() if log}
        return all(
            reader.positions[partition] >= end
            for reader in self._readers
            for partition, end in ends.items()
            if partition[0] not in self.records.lossy_topics
        )

    async def _read_final_state(self) -> None:
        """Reads the final topics and committed offsets into the histories."""

        async def fetch_all(cluster: RecordingCluster) -> None:
            await fetch_all_offsets(cluster, self._partitions)
            await cluster.refresh(all_topics=True)
            self.records.topics = sorted(cluster.topics)

        await self._run_client(fetch_all)

    async def _run_client(
        self, operation: Callable[[RecordingCluster], Awaitable[None]], clients: GroupClients | None = None
    ) -> None:
        """Runs a client operation against a healthy cluster. Retries errors, because leaders may still change."""

        async def call() -> None:
            async with (clients or self._clients).open_cluster("observer") as cluster:
                retry = cluster.retry(RESPONSE_TIMEOUT_MS)
                while True:
                    try:
                        await operation(cluster)
                        return
                    except KafkaError as error:
                        await retry.wait_or_raise(error)

        await run_client(self.cluster.clients[0], call())


async def _read_replica(log: Log) -> LogContent:
    """Returns the offsets and values of all records, committed or not."""
    found: list[tuple[int, bytes]] = []
    position, end = log.start_offset, log.end_offset
    while position < end:
        batches = list(split_batches(memoryview((await log.read(position, READ_BYTES, end)).read())))
        if not batches:
            raise AssertionError(f"no batch at {position} of {log.name}, which ends at {end}")
        found += [
            (record.offset, record.value or b"")
            for batch in batches
            if not batch.is_control
            for record in iterate_records(batch)
        ]
        position = batches[-1].next_offset
    return found
