"""The page about storms: one row per storm in each table, and a command that repeats the measurement."""

import argparse

import pytest
from bench.storms import LABELS, METHOD, command, page

from moldau.testing.simulation.scenarios.storms import STORMS, StormFigures, StormPlan


def figures(name: str) -> StormFigures:
    return StormFigures(
        name=name,
        client_ms=[10.0] * 99 + [2_500.0],
        led_ms=1_000.0,
        unfenced_ms=1_200.0,
        replicated_ms=3_000.0,
        heartbeat_ms=400.0,
        failed_heartbeats=3,
        fenced=[4],
        lost_leases=[4, 5],
        fenced_dead=50,
        elections=2_650,
        requests=8_701,
        metadata_requests=2_271,
        observed_s=4.8,
        cpu_s=18.1,
        idle_cpu_s=0.25,
        busiest_cpu_s=3.1,
        longest_wait_ms=34.4,
    )


def test_every_storm_has_a_row_in_every_table() -> None:
    text = page([figures(name) for name in STORMS], ["one fact"], "python -m bench.storms")
    rows = [line for line in text.splitlines() if line.startswith(f"| {LABELS['brokers restart']} |")]
    assert [row.split(" | ")[1:] for row in rows] == [
        ["0.01", "0.01", "2.50", "1.00", "1.20", "3.00 |"],
        ["0.40", "3", "1", "2", "50", "2,650 |"],
        ["4.80", "8,701", "2,271", "18.10", "0.25", "3.10", "34 |"],
    ]
    assert text.count("\n| ") == 3 * (1 + len(STORMS))
    assert METHOD.read_text() in text


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "python -m bench.storms"),
        ({"brokers": 5, "storm": ["controller dies"]}, "python -m bench.storms --brokers 5 --storm 'controller dies'"),
    ],
)
def test_the_command_repeats_the_measurement(options: dict[str, object], expected: str) -> None:
    plan = StormPlan()
    given = {"brokers": plan.brokers, "clients": plan.clients, "topics": plan.topics, "storm": None, **options}
    assert command(argparse.Namespace(**given), plan) == expected
