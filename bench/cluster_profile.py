"""Profiles of a leader and a follower: `python -m bench.cluster_profile produce --batch 16384`, or `idle --partitions
1000`, or `create --partitions 1000`.

Each node samples its own stack on a CPU timer while the load runs.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType

from bench.brokers import FSYNC, PAGE_CACHE
from bench.cluster_nodes import Cluster, MoldauCluster
from bench.cluster_plan import run_on_leader
from bench.plan import Case
from bench.profile import Sampler, print_samples

LOADS = ("produce", "latency", "idle", "create")
BEGIN, END = signal.SIGUSR1, signal.SIGUSR2
TOPICS = 10
PARTITIONS_AT_ONCE = 500


def serve_sampled(path: str, arguments: list[str]) -> None:
    """Runs in a node's process: samples from one signal to the next."""
    from moldau.cli.main import main as moldau

    samplers: list[Sampler] = []

    def begin(number: int, frame: FrameType | None) -> None:
        samplers.append(Sampler())
        samplers[-1].start()

    def end(number: int, frame: FrameType | None) -> None:
        samplers[-1].stop()
        partial = f"{path}.partial"
        samplers[-1].save(partial)
        os.rename(partial, path)

    signal.signal(BEGIN, begin)
    signal.signal(END, end)
    sys.argv = ["moldau", *arguments]
    moldau()


def _load(cluster: Cluster, options: argparse.Namespace, signalled: SampledCluster) -> int:
    """Runs the load; returns which node was leader."""
    if options.load in ("idle", "create"):
        for number in range(options.before // PARTITIONS_AT_ONCE):
            names = [f"before-{number}-{index}" for index in range(TOPICS)]
            cluster.create_topics(names, PARTITIONS_AT_ONCE // TOPICS)
            cluster.wait_in_sync(*names)
        names = [f"many-{index}" for index in range(TOPICS)]
        if options.load == "create":
            time.sleep(2.0)
            signalled.begin()
            cpu, began = cluster.cpu_s(), time.monotonic()
            cluster.create_topics(names, options.partitions // TOPICS)
            took_s, used_s = time.monotonic() - began, cluster.cpu_s() - cpu
            print(f"created in {took_s:.2f} s, {used_s:.2f} s of CPU of all nodes")
            signalled.end()
            return 1
        cluster.create_topics(names, options.partitions // TOPICS)
        cluster.wait_in_sync(*names)
        time.sleep(2.0)
        cpu = cluster.cpu_s()
        signalled.begin()
        time.sleep(options.seconds)
        signalled.end()
        print(f"{(cluster.cpu_s() - cpu) / options.seconds:.3f} cores of all nodes")
        return 1
    case = Case(options.size, options.batch, 1)
    with cluster.topic(1) as name:
        leader = cluster.leaders(name)[0]
        run_on_leader(cluster, case, "raw_produce", name, 1.0, 0)
        signalled.begin()
        kind, records = ("raw_produce", 0) if options.load == "produce" else ("raw_latency", 2000)
        done = run_on_leader(cluster, case, kind, name, options.seconds, records)
        signalled.end()
    print(f"{case.name}: {done.records_per_s:,.0f} records/s, {done.cpu_s_per_gb:.2f} CPU-s/GB of all nodes")
    return leader


class SampledCluster:
    """Signals all nodes to start and stop sampling."""

    def __init__(self, cluster: Cluster, paths: list[Path]) -> None:
        self._cluster = cluster
        self._paths = paths

    def begin(self) -> None:
        self._signal(BEGIN)

    def end(self) -> None:
        self._signal(END)
        while not all(path.exists() for path in self._paths):
            time.sleep(0.05)

    def _signal(self, number: signal.Signals) -> None:
        for pid in self._cluster.pids().values():
            os.kill(pid, number)


def main() -> None:
    if len(sys.argv) > 2 and sys.argv[1] == "node":
        serve_sampled(sys.argv[2], sys.argv[3:])
        return
    parser = argparse.ArgumentParser(description="Profiles a leader and a follower.")
    parser.add_argument("load", choices=LOADS)
    parser.add_argument("--size", type=int, default=1024, help="bytes of a value")
    parser.add_argument("--batch", type=int, default=16384, help="bytes of a batch")
    parser.add_argument("--partitions", type=int, default=1000, help="with idle and create")
    parser.add_argument("--before", type=int, default=0, help="partitions that are there already")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--fsync", action="store_true", help="acknowledge after fsync")
    parser.add_argument("--top", type=int, default=25)
    options = parser.parse_args()
    with TemporaryDirectory(prefix="moldau-profile-") as directory:
        paths = {node_id: Path(directory, f"samples-{node_id}") for node_id in Cluster.ids}
        watched = {
            node_id: (sys.executable, "-m", "bench.cluster_profile", "node", str(path))
            for node_id, path in paths.items()
        }
        durability = FSYNC if options.fsync else PAGE_CACHE
        with MoldauCluster(Path(directory, "nodes"), durability, watched) as cluster:
            leader = _load(cluster, options, SampledCluster(cluster, list(paths.values())))
        follower = next(node_id for node_id in paths if node_id != leader)
        for role, node_id in (("leader", leader), ("follower", follower)):
            print(f"\nnode {node_id}, {role if options.load in ('produce', 'latency') else 'leads a third'}")
            print_samples(paths[node_id], options.top)


if __name__ == "__main__":
    main()
