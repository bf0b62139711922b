"""How a run shows itself: a table that is kept up to date on a terminal, else lines, and JSON for programs."""

import json
import sys
import time
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self, TextIO

from rich.console import Console, Group, RenderableType
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from moldau.cli.cluster_access import TextTable
from moldau.cli.live_display import Drawing
from moldau.pipelines.running.progress import Progress, QueryState, State, to_json

if TYPE_CHECKING:
    from moldau.pipelines.planning.writing import ShownBatch

COLOURS = {
    State.STARTING: "dim",
    State.RUNNING: "green",
    State.WAITING: "green",
    State.DONE: "green",
    State.STOPPED: "yellow",
    State.FAILED: "red",
}
LINE_EVERY_S = 10.0
"""Of each query, where nobody looks and nothing is wrong."""


class Display(Protocol):
    def step(self, what: str) -> None: ...
    def batch(self, progress: Progress) -> None: ...
    def states(self, states: Sequence[QueryState]) -> None: ...
    def rows(self, batch: "ShownBatch") -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def display(title: str, *, as_json: bool, quiet: bool) -> Display:
    if as_json:
        return JsonLines(sys.stdout)
    if quiet:
        return Silent()
    return LiveTable(title) if sys.stdout.isatty() else Lines(sys.stdout)


def states_table(states: Sequence[QueryState]) -> Table:
    """One row per query."""
    made = TextTable(box=None, pad_edge=False, header_style="bold")
    made.add_column("query")
    made.add_column("state", width=8)
    for column, width in (("in/s", 9), ("able/s", 9), ("batch", 8), ("rows", 11), ("lag", 9)):
        made.add_column(column, justify="right", width=width)
    for each in states:
        last = each.last
        is_idle = last is None or (each.state is State.WAITING and last.rows == 0)
        made.add_row(
            each.query,
            Text(each.state, style=COLOURS[each.state]),
            "-" if last is None or is_idle else number(last.input_rate),
            "-" if last is None or is_idle else number(last.process_rate),
            "-" if last is None else f"{last.batch_ms} ms",
            f"{each.rows:,}",
            "-" if each.lag is None else f"{each.lag:,}",
        )
    return made


def number(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}"


def line_of(state: QueryState) -> str:
    last = state.last
    if last is None:
        return f"{state.query}: {state.state}"
    lag = "unknown" if state.lag is None else f"{state.lag:,}"
    return (
        f"{state.query}: {state.state}, {state.rows:,} rows, in {number(last.input_rate)}/s, "
        f"able {number(last.process_rate)}/s, batch {last.batch} took {last.batch_ms} ms, lag {lag}"
    )


class Silent:
    """Shows nothing but the rows of console sinks, which are there to be seen."""

    def rows(self, batch: "ShownBatch") -> None:
        from moldau.pipelines.planning.console import print_batch

        print_batch(batch)

    def step(self, what: str) -> None:
        pass

    def batch(self, progress: Progress) -> None:
        pass

    def states(self, states: Sequence[QueryState]) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


class JsonLines(Silent):
    """Each batch, as it is also kept in the state directory."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def batch(self, progress: Progress) -> None:
        self._write(to_json(progress))

    def rows(self, batch: "ShownBatch") -> None:
        rows = [row.asDict(recursive=True) for row in batch.rows]
        told = {"event": "rows", "query": batch.sink.name, "batch": batch.batch_id, "rows": rows}
        self._write(json.dumps(told, default=str))

    def _write(self, line: str) -> None:
        self._stream.write(line + "\n")
        self._stream.flush()


class Lines(Silent):
    """A line for every step and change of state, and one now and then for how far each query has come."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._shown: dict[str, tuple[bool, int]] = {}
        self._next_s = 0.0

    def step(self, what: str) -> None:
        self._write(f"{what} ...")

    def states(self, states: Sequence[QueryState]) -> None:
        is_time = time.monotonic() >= self._next_s
        for each in states:
            is_over = each.state in (State.DONE, State.STOPPED, State.FAILED)
            before = self._shown.get(each.query)
            now = (is_over, each.rows)
            if each.last is None and not is_over:
                continue
            if before is None or before[0] != is_over or (is_time and before != now):
                self._shown[each.query] = now
                self._write(line_of(each))
        if is_time:
            self._next_s = time.monotonic() + LINE_EVERY_S

    def _write(self, line: str) -> None:
        self._stream.write(line + "\n")
        self._stream.flush()


class LiveTable(Silent):
    """A table that stays where it is, with what is going on below it."""

    def __init__(self, title: str, console: Console | None = None) -> None:
        self._title = title
        self._step: str | None = None
        self._is_over = False
        self._states: Sequence[QueryState] = ()
        self._spinner = Spinner("dots")
        self._drawing = Drawing(console or Console(highlight=False), self._shown)

    def step(self, what: str) -> None:
        self._step = what

    def states(self, states: Sequence[QueryState]) -> None:
        self._states = list(states)
        if any(each.last is not None for each in states):
            self._step = None

    def rows(self, batch: "ShownBatch") -> None:
        from moldau.pipelines.planning.console import table_of

        if batch.rows:
            self._drawing.stay(table_of(batch))

    def _shown(self) -> RenderableType:
        parts: list[RenderableType] = [Text(self._title, style="bold")]
        if self._states:
            parts.append(states_table(self._states))
        if self._step is not None:
            self._spinner.update(text=Text(f"{self._step} ...", style="dim"))
            parts.append(self._spinner)
        elif self._states and not self._is_over:
            parts.append(Text("Ctrl-C finishes the batches that are under way, and ends.", style="dim"))
        return Group(*parts)

    def __enter__(self) -> Self:
        self._drawing.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._step = None
        self._is_over = True
        self._drawing.__exit__(kind, error, trace)
