"""Arithmetic of the failover benchmark: pauses of a producer, percentiles and aims on its page."""

import time

import pytest
from bench.failover import CONFIGURATIONS, KILL, STOP, Pauses, Results, page, pooled, verdict
from bench.failover_producers import STEADY_RECORDS, PauseMeter, ProducerSettings

SETTINGS = ProducerSettings("orders", 2, True, 5)


class Now:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.at = 100.0
        monkeypatch.setattr(time, "monotonic", lambda: self.at)


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> Now:
    return Now(monkeypatch)


def test_producer_settings_are_one_word() -> None:
    assert str(SETTINGS) == "orders,2,1,5"
    assert ProducerSettings.parse(str(SETTINGS)) == SETTINGS


def test_a_pause_is_the_longest_silence_of_one_partition(now: Now) -> None:
    meter = PauseMeter(SETTINGS)
    for partition in (0, 1):
        meter.acknowledged(partition, now.at)
    now.at = 103.0
    for partition in (0, 1):
        meter.acknowledged(partition, now.at)
    meter.mark()
    for now.at in (103.1, 103.2, 103.3):
        meter.acknowledged(0, now.at)
    assert meter.pause == pytest.approx(0.3), "partition 1 is still silent"
    assert not meter.has_resumed(103.0)
    now.at = 103.5
    meter.acknowledged(1, 102.9)
    assert not meter.has_resumed(103.0), "the record was sent before"
    meter.acknowledged(1, 103.4)
    assert meter.has_resumed(103.0)
    assert meter.pause == pytest.approx(0.5)


def test_a_producer_is_steady_when_every_partition_is(now: Now) -> None:
    meter = PauseMeter(SETTINGS)
    for _ in range(STEADY_RECORDS):
        assert not meter.is_steady
        meter.acknowledged(0, now.at)
    for _ in range(STEADY_RECORDS):
        assert not meter.is_steady
        meter.acknowledged(1, now.at)
    assert meter.is_steady


def test_the_page_has_both_brokers_and_the_verdicts() -> None:
    results: Results = {
        ("Moldau", "Java", KILL, CONFIGURATIONS[0]): Pauses([0.1, 0.2, 0.3]),
        ("Moldau", "Java", KILL, CONFIGURATIONS[1]): Pauses([0.2, 1.5], failed_records=2),
        ("Kafka", "Java", KILL, CONFIGURATIONS[0]): Pauses([9.0]),
    }
    found = pooled(results, "Moldau", "Java", KILL)
    assert found == Pauses([0.1, 0.2, 0.3, 0.2, 1.5], 2)
    assert pooled(results, "Moldau", "Java", STOP) is None
    assert verdict(results, "Java", KILL) == "p50 ≤ 0.4: met, p99 ≤ 1: **not met**"
    assert verdict(results, "Java", STOP) == "-"
    stops: Results = {("Moldau", client, STOP, CONFIGURATIONS[0]): Pauses([0.2]) for client in ("Java", "aiokafka")}
    assert verdict(stops, "Java", STOP) == "max ≤ 0.2: met"
    assert verdict(stops, "aiokafka", STOP) == "-"
    slow_configuration = ("Moldau", "Java", STOP, CONFIGURATIONS[1])
    assert verdict({**stops, slow_configuration: Pauses([0.3])}, "Java", STOP) == "max ≤ 0.2: **not met**"
    text = page(results, ["Java"], [KILL], "- facts", "the command")
    row = "| Java, leader killed (SIGKILL) | 0.20 | 1.50 | 1.50 | 9.00 | 9.00 | 9.00 | "
    assert row + "p50 ≤ 0.4: met, p99 ≤ 1: **not met** | 2 / 0 |" in text
    assert "| 1 partition, idempotent, linger 0 ms | 0.20 | 0.30 | 0.30 | 9.00 | 9.00 | 9.00 |" in text
    assert "| 6 partitions, not idempotent, linger 5 ms | - | - | - | - | - | - |" in text
