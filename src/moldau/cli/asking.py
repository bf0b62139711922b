"""What the commands that talk to a cluster share: where it is, how they wait for it, and how they fail."""

import asyncio
import sys
from collections.abc import Callable, Coroutine, Mapping
from typing import Annotated, Any, NoReturn, TypeVar

import typer
from rich.console import Console
from rich.table import Table

from moldau.client.admin import Admin
from moldau.client.errors import ConnectionLostError, ErrorCode, KafkaError
from moldau.client.record import TopicPartition

T = TypeVar("T")

Bootstrap = Annotated[
    str,
    typer.Option(
        "--bootstrap",
        "-b",
        envvar="MOLDAU_BOOTSTRAP",
        metavar="HOST:PORT",
        help="Servers to begin with, several with commas between.",
    ),
]
LOCAL = "127.0.0.1:9092"
TIMEOUT_MS = 15_000

ADVICE: Mapping[ErrorCode, str] = {
    ErrorCode.unknown_topic_or_partition: "`moldau topic list` shows what there is.",
    ErrorCode.group_id_not_found: "`moldau group list` shows what there is.",
    ErrorCode.non_empty_group: "Stop its consumers first; `moldau group describe` shows them.",
    ErrorCode.unknown_member_id: "The group has members: stop its consumers first.",
    ErrorCode.group_subscribed_to_topic: "Its consumers read the topic: stop them first.",
    ErrorCode.topic_already_exists: "`moldau topic describe` shows it.",
}

output = Console(soft_wrap=True, highlight=False)
complaints = Console(stderr=True, soft_wrap=True, highlight=False)


def ask(question: Callable[[Admin], Coroutine[Any, Any, T]], bootstrap: str) -> T:
    """Runs a question about the cluster; whatever goes wrong there is told in a line, and the command fails."""

    async def run() -> T:
        async with Admin(bootstrap, timeout_ms=TIMEOUT_MS, request_timeout_ms=TIMEOUT_MS) as admin:
            return await question(admin)

    return run_or_fail(run(), bootstrap)


def run_or_fail(work: Coroutine[Any, Any, T], bootstrap: str) -> T:
    try:
        return asyncio.run(work)
    except KafkaError as error:
        fail(error, bootstrap)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def fail(error: KafkaError, bootstrap: str) -> NoReturn:
    complain(error)
    if isinstance(error, ConnectionLostError):
        complaints.print(
            f"Is a broker running at {bootstrap}? Start one with `moldau serve`, or name another with --bootstrap.",
            markup=False,
        )
    raise typer.Exit(1)


def complain(error: KafkaError) -> None:
    complaints.print(str(error), style="red", markup=False)
    advice = ADVICE.get(error.code)
    if advice is not None:
        complaints.print(advice, markup=False)


def tell_each(results: Mapping[Any, object], done: str) -> None:
    """Says what became of each thing; the command fails if one of them did."""
    failed = False
    for key, result in results.items():
        if isinstance(result, KafkaError):
            failed = True
            complaints.print(f"{key}: ", end="", markup=False)
            complain(result)
        else:
            output.print(f"{key}: {done}", markup=False)
    if failed:
        raise typer.Exit(1)


def table(*columns: str, numbers: tuple[str, ...] = ()) -> Table:
    made = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        made.add_column(column, justify="right" if column in numbers else "left", overflow="fold")
    return made


def show(made: Table) -> None:
    """As wide as it needs to be where nobody looks: a pipe must not get folded lines."""
    if sys.stdout.isatty():
        output.print(made)
    else:
        Console(width=10_000, highlight=False).print(made)


def parse_settings(pairs: list[str]) -> dict[str, str]:
    """`name=value` as options give them."""
    settings = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise typer.BadParameter(f"{pair!r} is not NAME=VALUE", param_hint="--config")
        settings[name] = value
    return settings


async def partitions_of(admin: Admin, topics: list[str]) -> list[TopicPartition]:
    """All partitions of these topics; raises where one does not exist."""
    found = []
    for topic in topics:
        described = await admin.describe_topic(topic)
        found += [TopicPartition(topic, each.index) for each in described.partitions]
    return found
