"""The faults, each with its end: what it breaks is whole again when it returns, or will be by the node's own doing."""

import random
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from chaos.cluster import ChaosCluster, Machine
from chaos.corruption import ACTIVE_FILE_KINDS, FILE_KINDS, find_files, flip_bit, truncate_tail
from chaos.health import Health
from chaos.operator import Operator
from chaos.shim import Shim
from chaos.switch import LinkQuality

STOP_TIMEOUT_S = 40


class FaultSkipped(Exception):
    """The fault could not be injected: there is no such file yet, or this machine lacks what it needs."""


@dataclass(slots=True)
class FaultContext:
    """What a fault may touch and ask."""

    machines: ChaosCluster
    health: Health
    operator: Operator
    draw: random.Random
    notes: list[str] = field(default_factory=list)
    """What an operator had to do, and what nodes said."""
    anomalies: list[str] = field(default_factory=list)

    def random_machine(self) -> Machine:
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
            raise FaultSkipped("it needs a C compiler, which this machine does not have")
        return machine.shim

    def sleep_between(self, min_s: float, max_s: float) -> None:
        time.sleep(self.draw.uniform(min_s, max_s))


def _kill(context: FaultContext, machine: Machine) -> None:
    machine.kill()
    context.sleep_between(0.3, 2.5)
    machine.start()


def kill_leader(context: FaultContext) -> None:
    _kill(context, context.leader())


def kill_follower(context: FaultContext) -> None:
    _kill(context, context.follower())


def kill_controller(context: FaultContext) -> None:
    _kill(context, context.controller())


def kill_all(context: FaultContext) -> None:
    machines = list(context.machines.machines.values())
    for machine in machines:
        machine.kill()
    context.draw.shuffle(machines)
    for machine in machines:
        context.sleep_between(0, 0.7)
        machine.start()


def pause(context: FaultContext) -> None:
    machine = context.draw.choice((context.leader(), context.controller(), context.random_machine()))
    machine.signal(signal.SIGSTOP)
    context.sleep_between(0.5, 6)
    machine.signal(signal.SIGCONT)


def power_loss(context: FaultContext) -> None:
    context.machines.cut_power()
    for machine in context.machines.machines.values():
        machine.start()


def rolling_restart(context: FaultContext) -> None:
    for machine in context.machines.machines.values():
        if not machine.stop(STOP_TIMEOUT_S):
            context.anomalies.append(f"stuck: node {machine.node_id} did not stop in {STOP_TIMEOUT_S} s")
        machine.start()
        context.health.wait()


# The network


def full_partition(context: FaultContext) -> None:
    """One node hears nothing of the others and they nothing of it; clients reach all."""
    machine = context.draw.choice((context.leader(), context.controller(), context.random_machine()))
    context.machines.cut_off(machine, from_clients=False)
    context.sleep_between(1, 6)
    context.machines.switch.heal()


def isolation(context: FaultContext) -> None:
    """From clients too: silently gone."""
    machine = context.draw.choice((context.leader(), context.controller()))
    context.machines.cut_off(machine, from_clients=True)
    context.sleep_between(3, 6)
    context.machines.switch.heal()


def one_way_partition(context: FaultContext) -> None:
    machine = context.draw.choice((context.leader(), context.controller(), context.random_machine()))
    outward = context.draw.random() < 0.5
    for other in context.machines.machines.values():
        if other is not machine:
            way = (machine, other) if outward else (other, machine)
            context.machines.switch.cut(way[0].address, way[1].address)
    context.sleep_between(1, 6)
    context.machines.switch.heal()


def one_link_cut(context: FaultContext) -> None:
    """Two nodes do not hear each other; a third hears both."""
    one, other = context.draw.sample(list(context.machines.machines.values()), 2)
    context.machines.cut(one, other)
    context.sleep_between(1, 6)
    context.machines.switch.heal()


def _apply_link_quality(context: FaultContext, link_quality: LinkQuality) -> None:
    addresses = [each.address for each in context.machines.machines.values()]
    addresses.append(context.machines.outside.address)
    for source in addresses:
        for target in addresses:
            if source != target:
                context.machines.switch.link_quality(source, target, link_quality)
    context.sleep_between(1.5, 4)
    context.machines.switch.heal()


def delay(context: FaultContext) -> None:
    _apply_link_quality(context, LinkQuality(delay_ms=context.draw.uniform(5, 150)))


def loss(context: FaultContext) -> None:
    _apply_link_quality(context, LinkQuality(delay_ms=1, loss=context.draw.uniform(0.01, 0.15)))


def duplication(context: FaultContext) -> None:
    _apply_link_quality(context, LinkQuality(delay_ms=1, duplication=context.draw.uniform(0.05, 0.5)))


def reordering(context: FaultContext) -> None:
    _apply_link_quality(context, LinkQuality(delay_ms=1, jitter_ms=context.draw.uniform(5, 50)))


# The disk


def full_disk(context: FaultContext) -> None:
    machine = context.draw.choice((context.leader(), context.random_machine()))
    with _restart_if_failed(context, machine, "a full disk"):
        machine.disk.fill()
        context.sleep_between(1.5, 4)
        machine.disk.remove_filler()


def failing_syncs(context: FaultContext) -> None:
    machine = context.draw.choice((context.leader(), context.random_machine()))
    shim = context.shim(machine)
    with _restart_if_failed(context, machine, "syncs that failed"):
        shim.set(sync_fails=True)
        context.sleep_between(0.2, 2)
        shim.set()


@contextmanager
def _restart_if_failed(context: FaultContext, machine: Machine, after: str) -> Iterator[None]:
    """A node that cannot keep its metadata ends, and one that lost trust in its disk keeps partitions offline: when the
    disk is well again it is started again."""
    said = len(machine.node.output())
    yield
    news = machine.node.output()[said:].splitlines()
    hurt = [line for line in news if "is offline" in line or "cannot go on" in line]
    if hurt:
        context.notes.append(f"node {machine.node_id} was started again after {after}: {hurt[0]}")
        machine.kill()
        machine.start()


def slow_syncs(context: FaultContext) -> None:
    machine = context.draw.choice((context.leader(), context.random_machine()))
    context.shim(machine).set(sync_ms=context.draw.choice((20, 100, 500)))
    context.sleep_between(1.5, 4)
    context.shim(machine).set()


def clock_jump(context: FaultContext) -> None:
    """There and back again. Not an hour back: to such a broker the records of all clients come from the future, and it
    refuses them, as message.timestamp.after.max.ms has it."""
    machine = context.random_machine()
    hours = context.draw.choice((-0.9, 0.9, 24))
    context.shim(machine).set(clock_ms=int(hours * 3_600_000))
    context.sleep_between(1, 3)
    context.shim(machine).set()


def truncate_file_tail(context: FaultContext) -> None:
    _damage(context, context.draw.choice(ACTIVE_FILE_KINDS), truncate_tail)


def flip_bit_in(kind: str) -> Callable[[FaultContext], None]:
    return lambda context: _damage(context, kind, flip_bit)


def _damage(context: FaultContext, kind: str, damage: Callable[[Path, random.Random], int]) -> None:
    machines = [each for each in context.machines.machines.values() if find_files(each.data_dir, kind)]
    if not machines:
        raise FaultSkipped(f"no node has a {kind}")
    machine = context.draw.choice(machines)
    machine.kill()
    damage(context.draw.choice(find_files(machine.data_dir, kind)), context.draw)
    _start_damaged(context, machine, kind)


def _start_damaged(context: FaultContext, machine: Machine, kind: str) -> None:
    """Starts it. If it refuses, or does not get well by itself, does as its message says: the data is moved away, and
    the node comes back with an empty disk."""
    machine.start()
    if context.health.rejoins(machine):
        return
    context.notes.append(
        f"node {machine.node_id} after damage to its {kind}: {context.health.failure_reason(machine)}"
    )
    if machine.is_running and context.health.has_lost_vote(machine):
        context.operator.give_vote_back(machine)
    else:
        context.operator.replace_disk(machine)


FAULTS: Mapping[str, Callable[[FaultContext], None]] = {
    "leader killed": kill_leader,
    "follower killed": kill_follower,
    "controller killed": kill_controller,
    "all killed at once": kill_all,
    "paused and resumed": pause,
    "power cut of all": power_loss,
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
    "tail truncated": truncate_file_tail,
    **{f"bit flipped: {kind}": flip_bit_in(kind) for kind in FILE_KINDS},
}
