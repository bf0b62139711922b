"""Group benchmarks: duration of a rebalance, rate of commits, and latency of a commit."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from bench.brokers import Broker, Durability
from bench.client import Job
from bench.load import Run, run, topic
from bench.plan import Bench, figures
from bench.report import OTHERS, Cell, Metric, Row, Table, count, decimals, percentile

SIZES = {2: 10, 20: 3, 100: 1}
"""Group sizes, and how many times more often small groups rebalance, so that each run is long enough to measure."""
AIM_REBALANCE = 1.0
AIM_COMMITS = 1.0
AIM_COMMIT_LATENCY = 1.0
COMMIT_CONNECTIONS = 20
TOPIC_PARTITIONS = 10
WARM_UP_ROUNDS = 6

P50 = Metric("p50 ms", decimals(2))
P99 = Metric("p99 ms", decimals(2))
COMMITS = Metric("commits/s", count, higher_is_better=True)
CPU = Metric("broker CPU ms per commit", decimals(3))
CPU_REBALANCE = Metric("broker CPU ms per rebalance", decimals(1))


def without_rebalance_delay(durability: Durability) -> Durability:
    """Returns the durability with no initial rebalance delay, which is the same for both brokers."""
    return replace(
        durability,
        moldau_arguments=(*durability.moldau_arguments, "--group-initial-rebalance-delay-ms", "0"),
        kafka_properties=(*durability.kafka_properties, ("group.initial.rebalance.delay.ms", "0")),
    )


def groups(bench: Bench, durability: Durability) -> list[Table]:
    with bench.running(without_rebalance_delay(durability)) as brokers:
        for broker in brokers:
            bench.print_line(f"{broker.name} is up, {durability.name}; warming up groups")
            _warm_up(broker)
        return [
            _rebalances(bench, brokers, durability),
            _commits(bench, brokers, durability),
            _latency(bench, brokers, durability),
        ]


def _warm_up(broker: Broker) -> None:
    """A JVM needs its coordinator code compiled first."""
    for _ in range(WARM_UP_ROUNDS):
        _rebalance_once(20, 20, broker)
        _commit_once(1000, 2.0, broker)
        _latency_once(1000, broker)


def _rebalances(bench: Bench, brokers: list[Broker], durability: Durability) -> Table:
    rows = []
    for size, times in SIZES.items():
        taken = bench.interleaved(brokers, partial(_rebalance_once, size, times * bench.plan.rebalances))
        rows.append(
            Row(
                f"{size} members",
                (
                    Cell(P50, figures(taken, partial(_at, 0.5)), AIM_REBALANCE),
                    Cell(P99, figures(taken, partial(_at, 0.99))),
                    Cell(CPU_REBALANCE, figures(taken, _cpu_ms)),
                    Cell(OTHERS, figures(taken, lambda one: one.other_cores)),
                ),
            )
        )
        bench.print_row(f"rebalance, {durability.name}", rows[-1])
    note = (
        "From one more member's joining (and its leaving) until every member has its assignment; each member "
        "has its own connection and does not wait for a heartbeat interval."
    )
    return Table(f"Rebalance, {durability.name}", tuple(rows), note)


def _commits(bench: Bench, brokers: list[Broker], durability: Durability) -> Table:
    number = bench.plan.groups
    taken = bench.interleaved(brokers, partial(_commit_once, number, bench.plan.produce_s))
    row = Row(
        f"{number:,} groups",
        (
            Cell(COMMITS, figures(taken, lambda one: one.records_per_s), AIM_COMMITS),
            Cell(CPU, figures(taken, _cpu_ms)),
            Cell(OTHERS, figures(taken, lambda one: one.other_cores)),
        ),
    )
    bench.print_row(f"commits, {durability.name}", row)
    note = f"Ten partitions in a commit, {COMMIT_CONNECTIONS} connections, each group waits for its response."
    return Table(f"Groups committing, {durability.name}", (row,), note)


def _latency(bench: Bench, brokers: list[Broker], durability: Durability) -> Table:
    taken = bench.interleaved(brokers, partial(_latency_once, bench.plan.acknowledgements))
    row = Row(
        "one partition",
        (
            Cell(P50, figures(taken, partial(_at, 0.5)), AIM_COMMIT_LATENCY),
            Cell(P99, figures(taken, partial(_at, 0.99)), AIM_COMMIT_LATENCY),
            Cell(OTHERS, figures(taken, lambda one: one.other_cores)),
        ),
    )
    bench.print_row(f"commit latency, {durability.name}", row)
    return Table(
        f"Commit latency, {durability.name}", (row,), f"One at a time, {bench.plan.acknowledgements:,} in each run."
    )


def _rebalance_once(size: int, times: int, broker: Broker) -> Run:
    return run(broker, Job("rebalance", broker.bootstrap, "", connections=size, records=times))


def _commit_once(number: int, seconds: float, broker: Broker) -> Run:
    with topic(broker, TOPIC_PARTITIONS) as name:
        return run(
            broker,
            Job("commit", broker.bootstrap, name, seconds=seconds, connections=COMMIT_CONNECTIONS, in_flight=number),
        )


def _latency_once(commits: int, broker: Broker) -> Run:
    with topic(broker, TOPIC_PARTITIONS) as name:
        return run(broker, Job("commit_latency", broker.bootstrap, name, records=commits))


def _at(share: float, one: Run) -> float:
    return percentile(one.outcome.latencies_ms, share)


def _cpu_ms(one: Run) -> float:
    return one.broker_cpu_s * 1000 / one.outcome.records
