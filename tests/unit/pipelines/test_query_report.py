"""Reports of queries: their format, and what a reader ignores."""

import json
from dataclasses import replace

import pytest

from moldau.pipelines import query_report
from moldau.pipelines.query_report import (
    LOST_AFTER_MS,
    NAME_LENGTH_MAX,
    RETENTION_MS,
    LatestReports,
    QueryReport,
    parse_report,
)

REPORT = QueryReport(
    pipeline="revenue",
    query="table",
    state="running",
    time_ms=1_769_860_800_000,
    started="2026-01-31T12:00:00.000Z",
    host="alpha",
    pid=7,
    master="local[*]",
    generation=1,
    rows=10,
    lag=3,
    input_rate=2.5,
)


def test_a_report_survives_the_topic() -> None:
    assert parse_report(REPORT.to_json()) == REPORT
    later = {**json.loads(REPORT.to_json()), "added_later": 1}
    assert parse_report(json.dumps(later).encode()) == REPORT


@pytest.mark.parametrize(
    "changed",
    [
        {"rows": "10"},
        {"rows": True},
        {"rows": 2**70},
        {"lag": 1.5},
        {"time_ms": -1},
        {"time_ms": 10**18},
        {"input_rate": float("nan")},
        {"input_rate": float("inf")},
        {"query": 7},
        {"pipeline": "\ud800"},
        {"error": ["x"]},
        {"error": "x" * 20_000},
    ],
)
def test_a_record_that_is_no_report_is_ignored(changed: dict[str, object]) -> None:
    document = {**json.loads(REPORT.to_json()), **changed}

    assert parse_report(json.dumps(document).encode()) is None


@pytest.mark.parametrize("value", [b"", b"{", b"[]", b"null", b"{}", b"\xff", b"[" * 10_000])
def test_other_bytes_are_ignored(value: bytes) -> None:
    assert parse_report(value) is None


def test_the_latest_report_of_each_query_counts() -> None:
    reports = LatestReports()
    other = replace(REPORT, query="alerts")
    reports.add(REPORT.key, REPORT.to_json())
    reports.add(other.key, other.to_json())
    reports.add(REPORT.key, replace(REPORT, rows=20).to_json())
    reports.add(REPORT.key, b"not a report")
    reports.add(b"another/key", REPORT.to_json())
    reports.add(None, REPORT.to_json())
    assert [(each.query, each.rows) for each in reports] == [("alerts", 10), ("table", 20)]

    reports.add(other.key, None)
    assert [each.query for each in reports] == ["table"]


def test_the_number_of_queries_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query_report, "REPORTS_MAX", 5)
    reports = LatestReports()
    for number in range(10):
        each = replace(REPORT, query=f"q{number}")
        reports.add(each.key, each.to_json())
    assert len(list(reports)) == 5


def test_a_query_without_reports_is_lost_only_if_it_should_run() -> None:
    late_ms = REPORT.time_ms + LOST_AFTER_MS + 1

    assert REPORT.state_at(late_ms - 1) == "running"
    assert REPORT.state_at(late_ms) == "lost"
    assert replace(REPORT, state="failed").state_at(late_ms) == "failed"


def test_reports_expire_as_the_topic_deletes_them() -> None:
    reports = LatestReports()
    reports.add(REPORT.key, REPORT.to_json())
    reports.drop_expired(REPORT.time_ms + RETENTION_MS)
    assert list(reports) == [REPORT]
    reports.drop_expired(REPORT.time_ms + RETENTION_MS + 1)
    assert not list(reports)


def test_names_that_are_too_long_for_labels_are_no_reports() -> None:
    assert parse_report(replace(REPORT, query="q" * NAME_LENGTH_MAX).to_json()) is not None
    assert parse_report(replace(REPORT, query="q" * (NAME_LENGTH_MAX + 1)).to_json()) is None
