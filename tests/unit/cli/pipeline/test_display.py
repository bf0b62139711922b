"""Displays of pipeline runs and the demo."""

import errno
import io
import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from pyspark.sql import Row
from rich.console import Console, RenderableType
from rich.text import Text

from moldau.cli.demo.command import tips
from moldau.cli.demo.screen import revenue_line, revenue_table
from moldau.cli.demo.traffic import Results, merge_records
from moldau.cli.live_region import LiveRegion
from moldau.cli.pipeline.display import JsonDisplay, LineDisplay, format_state, states_table
from moldau.client.record import ConsumerRecord
from moldau.pipelines.definition import PipelineDefinition, Sink, SinkKind
from moldau.pipelines.planner.console import render_table
from moldau.pipelines.planner.replay import describe_replay, sink_for_generation
from moldau.pipelines.planner.sink_writers import ConsoleBatch
from moldau.pipelines.runtime.progress import Progress, QueryState, QueryStatus, latest_progress
from moldau.pipelines.runtime.state_directory import CheckpointGeneration, Generations

PROGRESS = Progress("table", "2026-01-31T12:00:00.000Z", 4, 1500, 750.0, 3.25, 420, 12)
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


def shown(what: RenderableType) -> list[str]:
    console = Console(width=120, file=io.StringIO())
    with console.capture() as captured:
        console.print(what)
    return [line.rstrip() for line in captured.get().splitlines()]


def test_the_table_has_a_row_per_query() -> None:
    states = [QueryState("table", QueryStatus.RUNNING).after(PROGRESS), QueryState("dead")]
    header, table, dead = shown(states_table(states))
    assert header.split() == ["query", "state", "in/s", "processed/s", "batch", "rows", "lag"]
    assert table.split() == ["table", "running", "750", "3.2", "420", "ms", "1,500", "12"]
    assert dead.split() == ["dead", "starting", "-", "-", "-", "0", "-"]


def test_the_current_lag_is_shown() -> None:
    state = replace(QueryState("table", QueryStatus.RUNNING).after(PROGRESS), lag=1234)
    assert shown(states_table([state]))[1].endswith("1,234")
    assert format_state(state).endswith("lag 1,234")
    assert format_state(replace(state, lag=None)).endswith("lag unknown")


def test_names_and_records_are_not_markup() -> None:
    assert shown(states_table([QueryState("[/b]")]))[1].startswith("[/b] ")
    batch = ConsoleBatch(Sink("[out]", SinkKind.CONSOLE), 3, ["[x]"], [Row(**{"[x]": "[/b] hello"})], False)
    said = shown(render_table(batch))
    assert any("[/b] hello" in line for line in said)
    assert any("[x]" in line for line in said)
    assert "[out], batch 3" in said[0]


def test_a_closed_terminal_does_not_fail_the_run() -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(errno.EIO, "Input/output error")

    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=80)
    with LiveRegion(console, lambda: Text("changing")) as drawing:
        console.file = Gone()
        drawing.print_above(Text("first"))


def test_lines_show_steps_and_state_changes() -> None:
    stream = io.StringIO()
    lines = LineDisplay(stream)
    lines.step("starting Spark")
    state = QueryState("table")
    lines.states([state])
    state = state.after(PROGRESS)
    for _ in range(3):
        lines.states([state])
    lines.states([QueryState("table", QueryStatus.DONE, state.rows, 0, PROGRESS)])
    assert [line.split(",")[0] for line in stream.getvalue().splitlines()] == [
        "starting Spark ...",
        "table: starting",
        "table: done",
    ]


def test_a_batch_is_a_line_of_json() -> None:
    stream = io.StringIO()
    JsonDisplay(stream).batch(PROGRESS)
    assert latest_progress([stream.getvalue()]) == {PROGRESS.query: PROGRESS}
    assert json.loads(stream.getvalue())["event"] == "batch"


def record(value: dict[str, object]) -> ConsumerRecord:
    return ConsumerRecord("revenue", 0, 0, 0, 0, None, json.dumps(value).encode(), ())


def test_the_latest_record_of_a_minute_and_product_wins() -> None:
    first: Results = {}
    row = {"minute": "2026-01-31T12:00:00.000Z", "product": "tea", "orders": 1, "revenue": 2.9}
    second = merge_records(first, [record(row), record({**row, "orders": 2, "revenue": 5.8})])
    assert second == {NOON: {"tea": 5.8}}
    assert first == {}
    header, tea, total = shown(revenue_table(second))
    assert header.split() == ["revenue", "12:00"]
    assert tea.split() == ["tea", "5.80"]
    assert total.split() == ["all", "5.80"]
    assert revenue_line(second) == "revenue at 12:00: tea 5.80"


def test_tips_include_a_non_default_port() -> None:
    assert not any("-b " in tip for tip in tips(Path("/tmp/demo"), "127.0.0.1:9092"))
    assert sum("-b 127.0.0.1:9999" in tip for tip in tips(Path("/tmp/demo"), "127.0.0.1:9999")) == 3


def test_permanent_lines_are_above_the_live_region() -> None:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=80)
    with LiveRegion(console, lambda: Text("changing")) as drawing:
        drawing.print_above(Text("first"))
        drawing.print_above(Text("second"))
    written = stream.getvalue()
    assert written.index("first") < written.index("second") < written.rindex("changing")
    assert (written.count("first"), written.count("second")) == (1, 1)


def test_a_replay_writes_files_to_a_new_directory() -> None:
    files = Sink("files", SinkKind.PARQUET, "/archive/orders")
    assert sink_for_generation(files, 1) == files
    assert sink_for_generation(files, 3).target == "/archive/orders.3"
    table = Sink("table", SinkKind.DELTA, "/table")
    assert sink_for_generation(table, 3) == table
    pipeline = PipelineDefinition("p", (), (), (files, table))
    told = list(describe_replay(pipeline, "earliest", Generations(1, (CheckpointGeneration(1, ""),))))
    assert told[0] == "p reads from the earliest record again, as generation 2:"
    assert "everything since then goes to /archive/orders.2; existing files stay unchanged." in told[1]
    assert "everything since then is written again." in told[2]
