"""How commands talk to a cluster: they reach it, or say that they wait for it, and fail in a line that says why."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any, NoReturn, TypeVar

import typer
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from moldau.client.admin.admin import Admin
from moldau.client.errors import ConnectionLostError, ErrorCode, KafkaError
from moldau.client.net.cluster import Cluster
from moldau.client.record import TopicPartition

T = TypeVar("T")

TIMEOUT_MS = 15_000
CONNECT_TIMEOUT_MS = 5_000
"""A broker that is just being started is there by then."""
SLOW_NOTICE_DELAY_S = 1.0
"""Nobody should have to guess for longer what a command waits for."""

ERROR_HINTS: Mapping[ErrorCode, str] = {
    ErrorCode.unknown_topic_or_partition: "`moldau topic list` shows what there is.",
    ErrorCode.group_id_not_found: "`moldau group list` shows what there is.",
    ErrorCode.non_empty_group: "Stop its consumers first; `moldau group describe` shows them.",
    ErrorCode.unknown_member_id: "The group has members: stop its consumers first.",
    ErrorCode.group_subscribed_to_topic: "Its consumers read the topic: stop them first.",
    ErrorCode.topic_already_exists: "`moldau topic describe` shows it.",
}

out_console = Console(soft_wrap=True, highlight=False)
err_console = Console(stderr=True, soft_wrap=True, highlight=False)


class CommandError(Exception):
    """Why a command cannot do what it was told to, in a sentence for who told it."""


def run_admin(question: Callable[[Admin], Coroutine[Any, Any, T]], bootstrap: str) -> T:
    """Runs a question about the cluster; whatever goes wrong there is told in a line, and the command fails."""

    async def run() -> T:
        async with connected_cluster(bootstrap, request_timeout_ms=TIMEOUT_MS) as cluster:
            with notify_if_slow(f"waiting for {bootstrap} ..."):
                return await question(Admin(cluster, timeout_ms=TIMEOUT_MS))

    return run_or_exit(run(), bootstrap)


@asynccontextmanager
async def connected_cluster(bootstrap: str, *, request_timeout_ms: int = 30_000) -> AsyncIterator[Cluster]:
    """A cluster that answers. Where nobody listens the wait is short: that seldom gets better by itself."""
    cluster = Cluster(bootstrap, request_timeout_ms=request_timeout_ms)
    try:
        with notify_if_slow(f"waiting for {bootstrap} ..."):
            retry = cluster.retry(CONNECT_TIMEOUT_MS)
            while True:
                try:
                    await cluster.refresh()
                    break
                except KafkaError as error:
                    await retry.wait_or_raise(error)
            await cluster.start()
        yield cluster
    finally:
        await cluster.close()


@contextmanager
def notify_if_slow(what: str, after_s: float | None = None) -> Iterator[asyncio.TimerHandle]:
    """Says what is waited for, unless it is over (or the timer cancelled) before anybody wonders."""
    delay_s = SLOW_NOTICE_DELAY_S if after_s is None else after_s
    timer = asyncio.get_running_loop().call_later(delay_s, print_notice, what)
    try:
        yield timer
    finally:
        timer.cancel()


def run_or_exit(work: Coroutine[Any, Any, T], bootstrap: str) -> T:
    try:
        return asyncio.run(work)
    except KafkaError as error:
        exit_with_error(error, bootstrap)
    except CommandError as error:
        print_error(error)
        raise typer.Exit(1) from None
    except OSError as error:
        # Connections fail with a KafkaError: this is standard input or output.
        print_error(CommandError(error.strerror or str(error)))
        raise typer.Exit(1) from None
    except (KeyboardInterrupt, asyncio.CancelledError):
        raise typer.Exit(130) from None


def exit_with_error(error: KafkaError, bootstrap: str) -> NoReturn:
    print_error(error)
    if isinstance(error, ConnectionLostError):
        print_notice(
            f"Is a broker running at {bootstrap}? Name others with --bootstrap or MOLDAU_BOOTSTRAP; where there is "
            "none yet, `moldau serve` starts one."
        )
    raise typer.Exit(1)


def print_error(error: Exception) -> None:
    err_console.print(str(error), style="red", markup=False)
    advice = ERROR_HINTS.get(error.code) if isinstance(error, KafkaError) else None
    if advice is not None:
        print_notice(advice)


def print_notice(line: str) -> None:
    """To people, beside what goes to standard output."""
    err_console.print(line, markup=False)


def report_results(results: Mapping[Any, object], done: str) -> None:
    """Says what became of each thing; the command fails if one of them did."""
    failed = False
    for key, result in results.items():
        if isinstance(result, Exception):
            failed = True
            err_console.print(f"{key}: ", end="", markup=False)
            print_error(result)
        else:
            out_console.print(f"{key}: {done}", markup=False)
    if failed:
        raise typer.Exit(1)


def pluralize(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


class TextTable(Table):
    """A table whose cells are text as it is: brackets in what users wrote are no markup."""

    def add_row(self, *cells: RenderableType | None, **how: Any) -> None:
        super().add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in cells), **how)


def table(*columns: str, numbers: tuple[str, ...] = (), truncated: tuple[str, ...] = ()) -> TextTable:
    """What does not fit a terminal is folded, or cut where a part says enough."""
    made = TextTable(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        made.add_column(
            column,
            justify="right" if column in numbers else "left",
            overflow="ellipsis" if column in truncated else "fold",
            no_wrap=column in numbers,
        )
    return made


def print_table(made: Table) -> None:
    """As wide as it needs to be where nobody looks: a pipe must not get folded lines, nor spaces at their ends."""
    if sys.stdout.isatty():
        out_console.print(made)
        return
    wide = Console(width=10_000, highlight=False)
    with wide.capture() as shown:
        wide.print(made)
    for line in shown.get().splitlines():
        out_console.print(line.rstrip(), markup=False)


async def list_partitions(admin: Admin, topics: list[str]) -> list[TopicPartition]:
    """All partitions of these topics; raises where one does not exist."""
    found = []
    for topic in topics:
        described = await admin.describe_topic(topic)
        found += [TopicPartition(topic, each.index) for each in described.partitions]
    return found
