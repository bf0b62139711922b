"""`moldau demo`: everything at work in one terminal, with data made on the spot, and nothing left behind."""

import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from moldau.cli.cluster_access import CommandError, out_console, print_error, print_notice
from moldau.cli.demo.node import PORT, choose_port, run_node
from moldau.cli.demo.screen import DemoDisplay
from moldau.cli.demo.traffic import DEAD, ORDERS, REVENUE, DemoTraffic
from moldau.cli.pipeline.parameters import load_pipeline
from moldau.cli.spark.parameters import MasterUrl, exit_on_error
from moldau.pipelines.runtime.run import RunOptions, RunOutcome, run
from moldau.pipelines.runtime.state_directory import DIRECTORY, StateDirectory
from moldau.pipelines.runtime.stop_request import StopRequest, stop_on_signals
from moldau.pipelines.templates import template

PIPELINE = "orders-revenue"
FIRST_RESULT_TIMEOUT_S = 300.0
"""With --seconds; A quiet machine needs a twentieth of it."""


def demo(
    seconds: Annotated[
        float | None,
        typer.Option(
            "--seconds",
            min=1,
            metavar="NUMBER",
            help="End so long after the first result; until Ctrl-C otherwise.",
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            "--port",
            min=0,
            max=65535,
            metavar="PORT",
            help="Of the node; 9092 by default, or any where it is taken.",
        ),
    ] = None,
    rate: Annotated[
        float, typer.Option("--rate", min=0.1, max=10_000, metavar="NUMBER", help="Orders a second.")
    ] = 50.0,
    seed: Annotated[
        int, typer.Option("--seed", metavar="NUMBER", help="The same makes the same orders.")
    ] = 1,
    master: MasterUrl = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep the data, the table and the checkpoints.")
    ] = False,
) -> None:
    """See it all at work: a node, orders that come in, and a pipeline on Spark that makes revenue of them.

    Everything is in a temporary directory and goes when the demo does.
    """
    with exit_on_error():
        _require_spark()
        with demo_directory(keep) as place, stop_on_signals() as stop_request:
            outcome, has_results = run_demo(place, stop_request, seconds, port, rate, seed, master, keep)
        if outcome.error is not None:
            print_error(CommandError(outcome.error))
            raise typer.Exit(1)
        if stop_request.signal_number == signal.SIGHUP:
            # Nobody is there to be told.
            raise typer.Exit(0)
        if keep:
            print_notice(f"Everything is kept in {place}.")
        if stop_request.signal_number is None and not has_results:
            print_error(CommandError("No result came within five minutes."))
            raise typer.Exit(1)


def run_demo(
    place: Path,
    stop_request: StopRequest,
    seconds: float | None,
    port: int | None,
    rate: float,
    seed: int,
    master: str | None,
    keep: bool,
) -> tuple[RunOutcome, bool]:
    """Gives how the pipeline ended, and whether it came to a result."""
    out_console.print(
        "Moldau: a node, orders that come in, and a pipeline on Spark that makes revenue of them.\n"
    )
    with (
        run_node(choose_port(port), place, None if keep else place) as bootstrap,
        DemoDisplay(tips(place, bootstrap)) as screen,
    ):
        screen.done(f"a node on {bootstrap}, its data in {place}")
        with DemoTraffic(bootstrap, rate, seed) as traffic, _stop_after(stop_request, traffic, seconds):
            screen.done(f"{rate:g} orders a second into the topic {ORDERS}")
            screen.follow(traffic)
            file = place / f"{PIPELINE}.yaml"
            file.write_text(template(PIPELINE))
            pipeline = load_pipeline(file, bootstrap)
            state = StateDirectory.of(place / DIRECTORY, pipeline.name)
            outcome = run(pipeline, state, RunOptions(master=master), stop_request, screen)
            if traffic.failure is not None:
                raise CommandError(f"The orders ended: {traffic.failure}")
    return outcome, screen.has_results


def tips(place: Path, bootstrap: str) -> list[str]:
    """What works in another terminal while the demo runs."""
    at = "" if bootstrap == f"127.0.0.1:{PORT}" else f" -b {bootstrap}"
    state = place / DIRECTORY
    return [
        "Try in another terminal:",
        f"  moldau consume {REVENUE}{at}  # the results, as they come",
        f"  moldau consume {DEAD}{at} --from-beginning --json  # what was no order, and why",
        f"  moldau group describe moldau-{PIPELINE}-table{at}  # how far behind the pipeline is",
        f"  moldau pipeline status {PIPELINE} --state {state}",
        f"  cat {place / PIPELINE}.yaml  # all there is to the pipeline",
        "  moldau pipeline new my-revenue  # one of your own",
        "The table, in three lines of Python:",
        "  from deltalake import DeltaTable",
        f'  table = DeltaTable("{place / "tables" / "revenue"}")',
        "  print(table.to_pandas().sort_values(['minute', 'product']))",
    ]


@contextmanager
def demo_directory(keep: bool) -> Iterator[Path]:
    place = Path(tempfile.mkdtemp(prefix="moldau-demo-"))
    try:
        yield place
    finally:
        if not keep:
            shutil.rmtree(place, ignore_errors=True)


@contextmanager
def _stop_after(stop_request: StopRequest, traffic: DemoTraffic, seconds: float | None) -> Iterator[None]:
    """Wishes for the end when the time is over, or when the orders have ended by themselves."""
    is_over = threading.Event()

    def wait() -> None:
        deadline = None if seconds is None else time.monotonic() + FIRST_RESULT_TIMEOUT_S + seconds
        has_begun = False
        while not is_over.wait(0.2):
            if seconds is not None and traffic.results and not has_begun:
                has_begun = True
                deadline = time.monotonic() + seconds
            if traffic.failure is not None or (deadline is not None and time.monotonic() >= deadline):
                stop_request.request()
                return

    waiting = threading.Thread(target=wait, name="moldau demo's end", daemon=True)
    waiting.start()
    try:
        yield
    finally:
        is_over.set()
        waiting.join()


def _require_spark() -> None:
    """Before anything is started."""
    import deltalake  # noqa: F401
    import pyarrow  # noqa: F401
    import pyspark  # noqa: F401
    import yaml  # noqa: F401
