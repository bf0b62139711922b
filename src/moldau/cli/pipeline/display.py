"""Displays of a pipeline run: a live table on a terminal, lines otherwise, or JSON."""

import json
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Self, TextIO

from rich.console import Console, Group, RenderableType
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from moldau.cli.console import TextTable
from moldau.cli.live_region import LiveRegion
from moldau.pipelines.runtime.progress import Progress, QueryState, QueryStatus, to_json

if TYPE_CHECKING:
    from moldau.pipelines.planner.sink_writers import ConsoleBatch

COLOURS = {
    QueryStatus.STARTING: "dim",
    QueryStatus.RUNNING: "green",
    QueryStatus.WAITING: "green",
    QueryStatus.DONE: "green",
    QueryStatus.STOPPED: "yellow",
    QueryStatus.FAILED: "red",
}
LINE_INTERVAL_S = 10.0
"""Interval between the progress lines of a query if standard output is not a terminal."""


def display(title: str, *, as_json: bool, quiet: bool) -> "SilentDisplay":
    if as_json:
        return JsonDisplay(sys.stdout)
    if quiet:
        return SilentDisplay()
    return LiveDisplay(title) if sys.stdout.isatty() else LineDisplay(sys.stdout)


def states_table(states: Sequence[QueryState]) -> Table:
    """Returns a table with one row per query."""
    table = TextTable(box=None, pad_edge=False, header_style="bold")
    table.add_column("query")
    table.add_column("state", width=8)
    for column, width in (("in/s", 9), ("processed/s", 11), ("batch", 8), ("rows", 11), ("lag", 9)):
        table.add_column(column, justify="right", width=width)
    for each in states:
        last = each.last
        is_idle = last is None or (each.state is QueryStatus.WAITING and last.rows == 0)
        table.add_row(
            each.query,
            Text(each.state, style=COLOURS[each.state]),
            "-" if last is None or is_idle else format_rate(last.input_rate),
            "-" if last is None or is_idle else format_rate(last.process_rate),
            "-" if last is None else f"{last.batch_ms} ms",
            f"{each.rows:,}",
            "-" if each.lag is None else f"{each.lag:,}",
        )
    return table


def format_rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}"


def format_state(state: QueryState) -> str:
    last = state.last
    if last is None:
        return f"{state.query}: {state.state}"
    lag = "unknown" if state.lag is None else f"{state.lag:,}"
    return (
        f"{state.query}: {state.state}, {state.rows:,} rows, input {format_rate(last.input_rate)}/s, "
        f"processed {format_rate(last.process_rate)}/s, batch {last.batch} took {last.batch_ms} ms, lag {lag}"
    )


def _write_line(stream: TextIO, line: str) -> None:
    stream.write(line + "\n")
    stream.flush()


class SilentDisplay:
    """Displays only the rows of console sinks."""

    def rows(self, batch: "ConsoleBatch") -> None:
        from moldau.pipelines.planner.console import print_batch

        print_batch(batch)

    def step(self, what: str) -> None:
        pass

    def batch(self, progress: Progress) -> None:
        pass

    def states(self, states: Sequence[QueryState]) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        pass


class JsonDisplay(SilentDisplay):
    """Prints each batch as a line of JSON, in the format of the progress file in the state directory."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def batch(self, progress: Progress) -> None:
        _write_line(self._stream, to_json(progress))

    def rows(self, batch: "ConsoleBatch") -> None:
        rows = [row.asDict(recursive=True) for row in batch.rows]
        event = {"event": "rows", "query": batch.sink.name, "batch": batch.batch_id, "rows": rows}
        _write_line(self._stream, json.dumps(event, default=str))


class LineDisplay(SilentDisplay):
    """Prints a line for every step and state change, and periodic progress lines."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._shown: dict[str, tuple[bool, int]] = {}
        self._next_s = 0.0

    def step(self, what: str) -> None:
        _write_line(self._stream, f"{what} ...")

    def states(self, states: Sequence[QueryState]) -> None:
        is_time = time.monotonic() >= self._next_s
        for each in states:
            is_over = each.state in (QueryStatus.DONE, QueryStatus.STOPPED, QueryStatus.FAILED)
            before = self._shown.get(each.query)
            now = (is_over, each.rows)
            if each.last is None and not is_over:
                continue
            if before is None or before[0] != is_over or (is_time and before != now):
                self._shown[each.query] = now
                _write_line(self._stream, format_state(each))
        if is_time:
            self._next_s = time.monotonic() + LINE_INTERVAL_S


class LiveDisplay(SilentDisplay):
    """Displays a live table of queries, with the current step below the table."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._step: str | None = None
        self._is_over = False
        self._states: Sequence[QueryState] = ()
        self._spinner = Spinner("dots")
        self._live = LiveRegion(Console(highlight=False), self._shown)

    def step(self, what: str) -> None:
        self._step = what

    def states(self, states: Sequence[QueryState]) -> None:
        self._states = list(states)
        if any(each.last is not None for each in states):
            self._step = None

    def rows(self, batch: "ConsoleBatch") -> None:
        from moldau.pipelines.planner.console import render_table

        if batch.rows:
            self._live.print_above(render_table(batch))

    def _shown(self) -> RenderableType:
        parts: list[RenderableType] = [Text(self._title, style="bold")]
        if self._states:
            parts.append(states_table(self._states))
        if self._step is not None:
            self._spinner.update(text=Text(f"{self._step} ...", style="dim"))
            parts.append(self._spinner)
        elif self._states and not self._is_over:
            parts.append(Text("Press Ctrl-C to stop after the current batches.", style="dim"))
        return Group(*parts)

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self._step = None
        self._is_over = True
        self._live.__exit__(*exception)
