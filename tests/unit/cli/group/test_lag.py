"""The table of `moldau group lag` fits into terminals of any size."""

import io

import pytest
from rich.console import Console, ConsoleDimensions

from moldau.cli.group.lag import COLUMNS, render, to_row
from moldau.client.admin.group_lag import GroupLagSample, PartitionLagSample
from moldau.client.record import TopicPartition
from moldau.lag.state import LagState, PartitionLag

LAG = PartitionLag(
    sampled_ms=1_767_225_600_000,
    state=LagState.OK,
    committed_offset=1_000_000,
    commit_timestamp_ms=1_767_225_590_000,
    high_watermark=1_005_000,
    last_stable_offset=1_005_000,
    log_start_offset=0,
    is_read_committed=False,
    lag_records=5_000,
    lag_ms=140_000,
    is_append_time=True,
    commit_rate=123.4,
    produce_rate=99.9,
)
MEMBER = ("invoices-3f1c5a52-6d0e-4a6e-9f6a-0a3c8f0b7a11", "invoices", "/10.1.2.3")


def group(name: str, *lags: PartitionLag) -> GroupLagSample:
    partitions = tuple(
        PartitionLagSample(TopicPartition("orders", number), lag, *MEMBER) for number, lag in enumerate(lags)
    )
    return GroupLagSample(name, "Stable", 1, 10_000, partitions)


STUCK = group("billing", LAG, LAG._replace(state=LagState.LOST_RECORDS))
OTHER = group("audit", LAG._replace(state=LagState.FALLING_BEHIND))


def lines_of(*samples: GroupLagSample, width: int, height: int = 30) -> list[str]:
    size = ConsoleDimensions(width, height)
    console = Console(file=io.StringIO(), width=width, height=height)
    with console.capture() as captured:
        console.print(render(samples, size))
    return [line.rstrip() for line in captured.get().splitlines()]


@pytest.mark.parametrize("width", [80, 100, 120, 160, 200])
@pytest.mark.parametrize("samples", [(STUCK,), (STUCK, OTHER)], ids=["one group", "two groups"])
def test_each_partition_is_one_line_that_says_what_is_stuck(samples: tuple[GroupLagSample, ...], width: int) -> None:
    lines = lines_of(*samples, width=width)
    assert len(lines) == 2 + sum(len(each.partitions) for each in samples)
    assert all(len(line) <= width for line in lines)
    for name in ("topic", "partition", "lag", "time lag", "state", "consumer"):
        assert f" {name}" in f" {lines[1]}"
    for text in (" 1  ", " 5000 ", " 2 min 20 s ", " lost records ", " invoices/10."):
        assert text in lines[3]
    if len(samples) > 1:
        assert lines[-1].startswith("audit")


def test_a_wide_terminal_shows_all_columns_and_a_narrow_one_the_important_ones() -> None:
    heading = lines_of(STUCK, OTHER, width=200)[1]
    assert [name for name in COLUMNS if name in heading] == list(COLUMNS)
    narrow = lines_of(STUCK, OTHER, width=80)[1].split("  ")
    assert "committed" not in narrow
    assert "group" in narrow


def test_long_names_are_folded_before_columns_disappear() -> None:
    long_name = "g" * 60
    lines = lines_of(group(long_name, LAG), OTHER, width=100)
    assert "state" in lines[1]
    assert "".join(line.split()[0] for line in lines[2:] if line.startswith("g")) == long_name


def test_the_worst_partitions_are_shown_if_not_all_fit() -> None:
    lags = [LAG._replace(lag_ms=each) for each in range(1_000, 50_000, 1_000)]
    lags[17] = LAG._replace(state=LagState.STALLED, lag_ms=0)
    lines = lines_of(group("billing", *lags), width=120, height=10)
    assert len(lines) == 9, "the last line of the terminal stays free"
    assert [line.split()[1] for line in lines[2:5]] == ["17", "48", "47"]
    assert lines[-1] == f"and {len(lags) - 6} more partitions, in a better state"


def test_values_that_are_unknown_before_the_second_sample_are_null_in_json() -> None:
    first = group("billing", LAG._replace(lag_ms=None, commit_rate=None, produce_rate=None))
    row = to_row(first, first.partitions[0])
    unknown = ("lag_ms", "commit_rate", "produce_rate", "trend", "catches_up", "catch_up_seconds")
    assert {name: row[name] for name in unknown} == dict.fromkeys(unknown)
    assert lines_of(first, width=200)[2].split()[6:11] == ["-"] * 5


UNKNOWN = LAG._replace(
    state=LagState.NO_LEADER,
    high_watermark=None,
    last_stable_offset=None,
    log_start_offset=None,
    lag_records=None,
    lag_ms=None,
    commit_rate=None,
    produce_rate=None,
)
NO_LAG = LAG._replace(lag_records=0, lag_ms=0)


@pytest.mark.parametrize(
    ("lags", "text"),
    [
        ([NO_LAG] * 3, "no records behind; all 3 partitions ok"),
        ([NO_LAG], "no records behind; 1 partition ok"),
        (
            [LAG, LAG._replace(state=LagState.STOPPED)],
            "10000 records behind, at most 2 min 20 s; 1 of 2 partitions: stopped",
        ),
        (
            [LAG._replace(state=LagState.STOPPED), UNKNOWN],
            "lag unknown, at least 5000 records behind; 2 of 2 partitions not ok",
        ),
        ([NO_LAG, UNKNOWN], "lag unknown; 1 of 2 partitions: no leader"),
        ([], "no committed offsets"),
    ],
)
def test_the_first_line_says_how_many_partitions_are_ok(lags: list[PartitionLag], text: str) -> None:
    assert lines_of(group("billing", *lags), width=200)[0] == f"billing: {text}"


def test_the_age_of_the_oldest_sample_is_shown() -> None:
    samples = (STUCK._replace(age_ms=1_200), OTHER._replace(age_ms=8_900))
    lines = lines_of(*samples, width=120)
    assert lines[-1] == "sampled 8 s ago, every 10 s"
    lags = [LAG] * 20
    assert len(lines_of(group("billing", *lags)._replace(age_ms=0), width=120, height=10)) == 9


def test_partitions_with_an_unknown_lag_come_first() -> None:
    lags = [LAG._replace(state=LagState.STOPPED)] * 8 + [UNKNOWN]
    first = lines_of(group("billing", *lags), width=160, height=6)[2].split()
    assert first[1:7] == ["orders", "8", "1000000", "-", "-", "-"]
