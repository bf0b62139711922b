"""`moldau pipeline chart`: draws the lag and rates in a table of the template lag-history."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from moldau.cli.console import CommandError, out_console
from moldau.cli.spark.parameters import exit_on_error
from moldau.pipelines.runtime.times import EARLIEST, LATEST, parse_start_time


def pipeline_chart(
    table: Annotated[
        Path, typer.Argument(metavar="TABLE", help="Directory of a Delta table that the template lag-history writes.")
    ] = Path("tables/lag_history"),
    groups: Annotated[
        list[str] | None, typer.Option("--group", "-g", metavar="GROUP", help="Only this group; can be repeated.")
    ] = None,
    topics: Annotated[
        list[str] | None, typer.Option("--topic", "-t", metavar="TOPIC", help="Only this topic; can be repeated.")
    ] = None,
    begin: Annotated[
        str, typer.Option("--from", metavar="TIME", help="Start: 2026-01-31T12:00 (UTC), '2 hours ago', or earliest.")
    ] = EARLIEST,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", dir_okay=False, help="SVG file; default: <table>.svg."),
    ] = None,
) -> None:
    """Draw lag and rates over time as an SVG file, which any browser shows.

    moldau pipeline chart tables/lag_history --group billing --from '6 hours ago'
    """
    with exit_on_error():
        start = parse_start_time(begin, datetime.now(UTC))
        if start == LATEST:
            raise CommandError("A chart cannot start at latest: use a time in the past.")
        from moldau.pipelines.charts.lag_history import HistoryFilter, draw_lag_history

        selected = HistoryFilter(
            tuple(groups or ()), tuple(topics or ()), None if start == EARLIEST else datetime.fromisoformat(start)
        )
        chart = draw_lag_history(table, selected)
        file = output or Path(f"{table.resolve().name}.svg")
        try:
            file.write_text(chart)
        except OSError as error:
            raise CommandError(f"Cannot write {file}: {error.strerror}") from None
    out_console.print(f"Wrote {file}.", markup=False)
