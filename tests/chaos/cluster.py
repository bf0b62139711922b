"""The machines of a cluster under chaos: each a namespace, a disk and a node's process, with a switch between them."""

import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

from chaos.disks import LoopDisk
from chaos.namespaces import ClientNamespace, Namespace
from chaos.shim import Shim, make_library
from chaos.switch import Switch
from support.broker_process import BrokerProcess
from support.broker_process_cluster import CLUSTER_ID, as_environment

PORT = 9092
CLIENT_HOST = 254
DISK_MB = 400
POLL_INTERVAL_S = 0.02
READY = "Moldau is ready"


class Machine:
    def __init__(
        self,
        node_id: int,
        namespace: Namespace,
        disk: LoopDisk,
        settings: Mapping[str, str],
        shim: Shim | None,
    ) -> None:
        self.node_id = node_id
        self.shim = shim
        """None where it could not be made: then syncs do not fail and clocks do not jump."""
        self.address = namespace.address
        self.disk = disk
        self.node = BrokerProcess(
            disk.path / "data",
            host=namespace.address,
            port=PORT,
            wrapper=tuple(namespace.command),
            environment={
                **as_environment({**settings, "node.id": str(node_id)}),
                **({} if shim is None else shim.environment),
            },
        )
        # Beside the disk and not on it: a full one must not swallow what the node says of it.
        self.node.log_path = disk.path.with_suffix(".log")

    @property
    def data_dir(self) -> Path:
        return self.node.data_dir

    @property
    def is_running(self) -> bool:
        process = self.node.process
        return process is not None and process.poll() is None

    @property
    def is_ready(self) -> bool:
        """Whether it has said in this life that it serves."""
        return self.is_running and READY in self.node.output()

    def signal(self, number: signal.Signals) -> None:
        if self.node.process is not None:
            self.node.process.send_signal(number)

    def kill(self) -> None:
        if self.node.process is not None:
            self.node.kill()

    def stop(self, timeout_s: float) -> bool:
        """Whether it ended in time when asked to; if not, it is killed."""
        return not _stop([self], timeout_s)

    def start(self) -> None:
        self.node.spawn()


class ChaosCluster:
    """`machines` by node id. The switch is clear at first; entering starts all nodes."""

    def __init__(self, directory: Path, count: int, seed: int, settings: Mapping[str, str]) -> None:
        self._ending = ExitStack()
        voters = ",".join(f"{number}@10.77.0.{number}:{PORT}" for number in range(1, count + 1))
        wanted = {
            "cluster.id": CLUSTER_ID,
            "controller.quorum.voters": voters,
            "default.replication.factor": "3",
            "offsets.topic.replication.factor": "3",
            "offsets.topic.num.partitions": "4",
            "min.insync.replicas": "2",
            "group.initial.rebalance.delay.ms": "0",
            # Small, so that all kinds of files are there to be damaged.
            "log.segment.bytes": "65536",
            "metadata.log.max.record.bytes.between.snapshots": "8192",
            **settings,
        }
        try:
            self.machines = dict(self._make(directory, count, wanted))
            self.outside = ClientNamespace("moldau-chaos", CLIENT_HOST)
            self._ending.callback(self.outside.close)
            ports = {space.address: space.descriptor for space in self._spaces}
            self.switch = Switch({**ports, self.outside.address: self.outside.descriptor}, seed)
            self._ending.callback(self.switch.close)
        except BaseException:
            self._ending.close()
            raise

    def _make(
        self, directory: Path, count: int, settings: Mapping[str, str]
    ) -> Iterator[tuple[int, Machine]]:
        self._spaces: list[Namespace] = []
        library = make_library(directory)
        for number in range(1, count + 1):
            space = Namespace(f"moldau-chaos-{number}", number)
            self._ending.callback(space.close)
            self._spaces.append(space)
            disk = LoopDisk(directory, f"disk-{number}", DISK_MB)
            self._ending.callback(disk.close)
            shim = None if library is None else Shim(library, directory / f"shim-{number}")
            machine = Machine(number, space, disk, settings, shim)
            self._ending.callback(machine.kill)
            yield number, machine

    @property
    def bootstrap(self) -> str:
        return ",".join(machine.node.bootstrap for machine in self.machines.values())

    def start(self) -> None:
        for machine in self.machines.values():
            machine.start()

    def cut(self, one: Machine, other: Machine) -> None:
        """Neither hears the other any more."""
        self.switch.cut(one.address, other.address)
        self.switch.cut(other.address, one.address)

    def cut_off(self, machine: Machine, *, from_clients: bool) -> None:
        for other in self.machines.values():
            if other is not machine:
                self.cut(machine, other)
        if from_clients:
            self.switch.cut(machine.address, self.outside.address)
            self.switch.cut(self.outside.address, machine.address)

    def cut_power(self) -> None:
        """Of all at once: what was not synced is gone. They are down when this returns."""
        running = [machine for machine in self.machines.values() if machine.is_running]
        for machine in running:
            machine.signal(signal.SIGSTOP)
        images = {machine.node_id: machine.disk.take_image() for machine in running}
        for machine in running:
            machine.kill()
        for machine in running:
            machine.disk.restore_image(images[machine.node_id])

    def stop(self, timeout_s: float) -> list[int]:
        """Asks all to stop; who does not in time is killed, and named."""
        return _stop(list(self.machines.values()), timeout_s)

    def close(self) -> None:
        # Half a cleaning up would leave namespaces and mounts behind: who asked once need not ask again.
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)
        before = [signal.signal(number, signal.SIG_IGN) for number in numbers]
        try:
            self._ending.close()
        finally:
            for number, handler in zip(numbers, before, strict=True):
                signal.signal(number, handler)


def _stop(machines: list[Machine], timeout_s: float) -> list[int]:
    running = [machine for machine in machines if machine.is_running]
    for machine in running:
        machine.signal(signal.SIGTERM)
    deadline = time.monotonic() + timeout_s
    late = []
    for machine in running:
        while machine.is_running and time.monotonic() < deadline:
            time.sleep(POLL_INTERVAL_S)
        if machine.is_running:
            late.append(machine.node_id)
            machine.kill()
        machine.node.process = None
    return late
