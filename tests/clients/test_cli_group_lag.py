"""`moldau group lag`, and the lag that it computes itself for brokers without samples."""

import asyncio
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from typer.testing import CliRunner

from moldau.cli.commands import app
from moldau.cli.exit_codes import ExitCode
from moldau.cli.group import lag as lag_command
from moldau.cli.group.lag import format_ms
from moldau.client import Admin, Consumer, Producer, TopicPartition
from moldau.client.admin.group_lag import GroupLagSample
from moldau.client.admin.group_lag_estimator import GroupLagEstimator
from moldau.client.errors import UnsupportedVersionError
from moldau.testing import Broker

PATIENCE_S = 60
RECORDS = 20
SETTINGS = {"lag.sample.interval.ms": "100", "group.initial.rebalance.delay.ms": "0"}


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """The group `readers` has read 5 of 20 records of each partition. In `payments` a transaction is open, and a marker
    is the last record before it."""

    async def prepare(bootstrap: str) -> None:
        async with Admin(bootstrap) as admin, Producer(bootstrap) as producer:
            for number in range(2 * RECORDS):
                await producer.send("orders", b"v", partition=number % 2)
            await producer.flush()
            await admin.alter_group_offsets("readers", {TopicPartition("orders", each): 5 for each in range(2)})
            async with Producer(bootstrap, transactional_id="t") as payer, payer.transaction():
                await payer.send("payments", b"paid", partition=0)
            await admin.alter_group_offsets("payers", {TopicPartition("payments", 0): 1})

    with Broker({"orders": 2, "payments": 1}, SETTINGS) as started:
        asyncio.run(asyncio.wait_for(prepare(started.bootstrap), PATIENCE_S))
        yield started


def run(broker: Broker, *arguments: str, fails: bool = False) -> Any:
    result = CliRunner().invoke(app, ["group", "lag", *arguments], env={"MOLDAU_BOOTSTRAP": broker.bootstrap})
    assert (result.exit_code != 0) == fails, result.output
    return result


def rows(broker: Broker, *arguments: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run(broker, *arguments, "--json").stdout.splitlines()]


def cells(line: str) -> list[str]:
    return line.split()


def test_a_table_shows_records_and_time(broker: Broker) -> None:
    lines = run(broker, "readers").stdout.splitlines()
    assert lines[0].startswith(f"readers: {2 * (RECORDS - 5)} records behind, at most ")
    table = [cells(line) for line in lines[2:]]
    assert [each[:6] for each in table] == [["readers", "orders", index, "5", "20", "15"] for index in ("0", "1")]
    assert run(broker, "nothing", fails=True).exit_code == ExitCode.NOT_FOUND


def test_all_groups_are_shown_without_a_name_and_rates_come_with_the_second_sample(broker: Broker) -> None:
    read = rows(broker, "--watch", "--count", "2")
    assert {row["group"] for row in read} == {"readers", "payers"}
    last = [row for row in read if row["group"] == "readers"][-1]
    assert (last["commit_rate"], last["produce_rate"], last["catches_up"], last["trend"]) == (0, 0, False, "steady")
    assert last["lag_ms"] > 0
    assert last["time_source"] == "append"
    assert run(broker, "--count", "2", fails=True).exit_code == 2


def test_the_age_of_samples_is_shown_live(broker: Broker) -> None:
    lines = run(broker, "readers", "--watch", "--count", "1").stdout.splitlines()
    assert re.fullmatch(r"\d\d:\d\d:\d\d, sampled \d+ s ago, every 0\.1 s", lines[0])
    assert "sampled" not in run(broker, "readers").stdout


def test_a_marker_is_no_time_lag(broker: Broker) -> None:
    (row,) = rows(broker, "payers")
    assert (row["lag_records"], row["lag_ms"]) == (1, 0)


def test_the_consumer_of_a_partition_is_named(broker: Broker) -> None:
    async def read() -> dict[str, Any]:
        settings = {"group_id": "live", "auto_offset_reset": "earliest", "client_id": "reader-7"}
        async with Consumer(broker.bootstrap, **settings) as consumer:  # type: ignore[arg-type]
            consumer.subscribe(["payments"])
            await anext(consumer)
            await consumer.commit()
            (row,) = await asyncio.to_thread(rows, broker, "live")
            return row

    row = asyncio.run(asyncio.wait_for(read(), PATIENCE_S))
    assert (row["client_id"], row["client_host"]) == ("reader-7", "/127.0.0.1")
    assert row["member_id"].startswith("reader-7-")


def test_brokers_without_samples_give_the_same_lag(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: object) -> None:
        raise UnsupportedVersionError("the broker does not support DESCRIBE_GROUP_LAG")

    sampled = {(row["group"], row["partition"]): row for row in rows(broker)}
    monkeypatch.setattr(Admin, "describe_group_lags", fail)
    monkeypatch.setattr(Admin, "list_group_lags", fail)
    monkeypatch.setattr(lag_command, "REFRESH_S", 0.1)
    estimated = rows(broker, "--watch", "--count", "3")
    for row in estimated[-len(sampled) :]:
        known = sampled[row["group"], row["partition"]]
        for name in ("topic", "committed_offset", "high_watermark", "log_start_offset", "lag_records"):
            assert row[name] == known[name]
        assert (row["commit_rate"], row["produce_rate"]) == (0, 0)
        if known["lag_ms"]:
            assert row["lag_ms"] - (row["time_ms"] - known["time_ms"]) == pytest.approx(known["lag_ms"], abs=1_000)
            assert row["time_source"] == "timestamp"
        else:
            assert row["lag_ms"] == 0


def test_the_option_says_how_a_group_reads_on_brokers_without_samples(broker: Broker) -> None:
    async def estimate() -> list[GroupLagSample]:
        async with (
            Admin(broker.bootstrap) as admin,
            Producer(broker.bootstrap, transactional_id="open") as payer,
            payer.transaction(),
        ):
            await (await payer.send("payments", b"open", partition=0))
            return [
                (await GroupLagEstimator(admin, isolation_level=level, interval_ms=100).sample(["payers"]))[0]
                for level in ("read_committed", "read_uncommitted")
            ]

    committed, uncommitted = asyncio.run(asyncio.wait_for(estimate(), PATIENCE_S))
    assert [each.lag.lag_records for each in committed.partitions] == [1]
    assert [each.lag.lag_ms for each in committed.partitions] == [0]
    assert [each.lag.lag_records for each in uncommitted.partitions] == [2]
    assert (uncommitted.partitions[0].lag.lag_ms or 0) > 0


@pytest.mark.parametrize(
    ("value_ms", "text"),
    [(None, "-"), (0, "0 s"), (950, "0.9 s"), (61_000, "1 min 1 s"), (3_600_000, "1 h"), (90_000_000, "1 d 1 h")],
)
def test_times_have_two_units(value_ms: int | None, text: str) -> None:
    assert format_ms(value_ms) == text
