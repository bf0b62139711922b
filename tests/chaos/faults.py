"""Faults of a run. Each repairs what it broke before it returns, or leaves a state from which the node recovers by
itself."""

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
    """The fault could not be injected: a file does not exist yet, or this machine lacks a tool."""


@dataclass(slots=True)
class FaultContext:
    """What a fault can use."""

    cluster: ChaosCluster
    health: Health
    operator: Operator
    draw: random.Random
    notes: list[str] = field(default_factory=list)
    """What the operator had to do, and what nodes logged."""
    anomalies: list[str] = field(default_factory=list)

    def random_machine(self) -> Machine:
        return self.draw.choice(list(self.cluster.machines.values()))

    def leader(self) -> Machine:
        return self.cluster.machines[self.health.leader(self.draw)]

    def follower(self) -> Machine:
        leader = self.health.leader(self.draw)
        return self.draw.choice([each for number, each in self.cluster.machines.items() if number != leader])

    def controller(self) -> Machine:
        return self.cluster.machines[self.health.controller()]

    def shim(self, machine: Machine) -> Shim:
        if machine.shim is None:
            raise FaultSkipped("it needs a C compiler, which this machine does not have")
        return machine.shim

    def sleep(self, min_s: float, max_s: float) -> None:
        time.sleep(self.draw.uniform(min_s, max_s))


def _kill(context: FaultContext, machine: Machine) -> None:
    machine.kill()
    context.sleep(0.3, 2.5)
    machine.start()


def kill_leader(context: FaultContext) -> None:
    _kill(context, context.leader())


def kill_follower(context: FaultContext) -> None:
    _kill(context, context.follower())


def kill_controller(context: FaultContext) -> None:
    _kill(context, context.controller())


def kill_all(context: FaultContext) -> None:
    machines = list(context.cluster.machines.values())
    for machine in machines:
        machine.kill()
    context.draw.shuffle(machines)
    for machine in machines:
        context.sleep(0, 0.7)
        machine.start()


def pause(context: FaultContext) -> None:
    machine = context.draw.choice((context.leader(), context.controller(), context.random_machine()))
    machine.signal(signal.SIGSTOP)
    context.sleep(0.5, 6)
    machine.signal(signal.SIGCONT)


def power_loss(context: FaultContext) -> None:
    context.cluster.cut_power()
    for machine in context.cluster.machines.values():
        machine.start()


def rolling_restart(context: FaultContext) -> None:
    for machine in context.cluster.machines.values():
        if not machine.stop(STOP_TIMEOUT_S):
            context.anomalies.append(f"stuck: node {machine.node_id} did not stop in {STOP_TIMEOUT_S} s")
        machine.start()
        context.health.wait()


# Network


def full_partition(context: FaultContext) -> None:
    """Partitions one node from the others; clients reach all."""
    machine = context.draw.choice((context.leader(), context.controller(), context.random_machine()))
    context.cluster.isolate(machine, from_clients=False)
    context.sleep(1, 6)
    context.cluster.switch.heal()


def isolation(context: FaultContext) -> None:
    """Partitions one node from the others and from clients."""
    machine = context.draw.choice((context.leader(), context.controller()))
    context.cluster.isolate(machine, from_clients=True)
    context.sleep(3, 6)
    context.cluster.switch.heal()


def one_way_partition(context: FaultContext) -> None:
    machine = context.draw.choice((context.leader(), context.controller(), context.random_machine()))
    outward = context.draw.random() < 0.5
    for other in context.cluster.machines.values():
        if other is not machine:
            way = (machine, other) if outward else (other, machine)
            context.cluster.switch.block(way[0].address, way[1].address)
    context.sleep(1, 6)
    context.cluster.switch.heal()


def single_link_partition(context: FaultContext) -> None:
    """Blocks the link between two nodes; the third reaches both."""
    one, other = context.draw.sample(list(context.cluster.machines.values()), 2)
    context.cluster.partition(one, other)
    context.sleep(1, 6)
    context.cluster.switch.heal()


def _apply_link_quality(context: FaultContext, link_quality: LinkQuality) -> None:
    addresses = [each.address for each in context.cluster.machines.values()]
    addresses.append(context.cluster.client_namespace.address)
    for source in addresses:
        for target in addresses:
            if source != target:
                context.cluster.switch.link_quality(source, target, link_quality)
    context.sleep(1.5, 4)
    context.cluster.switch.heal()


def delay(context: FaultContext) -> None:
    _apply_link_quality(context, LinkQuality(delay_ms=context.draw.uniform(5, 150)))


def loss(context: FaultContext) -> None:
    _apply_link_quality(context, LinkQuality(delay_ms=1, loss=context.draw.uniform(0.01, 0.15)))


def duplication(context: FaultContext) -> None:
    _apply_link_quality(context, LinkQuality(delay_ms=1, duplication=context.draw.uniform(0.05, 0.5)))


def reordering(context: FaultContext) -> None:
    _apply_link_quality(context, LinkQuality(delay_ms=1, jitter_ms=context.draw.uniform(5, 50)))


# Disk


def full_disk(context: FaultContext) -> None:
    machine = context.draw.choice((context.leader(), context.random_machine()))
    with _restart_if_failed(context, machine, "a full disk"):
        machine.disk.fill()
        context.sleep(1.5, 4)
        machine.disk.remove_filler()


def failing_syncs(context: FaultContext) -> None:
    machine = context.draw.choice((context.leader(), context.random_machine()))
    shim = context.shim(machine)
    with _restart_if_failed(context, machine, "syncs that failed"):
        shim.set(sync_fails=True)
        context.sleep(0.2, 2)
        shim.set()


@contextmanager
def _restart_if_failed(context: FaultContext, machine: Machine, after: str) -> Iterator[None]:
    """Restarts the node if the fault stopped it or took partitions offline."""
    output = len(machine.node.output())
    yield
    new_lines = machine.node.output()[output:].splitlines()
    errors = [line for line in new_lines if "is offline" in line or "the node must stop" in line]
    if errors:
        context.notes.append(f"node {machine.node_id} was restarted after {after}: {errors[0]}")
        machine.kill()
        machine.start()


def slow_syncs(context: FaultContext) -> None:
    machine = context.draw.choice((context.leader(), context.random_machine()))
    context.shim(machine).set(sync_ms=context.draw.choice((20, 100, 500)))
    context.sleep(1.5, 4)
    context.shim(machine).set()


def clock_jump(context: FaultContext) -> None:
    """Moves the clock and back. Not by an hour or more into the past: then client timestamps would exceed
    message.timestamp.after.max.ms, and the broker would reject them."""
    machine = context.random_machine()
    hours = context.draw.choice((-0.9, 0.9, 24))
    context.shim(machine).set(clock_ms=int(hours * 3_600_000))
    context.sleep(1, 3)
    context.shim(machine).set()


def truncate_file_tail(context: FaultContext) -> None:
    _damage(context, context.draw.choice(ACTIVE_FILE_KINDS), truncate_tail)


def flip_bit_in(kind: str) -> Callable[[FaultContext], None]:
    return lambda context: _damage(context, kind, flip_bit)


def _damage(context: FaultContext, kind: str, damage: Callable[[Path, random.Random], int]) -> None:
    machines = [each for each in context.cluster.machines.values() if find_files(each.data_dir, kind)]
    if not machines:
        raise FaultSkipped(f"no node has a {kind}")
    machine = context.draw.choice(machines)
    machine.kill()
    damage(context.draw.choice(find_files(machine.data_dir, kind)), context.draw)
    _start_damaged(context, machine, kind)


def _start_damaged(context: FaultContext, machine: Machine, kind: str) -> None:
    """Starts the node. If it fails or does not recover by itself, follows its error message: replaces its disk with an
    empty one."""
    machine.start()
    if context.health.rejoins(machine):
        return
    context.notes.append(f"node {machine.node_id} after damage to its {kind}: {context.health.failure_reason(machine)}")
    if machine.is_running and context.health.has_lost_vote(machine):
        context.operator.restore_vote(machine)
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
    "one link cut": single_link_partition,
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
