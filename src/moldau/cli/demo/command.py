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

from moldau.cli.cluster_access import CommandError, complain, output, say
from moldau.cli.demo.node import PORT, choose_port, node
from moldau.cli.demo.screen import Screen
from moldau.cli.demo.traffic import DEAD, ORDERS, REVENUE, Traffic
from moldau.cli.pipeline.arguments import loaded
from moldau.cli.spark.arguments import MasterUrl, told_plainly
from moldau.pipelines.running.run import Outcome, RunOptions, run
from moldau.pipelines.running.state_directory import DIRECTORY, StateDirectory
from moldau.pipelines.running.stopping import Wish, listening
from moldau.pipelines.shipped import template

PIPELINE = "orders-revenue"
FIRST_RESULT_WITHIN_S = 300.0
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
    with told_plainly():
        _need_spark()
        with directory(keep) as place, listening() as wish:
            outcome, has_results = show(place, wish, seconds, port, rate, seed, master, keep)
        if outcome.error is not None:
            complain(CommandError(outcome.error))
            raise typer.Exit(1)
        if wish.number == signal.SIGHUP:
            # Nobody is there to be told.
            raise typer.Exit(0)
        if keep:
            say(f"Everything is kept in {place}.")
        if wish.number is None and not has_results:
            complain(CommandError("No result came within five minutes."))
            raise typer.Exit(1)


def show(
    place: Path,
    wish: Wish,
    seconds: float | None,
    port: int | None,
    rate: float,
    seed: int,
    master: str | None,
    keep: bool,
) -> tuple[Outcome, bool]:
    """Gives how the pipeline ended, and whether it came to a result."""
    output.print("Moldau: a node, orders that come in, and a pipeline on Spark that makes revenue of them.\n")
    with (
        node(choose_port(port), place, None if keep else place) as bootstrap,
        Screen(tips(place, bootstrap)) as screen,
    ):
        screen.done(f"a node on {bootstrap}, its data in {place}")
        with Traffic(bootstrap, rate, seed) as traffic, _ending(wish, traffic, seconds):
            screen.done(f"{rate:g} orders a second into the topic {ORDERS}")
            screen.follow(traffic)
            file = place / f"{PIPELINE}.yaml"
            file.write_text(template(PIPELINE))
            pipeline = loaded(file, bootstrap)
            state = StateDirectory.of(place / DIRECTORY, pipeline.name)
            outcome = run(pipeline, state, RunOptions(master=master), wish, screen)
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
def directory(keep: bool) -> Iterator[Path]:
    place = Path(tempfile.mkdtemp(prefix="moldau-demo-"))
    try:
        yield place
    finally:
        if not keep:
            shutil.rmtree(place, ignore_errors=True)


@contextmanager
def _ending(wish: Wish, traffic: Traffic, seconds: float | None) -> Iterator[None]:
    """Wishes for the end when the time is over, or when the orders have ended by themselves."""
    is_over = threading.Event()

    def wait() -> None:
        deadline = None if seconds is None else time.monotonic() + FIRST_RESULT_WITHIN_S + seconds
        has_begun = False
        while not is_over.wait(0.2):
            if seconds is not None and traffic.results and not has_begun:
                has_begun = True
                deadline = time.monotonic() + seconds
            if traffic.failure is not None or (deadline is not None and time.monotonic() >= deadline):
                wish.make()
                return

    waiting = threading.Thread(target=wait, name="moldau demo's end", daemon=True)
    waiting.start()
    try:
        yield
    finally:
        is_over.set()
        waiting.join()


def _need_spark() -> None:
    """Before anything is started."""
    import deltalake  # noqa: F401
    import pyarrow  # noqa: F401
    import pyspark  # noqa: F401
    import yaml  # noqa: F401
