"""A cluster for fault injection: each machine has a namespace, a disk and a node process, with a switch between
them."""

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
        self, node_id: int, namespace: Namespace, disk: LoopDisk, settings: Mapping[str, str], shim: Shim | None
    ) -> None:
        self.node_id = node_id
        self.shim = shim
        """None without a C compiler: then syncs cannot fail and clocks cannot jump."""
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
        # Not on the disk, where a full disk would lose log lines.
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
        """Whether the current process has logged that it is ready."""
        return self.is_running and READY in self.node.output()

    def signal(self, number: signal.Signals) -> None:
        if self.node.process is not None:
            self.node.process.send_signal(number)

    def kill(self) -> None:
        if self.node.process is not None:
            self.node.kill()

    def stop(self, timeout_s: float) -> bool:
        """Asks the node to stop, and kills it after the timeout; returns whether it stopped in time."""
        return not _stop([self], timeout_s)

    def start(self) -> None:
        self.node.spawn()


class ChaosCluster:
    """Machines by node id. All links are open at first."""

    def __init__(self, directory: Path, count: int, seed: int, settings: Mapping[str, str]) -> None:
        self._exit_stack = ExitStack()
        voters = ",".join(f"{number}@10.77.0.{number}:{PORT}" for number in range(1, count + 1))
        common = {
            "cluster.id": CLUSTER_ID,
            "controller.quorum.voters": voters,
            "default.replication.factor": "3",
            "offsets.topic.replication.factor": "3",
            "transaction.state.log.replication.factor": "3",
            "offsets.topic.num.partitions": "4",
            "min.insync.replicas": "2",
            "group.initial.rebalance.delay.ms": "0",
            # Small, so that all kinds of files exist and can be corrupted.
            "log.segment.bytes": "65536",
            "metadata.log.max.record.bytes.between.snapshots": "8192",
            **settings,
        }
        try:
            self.machines = dict(self._create_machines(directory, count, common))
            self.client_namespace = ClientNamespace("moldau-chaos", CLIENT_HOST)
            self._exit_stack.callback(self.client_namespace.close)
            ports = {namespace.address: namespace.descriptor for namespace in self._namespaces}
            self.switch = Switch({**ports, self.client_namespace.address: self.client_namespace.descriptor}, seed)
            self._exit_stack.callback(self.switch.close)
        except BaseException:
            self._exit_stack.close()
            raise

    def _create_machines(
        self, directory: Path, count: int, settings: Mapping[str, str]
    ) -> Iterator[tuple[int, Machine]]:
        self._namespaces: list[Namespace] = []
        library = make_library(directory)
        for number in range(1, count + 1):
            namespace = Namespace(f"moldau-chaos-{number}", number)
            self._exit_stack.callback(namespace.close)
            self._namespaces.append(namespace)
            disk = LoopDisk(directory, f"disk-{number}", DISK_MB)
            self._exit_stack.callback(disk.close)
            shim = None if library is None else Shim(library, directory / f"shim-{number}")
            machine = Machine(number, namespace, disk, settings, shim)
            self._exit_stack.callback(machine.kill)
            yield number, machine

    @property
    def bootstrap(self) -> str:
        return ",".join(machine.node.bootstrap for machine in self.machines.values())

    def start(self) -> None:
        for machine in self.machines.values():
            machine.start()

    def partition(self, one: Machine, other: Machine) -> None:
        """Blocks both directions between two machines."""
        self.switch.block(one.address, other.address)
        self.switch.block(other.address, one.address)

    def isolate(self, machine: Machine, *, from_clients: bool) -> None:
        for other in self.machines.values():
            if other is not machine:
                self.partition(machine, other)
        if from_clients:
            self.switch.block(machine.address, self.client_namespace.address)
            self.switch.block(self.client_namespace.address, machine.address)

    def cut_power(self) -> None:
        """Cuts the power of all machines at once: unsynced data is lost. All nodes are down when this returns."""
        running = [machine for machine in self.machines.values() if machine.is_running]
        for machine in running:
            machine.signal(signal.SIGSTOP)
        images = {machine.node_id: machine.disk.take_image() for machine in running}
        for machine in running:
            machine.kill()
        for machine in running:
            machine.disk.restore_image(images[machine.node_id])

    def stop(self, timeout_s: float) -> list[int]:
        """Asks all nodes to stop, and kills those that do not in time; returns their ids."""
        return _stop(list(self.machines.values()), timeout_s)

    def close(self) -> None:
        # An interrupted cleanup would leave namespaces and mounts behind, so ignore signals meanwhile.
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)
        before = [signal.signal(number, signal.SIG_IGN) for number in numbers]
        try:
            self._exit_stack.close()
        finally:
            for number, handler in zip(numbers, before, strict=True):
                signal.signal(number, handler)


def _stop(machines: list[Machine], timeout_s: float) -> list[int]:
    running = [machine for machine in machines if machine.is_running]
    for machine in running:
        machine.signal(signal.SIGTERM)
    deadline = time.monotonic() + timeout_s
    not_stopped = []
    for machine in running:
        while machine.is_running and time.monotonic() < deadline:
            time.sleep(POLL_INTERVAL_S)
        if machine.is_running:
            not_stopped.append(machine.node_id)
            machine.kill()
        machine.node.process = None
    return not_stopped
