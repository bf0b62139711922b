"""Command-line parameters shared by several commands, with their validation."""

from collections.abc import Callable
from typing import Annotated, Any, Literal, TypeVar

import typer

from moldau.client.net.cluster import parse_bootstrap
from moldau.settings.option_parser import OptionValueError, parse_duration

T = TypeVar("T", str, list[str], str | None, list[str] | None)

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
STRING_BYTES_MAX = 2**15 - 1
"""Maximum length of a string in Kafka's protocol, in bytes."""


def validate_text(value: T) -> T:
    """Raises BadParameter if an argument is not UTF-8 or is too long for Kafka's protocol."""
    for each in [value] if isinstance(value, str) else value or ():
        try:
            size = len(each.encode())
        except UnicodeEncodeError:
            raise typer.BadParameter(f"{each!r} is not UTF-8 text") from None
        if size > STRING_BYTES_MAX:
            raise typer.BadParameter(f"{size} bytes are too long; the maximum is {STRING_BYTES_MAX}")
    return value


def validate_name(value: T) -> T:
    if "" in ([value] if isinstance(value, str) else value or ()):
        raise typer.BadParameter("a name cannot be empty")
    return validate_text(value)


def validate_bootstrap(value: str) -> str:
    try:
        parse_bootstrap(validate_text(value))
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    return value


def validate_int32(value: int | None) -> int | None:
    return _validate_below(2**31, value)


def validate_int16(value: int | None) -> int | None:
    return _validate_below(2**15, value)


def _validate_below(limit: int, value: int | None) -> int | None:
    if value is not None and value >= limit:
        raise typer.BadParameter(f"{value} is too large; the maximum is {limit - 1}")
    return value


def validate_duration(value: str | None) -> str | None:
    if value is not None:
        try:
            parse_duration(value)
        except OptionValueError as error:
            raise typer.BadParameter(f"{value!r} is not {error}") from None
    return value


def option(flags: str, metavar: str, help_: str, callback: Callable[[Any], Any] | None = None, **limits: Any) -> Any:
    """Returns an option with a value. `flags` are separated by spaces; `limits` are `min` and `max`."""
    return typer.Option(*flags.split(), metavar=metavar, help=help_, callback=callback, **limits)


Bootstrap = Annotated[
    str,
    typer.Option(
        "--bootstrap",
        "-b",
        envvar="MOLDAU_BOOTSTRAP",
        metavar="HOST:PORT",
        callback=validate_bootstrap,
        help="Comma-separated bootstrap servers.",
    ),
]
Topic = Annotated[str, typer.Argument(metavar="TOPIC", callback=validate_name, help="Topic name.")]
Topics = Annotated[list[str], typer.Argument(metavar="TOPIC", callback=validate_name, help="One or more topic names.")]
Group = Annotated[str, typer.Argument(metavar="GROUP", callback=validate_name, help="Group id.")]
Groups = Annotated[list[str], typer.Argument(metavar="GROUP", callback=validate_name, help="One or more group ids.")]
NodeId = Annotated[int, typer.Argument(metavar="NODE", min=0, callback=validate_int32, help="Node id (node.id).")]
TransactionalIds = Annotated[
    list[str], typer.Argument(metavar="TRANSACTIONAL_ID", callback=validate_name, help="One or more transactional ids.")
]
IsolationLevel = Annotated[
    Literal["read_uncommitted", "read_committed"],
    typer.Option(
        "--isolation-level",
        metavar="LEVEL",
        help="read_uncommitted reads all records, read_committed only those of committed transactions.",
    ),
]
Partitions = Annotated[
    list[int] | None,
    typer.Option("--partition", metavar="NUMBER", min=0, max=2**31 - 1, help="Only this partition; can be repeated."),
]
OnlyChanged = Annotated[bool, typer.Option("--changed", help="Only configs that do not have their default.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only print the plan and change nothing.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]


def parse_node_ids(value: str, option: str) -> tuple[int, ...]:
    """Returns comma-separated node ids without duplicates."""
    try:
        nodes = tuple(int(each) for each in value.split(","))
    except ValueError:
        nodes = ()
    if not nodes or min(nodes) < 0 or max(nodes) >= 2**31:
        raise typer.BadParameter(f"{value!r} is not a list of node ids such as 1,2,3", param_hint=option)
    if len(set(nodes)) < len(nodes):
        raise typer.BadParameter(f"{value!r} has a node twice", param_hint=option)
    return nodes


def parse_name_values(pairs: list[str], option: str) -> dict[str, str]:
    values = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise typer.BadParameter(f"{pair!r} is not NAME=VALUE", param_hint=option)
        values[name] = value
    return values
