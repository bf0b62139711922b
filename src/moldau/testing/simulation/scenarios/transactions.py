"""The cluster scenario with transactions, in addition to all its other clients.

Producers share transactional ids and fence each other, commit, abort, and leave transactions to their timeout. Copiers
read from a topic and write to another one exactly once, and are killed and suspended. During the faults, no reader with
read_committed may see a record that is not committed, and transactions have one outcome. After healing, all
transactions end.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial

from moldau.client.consumer.fetcher import READ_COMMITTED, READ_UNCOMMITTED
from moldau.logs.store import Log
from moldau.records.control_records import end_of_transaction
from moldau.records.record import iterate_records
from moldau.settings.broker import BrokerSettings
from moldau.testing.simulation.ablations.transactions import ABLATIONS
from moldau.testing.simulation.checkers.history import Partition
from moldau.testing.simulation.checkers.history_groups import GroupHistory
from moldau.testing.simulation.checkers.history_transactions import (
    LoggedMarker,
    LoggedRecord,
    TransactionalLog,
    TransactionHistory,
    TransactionOutcome,
)
from moldau.testing.simulation.checkers.transactions import RecordStatus, check_transactions, record_statuses
from moldau.testing.simulation.platform.loop import EMPTY_CONTEXT
from moldau.testing.simulation.scenarios.client_process import ClientProcess, GroupClients
from moldau.testing.simulation.scenarios.cluster import METADATA_AGE_MS_MAX, OPERATIONS_MIN, READ_BYTES, ClusterScenario
from moldau.testing.simulation.scenarios.outcome import SimulationOutcome
from moldau.testing.simulation.workloads.client import split_batches
from moldau.testing.simulation.workloads.cluster import ReplicaMover, TopicPlan
from moldau.testing.simulation.workloads.group_requests import fetch_offsets
from moldau.testing.simulation.workloads.groups import ClusterFactory
from moldau.testing.simulation.workloads.recorder import RecordingCluster
from moldau.testing.simulation.workloads.transactions import (
    Copier,
    LateRequests,
    PlainRecordProducer,
    SentRequest,
    TransactionalProducer,
    TransactionReader,
    record_sent_requests,
)
from moldau.testing.simulation.workloads.workload import Workload
from moldau.transactions.state_topic import TRANSACTION_STATE_TOPIC

INPUT, OUTPUT, OTHER = "input", "output", "other"
COPIER_GROUP = "copiers"
COPIERS = 2
LATE = "late-requests"
TRANSACTIONS_MIN = 100


class TransactionsScenario(ClusterScenario):
    NAME = "transactions"
    ABLATIONS = ABLATIONS
    SWITCHES = {name: ablation.switch for name, ablation in ABLATIONS.items()}

    def __init__(self, seed: int, ablation: str | None = None) -> None:
        self._draw = draw = random.Random(f"{seed}/transactions")
        super().__init__(seed, ablation)
        self.transactions = TransactionHistory(copied_topic=INPUT)
        topics = (TopicPlan(INPUT, draw.randint(1, 2)), TopicPlan(OUTPUT, 2), TopicPlan(OTHER, 1))
        self._transactional_topics = topics
        self._written = [each for topic in topics if topic.name != OUTPUT for each in topic.partitions]
        self._inputs, self._outputs = topics[0].partitions, topics[1].partitions
        self._transaction_readers: list[TransactionReader] = []
        self._reader_tasks: list[asyncio.Task[None]] = []
        self._copiers: list[ClientProcess] = []
        self._are_copiers_disturbed = False
        """Whether copiers may be suspended, which ends with the faults."""
        self._sent_requests: list[SentRequest] = []
        self._copier_clients = GroupClients(
            self.cluster.simulation,
            self.cluster.clients,
            self.cluster.bootstrap,
            # Offsets that are committed in transactions are checked with the output, not as a register.
            GroupHistory(),
            metadata_max_age_ms=METADATA_AGE_MS_MAX,
        )

    def _settings(self, draw: random.Random, profile: str) -> BrokerSettings:
        settings = super()._settings(draw, profile)
        return replace(
            settings,
            transaction_state_log_num_partitions=self._draw.choice((1, 2)),
            transaction_state_log_segment_bytes=self._draw.choice((5_000, 100_000)),
        )

    def run(self) -> SimulationOutcome:
        with record_sent_requests(self._sent_requests, LATE):
            return super().run()

    def check(self) -> Iterable[object]:
        return [*super().check(), *check_transactions(self.transactions)]

    def add_counts(self) -> None:
        super().add_counts()
        outcomes = Counter(each.outcome for each in self.transactions.transactions if each.records)
        counts = self.cluster.outcome.counts
        counts["transactions committed"] = outcomes[TransactionOutcome.COMMITTED]
        counts["transactions aborted"] = outcomes[TransactionOutcome.ABORTED]
        counts["transactions unknown"] = outcomes[TransactionOutcome.UNKNOWN]
        counts["committed reads"] = sum(map(len, self.transactions.committed_reads.values()))

    # Clients

    async def _create_topics(self) -> None:
        await super()._create_topics()
        for topic in self._transactional_topics:
            await self._run_client(partial(topic.create, replication=self._replication))

    def _build_workloads(self) -> None:
        super()._build_workloads()
        history, open_cluster = self.transactions, self._copier_clients.open_cluster

        def common(name: str) -> tuple[str, random.Random, ClusterFactory]:
            return name, self.cluster.simulation.random_for(name), open_cluster

        ids = ("billing-0", "billing-1")
        self._workloads += [
            TransactionalProducer(*common(f"transactional-{number}"), ids, self._written, history)
            for number in range(3)
        ]
        if self._draw.random() < 0.5:
            self._workloads.append(
                TransactionalProducer(*common("transactional-tv1"), ("old-0",), self._written, history, is_tv1=True)
            )
        self._workloads.append(PlainRecordProducer(*common("plain"), self._written, history))
        self._workloads.append(LateRequests(*common(LATE), self._sent_requests))
        if self.cluster.plan.nodes > 1:
            moved = [*self._written, *self._outputs, (TRANSACTION_STATE_TOPIC, 0)]
            self._workloads.append(ReplicaMover(*common("mover"), moved, self.cluster.plan.nodes, self.records))
        everything = [*self._written, *self._outputs]
        for name, isolation_level in (("committed", READ_COMMITTED), ("uncommitted", READ_UNCOMMITTED)):
            positions = dict.fromkeys(everything, 0)
            self._transaction_readers.append(TransactionReader(*common(name), positions, isolation_level, history))

    def _build_members(self) -> None:
        super()._build_members()
        for number in range(COPIERS):
            create = partial(self._create_copier, number, f"copier-{number}")
            self._copiers.append(self._copier_clients.process(f"copier-{number}", create))

    def _create_copier(
        self, number: int, transactional_id: str, name: str, randomness: random.Random, open_cluster: ClusterFactory
    ) -> Copier:
        return Copier(
            name,
            randomness,
            open_cluster,
            COPIER_GROUP,
            transactional_id,
            INPUT,
            self._outputs,
            self.transactions,
            partial(self._suspend_copier, number),
        )

    def _suspend_copier(self, number: int, duration_s: float) -> None:
        """Pauses the host of a copier while there are faults. The copier itself calls this method."""
        loop, host = self.cluster.simulation.loop, self._copiers[number].host

        def pause() -> None:
            if self._are_copiers_disturbed and not host.is_paused:
                self.cluster.outcome.counts["copiers suspended"] += 1
                host.pause()
                loop.call_later(duration_s, host.resume, context=EMPTY_CONTEXT)

        loop.call_soon(pause, context=EMPTY_CONTEXT)

    async def _inject_faults(self) -> None:
        self._reader_tasks = self._spawn(self._transaction_readers)
        for copier in self._copiers:
            copier.start()
        kills = asyncio.get_running_loop().create_task(self._kill_copiers())
        self._are_copiers_disturbed = True
        try:
            await super()._inject_faults()
        finally:
            self._are_copiers_disturbed = False
            kills.cancel()

    async def _kill_copiers(self) -> None:
        """Kills and restarts copiers until cancelled. A killed copier leaves its transaction open."""
        draw = self.cluster.simulation.random_for("copier kills")
        while True:
            await asyncio.sleep(draw.uniform(0.5, 6))
            copier = draw.choice(self._copiers)
            copier.kill()
            self.cluster.outcome.counts["copiers killed"] += 1
            copier.start()

    # After healing

    async def _check_progress(self, workloads: Iterable[Workload], is_over: Callable[[], bool] = lambda: False) -> None:
        """Waits for enough transactions, too. From then on, stops each workload that has made progress.

        A producer that shares its transactional id may be fenced again and again, for half a minute. The other
        workloads would use this time only to repeat their operations without faults.
        """
        workloads = list(workloads)

        def stop_workloads() -> bool:
            if self._has_enough_operations():
                for workload in workloads:
                    if not workload.is_stuck:
                        workload.stop()
            return is_over()

        await super()._check_progress(workloads, stop_workloads)
        await self.cluster.outcome.wait_until(
            self._has_enough_operations, lambda: f"{OPERATIONS_MIN} operations and {TRANSACTIONS_MIN} transactions"
        )

    def _has_enough_operations(self) -> bool:
        transactions = sum(bool(each.records) for each in self.transactions.transactions)
        return self._operations() >= OPERATIONS_MIN and transactions >= TRANSACTIONS_MIN

    async def _wait_converged(self) -> None:
        await self._wait_copied()
        await self._wait_transactions_ended()
        await super()._wait_converged()
        for partition in (*self._written, *self._outputs):
            await self._read_transactional_replicas(partition)
        await self.cluster.outcome.wait_until(
            self._have_transaction_readers_finished, lambda: "readers of transactions have read everything"
        )
        for reader in self._transaction_readers:
            reader.stop()
        await asyncio.gather(*self._reader_tasks)
        await self._run_client(self._fetch_copier_offsets, self._copier_clients)

    async def _wait_transactions_ended(self) -> None:
        outcome, invariants = self.cluster.outcome, self.invariants
        await outcome.wait_until(
            lambda: not invariants.unfinished_transactions(),
            lambda: f"all transactions end: {invariants.unfinished_transactions()}",
        )
        await outcome.wait_until(
            lambda: not invariants.unstable_partitions(),
            lambda: f"all partitions are stable: {invariants.unstable_partitions()}",
        )

    async def _wait_copied(self) -> None:
        """Waits until all committed records of the input are copied, then stops the copiers."""
        outcome, invariants = self.cluster.outcome, self.invariants
        await outcome.wait_until(
            lambda: not any(each.startswith(f"{INPUT}-") for each in invariants.unstable_partitions()),
            lambda: f"{INPUT} is stable: {invariants.unstable_partitions()}",
        )
        ends = {each: await self._committed_end(each) for each in self._inputs}

        async def is_copied() -> bool:
            for copier in self._copiers:
                copier.start()
            await self._run_client(self._fetch_copier_offsets, self._copier_clients)
            return all(self.transactions.copier_offsets.get(each, 0) >= end for each, end in ends.items())

        if not await outcome.poll_until(is_copied) and not outcome.violations:
            outcome.add_violation(f"the copiers committed {self.transactions.copier_offsets} of {ends}")
        for copier in self._copiers:
            copier.stop()
            await copier.wait_stopped()

    async def _committed_end(self, partition: Partition) -> int:
        """Returns the offset after the last committed record."""
        leader = self.invariants.leader_of(partition)
        replica = self.invariants.replica(leader, partition) if leader > 0 else None
        if replica is None:
            self.cluster.outcome.add_violation(f"{partition[0]}-{partition[1]} has no leader after healing")
            return 0
        statuses = record_statuses(await self.cluster.server(leader).host.run(_read_log(replica.log)))
        committed = [offset for offset, status in statuses.items() if status is RecordStatus.COMMITTED]
        return max(committed, default=-1) + 1

    async def _fetch_copier_offsets(self, cluster: RecordingCluster) -> None:
        self.transactions.copier_offsets = await fetch_offsets(cluster, COPIER_GROUP, self._inputs)

    async def _read_transactional_replicas(self, partition: Partition) -> None:
        replicas: dict[int, TransactionalLog] = {}
        for server in self.cluster.servers:
            found = self.invariants.replica(server.node_id, partition)
            if found is not None:
                replicas[server.node_id] = await server.host.run(_read_log(found.log))
        leader = self.invariants.leader_of(partition)
        if leader in replicas:
            self.transactions.replicas[partition] = replicas
            self.transactions.logs[partition] = replicas[leader]
        else:
            self.cluster.outcome.add_violation(f"{partition[0]}-{partition[1]} has no leader after healing")

    def _have_transaction_readers_finished(self) -> bool:
        ends = {partition: log[-1].offset + 1 for partition, log in self.transactions.logs.items() if log}
        return all(
            reader.positions[partition] >= end
            for reader in self._transaction_readers
            for partition, end in ends.items()
        )


async def _read_log(log: Log) -> TransactionalLog:
    """Returns all records and markers of a log."""
    found: list[LoggedRecord | LoggedMarker] = []
    position, end = log.start_offset, log.end_offset
    while position < end:
        batches = list(split_batches(memoryview((await log.read(position, READ_BYTES, end)).read())))
        if not batches:
            raise AssertionError(f"no batch at {position} of {log.name}, which ends at {end}")
        for batch in batches:
            marker = end_of_transaction(batch) if batch.is_control else None
            if marker is not None:
                found.append(LoggedMarker(batch.base_offset, batch.producer_id, marker.commit))
                continue
            found += [
                LoggedRecord(record.offset, record.value or b"", batch.producer_id, batch.is_transactional)
                for record in iterate_records(batch)
            ]
        position = batches[-1].next_offset
    return found
