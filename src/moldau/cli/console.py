"""Console output of commands: tables, JSON lines, notices and errors with hints."""

import base64
import json
import sys
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

import typer
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from moldau.cli.exit_codes import CommandError as CommandError
from moldau.cli.exit_codes import NotFoundError, common_exit_code, exit_code_of
from moldau.client.errors import ConnectionLostError, ErrorCode, KafkaError

ERROR_HINTS: Mapping[ErrorCode, str] = {
    ErrorCode.unknown_topic_or_partition: "Run `moldau topic list` to see the existing topics.",
    ErrorCode.group_id_not_found: "Run `moldau group list` to see the existing groups.",
    ErrorCode.non_empty_group: "Stop its consumers first; `moldau group describe` shows them.",
    ErrorCode.unknown_member_id: "The group has members: stop its consumers first.",
    ErrorCode.group_subscribed_to_topic: "The group is subscribed to the topic: stop its consumers first.",
    ErrorCode.transactional_id_not_found: "Run `moldau transaction list` to see the existing transactional ids.",
    ErrorCode.invalid_regular_expression: "The pattern is a regular expression such as 'billing-.*'.",
    ErrorCode.topic_already_exists: "Run `moldau topic describe` to see it.",
}

out_console = Console(soft_wrap=True, highlight=False)
err_console = Console(stderr=True, soft_wrap=True, highlight=False)


def print_notice(line: str) -> None:
    """Prints a line for the user to standard error, so that standard output has only results."""
    err_console.print(line, markup=False)


def print_error(error: Exception) -> None:
    err_console.print(str(error), style="red", markup=False)
    hint = ERROR_HINTS.get(error.code) if isinstance(error, KafkaError) else None
    if hint is not None:
        print_notice(hint)


def exit_with_error(error: KafkaError, bootstrap: str) -> NoReturn:
    """Prints an error and exits with its exit code."""
    print_error(error)
    if isinstance(error, ConnectionLostError):
        print_notice(
            f"Is a broker running at {bootstrap}? Set --bootstrap or MOLDAU_BOOTSTRAP to use another one, or start one "
            "with `moldau serve`."
        )
    raise typer.Exit(exit_code_of(error))


def report_results(results: Mapping[Any, object], done: str) -> None:
    """Prints the result of each item. Exits with an error code if a result is an exception."""
    for key, result in results.items():
        if not isinstance(result, Exception):
            out_console.print(f"{key}: {done}", markup=False)
    exit_on_failures({key: result for key, result in results.items() if isinstance(result, Exception)})


def exit_on_failures(failures: Mapping[Any, Exception]) -> None:
    """Prints the errors of items. Exits with their exit code if there are any."""
    for key, error in failures.items():
        if not isinstance(error, NotFoundError):
            err_console.print(f"{key}: ", end="", markup=False)
        print_error(error)
    if failures:
        raise typer.Exit(common_exit_code(failures.values()))


def print_json_lines(objects: Iterable[Mapping[str, Any]]) -> None:
    """Prints one JSON object per line. Values that JSON does not have, such as UUIDs, are strings."""
    for each in objects:
        typer.echo(json.dumps(each, default=str))


def pluralize(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def bytes_to_json(data: bytes) -> str | dict[str, str]:
    """Returns UTF-8 text as a string and other bytes as {"base64": ...}."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


class TextTable(Table):
    """A table that prints strings literally, because brackets in user data must not be parsed as markup."""

    def add_row(self, *cells: RenderableType | None, **options: Any) -> None:
        super().add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in cells), **options)


def make_table(
    *columns: str, numbers: tuple[str, ...] = (), truncated: tuple[str, ...] = (), unfolded: tuple[str, ...] = ()
) -> TextTable:
    """Makes a table. `numbers` columns are right-aligned. Wide cells are folded, except in columns of numbers and
    `unfolded` ones; in `truncated` columns they are truncated."""
    table = TextTable(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(
            column,
            justify="right" if column in numbers else "left",
            overflow="ellipsis" if column in truncated else "fold",
            no_wrap=column in numbers or column in unfolded,
        )
    return table


def print_table(table: Table) -> None:
    """Prints a table. If standard output is not a terminal, lines are neither folded nor padded."""
    if sys.stdout.isatty():
        out_console.print(table)
        return
    wide_console = Console(width=10_000, highlight=False)
    with wide_console.capture() as captured:
        wide_console.print(table)
    for line in captured.get().splitlines():
        out_console.print(line.rstrip(), markup=False)
