"""The pipeline templates on real Spark: the output equals what plain Python computes."""

import json
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from moldau.pipelines.charts.lag_history import HistoryFilter, draw_lag_history
from moldau.pipelines.templates import template
from moldau.pipelines.templates.generator import GeneratedRecord, orders
from moldau.testing import Broker
from support.pipeline_runs import PipelineRuns, create_topics, read_all, read_json, send_all

pytestmark = pytest.mark.spark

START_MS = 1_769_860_800_000
DELAY = timedelta(seconds=10)
MINUTE = timedelta(minutes=1)

Key = tuple[datetime, str]


@dataclass
class Revenue:
    """The expected result of orders-revenue, batch by batch: a minute is closed once the watermark of earlier batches
    has reached its end."""

    sums: dict[Key, tuple[int, float]] = field(default_factory=dict)
    late: int = 0
    bad: list[bytes] = field(default_factory=list)
    watermark: datetime | None = None

    def add(self, batch: Iterable[GeneratedRecord]) -> None:
        latest = self.watermark
        for made in batch:
            order = valid_order(made.value or b"")
            if order is None:
                self.bad.append(made.value or b"")
                continue
            at = datetime.fromisoformat(order["at"])
            minute = at.replace(second=0, microsecond=0)
            latest = at - DELAY if latest is None else max(latest, at - DELAY)
            if self.watermark is not None and minute + MINUTE <= self.watermark:
                self.late += 1
                continue
            count, revenue = self.sums.get((minute, order["product"]), (0, 0.0))
            self.sums[minute, order["product"]] = (count + 1, revenue + order["quantity"] * order["price"])
        self.watermark = latest

    def rows(self) -> dict[Key, tuple[int, float]]:
        return {key: (count, round(revenue, 2)) for key, (count, revenue) in self.sums.items()}


def valid_order(value: bytes) -> dict[str, Any] | None:
    try:
        order: dict[str, Any] = json.loads(value)
    except ValueError:
        return None
    return order if order["price"] > 0 else None


def as_sums(rows: Iterable[dict[str, Any]]) -> dict[Key, tuple[int, float]]:
    """Returns the last row of each minute and product."""
    return {(_time(row["minute"]), row["product"]): (row["orders"], row["revenue"]) for row in rows}


def _time(value: str | datetime) -> datetime:
    time = datetime.fromisoformat(value) if isinstance(value, str) else value
    return time.astimezone(UTC)


def customers(count: int, changes: int) -> list[GeneratedRecord]:
    """Returns changes of `count` customers. A null value deletes a customer."""
    random_ = random.Random(3)
    made = []
    for number in range(changes):
        customer = f"c-{random_.randrange(count):05}".encode()
        state = {
            "name": random_.choice(("Ada", "Bohumil", "Clara", "Dora", "Emil")),
            "city": random_.choice(("Prague", "Brno", "Plzen", "Olomouc")),
            "plan": random_.choice(("free", "silver", "gold")),
            "changed_at": datetime.fromtimestamp(START_MS / 1000 + number, UTC).isoformat(),
        }
        is_deleted = random_.random() < 0.1
        made.append(GeneratedRecord(customer, None if is_deleted else json.dumps(state).encode()))
    return made


def table_rows(path: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = DeltaTable(str(path)).to_pyarrow_table().to_pylist()
    return rows


@pytest.fixture
def orders_revenue(spark: SparkSession, broker: Broker, tmp_path: Path) -> PipelineRuns:
    create_topics(broker.bootstrap, {"orders": 2, "revenue": 2, "orders.dead": 1})
    return PipelineRuns(spark, broker.bootstrap, tmp_path, template("orders-revenue"))


def test_orders_become_revenue_per_minute_and_product(orders_revenue: PipelineRuns) -> None:
    bootstrap = orders_revenue.bootstrap
    # Each part spans five minutes. Late orders of the first part arrive before any window closes; those of the others
    # are dropped.
    made = list(islice(orders(3, start_ms=START_MS, rate=1.0), 900))
    parts: Sequence[Sequence[GeneratedRecord]] = (made[:300], made[300:600], made[600:])
    expected = Revenue()
    for part in parts:
        send_all(bootstrap, "orders", part)
        orders_revenue.run_to_end()
        expected.add(part)
    assert expected.late > 2
    assert len(expected.bad) > 2
    assert as_sums(read_json(bootstrap, "revenue")) == expected.rows()
    rows = table_rows(orders_revenue.directory / "tables" / "revenue")
    assert as_sums(rows) == expected.rows()
    assert len(rows) == len(expected.rows()), "a row per minute and product"
    dead = read_all(bootstrap, "orders.dead")
    assert sorted(record.value or b"" for record in dead) == sorted(expected.bad)
    reasons = {dict(record.headers)["moldau.error.reason"] for record in dead}
    assert reasons == {b"malformed", b"expectation"}
    message = orders_revenue.recorded.batches
    assert 0 < sum(each.late for each in message if each.query == "table") <= expected.late, "Spark counts sums"
    assert sum(each.rows for each in message if each.query == "table") == len(made)
    assert {each.query: each.lag for each in message} == dict.fromkeys({each.query for each in message}, 0)


def test_a_topic_becomes_a_table(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    create_topics(broker.bootstrap, {"customers": 3})
    runs = PipelineRuns(spark, broker.bootstrap, tmp_path, template("compacted-table"))
    made = customers(60, 600)
    expected: dict[str, dict[str, Any]] = {}
    for part in (made[:400], made[400:]):
        send_all(broker.bootstrap, "customers", part)
        runs.run_to_end()
        for each in part:
            if each.value is None:
                expected.pop(each.key.decode(), None)
            else:
                expected[each.key.decode()] = json.loads(each.value)
        rows = table_rows(tmp_path / "tables" / "customers")
        assert len(rows) == len(expected) < 60, "a row per customer who is not gone"
        assert {row["customer"]: (row["name"], row["city"], row["plan"], _time(row["changed_at"])) for row in rows} == {
            customer: (state["name"], state["city"], state["plan"], _time(state["changed_at"]))
            for customer, state in expected.items()
        }


@pytest.mark.slow
def test_metrics_become_a_history_of_lag(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    create_topics(broker.bootstrap, {"moldau.metrics": 1})
    runs = PipelineRuns(spark, broker.bootstrap, tmp_path, template("lag-history"))
    # The samples cross midnight in UTC, 12 hours after the start.
    made = [each for number in range(60) for each in metrics_at(START_MS + 12 * 3_600_000 - 300_000 + 10_000 * number)]
    made.append(lag_without_leader(START_MS + 12 * 3_600_000))
    other = GeneratedRecord(b"new", json.dumps({"kind": "new-in-a-later-version", "time_ms": START_MS}).encode())
    for part in (made[:100], [other, GeneratedRecord(b"bad", b"{")], made[100:]):
        send_all(broker.bootstrap, "moldau.metrics", part)
        runs.run_to_end()

    table = tmp_path / "tables" / "lag_history"
    rows = table_rows(table)
    assert len(rows) == len(made)
    assert DeltaTable(str(table)).metadata().partition_columns == ["day", "kind"]
    assert {str(row["day"]) for row in rows} == {"2026-01-31", "2026-02-01"}
    (unknown,) = [row for row in rows if row["state"] == "no_leader"]
    assert (unknown["partition"], unknown["committed_offset"], unknown["lag_records"]) == (1, 60, None)
    rows.remove(unknown)
    last = max((row for row in rows if row["kind"] == "group-lag"), key=lambda row: row["time"])
    assert (last["group"], last["topic"], last["lag_records"], last["lag_ms"]) == ("billing", "orders", 40, None)
    chart = draw_lag_history(table, HistoryFilter())
    assert "billing  (max 40)" in chart
    assert "orders  (max 5)" in chart


def lag_without_leader(time_ms: int) -> GeneratedRecord:
    """Returns the record of a partition whose lag is unknown."""
    known = {"kind": "group-lag", "group": "billing", "topic": "orders", "partition": 1, "time_ms": time_ms}
    unknown = dict.fromkeys(("high_watermark", "log_start_offset", "lag_records", "lag_ms", "commit_rate"))
    fields = {**known, **unknown, "produce_rate": None, "committed_offset": 60, "state": "no_leader"}
    return GeneratedRecord(b"billing/orders/1", json.dumps(fields).encode())


def metrics_at(time_ms: int) -> list[GeneratedRecord]:
    """Returns the records that a cluster with one partition and one group writes at this time."""
    position = {"topic": "orders", "partition": 0, "high_watermark": 100, "log_start_offset": 0, "time_ms": time_ms}
    lag = {"committed_offset": 60, "lag_records": 40, "lag_ms": None, "commit_rate": 2.5, "state": "ok"}
    of_group = {**position, **lag, "kind": "group-lag", "group": "billing", "produce_rate": 5.0}
    of_partition = {**position, "kind": "partition", "size_bytes": 4096, "produce_rate": 5.0}
    return [
        GeneratedRecord(b"billing/orders/0", json.dumps(of_group).encode()),
        GeneratedRecord(b"/orders/0", json.dumps(of_partition).encode()),
    ]
