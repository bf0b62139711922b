"""The faults, each with its end: what it breaks is whole again when it returns, or will be by the node's own doing."""

import random
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from chaos.damage import KINDS, cut_tail, files_of, flip_a_bit
from chaos.health import Health
from chaos.machines import Machine, Machines
from chaos.switch import Weather

STOP_TIMEOUT_S = 40


@dataclass(slots=True)
class Scene:
    """What a fault may touch and ask."""

    machines: Machines
    health: Health
    draw: random.Random
    notes: list[str] = field(default_factory=list)
    """What an operator would have had to do, and what nodes said."""

    def anyone(self) -> Machine:
        return self.draw.choice(list(self.machines.machines.values()))

    def leader(self) -> Machine:
        return self.machines.machines[self.health.leader(self.draw)]

    def follower(self) -> Machine:
        leader = self.health.leader(self.draw)
        return self.draw.choice([each for number, each in self.machines.machines.items() if number != leader])

    def controller(self) -> Machine:
        return self.machines.machines[self.health.controller()]

    def last(self, at_least_s: float, at_most_s: float) -> None:
        time.sleep(self.draw.uniform(at_least_s, at_most_s))


def _kill(scene: Scene, machine: Machine) -> None:
    machine.kill()
    scene.last(0.5, 4)
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
        scene.last(0, 1)
        machine.start()


def pause(scene: Scene) -> None:
    machine = scene.draw.choice((scene.leader(), scene.controller(), scene.anyone()))
    machine.signal(signal.SIGSTOP)
    scene.last(0.5, 8)
    machine.signal(signal.SIGCONT)


def cut_power(scene: Scene) -> None:
    scene.machines.cut_power()
    for machine in scene.machines.machines.values():
        machine.start()


def rolling_restart(scene: Scene) -> None:
    for machine in scene.machines.machines.values():
        process = machine.node.process
        assert process is not None
        machine.signal(signal.SIGTERM)
        try:
            process.wait(STOP_TIMEOUT_S)
        except TimeoutError:
            scene.notes.append(f"node {machine.node_id} did not stop in {STOP_TIMEOUT_S} s")
            process.kill()
            process.wait()
        machine.node.process = None
        machine.start()
        scene.health.wait()


# The network


def _others(scene: Scene, machine: Machine) -> list[str]:
    return [each.address for each in scene.machines.machines.values() if each is not machine]


def full_partition(scene: Scene) -> None:
    """One node hears nothing of the others and they nothing of it; clients reach all."""
    machine = scene.draw.choice((scene.leader(), scene.controller(), scene.anyone()))
    for other in _others(scene, machine):
        scene.machines.switch.cut(machine.address, other)
        scene.machines.switch.cut(other, machine.address)
    scene.last(1, 10)
    scene.machines.switch.heal()


def isolation(scene: Scene) -> None:
    """From clients too: silently gone."""
    machine = scene.draw.choice((scene.leader(), scene.controller()))
    for other in [*_others(scene, machine), scene.machines.outside.address]:
        scene.machines.switch.cut(machine.address, other)
        scene.machines.switch.cut(other, machine.address)
    scene.last(4, 10)
    scene.machines.switch.heal()


def one_way_partition(scene: Scene) -> None:
    machine = scene.draw.choice((scene.leader(), scene.controller(), scene.anyone()))
    outward = scene.draw.random() < 0.5
    for other in _others(scene, machine):
        scene.machines.switch.cut(*((machine.address, other) if outward else (other, machine.address)))
    scene.last(1, 10)
    scene.machines.switch.heal()


def one_link_cut(scene: Scene) -> None:
    """Two nodes do not hear each other; a third hears both."""
    one, other = scene.draw.sample(list(scene.machines.machines.values()), 2)
    scene.machines.switch.cut(one.address, other.address)
    scene.machines.switch.cut(other.address, one.address)
    scene.last(1, 10)
    scene.machines.switch.heal()


def _weather(scene: Scene, weather: Weather) -> None:
    addresses = [each.address for each in scene.machines.machines.values()]
    addresses.append(scene.machines.outside.address)
    for source in addresses:
        for target in addresses:
            if source != target:
                scene.machines.switch.weather(source, target, weather)
    scene.last(2, 6)
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
    machine.disk.fill()
    scene.last(2, 6)
    machine.disk.empty()
    if not machine.is_running:
        # A node that cannot keep its metadata stops; with room again it is started again.
        scene.notes.append(f"node {machine.node_id} stopped on a full disk and was started again")
        machine.node.process = None
        machine.start()


def cut_tail_of_a_file(scene: Scene) -> None:
    machine = scene.anyone()
    machine.kill()
    kind = scene.draw.choice(("segment", "group log", "metadata log"))
    files = files_of(machine.data_dir, kind)
    if files:
        cut_tail(scene.draw.choice(files), scene.draw)
    _start_damaged(scene, machine, kind)


def flip(kind: str) -> Callable[[Scene], None]:
    def flip_one(scene: Scene) -> None:
        machine = scene.anyone()
        machine.kill()
        files = files_of(machine.data_dir, kind)
        if files:
            flip_a_bit(scene.draw.choice(files), scene.draw)
        else:
            scene.notes.append(f"there was no {kind} to damage on node {machine.node_id}")
        _start_damaged(scene, machine, kind)

    flip_one.__name__ = f"flip in {kind}"
    return flip_one


def _start_damaged(scene: Scene, machine: Machine, kind: str) -> None:
    """Starts it; if it refuses, or a partition stays offline, does as its message says: the data is moved away, and the
    node comes back with a new disk."""
    machine.start()
    if scene.health.comes_back(machine):
        return
    scene.notes.append(f"node {machine.node_id} after damage to a {kind}: {scene.health.why_not(machine)}")
    scene.health.replace_disk(machine)


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
    "tail truncated": cut_tail_of_a_file,
    **{f"bit flipped: {kind}": flip(kind) for kind in KINDS},
}
