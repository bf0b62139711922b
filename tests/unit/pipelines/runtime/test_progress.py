"""Progress parsed from Spark's reports, and its rotated file."""

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from moldau.pipelines.runtime.progress import (
    Progress,
    ProgressFile,
    QueryState,
    QueryStatus,
    lag_of,
    latest_progress,
    parse_progress,
    read_lines,
    to_json,
)


def source(end: object, latest: object, **others: Any) -> dict[str, Any]:
    return {"endOffset": end, "latestOffset": latest, **others}


TOLD = {
    "timestamp": "2026-01-31T12:00:00.000Z",
    "batchId": 7,
    "batchDuration": 250,
    "eventTime": {"watermark": "2026-01-31T11:59:50.000Z"},
    "stateOperators": [{"numRowsDroppedByWatermark": 3}, {"numRowsDroppedByWatermark": 1}],
    "sources": [
        source(
            {"orders": {"0": 10, "1": 20}, "@group": "spark-1"},
            {"orders": {"0": 15, "1": 20}, "@group": "spark-1"},
            numInputRows=30,
            inputRowsPerSecond=120.5,
            processedRowsPerSecond=400.0,
        )
    ],
}


def test_progress_is_parsed_from_sparks_report() -> None:
    assert parse_progress("table", TOLD) == Progress(
        query="table",
        at="2026-01-31T12:00:00.000Z",
        batch=7,
        rows=30,
        input_rate=120.5,
        process_rate=400.0,
        batch_ms=250,
        lag=5,
        late=4,
        watermark="2026-01-31T11:59:50.000Z",
        read={"orders": {"0": 10, "1": 20}},
    )


def test_a_batch_without_rows_has_a_lag_and_no_rates() -> None:
    message = {
        "batchId": 8,
        "durationMs": {"triggerExecution": 12},
        "sources": [
            source({"t": {"0": 4}}, {"t": {"0": 9}}, inputRowsPerSecond=float("nan"), processedRowsPerSecond="NaN")
        ],
    }
    made = parse_progress("q", message)
    assert (made.rows, made.input_rate, made.process_rate, made.batch_ms, made.lag) == (0, 0.0, 0.0, 12, 5)


@pytest.mark.parametrize(
    ("sources", "lag"),
    [
        ([], 0),
        ([source({"t": {"0": 5}}, {"t": {"0": 5}})], 0),
        ([source('{"t": {"0": 5}}', '{"t": {"0": 8, "1": 100}}')], 3),
        ([source({"a": {"0": 5}}, {"a": {"0": 6}}), source({"b": {"0": 5}}, {"b": {"0": 7}})], 3),
        ([source({"t": {"0": 9}}, {"t": {"0": 5}})], 0),
        ([source({"t": {"0": 9}}, None)], None),
        ([source({"a": {"0": 5}}, {"a": {"0": 6}}), source(None, None)], None),
        ([source("17", "not json")], None),
    ],
)
def test_lag_counts_records_after_the_batch(sources: list[dict[str, Any]], lag: int | None) -> None:
    assert lag_of(sources) == lag


def test_current_lag_is_counted_from_the_read_offsets() -> None:
    batch = parse_progress("table", TOLD)
    assert batch.lag_to({("orders", "0"): 110, ("orders", "1"): 25, ("others", "0"): 7}) == 105
    assert batch.lag_to({("orders", "0"): 4, ("orders", "1"): 20}) == 0
    assert batch.lag_to({("orders", "0"): 110}) is None
    assert latest_progress([to_json(batch)]) == {"table": batch}
    assert parse_progress("q", {"sources": [source(None, None)]}).lag_to({}) is None
    same = {"sources": [source({"t": {"0": 4}}, None), source({"t": {"0": 9}}, None)]}
    assert parse_progress("join", same).lag_to({("t", "0"): 9}) == 5


def test_a_query_counts_the_rows_of_its_batches() -> None:
    state = QueryState("table")
    assert state.state is QueryStatus.STARTING
    state = state.after(parse_progress("table", TOLD)).after(parse_progress("table", TOLD))
    assert (state.rows, state.late) == (60, 8)


def test_progress_is_read_back_and_other_lines_are_skipped() -> None:
    first, second = parse_progress("a", TOLD), parse_progress("b", {**TOLD, "batchId": 9})
    lines = [
        json.dumps({"event": "started"}),
        to_json(parse_progress("a", {**TOLD, "batchId": 6})),
        to_json(first),
        to_json(second),
        "[1, 2]",
        '{"event": "batch"}',
        to_json(second)[:20],
    ]
    assert latest_progress(lines) == {"a": first, "b": second}


def test_progress_can_be_limited_to_one_generation() -> None:
    first, second = parse_progress("a", TOLD), parse_progress("a", {**TOLD, "batchId": 1})
    begun = [json.dumps({"event": "started", "generation": number}) for number in (1, 2)]
    lines = [begun[0], to_json(first), begun[1], to_json(second)]
    assert latest_progress(lines, 1) == {"a": first}
    assert latest_progress(lines, 2) == {"a": second}
    assert latest_progress(lines[:3], 2) == {}


def test_a_full_progress_file_is_rotated(tmp_path: Path) -> None:
    path = tmp_path / "state" / "progress.jsonl"
    with closing(ProgressFile(path, bytes_max=40)) as file:
        for number in range(10):
            file.append(f"line {number:04}")
    with closing(ProgressFile(path, bytes_max=40)) as file:
        file.append("the last")
    assert all(each.stat().st_size <= 40 for each in path.parent.iterdir())
    assert sorted(each.name for each in path.parent.iterdir()) == ["progress.jsonl", "progress.jsonl.1"]
    kept = [line.rstrip("\n") for line in read_lines(path)]
    assert kept[-2:] == ["line 0009", "the last"]
    assert kept == [*sorted(kept[:-1]), "the last"]


def test_a_missing_progress_file_has_no_lines(tmp_path: Path) -> None:
    assert list(read_lines(tmp_path / "progress.jsonl")) == []
