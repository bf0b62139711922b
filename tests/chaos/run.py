"""One run: starts the cluster and its clients, injects faults, heals, and checks the result."""

import random
import shutil
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from chaos.cluster import ChaosCluster
from chaos.consumers import check_committed
from chaos.faults import FAULTS, FaultContext, FaultSkipped
from chaos.health import ClusterUnhealthy, Health, wait_until_none
from chaos.operator import Operator, OperatorError
from chaos.recorder import HistoryRecorder
from chaos.replicas import differences
from chaos.report import FaultStats, render_report
from chaos.transaction_recorder import TransactionRecorder, transactional_log
from chaos.workload import COMMITTED_READERS, TRANSACTIONAL_PRODUCERS, UNCOMMITTED_READERS, Workload
from moldau.client.errors import KafkaError
from moldau.client.record import ConsumerRecord
from moldau.testing.simulation.checkers.history import Partition
from moldau.testing.simulation.checkers.records import check_records
from moldau.testing.simulation.checkers.transactions import check_transactions
from support.log_reader import all_records, committed_records

TOPIC, TRANSACTIONS_TOPIC = "chaos", "chaos-transactions"
PARTITIONS = 6
SETTINGS = {"transaction.state.log.num.partitions": "4"}
START_TIMEOUT_S = 60
STOP_TIMEOUT_S = 40
DRAIN_TIMEOUT_S = 60
"""Time limit for each step after the faults."""
FAULT_INTERVAL_S_MAX = 0.3


class ChaosRun:
    def __init__(self, directory: Path, seconds: float, seed: int, only: list[str]) -> None:
        self._directory = directory
        self._seconds = seconds
        self._draw = random.Random(seed)
        self._seed = seed
        self._stats = FaultStats([kind for kind in FAULTS if not only or any(word in kind for word in only)])
        self._partitions = [(TOPIC, index) for index in range(PARTITIONS)]
        self._transaction_partitions = [(TRANSACTIONS_TOPIC, index) for index in range(PARTITIONS)]
        self._recorder = HistoryRecorder(self._partitions)
        self._transaction_recorder = TransactionRecorder(
            self._transaction_partitions, COMMITTED_READERS, UNCOMMITTED_READERS
        )
        self._anomalies: list[str] = []

    def run(self, keep: Path | None) -> int:
        cluster = ChaosCluster(self._directory, 3, self._seed, SETTINGS)
        try:
            cluster.start()
            operator = Operator(cluster)
            health = Health(cluster, operator, [*self._partitions, *self._transaction_partitions])
            context = FaultContext(cluster, health, operator, self._draw)
            try:
                context.health.wait(START_TIMEOUT_S)
            except ClusterUnhealthy as error:
                output = [context.health.failure_reason(machine) for machine in cluster.machines.values()]
                _print(f"the cluster did not start: {error}: {output}")
                return 1
            admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
            topics = [NewTopic(topic, PARTITIONS, 3) for topic in (TOPIC, TRANSACTIONS_TOPIC)]
            for created in admin.create_topics(topics).values():
                created.result(30)
            workload = Workload(
                cluster.bootstrap,
                self._partitions,
                self._recorder,
                self._transaction_partitions,
                self._transaction_recorder,
            )
            workload.start()
            started_at = time.monotonic()
            try:
                self._inject(context, started_at + self._seconds)
            except (ClusterUnhealthy, OperatorError, KafkaException) as error:
                self._anomalies.append(f"stuck: {error}")
            self._stats.seconds = time.monotonic() - started_at
            cluster.switch.heal()
            self._finish(cluster, workload)
            packets = cluster.switch.counts()
            not_stopped = cluster.stop(STOP_TIMEOUT_S)
            if not_stopped:
                self._anomalies.append(f"stuck: nodes {not_stopped} did not stop in time")
            self._compare_replicas(cluster)
            self._check_transactions(cluster)
            self._anomalies += context.anomalies + self._recorder.failures
            _print(
                render_report(
                    self._stats, self._recorder, self._transaction_recorder, context.notes, packets, self._anomalies
                )
            )
            return 1 if self._anomalies else 0
        finally:
            if keep is not None:
                keep.mkdir(parents=True, exist_ok=True)
                for machine in cluster.machines.values():
                    if machine.node.log_path.exists():
                        shutil.copy(machine.node.log_path, keep / f"node-{machine.node_id}.log")
                    if self._anomalies:
                        shutil.copytree(machine.data_dir, keep / f"node-{machine.node_id}", dirs_exist_ok=True)
            cluster.close()

    def _inject(self, context: FaultContext, until: float) -> None:
        """Injects all kinds of faults in a new order each round, so that all are equally frequent."""
        while time.monotonic() < until:
            kinds = list(self._stats.kinds)
            self._draw.shuffle(kinds)
            for kind in kinds:
                if time.monotonic() >= until:
                    return
                context.sleep(0, FAULT_INTERVAL_S_MAX)
                started_at = time.monotonic()
                try:
                    FAULTS[kind](context)
                    healed_at = time.monotonic()
                    context.health.wait()
                    wait_until_none(self._without_progress_since(healed_at), DRAIN_TIMEOUT_S)
                except FaultSkipped as error:
                    context.notes.append(f"not injected: {kind}: {error}")
                    continue
                except (ClusterUnhealthy, OperatorError, KafkaException) as error:
                    raise ClusterUnhealthy(f"{kind}: {error}") from error
                recovered_at = time.monotonic()
                pause_s = self._recorder.longest_pause_s(started_at, recovered_at)
                self._stats.add(kind, pause_s, recovered_at - started_at)
                _print(
                    f"{datetime.now(UTC):%H:%M:%S} {kind}: {healed_at - started_at:.1f} s, "
                    f"healthy after {recovered_at - healed_at:.1f} s more; "
                    f"longest pause of writes to a partition {pause_s:.1f} s"
                )

    def _without_progress_since(self, moment: float) -> Callable[[], str | None]:
        def find_problem() -> str | None:
            silent = self._recorder.partitions_without_acks_since(moment)
            if silent:
                return f"no write to {silent} was acknowledged"
            stuck = self._transaction_recorder.producers_without_commit_since(moment, TRANSACTIONAL_PRODUCERS)
            return f"{stuck} have committed no transaction" if stuck else None

        return find_problem

    def _finish(self, cluster: ChaosCluster, workload: Workload) -> None:
        workload.stop_sending(DRAIN_TIMEOUT_S)
        history = self._recorder.history
        try:
            records = all_records(cluster.bootstrap, TOPIC, DRAIN_TIMEOUT_S)
        except (KafkaError, TimeoutError) as error:
            self._anomalies.append(f"stuck: the topic cannot be read to its end: {error!r}")
            records = []
        logs: dict[tuple[str, int], list[tuple[int, bytes]]] = {}
        for record in records:
            logs.setdefault((TOPIC, record.partition), []).append((record.offset, record.value or b""))
        history.logs.update(logs)
        self._read_transactions(cluster)
        deadline = time.monotonic() + DRAIN_TIMEOUT_S
        while self._undelivered() and time.monotonic() < deadline:
            time.sleep(0.2)
        workload.stop_reading(DRAIN_TIMEOUT_S)
        check_committed(cluster.bootstrap, self._recorder, self._partitions)
        self._anomalies += map(str, check_records(history))
        self._anomalies += [f"unseen: {count} records of {TOPIC}-{index}" for index, count in self._undelivered()]

    def _read_transactions(self, cluster: ChaosCluster) -> None:
        """Waits until no transaction is open, and until all readers have got the last record of each partition."""
        try:
            committed = committed_records(cluster.bootstrap, TRANSACTIONS_TOPIC, DRAIN_TIMEOUT_S)
            records = all_records(cluster.bootstrap, TRANSACTIONS_TOPIC, DRAIN_TIMEOUT_S)
        except (KafkaError, TimeoutError) as error:
            self._anomalies.append(f"stuck: a transaction is open, or its topic cannot be read: {error!r}")
            return
        last_committed, last = _last_offsets(committed), _last_offsets(records)

        def find_problem() -> str | None:
            behind = self._transaction_recorder.readers_before(last_committed, last)
            return f"{behind} have not read to the end" if behind else None

        try:
            wait_until_none(find_problem, DRAIN_TIMEOUT_S)
        except ClusterUnhealthy as error:
            self._anomalies.append(f"stuck: {error}")

    def _check_transactions(self, cluster: ChaosCluster) -> None:
        """Checks the transactions against the files of the stopped nodes."""
        history = self._transaction_recorder.history
        try:
            for partition in self._transaction_partitions:
                history.replicas[partition] = {
                    node_id: transactional_log(machine.data_dir, partition)
                    for node_id, machine in cluster.machines.items()
                }
                history.logs[partition] = history.replicas[partition][1]
        except (OSError, AssertionError) as error:
            self._anomalies.append(f"replicas of transactions cannot be read: {error}")
        self._anomalies += map(str, check_transactions(history))

    def _undelivered(self) -> list[tuple[int, int]]:
        """Returns partitions and counts of records that no group member received."""
        found = []
        for (_, index), log in self._recorder.history.logs.items():
            delivered = self._recorder.delivered.get((TOPIC, index), set())
            missing = sum(offset not in delivered for offset, _ in log)
            if missing:
                found.append((index, missing))
        return found

    def _compare_replicas(self, cluster: ChaosCluster) -> None:
        logs = self._recorder.history.logs
        ends = {partition: log[-1][0] + 1 for partition, log in logs.items() if log}
        data_dirs = {node_id: machine.data_dir for node_id, machine in cluster.machines.items()}
        try:
            self._anomalies += differences(data_dirs, self._partitions, ends)
        except (OSError, AssertionError) as error:
            self._anomalies.append(f"replicas cannot be compared: {error}")


def _last_offsets(records: list[ConsumerRecord]) -> dict[Partition, int]:
    return {(record.topic, record.partition): record.offset for record in records}


def _print(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
