"""`moldau bench`: a small load test of any Kafka-compatible cluster, in a topic of its own."""

import asyncio
import json
import secrets
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Annotated, Literal

import rich.progress
import typer

from moldau.cli.admin import REQUEST_TIMEOUT_MS, connected_cluster, run_or_exit
from moldau.cli.bench.load_test import SIZE_MIN, LoadTest, PhaseResult, Progress, run_consume, run_latency, run_produce
from moldau.cli.console import CommandError, err_console, make_table, out_console, pluralize, print_notice, print_table
from moldau.cli.parameters import (
    DEFAULT_BOOTSTRAP,
    Bootstrap,
    Json,
    option,
    validate_duration,
    validate_int16,
    validate_int32,
)
from moldau.cli.produce import CODECS
from moldau.cli.signals import stop_signal
from moldau.client.admin.admin import Admin
from moldau.client.admin.types import BROKER_DEFAULT
from moldau.client.errors import ErrorCode, KafkaError
from moldau.client.net.cluster import Cluster
from moldau.settings.option_parser import parse_duration

RECORDS_DEFAULT = 100_000
LATENCY_S = 5.0
"""How long records are sent at a fixed rate, unless --duration says otherwise."""
SIZE_MAX = 1_000_000


def bench(
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    records: Annotated[
        int | None,
        option("--records -n", "NUMBER", f"Records to produce and consume; by default {RECORDS_DEFAULT:,}.", min=1),
    ] = None,
    duration: Annotated[
        str | None,
        option(
            "--duration -d",
            "TIME",
            "Produce for this long, such as 30s, instead of a number of records. Latency is measured as long.",
            validate_duration,
        ),
    ] = None,
    size: Annotated[int, option("--size", "BYTES", "Bytes of each value.", min=SIZE_MIN, max=SIZE_MAX)] = 200,
    acks: Annotated[
        Literal["all", "1", "0"],
        typer.Option("--acks", metavar="ACKS", help="Acknowledgement of the in-sync replicas, the leader, or none."),
    ] = "all",
    compression: Annotated[
        str, typer.Option(metavar="CODEC", help=f"Compression codec: {', '.join(CODECS)}.")
    ] = "none",
    partitions: Annotated[
        int, option("--partitions -p", "NUMBER", "Partitions of the topic.", validate_int32, min=1)
    ] = 3,
    replicas: Annotated[
        int | None,
        option(
            "--replicas --replication-factor -r",
            "NUMBER",
            "Replication factor of the topic; by default default.replication.factor of the broker.",
            validate_int16,
            min=1,
        ),
    ] = None,
    rate: Annotated[
        float, option("--rate", "NUMBER", "Records per second while latency is measured.", min=0.1, max=100_000)
    ] = 100.0,
    as_json: Json = False,
) -> None:
    """Measure throughput and latency of a cluster with a small load test.

    Three phases: produce as fast as possible, consume all of it, and send records at a fixed rate to a waiting
    consumer. The command creates a topic for the test and deletes it at the end, also after Ctrl-C.

    The producer and the consumer are moldau.client in one process, whose own speed limits the throughput that is
    shown: use it to compare settings and machines, not to find the limit of a large cluster.

    moldau bench

    moldau bench --size 1000 --acks 1 --compression lz4 --duration 30s
    """
    if compression not in CODECS:
        raise typer.BadParameter(f"must be one of {', '.join(CODECS)}", param_hint="--compression")
    if records is not None and duration is not None:
        raise typer.BadParameter("use either --records or --duration")
    duration_s = None if duration is None else parse_duration(duration).milliseconds / 1_000
    if duration_s is not None and duration_s <= 0:
        raise typer.BadParameter("must be longer than 0", param_hint="--duration")
    test = LoadTest(
        topic=f"moldau-bench-{secrets.token_hex(4)}",
        partitions=partitions,
        records=(records or RECORDS_DEFAULT) if duration_s is None else None,
        duration_s=duration_s,
        size=size,
        acks=acks,
        compression=compression,
        rate=rate,
        latency_s=LATENCY_S if duration_s is None else duration_s,
    )
    results: list[PhaseResult] = []

    async def run() -> int | None:
        """Returns the number of the signal that stopped the command, or None."""
        async with connected_cluster(bootstrap, request_timeout_ms=REQUEST_TIMEOUT_MS) as cluster:
            with stop_signal() as stop_requested:
                async with _temporary_topic(cluster, test, replicas):
                    async for result in _run_phases(cluster, test, stop_requested):
                        results.append(result)
            return stop_requested.result() if stop_requested.done() else None

    try:
        signal_number = run_or_exit(run(), bootstrap)
    finally:
        # The phases that have ended are results, even if the command was stopped or failed afterwards.
        if results:
            _print_results(test, results, as_json)
    if signal_number is not None:
        raise typer.Exit(128 + signal_number)


@asynccontextmanager
async def _temporary_topic(cluster: Cluster, test: LoadTest, replicas: int | None) -> AsyncIterator[None]:
    admin = Admin(cluster, timeout_ms=REQUEST_TIMEOUT_MS)
    try:
        await admin.create_topic(test.topic, test.partitions, BROKER_DEFAULT if replicas is None else replicas)
        await cluster.wait_for_topics([test.topic], timeout_ms=REQUEST_TIMEOUT_MS)
        yield
    finally:
        try:
            await admin.delete_topic(test.topic)
        except KafkaError as error:
            if error.code != ErrorCode.unknown_topic_or_partition:
                print_notice(
                    f"{test.topic} was not deleted: {error}. Run `moldau topic delete {test.topic}` to delete it."
                )


async def _run_phases(
    cluster: Cluster, test: LoadTest, stop_requested: "asyncio.Future[int]"
) -> AsyncIterator[PhaseResult]:
    """Yields the result of each phase that was not stopped."""
    with _progress_bar("produce", stop_requested) as progress:
        produced = await run_produce(cluster, test, progress)
    if stop_requested.done():
        return
    yield produced
    with _progress_bar("consume", stop_requested) as progress:
        consumed = await run_consume(cluster, test, produced.records, progress)
    if stop_requested.done():
        return
    yield _check_complete(consumed, test)
    with _progress_bar("latency", stop_requested) as progress:
        latency = await run_latency(cluster, test, progress)
    if not stop_requested.done():
        yield _check_complete(latency, test)


def _check_complete(result: PhaseResult, test: LoadTest) -> PhaseResult:
    """Raises CommandError if acknowledged records are missing."""
    if result.records < result.expected and test.acks != "0":
        raise CommandError(
            f"The consumer received {result.records:,} of {result.expected:,} acknowledged records: records were lost, "
            "or the cluster did not return them in time."
        )
    return result


@contextmanager
def _progress_bar(phase: str, stop_requested: "asyncio.Future[int]") -> Iterator[Progress]:
    """Shows a bar on the terminal while a phase runs."""
    columns = (
        rich.progress.TextColumn("{task.description}"),
        rich.progress.BarColumn(),
        rich.progress.TaskProgressColumn(),
        rich.progress.TimeElapsedColumn(),
    )
    with rich.progress.Progress(
        *columns, console=err_console, transient=True, disable=not sys.stderr.isatty(), redirect_stdout=False
    ) as bar:
        task = bar.add_task(phase, total=1.0)
        yield Progress(lambda share: bar.update(task, completed=share), stop_requested)


def _print_results(test: LoadTest, results: list[PhaseResult], as_json: bool) -> None:
    if as_json:
        for result in results:
            out_console.print(json.dumps(_to_json(result)), markup=False)
        return
    numbers = ("records", "seconds", "records/s", "MB/s", "p50 ms", "p99 ms", "max ms")
    rows = make_table("phase", *numbers, numbers=numbers)
    for result in results:
        latencies = (result.latency_ms(0.5), result.latency_ms(0.99), result.latency_ms(1.0))
        rows.add_row(
            result.phase,
            f"{result.records:,}",
            f"{result.seconds:.2f}",
            f"{result.records_per_second:,.0f}",
            f"{result.mb_per_second:.2f}",
            *("-" if each is None else f"{each:.1f}" for each in latencies),
        )
    print_table(rows)
    print_notice(
        f"{test.size} bytes per record, {pluralize(test.partitions, 'partition')}, acks={test.acks}, "
        f"compression={test.compression}. Latency of produce: until the acknowledgement, at full load; of the last "
        f"phase: from producer to consumer, at {test.rate:g} records/s."
    )


def _to_json(result: PhaseResult) -> dict[str, object]:
    latencies = {"p50_ms": result.latency_ms(0.5), "p99_ms": result.latency_ms(0.99), "max_ms": result.latency_ms(1.0)}
    return {
        "phase": result.phase,
        "records": result.records,
        "seconds": round(result.seconds, 3),
        "records_per_second": round(result.records_per_second, 1),
        "mb_per_second": round(result.mb_per_second, 3),
        **{name: None if each is None else round(each, 3) for name, each in latencies.items()},
    }
