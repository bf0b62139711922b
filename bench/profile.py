"""Profile of a Moldau node under load: `python -m bench.profile produce --size 100 --batch 16384`.

By default the node samples its stack on a CPU timer, which costs almost nothing. `--calls` uses cProfile, which counts
exactly but overstates small functions.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import os
import pstats
import signal
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType

from bench.brokers import FSYNC, PAGE_CACHE, Broker, Moldau
from bench.load import Run, run, topic
from bench.plan import Case

LOADS = ("produce", "raw_produce", "consume", "raw_consume", "latency", "raw_latency", "transactions")
TRANSACTIONAL_PRODUCERS = 20
SAMPLE_INTERVAL_S = 0.001
SAMPLES_FILE, CALLS_FILE = "BENCH_PROFILE_SAMPLES", "BENCH_PROFILE_CALLS"


class Sampler:
    """Counts stack samples of the main thread: by line for the innermost frame, by function for every frame."""

    def __init__(self) -> None:
        self.lines: Counter[str] = Counter()
        self.own: Counter[str] = Counter()
        self.total: Counter[str] = Counter()
        self.samples = 0

    def start(self) -> None:
        signal.signal(signal.SIGPROF, self._take)
        signal.setitimer(signal.ITIMER_PROF, SAMPLE_INTERVAL_S, SAMPLE_INTERVAL_S)

    def stop(self) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)

    def _take(self, number: int, frame: FrameType | None) -> None:
        self.samples += 1
        if frame is None:
            return
        self.lines[f"{_place(frame)}:{frame.f_lineno}"] += 1
        self.own[_function(frame)] += 1
        seen = set()
        while frame is not None:
            seen.add(_function(frame))
            frame = frame.f_back
        self.total.update(seen)

    def save(self, path: str) -> None:
        found = {"samples": self.samples, "own": self.own, "total": self.total, "lines": self.lines}
        Path(path).write_text(json.dumps(found))


def _place(frame: FrameType) -> str:
    parts = Path(frame.f_code.co_filename).parts
    return "/".join(parts[-2:])


def _function(frame: FrameType) -> str:
    return f"{_place(frame)} {frame.f_code.co_qualname}"


def serve_profiled(arguments: list[str]) -> None:
    """Runs in the node's process: the ordinary command line with a profiler."""
    from moldau.cli.main import main as moldau

    sys.argv = ["moldau", *arguments]
    if path := os.environ.get(CALLS_FILE):
        calls = cProfile.Profile()
        try:
            calls.runcall(moldau)
        finally:
            calls.dump_stats(path)
        return
    sampler = Sampler()
    sampler.start()
    try:
        moldau()
    finally:
        sampler.stop()
        sampler.save(os.environ[SAMPLES_FILE])


def _load(broker: Broker, case: Case, kind: str, seconds: float) -> Run:
    with topic(broker, case.partitions) as name:
        if kind in ("consume", "raw_consume"):
            wanted = 400_000_000 // case.value_bytes
            records = run(broker, case.job("raw_fill", broker, name, records=wanted)).outcome.records
            return run(broker, case.job(kind, broker, name, seconds, records))
        if kind == "transactions":
            job = case.job(kind, broker, name, seconds, records=1)
            return run(broker, replace(job, connections=TRANSACTIONAL_PRODUCERS, client="moldau.client"))
        return run(broker, case.job(kind, broker, name, seconds, records=int(seconds * 2000)))


def print_samples(path: Path, top: int) -> None:
    found = json.loads(path.read_text())
    samples = found["samples"] or 1
    for title, key in (
        ("own time, by function", "own"),
        ("time with callees", "total"),
        ("own time, by line", "lines"),
    ):
        print(f"\n{title}, % of {samples} samples")
        # Functions on nearly every stack are entry points of the event loop, and say nothing.
        telling = {name: number for name, number in found[key].items() if number < 0.97 * samples}
        for name, number in Counter(telling).most_common(top):
            print(f"{100 * number / samples:6.1f}  {name}")


def main() -> None:
    if len(sys.argv) > 1 and sys.argv[1] == "serve":
        serve_profiled(sys.argv[1:])
        return
    parser = argparse.ArgumentParser(description="Where a Moldau node's time goes under a load.")
    parser.add_argument("load", choices=LOADS)
    parser.add_argument("--size", type=int, default=100, help="bytes of a value")
    parser.add_argument("--batch", type=int, default=16384, help="bytes of a batch")
    parser.add_argument("--partitions", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--fsync", action="store_true", help="acknowledge after fsync")
    parser.add_argument("--calls", action="store_true", help="count every call with cProfile")
    parser.add_argument("--top", type=int, default=25)
    options = parser.parse_args()
    case = Case(options.size, options.batch, options.partitions)
    with TemporaryDirectory(prefix="moldau-profile-") as directory:
        path = Path(directory, "profile")
        os.environ[CALLS_FILE if options.calls else SAMPLES_FILE] = str(path)
        watched = (sys.executable, "-m", "bench.profile")
        with Moldau(Path(directory, "node"), FSYNC if options.fsync else PAGE_CACHE, watched) as broker:
            done = _load(broker, case, options.load, options.seconds)
        print(f"{case.name}: {done.records_per_s:,.0f} records/s, {done.cpu_s_per_gb:.2f} CPU-s/GB")
        if options.calls:
            pstats.Stats(str(path)).sort_stats("tottime").print_stats(options.top)
        else:
            print_samples(path, options.top)


if __name__ == "__main__":
    main()
