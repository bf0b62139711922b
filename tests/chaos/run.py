"""One run: boots the cluster, keeps clients at work, injects fault after fault, heals, and looks at what came out."""

import random
import shutil
import sys
import time
from collections import Counter
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic

from chaos.faults import FAULTS, Scene
from chaos.health import Health, NotWell
from chaos.machines import Machines
from chaos.traffic import Journal, Traffic
from moldau.testing.simulation.checker import check
from support.log_reader import all_records

TOPIC = "chaos"
PARTITIONS = 6
START_TIMEOUT_S = 60
DRAIN_TIMEOUT_S = 120


class ChaosRun:
    def __init__(self, directory: Path, seconds: float, seed: int, only: list[str]) -> None:
        self._directory = directory
        self._seconds = seconds
        self._draw = random.Random(seed)
        self._seed = seed
        self._kinds = [kind for kind in FAULTS if not only or any(word in kind for word in only)]
        self._partitions = [(TOPIC, index) for index in range(PARTITIONS)]
        self._journal = Journal()
        self._counts: Counter[str] = Counter()
        self._pauses: dict[str, float] = {}
        self._problems: list[str] = []

    def play(self, keep: Path | None) -> int:
        machines = Machines(self._directory, 3, self._seed, {})
        try:
            machines.start()
            health = Health(machines, self._partitions)
            health.wait(START_TIMEOUT_S)
            admin = AdminClient({"bootstrap.servers": machines.bootstrap, "log_level": 0})
            admin.create_topics([NewTopic(TOPIC, PARTITIONS, 3)])[TOPIC].result(30)
            traffic = Traffic(machines.bootstrap, self._partitions, self._journal)
            traffic.start()
            began = time.monotonic()
            scene = Scene(machines, health, self._draw)
            try:
                self._inject(scene, began + self._seconds)
            except NotWell as error:
                self._problems.append(f"not well: {error}")
            machines.switch.heal()
            self._finish(machines, traffic)
            packets = machines.switch.counts()
            late = machines.stop(60)
            if late:
                self._problems.append(f"nodes {late} did not stop when asked")
            return self._tell(time.monotonic() - began, scene.notes, packets)
        finally:
            if keep is not None:
                keep.mkdir(parents=True, exist_ok=True)
                for machine in machines.machines.values():
                    if machine.node.log_path.exists():
                        shutil.copy(machine.node.log_path, keep / f"node-{machine.node_id}.log")
            machines.close()

    def _inject(self, scene: Scene, until: float) -> None:
        """Every kind in turn, in a new order each round, so that each comes about as often as any other."""
        while time.monotonic() < until:
            round_ = list(self._kinds)
            self._draw.shuffle(round_)
            for kind in round_:
                if time.monotonic() >= until:
                    return
                scene.last(0, 1)
                began = time.monotonic()
                FAULTS[kind](scene)
                self._counts[kind] += 1
                took = scene.health.wait()
                pause = self._journal.longest_pause_s(began, time.monotonic())
                self._pauses[kind] = max(pause, self._pauses.get(kind, 0.0))
                _say(f"{kind}: no write for {pause:.1f} s, well {took:.1f} s after it ended")

    def _finish(self, machines: Machines, traffic: Traffic) -> None:
        traffic.stop_sending()
        history = self._journal.history
        for record in all_records(machines.bootstrap, TOPIC):
            history.logs.setdefault((TOPIC, record.partition), []).append(
                (record.offset, record.value or b"")
            )  # type: ignore[attr-defined]
        deadline = time.monotonic() + DRAIN_TIMEOUT_S
        while self._unseen() and time.monotonic() < deadline:
            time.sleep(0.2)
        traffic.stop_reading()
        self._problems += map(str, check(history))
        self._problems += [f"unseen: {count} records of {TOPIC}-{index}" for index, count in self._unseen()]
        self._problems += self._journal.failures

    def _unseen(self) -> list[tuple[int, int]]:
        """Records that are there and that no member of the group was given."""
        found = []
        for (_, index), log in self._journal.history.logs.items():
            delivered = self._journal.delivered.get((TOPIC, index), set())
            missing = sum(offset not in delivered for offset, _ in log)
            if missing:
                found.append((index, missing))
        return found

    def _tell(self, seconds: float, notes: list[str], packets: Counter[str]) -> int:
        sends = self._journal.history.sends
        acknowledged = sum(send.is_acknowledged for send in sends)
        width = max(map(len, self._kinds))
        _say(f"\n{'fault':{width}}  times  longest time without a write")
        for kind in self._kinds:
            _say(f"{kind:{width}}  {self._counts[kind]:5}  {self._pauses.get(kind, 0.0):5.1f} s")
        for note in notes:
            _say(f"note: {note}")
        _say(f"{', '.join(f'{count} {what}' for what, count in packets.items())}")
        read = sum(len(poll.records) for poll in self._journal.history.polls)
        _say(
            f"{seconds:.0f} s, {self._counts.total()} faults, {acknowledged} of {len(sends)} writes acknowledged, "
            f"{read} records read, anomalies: {len(self._problems)}"
        )
        for problem in self._problems[:50]:
            _say(f"  {problem}")
        return 1 if self._problems else 0


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
