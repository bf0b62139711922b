"""Runs the benchmarks against Moldau and Apache Kafka side by side and writes the results page: `python -m bench.run
[--quick] [--only NAME] [--out FILE]`."""

from __future__ import annotations

import argparse
import platform
import subprocess
import time
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import confluent_kafka
import psutil  # type: ignore[import-untyped]
from rich.console import Console
from tests.interop.apache_kafka import KAFKA_VERSION, ApacheKafka

from bench import groups, latency, many, startup, throughput
from bench.brokers import FSYNC, PAGE_CACHE
from bench.plan import FULL, QUICK, Bench
from bench.report import Table, render_disturbed, render_summary, render_table

DURABILITIES = {"page-cache": PAGE_CACHE, "fsync": FSYNC}
NAMES = ("start", "produce", "consume", "latency", "topics", "connections", "groups")
METHOD = Path(__file__).with_name("METHOD.md")
NOTES = Path(__file__).with_name("NOTES.md")
NOTES_GROUPS = Path(__file__).with_name("NOTES_GROUPS.md")
RESULTS = Path(__file__).with_name("RESULTS.md")


def measure(bench: Bench, names: set[str]) -> list[Table]:
    tables: list[Table] = []
    if "start" in names:
        tables += startup.start_and_memory(bench)
    for durability in bench.plan.durabilities:
        reads = "consume" in names and durability is bench.plan.durabilities[0]
        if not reads and not names & {"produce", "latency"}:
            continue
        with bench.warm(durability) as brokers:
            if "latency" in names:
                tables += latency.acknowledgement(bench, brokers, durability)
            if "produce" in names:
                tables += throughput.produce(bench, brokers, durability)
            if reads:
                tables += throughput.consume(bench, brokers)
    if "topics" in names:
        tables += many.topics(bench)
    if "connections" in names:
        tables += many.connections(bench)
    if "groups" in names:
        for durability in bench.plan.durabilities:
            tables += groups.groups(bench, durability)
    return tables


def output(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parent)
    return (done.stdout + done.stderr).strip()


def commit_line() -> str:
    commit = output("git", "rev-parse", "--short", "HEAD")
    changed = output("git", "status", "--porcelain", "--", ":/src")
    return f"{commit} with changes to src" if changed else commit


def _command(options: argparse.Namespace) -> str:
    """Returns the command for the same measurements, without output and data directories."""
    words = ["--quick"] if options.quick else []
    words += [f"--only {name}" for name in options.only or ()]
    words += [f"--durability {options.durability}"] if options.durability else []
    words += [f"--without {options.without}"] if options.without else []
    return f"make bench ARGS='{' '.join(words)}'" if words else "make bench"


def machine_line(use: str = " shared by brokers and clients") -> str:
    memory_gib = psutil.virtual_memory().total / 2**30
    kernel = f"{platform.system()} {platform.release().split('-')[0]}, {platform.machine()}"
    return f"{psutil.cpu_count()} cores{use}, {memory_gib:.0f} GiB, {kernel}"


def facts(bench: Bench, kafka_missing: str | None, took_s: float) -> str:
    if kafka_missing is None:
        java = output("java", "-version").splitlines()[0]
        kafka = f"Apache Kafka {KAFKA_VERSION}, 1 GiB of heap, the JVM options of its own start script, {java}"
    else:
        kafka = f"Apache Kafka is left out: {kafka_missing}"
    client = f"confluent-kafka {confluent_kafka.version()} with librdkafka {confluent_kafka.libversion()[0]}"
    repeats = bench.plan.repeats
    runs = f"{repeats} run{'s' if repeats > 1 else ''} of each case"
    lines = (
        f"machine: {machine_line()}",
        f"Moldau {version('moldau')} at commit {commit_line()}, Python {platform.python_version()}",
        kafka,
        client,
        f"{runs}, {time.strftime('%Y-%m-%d', time.gmtime())}, {took_s / 60:.0f} min in all",
        *(f"warm-up: {line}" for line in bench.warmed),
    )
    return "\n".join(f"- {line}" for line in lines)


def page(tables: list[Table], bench: Bench, kafka_missing: str | None, took_s: float, command: str, notes: str) -> str:
    parts = ["# Moldau and Apache Kafka side by side", f"Written by `{command}`.", facts(bench, kafka_missing, took_s)]
    parts += [render_disturbed(tables), render_summary(tables), METHOD.read_text(), "## Figures"]
    parts += [render_table(table, with_kafka=kafka_missing is None) for table in tables]
    parts.append(notes)
    return "\n\n".join(part.strip() for part in parts if part) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description="Moldau and Apache Kafka side by side.")
    parser.add_argument("--quick", action="store_true", help="one short run of each case, one partition, no raw client")
    parser.add_argument("--only", choices=NAMES, action="append", help="leave out the other benchmarks")
    parser.add_argument("--durability", choices=DURABILITIES, help="one of the two (--quick: page-cache)")
    parser.add_argument("--without", choices=("kafka", "moldau"), help="measure the other broker alone")
    parser.add_argument("--out", type=Path, help="default: bench/RESULTS.md for a whole run, else shown")
    parser.add_argument("--dir", type=Path, help="where the brokers keep their data meanwhile")
    options = parser.parse_args()
    console = Console()
    missing = "it was not asked for" if options.without == "kafka" else ApacheKafka.available()
    if missing is not None:
        console.print(f"Apache Kafka is left out: {missing}")
    plan = QUICK if options.quick else FULL
    if options.durability:
        plan = replace(plan, durabilities=(DURABILITIES[options.durability],))
    bench = Bench(plan, console, options.dir, with_moldau=options.without != "moldau", with_kafka=missing is None)
    began = time.monotonic()
    with console.status("measuring"):
        tables = measure(bench, set(options.only or NAMES))
    whole = not (options.quick or options.only or options.without or options.durability)
    # The notes are about full measurements.
    notes = NOTES.read_text() if whole else NOTES_GROUPS.read_text() if options.only == ["groups"] else ""
    text = page(tables, bench, missing, time.monotonic() - began, _command(options), notes)
    out = options.out or (RESULTS if whole else None)
    if out is None:
        print(text)
    else:
        out.write_text(text)
        console.print(f"written: {out}")


if __name__ == "__main__":
    main()
