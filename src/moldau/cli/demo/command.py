"""`moldau demo`: runs a node, generated orders and a pipeline in one terminal."""

import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from moldau.cli.console import CommandError, out_console, print_notice
from moldau.cli.demo.node import PORT, choose_port, run_node
from moldau.cli.demo.screen import DemoDisplay
from moldau.cli.demo.traffic import DEAD, ORDERS, REVENUE, DemoTraffic
from moldau.cli.pipeline.parameters import load_pipeline
from moldau.cli.spark.parameters import MasterUrl, exit_on_error
from moldau.pipelines.runtime.run import RunOptions, RunOutcome, run
from moldau.pipelines.runtime.state_directory import DIRECTORY, StateDirectory
from moldau.pipelines.runtime.stop_request import StopRequest, stop_on_signals
from moldau.pipelines.templates import template

INTRODUCTION = "Moldau demo: a node, generated orders, and a pipeline on Spark that computes their revenue."
PIPELINE = "orders-revenue"
FIRST_RESULT_TIMEOUT_S = 300.0
"""How long the demo waits for the first result with --seconds. An idle machine needs about 15 seconds."""


def demo(
    seconds: Annotated[
        float | None,
        typer.Option(
            "--seconds", min=1, metavar="NUMBER", help="Stop this long after the first result; by default on Ctrl-C."
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            "--port",
            min=0,
            max=65535,
            metavar="PORT",
            help="Port of the node; by default 9092, or a free one if that is in use.",
        ),
    ] = None,
    rate: Annotated[
        float, typer.Option("--rate", min=0.1, max=10_000, metavar="NUMBER", help="Orders per second.")
    ] = 50.0,
    seed: Annotated[int, typer.Option("--seed", metavar="NUMBER", help="Seed of the generated orders.")] = 1,
    master: MasterUrl = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the data, the table and the checkpoints.")] = False,
) -> None:
    """Run a demo: a node, generated orders, and a pipeline on Spark that computes their revenue.

    All data is in a temporary directory that is removed at the end.
    """
    with exit_on_error():
        for name in ("deltalake", "pyarrow", "pyspark", "yaml"):
            # Raise ImportError before the demo starts anything.
            import_module(name)
        with demo_directory(keep) as directory, stop_on_signals() as stop_request:
            out_console.print(f"{INTRODUCTION}\n")
            with (
                run_node(choose_port(port), directory, None if keep else directory) as bootstrap,
                DemoDisplay(tips(directory, bootstrap)) as display,
            ):
                display.done(f"node on {bootstrap}, data in {directory}")
                with DemoTraffic(bootstrap, rate, seed) as traffic, _stop_after(stop_request, traffic, seconds):
                    display.done(f"{rate:g} orders per second to the topic {ORDERS}")
                    display.traffic = traffic
                    outcome = _run_pipeline(directory, bootstrap, master, stop_request, display)
                    if traffic.failure is not None:
                        raise CommandError(f"Producing orders failed: {traffic.failure}")
        if outcome.error is not None:
            raise CommandError(outcome.error)
        if stop_request.signal_number == signal.SIGHUP:
            # Print nothing more, because the terminal was closed.
            raise typer.Exit(0)
        if keep:
            print_notice(f"The data is kept in {directory}.")
        if stop_request.signal_number is None and not display.has_results:
            raise CommandError("The pipeline had no result within five minutes.")


def _run_pipeline(
    directory: Path, bootstrap: str, master: str | None, stop_request: StopRequest, display: DemoDisplay
) -> RunOutcome:
    file = directory / f"{PIPELINE}.yaml"
    file.write_text(template(PIPELINE))
    pipeline = load_pipeline(file, bootstrap)
    state = StateDirectory.of(directory / DIRECTORY, pipeline.name)
    return run(pipeline, state, RunOptions(master=master), stop_request, display)


def tips(directory: Path, bootstrap: str) -> list[str]:
    """Returns commands to try in another terminal while the demo runs."""
    at = "" if bootstrap == f"127.0.0.1:{PORT}" else f" -b {bootstrap}"
    state = directory / DIRECTORY
    return [
        "Try in another terminal:",
        f"  moldau consume {REVENUE}{at}  # the results",
        f"  moldau consume {DEAD}{at} --from-beginning --json  # invalid orders and the reasons",
        f"  moldau group describe moldau-{PIPELINE}-table{at}  # the lag of the pipeline",
        f"  moldau pipeline status {PIPELINE} --state {state}",
        f"  cat {directory / PIPELINE}.yaml  # the whole pipeline",
        "  moldau pipeline new my-revenue  # a pipeline of your own",
        "Read the table in Python:",
        "  from deltalake import DeltaTable",
        f'  table = DeltaTable("{directory / "tables" / "revenue"}")',
        "  print(table.to_pandas().sort_values(['minute', 'product']))",
    ]


@contextmanager
def demo_directory(keep: bool) -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="moldau-demo-"))
    try:
        yield directory
    finally:
        if not keep:
            shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def _stop_after(stop_request: StopRequest, traffic: DemoTraffic, seconds: float | None) -> Iterator[None]:
    """Requests a stop when the time is over or producing orders has failed."""
    is_finished = threading.Event()

    def wait() -> None:
        deadline = None if seconds is None else time.monotonic() + FIRST_RESULT_TIMEOUT_S + seconds
        has_results = False
        while not is_finished.wait(0.2):
            if seconds is not None and traffic.results and not has_results:
                has_results = True
                deadline = time.monotonic() + seconds
            if traffic.failure is not None or (deadline is not None and time.monotonic() >= deadline):
                stop_request.request()
                return

    thread = threading.Thread(target=wait, name="moldau demo timer", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_finished.set()
        thread.join()
