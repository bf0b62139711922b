"""What several commands are given: where the cluster is, topics, groups, settings. What cannot be one of these is the
caller's mistake, told before anybody is asked."""

from typing import Annotated, TypeVar

import typer

from moldau.client.net.cluster import parse_bootstrap

T = TypeVar("T", str, list[str], str | None, list[str] | None)

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
TEXT_BYTES_MAX = 2**15 - 1
"""The longest string of Kafka's protocol."""


def validate_text(given: T) -> T:
    """Arguments are bytes; names and settings travel as UTF-8."""
    for each in [given] if isinstance(given, str) else given or ():
        try:
            size = len(each.encode())
        except UnicodeEncodeError:
            raise typer.BadParameter(f"{each!r} is not text in UTF-8") from None
        if size > TEXT_BYTES_MAX:
            raise typer.BadParameter(f"{size} bytes are too many; {TEXT_BYTES_MAX} can be sent")
    return given


def name(given: T) -> T:
    if "" in ([given] if isinstance(given, str) else given or ()):
        raise typer.BadParameter("a name cannot be empty")
    return validate_text(given)


def validate_bootstrap(given: str) -> str:
    try:
        parse_bootstrap(validate_text(given))
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    return given


def validate_int32(given: int | None) -> int | None:
    return _validate_below(2**31, given)


def validate_int16(given: int | None) -> int | None:
    return _validate_below(2**15, given)


def _validate_below(limit: int, given: int | None) -> int | None:
    if given is not None and given >= limit:
        raise typer.BadParameter(f"{given} is not below {limit}")
    return given


Bootstrap = Annotated[
    str,
    typer.Option(
        "--bootstrap",
        "-b",
        envvar="MOLDAU_BOOTSTRAP",
        metavar="HOST:PORT",
        callback=validate_bootstrap,
        help="Servers to begin with, several with commas between.",
    ),
]
Topic = Annotated[str, typer.Argument(metavar="TOPIC", callback=name, help="The name of the topic.")]
Topics = Annotated[
    list[str], typer.Argument(metavar="TOPIC", callback=name, help="One topic or several, by name.")
]
Group = Annotated[str, typer.Argument(metavar="GROUP", callback=name, help="The id of the group.")]
Groups = Annotated[
    list[str], typer.Argument(metavar="GROUP", callback=name, help="One group or several, by id.")
]
NodeId = Annotated[
    int, typer.Argument(metavar="NODE", min=0, callback=validate_int32, help="The id of the node (node.id).")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do it without asking.")]


def parse_name_values(pairs: list[str], option: str) -> dict[str, str]:
    """`name=value` as an option gives them."""
    settings = {}
    for pair in pairs:
        setting, equals, value = pair.partition("=")
        if not equals or not setting:
            raise typer.BadParameter(f"{pair!r} is not NAME=VALUE", param_hint=option)
        settings[setting] = value
    return settings
