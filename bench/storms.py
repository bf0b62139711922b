"""What happens when many clients request metadata at once, and when many brokers restart at once, on the simulator:
`python -m bench.storms [--brokers N] [--clients N] [--topics N] [--storm NAME] [--out FILE]` writes bench/STORMS.md."""

from __future__ import annotations

import argparse
import platform
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path

from bench.report import count, decimals, markdown_table, percentile
from bench.run import commit_line, machine_line
from moldau.testing.simulation.platform.cpu import MeasuredCost
from moldau.testing.simulation.scenarios.storms import STORMS, StormCluster, StormFigures, StormPlan

SEED = 1
METHOD = Path(__file__).with_name("METHOD_STORMS.md")
RESULTS = Path(__file__).with_name("STORMS.md")

LABELS = {
    "metadata refresh": "all clients request metadata, each from its node",
    "one bootstrap server": "all clients connect to the active controller",
    "controller dies": "the active controller is killed, all clients request metadata",
    "brokers restart": "all brokers but the voters are killed, all clients request metadata",
    "all nodes restart": "all nodes lose power, all clients connect again",
}

seconds = decimals(2)


def clients_column(share: float) -> Callable[[StormFigures], str]:
    return lambda figures: seconds(percentile(figures.client_ms, share) / 1000)


TIMES: Sequence[tuple[str, Callable[[StormFigures], str]]] = (
    ("clients have metadata, p50 s", clients_column(0.5)),
    ("p99", clients_column(0.99)),
    ("max", clients_column(1.0)),
    ("partitions led, s", lambda figures: seconds(figures.led_ms / 1000)),
    ("unfenced, s", lambda figures: seconds(figures.unfenced_ms / 1000)),
    ("in sync, s", lambda figures: seconds(figures.replicated_ms / 1000)),
)
HEALTH: Sequence[tuple[str, Callable[[StormFigures], str]]] = (
    ("longest heartbeat, s", lambda figures: seconds(figures.heartbeat_ms / 1000)),
    ("failed heartbeats", lambda figures: count(figures.failed_heartbeats)),
    ("wrongly fenced", lambda figures: count(len(figures.fenced))),
    ("lost leases", lambda figures: count(len(figures.lost_leases))),
    ("fenced after a kill", lambda figures: count(figures.fenced_dead)),
    ("elections", lambda figures: count(figures.elections)),
)
WORK: Sequence[tuple[str, Callable[[StormFigures], str]]] = (
    ("time observed, s", lambda figures: seconds(figures.observed_s)),
    ("requests", lambda figures: count(figures.requests)),
    ("of them Metadata", lambda figures: count(figures.metadata_requests)),
    ("CPU of all nodes, s", lambda figures: seconds(figures.cpu_s)),
    ("CPU without a storm, s per s", lambda figures: seconds(figures.idle_cpu_s)),
    ("CPU of the busiest node, s", lambda figures: seconds(figures.busiest_cpu_s)),
    ("longest wait for a processor, ms", lambda figures: count(figures.longest_wait_ms)),
)


def table(columns: Sequence[tuple[str, Callable[[StormFigures], str]]], storms: Sequence[StormFigures]) -> str:
    body = [[LABELS[figures.name], *(show(figures) for _, show in columns)] for figures in storms]
    return markdown_table(["", *(head for head, _ in columns)], body)


def page(storms: Sequence[StormFigures], facts: Sequence[str], command: str) -> str:
    return "\n\n".join(
        (
            "# Storms: many clients and brokers at the same moment",
            f"Written by `{command}`.",
            "\n".join(f"- {line}" for line in facts),
            "## Times\n\nVirtual seconds since the start of the storm.",
            table(TIMES, storms),
            "## Heartbeats, leases and elections",
            table(HEALTH, storms),
            "## Work",
            table(WORK, storms),
            METHOD.read_text(),
        )
    )


def main() -> None:
    plan = StormPlan()
    parser = argparse.ArgumentParser(description="Storms of metadata requests and restarts, on the simulator.")
    parser.add_argument("--brokers", type=int, default=plan.brokers, help="nodes beside the three voters")
    parser.add_argument("--clients", type=int, default=plan.clients)
    parser.add_argument("--topics", type=int, default=plan.topics, help=f"with {plan.partitions} partitions each")
    parser.add_argument("--storm", choices=STORMS, action="append", help="leave out the other storms")
    parser.add_argument("--out", type=Path, help="default: bench/STORMS.md for a whole run, else shown")
    options = parser.parse_args()
    plan = StormPlan(brokers=options.brokers, clients=options.clients, topics=options.topics)
    names = options.storm or list(STORMS)
    began = time.monotonic()
    cluster = StormCluster(SEED, plan, MeasuredCost())
    storms = cluster.run(names)
    facts = (
        f"simulated: {plan.voters} voters and {plan.brokers} other brokers, {plan.clients:,} clients, seed {SEED}",
        f"{plan.partition_count:,} partitions with 3 replicas in {plan.topics} topics",
        f"CPU time measured on: {machine_line(use='')}",
        f"Moldau {version('moldau')} at commit {commit_line()}, Python {platform.python_version()}",
        f"{time.strftime('%Y-%m-%d', time.gmtime())}, {(time.monotonic() - began) / 60:.0f} min in all",
    )
    text = page(storms, facts, command(options, StormPlan()))
    out = options.out or (RESULTS if command(options, StormPlan()) == "python -m bench.storms" else None)
    if out is None:
        print(text)
    else:
        out.write_text(text)
        print(f"written: {out}")


def command(options: argparse.Namespace, default: StormPlan) -> str:
    """Returns the command for the same measurements."""
    words = ["python -m bench.storms"]
    for name in ("brokers", "clients", "topics"):
        if getattr(options, name) != getattr(default, name):
            words.append(f"--{name} {getattr(options, name)}")
    words += [f"--storm '{name}'" for name in options.storm or ()]
    return " ".join(words)


if __name__ == "__main__":
    main()
