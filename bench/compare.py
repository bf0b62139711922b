"""Compares two checkouts of Moldau in one run, in alternating rounds: `python -m bench.compare OLD [NEW]`.

Prints the median of each figure for both checkouts and their ratio. The load generator is this checkout's, for both.
"""

import argparse
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import psutil  # type: ignore[import-untyped]

from bench import raw

PROJECT = Path(__file__).parents[1]
PARTITIONS = 4
CONNECTIONS = 4
IN_FLIGHT = 8
BATCH_BYTES = 16 * 1024
TOPIC = "compare"
READY_WITHIN_S = 30.0
GIB = 1 << 30


class Server:
    """A `moldau serve` process that runs the code of one checkout."""

    def __init__(self, checkout: Path, data_dir: Path, *flags: str) -> None:
        began = time.perf_counter()
        environment = {name: value for name, value in os.environ.items() if not name.startswith("MOLDAU_")}
        port = _free_port()
        self.bootstrap = f"127.0.0.1:{port}"
        command = [sys.executable, "-m", "moldau", "serve", "--num-partitions", str(PARTITIONS)]
        self._process = subprocess.Popen(
            [*command, "--listen", self.bootstrap, "--data-dir", str(data_dir), *flags],
            env={**environment, "PYTHONPATH": str(checkout / "src")},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        raw.first_acknowledgement(
            self.bootstrap, "first", time.monotonic() + READY_WITHIN_S, lambda: self._process.poll() is None
        )
        self.start_s = time.perf_counter() - began
        self._info = psutil.Process(self._process.pid)

    def cpu_s(self) -> float:
        times = self._info.cpu_times()
        return float(times.user + times.system)

    def resident_mib(self) -> float:
        return float(self._info.memory_info().rss) / (1 << 20)

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(30)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def measure(checkout: Path, seconds: float, record: Callable[[str, float], None]) -> None:
    """Runs one round against one checkout: start, memory, produce and consume with two record sizes."""
    for durability, flags in (("page cache", ("--write-caching",)), ("fsync", ())):
        with tempfile.TemporaryDirectory(prefix="moldau-compare-") as directory:
            server = Server(checkout, Path(directory), *flags)
            try:
                if durability == "page cache":
                    record("start to first acknowledgement, s", server.start_s)
                    record("memory after start, MiB", server.resident_mib())
                for value_bytes in (100, 1000):
                    topic = f"{TOPIC}-{value_bytes}"
                    _create(server.bootstrap, topic)
                    name = f"{durability}, {value_bytes} B"
                    cpu_s = server.cpu_s()
                    records, elapsed_s = raw.produce(
                        server.bootstrap, topic, PARTITIONS, value_bytes, BATCH_BYTES, CONNECTIONS, IN_FLIGHT, seconds
                    )
                    gib = records * value_bytes / GIB
                    record(f"produce {name}, records/s", records / elapsed_s)
                    record(f"produce {name}, CPU s/GiB", (server.cpu_s() - cpu_s) / gib)
                    if durability == "page cache":
                        cpu_s = server.cpu_s()
                        records, elapsed_s = raw.consume(server.bootstrap, topic, PARTITIONS, records)
                        record(f"consume {value_bytes} B, records/s", records / elapsed_s)
                        record(f"consume {value_bytes} B, CPU s/GiB", (server.cpu_s() - cpu_s) / gib)
                record(f"memory after load ({durability}), MiB", server.resident_mib())
            finally:
                server.stop()


def _create(bootstrap: str, topic: str) -> None:
    """Creates the topic by a metadata request and waits until all partitions can be read."""
    deadline = time.monotonic() + READY_WITHIN_S
    while True:
        with raw.connect(bootstrap) as sock:
            sock.sendall(raw.metadata_frame(topic, True))
            raw.Responses(sock).next()
        try:
            raw.wait_until_served(bootstrap, topic, PARTITIONS, READY_WITHIN_S)
            return
        except raw.BrokerError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def _rounded(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.compare", description=__doc__)
    parser.add_argument("old", type=Path, help="checkout to compare with")
    parser.add_argument("new", type=Path, nargs="?", default=PROJECT, help="default: this checkout")
    parser.add_argument("--rounds", type=int, default=5, help="rounds per checkout")
    parser.add_argument("--seconds", type=float, default=4.0, help="duration of each produce measurement")
    options = parser.parse_args()
    checkouts = {"old": options.old.resolve(), "new": options.new.resolve()}
    figures: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for round_number in range(options.rounds):
        # Each round swaps the order, so that neither checkout always runs first.
        for label in sorted(checkouts, reverse=round_number % 2 == 0):
            measure(
                checkouts[label], options.seconds, lambda name, value, label=label: figures[name][label].append(value)
            )
        print(f"round {round_number + 1} of {options.rounds} done", file=sys.stderr)
    print("| figure | old | new | new / old | spread of old |")
    print("|---|---:|---:|---:|---:|")
    for name, values in figures.items():
        old, new = statistics.median(values["old"]), statistics.median(values["new"])
        ratio = new / old if old else 1.0
        spread = (max(values["old"]) - min(values["old"])) / (old or 1)
        print(f"| {name} | {_rounded(old)} | {_rounded(new)} | {ratio:.3f} | {spread:.0%} |")


if __name__ == "__main__":
    main()
