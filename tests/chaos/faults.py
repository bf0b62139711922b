"""The faults, each with its end: what it breaks is whole again when it returns, or will be by the node's own doing."""

import random
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from chaos.damage import BEING_WRITTEN, KINDS, cut_tail, files_of, flip_a_bit
from chaos.health import Health
from chaos.machines import Machine, Machines
from chaos.operating import Operator
from chaos.shim import Shim
from chaos.switch import Weather

STOP_TIMEOUT_S = 40


class NotNow(Exception):
    """The fault could not be injected: there is no such file yet, or this machine lacks what it needs."""


@dataclass(slots=True)
class Scene:
    """What a fault may touch and ask."""

    machines: Machines
    health: Health
    operator: Operator
    draw: random.Random
    notes: list[str] = field(default_factory=list)
    """What an operator had to do, and what nodes said."""
    anomalies: list[str] = field(default_factory=list)

    def anyone(self) -> Machine:
        return self.draw.choice(list(self.machines.machines.values()))

    def leader(self) -> Machine:
        return self.machines.machines[self.health.leader(self.draw)]

    def follower(self) -> Machine:
        leader = self.health.leader(self.draw)
        return self.draw.choice([each for number, each in self.machines.machines.items() if number != leader])

    def controller(self) -> Machine:
        return self.machines.machines[self.health.controller()]

    def shim(self, machine: Machine) -> Shim:
        if machine.shim is None:
            raise NotNow("it needs a C compiler, which this machine does not have")
        return machine.shim

    def last(self, at_least_s: float, at_most_s: float) -> None:
        time.sleep(self.draw.uniform(at_least_s, at_most_s))


def _kill(scene: Scene, machine: Machine) -> None:
    machine.kill()
    scene.last(0.3, 2.5)
    machine.start()


def kill_leader(scene: Scene) -> None:
    _kill(scene, scene.leader())


def kill_follower(scene: Scene) -> None:
    _kill(scene, scene.follower())


def kill_controller(scene: Scene) -> None:
    _kill(scene, scene.controller())


def kill_all(scene: Scene) -> None:
    machines = list(scene.machines.machines.values())
    for machine in machines:
        machine.kill()
    scene.draw.shuffle(machines)
    for machine in machines:
        scene.last(0, 0.7)
        machine.start()


def pause(scene: Scene) -> None:
    machine = scene.draw.choice((scene.leader(), scene.controller(), scene.anyone()))
    machine.signal(signal.SIGSTOP)
    scene.last(0.5, 6)
    machine.signal(signal.SIGCONT)


def cut_power(scene: Scene) -> None:
    scene.machines.cut_power()
    for machine in scene.machines.machines.values():
        machine.start()


def rolling_restart(scene: Scene) -> None:
    for machine in scene.machines.machines.values():
        if not machine.stop(STOP_TIMEOUT_S):
            scene.anomalies.append(f"stuck: node {machine.node_id} did not stop in {STOP_TIMEOUT_S} s")
        machine.start()
        scene.health.wait()


# The network


def full_partition(scene: Scene) -> None:
    """One node hears nothing of the others and they nothing of it; clients reach all."""
    machine = scene.draw.choice((scene.leader(), scene.controller(), scene.anyone()))
    scene.machines.cut_off(machine, clients_too=False)
    scene.last(1, 6)
    scene.machines.switch.heal()


def isolation(scene: Scene) -> None:
    """From clients too: silently gone."""
    machine = scene.draw.choice((scene.leader(), scene.controller()))
    scene.machines.cut_off(machine, clients_too=True)
    scene.last(3, 6)
    scene.machines.switch.heal()


def one_way_partition(scene: Scene) -> None:
    machine = scene.draw.choice((scene.leader(), scene.controller(), scene.anyone()))
    outward = scene.draw.random() < 0.5
    for other in scene.machines.machines.values():
        if other is not machine:
            way = (machine, other) if outward else (other, machine)
            scene.machines.switch.cut(way[0].address, way[1].address)
    scene.last(1, 6)
    scene.machines.switch.heal()


def one_link_cut(scene: Scene) -> None:
    """Two nodes do not hear each other; a third hears both."""
    one, other = scene.draw.sample(list(scene.machines.machines.values()), 2)
    scene.machines.cut(one, other)
    scene.last(1, 6)
    scene.machines.switch.heal()


def _weather(scene: Scene, weather: Weather) -> None:
    addresses = [each.address for each in scene.machines.machines.values()]
    addresses.append(scene.machines.outside.address)
    for source in addresses:
        for target in addresses:
            if source != target:
                scene.machines.switch.weather(source, target, weather)
    scene.last(1.5, 4)
    scene.machines.switch.heal()


def delay(scene: Scene) -> None:
    _weather(scene, Weather(delay_ms=scene.draw.uniform(5, 150)))


def loss(scene: Scene) -> None:
    _weather(scene, Weather(delay_ms=1, loss=scene.draw.uniform(0.01, 0.15)))


def duplication(scene: Scene) -> None:
    _weather(scene, Weather(delay_ms=1, duplication=scene.draw.uniform(0.05, 0.5)))


def reordering(scene: Scene) -> None:
    _weather(scene, Weather(delay_ms=1, jitter_ms=scene.draw.uniform(5, 50)))


# The disk


def full_disk(scene: Scene) -> None:
    machine = scene.draw.choice((scene.leader(), scene.anyone()))
    with _restarted_if_hurt(scene, machine, "a full disk"):
        machine.disk.fill()
        scene.last(1.5, 4)
        machine.disk.empty()


def failing_syncs(scene: Scene) -> None:
    machine = scene.draw.choice((scene.leader(), scene.anyone()))
    shim = scene.shim(machine)
    with _restarted_if_hurt(scene, machine, "syncs that failed"):
        shim.tell(sync_fails=True)
        scene.last(0.2, 2)
        shim.tell()


@contextmanager
def _restarted_if_hurt(scene: Scene, machine: Machine, after: str) -> Iterator[None]:
    """A node that cannot keep its metadata ends, and one that lost trust in its disk keeps partitions offline: when the
    disk is well again it is started again."""
    said = len(machine.node.output())
    yield
    news = machine.node.output()[said:].splitlines()
    hurt = [line for line in news if "is offline" in line or "cannot go on" in line]
    if hurt:
        scene.notes.append(f"node {machine.node_id} was started again after {after}: {hurt[0]}")
        machine.kill()
        machine.start()


def slow_syncs(scene: Scene) -> None:
    machine = scene.draw.choice((scene.leader(), scene.anyone()))
    scene.shim(machine).tell(sync_ms=scene.draw.choice((20, 100, 500)))
    scene.last(1.5, 4)
    scene.shim(machine).tell()


def clock_jump(scene: Scene) -> None:
    """There and back again. Not an hour back: to such a broker the records of all clients come from the future, and it
    refuses them, as message.timestamp.after.max.ms has it."""
    machine = scene.anyone()
    hours = scene.draw.choice((-0.9, 0.9, 24))
    scene.shim(machine).tell(clock_ms=int(hours * 3_600_000))
    scene.last(1, 3)
    scene.shim(machine).tell()


def cut_tail_of_a_file(scene: Scene) -> None:
    _damage(scene, scene.draw.choice(BEING_WRITTEN), cut_tail)


def flip(kind: str) -> Callable[[Scene], None]:
    return lambda scene: _damage(scene, kind, flip_a_bit)


def _damage(scene: Scene, kind: str, damage: Callable[[Path, random.Random], int]) -> None:
    machines = [each for each in scene.machines.machines.values() if files_of(each.data_dir, kind)]
    if not machines:
        raise NotNow(f"no node has a {kind}")
    machine = scene.draw.choice(machines)
    machine.kill()
    damage(scene.draw.choice(files_of(machine.data_dir, kind)), scene.draw)
    _start_damaged(scene, machine, kind)


def _start_damaged(scene: Scene, machine: Machine, kind: str) -> None:
    """Starts it. If it refuses, or does not get well by itself, does as its message says: the data is moved away, and
    the node comes back with an empty disk."""
    machine.start()
    if scene.health.comes_back(machine):
        return
    scene.notes.append(f"node {machine.node_id} after damage to its {kind}: {scene.health.why_not(machine)}")
    if machine.is_running and scene.health.lost_vote(machine):
        scene.operator.give_vote_back(machine)
    else:
        scene.operator.replace_disk(machine)


FAULTS: Mapping[str, Callable[[Scene], None]] = {
    "leader killed": kill_leader,
    "follower killed": kill_follower,
    "controller killed": kill_controller,
    "all killed at once": kill_all,
    "paused and resumed": pause,
    "power cut of all": cut_power,
    "rolling restart": rolling_restart,
    "full partition": full_partition,
    "silent isolation": isolation,
    "one-way partition": one_way_partition,
    "one link cut": one_link_cut,
    "delay": delay,
    "loss": loss,
    "duplication": duplication,
    "reordering": reordering,
    "disk full": full_disk,
    "syncs fail": failing_syncs,
    "syncs are slow": slow_syncs,
    "clock jumps": clock_jump,
    "tail truncated": cut_tail_of_a_file,
    **{f"bit flipped: {kind}": flip(kind) for kind in KINDS},
}
