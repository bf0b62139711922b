"""Terminal output of the demo: steps, results and suggested commands."""

import sys
import time
from collections.abc import Sequence
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from moldau.cli.console import TextTable
from moldau.cli.demo.traffic import DemoTraffic, Results
from moldau.cli.live_region import LiveRegion
from moldau.cli.pipeline.display import states_table
from moldau.pipelines.runtime.progress import Progress, QueryState

MINUTES = 3
"""Number of minutes shown side by side."""
LINE_INTERVAL_S = 2.0


def revenue_table(results: Results) -> Table:
    """Returns a table with a row per product and a column per minute."""
    minutes = sorted(results)[-MINUTES:]
    table = TextTable(box=None, pad_edge=False, header_style="bold")
    table.add_column("revenue", min_width=14)
    for minute in minutes:
        table.add_column(f"{minute:%H:%M}", justify="right", min_width=10)
    for product in sorted({product for minute in minutes for product in results[minute]}):
        sums = [results[minute].get(product) for minute in minutes]
        table.add_row(product, *("" if each is None else f"{each:,.2f}" for each in sums))
    totals = [sum(results[minute].values()) for minute in minutes]
    table.add_row(Text("all", style="bold"), *(Text(f"{total:,.2f}", style="bold") for total in totals))
    return table


def revenue_line(results: Results) -> str:
    """Returns the revenue of the latest minute as a line, for output that is not a terminal."""
    minute = max(results)
    products = ", ".join(f"{product} {revenue:.2f}" for product, revenue in sorted(results[minute].items()))
    return f"revenue at {minute:%H:%M}: {products}"


class DemoDisplay:
    """Displays a pipeline run: completed steps as permanent lines, results in a live region below."""

    def __init__(self, tips: Sequence[str]) -> None:
        self._console = Console(highlight=False, soft_wrap=True)
        self._is_live = self._console.is_terminal
        self._tips = tips
        self.traffic: DemoTraffic | None = None
        self._states: Sequence[QueryState] = ()
        self._step: tuple[str, float] | None = None
        self.has_results = False
        self._next_line_s = 0.0
        self._shown_results: Results = {}
        self._spinner = Spinner("dots")
        self._is_over = False
        self._live = LiveRegion(self._console, self._render)

    def done(self, what: str) -> None:
        """Prints a completed step."""
        self._finish_step()
        self._print(Text.assemble(("  ✓ ", "green"), what))

    def step(self, what: str) -> None:
        self._finish_step()
        self._step = (what, time.monotonic())
        if not self._is_live:
            self._print(Text(f"  · {what} ..."))

    def _finish_step(self) -> None:
        if self._step is None:
            return
        (what, began), self._step = self._step, None
        if self._is_live:
            took = f"   {time.monotonic() - began:.1f} s"
            self._print(Text.assemble(("  ✓ ", "green"), what, (took, "dim")))

    def batch(self, progress: Progress) -> None:
        pass

    def rows(self, batch: object) -> None:
        pass

    def states(self, states: Sequence[QueryState]) -> None:
        self._states = list(states)
        results = {} if self.traffic is None else self.traffic.results
        if not results:
            return
        if not self.has_results:
            self.has_results = True
            self._finish_step()
            for tip in ("", *self._tips, ""):
                command, _, what = tip.partition("  #")
                self._print(Text.assemble("  " if tip else "", command, (f"  #{what}" if what else "", "dim")))
        if not self._is_live and results != self._shown_results and time.monotonic() >= self._next_line_s:
            self._shown_results = results
            self._next_line_s = time.monotonic() + LINE_INTERVAL_S
            self._print(Text(f"  {revenue_line(results)}"))

    def _print(self, line: Text) -> None:
        if self._is_live:
            self._live.print_above(line)
        else:
            self._console.print(line)

    def _render(self) -> RenderableType:
        parts: list[RenderableType] = []
        traffic = self.traffic
        if traffic is not None and traffic.results:
            parts += [revenue_table(traffic.results), Text()]
        if traffic is not None and self.has_results:
            late = max((each.late for each in self._states), default=0)
            facts = f"{traffic.sent:,} orders sent, {late:,} late rows, {traffic.dead:,} dead letters"
            ending = "" if self._is_over else " Press Ctrl-C to stop the demo."
            parts += [states_table(self._states), Text(), Text(f"{facts}.{ending}", style="dim")]
        if self._step is not None:
            what, began = self._step
            self._spinner.update(text=Text(f"{what} ... {time.monotonic() - began:.0f} s"))
            parts.append(self._spinner)
        return Group(*parts)

    def __enter__(self) -> Self:
        if self._is_live:
            self._live.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self._finish_step()
        self._is_over = True
        if self._is_live:
            self._live.__exit__(*exception)
        sys.stdout.flush()
