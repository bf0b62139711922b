"""One run: boots the cluster, keeps clients at work, injects fault after fault, heals, and looks at what came out."""

import random
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from chaos.faults import FAULTS, NotNow, Scene
from chaos.health import Health, NotWell, wait_for_nothing
from chaos.journal import Journal
from chaos.machines import Machines
from chaos.operating import NotPossible, Operator
from chaos.reading import check_committed
from chaos.replicas import differences
from chaos.table import Tally, table
from chaos.traffic import Traffic
from moldau.client.errors import KafkaError
from moldau.testing.simulation.checkers.records import check
from support.log_reader import all_records

TOPIC = "chaos"
PARTITIONS = 6
START_TIMEOUT_S = 60
STOP_TIMEOUT_S = 40
DRAIN_TIMEOUT_S = 60
"""For each thing that has to come to its end when faults are over."""
BETWEEN_S = 0.3


class ChaosRun:
    def __init__(self, directory: Path, seconds: float, seed: int, only: list[str]) -> None:
        self._directory = directory
        self._seconds = seconds
        self._draw = random.Random(seed)
        self._seed = seed
        self._tally = Tally([kind for kind in FAULTS if not only or any(word in kind for word in only)])
        self._partitions = [(TOPIC, index) for index in range(PARTITIONS)]
        self._journal = Journal(self._partitions)
        self._problems: list[str] = []

    def play(self, keep: Path | None) -> int:
        machines = Machines(self._directory, 3, self._seed, {})
        try:
            machines.start()
            operator = Operator(machines)
            scene = Scene(machines, Health(machines, operator, self._partitions), operator, self._draw)
            try:
                scene.health.wait(START_TIMEOUT_S)
            except NotWell as error:
                said = [scene.health.why_not(machine) for machine in machines.machines.values()]
                _say(f"the cluster does not start: {error}: {said}")
                return 1
            admin = AdminClient({"bootstrap.servers": machines.bootstrap, "log_level": 0})
            admin.create_topics([NewTopic(TOPIC, PARTITIONS, 3)])[TOPIC].result(30)
            traffic = Traffic(machines.bootstrap, self._partitions, self._journal)
            traffic.start()
            began = time.monotonic()
            try:
                self._inject(scene, began + self._seconds)
            except (NotWell, NotPossible, KafkaException) as error:
                self._problems.append(f"stuck: {error}")
            self._tally.seconds = time.monotonic() - began
            machines.switch.heal()
            self._finish(machines, traffic)
            packets = machines.switch.counts()
            late = machines.stop(STOP_TIMEOUT_S)
            if late:
                self._problems.append(f"stuck: nodes {late} did not stop when asked")
            self._compare_replicas(machines)
            self._problems += scene.anomalies + self._journal.failures
            _say(table(self._tally, self._journal, scene.notes, packets, self._problems))
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

    def _inject(self, scene: Scene, until: float) -> None:
        """Every kind in turn, in a new order each round, so that each comes about as often as any other."""
        while time.monotonic() < until:
            round_ = list(self._tally.kinds)
            self._draw.shuffle(round_)
            for kind in round_:
                if time.monotonic() >= until:
                    return
                scene.last(0, BETWEEN_S)
                began = time.monotonic()
                try:
                    FAULTS[kind](scene)
                    whole = time.monotonic()
                    scene.health.wait()
                    wait_for_nothing(self._is_silent_since(whole), DRAIN_TIMEOUT_S)
                except NotNow as error:
                    scene.notes.append(f"not injected: {kind}: {error}")
                    continue
                except (NotWell, NotPossible, KafkaException) as error:
                    raise NotWell(f"{kind}: {error}") from error
                ended = time.monotonic()
                pause_s = self._journal.longest_pause_s(began, ended)
                self._tally.note(kind, pause_s, ended - began)
                _say(
                    f"{kind}: it took {whole - began:.1f} s and {ended - whole:.1f} s more until all was well; "
                    f"no write to some partition for {pause_s:.1f} s"
                )

    def _is_silent_since(self, moment: float) -> Callable[[], str | None]:
        def is_silent() -> str | None:
            silent = self._journal.silent_since(moment)
            return f"no write to {silent} is acknowledged" if silent else None

        return is_silent

    def _finish(self, machines: Machines, traffic: Traffic) -> None:
        traffic.stop_sending(DRAIN_TIMEOUT_S)
        history = self._journal.history
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
        while self._unseen() and time.monotonic() < deadline:
            time.sleep(0.2)
        traffic.stop_reading(DRAIN_TIMEOUT_S)
        check_committed(machines.bootstrap, self._journal, self._partitions)
        self._problems += map(str, check(history))
        self._problems += [f"unseen: {count} records of {TOPIC}-{index}" for index, count in self._unseen()]

    def _unseen(self) -> list[tuple[int, int]]:
        """Records that are there and that no member of the group was given."""
        found = []
        for (_, index), log in self._journal.history.logs.items():
            delivered = self._journal.delivered.get((TOPIC, index), set())
            missing = sum(offset not in delivered for offset, _ in log)
            if missing:
                found.append((index, missing))
        return found

    def _compare_replicas(self, machines: Machines) -> None:
        logs = self._journal.history.logs
        ends = {partition: log[-1][0] + 1 for partition, log in logs.items() if log}
        data_dirs = {node_id: machine.data_dir for node_id, machine in machines.machines.items()}
        try:
            self._problems += differences(data_dirs, self._partitions, ends)
        except (OSError, AssertionError) as error:
            self._problems.append(f"replicas cannot be compared: {error}")


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
