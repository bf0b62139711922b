"""One run: boots the cluster, keeps clients at work, injects fault after fault, heals, and looks at what came out."""

import random
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from chaos.cluster import ChaosCluster
from chaos.consumers import check_committed
from chaos.faults import FAULTS, FaultContext, FaultSkipped
from chaos.health import Health, NotHealthy, wait_until_none
from chaos.operator import Operator, OperatorError
from chaos.recorder import HistoryRecorder
from chaos.replicas import differences
from chaos.report import FaultStats, render_report
from chaos.workload import Workload
from moldau.client.errors import KafkaError
from moldau.testing.simulation.checkers.records import check_records
from support.log_reader import all_records

TOPIC = "chaos"
PARTITIONS = 6
START_TIMEOUT_S = 60
STOP_TIMEOUT_S = 40
DRAIN_TIMEOUT_S = 60
"""For each thing that has to come to its end when faults are over."""
FAULT_INTERVAL_S_MAX = 0.3


class ChaosRun:
    def __init__(self, directory: Path, seconds: float, seed: int, only: list[str]) -> None:
        self._directory = directory
        self._seconds = seconds
        self._draw = random.Random(seed)
        self._seed = seed
        self._stats = FaultStats([kind for kind in FAULTS if not only or any(word in kind for word in only)])
        self._partitions = [(TOPIC, index) for index in range(PARTITIONS)]
        self._recorder = HistoryRecorder(self._partitions)
        self._problems: list[str] = []

    def run(self, keep: Path | None) -> int:
        machines = ChaosCluster(self._directory, 3, self._seed, {})
        try:
            machines.start()
            operator = Operator(machines)
            context = FaultContext(
                machines, Health(machines, operator, self._partitions), operator, self._draw
            )
            try:
                context.health.wait(START_TIMEOUT_S)
            except NotHealthy as error:
                said = [context.health.failure_reason(machine) for machine in machines.machines.values()]
                _print(f"the cluster does not start: {error}: {said}")
                return 1
            admin = AdminClient({"bootstrap.servers": machines.bootstrap, "log_level": 0})
            admin.create_topics([NewTopic(TOPIC, PARTITIONS, 3)])[TOPIC].result(30)
            traffic = Workload(machines.bootstrap, self._partitions, self._recorder)
            traffic.start()
            began = time.monotonic()
            try:
                self._inject(context, began + self._seconds)
            except (NotHealthy, OperatorError, KafkaException) as error:
                self._problems.append(f"stuck: {error}")
            self._stats.seconds = time.monotonic() - began
            machines.switch.heal()
            self._finish(machines, traffic)
            packets = machines.switch.counts()
            late = machines.stop(STOP_TIMEOUT_S)
            if late:
                self._problems.append(f"stuck: nodes {late} did not stop when asked")
            self._compare_replicas(machines)
            self._problems += context.anomalies + self._recorder.failures
            _print(render_report(self._stats, self._recorder, context.notes, packets, self._problems))
            return 1 if self._problems else 0
        finally:
            if keep is not None:
                keep.mkdir(parents=True, exist_ok=True)
                for machine in machines.machines.values():
                    if machine.node.log_path.exists():
                        shutil.copy(machine.node.log_path, keep / f"node-{machine.node_id}.log")
                    if self._problems:
                        shutil.copytree(
                            machine.data_dir, keep / f"node-{machine.node_id}", dirs_exist_ok=True
                        )
            machines.close()

    def _inject(self, context: FaultContext, until: float) -> None:
        """Every kind in turn, in a new order each round, so that each comes about as often as any other."""
        while time.monotonic() < until:
            round_ = list(self._stats.kinds)
            self._draw.shuffle(round_)
            for kind in round_:
                if time.monotonic() >= until:
                    return
                context.sleep_between(0, FAULT_INTERVAL_S_MAX)
                began = time.monotonic()
                try:
                    FAULTS[kind](context)
                    whole = time.monotonic()
                    context.health.wait()
                    wait_until_none(self._without_acks_since(whole), DRAIN_TIMEOUT_S)
                except FaultSkipped as error:
                    context.notes.append(f"not injected: {kind}: {error}")
                    continue
                except (NotHealthy, OperatorError, KafkaException) as error:
                    raise NotHealthy(f"{kind}: {error}") from error
                ended = time.monotonic()
                pause_s = self._recorder.longest_pause_s(began, ended)
                self._stats.note(kind, pause_s, ended - began)
                _print(
                    f"{kind}: it took {whole - began:.1f} s and {ended - whole:.1f} s more until all was well; "
                    f"no write to some partition for {pause_s:.1f} s"
                )

    def _without_acks_since(self, moment: float) -> Callable[[], str | None]:
        def is_silent() -> str | None:
            silent = self._recorder.partitions_without_acks_since(moment)
            return f"no write to {silent} is acknowledged" if silent else None

        return is_silent

    def _finish(self, machines: ChaosCluster, traffic: Workload) -> None:
        traffic.stop_sending(DRAIN_TIMEOUT_S)
        history = self._recorder.history
        try:
            records = all_records(machines.bootstrap, TOPIC, DRAIN_TIMEOUT_S)
        except (KafkaError, TimeoutError) as error:
            self._problems.append(f"stuck: the topic cannot be read to its end: {error!r}")
            records = []
        logs: dict[tuple[str, int], list[tuple[int, bytes]]] = {}
        for record in records:
            logs.setdefault((TOPIC, record.partition), []).append((record.offset, record.value or b""))
        history.logs.update(logs)
        deadline = time.monotonic() + DRAIN_TIMEOUT_S
        while self._undelivered() and time.monotonic() < deadline:
            time.sleep(0.2)
        traffic.stop_reading(DRAIN_TIMEOUT_S)
        check_committed(machines.bootstrap, self._recorder, self._partitions)
        self._problems += map(str, check_records(history))
        self._problems += [
            f"unseen: {count} records of {TOPIC}-{index}" for index, count in self._undelivered()
        ]

    def _undelivered(self) -> list[tuple[int, int]]:
        """Records that are there and that no member of the group was given."""
        found = []
        for (_, index), log in self._recorder.history.logs.items():
            delivered = self._recorder.delivered.get((TOPIC, index), set())
            missing = sum(offset not in delivered for offset, _ in log)
            if missing:
                found.append((index, missing))
        return found

    def _compare_replicas(self, machines: ChaosCluster) -> None:
        logs = self._recorder.history.logs
        ends = {partition: log[-1][0] + 1 for partition, log in logs.items() if log}
        data_dirs = {node_id: machine.data_dir for node_id, machine in machines.machines.items()}
        try:
            self._problems += differences(data_dirs, self._partitions, ends)
        except (OSError, AssertionError) as error:
            self._problems.append(f"replicas cannot be compared: {error}")


def _print(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
