"""Console output of a batch as a table."""

from datetime import datetime
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from moldau.pipelines.planner.sink_writers import ConsoleBatch


def print_batch(batch: ConsoleBatch) -> None:
    if batch.rows:
        Console().print(render_table(batch))


def render_table(batch: ConsoleBatch) -> Table:
    caption = "… and more rows" if batch.is_truncated else None
    # Use Text objects, so that brackets in records are not interpreted as markup.
    table = Table(title=Text(f"{batch.sink.name}, batch {batch.batch_id}"), caption=caption)
    for index, name in enumerate(batch.columns):
        is_number = all(isinstance(row[index], int | float) for row in batch.rows)
        table.add_column(Text(name), justify="right" if is_number else "left")
    for row in batch.rows:
        table.add_row(*(Text(_cell_text(value)) for value in row))
    return table


def _cell_text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.2f}"
    if isinstance(value, datetime):
        return value.isoformat(sep=" ", timespec="seconds")
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode(errors="backslashreplace")
    return str(value)
