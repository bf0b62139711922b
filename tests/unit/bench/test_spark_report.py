"""Rendering of the Spark benchmark page."""

from bench.report import decimals
from bench.spark_jobs import CONNECTOR, INSIDE, LOOP, MOLDAU
from bench.spark_report import Aim, Case, Rates, Times, render_aims, render_disturbed, spread_of

AIMS = (Aim(LOOP, 1.5), Aim(CONNECTOR, 2.0))
CASE = Case(
    "100 B", {MOLDAU: [300.0, 330.0, 310.0], LOOP: [200.0, 220.0, 100.0], CONNECTOR: [160.0, 150.0, 155.1]}, 0.1
)


def times(reached: float, other_cores: float = 0.0) -> Times:
    rows = {MOLDAU: (reached, 200.0), CONNECTOR: (500.0, 600.0)}
    measures = (("p50", decimals(0)), ("p99", decimals(0)))
    return Times("Micro-batch", measures, rows, 150.0, "One row.", other_cores)


def test_rates_are_medians_and_ratios_are_those_of_medians_with_the_range_of_the_rounds() -> None:
    lines = Rates("Topic → noop", [CASE], AIMS).render().splitlines()
    assert lines[0] == "### Topic → noop"
    assert lines[-1] == "| 100 B | 310 | 200 | 155 | 1.55 (1.50 to 3.10) | 2.00 (1.88 to 2.20) | 0.10 |"


def test_contestants_that_did_not_run_have_no_column_and_no_aim() -> None:
    table = Rates("Topic → noop", [Case("100 B", {MOLDAU: [300.0], LOOP: [100.0]}, 0.0)], AIMS)
    assert "JVM connector" not in table.render()
    assert [verdict.what for verdict in table.verdicts()] == ["Topic → noop, 100 B: `moldau` to librdkafka, plain loop"]


def test_an_aim_is_met_to_the_decimals_it_is_shown_with() -> None:
    assert [verdict.met for verdict in Rates("", [CASE], AIMS).verdicts()] == [True, True]
    assert [verdict.met for verdict in Rates("", [CASE], (Aim(CONNECTOR, 2.01),)).verdicts()] == [False]
    assert [verdict.met for verdict in times(150.0).verdicts()] == [True]
    assert [verdict.met for verdict in times(151.0).verdicts()] == [False]


def test_the_page_starts_with_the_number_of_aims_met() -> None:
    text = render_aims([Rates("Topic → noop", [CASE], AIMS), times(151.0)])
    assert text.startswith("## Aims: 2 of 3 met")
    assert "| Micro-batch: p50 | ≤ 150 | 151 | **not met** |" in text
    assert render_aims([Rates("", [Case("", {INSIDE: [1.0]}, 0.0)], AIMS)]) == ""


def test_a_page_measured_on_a_busy_machine_has_a_warning() -> None:
    quiet = Rates("Topic → noop", [CASE])
    assert render_disturbed([quiet, times(1.0)]) == ""
    text = render_disturbed([quiet, times(1.0, other_cores=1.5)])
    assert "during 1 of the 2 tables below, up to 1.5 cores (Micro-batch)" in text


def test_a_spread_is_the_median_and_the_99th_percentile() -> None:
    assert spread_of([float(number) for number in range(1, 101)]) == (50.0, 99.0)
