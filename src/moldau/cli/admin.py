"""Functions with which commands connect to a cluster, run an operation, and report errors."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, nullcontext
from typing import Any, TypeVar

import typer

from moldau.cli.console import exit_with_error, print_error, print_notice
from moldau.cli.exit_codes import CommandError, ExitCode, exit_code_of
from moldau.cli.suggestions import explain_missing
from moldau.client.admin.admin import Admin
from moldau.client.errors import KafkaError
from moldau.client.net.cluster import Cluster
from moldau.client.record import TopicPartition

T = TypeVar("T")

REQUEST_TIMEOUT_MS = 15_000
CONNECT_TIMEOUT_MS = 15_000
"""How long to retry the first connection. The time is long enough for a cluster that was started just before the
command, on a busy machine."""
SLOW_NOTICE_DELAY_S = 1.0
"""Delay before a command prints what it is waiting for."""


def run_admin(
    operation: Callable[[Admin], Coroutine[Any, Any, T]],
    bootstrap: str,
    *,
    topics: Sequence[str] = (),
    groups: Sequence[str] = (),
    has_progress: bool = False,
) -> T:
    """Runs an operation with an admin client. Prints an error and exits if the operation fails.

    `topics` and `groups` are existing ones that the user named: an error suggests similar names for those that do not
    exist. An operation that shows its own progress sets `has_progress`.
    """

    async def run() -> T:
        connecting = connected_cluster(bootstrap, request_timeout_ms=REQUEST_TIMEOUT_MS, topics=topics, groups=groups)
        async with connecting as cluster:
            admin = Admin(cluster, timeout_ms=REQUEST_TIMEOUT_MS)
            with nullcontext() if has_progress else notify_if_slow(f"waiting for {bootstrap} ..."):
                return await operation(admin)

    return run_or_exit(run(), bootstrap)


@asynccontextmanager
async def connected_cluster(
    bootstrap: str, *, request_timeout_ms: int = 30_000, topics: Sequence[str] = (), groups: Sequence[str] = ()
) -> AsyncIterator[Cluster]:
    """Connects to a cluster. Raises KafkaError if no broker responds within CONNECT_TIMEOUT_MS.

    If the block raises the KafkaError of a missing topic or group, and some of `topics` or `groups` do not exist, the
    error becomes a CommandError that names them.
    """
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
        try:
            yield cluster
        except KafkaError as error:
            explained = await explain_missing(cluster, error, topics=topics, groups=groups)
            if explained is None:
                raise
            raise explained from error
    finally:
        await cluster.close()


@contextmanager
def notify_if_slow(notice: str) -> Iterator[None]:
    """Prints a notice if the block takes longer than SLOW_NOTICE_DELAY_S."""
    timer = asyncio.get_running_loop().call_later(SLOW_NOTICE_DELAY_S, print_notice, notice)
    try:
        yield
    finally:
        timer.cancel()


def run_or_exit(work: Coroutine[Any, Any, T], bootstrap: str) -> T:
    """Runs a coroutine. Prints an error and exits if the coroutine fails."""
    try:
        return asyncio.run(work)
    except KafkaError as error:
        exit_with_error(error, bootstrap)
    except CommandError as error:
        print_error(error)
        raise typer.Exit(exit_code_of(error)) from None
    except OSError as error:
        # Connection errors are KafkaErrors, so this error comes from standard input or output.
        print_error(CommandError(error.strerror or str(error)))
        raise typer.Exit(ExitCode.FAILED) from None
    except (KeyboardInterrupt, asyncio.CancelledError):
        raise typer.Exit(ExitCode.INTERRUPTED) from None


async def list_partitions(admin: Admin, topics: list[str]) -> list[TopicPartition]:
    """Returns all partitions of these topics. Raises KafkaError if a topic does not exist."""
    partitions = []
    for topic in topics:
        description = await admin.describe_topic(topic)
        partitions += [TopicPartition(topic, each.index) for each in description.partitions]
    return partitions
