"""TimeoutLog: what it says, and how much."""

import logging

import pytest

from moldau.observe.logging import FIELDS
from moldau.transactions.requests import LongTransaction, ProducerIdAndEpoch
from moldau.transactions.timeout_log import INTERVAL_MS, LINES_PER_INTERVAL_MAX, TimeoutLog
from moldau.transactions.transaction_metadata import ProducerClient

TRANSACTION = LongTransaction(
    "billing-1", ProducerIdAndEpoch(7, 3), ProducerClient("billing", "/10.0.0.7"), 2, 48_000, 60_000, False
)


class FakeClock:
    def __init__(self) -> None:
        self.now_ms = 1_000_000

    def monotonic_ms(self) -> int:
        return self.now_ms

    def wall_ms(self) -> int:
        return self.now_ms


@pytest.fixture(autouse=True)
def _level(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger("moldau"), "propagate", True)
    caplog.set_level(logging.WARNING)


def test_a_line_says_who_and_how_long(caplog: pytest.LogCaptureFixture) -> None:
    log = TimeoutLog(FakeClock())
    log.write(TRANSACTION)
    log.write(TRANSACTION._replace(is_timed_out=True))
    soon, timed_out = caplog.records
    assert "will be aborted soon" in soon.getMessage()
    assert "transaction.timeout.ms" in timed_out.getMessage()
    assert getattr(soon, FIELDS) == {
        "transactional_id": "billing-1",
        "producer_id": 7,
        "producer_epoch": 3,
        "client_id": "billing",
        "client_host": "/10.0.0.7",
        "partitions": 2,
        "open_ms": 48_000,
        "timeout_ms": 60_000,
    }


def test_many_transactions_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    clock = FakeClock()
    log = TimeoutLog(clock)
    for _ in range(LINES_PER_INTERVAL_MAX + 5):
        log.write(TRANSACTION)
    assert len(caplog.records) == LINES_PER_INTERVAL_MAX
    clock.now_ms += INTERVAL_MS
    log.write(TRANSACTION)
    *_, more, last = caplog.records
    assert getattr(more, FIELDS) == {"count": 5}
    assert "will be aborted soon" in last.getMessage()
    assert len(caplog.records) == LINES_PER_INTERVAL_MAX + 2
