"""The chart of lag and rates: what the lines show, which samples are selected, and errors about the table."""

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from typer.testing import CliRunner

from moldau.cli.commands import app
from moldau.pipelines.charts.lag_history import HistoryFilter, draw_lag_history
from moldau.pipelines.charts.line_chart import COLOURS, PANEL_HEIGHT, Panel, Series, render_svg
from moldau.pipelines.definition import PipelineError

SVG = "{http://www.w3.org/2000/svg}"
START = datetime(2026, 1, 31, 23, 0, tzinfo=UTC)
SCHEMA = pa.schema(
    [
        ("day", pa.date32()),
        ("time", pa.timestamp("us", tz="UTC")),
        ("kind", pa.string()),
        ("group", pa.string()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("lag_records", pa.int64()),
        ("lag_ms", pa.int64()),
        ("commit_rate", pa.float64()),
        ("produce_rate", pa.float64()),
    ]
)


def samples(count: int = 720) -> Iterator[dict[str, Any]]:
    """Yields two hours of samples, every 10 seconds: a group whose lag grows on two partitions, and one without lag."""
    for number in range(count):
        time = START + timedelta(seconds=10 * number)
        for partition in range(2):
            common = {"day": time.date(), "time": time, "topic": "orders", "partition": partition}
            yield {**common, "kind": "partition", "produce_rate": 40.0}
            growing = {"lag_records": 100 * number, "lag_ms": 10 * number * (partition + 1), "commit_rate": 10.0}
            yield {**common, **growing, "kind": "group-lag", "group": "billing"}
            yield {**common, "kind": "group-lag", "group": "<mailer>", "lag_records": 0, "lag_ms": None}


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tables") / "lag_history"
    write_deltalake(path, pa.Table.from_pylist(list(samples()), SCHEMA), partition_by=["day", "kind"])
    return path


def texts(svg: str) -> list[str]:
    return [each.text or "" for each in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def lines(svg: str, name: str) -> list[list[tuple[float, float]]]:
    """Returns the points of all lines with this name, panel by panel."""
    found = []
    for line in ElementTree.fromstring(svg).iter(f"{SVG}polyline"):
        title = line.find(f"{SVG}title")
        if title is not None and title.text == name:
            pairs = (pair.split(",") for pair in line.attrib["points"].split())
            found.append([(float(x), float(y)) for x, y in pairs])
    return found


def test_lag_is_summed_over_partitions_and_rates_over_topics(table: Path) -> None:
    shown = texts(draw_lag_history(table, HistoryFilter()))

    assert "billing  (max 143.8k)" in shown, "2 partitions of 71,900 records"
    assert "billing  (max 14.4)" in shown, "the slower partition, in seconds"
    assert "billing  (max 20)" in shown
    assert "orders  (max 80)" in shown
    assert "<mailer>  (max 0)" in shown
    assert "2026-01-31 23:00 to 2026-02-01 00:59 UTC" in shown
    assert {"23:30", "01 Feb"} <= set(shown)


def test_a_line_has_a_gap_while_the_lag_of_a_partition_is_unknown(tmp_path: Path) -> None:
    rows = list(samples())
    for row in rows:
        if row.get("group") == "billing" and row["partition"] and row["time"] >= START + timedelta(hours=1):
            row["lag_records"] = row["lag_ms"] = row["commit_rate"] = None
    write_deltalake(tmp_path / "table", pa.Table.from_pylist(rows, SCHEMA))
    chart = draw_lag_history(tmp_path / "table", HistoryFilter())
    (lag, *_), (other, *_) = lines(chart, "billing"), lines(chart, "<mailer>")

    heights = [y for _, y in lag]
    assert heights == sorted(heights, reverse=True), "the lag of the other partition alone would be lower"
    assert 0.45 < (lag[-1][0] - lag[0][0]) / (other[-1][0] - other[0][0]) < 0.55


def test_a_growing_lag_is_a_rising_line(table: Path) -> None:
    lag, *_ = lines(draw_lag_history(table, HistoryFilter()), "billing")

    assert len(lag) > 200
    assert [x for x, _ in lag] == sorted(x for x, _ in lag)
    heights = [y for _, y in lag]
    assert heights == sorted(heights, reverse=True)
    assert PANEL_HEIGHT / 2 < heights[0] - heights[-1] <= PANEL_HEIGHT


def test_groups_topics_and_a_start_are_selected(table: Path) -> None:
    one = texts(draw_lag_history(table, HistoryFilter(groups=("<mailer>",))))
    assert not any("billing" in each for each in one)
    assert any("orders" in each for each in one)

    late = texts(draw_lag_history(table, HistoryFilter(begin=datetime(2026, 2, 1, 0, 30, tzinfo=UTC))))
    assert "2026-02-01 00:30 to 2026-02-01 00:59 UTC" in late

    with pytest.raises(PipelineError, match="has no samples of these groups and topics"):
        draw_lag_history(table, HistoryFilter(topics=("payments",)))


def test_a_missing_or_another_table_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match=r"there is no Delta table in .*--from lag-history"):
        draw_lag_history(tmp_path / "nothing", HistoryFilter())
    write_deltalake(tmp_path / "other", pa.table({"a": [1]}))
    with pytest.raises(PipelineError, match="is not a table of the template lag-history"):
        draw_lag_history(tmp_path / "other", HistoryFilter())


def test_the_command_writes_the_file(table: Path, tmp_path: Path) -> None:
    output = tmp_path / "lag.svg"
    result = CliRunner().invoke(app, ["pipeline", "chart", str(table), "--group", "billing", "-o", str(output)])

    assert result.exit_code == 0, result.output
    assert lines(output.read_text(), "billing")
    failed = CliRunner().invoke(app, ["pipeline", "chart", str(tmp_path / "nothing")])
    assert failed.exit_code == 1


def test_a_gap_interrupts_a_line_and_many_series_share_a_colour() -> None:
    gap = Series("gap", [(0, 1), (10, 2), (100, 3), (110, 1)])
    many = [Series(f"s{number}", [(0, 1.0), (10, 0.5)]) for number in range(20)]
    svg = render_svg("test", [Panel("one", [gap]), Panel("many", many), Panel("none", [])], 0, 110, 30)

    assert [len(each) for each in lines(svg, "gap")] == [2, 2]
    assert {"13 more", "no data"} <= set(texts(svg))
    assert len(re.findall(f'class="line" stroke="{COLOURS[-1]}"', svg)) == 13


def test_a_series_has_the_same_colour_in_all_panels() -> None:
    first = Panel("first", [Series("a", [(0, 5)]), Series("b", [(0, 1)])])
    second = Panel("second", [Series("b", [(0, 9)]), Series("c", [(0, 10)]), Series("a", [(0, 1)])])
    svg = render_svg("test", [first, second], 0, 10, 30)

    found = re.findall(r'stroke="(#\w+)" points="[^"]*"><title>(\w)<', svg)
    assert sorted(set(found)) == sorted([(COLOURS[0], "a"), (COLOURS[1], "b"), (COLOURS[2], "c")])
