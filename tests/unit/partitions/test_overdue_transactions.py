"""Transactions that do not end are found and logged once."""

import asyncio
import logging
from types import SimpleNamespace
from typing import Any, cast

import pytest

from moldau.logs.store import LogName
from moldau.logs.unstable_transactions import UnstableTransactions
from moldau.observe.logging import FIELDS
from moldau.partitions.log_maintenance import LogMaintenance
from moldau.partitions.overdue_transactions import OverdueTransactions
from moldau.settings.broker import BrokerSettings
from moldau.settings.effective import EffectiveSettings

A, B, C = (LogName("orders", index) for index in range(3))
MAX_MS = 900_000


def test_a_transaction_is_overdue_once_in_each_partition() -> None:
    overdue = OverdueTransactions()
    assert overdue.update(0, {A: (10, 7), B: (20, 7), C: (5, 8)}, MAX_MS) == []
    assert overdue.update(MAX_MS, {A: (10, 7), B: (20, 7), C: (5, 8)}, MAX_MS) == []
    # The transaction of producer 8 has ended, and another one of it started.
    assert overdue.update(MAX_MS + 1, {A: (10, 7), B: (20, 7), C: (6, 8)}, MAX_MS) == [(7, [A, B], MAX_MS + 1)]
    assert overdue.update(2 * MAX_MS, {A: (10, 7), B: (20, 7), C: (6, 8)}, MAX_MS) == []
    assert overdue.update(3 * MAX_MS, {A: (10, 7), C: (6, 8)}, MAX_MS) == [(8, [C], 2 * MAX_MS - 1)]
    assert overdue.update(4 * MAX_MS, {B: (20, 7)}, MAX_MS) == [], "seen anew"


def test_the_node_logs_it(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger("moldau"), "propagate", True)
    caplog.set_level(logging.WARNING)

    def partition(index: int, *, is_leader: bool = True) -> Any:
        unstable = UnstableTransactions()
        unstable.begin(7, 10 + index)
        unstable.begin(8, 20 + index)
        log = SimpleNamespace(producers=SimpleNamespace(unstable=unstable))
        return SimpleNamespace(name=LogName("orders", index), is_leader=is_leader, log=log)

    class Replicas(list[Any]):
        late_transaction_count = 0

    partitions = Replicas([*(partition(index) for index in range(7)), partition(7, is_leader=False)])
    clock = SimpleNamespace(monotonic_ms=lambda: now_ms)
    maintenance = LogMaintenance(cast(Any, partitions), EffectiveSettings(BrokerSettings()), cast(Any, clock))
    for now_ms in (0, MAX_MS, MAX_MS + 60_000, MAX_MS + 120_000):  # noqa: B007 - the clock reads it
        asyncio.run(maintenance.check_transactions())
    (record,) = caplog.records
    assert "moldau transaction hanging" in record.getMessage()
    assert getattr(record, FIELDS) == {
        "producer_id": 7,
        "partitions": "orders-0, orders-1, orders-2, orders-3, orders-4 and 2 more",
        "open_min": 16,
    }
    assert partitions.late_transaction_count == 7, "the metrics show them until they end"
    for each in partitions:
        each.log.producers.unstable.complete(10 + each.name.partition, 30)
    asyncio.run(maintenance.check_transactions())
    assert partitions.late_transaction_count == 0
