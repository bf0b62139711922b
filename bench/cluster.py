"""Three nodes of Moldau and three of Apache Kafka side by side, and the cost of metadata as a cluster grows: `python -m
bench.cluster [--quick] [--only NAME] [--out FILE]` writes bench/CLUSTER.md."""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from tests.interop.apache_kafka import ApacheKafka

from bench.cluster_growth import growth
from bench.cluster_load import acknowledgement, produce
from bench.cluster_many import many
from bench.cluster_plan import DURABILITY_CONFIGS, FULL_CLUSTER, QUICK_CLUSTER, ClusterPlan, running, warm_up
from bench.plan import Bench
from bench.report import Table, render_disturbed, render_table
from bench.run import facts

NAMES = ("produce", "latency", "many", "growth")
METHOD = Path(__file__).with_name("METHOD_CLUSTER.md")
NOTES = Path(__file__).with_name("NOTES_CLUSTER.md")
RESULTS = Path(__file__).with_name("CLUSTER.md")


def measure(bench: Bench, plan: ClusterPlan, names: set[str]) -> tuple[list[Table], list[Table]]:
    """Returns tables with both brokers, and those with Moldau alone."""
    compared: list[Table] = []
    if names - {"growth"}:
        with running(bench) as clusters:
            if names & {"produce", "latency"}:
                for cluster in clusters:
                    warm_up(bench, cluster)
            for kept in plan.kept:
                if "produce" in names:
                    compared.append(produce(bench, clusters, kept))
                if "latency" in names:
                    compared.append(acknowledgement(bench, clusters, kept))
            if "many" in names:
                compared.append(many(bench, plan, clusters))
    alone = [growth(bench, plan)] if "growth" in names and bench.with_moldau else []
    return compared, alone


def _command(options: argparse.Namespace) -> str:
    words = ["--quick"] if options.quick else []
    words += [f"--only {name}" for name in options.only or ()]
    words += [f"--kept '{options.kept}'"] if options.kept else []
    words += [f"--without {options.without}"] if options.without else []
    return " ".join(["python -m bench.cluster", *words])


def page(compared: list[Table], alone: list[Table], head: str, command: str, notes: str, *, with_kafka: bool) -> str:
    parts = ["# A cluster of Moldau and one of Apache Kafka side by side", f"Written by `{command}`.", head]
    parts += [render_disturbed(compared), METHOD.read_text(), "## Figures"]
    parts += [render_table(table, with_kafka=with_kafka) for table in compared]
    parts += [render_table(table, with_kafka=False) for table in alone]
    parts.append(notes)
    return "\n\n".join(part.strip() for part in parts if part) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description="Clusters of Moldau and of Apache Kafka side by side.")
    parser.add_argument("--quick", action="store_true", help="one short run of each case, page cache only")
    parser.add_argument("--only", choices=NAMES, action="append", help="leave out the other benchmarks")
    parser.add_argument("--kept", choices=tuple(DURABILITY_CONFIGS), help="one of the two (--quick: page cache)")
    parser.add_argument("--without", choices=("kafka", "moldau"), help="measure the other one alone")
    parser.add_argument("--out", type=Path, help="default: bench/CLUSTER.md for a whole run, else shown")
    parser.add_argument("--dir", type=Path, help="where the nodes keep their data meanwhile")
    options = parser.parse_args()
    console = Console()
    missing = "excluded with --without" if options.without == "kafka" else ApacheKafka.available()
    if missing is not None:
        console.print(f"Apache Kafka is skipped: {missing}")
    plan = QUICK_CLUSTER if options.quick else FULL_CLUSTER
    if options.kept:
        plan = replace(plan, kept=(options.kept,))
    bench = Bench(plan.bench, console, options.dir, with_moldau=options.without != "moldau", with_kafka=missing is None)
    began = time.monotonic()
    with console.status("measuring"):
        compared, alone = measure(bench, plan, set(options.only or NAMES))
    whole = not (options.quick or options.only or options.kept or options.without)
    text = page(
        compared,
        alone,
        facts(bench, missing, time.monotonic() - began),
        _command(options),
        # The notes are about full measurements.
        NOTES.read_text() if whole else "",
        with_kafka=missing is None,
    )
    out = options.out or (RESULTS if whole else None)
    if out is None:
        print(text)
    else:
        out.write_text(text)
        console.print(f"written: {out}")


if __name__ == "__main__":
    main()
